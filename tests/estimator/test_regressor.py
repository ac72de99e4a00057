"""The regressor: targets in, predictions out, and every option of the model."""

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_diabetes
from sklearn.metrics import r2_score

from sklearn_restf import ResidualTransformerRegressor
from tests.builders import X2, X2D, X3, X3D, YR, make_regressor

DIABETES = load_diabetes(return_X_y=True)


# --- targets ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("scale", "shift"), [(1e6, 1e8), (1e-9, 0.0), (-3.0, 7.0)])
@pytest.mark.parametrize("parameters", [{}, {"learning_rate": 0.02}, {"early_stopping": True}])
def test_prediction_follows_the_units_of_the_target(scale, shift, parameters):
    one = make_regressor(**parameters).fit(X2D, YR)
    other = make_regressor(**parameters).fit(X2D, scale * YR + shift)
    expected = scale * one.predict(X2D) + shift
    if scale > 0:  # the sign of y is not a symmetry of the model
        np.testing.assert_allclose(other.predict(X2D), expected, rtol=1e-6)
        np.testing.assert_allclose(other.loss_curve_, one.loss_curve_, rtol=1e-6)
    else:
        assert other.score(X2D, scale * YR + shift) > 0.1


def test_outputs_are_weighed_equally_whatever_their_units():
    Y = np.c_[YR, 1e5 * YR + 3e5]
    prediction = make_regressor(max_iter=60).fit(X2D, Y).predict(X2D)
    one, other = (r2_score(Y[:, i], prediction[:, i]) for i in range(2))
    assert one > 0.5
    assert other > 0.5


@pytest.mark.parametrize("columns", [1, 2, 5])
def test_shape_of_predictions_is_that_of_the_target(columns):
    Y = np.stack([YR * (i + 1) for i in range(columns)], axis=1)
    if columns == 1:
        Y = Y.ravel()
    estimator = make_regressor().fit(X2D, Y)
    assert estimator.predict(X2D).shape == Y.shape
    assert estimator.predict(X2D[:1]).shape == Y[:1].shape
    assert estimator.predict(X2D).dtype == np.float64
    assert estimator.n_outputs_ == columns


def test_score_is_r2_with_weights():
    estimator = make_regressor().fit(X2D, YR)
    weight = np.arange(64.0)
    expected = r2_score(YR, estimator.predict(X2D), sample_weight=weight)
    assert estimator.score(X2D, YR, sample_weight=weight) == pytest.approx(expected)


def test_scalar_weight_is_one_weight_for_all():
    """As in scikit-learn's own estimators."""
    one, other = make_regressor().fit(X2D, YR, sample_weight=3.0), make_regressor().fit(X2D, YR)
    assert one.loss_curve_ == other.loss_curve_


def test_targets_with_three_axes_are_refused():
    with pytest.raises(ValueError, match="y"):
        make_regressor().fit(X3D, X3D)


@pytest.mark.parametrize("y", [["a", "b"] * 32, [{}] * 64, np.full(64, 1 + 1j)], ids=str)
def test_targets_that_are_no_numbers_are_refused(y):
    with pytest.raises((ValueError, TypeError)):
        make_regressor().fit(X2D, y)


# --- quality ---------------------------------------------------------------------------------


def test_defaults_learn_a_real_table():
    X, y = DIABETES
    estimator = ResidualTransformerRegressor(random_state=0).fit(X[::2], y[::2])
    assert estimator.score(X[1::2], y[1::2]) > 0.35


def test_defaults_learn_an_interaction():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 6))
    y = X[:, 0] * X[:, 1] + np.sin(2 * X[:, 2])
    estimator = ResidualTransformerRegressor(random_state=0, max_iter=400, tol=None)
    assert estimator.fit(X[:300], y[:300]).score(X[300:], y[300:]) > 0.6


# --- options of the model --------------------------------------------------------------------

OPTIONS = [
    {"residual_beta": 0.0},
    {"residual_beta": 0.5},
    {"residual_beta": 2.0},
    {"ffn_residual_beta": 0.0},
    {"residual_beta": 0.0, "ffn_residual_beta": 1.0},
    {"n_layers": 3},
    {"n_heads": 4, "d_model": 8},
    {"n_heads": 2, "d_model": 8, "d_qk": 3},
    {"d_model": 5},
    {"d_qk": 1},
    {"d_ff": 1},
    {"d_ff": 64},
    {"activation": "gelu"},
    {"activation": "gelu_tanh"},
    {"activation": "tanh"},
    {"activation": "leaky_relu"},
    {"activation": "identity"},
    {"layer_norm": True},
    {"layer_norm": True, "n_layers": 2, "n_heads": 2, "d_model": 8},
    {"causal": True},
    {"causal": True, "pooling": "last"},
    {"pooling": "mean", "positional_encoding": "sinusoidal"},
    {"pooling": "mean", "positional_encoding": "learned"},
    {"pooling": "flatten"},
    {"pooling": "last"},
    {"init": "xavier"},
    {"init_scale": 0.1},
    {"alpha": 0.0},
    {"standardize": False},
    {"learning_rate": "theory"},
]


@pytest.mark.parametrize("parameters", OPTIONS, ids=str)
@pytest.mark.parametrize("X", [X2D, X3D], ids=["table", "windows"])
def test_every_option_trains(X, parameters):
    """To a lower loss than that of the mean, 1/2, and to another model than the default."""
    if X.ndim == 3 and parameters.get("n_heads", 1) > 1:
        parameters = {"d_model": 8, **parameters}
    estimator = make_regressor(**{"max_iter": 60, "alpha": 1e-3, **parameters}).fit(X, YR)
    assert estimator.loss_ < 0.9 * estimator.loss_curve_[0]
    assert np.isfinite(estimator.predict(X)).all()
    if X.ndim == 3 or "activation" in parameters:
        default = make_regressor(max_iter=60, alpha=1e-3).fit(X, YR)
        same = parameters == {"pooling": "flatten"} and X.ndim == 3
        assert (estimator.loss_curve_ == default.loss_curve_) == same


@pytest.mark.parametrize("n_tokens", [1, 2, 5, 72, "auto"])
def test_groups_of_features(n_tokens):
    estimator = make_regressor(n_tokens=n_tokens, max_iter=60).fit(X2D, YR)
    assert estimator.n_tokens_ == (4 if n_tokens == "auto" else n_tokens)
    assert estimator.score(X2D, YR) > 0.3


@pytest.mark.parametrize("p", [1, 2, 7])
def test_narrow_tables(p):
    estimator = make_regressor(max_iter=60).fit(X2D[:, -p:], X2D[:, -1])
    assert estimator.n_tokens_ == min(p, 4)
    assert estimator.score(X2D[:, -p:], X2D[:, -1]) > 0.5


def test_order_of_tokens_is_seen_only_where_something_tells_it():
    permuted = X3D[:, np.random.default_rng(0).permutation(24)]
    blind = make_regressor(pooling="mean").fit(X3D, YR)
    np.testing.assert_allclose(blind.predict(permuted), blind.predict(X3D), rtol=1e-7, atol=1e-9)
    for parameters in (
        {"pooling": "flatten"},
        {"pooling": "last"},
        {"pooling": "mean", "positional_encoding": "sinusoidal"},
        {"pooling": "mean", "positional_encoding": "learned"},
        {"pooling": "mean", "causal": True},
    ):
        estimator = make_regressor(**parameters).fit(X3D, YR)
        assert not np.allclose(estimator.predict(permuted), estimator.predict(X3D))


def test_zero_scale_tokens_without_standardisation():
    """The paper's setting: tokens go in as they are."""
    raw = make_regressor(standardize=False).fit(X3D, YR)
    scaled = make_regressor(standardize=False).fit(2 * X3D, YR)
    assert raw.loss_curve_ != scaled.loss_curve_
    inside = [make_regressor().fit(c * X3D, YR).loss_curve_ for c in (1, 2)]
    np.testing.assert_allclose(*inside, rtol=1e-9)


def test_changing_parameters_after_fit_does_not_change_predictions():
    """What was fitted is what predicts."""
    estimator = make_regressor(token_dim=3).fit(X2D, YR)
    before = estimator.predict(X2D)
    estimator.set_params(residual_beta=0.0, n_layers=4, d_ff=99, activation="tanh", alpha=7.0)
    estimator.set_params(standardize=False, causal=True, layer_norm=True, dtype="float32")
    np.testing.assert_array_equal(estimator.predict(X2D), before)
    estimator.set_params(chunk_size=5)
    np.testing.assert_allclose(estimator.predict(X2D), before, rtol=1e-9)
    assert estimator.set_params(pooling="mean").score(X2D, YR) == r2_score(YR, before)


def test_module_predicts_what_the_estimator_predicts():
    import torch

    y = (YR - YR.mean()) / YR.std()
    estimator = make_regressor(standardize=False).fit(X3D, y)
    with torch.no_grad():
        output = estimator.module_(torch.from_numpy(X3D))[:, 0].numpy()
    np.testing.assert_allclose(estimator.predict(X3D), output, rtol=1e-7, atol=1e-12)
    estimator.module_.readout.data.zero_()  # a copy
    np.testing.assert_allclose(estimator.predict(X3D), output, rtol=1e-7, atol=1e-12)


@pytest.mark.parametrize("X", [X2D, X3D], ids=["table", "windows"])
def test_targets_of_different_scale_are_fitted_equally_well_case_d17(X):
    Y = np.c_[YR, 1e5 * YR + 3e5]
    estimator = make_regressor(max_iter=100).fit(X, Y)
    predictions = estimator.predict(X)
    assert predictions.shape == (64, 2)
    assert estimator.n_outputs_ == 2
    first, second = r2_score(Y, predictions, multioutput="raw_values")
    assert first > 0.5
    assert abs(first - second) < 0.1
    frame = pd.DataFrame(Y, columns=["a", "b"])
    from_frame = make_regressor(max_iter=100).fit(X, frame).predict(X)
    np.testing.assert_allclose(from_frame, predictions, rtol=1e-7)


@pytest.mark.parametrize("n", [3, 32])
@pytest.mark.parametrize("X", [X2, X3], ids=["table", "windows"])
@pytest.mark.parametrize(
    "y",
    [
        np.full(32, 5000, "float32"),
        np.full(32, 101325.0),
        np.full(32, 101325.1, "float32"),
        np.full(32, 7, int),
        np.full(32, 1e-12),
        np.full(32, -1e20),
        np.zeros(32),
        np.full((32, 2), [0.1, 1e9]),
    ],
    ids=["5000", "101325", "101325.1", "int", "tiny", "huge", "zero", "two outputs"],
)
def test_constant_target_is_predicted_exactly_case_h10(y, X, n):
    y = y[:n]
    estimator = make_regressor().fit(X[:n], y)
    predictions = estimator.predict(X)
    np.testing.assert_allclose(
        predictions, np.broadcast_to(y[0], predictions.shape), rtol=1e-6, atol=1e-18
    )
    assert np.isfinite(estimator.loss_curve_).all()
    assert estimator.convergence_diagnostics_ is not None
    assert estimator.score(X[:n], y) in (0.0, 1.0)


@pytest.mark.parametrize("n", [3, 32])
@pytest.mark.parametrize("early_stopping", [False, True])
def test_nearly_constant_target_stays_near_case_h10(n, early_stopping):
    """A few units in the last place of single precision."""
    y = (5000 + 1e-3 * np.random.default_rng(0).normal(size=n)).astype("float32")
    predictions = make_regressor(early_stopping=early_stopping).fit(X2[:n], y).predict(X2)
    assert (predictions >= y.min() - 1).all()
    assert (predictions <= y.max() + 1).all()


def test_one_constant_output_beside_a_varying_one_case_h10():
    Y = np.c_[np.full(64, 101325.0), YR]
    estimator = make_regressor(max_iter=100).fit(X2D, Y)
    predictions = estimator.predict(X2D)
    np.testing.assert_allclose(predictions[:, 0], 101325.0, rtol=1e-6)
    assert np.corrcoef(predictions[:, 1], YR)[0, 1] > 0.7
