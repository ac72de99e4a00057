"""Measured convergence rates of a loss curve.

The measured rate is the contraction factor rho of the excess loss per iteration,
``loss_t - floor ~ C rho^t``. It is estimated from decrements
``delta_t = loss_t - loss_{t+w}``, in which the unknown floor cancels:
``rho = median (delta_{t+w} / delta_t)^(1/w)``. No floor is estimated: on a broad spectrum
a fitted one looks excellent and is wrong.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class RateEstimate:
    """A measured rate with how far to trust it."""

    rate: float  # contraction factor per iteration, nan if not measurable
    r2: float  # of the log-linear fit to the decrements
    window: tuple[int, int]  # first and last iteration used
    reason: str = ""  # why the rate is nan


def measure_rate(losses: np.ndarray | list[float]) -> RateEstimate:
    """Estimate the contraction factor of the excess loss over the later part of the run.

    Parameters
    ----------
    losses : array of shape (n_iter + 1,)
        Loss at every visited point.

    Returns
    -------
    RateEstimate
        Over the last two thirds of the iterations at which the loss still moved
        measurably; exact for one exponential, the currently active modes for a mixture.

    Examples
    --------
    >>> import numpy as np
    >>> round(measure_rate(2.0 + 0.9 ** np.arange(100)).rate, 3)
    0.9
    """
    losses = np.asarray(losses, dtype=np.float64)
    if not np.isfinite(losses).all():
        return RateEstimate(np.nan, np.nan, (0, 0), "the loss is not finite")
    # below this the decrements are rounding
    resolution = 1e3 * np.finfo(np.float64).eps * max(abs(losses[0]), 1e-300)
    moved = np.flatnonzero(losses - losses[-1] > resolution)
    end = int(moved[-1]) + 1 if len(moved) else 0
    if end < 8:
        return RateEstimate(np.nan, np.nan, (0, end), "too few iterations with a falling loss")
    start = end // 3
    curve = losses[start : end + 1]
    best = RateEstimate(np.nan, np.nan, (start, end), "the loss does not fall steadily")
    lag = max(1, len(curve) // 4)
    decrement = curve[:-lag] - curve[lag:]
    usable = decrement > resolution
    pairs = usable[:-lag] & usable[lag:]
    if pairs.sum() < 2:
        return best
    ratio = decrement[lag:][pairs] / decrement[:-lag][pairs]
    rate = float(np.median(ratio) ** (1 / lag))
    steps, logs = np.flatnonzero(usable), np.log(decrement[usable])
    residual = logs - np.polyval(np.polyfit(steps, logs, 1), steps)
    variance = float(((logs - logs.mean()) ** 2).sum())
    r2 = 1.0 - float((residual**2).sum()) / variance if variance > 0 else np.nan
    return RateEstimate(rate, r2, (start, end))
