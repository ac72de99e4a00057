"""A prediction depends on its row alone, and takes little memory."""

import numpy as np
import pytest

from sklearn_restf import ResidualTransformerRegressor
from tests.builders import (
    FEW_STEPS,
    ROWS,
    SERIES,
    X2,
    X2D,
    X3,
    X3D,
    both,
    both_on_series,
    make_regressor,
)
from tests.tools import ExtraMemory, linux_only, outputs


@both
@pytest.mark.parametrize("X", [X2, X2D, X3, X3D], ids=["table32", "table64", "win32", "win64"])
def test_prediction_of_a_row_does_not_depend_on_its_company_case_d10(make, y, X):
    estimator = make().fit(X, y)
    whole = outputs(estimator, X)
    assert whole.dtype == np.float64
    by_row = np.concatenate([outputs(estimator, X[i : i + 1]) for i in range(len(X))])
    order = np.random.default_rng(1).permutation(len(X))
    permuted = np.empty_like(whole)
    permuted[order] = outputs(estimator, X[order])
    np.testing.assert_allclose(by_row, whole, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(permuted, whole, rtol=1e-7, atol=1e-9)
    for chunk_size in (1, 7, 64):
        estimator.set_params(chunk_size=chunk_size)
        np.testing.assert_allclose(outputs(estimator, X), whole, rtol=1e-7, atol=1e-9)


@both_on_series
def test_prediction_of_a_series_does_not_depend_on_its_company_case_d10(make, y):
    estimator = make().fit(SERIES, y)
    whole = outputs(estimator, SERIES)
    by_row = np.concatenate([outputs(estimator, [s]) for s in SERIES])
    np.testing.assert_allclose(by_row, whole, rtol=1e-7, atol=1e-9)
    for chunk_size in (1, 7, 64):
        estimator.set_params(chunk_size=chunk_size)
        np.testing.assert_allclose(outputs(estimator, SERIES), whole, rtol=1e-7, atol=1e-9)


def _window_view(n):
    base = np.random.default_rng(0).normal(size=(n + 143, 14)).astype("float32")
    return np.lib.stride_tricks.sliding_window_view(base, 144, axis=0).transpose(0, 2, 1)


@linux_only
def test_prediction_on_a_view_of_many_windows_stays_small_case_d11():
    """20 000 windows would take 323 MB in double precision."""
    windows = _window_view(20_000)
    estimator = make_regressor(pooling="last", max_iter=2).fit(windows[:256], windows[:256, -1, 0])
    with ExtraMemory() as extra:
        predictions = estimator.predict(windows)
    assert predictions.shape == (20_000,)
    assert extra.peak < 150e6
    np.testing.assert_allclose(predictions[-3:], estimator.predict(windows[-3:]), rtol=1e-7)


@linux_only
def test_prediction_on_a_view_larger_than_comfortable_stays_small_case_d11():
    """1.6 GB in single precision, 3.2 GB in double, 11 MB in memory."""
    windows = _window_view(200_000)
    estimator = make_regressor(pooling="last", max_iter=2).fit(windows[:256], windows[:256, -1, 0])
    with ExtraMemory() as extra:
        predictions = estimator.predict(windows)
    assert np.isfinite(predictions).all()
    assert extra.peak < 250e6


@both
def test_single_row_is_predicted_as_one_row_case_d16(make, y):
    estimator = make().fit(X2, y)
    assert estimator.predict(X2[:1]).shape == (1,)
    assert outputs(estimator, X2[:1]).shape == ((1,) if make is make_regressor else (1, 2))
    assert make(token_dim=3).fit(X3, y).predict(X3[:1]).shape == (1,)


def test_predictions_beyond_float64_are_refused():
    y = np.array([1.7e308, -1.7e308, 1.7e308, -1.7e308, 1.7e308, -1.7e308])
    model = ResidualTransformerRegressor(**FEW_STEPS, standardize=False).fit(ROWS, y)
    with pytest.raises(ValueError, match="overflow float64 in the units of y"):
        model.predict(1e6 * ROWS)
