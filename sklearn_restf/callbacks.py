"""skorch callbacks: watch the conditioning of attention during training; save and go on."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import torch
from skorch.callbacks import Callback
from torch import Tensor, nn

from sklearn_restf._diagnostics.convergence_diagnostics import ConvergenceDiagnostics
from sklearn_restf._diagnostics.convergence_rate import measure_rate
from sklearn_restf._diagnostics.singular_values import Spectra, spectra
from sklearn_restf._model import Block, LayerOutput
from sklearn_restf._training import FullBatchNet, TrainingCheckpoint
from sklearn_restf._utils.validation import (
    BOOL,
    check_parameters,
    instance_of,
    integer,
    one_of,
    real,
)

__all__ = ["ConvergenceMonitor", "TrainingCheckpoint"]

MONITOR_CONSTRAINTS = {
    "module": [one_of(None), instance_of(str, words="a str")],
    "residual_beta": [real()],
    "batch_first": [BOOL, one_of(None)],
    "n_samples": [integer(1)],
    "every": [integer(1)],
}
SPECTRAL = ("sigma_min", "norm", "condition_ratio", "rank1_residual", "effective_rank")


class ConvergenceMonitor(Callback):
    """Record the spectrum of an attention layer's output, and the descent of the loss.

    Works with any skorch net that has an attention-like submodule, and in the
    `callbacks` of this package's estimators (look in ``estimator.callbacks_`` afterwards).
    Every `every` epochs the net is evaluated on a fixed part of the training samples, and

    ``Z = residual_beta * input + output``

    of the named module is taken apart by singular values. The scalars go into the net's
    history as well.

    Parameters
    ----------
    module : str, default=None
        Dotted name of the submodule, as in ``net.module_.named_modules()``. Its output (or the
        first of a tuple of outputs, as of :class:`torch.nn.MultiheadAttention`) must be a
        tensor (n_samples, n_tokens, width). None: the last layer of this package's
        estimators, whose Z is known and needs no `residual_beta`.
    residual_beta : float, default=0.0
        Weight with which the net adds the module's input to its output. 0 looks at the
        output alone. Where the layer around the module normalises first (``norm_first=True``
        of :class:`torch.nn.TransformerEncoderLayer`), the input of that layer counts: it is
        what is added. In a pre-LayerNorm layer of your own name the submodule that contains
        the normalisation, so that its input is the residual stream.
    batch_first : bool, default=None
        Whether the named module's output is (n_samples, n_tokens, width); False for
        (n_tokens, n_samples, width). None: what the module says of itself in an attribute of
        this name, as torch's attention modules do; True without one.
    n_samples : int, default=64
        Training samples to evaluate, evenly spaced.
    every : int, default=10
        Epochs between two measurements of the spectrum; for this package's estimators an epoch
        is an iteration. The loss and the norm of the gradient are recorded at every epoch.

    Attributes
    ----------
    epochs_ : list of int
        Epochs at which the spectrum was measured; 0 is before training.
    spectra_ : dict of str to list of float
        ``sigma_min`` (smallest over the samples), ``norm`` (largest), ``condition_ratio``,
        and the medians of ``rank1_residual`` and ``effective_rank``, at `epochs_`.
    singular_values_ : list of ndarray of shape (n_samples, min(n_tokens, width))
        Singular values of Z at `epochs_`.
    loss_, gradient_norm_, local_pl_ : list of float
        Training loss, norm of its gradient (of mini-batches: their root mean square) and
        ``gradient_norm^2 / (2 loss)`` of every epoch. For this package's estimators at the
        point after the step, for other nets, whose loss is that of the forward pass, before.
    reason_ : str
        Why there are no spectra; empty if there are.
    diagnostics_ : ConvergenceDiagnostics
        The same, assembled when training has ended.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn_restf import ResidualTransformerRegressor
    >>> from sklearn_restf.callbacks import ConvergenceMonitor
    >>> X = np.random.default_rng(0).normal(size=(30, 6))
    >>> model = ResidualTransformerRegressor(
    ...     max_iter=20, tol=None, callbacks=[ConvergenceMonitor(every=5)], random_state=0
    ... ).fit(X, X[:, 0])
    >>> monitor = model.callbacks_[0]
    >>> monitor.to_frame().index.tolist()
    [0, 5, 10, 15, 20]
    """

    def __init__(
        self,
        module: str | None = None,
        *,
        residual_beta: float = 0.0,
        batch_first: bool | None = None,
        n_samples: int = 64,
        every: int = 10,
    ) -> None:
        self.module = module
        self.residual_beta = residual_beta
        self.batch_first = batch_first
        self.n_samples = n_samples
        self.every = every

    def initialize(self) -> ConvergenceMonitor:
        """Forget earlier records.

        Returns
        -------
        self : ConvergenceMonitor
            The callback itself, as skorch expects.
        """
        check_parameters("ConvergenceMonitor", vars(self), MONITOR_CONSTRAINTS)
        self.epochs_: list[int] = []
        self.spectra_: dict[str, list[float]] = {name: [] for name in SPECTRAL}
        self.singular_values_: list[np.ndarray] = []
        self.loss_: list[float] = []
        self.gradient_norm_: list[float] = []
        self.local_pl_: list[float] = []
        self.reason_ = ""
        self._squares: list[float] = []
        self._epoch = 0
        return self

    # --- what skorch calls ----------------------------------------------------------

    def on_train_begin(self, net: Any, X: Any = None, y: Any = None, **kwargs: Any) -> None:
        """Measure the initial spectrum."""
        self.initialize()
        dataset = None if isinstance(net, FullBatchNet) else net.get_dataset(X, y)
        self._measure(net, dataset)

    def on_grad_computed(self, net: Any, named_parameters: Any, **kwargs: Any) -> None:
        """Add up the squared gradient of a batch."""
        squares = [
            parameter.grad.detach().double().square().sum()
            for _, parameter in named_parameters
            if parameter.grad is not None
        ]
        self._squares.append(float(torch.stack(squares).sum()) if squares else 0.0)

    def on_epoch_end(self, net: Any, dataset_train: Any = None, **kwargs: Any) -> None:
        """Record the epoch, and every so often the spectrum."""
        self._epoch += 1
        loss = float(net.history[-1, "train_loss"])
        square = float(np.mean(self._squares)) if self._squares else math.nan
        self._squares = []
        if isinstance(net, FullBatchNet):  # which records it itself, at the point after the step
            square = float(net.history[-1, "gradient_norm"]) ** 2
        else:
            net.history.record("gradient_norm", math.sqrt(square))
        self.loss_.append(loss)
        self.gradient_norm_.append(math.sqrt(square))
        self.local_pl_.append(square / (2 * loss) if loss > 0 else math.nan)
        if self._epoch % self.every == 0:
            self._measure(net, dataset_train)
            if self.epochs_:
                for name in ("sigma_min", "norm", "condition_ratio"):
                    net.history.record(name, self.spectra_[name][-1])

    def on_train_end(self, net: Any, **kwargs: Any) -> None:
        """Assemble the diagnostics."""
        loss = np.array(self.loss_)
        estimate = measure_rate(loss) if len(loss) else None
        reasons = {"predicted_rate": "the certificate is computed by the estimators only"}
        if self.reason_:
            reasons["sigma_min"] = self.reason_
        if estimate is not None and estimate.reason:
            reasons["rate"] = estimate.reason
        values: dict[str, Any] = {
            name: series[0] for name, series in self.spectra_.items() if series
        }
        values |= {f"final_{name}": series[-1] for name, series in self.spectra_.items() if series}
        self.diagnostics_ = ConvergenceDiagnostics(
            **values,
            rate=estimate.rate if estimate is not None else math.nan,
            rate_r2=estimate.r2 if estimate is not None else math.nan,
            rate_window=estimate.window if estimate is not None else (0, 0),
            layers={name: np.array([value]) for name, value in values.items()},
            singular_values_start=self._singular_values(0),
            singular_values_end=self._singular_values(-1),
            loss=loss,
            gradient_norm=np.array(self.gradient_norm_),
            local_pl=np.array(self.local_pl_),
            n_iter=self._epoch,
            stop_reason="ended",
            residual_beta=self._beta(net),
            reasons=reasons,
        )

    # --- what the user calls --------------------------------------------------------

    def to_frame(self) -> pd.DataFrame:
        """Return the spectral scalars by epoch.

        Returns
        -------
        frame : DataFrame
            Index ``epoch``; columns ``sigma_min``, ``norm``, ``condition_ratio``,
            ``rank1_residual``, ``effective_rank``.
        """
        return pd.DataFrame(self.spectra_, index=pd.Index(self.epochs_, name="epoch"))

    # --- measuring ------------------------------------------------------------------

    def _measure(self, net: Any, dataset: Any) -> None:
        module, streams = self._find(net.module_), []
        caught: list[Tensor] = []

        def see(_: nn.Module, args: Any, kwargs: Mapping[str, Any]) -> None:
            streams.append(first_argument(args, kwargs))

        def keep(module: nn.Module, args: Any, kwargs: Mapping[str, Any], output: Any) -> None:
            added = streams[-1] if streams else first_argument(args, kwargs)
            caught.append(self._z(module, added, output))

        handles = [module.register_forward_hook(keep, with_kwargs=True)]
        around = net.module_.get_submodule((self.module or "").rpartition(".")[0])
        if module is not around and getattr(around, "norm_first", False):
            handles.append(around.register_forward_pre_hook(see, with_kwargs=True))
        training = net.module_.training
        try:
            lengths = self._evaluate(net, dataset)
        finally:
            for handle in handles:
                handle.remove()
            net.module_.train(training)
        if not caught:
            name = self.module or "the last layer"
            self.reason_ = f"the forward pass does not call {name!r}"
            return
        Z = caught[-1].double().cpu().numpy()
        samples = Z if lengths is None else [z[: int(n)] for z, n in zip(Z, lengths, strict=True)]
        self._record(spectra(samples))

    def _z(self, module: nn.Module, added: Any, output: Any) -> Tensor:
        if isinstance(output, LayerOutput):
            return output.Z.detach()
        if isinstance(output, tuple | list):
            output = output[0]
        if not isinstance(output, Tensor) or output.ndim != 3:
            shape = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
            raise ValueError(
                f"ConvergenceMonitor needs a module whose output is (n_samples, n_tokens, width); "
                f"{self.module!r} returned {shape}. Name another submodule."
            )
        Z = output.detach()
        if self.residual_beta:
            if not isinstance(added, Tensor) or added.shape != Z.shape:
                raise ValueError(
                    f"residual_beta={self.residual_beta} needs a module whose first input has the "
                    f"shape of its output, {tuple(Z.shape)}; {self.module!r} got "
                    f"{tuple(getattr(added, 'shape', ())) or type(added).__name__}."
                )
            Z = Z + self.residual_beta * added.detach()
        batch_first = self.batch_first
        if batch_first is None:
            batch_first = bool(getattr(module, "batch_first", True))
        return Z if batch_first else Z.transpose(0, 1)

    def _evaluate(self, net: Any, dataset: Any) -> Tensor | None:
        """Run the net forward on the watched samples; return their lengths if ragged."""
        if isinstance(net, FullBatchNet):
            return _evaluate_full_batch(net, self.n_samples)
        rows = np.linspace(0, len(dataset) - 1, min(self.n_samples, len(dataset))).astype(int)
        subset = torch.utils.data.Subset(dataset, rows.tolist())
        # a generator of its own: even in order a loader draws from one, else from torch's global
        loader = torch.utils.data.DataLoader(
            subset, batch_size=len(rows), shuffle=False, generator=torch.Generator()
        )
        net.evaluation_step(next(iter(loader)), training=False)
        return None

    def _find(self, root: nn.Module) -> nn.Module:
        named = dict(root.named_modules())
        if self.module is None:
            blocks = [module for module in named.values() if isinstance(module, Block)]
            if blocks:
                return blocks[-1]
        elif self.module in named:
            return named[self.module]
        known = ", ".join(repr(name) for name in named if name)
        raise ValueError(
            f"ConvergenceMonitor(module={self.module!r}) finds no such submodule. Name the one "
            f"that computes attention, one of: {known}."
        )

    def _record(self, spectrum: Spectra) -> None:
        low, high = float(spectrum.sigma_min.min()), float(spectrum.norm.max())
        values = {
            "sigma_min": low,
            "norm": high,
            "condition_ratio": (low / high) ** 2 if high > 0 else math.nan,
            "rank1_residual": float(np.median(spectrum.rank1_residual)),
            "effective_rank": float(np.median(spectrum.effective_rank)),
        }
        self.epochs_.append(self._epoch)
        self.singular_values_.append(spectrum.singular_values)
        for name, value in values.items():
            self.spectra_[name].append(value)

    def _singular_values(self, moment: int) -> np.ndarray:
        return self.singular_values_[moment] if self.singular_values_ else np.empty((0, 0))

    def _beta(self, net: Any) -> float:
        config = getattr(self._find(net.module_), "config", None)
        return float(getattr(config, "residual_beta", self.residual_beta))


def first_argument(args: Any, kwargs: Mapping[str, Any]) -> Any:
    """Return what a module was called with first."""
    return args[0] if args else next(iter(kwargs.values()))


def _evaluate_full_batch(net: FullBatchNet, n_samples: int) -> Tensor | None:
    """Run this package's module in its plain form, in which every layer is a submodule call."""
    batches = net.train
    assert batches is not None  # a net being trained has samples
    rows = np.linspace(0, len(batches) - 1, min(n_samples, len(batches))).astype(int)
    x, mask = batches.layout.batch(batches.tokens, rows, batches.dtype, batches.device)
    with torch.no_grad():
        net.module_(x, mask)
    return None if mask is None else mask.sum(1)
