"""The diagnostics of a fit, and :func:`diagnose` for any estimator or module."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from sklearn_restf._data.batches import Batches, work_per_pass
from sklearn_restf._diagnostics import fields as parts
from sklearn_restf._diagnostics.baselines import collapse_floor, penalty_share, trivial_loss
from sklearn_restf._diagnostics.certificate import Certificate
from sklearn_restf._diagnostics.convergence_diagnostics import ConvergenceDiagnostics
from sklearn_restf._diagnostics.linearized_run import prediction_of_run, prediction_without_run
from sklearn_restf._diagnostics.module_input import module_tokens
from sklearn_restf._diagnostics.pooled_samples import FULL_FIELDS, join, pool_ranks
from sklearn_restf._model import (
    Loss,
    ModuleConfig,
    ResidualTransformer,
    build_module,
    squared_error,
)
from sklearn_restf._training import TrainingResult
from sklearn_restf._utils.device import cpu_by_default
from sklearn_restf._utils.process_group import active_group, alone, gather, rank, total
from sklearn_restf._utils.threads import thread_limit
from sklearn_restf._utils.validation import BOOL, check_parameters, integer, plain
from sklearn_restf._utils.warnings import warn
from sklearn_restf.exceptions import RankCollapseWarning

CPU = torch.device("cpu")
OFF = "diagnostics=False"
# the parameters that the advice speaks of
SETTINGS = ("learning_rate", "momentum", "alpha", "standardize", "max_iter")


@np.errstate(over="ignore", invalid="ignore")  # at the edge of range, figures are inf or NaN
def diagnose_fit(
    estimator: Any,
    result: TrainingResult,
    batches: Batches,
    config: ModuleConfig,
    loss: Loss,
) -> ConvergenceDiagnostics:
    """Return the diagnostics of a run of `estimator`; warn on rank collapse.

    They are about the samples of all ranks. An interrupt ends the diagnosis: the model
    is there, and not to be lost for it.
    """
    arguments = estimator, result, batches, config, loss
    try:
        return diagnose_run(*arguments, wanted=estimator.diagnostics)
    except KeyboardInterrupt:
        if active_group() is not None:  # the other ranks would wait
            raise
        warn(
            f"{type(estimator).__name__} was interrupted while its convergence was diagnosed: the "
            "fit is complete, convergence_diagnostics_ is not.",
            ConvergenceWarning,
        )
        return diagnose_run(*arguments, wanted=False, reason="interrupted")


def diagnose_run(
    estimator: Any,
    result: TrainingResult,
    batches: Batches,
    config: ModuleConfig,
    loss: Loss,
    *,
    wanted: bool | str,
    reason: str = OFF,
) -> ConvergenceDiagnostics:
    """Return what is `wanted` (as the parameter `diagnostics` says), or the `reason` why not."""
    full, pooling_reason = wanted == "full", ""
    if full and active_group() is not None:
        pooled, pooling_reason = pool_ranks(batches, config)
        if pooled is not None:
            with alone():
                return diagnose_run(estimator, result, pooled, config, loss, wanted=wanted)
    eps = torch.finfo(batches.dtype).eps
    history = parts.history_fields(result, momentum=float(estimator.momentum), eps=eps)
    state = estimator._fitted.state  # the weights kept: the best ones with early stopping
    common: dict[str, Any] = {
        "residual_beta": config.residual_beta,
        "dtype": str(batches.dtype)[6:],
        "settings": settings_of(estimator, config),
        "penalty": penalty_share(state, float(estimator.alpha), estimator.loss_),
        "trivial_loss": trivial_loss(batches, config, loss),
    }
    if not wanted:
        reasons = dict.fromkeys(("sigma_min", "norm", "condition_ratio", "predicted_rate"), reason)
        return parts.assemble(history, ({}, reasons), **common)

    full = full and not pooling_reason
    x, mask = sample_tokens(batches, None if full else estimator.diagnostics_samples)
    start_module = build_module(config, result.initial_state)
    start = parts.model_spectra(start_module, x, mask)
    end = parts.model_spectra(build_module(config, state), x, mask)
    collected = [
        history,
        parts.spectral_fields(start, end),
        predicted(
            start_module,
            batches,
            loss,
            momentum=float(estimator.momentum),
            alpha=float(estimator.alpha),
            learning_rate=min(result.learning_rates, default=np.nan),
        ),
    ]
    if pooling_reason:
        collected.append(({}, dict.fromkeys(FULL_FIELDS, pooling_reason)))
    if full:
        collected.append(prediction_of_run(estimator, result, state, batches, config, loss))
    common["collapse_floor"] = collapse_floor(batches, config, loss)
    warn_if_collapsed(start.layers, (x.shape[1], config.d_model), config, batches.dtype)
    return parts.assemble(*collected, **common)


def settings_of(estimator: Any, config: ModuleConfig) -> dict[str, Any]:
    """Return the settings the advice speaks of, as plain values."""
    settings = {name: plain(getattr(estimator, name)) for name in SETTINGS}
    return settings | {
        "pooling": config.pooling,
        "n_layers": config.n_layers,
        "layer_norm": config.layer_norm,
    }


def sample_tokens(batches: Batches, n_samples: int | None) -> tuple[Tensor, Tensor | None]:
    """Return up to `n_samples` evenly spaced samples of all as float64 tokens on the CPU."""
    counts = gather(len(batches))
    rows = np.arange(sum(counts))
    if n_samples is not None and n_samples < len(rows):
        rows = np.linspace(0, len(rows) - 1, n_samples).astype(int)
    first = sum(counts[: rank()])
    rows = rows[(rows >= first) & (rows < first + len(batches))] - first
    own = batches.layout.batch(batches.tokens, rows, torch.float64, CPU) if len(rows) else None
    return join([part for part in gather(own) if part is not None])


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
    predictions = total(predictions)
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
        smallest_weight=min(gather(float(batches.weight.min()))),
        learning_rate=learning_rate,
    )
    return fields | stacked, reasons


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
        warn(
            f"The attention output Z of layer(s) {', '.join(map(str, layers))} is numerically "
            f"rank-deficient at residual_beta={config.residual_beta:g} although its input is not: "
            "tokens became indistinguishable and gradient descent may stall. Raise residual_beta.",
            RankCollapseWarning,
        )


@np.errstate(over="ignore", invalid="ignore")
@cpu_by_default()
def diagnose(
    estimator_or_module: Any,
    X: Any,
    y: Any = None,
    *,
    mask: Any = None,
    n_samples: int = 64,
    full: bool = False,
) -> ConvergenceDiagnostics:
    """Diagnose an estimator, fitted or not, or a module, on given samples.

    "Will this converge?" before training, "what would more training bring?" afterwards.

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
    full : bool, default=False
        Whether to use all samples, and to predict the loss of the next ``max_iter`` iterations
        from the tangent kernel (``predicted_curve``). For estimators only. Needs `y`, and takes
        as long as a few hundred iterations. For learning_rate="adaptive" the prediction is
        made with the constant rate ``1 / ||J||^2``.

    Returns
    -------
    diagnostics : ConvergenceDiagnostics
        The fields that do not need a training run; the others are NaN or empty.

    Raises
    ------
    TypeError
        For anything that is neither.
    ValueError
        If `full` is asked for without `y`, or for input that cannot be used.

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
    check_parameters(
        "diagnose",
        {"n_samples": n_samples, "full": full},
        {"n_samples": [integer(1)], "full": [BOOL]},
    )
    if full and y is None:
        raise ValueError("full=True predicts the loss and needs the targets: pass y.")
    if isinstance(estimator_or_module, ResidualTransformer):
        return _diagnose_module(estimator_or_module, X, mask, n_samples)
    if not hasattr(estimator_or_module, "_prepare_diagnosis"):
        raise TypeError(
            "diagnose takes a ResidualTransformerRegressor, a ResidualTransformerClassifier or a "
            f"ResidualTransformer module; got {type(estimator_or_module).__name__}."
        )
    estimator = estimator_or_module
    module, batches, loss = estimator._prepare_diagnosis(X, y)
    x, real = sample_tokens(batches, None if full else n_samples)
    common = {
        "residual_beta": module.config.residual_beta,
        "settings": settings_of(estimator, module.config),
    }
    if y is None:
        return _spectral_only(module, x, real, "no targets were given", **common)
    with thread_limit(work_per_pass(module.config, batches.tokens)):
        local = prediction_without_run(estimator, module, batches, loss, full=full)
        prediction = predicted(
            module,
            batches,
            loss,
            momentum=float(estimator.momentum),
            alpha=float(estimator.alpha),
            learning_rate=local.learning_rate,
        )
        spectral = parts.spectral_fields(parts.model_spectra(module, x, real), None)
    common["collapse_floor"] = collapse_floor(batches, module.config, loss)
    common["trivial_loss"] = trivial_loss(batches, module.config, loss)
    return parts.assemble(spectral, prediction, local.fields, **common)


def _diagnose_module(
    module: ResidualTransformer, X: Any, mask: Any, n_samples: int
) -> ConvergenceDiagnostics:
    state = {
        name: value.detach().cpu().double().numpy() for name, value in module.named_parameters()
    }
    values, real = module_tokens(module.config, X, mask)
    return _spectral_only(
        build_module(module.config, state),
        values[:n_samples],
        None if real is None else real[:n_samples],
        "a module has no targets",
        residual_beta=module.config.residual_beta,
        settings={"pooling": module.config.pooling, "n_layers": module.config.n_layers},
    )


def _spectral_only(
    module: ResidualTransformer, x: Tensor, mask: Tensor | None, reason: str, **common: Any
) -> ConvergenceDiagnostics:
    spectral = parts.spectral_fields(parts.model_spectra(module, x, mask), None)
    return parts.assemble(
        spectral, ({}, {"predicted_rate": reason, "alpha_cert": reason}), **common
    )
