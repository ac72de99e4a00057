"""Why training converges, or does not: the numbers behind ``convergence_diagnostics_``.

The speed of gradient descent on a residual Transformer is governed by the extreme
singular values of the attention-layer output ``Z = beta F + A F W_V``: the rate is about
``sigma_min(Z)^2 / ||Z||^2`` (arXiv 2506.05249v4).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import pandas as pd

from sklearn_restf._diagnostics.advice import find_problems, judge
from sklearn_restf._diagnostics.html import diagnostics_html

LAYER_QUANTITIES = (
    "sigma_min",
    "norm",
    "condition_ratio",
    "rank1_residual",
    "effective_rank",
    "stable_rank",
)


@dataclass(frozen=True, repr=False)
class ConvergenceDiagnostics:
    """Convergence diagnostics of one fit.

    Quantities are taken at the initial parameters, as in the theorem, unless named
    ``final_*``, and on at most ``diagnostics_samples`` training samples (n_diagnosed of them).
    ``Z = beta F + A F W_V`` is the attention layer's output of one sample, ``Z_p`` that of
    sample p, one row a token. A quantity that is not defined is NaN, and :attr:`reasons` says
    why. The theory page of the documentation derives them all.

    Attributes
    ----------
    sigma_min : float
        Smallest singular value of ``Z_p`` (the min(T, d)-th of T real tokens of width d), the
        smallest over the samples, in the last layer.
    norm : float
        Largest spectral norm ``||Z_p||`` over the samples, last layer.
    condition_ratio : float
        ``sigma_min^2 / norm^2``, which drives the theorem's bound. Compare it between values of
        beta on one data set; between data sets it says little.
    rate : float
        Measured: the factor by which the training objective approaches its limit per iteration
        (the limit need not be known for that), with its R^2 `rate_r2` over the iterations
        `rate_window`.
    predicted_rate : float
        ``1 - learning_rate * alpha_cert``, with the smallest learning rate of the run: the
        theorem's guarantee for plain gradient descent on the squared error.
    alpha_cert : float
        Certified lower bound on the smallest tangent-kernel eigenvalue of the mean loss.
    alpha_cert_blocks : dict of str to float
        Its four terms, one per weight matrix: ``readout``, ``ffn_out``, ``ffn_in``, ``value``.
    jacobian_norm : float
        ``||J||^2``, the largest Gauss-Newton eigenvalue of the mean loss (plus the penalty),
        with the Jacobian J of the predictions in the weights; only with
        ``diagnostics="full"``, as everything down to `forecast`.
    kernel_min : float
        Smallest eigenvalue of the tangent kernel ``J J^T`` of the mean loss: what `alpha_cert`
        bounds from below. Computed up to 512 outputs.
    predicted_curve : ndarray of shape (n_iter + 1,)
        Objective predicted by linearising the model at the initial parameters, for the
        learning rates of the run. :func:`diagnose` predicts `max_iter` iterations from the
        parameters it is given.
    predicted_horizon : int
        Iterations over which `predicted_curve` was within 10 % of `loss`: how long the model
        stayed in its linear regime. -1 where it was not compared.
    local_rate : float
        What `rate` would be on `predicted_curve`; NaN when the run left the linear regime
        before the end of `rate_window`.
    forecast : ndarray of shape (n_iter + 1,)
        Objective over as many further iterations, predicted by linearising at the fitted
        parameters.
    certified : bool
        Whether every step, without momentum, satisfied the descent condition ``armijo >= 1/2``
        (up to rounding), with which the product of ``1 - learning_rate * local_pl`` bounds the
        loss a posteriori.
    rank1_residual, effective_rank, stable_rank : float
        Medians over the samples, of Z in the last layer: how far its rows are from being all
        equal, as a share of its norm (0 is collapse); the number of directions in use by the
        entropy of the singular values; ``||Z||_F^2 / ||Z||^2``.
    attention_sigma_min, attention_rank1_residual, attention_effective_rank, \
attention_stable_rank : float
        The same of the attention output alone, without residual connection.
    sample_residual, final_sample_residual : float
        ``||P F||_F / ||F||_F`` of what the readout sees, one row per sample, with P the
        centring over samples: 0 when all samples look alike to the readout.
    sigma_min_stacked : float
        Smallest singular value of all tokens of all samples stacked; 0 when there are more
        of them than features.
    input_norm, input_rank1_residual : float
        Largest spectral norm and median rank-1 residual of the tokens before the first layer.
    input_condition_ratio : float
        ``sigma_min^2 / norm^2`` of the (standardised) features: all tokens stacked, or the
        columns of a table.
    trivial_loss : float
        Training loss of the best constant prediction.
    collapse_floor : float
        With one prediction per token: the loss below which a model whose tokens coincide
        cannot go.
    penalty : float
        Share of the L2 penalty in the objective at the fitted parameters.
    final_sigma_min, final_norm, final_condition_ratio, final_rank1_residual, \
final_effective_rank, final_stable_rank : float
        At the fitted parameters.
    layers : dict of str to ndarray of shape (n_layers,)
        Every quantity per layer: the columns of :meth:`to_frame`.
    sigma_min_per_sample, norm_per_sample : ndarray of shape (n_layers, n_diagnosed)
        Per layer and sample, at the initial parameters.
    singular_values_start, singular_values_end : ndarray of shape (n_diagnosed, min(T, d))
        Singular values of Z in the last layer, with the initial and with the fitted weights;
        NaN-padded for ragged samples.
    loss, gradient_norm : ndarray of shape (n_iter + 1,)
        Objective and norm of its gradient at every visited point.
    local_pl : ndarray of shape (n_iter + 1,)
        ``||gradient||^2 / (2 loss)``, a Rayleigh quotient of the tangent kernel.
    armijo : ndarray of shape (n_iter,)
        ``(loss_t - loss_{t+1}) / (learning_rate ||gradient_t||^2)``.
    learning_rates : ndarray of shape (n_iter,)
        Learning rate of every step.
    n_iter : int
        Number of iterations.
    stop_reason : str
        Why training ended: the estimator's ``stop_reason_``, or "diverged"; "" before training.
    settings : dict
        The parameters of the estimator that `advice` refers to.
    reasons : dict
        Field name to the reason why it is NaN.
    residual_beta, dtype : float, str
        Of the model and of its training.
    binding : {"local", "certificate", "none"}
        Which prediction of the rate holds for the run: `local_rate` or `predicted_rate`.
    problems : tuple of str
        Names of what slows training or bounds the loss, most important first: "diverged",
        "step_too_small", "edge_of_stability", "plain_step_rule", "vanishing_signal",
        "rank_collapse", "equal_tokens", "samples_alike", "ill_conditioned_input",
        "ill_conditioned_attention", "penalty_floor", "model_too_small", "max_iter".
    advice : str
        The same in words, with what to change.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn_restf import ResidualTransformerRegressor
    >>> X = np.random.default_rng(0).normal(size=(30, 6))
    >>> model = ResidualTransformerRegressor(max_iter=30, tol=None, random_state=0)
    >>> model = model.fit(X, X[:, 0])
    >>> diagnostics = model.convergence_diagnostics_
    >>> 0 <= diagnostics.condition_ratio <= 1
    True
    """

    __module__ = "sklearn_restf"  # lasting: saved models name it

    sigma_min: float = math.nan
    norm: float = math.nan
    condition_ratio: float = math.nan
    rate: float = math.nan
    rate_r2: float = math.nan
    rate_window: tuple[int, int] = (0, 0)
    predicted_rate: float = math.nan
    alpha_cert: float = math.nan
    alpha_cert_blocks: dict[str, float] = field(default_factory=dict)
    jacobian_norm: float = math.nan
    kernel_min: float = math.nan
    predicted_curve: np.ndarray = field(default_factory=lambda: np.empty(0))
    predicted_horizon: int = -1
    local_rate: float = math.nan
    forecast: np.ndarray = field(default_factory=lambda: np.empty(0))
    certified: bool = False
    rank1_residual: float = math.nan
    effective_rank: float = math.nan
    stable_rank: float = math.nan
    attention_sigma_min: float = math.nan
    attention_rank1_residual: float = math.nan
    attention_effective_rank: float = math.nan
    attention_stable_rank: float = math.nan
    final_sigma_min: float = math.nan
    final_norm: float = math.nan
    final_condition_ratio: float = math.nan
    final_rank1_residual: float = math.nan
    final_effective_rank: float = math.nan
    final_stable_rank: float = math.nan
    sigma_min_stacked: float = math.nan
    input_norm: float = math.nan
    input_rank1_residual: float = math.nan
    input_condition_ratio: float = math.nan
    sample_residual: float = math.nan
    final_sample_residual: float = math.nan
    trivial_loss: float = math.nan
    collapse_floor: float = math.nan
    penalty: float = math.nan
    layers: dict[str, np.ndarray] = field(default_factory=dict)
    sigma_min_per_sample: np.ndarray = field(default_factory=lambda: np.empty((0, 0)))
    norm_per_sample: np.ndarray = field(default_factory=lambda: np.empty((0, 0)))
    singular_values_start: np.ndarray = field(default_factory=lambda: np.empty((0, 0)))
    singular_values_end: np.ndarray = field(default_factory=lambda: np.empty((0, 0)))
    loss: np.ndarray = field(default_factory=lambda: np.empty(0))
    gradient_norm: np.ndarray = field(default_factory=lambda: np.empty(0))
    local_pl: np.ndarray = field(default_factory=lambda: np.empty(0))
    armijo: np.ndarray = field(default_factory=lambda: np.empty(0))
    learning_rates: np.ndarray = field(default_factory=lambda: np.empty(0))
    n_iter: int = 0
    stop_reason: str = ""
    residual_beta: float = math.nan
    dtype: str = "float64"
    settings: dict[str, Any] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)

    @property
    def advice(self) -> str:
        """A sentence or two of judgement, and what to change."""
        return judge(self)

    @property
    def problems(self) -> tuple[str, ...]:
        """Names of what slows training or bounds the loss, most important first."""
        return tuple(problem.name for problem in find_problems(self))

    @property
    def binding(self) -> str:
        """Which prediction of the rate holds for this run: the tighter of those that do.

        "local" when the linearised model followed the loss through `rate_window`, else
        "certificate" when the theorem's bound is defined, else "none".
        """
        if math.isfinite(self.local_rate):
            return "local"
        return "certificate" if math.isfinite(self.predicted_rate) else "none"

    def summary(self) -> str:
        """Return the scalars a user reads first as a short table, and the judgement.

        Returns
        -------
        text : str
            Several lines.
        """
        start, end = self.rate_window
        rows = [
            ("sigma_min(Z)", _number(self.sigma_min), _number(self.final_sigma_min)),
            ("||Z||", _number(self.norm), _number(self.final_norm)),
            (
                "sigma_min^2 / ||Z||^2",
                _number(self.condition_ratio),
                _number(self.final_condition_ratio),
            ),
            (
                "rank-1 residual",
                _number(self.rank1_residual),
                _number(self.final_rank1_residual),
            ),
            (
                "effective rank",
                _number(self.effective_rank),
                _number(self.final_effective_rank),
            ),
        ]
        lines = [f"{'':24}{'start':>12}{'end':>12}"]
        lines += [f"{name:24}{first:>12}{last:>12}" for name, first, last in rows]
        measured = _number(self.rate)
        if math.isfinite(self.rate):
            faster = "; the loss fell ever faster" if self.rate > 1 else ""
            measured += f"  (R^2 {self.rate_r2:.3f}, iterations {start} to {end}{faster})"
        lines.append(f"{'measured rate':24}{measured:>12}")
        predicted = _number(self.predicted_rate)
        if "predicted_rate" in self.reasons:
            predicted += f"  ({self.reasons['predicted_rate']})"
        lines.append(f"{'predicted rate':24}{predicted:>12}")
        if len(self.predicted_curve):
            local = _number(self.local_rate)
            if "local_rate" in self.reasons:
                local += f"  ({self.reasons['local_rate']})"
            lines.append(f"{'rate, linearised':24}{local:>12}")
        if len(self.loss):
            lines.append(f"{'loss':24}{_number(self.loss[0]):>12}{_number(self.loss[-1]):>12}")
            lines.append(f"{'iterations':24}{self.n_iter:>12}  ({self.stop_reason})")
        return "\n".join([*lines, "", self.advice])

    def __repr__(self) -> str:
        return self.summary()

    def to_frame(self) -> pd.DataFrame:
        """Return every quantity per layer, at the start and at the end.

        Returns
        -------
        frame : DataFrame
            One row per layer; columns ``sigma_min``, ``norm``, ... , ``final_sigma_min``, ...
        """
        n_layers = len(next(iter(self.layers.values()), []))
        index = pd.RangeIndex(1, n_layers + 1, name="layer")
        return pd.DataFrame({name: values for name, values in self.layers.items()}, index=index)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain Python numbers, lists and dicts, fit for JSON.

        Returns
        -------
        dictionary : dict
            NaN becomes None.
        """
        return {f.name: _plain(getattr(self, f.name)) for f in fields(self)}

    def _repr_html_(self) -> str:
        return diagnostics_html(self)


def _number(value: float) -> str:
    return f"{value:.4g}"


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
