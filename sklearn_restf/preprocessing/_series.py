"""A table of time steps behind one face: columns, stamps and row labels of frames and arrays."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import Any

import numpy as np
import pandas as pd
from scipy import sparse

from sklearn_restf._data.arrays import as_numpy, validating


def _is_polars(frame: Any) -> bool:
    """Whether this is a polars frame, without importing polars."""
    return type(frame).__module__.partition(".")[0] == "polars" and hasattr(frame, "to_pandas")


class Series:
    """Columns by label, stamps and row labels of a pandas or polars frame or an array.

    `time` is a column or an array of stamps, if they are not in the index or the first date column.
    The attribute `stamps` holds strictly increasing ``datetime64`` or ``timedelta64`` values or
    numbers; None without any.
    """

    def __init__(self, frame: Any, time: Any = None):
        if sparse.issparse(frame):
            raise TypeError(
                "Sparse data was passed for frame, but a dense series is required. Use "
                "frame.toarray()."
            )
        if _is_polars(frame):
            if time is None:
                time = next((n for n, t in frame.schema.items() if str(t).startswith("Date")), None)
            # Column by column: no optional conversion dependency, no copy of float columns.
            frame = pd.DataFrame({name: frame[name].to_numpy() for name in frame.columns})
        self.is_frame = isinstance(frame, pd.DataFrame)
        if not self.is_frame:
            with validating("frame"):
                frame = np.asarray(as_numpy(frame))
            if frame.ndim != 2:
                raise ValueError(
                    f"frame must be 2-D (rows = time steps, columns), got shape {frame.shape}. "
                    "Reshape a single series with series.reshape(-1, 1)."
                )
        self.frame = frame
        self.time_column: Any = None
        index: Any = None
        if time is None:
            index = frame.index if self.is_frame and _is_temporal(frame.index) else None
        elif np.ndim(time) == 0 or self.has(time):
            if not self.has(time):
                raise ValueError(f"time={time!r} is no column of the series.")
            self.time_column = time
            index = pd.Index(frame[time] if self.is_frame else frame[:, time])
        else:
            with validating("time"):
                index = pd.Index(time)
            if len(index) != len(frame):
                raise ValueError(f"time has {len(index)} values for {len(frame)} rows.")
        self.index = index
        self.stamps = None
        if index is not None:
            with validating("frame" if time is None else "time"):
                self.stamps = check_stamps(index)

    def has(self, label: Any) -> bool:
        """Whether a column of this label (position, for arrays) exists."""
        if self.is_frame:
            try:
                return label in self.frame.columns
            except TypeError:  # unhashable
                return False
        n_columns = self.frame.shape[1]
        return isinstance(label, Integral) and -n_columns <= label < n_columns

    def columns(self, labels: Sequence[Any] | None, name: str) -> np.ndarray:
        """Return columns (None: all but the stamps) as floats, without a copy where possible.

        float32 stays float32; any other numbers become float64. `name` is the argument that names
        the columns, for messages.
        """
        if labels is not None:
            return self._values(self._chosen(labels, name), name)
        table = self.frame
        if self.time_column is not None:
            table = (
                table.drop(columns=[self.time_column])
                if self.is_frame
                else np.delete(table, self.time_column, axis=1)
            )
        if not table.shape[1]:
            raise ValueError("frame has no column besides the stamps: at least one is needed.")
        return self._values(table, "frame")

    def _chosen(self, labels: Sequence[Any], name: str) -> Any:
        """Columns of these labels as they are."""
        with validating(name):
            labels = list(labels)
        missing = [label for label in labels if not self.has(label)]
        if missing:
            known = list(self.frame.columns) if self.is_frame else f"0 to {self.frame.shape[1] - 1}"
            raise ValueError(f"{name}: the series has no column {missing!r}; it has {known}.")
        if not labels:
            raise ValueError(f"{name} is empty: at least one column is needed.")
        chosen = self.frame[labels] if self.is_frame else self.frame[:, labels]
        if chosen.shape[1] != len(labels):
            raise ValueError(f"{name}: the series has several columns of one name in {labels!r}.")
        return chosen

    def labels(self, rows: np.ndarray) -> Any:
        """Stamps, index entries or, for arrays, numbers of these rows."""
        if self.index is not None:
            return self.index[rows]
        return self.frame.index[rows] if self.is_frame else rows

    def _values(self, table: Any, name: str) -> np.ndarray:
        """Numeric columns as floats."""
        if self.is_frame:
            wrong = [
                label
                for label, dtype in table.dtypes.items()
                if not (pd.api.types.is_numeric_dtype(dtype) or pd.api.types.is_bool_dtype(dtype))
                or pd.api.types.is_complex_dtype(dtype)
            ]
            if wrong:
                raise TypeError(
                    f"{name}: the columns {wrong[:10]!r} are not numeric: convert or drop them, or "
                    "choose the columns with features=."
                )
            single = (table.dtypes == np.float32).all()
            dtype = np.float32 if single else np.float64
            return table.to_numpy(dtype=dtype, na_value=np.nan)
        if np.iscomplexobj(table) or table.dtype.kind in "mMSU":
            raise TypeError(f"{name} must be numeric, got dtype {table.dtype}.")
        if table.dtype == np.float32:
            return table
        try:
            return table.astype(np.float64, copy=False)
        except (TypeError, ValueError) as error:
            raise TypeError(f"{name} must be numeric: {error}") from error


def _is_temporal(index: Any) -> bool:
    """Whether a pandas index holds dates, periods or durations."""
    return isinstance(index, (pd.DatetimeIndex, pd.PeriodIndex, pd.TimedeltaIndex))


def frame_stamps(X: Any) -> np.ndarray | None:
    """Stamps of a pandas frame with an index of dates or durations; None for anything else."""
    if isinstance(X, pd.DataFrame) and _is_temporal(X.index):
        return check_stamps(X.index)
    return None


def check_stamps(index: Any) -> np.ndarray:
    """Validate an index of dates, periods, durations or numbers: none missing, all increasing.

    Return the stamps in universal time; row numbers where the index has a ``freq`` (it is evenly
    spaced by its calendar then); month numbers for stamps of months, quarters or years.
    """
    if isinstance(index, pd.PeriodIndex):
        index = index.to_timestamp()
    if not (_is_temporal(index) or pd.api.types.is_numeric_dtype(index.dtype)):
        raise TypeError(
            f"The stamps have dtype {index.dtype}: convert them with pandas.to_datetime."
        )
    if index.hasnans:
        raise ValueError(f"{int(index.isna().sum())} of the stamps are missing: drop these rows.")
    if not index.is_unique:
        repeated = index[index.duplicated()]
        raise ValueError(
            f"{len(repeated)} stamps are repeated (first: {repeated[0]}): keep one row of each, "
            "for instance frame[~frame.index.duplicated()]."
        )
    if not index.is_monotonic_increasing:
        raise ValueError("The stamps are not in increasing order: sort the series by time.")
    if isinstance(index, pd.DatetimeIndex):
        if index.tz is not None:
            index = index.tz_convert("UTC").tz_localize(None)
        if index.freq is not None:
            return np.arange(len(index))
        # Months, quarters and years differ in length without there being a gap: count months.
        days = np.diff(index.to_numpy()) / np.timedelta64(1, "D")
        months = (index.year * 12 + index.month).to_numpy()
        if len(days) and days.min() >= 28 and days.max() != days.min() and np.diff(months).all():
            return months
    return index.to_numpy()


def segments(stamps: np.ndarray) -> np.ndarray:
    """Return, for each row, the number of its stretch of evenly spaced stamps.

    It is the same for rows between which every step is the most frequent one (the shortest such
    step, if several are).
    """
    steps = np.diff(stamps)
    if not len(steps):
        return np.zeros(len(stamps), dtype=np.intp)
    if steps.dtype.kind == "m":
        steps = steps.astype(np.int64)
    values, counts = np.unique(steps, return_counts=True)
    if steps.dtype.kind == "f":
        # Stamps computed in floating point (0.1, 0.2, 0.30000000000000004) differ by rounding only:
        # steps that do are one step, both where they are counted and where they are compared.
        rounding = 4 * np.spacing(np.abs(stamps[[0, -1]]).max())
        kind = np.cumsum(np.diff(values, prepend=values[0]) > 1e-6 * values + rounding)
        modal = np.median(values[kind == np.bincount(kind, counts).argmax()])
        gap = np.abs(steps - modal) > 1e-6 * modal + rounding
    else:
        gap = steps != values[counts.argmax()]
    return np.concatenate([[0], np.cumsum(gap)])
