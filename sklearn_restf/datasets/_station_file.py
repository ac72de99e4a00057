"""From the bytes of a station file to a table of stamps and numbers."""

from __future__ import annotations

import bz2
import codecs
import csv
import dataclasses
import gzip
import io
import itertools
import lzma
import re
import struct
import zipfile
import zlib
from collections import Counter

import numpy as np
import pandas as pd

_DELIMITERS = (",", ";", "\t", "|")
_STAMP_FORMATS = (
    "%d.%m.%Y %H:%M:%S",
    "%Y-%m-%d %H:%M:%S",
    "%d.%m.%Y %H:%M",
    "%Y-%m-%d %H:%M",
    "%Y-%m-%dT%H:%M:%S",
    "%Y-%m-%dT%H:%M",
    "%Y-%m-%d %H:%M:%S.%f",
    "%d.%m.%Y",
    "%Y-%m-%d",
)
_PACKERS = {
    b"\x1f\x8b": gzip.decompress,
    b"BZh": bz2.decompress,
    b"\xfd7zXZ\x00": lzma.decompress,
}
# What the libraries raise for damaged, encrypted or unknown content.
_BROKEN_PACK = (OSError, EOFError, ValueError, RuntimeError, zlib.error, lzma.LZMAError,
                zipfile.BadZipFile, struct.error)  # fmt: skip
_STAMP_NAMES = ("date time", "date", "datetime", "time", "timestamp")
# Columns whose unit is not plain ASCII, in the station's own spelling.
_UNITS_AT_RISK = ("SWDR (W/m²)", "PAR (µmol/m²/s)", "max. PAR (µmol/m²/s)")


@dataclasses.dataclass(frozen=True)
class StationTable:
    """A station file as read: rows in file order, nothing repaired but the names.

    Parameters
    ----------
    name : str
        What messages call the file.
    stamps : DatetimeIndex
        One per row, NaT where the stamp could not be read.
    values : DataFrame
        float64, one column per quantity.
    encoding, delimiter, decimal : str
        How the file is written.
    unreadable, empty : Counter of str
        Cells per column that hold something else than a number, and nothing.
    renamed : dict of str to str
        Names whose unit was broken, and the names in their place.
    dropped : tuple of str
        Columns without a single number.
    """

    name: str
    stamps: pd.DatetimeIndex
    values: pd.DataFrame
    encoding: str
    delimiter: str
    decimal: str
    unreadable: Counter[str]
    empty: Counter[str]
    renamed: dict[str, str]
    dropped: tuple[str, ...]


def read_station_bytes(
    content: bytes, name: str, encoding: str = "auto", delimiter: str = "auto"
) -> StationTable:
    """Read the bytes of a station file, packed or not."""
    text, encoding = _decode(_unpack(content, name), name, encoding)
    lines = (line for line in text if line.strip())
    header_line = next(lines, None)
    if header_line is None:
        raise ValueError(f"{name} is empty.")
    if delimiter == "auto":
        delimiter = _guess_delimiter(header_line, name)
    header = _split(header_line, delimiter)
    if re.match(r"\d{1,4}[.\-/]\d", header[0]):
        raise ValueError(
            f"{name} has no header: its first line starts with {header[0]!r}. Put a line with "
            "the names of the columns on top."
        )
    first_rows = list(itertools.islice(lines, 200))
    if not first_rows:
        raise ValueError(f"{name} has a header and no rows.")
    # A comma inside a field can only be a decimal comma, since no stamp has one.
    has_comma = delimiter != "," and any(re.search(r"\d,\d", line) for line in first_rows)
    decimal = "," if has_comma else "."
    surplus = _split(first_rows[0], delimiter)[len(header) :]
    if any(surplus):
        raise ValueError(
            f"{name}: the first row has {len(header) + len(surplus)} fields, the header "
            f"{len(header)}. Give every column a name."
        )
    header += surplus  # columns without a name, which must be empty to the end
    text.seek(0)
    try:
        raw = pd.read_csv(
            text,
            sep=delimiter,
            decimal=decimal,
            header=0,
            names=range(len(header)),
            index_col=False,
            dtype={0: str},
            skipinitialspace=True,
            low_memory=False,
        )
    except pd.errors.ParserError as error:
        raise ValueError(f"{name} cannot be read: {error}") from error
    return _to_numbers(raw, header, name, encoding, delimiter, decimal)


def _unpack(content: bytes, name: str) -> bytes:
    """Undo the compression that the first bytes tell of, whatever the file is called."""
    try:
        for magic, decompress in _PACKERS.items():
            if content.startswith(magic):
                return decompress(content)
        if not content.startswith(b"PK\x03\x04"):
            return content
        with zipfile.ZipFile(io.BytesIO(content)) as bundle:
            members = [
                member
                for member in bundle.namelist()
                if member.lower().endswith((".csv", ".txt", ".tsv"))
                and not member.startswith("__MACOSX/")
            ]
            if len(members) == 1:
                return bundle.read(members[0])
    except _BROKEN_PACK as error:
        raise ValueError(
            f"{name} is compressed and damaged or cut short ({error}). Get it again."
        ) from error
    raise ValueError(
        f"{name} is a zip archive with {len(members)} text files ({members}); expected one. "
        "Unpack it and pass the files."
    )


def _decode(content: bytes, name: str, encoding: str) -> tuple[io.StringIO, str]:
    """Return the text, with line ends as Python has them, and the encoding it is in."""
    if encoding != "auto":
        candidates = [encoding]
    elif content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        candidates = ["utf-16"]
    else:
        # The station writes cp1252; latin-1 accepts every byte.
        candidates = ["utf-8-sig", "cp1252", "latin-1"]
    for candidate in candidates:
        try:
            text = content.decode(candidate)
        except UnicodeDecodeError as error:
            problem = error
        else:
            return io.StringIO(text, newline=None), candidate.removesuffix("-sig")
    raise ValueError(
        f"{name} is not {candidate}: {problem}. Leave encoding='auto', or pass another."
    ) from problem


def _guess_delimiter(header_line: str, name: str) -> str:
    unquoted = re.sub(r'"[^"]*"', "", header_line)
    counts = {delimiter: unquoted.count(delimiter) for delimiter in _DELIMITERS}
    best = max(counts, key=lambda delimiter: counts[delimiter])
    if counts[best] == 0:
        raise ValueError(
            f"{name} does not look like a station file: the first line {header_line[:60]!r} has "
            "no comma, semicolon, tab or bar. Pass the delimiter."
        )
    return best


def _split(line: str, delimiter: str) -> list[str]:
    fields = next(csv.reader([line.rstrip("\n")], delimiter=delimiter, skipinitialspace=True))
    return [" ".join(field.split()) for field in fields]


def _to_numbers(
    raw: pd.DataFrame, header: list[str], name: str, encoding: str, delimiter: str, decimal: str
) -> StationTable:
    names, renamed = _repair_names(header, name)
    columns: dict[str, np.ndarray] = {}
    unreadable: Counter[str] = Counter()
    empty: Counter[str] = Counter()
    dropped: list[str] = []
    for position, column_name in enumerate(names[1:], start=1):
        numbers, is_empty = _column_to_numbers(raw[position], decimal)
        has_number = ~np.isnan(numbers)
        if not column_name:
            # What a delimiter at the end of every line leaves behind.
            if not is_empty.all():
                raise ValueError(f"{name}: column {position + 1} has values and no name. Name it.")
        elif not has_number.any() and not is_empty.all():
            dropped.append(column_name)
        else:
            unreadable[column_name] = int((~has_number & ~is_empty).sum())
            empty[column_name] = int(is_empty.sum())
            columns[column_name] = numbers
    if not columns:
        raise ValueError(f"{name} has no column of numbers besides the stamps.")
    return StationTable(
        name=name,
        stamps=_parse_stamps(raw[0], name),
        values=pd.DataFrame(columns),
        encoding=encoding,
        delimiter=delimiter,
        decimal=decimal,
        unreadable=+unreadable,  # of columns that have any
        empty=+empty,
        renamed=renamed,
        dropped=tuple(dropped),
    )


def _column_to_numbers(column: pd.Series, decimal: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers of a column (NaN where there is none) and where it is empty."""
    is_empty = column.isna().to_numpy()
    if pd.api.types.is_bool_dtype(column):
        return np.full(len(column), np.nan), is_empty
    if not pd.api.types.is_numeric_dtype(column):
        # One bad cell makes pandas keep the whole column as text.
        text = column.astype("string").str.strip()
        is_empty = is_empty | (text == "").fillna(False).to_numpy(dtype=bool)
        if decimal == ",":
            text = text.str.replace(",", ".", regex=False)
        column = pd.to_numeric(text, errors="coerce")
    numbers = column.to_numpy(dtype=np.float64, na_value=np.nan)
    return np.where(np.isfinite(numbers), numbers, np.nan), is_empty


def _repair_names(header: list[str], name: str) -> tuple[list[str], dict[str, str]]:
    """Give back the units whose bytes were lost on the way between two encodings."""
    spelling = {_ascii_part(known): known for known in _UNITS_AT_RISK}
    names = [spelling.get(_ascii_part(found), found) for found in header]
    renamed = {old: new for old, new in zip(header, names, strict=True) if old != new}
    repeated = sorted({found for found in names[1:] if found and names.count(found) > 1})
    if repeated:
        raise ValueError(f"{name} has several columns with the name {repeated[0]!r}. Rename them.")
    if header[0].lower() not in _STAMP_NAMES and any(
        found.lower() in _STAMP_NAMES for found in header[1:]
    ):
        raise ValueError(f"{name}: the first column must hold the stamps, it is {header[0]!r}.")
    return names, renamed


def _ascii_part(column_name: str) -> str:
    # "?" stands for a lost byte as often as the replacement character does.
    return re.sub(r"[^\x20-\x7e]|\?", "", column_name)


def _parse_stamps(column: pd.Series, name: str) -> pd.DatetimeIndex:
    text = column.astype("string").str.strip().astype(object)
    stamps = pd.Series(pd.NaT, index=column.index, dtype="datetime64[ns]")
    # Digits first: pandas takes words such as "today" for stamps, whatever the format.
    todo = text.notna() & text.astype("string").str.match(r"\d").fillna(False).astype(bool)
    for stamp_format in _STAMP_FORMATS:
        if not todo.any():
            break
        parsed = pd.to_datetime(text[todo], format=stamp_format, errors="coerce")
        # A mistyped year such as 0202 does not fit into nanoseconds.
        parsed = parsed.where(parsed.between(pd.Timestamp.min, pd.Timestamp.max))
        stamps.loc[parsed.index] = parsed.dt.as_unit("ns")
        todo &= stamps.isna()
    if stamps.isna().all():
        first = next(iter(text.dropna()), "")
        raise ValueError(
            f"{name}: no stamp can be read; the first is {first!r}. "
            "Known spellings: 31.12.2009 23:50:00 and 2009-12-31 23:50:00, seconds optional."
        )
    return pd.DatetimeIndex(stamps)
