"""The ONNX graph of an estimator answers as the estimator does."""

import json

import numpy as np
import pandas as pd
import pytest
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from sklearn_restf import ResidualTransformerClassifier, ResidualTransformerRegressor
from sklearn_restf.onnx import to_onnx
from tests.builders import ACTIVATIONS

onnx = pytest.importorskip("onnx", reason="the extra onnx is not installed")
runtime = pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")

FAST = {"max_iter": 5, "tol": None, "random_state": 0}


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def answer(model, X):
    """Run a model on onnxruntime: its outputs by name."""
    session = runtime.InferenceSession(model.SerializeToString())
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, {"X": X}), strict=True))


def assert_same_regression(regressor, X, dtype="float64", rtol=1e-5):
    expected = regressor.predict(X)
    model = to_onnx(regressor, dtype=dtype)
    for rows in (X, X[:1]):  # any number of samples
        found = answer(model, rows.astype(dtype))["variable"]
        assert found.dtype == dtype
        np.testing.assert_allclose(
            found, expected[: len(rows)], rtol=rtol, atol=rtol * np.ptp(expected)
        )


def assert_same_classification(classifier, X, dtype="float64"):
    model = to_onnx(classifier, dtype=dtype)
    found = answer(model, X.astype(dtype))
    np.testing.assert_array_equal(found["label"], classifier.predict(X))
    assert found["probabilities"].dtype == dtype
    np.testing.assert_allclose(found["probabilities"], classifier.predict_proba(X), atol=1e-5)


MODELS = [
    {},
    {"n_layers": 2, "residual_beta": 0.5, "ffn_residual_beta": 0.25},
    {"n_heads": 2, "d_model": 8, "d_qk": 3},
    {"layer_norm": True, "n_heads": 3, "causal": True, "activation": "gelu_tanh"},
    {"layer_norm": True, "d_model": 4, "n_layers": 2},
    {"causal": True, "pooling": "last", "positional_encoding": "sinusoidal"},
    {"positional_encoding": "learned", "pooling": "mean"},
    {"pooling": "flatten", "standardize": False},
]


@pytest.mark.parametrize("parameters", MODELS, ids=str)
def test_windows(rng, parameters):
    X = 1000 + 5 * rng.normal(size=(30, 7, 6))
    regressor = ResidualTransformerRegressor(**FAST, **parameters)
    regressor.fit(X if regressor.standardize else X - 1000, 1e4 + 100 * X[:, 0, 0])
    assert_same_regression(regressor, X if regressor.standardize else X - 1000)


@pytest.mark.parametrize("activation", list(ACTIVATIONS))
@pytest.mark.parametrize("layer_norm", [False, True])
def test_every_activation(rng, activation, layer_norm):
    X = 3 * rng.normal(size=(40, 5, 4))
    regressor = ResidualTransformerRegressor(
        activation=activation, layer_norm=layer_norm, **FAST
    ).fit(X, X[:, 0, 0])
    assert_same_regression(regressor, X)
    assert_same_regression(regressor, X, "float32")


@pytest.mark.parametrize("n_features", [1, 3, 8, 11, 20])
@pytest.mark.parametrize("n_tokens", ["auto", 1])
def test_tables(rng, n_features, n_tokens):
    X = rng.normal(size=(40, n_features)) * 10.0 ** rng.integers(-3, 4, n_features) + 50
    regressor = ResidualTransformerRegressor(n_tokens=n_tokens, **FAST).fit(X, X[:, 0])
    assert_same_regression(regressor, X)


def test_constant_feature_and_constant_target(rng):
    X = rng.normal(size=(20, 5))
    X[:, 2] = 7.0
    regressor = ResidualTransformerRegressor(**FAST).fit(X, np.full(20, 3.5))
    np.testing.assert_array_equal(answer(to_onnx(regressor), X)["variable"], 3.5)


def test_several_outputs(rng):
    X = rng.normal(size=(30, 4, 3))
    regressor = ResidualTransformerRegressor(**FAST).fit(X, X[:, 0] * [1, 100, 1e6])
    assert_same_regression(regressor, X)
    X = rng.normal(size=(30, 6))
    assert_same_regression(ResidualTransformerRegressor(**FAST).fit(X, X[:, :2]), X)


def test_one_prediction_per_token(rng):
    X = rng.normal(size=(30, 4, 3))
    per_token = ResidualTransformerRegressor(pooling="none", **FAST)
    assert_same_regression(per_token.fit(X, X[..., 0]), X)
    assert_same_regression(per_token.fit(X, X[..., :2]), X)


def test_flat_windows_keep_the_form_of_fit(rng):
    windows = rng.normal(size=(30, 4, 3))
    flat = windows.reshape(30, 12)
    regressor = ResidualTransformerRegressor(token_dim=3, **FAST)
    assert_same_regression(regressor.fit(flat, flat[:, 0]), flat)
    assert_same_regression(regressor.fit(windows, flat[:, 0]), windows)


def test_float32_of_a_channel_far_from_zero(rng):
    """Standardised in float64: the mean of a pressure in Pa costs no digits."""
    X = (101_325 + rng.normal(size=(40, 6))).astype(np.float32)
    regressor = ResidualTransformerRegressor(**FAST).fit(X, X[:, 0].astype(np.float64) - 101_325)
    assert_same_regression(regressor, X, "float32")


@pytest.mark.parametrize(
    "labels",
    [
        np.array(["no", "yes"]),
        np.array(["ash", "birch", "cedar"], dtype=object),
        np.array([-1, 1]),
        np.array([3, 5, 8], dtype=np.uint8),
        np.array([False, True]),
        np.array([1.0, 2.0, 5.0]),
        np.array(["only"]),
    ],
    ids=lambda labels: f"{labels.dtype}-{len(labels)}",
)
@pytest.mark.parametrize("loss", ["log_loss", "squared_error"])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_labels_and_probabilities(rng, labels, loss, dtype):
    X = rng.normal(size=(60, 9))
    classifier = ResidualTransformerClassifier(loss=loss, **FAST)
    classifier.fit(X, labels[np.arange(60) % len(labels)])
    assert_same_classification(classifier, X, dtype)


def test_classifier_of_windows(rng):
    X = rng.normal(size=(60, 4, 3))
    assert_same_classification(
        ResidualTransformerClassifier(**FAST).fit(X, np.arange(60) % 3), 3 * X
    )


def test_confident_and_undecided_probabilities(rng):
    """Probabilities next to 0 and 1, and rows none of whose squared-error scores is positive."""
    X = rng.normal(size=(60, 4))
    for loss in ("log_loss", "squared_error"):
        for n_classes in (2, 3):
            classifier = ResidualTransformerClassifier(loss=loss, **FAST)
            classifier.fit(X, np.arange(60) % n_classes)
            assert_same_classification(classifier, 100 * X)


def test_loss_is_that_of_the_fit(rng):
    X = rng.normal(size=(60, 4))
    classifier = ResidualTransformerClassifier(**FAST).fit(X, np.arange(60) % 3)
    assert_same_classification(classifier.set_params(loss="squared_error"), X)


def test_best_weights_are_converted_under_early_stopping(rng):
    X = rng.normal(size=(80, 5))
    regressor = ResidualTransformerRegressor(
        early_stopping=True, max_iter=60, tol=None, random_state=0
    ).fit(X, X[:, 0])
    assert_same_regression(regressor, X)


def test_file_and_description(rng, tmp_path):
    frame = pd.DataFrame(rng.normal(size=(30, 2)), columns=["depth", "température"])
    regressor = ResidualTransformerRegressor(**FAST).fit(frame, frame["depth"])
    returned = to_onnx(regressor, tmp_path / "model.onnx")
    model = onnx.load(tmp_path / "model.onnx")
    assert model == returned
    assert model.producer_name == "sklearn-restf"
    metadata = {entry.key: entry.value for entry in model.metadata_props}
    assert metadata["estimator"] == "ResidualTransformerRegressor"
    assert json.loads(metadata["feature_names_in"]) == ["depth", "température"]
    np.testing.assert_allclose(
        answer(model, frame.to_numpy())["variable"], regressor.predict(frame)
    )


def test_silent_and_without_traces(rng, capfd, random_state_unchanged):
    X = rng.normal(size=(30, 5))
    regressor = ResidualTransformerRegressor(**FAST).fit(X, X[:, 0])
    before = regressor.predict(X)
    first, second = to_onnx(regressor), to_onnx(regressor)
    assert first == second
    np.testing.assert_array_equal(regressor.predict(X), before)
    assert capfd.readouterr() == ("", "")


def test_ragged_is_refused_with_a_remedy(rng):
    X = [rng.normal(size=(length, 3)) for length in (2, 3, 4, 5)]
    regressor = ResidualTransformerRegressor(**FAST).fit(X, np.arange(4.0))
    with pytest.raises(ValueError, match=r"unequal lengths.*Fit on a 3-D array"):
        to_onnx(regressor)


def test_unusable_arguments(rng):
    X = rng.normal(size=(30, 5))
    with pytest.raises(NotFittedError):
        to_onnx(ResidualTransformerRegressor())
    regressor = ResidualTransformerRegressor(**FAST)
    pipeline = make_pipeline(StandardScaler(), regressor).fit(X, X[:, 0])
    with pytest.raises(TypeError, match=r"got Pipeline.*pipeline\[-1\]"):
        to_onnx(pipeline)
    with pytest.raises(ValueError, match="dtype must be 'float64' or 'float32', got 'float16'"):
        to_onnx(regressor, dtype="float16")
    classifier = ResidualTransformerClassifier(**FAST)
    classifier.fit(X, np.array(["2020-01-01", "2021-01-01"], dtype="M8[D]")[np.arange(30) % 2])
    with pytest.raises(ValueError, match="cannot hold labels"):
        to_onnx(classifier)
    classifier.fit(X, np.array([1, 2**63], dtype=np.uint64)[np.arange(30) % 2])  # hashes, say
    with pytest.raises(ValueError, match=r"cannot hold labels such as .*9223372036854775808"):
        to_onnx(classifier)


def test_missing_package_is_named(without):
    without("onnx")
    with pytest.raises(ImportError, match=r"pip install 'sklearn-restf\[onnx\]'"):
        to_onnx(ResidualTransformerRegressor())
