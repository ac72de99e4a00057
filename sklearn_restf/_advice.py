"""A sentence of judgement on a convergence diagnosis, and what to change."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from sklearn_restf._diagnostics import ConvergenceDiagnostics

ILL_CONDITIONED = 1e-8  # of sigma_min^2 / ||Z||^2
COLLAPSED = 1e-2  # rank-1 residual of Z


def judge(diagnostics: ConvergenceDiagnostics) -> str:
    """Say in plain words how training went, what slows it, and the remedy."""
    return " ".join([outcome(diagnostics), *causes(diagnostics)]).strip()


def outcome(diagnostics: ConvergenceDiagnostics) -> str:
    """Say how training ended."""
    reason, n_iter = diagnostics.stop_reason, diagnostics.n_iter
    if reason == "":
        return "Not trained yet."
    if reason == "diverged":
        return (
            f"Training diverged after {n_iter} iterations: lower learning_rate, or use "
            "learning_rate='adaptive'."
        )
    if reason == "interrupted":
        return f"Training was interrupted after {n_iter} iterations; the best weights were kept."
    if reason == "callback":
        return f"A callback ended training after {n_iter} iterations."
    if reason == "stalled":
        return (
            f"No step lowered the loss any more after {n_iter} iterations: the loss is flat to "
            "rounding."
        )
    if reason in ("tol", "stationary"):
        return f"Converged after {n_iter} iterations."
    if reason == "early_stopping":
        return f"The validation loss stopped improving after {n_iter} iterations."
    if still_falling(diagnostics.loss):
        return f"Still improving after {n_iter} iterations: raise max_iter."
    return f"All {n_iter} iterations were used; the loss still falls slowly."


def causes(diagnostics: ConvergenceDiagnostics) -> list[str]:
    """Say what makes training slow, if anything does."""
    found = []
    ratio = diagnostics.condition_ratio
    if not math.isfinite(ratio):
        return found
    collapsed = diagnostics.rank1_residual < COLLAPSED
    attention_worse = diagnostics.attention_sigma_min < diagnostics.sigma_min / 10
    if collapsed:
        found.append(
            "Z has collapsed to nearly rank one: its tokens are indistinguishable. Raise "
            "residual_beta."
        )
    elif ratio < ILL_CONDITIONED and diagnostics.residual_beta < 0.5:
        found.append(
            f"Z is ill-conditioned (ratio {ratio:.1e}), which slows the weakest directions; a "
            "larger residual_beta improves it."
        )
    elif ratio < ILL_CONDITIONED:
        found.append(
            f"Z is ill-conditioned (ratio {ratio:.1e}) because the tokens are: remove duplicate "
            "or constant channels, or use fewer tokens."
        )
    elif attention_worse:
        found.append("Z is well conditioned, and the residual connection is what keeps it so.")
    else:
        found.append("Z is well conditioned.")
    return found


def still_falling(loss: np.ndarray, window: int = 10) -> bool:
    """Tell whether the last iterations lowered the loss a lot.

    By more than a tenth, and by more than a hundredth of what there was to lower at the
    start: a loss that is nearly zero may go on shrinking for ever.
    """
    before = loss[max(0, len(loss) - 1 - window)]
    change = before - loss[-1]
    return bool(change > 0.1 * abs(before) and change > 0.01 * abs(loss[0]))
