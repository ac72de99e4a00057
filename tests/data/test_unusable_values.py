"""Values that cannot be trained on are refused by the name of their argument."""

import numpy as np
import pandas as pd
import pytest

from sklearn_restf import ResidualTransformerRegressor
from tests.builders import (
    FEW_STEPS,
    ROW_LABELS,
    ROWS,
    X2,
    X2D,
    X3,
    X3D,
    YR,
    both,
    both_estimators,
    make_regressor,
    spoiled,
)
from tests.tools import refusal


@both
@pytest.mark.parametrize("X", [X2, X2D, X3, X3D], ids=["table32", "table64", "win32", "win64"])
@pytest.mark.parametrize(
    ("value", "words"), [(np.nan, "Input X contains NaN"), (np.inf, "infinity"), (-np.inf, "inf")]
)
def test_nan_and_infinity_in_x_are_refused_case_d28(make, y, X, value, words):
    """At fit and at predict."""
    with pytest.raises(ValueError, match=words):
        make().fit(spoiled(X, value), y)
    estimator = make(max_iter=1, diagnostics=False).fit(X, y)
    with pytest.raises(ValueError, match=words):
        estimator.predict(spoiled(X, value))


@pytest.mark.parametrize("dtype", ["auto", "float32"])
@pytest.mark.parametrize("X", [X2D, X3D], ids=["table", "windows"])
def test_values_beyond_single_precision_are_fitted_or_refused_case_d28(X, dtype):
    """Never turned into infinity silently."""
    estimator = make_regressor(dtype=dtype)
    large = spoiled(X, 1e39, index=0)
    message = refusal(estimator.fit, large, YR)
    if message:
        assert "too large" in message
    else:
        assert np.isfinite(estimator.predict(large)).all()
        assert np.isfinite(estimator.loss_curve_).all()


@both_estimators
@pytest.mark.parametrize("y", [np.full(6, 1j), np.zeros((6, 2, 2, 2)), 3.0], ids=str)
def test_unusable_targets_are_named(estimator, y):
    with pytest.raises((ValueError, TypeError), match=r"\by\b"):
        estimator.fit(ROWS, y)


@both_estimators
@pytest.mark.parametrize(
    "bad",
    [
        np.zeros((0, 3)),
        np.zeros((4, 0)),
        np.zeros(6),
        ROWS * 1j,
        [["a", "b"]] * 6,
        pd.Series(ROWS[:, 0]),
    ],
    ids=["no rows", "no columns", "1-D", "complex", "words", "a series"],
)
def test_unusable_samples_are_named(estimator, bad):
    with pytest.raises((ValueError, TypeError), match=r"\bX\b"):
        estimator.fit(bad, ROW_LABELS)


# numbers whose sum, a quick test for infinity, is infinity minus infinity
HUGE = np.array([1.7e308, 1.7e308, 1.0, -1.7e308, -1.7e308, 1.0, 1.7e308, -1.7e308] * 2)


@pytest.mark.parametrize("form", [(16, 1), (4, 2, 2)])
def test_huge_samples_are_used_or_refused_without_a_warning(form):
    values = HUGE.reshape(form)
    try:
        model = ResidualTransformerRegressor(**FEW_STEPS).fit(values, np.arange(len(values)))
    except ValueError as error:
        assert "too large" in str(error)  # noqa: PT017
    else:
        assert np.isfinite(model.predict(values)).all()


def test_huge_targets_are_learned_without_a_warning():
    X = np.arange(16.0)[:, None]
    assert np.isfinite(ResidualTransformerRegressor(**FEW_STEPS).fit(X, HUGE).predict(X)).all()


def test_targets_whose_spread_overflows_are_refused():
    with pytest.raises(ValueError, match="y contains values too large"):
        ResidualTransformerRegressor(**FEW_STEPS).fit(ROWS, [1.7e308, *[-1.7e308] * 5])


@both_estimators
def test_samples_that_overflow_in_units_of_the_training_samples_are_refused(estimator):
    estimator.fit(ROWS * 1e-300, ROW_LABELS)
    with pytest.raises(ValueError, match="X is so far from the training samples"):
        estimator.predict(ROWS * 1e10)
