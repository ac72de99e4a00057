"""Precision, degenerate shapes and degenerate numbers."""

import itertools

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from sklearn_restf import (
    ResidualTransformerClassifier,
    ResidualTransformerRegressor,
)
from tests.builders import ACTIVATIONS

#: Largest difference between training in float32 and in float64, relative to the spread of y.
FLOAT32_TOLERANCE = 1e-4

SHORT = {"max_iter": 8, "tol": None, "d_ff": 5, "device": "cpu", "random_state": 0}


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


X3 = normal(20, 4, 3)
X2 = X3.reshape(20, 12)
Y = X3[:, 0, 0] + 0.5 * X3[:, 1, 1] ** 2
LABELS = np.digitize(Y, [0.0, 1.0])


def pieces(X):
    """Return samples of unequal length."""
    return [sample[: 1 + i % 4] for i, sample in enumerate(X)]


OPTIONS = [
    *({"activation": name} for name in ACTIVATIONS),
    *({"pooling": name} for name in ("mean", "last", "flatten")),
    *({"positional_encoding": name, "d_model": 4} for name in ("sinusoidal", "learned")),
    {"n_heads": 3},
    {"n_layers": 3},
    {"layer_norm": True, "n_layers": 2},
    {"causal": True},
    {"residual_beta": 0.0},
    {"ffn_residual_beta": 0.0},
    {"standardize": False},
    {"init": "xavier"},
    {"learning_rate": 0.01},
    {"learning_rate": "theory"},
    {"early_stopping": "last"},
    {"chunk_size": 3},
]


def name_of(value):
    return "-".join(f"{key}={item}" for key, item in value.items())


# --- float32 ------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", OPTIONS, ids=name_of)
@pytest.mark.parametrize("form", [np.array, pieces], ids=["windows", "ragged"])
def test_float32_agrees_with_float64(options, form):
    if form is pieces and options.get("pooling") == "flatten":
        pytest.skip("one weight per position needs samples of equal length")
    X = form(X3)
    models = [
        ResidualTransformerRegressor(**SHORT | {"pooling": "mean"} | options, dtype=dtype).fit(X, Y)
        for dtype in ("float32", "float64")
    ]
    low, high = (model.predict(X) for model in models)
    assert low.dtype == high.dtype == np.float64
    assert_allclose(low, high, atol=FLOAT32_TOLERANCE * Y.std(), rtol=0)
    assert_allclose(models[0].loss_curve_, models[1].loss_curve_, rtol=FLOAT32_TOLERANCE)


@pytest.mark.parametrize("form", [np.array, pieces], ids=["windows", "ragged"])
@pytest.mark.parametrize("layer_norm", [False, True])
def test_float32_agrees_with_float64_token_by_token(form, layer_norm):
    X, y = form(X3), [sample[:, 0] for sample in form(np.cumsum(X3, axis=1))]
    options = SHORT | {"pooling": "none", "layer_norm": layer_norm}
    low, high = (
        np.concatenate([*ResidualTransformerRegressor(**options, dtype=dtype).fit(X, y).predict(X)])
        for dtype in ("float32", "float64")
    )
    assert_allclose(low, high, atol=FLOAT32_TOLERANCE * np.concatenate(y).std(), rtol=0)


@pytest.mark.parametrize(
    "options", [{"n_tokens": 2}, {"d_qk": 2}, {"momentum": 0.0}, {"alpha": 0.0}], ids=name_of
)
def test_float32_agrees_with_float64_on_tables(options):
    low, high = (
        ResidualTransformerRegressor(**SHORT | options, dtype=dtype).fit(X2, Y).predict(X2)
        for dtype in ("float32", "float64")
    )
    assert_allclose(low, high, atol=FLOAT32_TOLERANCE * Y.std(), rtol=0)


@pytest.mark.parametrize("loss", ["log_loss", "squared_error"])
@pytest.mark.parametrize("y", [LABELS, LABELS > 0], ids=["three classes", "two classes"])
def test_float32_agrees_with_float64_on_classes(loss, y):
    low, high = (
        ResidualTransformerClassifier(**SHORT, loss=loss, dtype=dtype).fit(X3, y).predict_proba(X3)
        for dtype in ("float32", "float64")
    )
    assert_allclose(low, high, atol=FLOAT32_TOLERANCE)


# --- degenerate shapes --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n", "T", "D"), [shape for shape in itertools.product([1, 6], repeat=3) if 1 in shape]
)
@pytest.mark.parametrize("layer_norm", [False, True])
@pytest.mark.parametrize("pooling", ["mean", "last", "flatten", "none"])
def test_one_sample_one_token_one_feature(n, T, D, pooling, layer_norm):
    X = normal(n, T, D)
    y = normal(n, T) if pooling == "none" else normal(n)
    model = ResidualTransformerRegressor(**SHORT, pooling=pooling, layer_norm=layer_norm).fit(X, y)
    predicted = model.predict(X)
    assert predicted.shape == y.shape
    assert np.isfinite(predicted).all()
    assert model.loss_curve_[-1] <= model.loss_curve_[0]
    if y.size == 1:
        assert_allclose(predicted, y)


def test_one_feature_in_a_table():
    x = np.linspace(-1, 1, 30)[:, None]
    model = ResidualTransformerRegressor(max_iter=100, tol=None, random_state=0).fit(
        x, 3 * x[:, 0] + 1
    )
    assert model.score(x, 3 * x[:, 0] + 1) > 0.99


# --- degenerate channels ------------------------------------------------------------------------


@pytest.mark.parametrize("value", [0.0, 0.1, 1e9, -1e300, 5e-324])
@pytest.mark.parametrize("form", [np.array, pieces], ids=["windows", "ragged"])
def test_the_value_of_a_constant_channel_does_not_matter(form, value):
    def predictions(constant):
        X = X3.copy()
        X[:, :, 1] = constant
        return ResidualTransformerRegressor(**SHORT).fit(form(X), Y).predict(form(X))

    assert_allclose(predictions(value), predictions(1.0), rtol=1e-9, atol=1e-12)


def test_duplicated_channels_train_and_are_told_apart_from_nothing():
    X = X3[:, :, [0, 1, 1]]
    model = ResidualTransformerRegressor(**SHORT).fit(X, Y)
    assert model.loss_curve_[-1] < model.loss_curve_[0]
    assert_allclose(model.predict(X[:, :, [0, 2, 1]]), model.predict(X), rtol=1e-12)


# --- magnitudes ---------------------------------------------------------------------------------


@pytest.mark.parametrize("exponent", [-900, -300, 300, 900])
def test_units_of_x_and_y_do_not_matter(exponent):
    # a power of two: nothing is rounded
    unit = 2.0**exponent
    plain = ResidualTransformerRegressor(**SHORT).fit(X3, Y)
    scaled = ResidualTransformerRegressor(**SHORT).fit(X3 * unit, Y * unit)
    assert_allclose(scaled.loss_curve_, plain.loss_curve_, rtol=1e-9)
    assert_allclose(scaled.predict(X3 * unit) / unit, plain.predict(X3), rtol=1e-9)


def test_units_of_weights_do_not_matter():
    weight = np.random.default_rng(0).integers(1, 5, len(Y)).astype(float)
    curves = [
        ResidualTransformerRegressor(**SHORT).fit(X3, Y, weight * unit).loss_curve_
        for unit in (1.0, 2.0**-1000, 2.0**1000)
    ]
    assert_array_equal(curves[0], curves[1])
    assert_array_equal(curves[0], curves[2])
