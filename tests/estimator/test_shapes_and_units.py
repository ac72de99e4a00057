"""Shapes as small as they get, channels that say nothing, and units of any size."""

import warnings

import numpy as np
import pytest

from sklearn_restf.exceptions import RankCollapseWarning
from tests.builders import X2, X2D, X3, X3D, YR, both, make_regressor
from tests.tools import outputs, refusal


@pytest.mark.parametrize("X", [X2, X3D * 1e6 + 1e8], ids=["table", "large windows"])
def test_units_of_the_target_do_not_matter_case_d21(X):
    """An untuned regressor explains 1e6*y + 1e8 as well as y."""
    plain = make_regressor(max_iter=200, tol=1e-4).fit(X, YR)
    large = make_regressor(max_iter=200, tol=1e-4).fit(X, 1e6 * YR + 1e8)
    score = plain.score(X, YR)
    assert score > 0.8
    assert abs(score - large.score(X, 1e6 * YR + 1e8)) < 1e-3


def test_default_rate_survives_extreme_data_case_d21():
    X = X2D * np.logspace(-6, 6, 72)
    X[0] *= 1e3
    estimator = make_regressor(max_iter=100).fit(X, np.exp(3 * YR))
    assert np.isfinite(estimator.predict(X)).all()
    losses = np.array(estimator.loss_curve_)
    assert (np.diff(losses) <= 1e-12 * losses[:-1]).all()


@both
def test_one_sample_is_enough_without_validation_case_d22(make, y):
    """Or the message says how many there were."""
    estimator = make()
    message = refusal(estimator.fit, X2[:1], y[:1])
    if message:
        assert "1 sample" in message or "n_samples=1" in message
    else:
        assert np.isfinite(outputs(estimator, X2[:5])).all()


@both
@pytest.mark.parametrize(
    "X",
    [X2D[:, :1], X3D[:, :1], X3D[:, :, :1], X3D[:, :1, :1], [s[:, :1] for s in X3D]],
    ids=["one feature", "one token", "one channel", "one number", "series of one channel"],
)
def test_smallest_shapes_are_fitted_case_d22(make, y, X):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RankCollapseWarning)
        estimator = make().fit(X, y)
    result = outputs(estimator, X)
    assert len(result) == 64
    assert np.isfinite(result).all()


@both
@pytest.mark.parametrize("constant", [0.0, 5.0, 1e8, -1e-12])
@pytest.mark.parametrize("ndim", [2, 3])
def test_constant_channel_is_harmless_case_d28(make, y, constant, ndim):
    """No division by zero, also when the channel varies at predict."""
    X = X3.copy()
    X[:, :, 1] = constant
    later = X3.copy()
    if ndim == 2:
        X, later = X.reshape(64, -1), later.reshape(64, -1)
    for dtype in ("float32", "float64"):
        estimator = make(dtype=dtype, max_iter=8).fit(X, y)
        assert np.isfinite(estimator.loss_curve_).all()
        assert np.isfinite(outputs(estimator, X)).all()
        assert np.isfinite(outputs(estimator, later)).all()


@both
def test_channel_of_tiny_scale_is_used_like_any_other_case_d28(make, y):
    X = X3D.copy()
    X[:, :, 0] *= 1e-30
    np.testing.assert_allclose(
        outputs(make().fit(X, y), X), outputs(make().fit(X3D, y), X3D), rtol=1e-5, atol=1e-7
    )


@both
@pytest.mark.parametrize("X", [X2D, X3D], ids=["table", "windows"])
def test_units_of_a_channel_do_not_matter_case_d4(make, y, X):
    """Each channel is centred and scaled inside."""
    factors = np.array([1.0, 1e3, 1e-3])
    shifts = np.array([0.0, 5.0, -7.0])
    if X.ndim == 2:
        factors, shifts = np.tile(factors, 24), np.tile(shifts, 24)
    rescaled = X * factors + shifts
    expected = outputs(make().fit(X, y), X)
    np.testing.assert_allclose(
        outputs(make().fit(rescaled, y), rescaled), expected, rtol=1e-5, atol=1e-6
    )
