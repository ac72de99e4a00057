"""What the tangent kernel predicts of a run: the fields of ``diagnostics="full"``.

The prediction is that of the linearised model; it is sharp as long as the Jacobian hardly
changes, and how long that was is reported. Near a minimum that is hundreds of iterations,
at random initial weights anything from one to all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from sklearn_restf._data.batches import Batches
from sklearn_restf._diagnostics.convergence_rate import measure_rate
from sklearn_restf._diagnostics.tangent_kernel import (
    Linearisation,
    largest_eigenvalue,
    local_quadratic,
    smallest_eigenvalue,
    valid_horizon,
)
from sklearn_restf._model import Loss, ModuleConfig, NumpyState, ResidualTransformer, build_module
from sklearn_restf._training import TrainingResult
from sklearn_restf._utils.validation import plain

Fields = tuple[dict[str, Any], dict[str, str]]


@dataclass(frozen=True)
class LocalPrediction:
    """Fields of :class:`ConvergenceDiagnostics`, and the rate they were computed for."""

    learning_rate: float
    fields: Fields


def prediction_of_run(
    estimator: Any,
    result: TrainingResult,
    fitted_state: NumpyState,
    batches: Batches,
    config: ModuleConfig,
    loss: Loss,
) -> Fields:
    """Predict the run from its initial weights, and as many iterations after it."""
    alpha, momentum = float(estimator.alpha), float(estimator.momentum)
    start = Linearisation(build_module(config, result.initial_state), batches, loss)
    values, reasons = _kernel_fields(start, batches)
    curve = local_quadratic(start.with_penalty(alpha)).descend(result.learning_rates, momentum)
    actual = np.array(result.losses)
    horizon = valid_horizon(curve, actual)
    values |= {"predicted_curve": curve, "predicted_horizon": horizon}
    _, last = measure_rate(actual).window
    if estimator.learning_rate == "adaptive" and momentum:
        reasons["local_rate"] = "the adaptive rule drops the momentum at times: not a linear rule"
    elif horizon < last:
        reasons["local_rate"] = f"the run left the linear regime after {max(horizon, 0)} iterations"
    else:
        values["local_rate"] = measure_rate(curve[: last + 1]).rate
    del start  # its graph
    end = Linearisation(build_module(config, fitted_state), batches, loss, alpha)
    rate = safe_rate(result.learning_rate, largest_eigenvalue(end))
    values["forecast"] = local_quadratic(end).descend([rate] * result.n_iter, momentum)
    return values, reasons


def prediction_without_run(
    estimator: Any, module: ResidualTransformer, batches: Batches, loss: Loss, *, full: bool
) -> LocalPrediction:
    """Predict the next iterations from the weights of `module`."""
    here = Linearisation(module, batches, loss)
    norm = largest_eigenvalue(here)
    rate, alpha = plain(estimator.learning_rate), float(estimator.alpha)
    if isinstance(rate, str):
        rate = 1.0 / norm if norm > 0 else math.nan
    values: dict[str, Any] = {"jacobian_norm": norm}
    reasons: dict[str, str] = {}
    if full:
        values, reasons = _kernel_fields(here, batches)
        local = local_quadratic(here.with_penalty(alpha))
        rates = [safe_rate(rate, norm + alpha)] * estimator.max_iter
        if not isinstance(estimator.learning_rate, str):
            rates = [rate] * estimator.max_iter
        values["predicted_curve"] = local.descend(rates, float(estimator.momentum))
    return LocalPrediction(rate, (values, reasons))


def _kernel_fields(linearisation: Linearisation, batches: Batches) -> Fields:
    """Return the extreme eigenvalues at the weights."""
    smallest, reason = smallest_eigenvalue(linearisation, batches.y.size)
    values = {"jacobian_norm": largest_eigenvalue(linearisation), "kernel_min": smallest}
    return values, {"kernel_min": reason} if reason else {}


def safe_rate(rate: float, largest: float) -> float:
    """Return the rate, or one just below the stability limit ``2 / largest`` if it exceeds that."""
    return min(rate, 1.9 / largest) if largest > 0 else rate
