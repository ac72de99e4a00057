"""Generated data sets are as asked for, or the argument that cannot be is named."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sklearn_restf.datasets import (
    make_climate_series,
    make_token_classification,
    make_token_regression,
)
from tests.fuzz.calls import NO_COUNT, called, spoil
from tests.fuzz.judge import expect, outcomes
from tests.fuzz.length import N_CASES, SLOW_TO_DRAW, search_at_length

TOKENS = {
    "n_samples": [1, 2, 7, np.int64(5)],
    "n_tokens": [1, 2, 5, (1, 1), (2, 4), [1, 3], (3, 3)],
    "n_features": [1, 2, 4],
    "singular_values": [None, 1.0, 0.1, 1e-300, [1.0], [0.0], [1e300], [5e-324], 1],
    "random_state": [0, None, np.random.RandomState(3)],
}
REGRESSION = TOKENS | {
    "n_targets": [1, 2],
    "target": ["sequence", "token"],
    "noise": [0.0, 0.1, 1e300, 5e-324],
}
CLASSIFICATION = TOKENS | {"n_classes": [2, 3, 5], "flip_y": [0.0, 0.5, 1.0]}
CLIMATE = {
    "n_steps": [1, 2, 50],
    "start": ["2020-01-01", pd.Timestamp("1970-01-01"), "2261-01-01"],
    "freq": ["10min", "1D", "1s", pd.Timedelta("1h"), "365D"],
    "n_gaps": [0, 1, 9],
    "gap_length": [1, 6, 10**6],
    "missing_fraction": [0.0, 0.5, 1.0],
    "random_state": [0, None, np.random.RandomState(3)],
}
NO_FRACTION = [-0.1, 1.1, np.nan, "1", None, 1j, [0.5]]
NO_SEED = [-1, "seed", 1.5, 2**32]
INVALID_TOKENS = {
    "n_samples": NO_COUNT,
    "n_tokens": [*NO_COUNT[:7], (0, 2), (3, 2), (1.0, 2), (1,), (1, 2, 3), "12", ("a", "b")],
    "n_features": NO_COUNT,
    "singular_values": [
        0.0,
        -1.0,
        1.5,
        np.nan,
        "1",
        [np.nan],
        [-1.0],
        [],
        [[1.0]],
        [np.inf],
        np.ones(99),
        ["a"],
        1j,
        {},
    ],
    "random_state": NO_SEED,
}
INVALID_REGRESSION = INVALID_TOKENS | {
    "n_targets": NO_COUNT,
    "target": ["all", None, 1, ["token"]],
    "noise": [-1.0, np.nan, np.inf, "1", None, 1j, [0.5, 1.0]],
}
INVALID_CLASSIFICATION = INVALID_TOKENS | {"n_classes": [*NO_COUNT, 1, 99], "flip_y": NO_FRACTION}
INVALID_CLIMATE = {
    "n_steps": NO_COUNT,
    "start": ["soon", None, "0001-01-01", [], pd.NaT, {}],
    "freq": ["often", None, "0s", "-1h", pd.NaT, [], "99999D" * 2, 1.5],
    "n_gaps": [-1, 1.5, None, True, "2"],
    "gap_length": NO_COUNT,
    "missing_fraction": NO_FRACTION,
    "random_state": NO_SEED,
}
GENERATORS = {
    make_token_regression: (REGRESSION, INVALID_REGRESSION),
    make_token_classification: (CLASSIFICATION, INVALID_CLASSIFICATION),
    make_climate_series: (CLIMATE, INVALID_CLIMATE),
}


@st.composite
def generations(draw):
    """Draw a generator, its arguments and what is spoilt among them."""
    make = draw(st.sampled_from(list(GENERATORS)))
    valid, invalid = GENERATORS[make]
    names = draw(st.lists(st.sampled_from(sorted(valid)), max_size=6, unique=True))
    arguments = {name: draw(st.sampled_from(valid[name])) for name in names}
    if "n_samples" not in arguments and make is not make_climate_series:
        arguments["n_samples"] = 9
    if isinstance(arguments.get("random_state"), np.random.RandomState):
        arguments["random_state"] = np.random.RandomState(3)  # others have drawn from it
    return make, arguments, spoil(draw, invalid, arguments)


def judge_generator(case):
    """Generate, and look at what came."""
    outcomes["cases"] += 1
    make, arguments, spoilt = case
    names = GENERATORS[make][0].keys()
    draws = arguments.get("random_state") is None
    data = called(make.__name__, lambda: make(**arguments), names=names, spoilt=spoilt,
                  clashes=arguments, draws=draws)  # fmt: skip
    if data is None:
        return
    if make is make_climate_series:
        n_steps = arguments.get("n_steps", 1440)
        expect(data.shape == (n_steps, 14), f"shape {data.shape}")
        expect(data.index.is_monotonic_increasing and data.index.is_unique, "stamps")
        expect(not np.isinf(data.to_numpy()).any(), "infinite values")
        if not arguments.get("n_gaps") and not arguments.get("missing_fraction"):
            expect(data.notna().all().all(), "values are missing")
        return
    X, y = data
    check_tokens(arguments, X)
    numbers = np.concatenate([np.ravel(part) for part in y]) if isinstance(y, list) else y
    expect(len(X) == len(y) == arguments["n_samples"], "as many targets as samples")
    expect(np.isfinite(numbers).all(), f"targets not finite: {y}")
    if make is make_token_classification:
        expect(((y >= 0) & (y < arguments.get("n_classes", 2))).all(), "classes")
    elif arguments.get("target") == "token":
        expect([len(one) for one in y] == [len(one) for one in X], "as many targets as tokens")


def check_tokens(arguments, X):
    """Check lengths and singular values of the samples."""
    n_tokens = arguments.get("n_tokens", 8)
    low, high = (n_tokens, n_tokens) if np.ndim(n_tokens) == 0 else n_tokens
    asked = arguments.get("singular_values")
    for sample in X:
        expect(low <= len(sample) <= high, f"{len(sample)} tokens")
        expect(sample.shape[1] == arguments.get("n_features", 4), f"shape {sample.shape}")
        expect(np.isfinite(sample).all(), "samples not finite")
        if isinstance(asked, list):
            found = np.linalg.norm(sample / max(asked[0], 1e-300))
            rank_one = asked[0] / max(asked[0], 1e-300)
            expect(abs(found - rank_one) <= 1e-9, f"singular value {found}")


@settings(max_examples=100, suppress_health_check=SLOW_TO_DRAW)
@given(generations())
def test_generated_as_asked_or_refused(case):
    judge_generator(case)


@pytest.mark.fuzz
@pytest.mark.timeout(0)
def test_generators_at_length(capsys):
    search_at_length(capsys, judge_generator, generations(), N_CASES // 4)
