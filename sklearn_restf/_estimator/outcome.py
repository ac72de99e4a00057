"""What the user hears after a run: nothing, one warning, or an error."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from sklearn_restf._diagnostics.advice import still_falling
from sklearn_restf._training import TrainingResult
from sklearn_restf._utils.warnings import warn
from sklearn_restf.exceptions import DivergenceError


def report(estimator: Any, result: TrainingResult) -> None:
    """Warn at most once, and only when something is wrong; raise on divergence."""
    name, n_iter, reason = type(estimator).__name__, result.n_iter, result.stop_reason
    if reason == "diverged":
        finite = [loss for loss in result.losses if np.isfinite(loss)]
        last = f"{finite[-1]:.6g}" if finite else "none"
        rescued = copy.copy(estimator)
        if isinstance(estimator.learning_rate, str):  # only at the initial point
            remedy = "Set standardize=True, rescale X, or lower init_scale."
        else:
            remedy = (
                "Lower the learning rate, or use learning_rate='adaptive', whose loss never "
                "increases."
            )
        raise DivergenceError(
            f"{name} diverged at iteration {n_iter} with learning_rate={estimator.learning_rate!r} "
            f"(last finite loss: {last}). {remedy} The best weights so far are in this "
            "exception's `estimator`.",
            estimator=rescued,
        )
    message = None
    if reason == "interrupted":
        message = (
            f"{name} was interrupted after {n_iter} iterations; it keeps the best weights so far."
        )
    elif reason == "stalled" and not result.losses[-1] < result.losses[0]:
        message = f"{name} stalled at iteration {n_iter}: no step lowers the loss."
    elif (
        reason == "max_iter"
        and estimator.tol is not None
        and still_falling(np.array(result.losses))
    ):
        change = result.losses[-11 if n_iter > 10 else 0] - result.losses[-1]
        message = (
            f"{name} stopped at max_iter={n_iter} while the loss was still falling fast (by "
            f"{change:.3g} to {result.losses[-1]:.3g} over the last {min(10, n_iter)} "
            "iterations). Raise max_iter; tol=None says that the budget is meant."
        )
    if message:
        warn(message, ConvergenceWarning)
