"""Files of the weather station in Jena: cleaned, on a regular time axis, with a report."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from numbers import Real
from pathlib import Path
from typing import IO, Any

import numpy as np
import pandas as pd
from sklearn.utils import Bunch

from sklearn_restf._data.arrays import validating
from sklearn_restf._utils.validation import Constraint, check_arguments, one_of
from sklearn_restf.datasets._dataset_arguments import ENCODING, INTERVAL
from sklearn_restf.datasets._download import read_description
from sklearn_restf.datasets._repair_report import REPAIR_KINDS, RepairReport
from sklearn_restf.datasets._station_file import StationTable, read_station_bytes

_STATION_STEP = pd.Timedelta("10min")
_DELIMITER = Constraint(
    lambda v: isinstance(v, str) and len(v) == 1 and v not in '\r\n"\0', "a single character"
)


@check_arguments(
    duplicates=[one_of("first", "last", "mean")],
    freq=[one_of("infer"), INTERVAL],
    encoding=[one_of("auto"), ENCODING],
    delimiter=[one_of("auto"), _DELIMITER],
)
def load_mpi_roof(
    path: str | os.PathLike[str] | IO[Any] | Sequence[str | os.PathLike[str] | IO[Any]],
    *,
    missing_codes: Sequence[float] = (-9999.0, -999.0),
    duplicates: str = "first",
    freq: str | pd.Timedelta = "infer",
    encoding: str = "auto",
    delimiter: str = "auto",
) -> Bunch:
    """Load a file of the station's format and put it on a regular time axis.

    Reads the canonical Jena file, the institute's half-year files and benchmark copies of
    them: any of comma, semicolon, tab and bar between the fields, decimal point or comma,
    UTF-8, cp1252, latin-1 or UTF-16, dotted or ISO stamps, plain or packed (gzip, bzip2,
    xz, zip). Any sensor file with a header, stamps in the first column and numbers in the
    others will do.

    Parameters
    ----------
    path : path-like, file object, or a sequence of these
        The file. Of several files the rows are joined; a column that one of them lacks is
        NaN there.
    missing_codes : sequence of float, default=(-9999, -999)
        Numbers that stand for "no value" and become NaN.
    duplicates : {"first", "last", "mean"}, default="first"
        What to keep of several rows with one stamp: in each column the first value, the
        last one or the mean, values that are missing aside.
    freq : str or Timedelta, default="infer"
        Interval at which the station records; by default the most frequent one of the file
        (10 minutes if it has a single row). This is not a resampling.
    encoding : str, default="auto"
        Encoding of the file.
    delimiter : str, default="auto"
        Character between the fields.

    Returns
    -------
    data : :class:`~sklearn.utils.Bunch`
        Dictionary-like object, with these attributes:

        frame : DataFrame of shape (n_steps, n_columns)
            float64 on a gapless :class:`~pandas.DatetimeIndex`, NaN where there is no value.
        report : RepairReport
            What was repaired, by kind; ``print(report)`` shows it.
        feature_names : list of str
            The columns, with their units.
        DESCR : str
            Description with source and licence.

    Raises
    ------
    OSError
        If there is no such file; the message says what to put where.
    ValueError
        If the content is not a station file; the message says where and why.

    Notes
    -----
    Stamps are kept as written: the station records local standard time all year.

    Examples
    --------
    >>> import io
    >>> from sklearn_restf.datasets import load_mpi_roof
    >>> text = '''Date Time,T (degC),wv (m/s)
    ... 01.01.2009 00:10:00,-8.02,1.03
    ... 01.01.2009 00:20:00,-8.41,-9999.00
    ... 01.01.2009 00:40:00,-8.31,0.34
    ... '''
    >>> station = load_mpi_roof(io.StringIO(text))
    >>> station.frame  # doctest: +NORMALIZE_WHITESPACE
                         T (degC)  wv (m/s)
    time
    2009-01-01 00:10:00     -8.02      1.03
    2009-01-01 00:20:00     -8.41       NaN
    2009-01-01 00:30:00       NaN       NaN
    2009-01-01 00:40:00     -8.31      0.34
    >>> station.report.counts["missing_codes"], station.report.counts["gaps"]
    (1, 1)
    """
    missing_codes = _numbers(missing_codes)
    is_several = isinstance(path, Sequence) and not isinstance(path, str)
    sources: Sequence[Any] = path if is_several else [path]  # type: ignore[assignment]
    if not sources:
        raise ValueError("path is an empty sequence; pass at least one file.")
    tables = []
    for source in sources:
        content, name, source_encoding = _read_source(source, encoding)
        tables.append(read_station_bytes(content, name, source_encoding, delimiter))
    frame, report = clean_station_tables(
        tables, missing_codes=missing_codes, duplicates=duplicates, freq=freq
    )
    return Bunch(
        frame=frame,
        report=report,
        feature_names=list(frame.columns),
        DESCR=read_description("mpi_roof.rst"),
    )


def _numbers(missing_codes: Any) -> list[float]:
    with validating("missing_codes"):
        codes = list(missing_codes)
    if not all(isinstance(code, Real) for code in codes):
        raise TypeError(f"missing_codes must be numbers, got {missing_codes!r}.")
    return codes


def _read_source(source: Any, encoding: str) -> tuple[bytes, str, str]:
    if hasattr(source, "read"):
        content = source.read()
        name = str(getattr(source, "name", "the given file object"))
        if isinstance(content, str):
            return content.encode("utf-8"), name, "utf-8"
        return bytes(content), name, encoding
    if not isinstance(source, str | os.PathLike):
        raise TypeError(f"path must be a path or a file object, got {type(source).__name__}.")
    path = Path(source)
    if not path.is_file():
        raise FileNotFoundError(
            f"There is no file {path}. Put a file of the station there (half-year files: "
            "https://www.bgc-jena.mpg.de/wetter/weather_data.html), or use "
            "fetch_jena_climate() for the years 2009-2016."
        )
    return path.read_bytes(), str(path), encoding


def clean_station_tables(
    tables: Sequence[StationTable],
    *,
    missing_codes: Sequence[float] = (-9999.0, -999.0),
    duplicates: str = "first",
    freq: str | pd.Timedelta = "infer",
) -> tuple[pd.DataFrame, RepairReport]:
    """Join tables, repair their rows and put them on a regular time axis."""
    names = ", ".join(table.name for table in tables)
    values = pd.concat([table.values for table in tables], ignore_index=True).astype(np.float64)
    stamps = pd.DatetimeIndex(np.concatenate([table.stamps.to_numpy() for table in tables]))
    counts = dict.fromkeys(REPAIR_KINDS, 0)
    n_rows_read = len(stamps)

    is_code = values.isin(list(missing_codes))
    codes = {str(name): int(n) for name, n in is_code.sum().items() if n}
    values = values.mask(is_code)

    readable = np.asarray(stamps.notna())
    counts["unreadable_stamps"] = int((~readable).sum())
    values, stamps = values[readable], stamps[readable]
    counts["out_of_order_rows"] = int((stamps.asi8 < np.maximum.accumulate(stamps.asi8)).sum())

    step = _find_step(stamps) if freq == "infer" else pd.Timedelta(freq)
    on_grid, distance = _snap(stamps, step)
    counts["moved_stamps"] = int((distance != 0).sum())
    if freq != "infer" and counts["moved_stamps"] * 2 > len(stamps):
        raise ValueError(
            f"{names}: freq={freq!r} is not the interval of the file, most stamps lie between "
            "its points. Leave freq='infer', and resample the frame afterwards."
        )
    # Among rows that meet on one point, those that were exactly there come first (or last).
    order = np.lexsort((distance if duplicates == "first" else -distance, on_grid.asi8))
    frame = values.iloc[order].set_axis(on_grid[order].rename("time"), axis=0)
    recorded = _merge_duplicates(frame, duplicates, counts)
    frame, gaps = _fill_gaps(recorded, step, names)
    counts["gaps"], counts["added_rows"] = len(gaps), len(frame) - len(recorded)

    cells = {
        "missing_codes": Counter(codes),
        "unreadable_cells": sum((table.unreadable for table in tables), Counter()),
        "empty_cells": sum((table.empty for table in tables), Counter()),
    }
    counts |= {kind: by_column.total() for kind, by_column in cells.items()}
    renamed = {old: new for table in tables for old, new in table.renamed.items()}
    dropped = tuple(dict.fromkeys(column for table in tables for column in table.dropped))
    counts["renamed_columns"], counts["dropped_columns"] = len(renamed), len(dropped)
    return frame, RepairReport(
        sources=tuple(table.name for table in tables),
        encoding=_distinct(table.encoding for table in tables),
        delimiter=_distinct(table.delimiter for table in tables),
        decimal=_distinct(table.decimal for table in tables),
        step=step,
        start=frame.index[0],
        end=frame.index[-1],
        n_rows_read=n_rows_read,
        n_rows=len(frame),
        counts=counts,
        gaps=gaps,
        renamed_columns=renamed,
        dropped_columns=dropped,
        **{kind: dict(by_column) for kind, by_column in cells.items()},
    )


def _distinct(values: Any) -> str:
    return "/".join(dict.fromkeys(values))


def _most_frequent(numbers: np.ndarray) -> int:
    return int(pd.Series(numbers).mode()[0])  # the smallest of several


def _find_step(stamps: pd.DatetimeIndex) -> pd.Timedelta:
    differences = np.diff(np.unique(stamps.asi8))
    if differences.size == 0:
        return _STATION_STEP
    return pd.Timedelta(_most_frequent(differences), unit="ns")


def _snap(stamps: pd.DatetimeIndex, step: pd.Timedelta) -> tuple[pd.DatetimeIndex, np.ndarray]:
    """Return the nearest grid point of each stamp and the distance to it, in ns."""
    shifted = stamps.asi8 - _most_frequent(stamps.asi8 % step.value) + step.value // 2
    nearest = stamps.asi8 - (shifted % step.value - step.value // 2)
    return pd.DatetimeIndex(nearest), np.abs(stamps.asi8 - nearest)


def _merge_duplicates(frame: pd.DataFrame, how: str, counts: dict[str, int]) -> pd.DataFrame:
    repeated = frame.index.duplicated(keep=False)
    if not repeated.any():
        return frame
    rows = frame[repeated].reset_index()
    identical = rows.duplicated()
    merged = rows[~identical].groupby("time")
    counts["identical_duplicates"] = int(identical.sum())
    counts["conflicting_duplicates"] = int((~identical).sum()) - merged.ngroups
    return pd.concat([frame[~repeated], merged.agg(how)]).sort_index()


def _fill_gaps(
    frame: pd.DataFrame, step: pd.Timedelta, names: str
) -> tuple[pd.DataFrame, tuple[tuple[pd.Timestamp, pd.Timestamp], ...]]:
    stamps = pd.DatetimeIndex(frame.index)
    # Plain integers: a Timedelta cannot hold more than 292 years.
    n_points = (int(stamps.asi8[-1]) - int(stamps.asi8[0])) // step.value + 1
    if n_points > max(20 * len(stamps), 1_000_000):
        raise ValueError(
            f"{names}: {len(stamps):,} rows between {stamps[0]} and {stamps[-1]} would need "
            f"{n_points:,} rows every {step}. Check the first and the last stamps."
        )
    before_gap = np.flatnonzero(np.diff(stamps.asi8) > step.value).tolist()
    gaps = tuple((stamps[i] + step, stamps[i + 1] - step) for i in before_gap)
    axis = pd.date_range(stamps[0], periods=n_points, freq=step, name="time", unit="ns")
    return frame.reindex(axis), gaps
