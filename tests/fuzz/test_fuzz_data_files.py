"""Damaged data files are read as what they say, repaired with a report, or refused in words."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import tempfile
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sklearn_restf.datasets import load_mpi_roof, load_sst2
from tests.fuzz.calls import called, spoil
from tests.fuzz.data import rarely
from tests.fuzz.judge import expect, outcomes
from tests.fuzz.length import N_CASES, SLOW_TO_DRAW, search_at_length

STAMPS = ["%d.%m.%Y %H:%M:%S", "%Y-%m-%d %H:%M:%S", "%d.%m.%Y %H:%M", "%Y-%m-%dT%H:%M:%S"]
NAMES = ["p (mbar)", "T (degC)", "SWDR (W/m²)", "wv (m/s)"]
# what a file may hold by mistake
ODDITIES = ["nan", "inf", "-9999", "", " ", "--", "1e999", "1,5", "1;5", '"', "#", "\x00", "today",
            "31.02.2020 00:00:00", "01.01.0202 00:00:00", "9" * 400, "=1+1", "True", "None", "\t",
            "１２", "2020-01-01 00:00:00", "ÿ"]  # fmt: skip
INVALID = {
    "missing_codes": ["abc", None, 3, [None], ["x"]],
    "duplicates": ["all", None, 1, ["first"]],
    "freq": ["often", None, "0min", "-10min", 5, 1.5, [], pd.NaT, "1000000D" * 3],
    "encoding": ["no such thing", None, 3, "", "base64", "rot13", ["utf-8"]],
    "delimiter": ["", ",,", None, 3, "\n", [","]],
    "path": [None, 3, [], [None], object(), {}, 1.5, [[]]],
}


@dataclass
class StationFile:
    """The bytes of a file, whether they are sound, and the table they hold then."""

    content: bytes
    table: pd.DataFrame | None
    arguments: dict[str, Any]
    spoilt: set[str] = field(default_factory=set)


def draw_table(draw, rng):
    """Return a table of numbers every ten minutes, some rows left out."""
    n = draw(st.integers(1, 12))
    names = NAMES[: draw(st.integers(1, 4))]
    values = np.round(100 * rng.standard_normal((n, len(names))), 2)
    steps = np.cumsum(rng.choice([1, 1, 1, 1, 3], size=n))
    index = pd.Timestamp("2020-02-28 12:00") + pd.to_timedelta(10 * steps, unit="min")
    return pd.DataFrame(values, index=index, columns=names)


def draw_text(draw, table):
    """Write a table as a station may; return the text and its encoding."""
    delimiter = draw(st.sampled_from([",", ";", "\t", "|"]))
    decimal = draw(st.sampled_from([".", ","])) if delimiter != "," else "."
    written = table.copy()
    written.insert(0, "Date Time", written.index.strftime(draw(st.sampled_from(STAMPS))))
    text = written.to_csv(
        sep=delimiter, decimal=decimal, index=False,
        lineterminator=draw(st.sampled_from(["\n", "\r\n"])),
    )  # fmt: skip
    return text, draw(st.sampled_from(["utf-8", "utf-8-sig", "cp1252", "utf-16"]))


def damage(draw, rng, content):
    """Return bytes of which some are others, missing, or repeated."""
    kind = draw(st.sampled_from(["flip", "cut", "insert", "repeat", "lose", "oddity"]))
    if not content:
        return content
    at = int(rng.integers(len(content)))
    if kind == "flip":
        flipped = bytearray(content)
        for i in rng.integers(len(content), size=draw(st.integers(1, 4))):
            flipped[i] ^= 1 << int(rng.integers(8))
        return bytes(flipped)
    if kind == "cut":
        return content[:at]
    if kind == "insert":
        return content[:at] + rng.bytes(draw(st.integers(1, 6))) + content[at:]
    if kind == "oddity":
        return content[:at] + draw(st.sampled_from(ODDITIES)).encode() + content[at:]
    lines = content.split(b"\n")
    i, j = rng.integers(len(lines), size=2)
    lines[i] = lines[j] if kind == "repeat" else b""
    return b"\n".join(lines)


def packed(draw, content):
    """Return the bytes as they may have been compressed."""
    kind = draw(st.sampled_from(["plain", "plain", "gzip", "bz2", "xz", "zip"]))
    if kind == "zip":
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as bundle:
            bundle.writestr("roof.csv", content)
        return buffer.getvalue()
    pack = {"plain": bytes, "gzip": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress}
    return pack[kind](content)


@st.composite
def station_files(draw):
    """Draw a :class:`StationFile`."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    table = draw_table(draw, rng)
    text, encoding = draw_text(draw, table)
    content = text.encode(encoding)
    sound = True
    for _ in range(draw(st.sampled_from([0, 0, 1, 1, 3]))):
        content, sound = damage(draw, rng, content), False
    content = packed(draw, content)
    if rarely(draw, 6):
        content, sound = damage(draw, rng, content), False
    arguments: dict[str, Any] = {}
    if rarely(draw, 4):
        arguments["duplicates"] = draw(st.sampled_from(["first", "last", "mean"]))
    if rarely(draw, 6):
        arguments["freq"] = "10min"
    spoilt = spoil(draw, INVALID, arguments) if sound else set()
    return StationFile(content, table if sound else None, arguments, spoilt)


def judge_station_file(case):
    """Load a file; of a sound one the table must come back."""
    outcomes["cases"] += 1
    source = io.BytesIO(case.content)
    source.name = "roof.csv"
    arguments = {"path": source} | case.arguments
    names = ["path", "roof.csv", *case.arguments]  # a message may call the file by its name
    data = called("load_mpi_roof", lambda: load_mpi_roof(**arguments), names=names,
                  spoilt=case.spoilt)  # fmt: skip
    if data is None:
        expect(case.table is None or case.spoilt, "a sound file was refused")
        return
    frame = data.frame
    expect((frame.dtypes == np.float64).all() and frame.shape[1] >= 1, "columns of float64")
    expect(not np.isinf(frame.to_numpy()).any(), "infinite values")
    expect(frame.index.is_unique and frame.index.is_monotonic_increasing, "stamps")
    steps = np.diff(frame.index.to_numpy())
    expect(len(steps) == 0 or (steps == data.report.step.to_timedelta64()).all(), "a gap")
    expect(list(frame.columns) == data.feature_names, "names")
    expect(str(data.report), "no report")
    if case.table is not None and data.report.step == pd.Timedelta("10min"):
        expected = case.table.reindex(frame.index)
        expect(frame.index[0] == case.table.index[0], "the first row is missing")
        expect(frame.index[-1] == case.table.index[-1], "the last row is missing")
        np.testing.assert_array_equal(frame.to_numpy(), expected.to_numpy())


@st.composite
def sentence_files(draw):
    """Draw the bytes of a file of sentences, the sentences if it is sound, and arguments."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    words = st.sampled_from(["a fine film", "dull .", "don't", "ünï", "0 1", "sentence", "日本"])
    texts = draw(st.lists(words, min_size=1, max_size=5))
    labels = rng.integers(2, size=len(texts)).tolist()
    kind = draw(st.sampled_from(["text", "glue", "test"]))
    rows = {"text": [f"{label} {text}" for label, text in zip(labels, texts, strict=True)],
            "glue": [f"{text}\t{label}" for label, text in zip(labels, texts, strict=True)],
            "test": [f"{i}\t{text}" for i, text in enumerate(texts)]}[kind]  # fmt: skip
    header = {"text": [], "glue": ["sentence\tlabel"], "test": ["index\tsentence"]}[kind]
    content = "\n".join(header + rows).encode()
    sound = (texts, [-1] * len(texts) if kind == "test" else labels)
    for _ in range(draw(st.sampled_from([0, 0, 1, 2]))):
        content, sound = damage(draw, rng, content), None
    arguments: dict[str, Any] = {"as_frame": draw(st.booleans())}
    invalid = {"subset": ["all", None, 1, []], "encoding": INVALID["encoding"],
               "path": [None, 3, [], 1.5]}  # fmt: skip
    spoilt = spoil(draw, invalid, arguments) if sound else set()
    return content, sound, arguments, spoilt


def judge_sentence_file(case):
    """Load a file of sentences; those of a sound one must come back."""
    outcomes["cases"] += 1
    content, sound, arguments, spoilt = case
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "train.tsv"
        path.write_bytes(content)
        arguments = {"path": path} | arguments
        data = called("load_sst2", lambda: load_sst2(**arguments), names=["train.tsv"],
                      spoilt=spoilt)  # fmt: skip
    if data is None:
        expect(sound is None or spoilt, "a sound file was refused")
        return
    texts, labels = list(data.data), list(data.target)
    expect(len(texts) == len(labels), "as many labels as sentences")
    expect(all(isinstance(text, str) and text.strip() for text in texts), "an empty sentence")
    expect(set(labels) <= {0, 1, -1}, "labels")
    if sound:
        expect((texts, labels) == sound, "other sentences")


@settings(max_examples=80, suppress_health_check=SLOW_TO_DRAW)
@given(station_files())
def test_station_files_read_or_refused(case):
    judge_station_file(case)


@settings(max_examples=60, suppress_health_check=SLOW_TO_DRAW)
@given(sentence_files())
def test_sentence_files_read_or_refused(case):
    judge_sentence_file(case)


@pytest.mark.fuzz
@pytest.mark.timeout(0)
@pytest.mark.parametrize(
    ("judge", "cases"),
    [(judge_station_file, station_files()), (judge_sentence_file, sentence_files())],
)
def test_files_at_length(capsys, judge, cases):
    search_at_length(capsys, judge, cases, N_CASES // 4)
