"""Windows of a time series: samples for forecasting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from sklearn_restf._utils.validation import BOOL, check_parameters, integer, sequence_of
from sklearn_restf.preprocessing._series import (
    Series,
    segments,
)

CONSTRAINTS = {
    "window": [integer(1)],
    "stride": [integer(1)],
    "sampling": [integer(1)],
    "horizon": [integer(1), sequence_of(integer(1), "a sequence of them")],
    "drop_gaps": [BOOL],
}


class Windows(NamedTuple):
    """What :func:`make_windows` returns: a tuple ``(X, y, index)`` with names.

    Attributes
    ----------
    X : ndarray of shape (n_windows, window, n_features)
        The windows, oldest row first.
    y : ndarray of shape (n_windows,) or (n_windows, n_horizons * n_targets)
        The targets.
    index : pandas.Index or ndarray of shape (n_windows,)
        The moment at which each forecast is made: stamp (as a pandas index, for polars too) or row
        number of each window's last row.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn_restf.preprocessing import make_windows
    >>> windows = make_windows(np.arange(6.0)[:, None], 0, window=3, horizon=1)
    >>> windows.X.shape, windows.y, windows.index
    ((3, 3, 1), array([3., 4., 5.]), array([2, 3, 4]))
    """

    X: np.ndarray
    y: np.ndarray
    index: Any


def make_windows(
    frame: Any,
    target: Any,
    window: int,
    horizon: int | Sequence[int],
    stride: int = 1,
    sampling: int = 1,
    drop_gaps: bool = True,
    *,
    features: Sequence[Any] | None = None,
    time: Any = None,
) -> Windows:
    """Cut a series into windows and what comes ``horizon`` rows after each of them.

    Parameters
    ----------
    frame : DataFrame (pandas, polars) or array-like of shape (n_rows, n_columns)
        The series, one row per time step, oldest first. All columns used must be numeric. Stamps
        are a pandas index of dates or durations, or the first date or datetime column of a polars
        frame; without stamps all rows count as consecutive.
    target : column label or list of labels; int or list of ints for arrays
        Column(s) to be predicted.
    window : int
        Number of rows (tokens) in a window.
    horizon : int or sequence of int
        How many rows of ``frame`` after a window's last row the target is taken; at least 1, so
        that no target lies inside its own window. Several horizons give several targets.
    stride : int, default=1
        Rows of ``frame`` between the starts of one window and of the next. The starts are
        ``0, stride, 2 * stride, ...``, whatever is dropped.
    sampling : int, default=1
        Rows of ``frame`` between the successive rows of a window: 6 takes hourly rows from a
        10-minute series. The horizon still counts rows of ``frame``.
    drop_gaps : bool, default=True
        Drop each window that holds a NaN, whose target is NaN, or that has a gap in time between
        its first row and its last target. A gap is a step between stamps other than the most
        frequent one; an index with a ``freq`` (business days, say) has none. With False every
        window is kept, rows count as consecutive whatever their stamps, and NaN stay in ``X`` and
        ``y``.
    features : list of column labels (ints for arrays), default=None
        Columns that make up ``X``. None: all numeric columns, the targets' own past included.
    time : column label (int for arrays) or array-like of shape (n_rows,), default=None
        Stamps, where they are not where described above. A column named here is no feature.

    Returns
    -------
    windows : Windows
        Named tuple ``(X, y, index)``. ``X`` is a read-only view of the series' own memory, of
        which no window is a copy, as long as the kept windows are evenly spaced; otherwise a
        copy. ``y`` is 1-D for one label and one horizon, else 2-D with the targets of the first
        horizon first: column ``i * n_targets + j`` is target ``j`` at horizon ``i``.

    Raises
    ------
    TypeError
        If ``frame`` is sparse or a column is not numeric.
    ValueError
        If a column is missing, the stamps are missing, unsorted or repeated, a count is not a
        positive integer, or no window fits or survives.

    Notes
    -----
    To keep the future out of training, split the windows by time and fit every statistic on the
    training block alone: put the scaler in a Pipeline. The last training targets lie up to
    ``max(horizon)`` rows after the last training window, so leave a gap of at least
    ``max(horizon) / stride`` windows between the blocks, as in the example.

    Examples
    --------
    >>> import numpy as np, pandas as pd
    >>> from sklearn.linear_model import Ridge
    >>> from sklearn.model_selection import TimeSeriesSplit, cross_val_score
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn_restf.preprocessing import TokenStandardScaler, make_windows
    >>> hours = pd.date_range("2024-01-01", periods=500, freq="h")
    >>> frame = pd.DataFrame({"temperature": np.sin(np.arange(500) / 24)}, index=hours)
    >>> X, y, index = make_windows(frame, "temperature", window=24, horizon=6)
    >>> X.shape, y.shape, index[0]
    ((471, 24, 1), (471,), Timestamp('2024-01-01 23:00:00'))
    >>> model = make_pipeline(TokenStandardScaler(token_dim=1), Ridge())
    >>> scores = cross_val_score(model, X.reshape(len(X), -1), y, cv=TimeSeriesSplit(gap=6))
    >>> bool(scores.min() > 0.99)
    True
    """
    counts = {"window": window, "stride": stride, "sampling": sampling}
    check_parameters(
        "make_windows", {**counts, "horizon": horizon, "drop_gaps": drop_gaps}, CONSTRAINTS
    )
    window, stride, sampling = map(int, counts.values())
    several_horizons = np.ndim(horizon) > 0
    horizons = np.atleast_1d(np.asarray(horizon)).tolist()
    series = Series(frame, time)
    values = series.columns(features, "features")
    several_targets = isinstance(target, (list, np.ndarray)) or (
        isinstance(target, tuple) and not series.has(target)
    )
    target_values = series.columns(list(target) if several_targets else [target], "target")

    span = (window - 1) * sampling + 1
    starts = np.arange(0, len(values) - span - max(horizons) + 1, stride)
    if not len(starts):
        raise ValueError(
            f"No window fits: a window spans {span} rows and its last target lies "
            f"{max(horizons)} rows after it, but the series has {len(values)} rows."
        )
    if drop_gaps:
        keep = _complete(values, target_values, series.stamps, starts, span, sampling, horizons)
        if not keep.any():
            raise ValueError(
                f"Each of the {len(keep)} windows of {span} rows holds a NaN or crosses a gap in "
                "time: shorten the window, fill the missing values, or pass drop_gaps=False."
            )
        starts = starts[keep]
    X = gather(values, starts, span, sampling)
    last = starts + span - 1
    y = np.concatenate([target_values[last + h] for h in horizons], axis=1)
    return Windows(X, y if several_targets or several_horizons else y[:, 0], series.labels(last))


def _complete(
    values: np.ndarray,
    target_values: np.ndarray,
    stamps: np.ndarray | None,
    starts: np.ndarray,
    span: int,
    sampling: int,
    horizons: list[int],
) -> np.ndarray:
    """Which windows hold no NaN and cross no gap up to their last target."""
    missing = np.isnan(values).any(axis=1)
    keep = np.asarray(~gather(missing[:, None], starts, span, sampling)[:, :, 0].any(axis=1))
    last = starts + span - 1
    missing_target = np.isnan(target_values).any(axis=1)
    for h in horizons:
        keep &= ~missing_target[last + h]
    if stamps is not None:
        segment = segments(stamps)
        keep &= segment[starts] == segment[last + max(horizons)]
    return keep


def gather(values: np.ndarray, starts: np.ndarray, span: int, sampling: int) -> np.ndarray:
    """Windows at ``starts``, shape (n_windows, window, c): a view if evenly spaced, else a copy."""
    view = sliding_window_view(values, span, axis=0)[:, :, ::sampling].swapaxes(1, 2)
    steps = np.diff(starts)
    if len(starts) == 1 or (steps == steps[0]).all():
        step = int(steps[0]) if len(steps) else 1
        return view[starts[0] : starts[-1] + 1 : step]
    return view[starts]
