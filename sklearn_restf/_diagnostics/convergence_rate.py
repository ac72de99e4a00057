"""Measured convergence rates of a loss curve.

The measured rate is the contraction factor rho of the excess loss per iteration,
``loss_t - floor ~ C rho^t``. It is estimated from decrements
``delta_t = loss_t - loss_{t+w}``, in which the unknown floor cancels:
``rho = median (delta_{t+w} / delta_t)^(1/w)``. No floor is estimated: on a broad spectrum
a fitted one looks excellent and is wrong.

One exponential stays one under a moving average, whatever its floor; so the curve is
averaged first, which costs no exactness and quiets the noise. Only the falling part of
the curve counts: not a plateau before it, not the flat tail after it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

FEWEST_ITERATIONS = 8  # of a falling loss, for a rate to be measured
NOISE_OF_INCREASE = 0.95  # median of the positive differences of unit white noise
RARE = 0.05  # share of steps below which rises of the loss are no noise


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
        Over the last two thirds of the iterations between the steepest fall and the point
        from which the loss no longer moves by more than rounding or noise. Exact for one
        exponential; the slower of two once the faster has died; the currently active
        modes, hence a factor that is too small, on a broad spectrum.

    Examples
    --------
    >>> import numpy as np
    >>> round(measure_rate(2.0 + 0.9 ** np.arange(100)).rate, 3)
    0.9
    """
    losses = np.asarray(losses, dtype=np.float64)
    if not np.isfinite(losses).all():
        return RateEstimate(np.nan, np.nan, (0, 0), "the loss is not finite")
    # below this, decrements are rounding
    rounding = 1e3 * np.finfo(np.float64).eps * np.abs(losses[:1]).max(initial=1e-300)
    noise = noise_level(losses)
    moved = np.flatnonzero(losses - losses[-1:] > max(rounding, 8 * noise))
    end = int(moved[-1]) + 1 if len(moved) else 0
    if end < FEWEST_ITERATIONS:
        return RateEstimate(np.nan, np.nan, (0, end), "too few iterations with a falling loss")
    span = max(1, end // 16)
    onset = int(np.argmax(losses[: end + 1 - span] - losses[span : end + 1]))
    start = onset + (end - onset) // 3
    curve = losses[start : end + 1]
    unsteady = RateEstimate(np.nan, np.nan, (start, end), "the loss does not fall steadily")
    if len(curve) < FEWEST_ITERATIONS // 2:
        return unsteady
    width, lag = max(1, len(curve) // 8), max(1, len(curve) // 4)
    curve = moving_average(curve, width)
    decrement = curve[:-lag] - curve[lag:]
    usable = decrement > max(rounding, 2 * noise / np.sqrt(width))
    pairs = usable[:-lag] & usable[lag:]
    if pairs.sum() < 2:
        return unsteady
    ratio = decrement[lag:][pairs] / decrement[:-lag][pairs]
    rate = float(np.median(ratio) ** (1 / lag))
    steps, logs = np.flatnonzero(usable), np.log(decrement[usable])
    residual = logs - np.polyval(np.polyfit(steps, logs, 1), steps)
    variance = float(((logs - logs.mean()) ** 2).sum())
    # equal decrements leave nothing to explain
    explainable = variance > 1e-20 * len(logs)
    r2 = 1.0 - float((residual**2).sum()) / variance if explainable else np.nan
    return RateEstimate(rate, r2, (start, end))


def noise_level(losses: np.ndarray) -> float:
    """Estimate the standard deviation of noise from the steps at which the loss rose.

    In the last third of the run, where noise decides how much of the curve can be used;
    rises before that may be the swings of momentum. A curve that hardly ever rises there has
    none: what there may be is small beside its decrements.
    """
    change = np.diff(losses[-max(2, len(losses) // 3) :])
    rises = change[change > 0]
    if len(rises) < max(1, RARE * len(change)):
        return 0.0
    return float(np.median(rises)) / NOISE_OF_INCREASE


def moving_average(curve: np.ndarray, width: int) -> np.ndarray:
    """Average over every `width` neighbours; relative to the last value, against cancellation."""
    total = np.cumsum(np.concatenate([[0.0], curve - curve[-1]]))
    return (total[width:] - total[:-width]) / width
