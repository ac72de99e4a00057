"""Precision, degenerate shapes and degenerate numbers."""

import itertools

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal

from sklearn_restf import (
    ResidualTransformerClassifier,
    ResidualTransformerRegressor,
    diagnose,
)
from sklearn_restf._diagnostics.singular_values import singular_values, spectra
from sklearn_restf._model.initialization import build_module, initial_state
from sklearn_restf._model.module import ACTIVATIONS, ModuleConfig

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


# --- softmax ------------------------------------------------------------------------------------


def module_with(query, key, *, T=4, D=3, n_heads=1, causal=False, pooling="none"):
    """Return a module with random weights but for queries and keys, in float64."""
    config = ModuleConfig(
        n_tokens=T, token_width=D, d_model=D, n_outputs=1, n_features=D, embedding="none",
        d_qk=D, d_ff=4, max_tokens=T, pooling=pooling, residual_beta=0.5, causal=causal,
    )  # fmt: skip
    state = initial_state(config, np.random.RandomState(0), init="gaussian", init_scale=1.0)
    state["blocks.0.query"], state["blocks.0.key"] = query, key
    return build_module(config, state), state


@pytest.mark.parametrize("magnitude", [1e3, 1e30, 1e150])
@pytest.mark.parametrize("pooling", ["none", "mean", "last", "flatten"])
def test_huge_logits_choose_one_token(magnitude, pooling):
    module, state = module_with(magnitude * np.eye(3), magnitude * np.eye(3), pooling=pooling)
    x = torch.from_numpy(normal(2, 4, 3))
    Z = module.layers(x)[0].Z.detach().numpy()
    F = x.numpy()
    chosen = np.take_along_axis(F, (F @ F.swapaxes(1, 2)).argmax(axis=2)[..., None], axis=1)
    assert_allclose(Z, 0.5 * F + chosen @ state["blocks.0.value"], rtol=1e-12, atol=1e-14)
    module(x).sum().backward()
    assert all(torch.isfinite(parameter.grad).all() for parameter in module.parameters())


@pytest.mark.parametrize("causal", [False, True])
def test_equal_logits_average_the_tokens(causal):
    module, state = module_with(np.zeros((3, 3)), normal(3, 3), causal=causal)
    F = normal(2, 4, 3)
    Z = module.layers(torch.from_numpy(F))[0].Z.detach().numpy()
    mean = (
        np.cumsum(F, axis=1) / np.arange(1, 5)[:, None] if causal else F.mean(axis=1, keepdims=True)
    )
    assert_allclose(Z, 0.5 * F + mean @ state["blocks.0.value"], rtol=1e-12, atol=1e-14)


# --- degenerate shapes --------------------------------------------------------------------------


def test_a_single_token_attends_to_itself():
    module, state = module_with(normal(3, 3), normal(3, 3, seed=1), T=1)
    F = normal(5, 1, 3)
    Z = module.layers(torch.from_numpy(F))[0].Z.detach().numpy()
    assert_allclose(Z, 0.5 * F + F @ state["blocks.0.value"], rtol=1e-12)


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


# --- singular values ----------------------------------------------------------------------------


def with_singular_values(values, T, seed=0):
    """Return a matrix (T, d) with the given singular values."""
    rng = np.random.default_rng(seed)
    d = len(values)
    U, V = (np.linalg.qr(rng.standard_normal((size, d)))[0] for size in (T, d))
    return U * values @ V.T


@pytest.mark.parametrize("smallest", [1e-4, 1e-8, 1e-12, 1e-14])
@pytest.mark.parametrize("unit", [1.0, 1e-200, 1e200])
def test_small_singular_values_are_measured_right(smallest, unit):
    values = np.array([1.0, 0.1, smallest])
    matrix = with_singular_values(values, 5) * unit
    # the entries themselves are rounded to 1.1e-16 of the norm
    tolerance = 5e-16 / smallest + 1e-12
    assert_allclose(singular_values(matrix)[-1] / unit, smallest, rtol=tolerance)
    found = spectra([matrix])
    assert_allclose(found.condition_ratio[0], smallest**2, rtol=2 * tolerance)


@pytest.mark.parametrize("smallest", [1e-6, 1e-12, 1e-14])
def test_small_singular_values_are_measured_right_in_a_model(smallest):
    module, _ = module_with(normal(3, 3), normal(3, 3))
    with torch.no_grad():
        module.blocks[0].value.zero_()  # Z = residual_beta * F
    x = np.stack([with_singular_values([1.0, 0.1, smallest], 4, seed) for seed in range(3)])
    found = diagnose(module, x)
    assert_allclose(found.sigma_min, 0.5 * smallest, rtol=5e-16 / smallest + 1e-12)
    assert_allclose(found.norm, 0.5)
