"""What was repaired in a station file, by kind."""

from __future__ import annotations

import dataclasses
from typing import Any

import pandas as pd

REPAIR_KINDS = {
    "missing_codes": "missing-value codes set to NaN",
    "unreadable_cells": "unreadable cells set to NaN",
    "empty_cells": "empty cells, left NaN",
    "unreadable_stamps": "rows without a readable stamp, dropped",
    "identical_duplicates": "repeated rows, dropped",
    "conflicting_duplicates": "rows of a repeated stamp with other values, merged",
    "out_of_order_rows": "rows out of order, sorted",
    "moved_stamps": "stamps off the grid, moved to the nearest point",
    "gaps": "gaps in time",
    "added_rows": "rows added for the gaps, all NaN",
    "renamed_columns": "columns with a broken unit, renamed",
    "dropped_columns": "columns without a number, dropped",
}


@dataclasses.dataclass(frozen=True)
class RepairReport:
    """What :func:`load_mpi_roof` found in a file and repaired; prints as a table.

    Attributes
    ----------
    sources : tuple of str
        The files.
    encoding, delimiter, decimal : str
        How they are written; several values are joined by a slash.
    step : Timedelta
        Interval of the time axis.
    start, end : Timestamp
        First and last stamp.
    n_rows_read, n_rows : int
        Rows in the files, and in the frame.
    counts : dict of str to int
        How often each kind of repair was made, zeros included.
    missing_codes, unreadable_cells, empty_cells : dict of str to int
        The same by column, for the kinds that concern single cells.
    gaps : tuple of (Timestamp, Timestamp)
        First and last stamp of each stretch without a row.
    renamed_columns : dict of str to str
        Names as in the file, and as in the frame.
    dropped_columns : tuple of str
        Columns that hold no number.

    Examples
    --------
    >>> import io
    >>> from sklearn_restf.datasets import load_mpi_roof
    >>> text = '''Date Time,T (degC)
    ... 01.01.2009 00:10:00,-8.02
    ... 01.01.2009 00:30:00,-9999
    ... '''
    >>> report = load_mpi_roof(io.StringIO(text), freq="10min").report
    >>> report.is_clean, report.n_rows_read, report.n_rows
    (False, 2, 3)
    >>> report.missing_codes
    {'T (degC)': 1}
    """

    sources: tuple[str, ...]
    encoding: str
    delimiter: str
    decimal: str
    step: pd.Timedelta
    start: pd.Timestamp
    end: pd.Timestamp
    n_rows_read: int
    n_rows: int
    counts: dict[str, int]
    missing_codes: dict[str, int]
    unreadable_cells: dict[str, int]
    empty_cells: dict[str, int]
    gaps: tuple[tuple[pd.Timestamp, pd.Timestamp], ...]
    renamed_columns: dict[str, str]
    dropped_columns: tuple[str, ...]

    @property
    def is_clean(self) -> bool:
        """Whether there was nothing to repair."""
        return not any(self.counts.values())

    def __str__(self) -> str:
        """Return the report as a table of the repairs that were made."""
        lines = [
            f"{', '.join(self.sources)}",
            f"{self.start} to {self.end} every {self.step}: {self.n_rows:,} rows "
            f"from {self.n_rows_read:,} in the file",
            f"encoding {self.encoding}, delimiter {self.delimiter!r}, decimal {self.decimal!r}",
        ]
        for kind, count in self.counts.items():
            if count:
                detail = _shorten(getattr(self, kind, ()))
                lines.append(f"  {count:>9,}  {REPAIR_KINDS[kind]}{detail}")
        if self.is_clean:
            lines.append("  nothing to repair")
        return "\n".join(lines)


def _shorten(detail: Any, n_shown: int = 4) -> str:
    if not detail:
        return ""
    if isinstance(detail, dict):
        detail = [f"{key}: {value}" for key, value in detail.items()]
    elif isinstance(detail[0], tuple):
        detail = [f"{first} to {last}" for first, last in detail]
    more = len(detail) - n_shown
    return f" ({', '.join(detail[:n_shown])}{f', and {more} more' if more > 0 else ''})"
