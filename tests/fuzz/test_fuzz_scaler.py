"""Tokens of any form and magnitude are standardised, or the argument that is wrong is named."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from sklearn_restf.preprocessing import TokenStandardScaler
from tests.fuzz.calls import NO_COUNT, NO_FLAG, called, spoil
from tests.fuzz.cases import Sampler, spoil_number
from tests.fuzz.data import draw_weights, rarely
from tests.fuzz.judge import expect, outcomes
from tests.fuzz.length import N_CASES, SLOW_TO_DRAW, search_at_length

NAMES = {"X", "sample_weight", "token_dim", "with_mean", "with_std", "padding_value"}
INVALID = {
    "token_dim": [value for value in NO_COUNT if value is not None],
    "with_mean": NO_FLAG,
    "with_std": NO_FLAG,
    "padding_value": ["nan", True, [0.0], 1j],
    "X": [
        None,
        3.0,
        "X",
        [],
        np.zeros((0, 3)),
        np.zeros((4, 0)),
        np.zeros(4),
        [0.0, 1.0],
        np.zeros((2, 2, 2, 2)),
        np.full((3, 2), 1j),
        [["a", "b"]] * 3,
        object(),
        {"a": [1]},
        np.zeros((3, 2, 0)),
        [np.zeros((2, 2)), np.zeros(2)],
        [np.zeros((2, 2)), None],
        [np.zeros((2, 2)), np.zeros((2, 3))],
        [np.zeros((2, 2)), np.full((2, 2), 1j)],
        np.full((3, 2), "a", dtype=object),
        [[1.0], [1.0, 2.0]],
        sparse.eye_array(3).tocsr(),
    ],
    "sample_weight": [
        "heavy",
        -1.0,
        {},
        [],
        np.zeros(0),
        np.ones((3, 2)),
        np.full(99, 1j),
        np.ones(99),
    ],
}


@dataclass
class Scaling:
    """Samples, what is known of them as plain numbers, and parameters."""

    X: Any
    tokens: list[np.ndarray]
    X_new: Any
    weight: Any
    parameters: dict[str, Any]
    spoilt: set[str] = field(default_factory=set)


def tokens_of(values, lengths, sampler):
    """Return the real tokens of every sample, in float64."""
    if sampler.form == "table":
        return [row[None].astype("f8") for row in values]
    if sampler.form == "flat":
        values = values.reshape(len(values), -1, sampler.c)
    return [sample[:n].astype("f8") for sample, n in zip(values, lengths, strict=True)]


@st.composite
def scalings(draw):
    """Draw a :class:`Scaling`."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    sampler = Sampler(draw, rng)
    n = draw(st.integers(1, 9))
    values, lengths = sampler.numbers(n)
    holes = sampler.form in ("table", "windows", "flat") and values.dtype.kind == "f"
    if holes and rarely(draw):
        values = np.where(rng.random(values.shape) < 0.2, np.nan, values).astype(values.dtype)
    tokens = tokens_of(values, lengths, sampler)
    parameters = sampler.parameters()
    X_new = sampler.numbers(draw(st.integers(1, 4)))[0]
    parameters |= {"with_mean": draw(st.booleans()), "with_std": not rarely(draw, 3)}
    arguments = {"X": sampler.container(values), "sample_weight": draw_weights(draw, rng, n)}
    if np.ndim(arguments["sample_weight"]) == 0:
        arguments["sample_weight"] = None
    both = {**arguments, **parameters}
    spoilt = spoil(draw, INVALID, both)
    if not spoilt and rarely(draw, 8):
        both["X"], spoilt = spoil_infinity(draw, rng, values), {"X"}
    if "token_dim" in spoilt and sampler.form != "flat":
        spoilt |= {"X"}
    X, weight = both.pop("X"), both.pop("sample_weight")
    if sampler.form == "ragged" and not spoilt:  # some of them may be in another precision
        tokens = [np.asarray(sample, dtype="f8") for sample in X]
    return Scaling(X, tokens, sampler.container(X_new), weight, both, spoilt)


def spoil_infinity(draw, rng, values):
    """Put infinity somewhere; NaN is a missing value here."""
    values = spoil_number(draw, rng, values)
    samples = values if isinstance(values, list) else [values]
    spoilt = [np.where(np.isnan(sample), np.inf, sample) for sample in samples]
    return spoilt if isinstance(values, list) else spoilt[0]


def expected_moments(case):
    """Return mean and standard deviation of each channel, each in units of its largest value."""
    tokens = np.concatenate(case.tokens)
    weight = np.ones(len(case.tokens)) if case.weight is None else np.asarray(case.weight, "f8")
    weight = np.repeat(weight / weight.max(), [len(sample) for sample in case.tokens])
    present = ~np.isnan(tokens)
    largest = np.where(present, np.abs(tokens), 0.0).max(axis=0, initial=0.0)
    unit = np.where(largest > 0, largest, 1.0)
    values = np.where(present, tokens, 0.0) / unit
    w = weight[:, None] * present
    total = np.where(w.sum(axis=0) > 0, w.sum(axis=0), 1.0)
    mean = (w * values).sum(axis=0) / total
    return mean, np.sqrt((w * (values - mean) ** 2).sum(axis=0) / total), unit


def judge_scaler(case):
    """Fit, compare the moments, scale and go back."""
    outcomes["cases"] += 1
    scaler = TokenStandardScaler(**case.parameters)
    fitted = called("fit", lambda: scaler.fit(case.X, sample_weight=case.weight), names=NAMES,
                    spoilt=case.spoilt, inputs=[case.X, case.weight])  # fmt: skip
    if fitted is None:
        expect(not hasattr(scaler, "scale_"), "a fit that failed left something")
        return
    mean, deviation, unit = expected_moments(case)
    normal = unit > 1e-300
    found = scaler.mean_[normal] / unit[normal]
    np.testing.assert_allclose(found, mean[normal], rtol=1e-9, atol=1e-12)
    expect(np.isfinite(scaler.scale_).all() and (scaler.scale_ > 0).all(), "scales")
    # what varies by more than rounding, and is no denormal number
    varies = (deviation > 1e-7) & (deviation * unit > 1e-300)
    np.testing.assert_allclose(scaler.scale_[varies] / unit[varies], deviation[varies], rtol=1e-6)
    for X in (case.X, case.X_new):
        scaled = called("transform", lambda X=X: scaler.transform(X), names=["X"], inputs=[X])
        if scaled is None:
            continue
        flat, given = flattened(scaled), flattened(X)
        expect(not np.isinf(flat).any(), "infinite values")
        expect(flat.shape == given.shape, f"shape {flat.shape}")
        if case.parameters.get("padding_value") is None:
            expect((np.isnan(flat) == np.isnan(given)).all(), "NaN elsewhere")
        called("inverse", lambda scaled=scaled: scaler.inverse_transform(scaled), names=["X"])


def flattened(X):
    """Return all numbers of samples in any container."""
    if isinstance(X, list | tuple) or (
        isinstance(X, np.ndarray) and X.ndim == 1 and X.dtype == object
    ):
        return np.concatenate([flattened(sample) for sample in X]) if len(X) else np.empty(0)
    if hasattr(X, "detach"):
        X = X.detach().numpy()
    return np.asarray(X, dtype="f8").ravel()


@settings(max_examples=100, suppress_health_check=SLOW_TO_DRAW)
@given(scalings())
def test_standardised_or_refused(case):
    judge_scaler(case)


@pytest.mark.fuzz
@pytest.mark.timeout(0)
def test_scaler_at_length(capsys):
    search_at_length(capsys, judge_scaler, scalings(), N_CASES // 4)
