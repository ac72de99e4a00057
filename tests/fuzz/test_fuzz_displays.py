"""Displays of any numbers are drawn, or the argument that cannot be is named."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sklearn_restf import ResidualTransformerRegressor
from sklearn_restf.inspection import (
    AttentionDisplay,
    BetaSweepDisplay,
    ConvergenceDisplay,
    SpectrumDisplay,
)
from tests.fuzz.calls import NO_COUNT, called, spoil
from tests.fuzz.data import MAGNITUDES, rarely
from tests.fuzz.judge import expect, outcomes
from tests.fuzz.length import N_CASES, SLOW_TO_DRAW, search_at_length

pyplot = pytest.importorskip("matplotlib.pyplot", reason="the extra plot is not installed")

X = np.random.default_rng(0).standard_normal((8, 3, 2))
NO_CURVE = ["curve", 3.0, [[1.0]], ["a"], np.full(2, 1j), object(), {}]
NO_NUMBER = ["fast", [0.5, 0.5], 1j, {}]
NO_ROWS = ["ab", 3, [["a"]], [[1.0]] * 99, [np.zeros((1, 2))] * 99]
INVALID = {
    ConvergenceDisplay: {
        "loss": [None, *NO_CURVE],
        "validation_loss": NO_CURVE,
        "rate": NO_NUMBER,
        "rate_window": [(1,), (0, 99), (-1, 1), None, 3, "ab", (0.0, 1.0), ("a", "b")],
        "predicted_rate": NO_NUMBER,
        "predicted_curve": NO_CURVE,
        "forecast": NO_CURVE,
        "floor": NO_NUMBER,
        "ax": [3, "ax", [None]],
    },
    AttentionDisplay: {
        "attention": [None, "a", 3.0, np.zeros((0, 0)), np.zeros((2, 3)), [["a"]], -np.eye(2),
                      np.full((2, 2), np.nan), np.full((2, 2), 1e300)],
        "token_names": [3, ["one"] * 99, []],
        "values_format": ["zz", 3, None],
        "ax": [3, "ax"],
    },
    SpectrumDisplay: {
        "Z_start": ["a", 3.0, [1.0], np.zeros((0, 2, 2)), [[["a"]]]],
        "attention_end": [[[1.0]], np.zeros((0, 2, 2))],
        "layers": [3, "ab", [], [1] * 99],
        "ax": [3, "ax"],
    },
    BetaSweepDisplay: {
        "betas": [None, "ab", 3.0, [["a"]], [[1.0]]],
        "loss_curves": [*NO_ROWS, [1.0, 2.0]],
        "rates": NO_ROWS,
        "scores": NO_ROWS,
        "panels": [["nothing"], 3, "rate", [], [[]]],
        "ax": [3, "ax"],
    },
}  # fmt: skip
# where several arguments must agree any of them may be named
TOGETHER = {
    SpectrumDisplay: {"Z_start", "Z_end", "attention_end"},
    BetaSweepDisplay: {"betas", "loss_curves", "rates", "scores", "panels"},
}
PLOT = {"ax", "values_format", "panels"}


def draw_curve(draw, rng, n):
    """Return n losses, of which some are no numbers."""
    with np.errstate(over="ignore"):
        curve = np.abs(rng.standard_normal(n)) * draw(st.sampled_from(MAGNITUDES))
    if rarely(draw):
        curve[rng.random(n) < 0.5] = draw(st.sampled_from([np.nan, np.inf, 0.0, -1.0]))
    return curve


def draw_number(draw):
    """Return a number that may be unknown or extreme."""
    return draw(st.sampled_from([np.nan, 0.5, 0.999999, 1.0, 0.0, -3.0, 1e300, 1e-300, np.inf]))


def draw_arguments(draw, rng, make):
    """Return arguments of a display."""
    n = draw(st.integers(0, 12))
    if make is ConvergenceDisplay:
        arguments = {"loss": draw_curve(draw, rng, n)}
        for name in ("validation_loss", "predicted_curve", "forecast"):
            if rarely(draw, 3):
                arguments[name] = draw_curve(draw, rng, draw(st.integers(0, 6)))
        for name in ("rate", "rate_r2", "predicted_rate", "floor"):
            if rarely(draw, 2):
                arguments[name] = draw_number(draw)
        if n and rarely(draw, 2):
            arguments["rate_window"] = tuple(sorted(rng.integers(n, size=2).tolist()))
        return arguments
    if make is AttentionDisplay:
        attention = rng.dirichlet(np.ones(n + 1), size=n + 1)
        names = [f"token {i}" * draw(st.integers(0, 5)) for i in range(n + 1)]
        return {"attention": attention} | ({"token_names": names} if rarely(draw, 2) else {})
    if make is SpectrumDisplay:
        shape = (draw(st.integers(1, 3)), draw(st.integers(1, 4)), draw(st.integers(1, 4)))
        every = ["Z_start", "Z_end", "attention_start", "attention_end"]
        names = draw(st.lists(st.sampled_from(every), min_size=1, unique=True))
        return {name: draw_curve(draw, rng, int(np.prod(shape))).reshape(shape) for name in names}
    n = draw(st.integers(1, 4))
    arguments = {"betas": sorted(rng.choice([0.0, 0.5, 1.0, 2.0, 1e6, 1e-6], n, replace=False))}
    arguments["rates"] = [draw_curve(draw, rng, draw(st.integers(1, 3))) for _ in range(n)]
    if rarely(draw, 2):
        arguments["loss_curves"] = [[draw_curve(draw, rng, draw(st.integers(0, 9)))]] * n
    for name in ("condition_ratios", "scores"):
        if rarely(draw, 2):
            arguments[name] = [draw_number(draw) for _ in range(n)]
    if rarely(draw, 3):
        arguments["panels"] = draw(st.permutations(["loss", "rate", "ratio", "score"]))
    return arguments


@st.composite
def displays(draw):
    """Draw a display, its arguments and what is spoilt among them."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    make = draw(st.sampled_from(list(INVALID)))
    arguments = draw_arguments(draw, rng, make)
    return make, arguments, spoil(draw, INVALID[make], arguments), rarely(draw)


def judge_display(drawn):
    """Make a display, plot it, and now and then lay it out as if to be printed."""
    outcomes["cases"] += 1
    make, arguments, spoilt, to_print = drawn
    plot = {name: value for name, value in arguments.items() if name in PLOT}
    rest = {name: value for name, value in arguments.items() if name not in PLOT}

    def draw_it():
        display = make(**rest).plot(**plot)
        if to_print:
            display.figure_.draw_without_rendering()
        return display

    together = TOGETHER.get(make, set())
    display = called(make.__name__, draw_it, names=arguments.keys() | together, spoilt=spoilt,
                     clashes=together, inputs=rest.values())  # fmt: skip
    pyplot.close("all")
    if display is not None:
        expect(display.ax_.figure is display.figure_, "axes of another figure")


@functools.cache
def model():
    """Return a fitted estimator."""
    return ResidualTransformerRegressor(max_iter=3, tol=None, n_layers=2, random_state=0).fit(
        X, X[:, 0, 0]
    )


NO_ESTIMATOR = [None, 3, "model", object(), ResidualTransformerRegressor]
NO_PLACE = [99, "a", 1.5, [0], True]
FROM_ESTIMATOR = {
    AttentionDisplay: {"estimator": NO_ESTIMATOR, "X": [None, "a", X[0], X * np.nan],
                       "sample": [*NO_PLACE, None], "layer": [*NO_PLACE, 0],
                       "head": [*NO_PLACE, 0], "token_names": [3, ["a"]], "ax": [3]},
    SpectrumDisplay: {"estimator": NO_ESTIMATOR, "X": ["a", X[0], X * np.nan],
                      "layers": [[], [9], 3, "ab", [1.0], [[1]]], "n_samples": NO_COUNT,
                      "ax": [3]},
    ConvergenceDisplay: {"estimator": NO_ESTIMATOR, "ax": [3, "ax"]},
}  # fmt: skip


@st.composite
def estimator_displays(draw):
    """Draw a display of an estimator, one of its arguments spoilt."""
    make = draw(st.sampled_from(list(FROM_ESTIMATOR)))
    arguments = {"estimator": model()}
    if make is not ConvergenceDisplay:
        arguments["X"] = X
    return make, arguments, spoil(draw, FROM_ESTIMATOR[make], arguments)


def judge_estimator_display(drawn):
    """Draw a fitted estimator."""
    outcomes["cases"] += 1
    make, arguments, spoilt = drawn
    called(make.__name__, lambda: make.from_estimator(**arguments), names=arguments,
           spoilt=spoilt, inputs=[X])  # fmt: skip
    pyplot.close("all")


@settings(max_examples=60, suppress_health_check=SLOW_TO_DRAW)
@given(displays())
def test_drawn_or_refused(drawn):
    judge_display(drawn)


@settings(max_examples=30, suppress_health_check=SLOW_TO_DRAW)
@given(estimator_displays())
def test_estimators_drawn_or_refused(drawn):
    judge_estimator_display(drawn)


@pytest.mark.fuzz
@pytest.mark.timeout(0)
@pytest.mark.parametrize(
    ("judge", "drawn", "share"),
    [(judge_display, displays(), 8), (judge_estimator_display, estimator_displays(), 40)],
)
def test_displays_at_length(capsys, judge, drawn, share):
    search_at_length(capsys, judge, drawn, N_CASES // share)
