"""The diagnostics of a fit, and :func:`diagnose` for any estimator or module."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sklearn_restf import _diagnose as parts
from sklearn_restf._batches import Batches
from sklearn_restf._certificate import Certificate
from sklearn_restf._descent import Objective
from sklearn_restf._diagnostics import ConvergenceDiagnostics
from sklearn_restf._losses import Loss, squared_error
from sklearn_restf._module import ModuleConfig, ResidualTransformer
from sklearn_restf._state import NumpyState, build_module
from sklearn_restf._training import TrainingResult
from sklearn_restf.exceptions import RankCollapseWarning

CPU = torch.device("cpu")
OFF = "diagnostics=False"


def diagnose_fit(
    estimator: Any,
    result: TrainingResult,
    batches: Batches,
    config: ModuleConfig,
    loss: Loss,
) -> ConvergenceDiagnostics:
    """Return the diagnostics of a run of `estimator`; warn on rank collapse."""
    history = parts.history_fields(result, momentum=estimator.momentum)
    common = {"residual_beta": config.residual_beta, "dtype": str(batches.dtype)[6:]}
    if not estimator.diagnostics:
        reasons = dict.fromkeys(("sigma_min", "norm", "condition_ratio", "predicted_rate"), OFF)
        return parts.assemble(history, ({}, reasons), **common)

    full = estimator.diagnostics == "full"
    x, mask = sample_tokens(batches, None if full else estimator.diagnostics_samples)
    start_module = build_module(config, result.initial_state)
    start = parts.layer_spectra(start_module, x, mask)
    end = parts.layer_spectra(build_module(config, result.final_state), x, mask)
    spectral = parts.spectral_fields(start, end)
    prediction = predicted(
        start_module,
        batches,
        loss,
        momentum=estimator.momentum,
        alpha=estimator.alpha,
        learning_rate=min(result.learning_rates, default=np.nan),
    )
    if full:
        common["jacobian_norm"] = jacobian_norm(config, result.initial_state, batches, loss)
    warn_if_collapsed(start, (x.shape[1], config.d_model), config, batches.dtype)
    return parts.assemble(history, spectral, prediction, **common)


def sample_tokens(batches: Batches, n_samples: int | None) -> tuple[Tensor, Tensor | None]:
    """Return up to `n_samples` evenly spaced samples as float64 tokens on the CPU."""
    rows = np.arange(len(batches))
    if n_samples is not None and n_samples < len(rows):
        rows = np.linspace(0, len(rows) - 1, n_samples).astype(int)
    return batches.layout.batch(batches.tokens, rows, torch.float64, CPU)


def predicted(
    module: ResidualTransformer,
    batches: Batches,
    loss: Loss,
    *,
    momentum: float,
    alpha: float,
    learning_rate: float,
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the fields of the theorem's prediction, or why there is none."""
    config = module.config
    if loss is not squared_error:
        reason = "the certificate is about the squared error, the loss is the log-loss"
        return parts.prediction_fields(None, reason, smallest_weight=0, learning_rate=0)
    predictions = len(batches)
    if config.pooling == "none":
        lengths = batches.tokens.lengths
        predictions = (
            int(lengths.sum()) if lengths is not None else predictions * batches.layout.max_tokens
        )
    width = config.d_model * (config.n_tokens or 1 if config.pooling == "flatten" else 1)
    if predictions > max(width, config.d_ff):
        certificate = Certificate(
            reason=f"the certificate needs at most max(d, d_ff) = {max(width, config.d_ff)} "
            f"predictions; there are {predictions}"
        )
        stacked: dict[str, Any] = {"sigma_min_stacked": 0.0}
    else:
        x, mask = sample_tokens(batches, None)
        certificate, sigma = parts.certificate_of(module, x, mask)
        stacked = {"sigma_min_stacked": sigma}
    reason = ""
    if momentum:
        reason = "the theorem is about plain gradient descent: momentum=0"
    elif alpha:
        reason = "the theorem is about the loss without penalty: alpha=0"
    fields, reasons = parts.prediction_fields(
        certificate,
        reason,
        smallest_weight=float(batches.weight.min()),
        learning_rate=learning_rate,
    )
    return fields | stacked, reasons


def jacobian_norm(config: ModuleConfig, state: NumpyState, batches: Batches, loss: Loss) -> float:
    """Return ``||J||^2`` at the given weights, without penalty."""
    module = build_module(config, state, dtype=batches.dtype, device=batches.device)
    return Objective(module, batches, loss, alpha=0.0).gauss_newton_norm()


def warn_if_collapsed(
    start: list[parts.LayerSpectra],
    shape: tuple[int, int],
    config: ModuleConfig,
    dtype: torch.dtype,
) -> None:
    """Warn when a layer loses the rank its input had, to the resolution of training."""
    eps = torch.finfo(dtype).eps
    layers = [i for i, layer in enumerate(start, 1) if parts.collapsed(layer, shape, eps)]
    if layers and config.residual_beta < 1:
        warnings.warn(
            f"The attention output Z of layer(s) {', '.join(map(str, layers))} is numerically "
            f"rank-deficient at residual_beta={config.residual_beta:g} although its input is not: "
            "tokens became indistinguishable and gradient descent may stall. Raise residual_beta.",
            RankCollapseWarning,
            stacklevel=6,
        )


def diagnose(
    estimator_or_module: Any, X: Any, y: Any = None, *, mask: Any = None, n_samples: int = 64
) -> ConvergenceDiagnostics:
    """Diagnose an estimator, fitted or not, or a module, on given samples.

    "Will this converge?" before training, "why did it not?" afterwards.

    Parameters
    ----------
    estimator_or_module : estimator or ResidualTransformer
        A :class:`ResidualTransformerRegressor` or :class:`ResidualTransformerClassifier`. An
        unfitted one is given its initial weights, as fit would, and is left unfitted.
        Or the torch module of one (``module_``).
    X : array-like
        Samples in any form the estimator takes; for a module a tensor (n, T, width).
    y : array-like, default=None
        Targets. With them the theorem's certificate is computed as well; an unfitted
        estimator needs them for the number of outputs and otherwise assumes one.
    mask : bool array of shape (n, T), default=None
        Real tokens; for a module only.
    n_samples : int, default=64
        Samples used for the spectra.

    Returns
    -------
    diagnostics : ConvergenceDiagnostics
        The fields that do not need a training run.

    Raises
    ------
    TypeError
        For anything that is neither.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn_restf import ResidualTransformerRegressor, diagnose
    >>> X = np.random.default_rng(0).normal(size=(40, 12))
    >>> weak = diagnose(ResidualTransformerRegressor(residual_beta=0.0, random_state=0), X)
    >>> strong = diagnose(ResidualTransformerRegressor(residual_beta=1.0, random_state=0), X)
    >>> weak.condition_ratio < strong.condition_ratio
    True
    """
    if isinstance(estimator_or_module, ResidualTransformer):
        module = build_module(
            estimator_or_module.config,
            {
                name: value.detach().cpu().double().numpy()
                for name, value in estimator_or_module.named_parameters()
            },
        )
        x = torch.as_tensor(np.asarray(X)[:n_samples], dtype=torch.float64)
        real = None if mask is None else torch.as_tensor(np.asarray(mask)[:n_samples])
        return _spectral_only(module, x, real, "a module has no targets")
    prepare = getattr(estimator_or_module, "_prepare_diagnosis", None)
    if prepare is None:
        raise TypeError(
            "diagnose takes a ResidualTransformerRegressor, a ResidualTransformerClassifier or a "
            f"ResidualTransformer module; got {type(estimator_or_module).__name__}."
        )
    module, batches, loss = prepare(X, y)
    x, real = sample_tokens(batches, n_samples)
    if y is None:
        return _spectral_only(module, x, real, "no targets were given")
    spectral = parts.spectral_fields(parts.layer_spectra(module, x, real), None)
    rate = jacobian_norm(module.config, _numpy(module), batches, loss)
    learning_rate = estimator_or_module.learning_rate
    if isinstance(learning_rate, str):  # the theorem's own choice
        learning_rate = 1.0 / rate if rate > 0 else np.nan
    prediction = predicted(
        module, batches, loss, momentum=0.0, alpha=0.0, learning_rate=learning_rate
    )
    return parts.assemble(
        spectral, prediction, jacobian_norm=rate, residual_beta=module.config.residual_beta
    )


def _numpy(module: ResidualTransformer) -> NumpyState:
    return {name: value.detach().numpy() for name, value in module.named_parameters()}


def _spectral_only(
    module: ResidualTransformer, x: Tensor, mask: Tensor | None, reason: str
) -> ConvergenceDiagnostics:
    spectral = parts.spectral_fields(parts.layer_spectra(module, x, mask), None)
    return parts.assemble(
        spectral,
        ({}, {"predicted_rate": reason, "alpha_cert": reason}),
        residual_beta=module.config.residual_beta,
    )
