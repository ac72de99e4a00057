"""Windows of random series are those of a plain loop, or the argument that is wrong is named."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from sklearn_restf.preprocessing import SlidingWindows, make_windows
from tests.fuzz.calls import NO_COUNT, NO_FLAG, called, spoil
from tests.fuzz.data import draw_array_layout, draw_numbers, rarely
from tests.fuzz.judge import expect, outcomes
from tests.fuzz.length import N_CASES, SLOW_TO_DRAW, search_at_length

CUT = {"frame", "target", "window", "horizon", "stride", "sampling", "drop_gaps", "features",
       "time"}  # fmt: skip
SLIDE = {"X", "window", "sampling", "padding", "flatten"}
ODD = [None, 3.0, "frame", [], np.zeros(4), np.zeros((3, 2, 2)), np.full((9, 1), 1j),
       [["a"]] * 9, np.zeros((9, 0)), sparse.eye_array(9).tocsr(), {"a": [1]}, [[1.0], [1.0, 2.0]],
       pd.DataFrame({"c0": ["x"] * 9}), object()]  # fmt: skip
INVALID = {
    "window": NO_COUNT,
    "stride": NO_COUNT,
    "sampling": NO_COUNT,
    "horizon": [*NO_COUNT[:6], [], [0], [1, -1], [[1, 2]], [1.0], [1, None], {}],
    "drop_gaps": NO_FLAG,
    "frame": ODD,
    "target": [None, "nothing", 99, [], ["nothing"], 1.5, ("c0", "nothing"), {}, [[0]]],
    "features": [["nothing"], [99], 3, "nothing", [], [None], [[0]], True],
    "time": ["nothing", 99, np.arange(99.0), 1.5, {}, [["a"]]],
}
SLIDE_INVALID = {
    "window": NO_COUNT,
    "sampling": NO_COUNT,
    "padding": ["zero", None, 0, ["edge"]],
    "flatten": NO_FLAG,
    "X": ODD,
}


@dataclass
class Windowing:
    """A series in a container, and how to cut it. `stamps` are whole numbers of steps."""

    values: np.ndarray
    stamps: np.ndarray | None
    arguments: dict[str, Any]
    spoilt: set[str] = field(default_factory=set)


def draw_frame(draw, values):
    """Return values in a container, with or without stamps, the time argument and the stamps."""
    n = len(values)
    names = [f"c{i}" for i in range(values.shape[1])]
    kind = draw(st.sampled_from(
        ["array", "list", "pandas", "dates", "numbers", "durations", "periods", "zone",
         "time column", "time values", "polars", "polars dates"]))  # fmt: skip
    if kind == "array":
        return draw_array_layout(draw, values), None, None
    if kind == "list":
        return values.tolist(), None, None
    native = values.astype("f8" if values.dtype.itemsize > 8 else values.dtype.newbyteorder("="))
    if kind == "polars" or (kind == "polars dates" and native.dtype == np.float16):
        return pl.DataFrame(native.astype("f8"), schema=names), None, None
    frame = pd.DataFrame(native, columns=names)
    if kind == "pandas":
        return frame, None, None
    steps = draw(st.lists(st.sampled_from([1, 1, 1, 1, 2, 50]), min_size=n, max_size=n))
    stamps = np.cumsum(steps)
    dates = pd.Timestamp("2021-03-04") + pd.to_timedelta(stamps, unit="min")
    if kind == "polars dates":
        columns = {name: native[:, i] for i, name in enumerate(names)}
        return pl.DataFrame({"when": dates.to_numpy(), **columns}), None, stamps
    if kind == "time values":
        unit, start = draw(st.sampled_from([(1.0, 0.0), (0.1, 0.0), (1e-9, 0.0), (1e9, -1e9)]))
        return frame, start + unit * stamps, stamps
    if kind == "time column":
        return frame.assign(when=dates), "when", stamps
    index = {"dates": dates, "numbers": pd.Index(stamps), "zone": dates.tz_localize("Europe/Rome"),
             "durations": pd.to_timedelta(stamps, unit="s"),
             "periods": dates.to_period("min")}[kind]  # fmt: skip
    return frame.set_axis(index, axis=0), None, None if kind == "numbers" else stamps


@st.composite
def windowings(draw):
    """Draw a :class:`Windowing`."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n, c = draw(st.integers(1, 25)), draw(st.integers(1, 3))
    values = draw_numbers(draw, rng, (n, c))
    if values.dtype.kind == "f" and rarely(draw, 3):
        values = values.copy()
        values[rng.random((n, c)) < 0.1] = np.nan
    frame, time, stamps = draw_frame(draw, values)
    named = isinstance(frame, pd.DataFrame | pl.DataFrame)
    columns = [f"c{i}" if named else i for i in range(c)]
    arguments = {"frame": frame, "target": draw(st.sampled_from(columns)),
                 "window": draw(st.integers(1, 6)), "horizon": draw(st.integers(1, 4)),
                 "time": time}  # fmt: skip
    if rarely(draw, 3):
        arguments["target"] = draw(st.permutations(columns))
    if rarely(draw, 3):
        arguments["horizon"] = draw(st.lists(st.integers(1, 5), min_size=1, max_size=3))
    if rarely(draw, 3):
        arguments["features"] = draw(st.lists(st.sampled_from(columns), min_size=1, unique=True))
    for name, values_ in (("stride", [1, 2, 7]), ("sampling", [1, 2, 3]), ("drop_gaps", [False])):
        if rarely(draw, 3):
            arguments[name] = draw(st.sampled_from(values_))
    spoilt = spoil(draw, INVALID, arguments)
    if "frame" in spoilt:  # of which these speak
        spoilt |= {"target", "features", "time"}
    return Windowing(values, stamps, arguments, spoilt)


def position(column):
    """Return the number of a column."""
    return int(column[1:]) if isinstance(column, str) else column


def by_loop(case):
    """Return what the windows and targets should be, one by one."""
    given = {"stride": 1, "sampling": 1, "drop_gaps": True, "features": None} | case.arguments
    values = case.values.astype("f4" if case.values.dtype == np.float32 else "f8")
    features, target, horizons = given["features"], given["target"], given["horizon"]
    X_columns = range(values.shape[1]) if features is None else map(position, features)
    y_columns = [position(t) for t in (target if isinstance(target, list) else [target])]
    horizons = horizons if isinstance(horizons, list) else [horizons]
    inside, outcome = values[:, list(X_columns)], values[:, y_columns]
    steps = [] if case.stamps is None else np.diff(case.stamps)
    counts = Counter(sorted(steps))
    modal = max(counts, key=counts.get) if counts else 1
    X, y = [], []
    for start in range(0, len(values), given["stride"]):
        rows = start + given["sampling"] * np.arange(given["window"])
        ends = [rows[-1] + h for h in horizons]
        if max(ends) >= len(values):
            break
        window, targets = inside[rows], np.concatenate([outcome[end] for end in ends])
        broken = any(step != modal for step in steps[start : max(ends)])
        if given["drop_gaps"] and (broken or np.isnan(window).any() or np.isnan(targets).any()):
            continue
        X.append(window)
        y.append(targets)
    return X, y


def judge_windows(case):
    """Cut a series and compare."""
    outcomes["cases"] += 1
    arguments = case.arguments
    inputs = [arguments["frame"], arguments["time"]]
    windows = called("make_windows", lambda: make_windows(**arguments), names=CUT,
                     spoilt=case.spoilt, inputs=inputs)  # fmt: skip
    X, y = ([], []) if case.spoilt else by_loop(case)
    if windows is None:
        expect(not X, "windows that there are were refused")
        return
    expect(windows.X.shape[0] == len(X) == len(windows.index), f"{len(windows.X)} windows")
    np.testing.assert_array_equal(windows.X, np.array(X))
    np.testing.assert_array_equal(windows.y.reshape(len(y), -1), np.array(y))


@st.composite
def slidings(draw):
    """Draw samples and parameters of SlidingWindows."""
    case = draw(windowings())
    arguments = {"window": draw(st.integers(1, 5)), "sampling": draw(st.integers(1, 3)),
                 "padding": draw(st.sampled_from(["edge", "nan"])),
                 "flatten": draw(st.booleans())}  # fmt: skip
    X = case.arguments["frame"]
    if "frame" in case.spoilt or (isinstance(X, pd.DataFrame) and "when" in X):
        X, case.stamps = case.values, None
    temporal = pd.DatetimeIndex | pd.PeriodIndex | pd.TimedeltaIndex
    if not (isinstance(X, pd.DataFrame) and isinstance(X.index, temporal)):
        case.stamps = None
    if isinstance(X, pl.DataFrame):
        X = X.select([name for name in X.columns if name != "when"])
    case.arguments = {"X": X, **arguments}
    case.spoilt = spoil(draw, SLIDE_INVALID, case.arguments)
    return case


def judge_sliding(case):
    """Give each row its history and compare."""
    outcomes["cases"] += 1
    parameters = dict(case.arguments)
    X = parameters.pop("X")
    container = "pandas" if case.values.size % 2 else "default"
    transformer = SlidingWindows(**parameters).set_output(transform=container)
    found = called("SlidingWindows", lambda: transformer.fit(X).transform(X), names=SLIDE,
                   spoilt=case.spoilt, inputs=[X])  # fmt: skip
    if found is None:
        return
    values = case.values.astype("f4" if case.values.dtype == np.float32 else "f8")
    n, window, sampling = len(values), parameters["window"], parameters["sampling"]
    steps = np.ones(n - 1) if case.stamps is None else np.diff(case.stamps)
    counts = Counter(sorted(steps.tolist()))
    modal = max(counts, key=counts.get) if counts else 1
    expected = np.empty((n, window, values.shape[1]))
    for i in range(n):
        first = i
        while first > 0 and steps[first - 1] == modal:
            first -= 1
        for j in range(window):
            row = i - (window - 1 - j) * sampling
            outside = np.nan if parameters["padding"] == "nan" else values[first]
            expected[i, j] = values[row] if row >= first else outside
    if parameters["flatten"]:
        names = transformer.get_feature_names_out()
        expect(len(names) == np.shape(found)[1], "as many names as columns")
        expect(isinstance(found, pd.DataFrame) == (container == "pandas"), "not the container")
        expected = expected.reshape(n, -1)
    np.testing.assert_array_equal(np.asarray(found), expected)


@settings(max_examples=100, suppress_health_check=SLOW_TO_DRAW)
@given(windowings())
def test_windows_of_a_plain_loop_or_refused(case):
    judge_windows(case)


@settings(max_examples=60, suppress_health_check=SLOW_TO_DRAW)
@given(slidings())
def test_histories_of_a_plain_loop_or_refused(case):
    judge_sliding(case)


@pytest.mark.fuzz
@pytest.mark.timeout(0)
@pytest.mark.parametrize(
    ("judge", "cases"), [(judge_windows, windowings()), (judge_sliding, slidings())]
)
def test_windows_at_length(capsys, judge, cases):
    search_at_length(capsys, judge, cases, N_CASES // 4)
