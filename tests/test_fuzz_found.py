"""Faults that the randomised search found, each by the smallest call that showed it."""

import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from numpy.testing import assert_allclose

from sklearn_restf import (
    ResidualTransformerClassifier,
    ResidualTransformerRegressor,
    ResidualTransformerRegressorCV,
)
from sklearn_restf._data.arrays import validating
from sklearn_restf._data.targets import read_sample_weight
from sklearn_restf._data.tokens import TokenLayout
from sklearn_restf._diagnostics.singular_values import spectra

SHORT = {"max_iter": 3, "tol": None, "d_ff": 4, "random_state": 0}
X = np.random.default_rng(0).standard_normal((6, 4))
LABELS = np.array([0, 1, 0, 1, 0, 1])

both = pytest.mark.parametrize(
    "estimator",
    [ResidualTransformerRegressor(**SHORT), ResidualTransformerClassifier(**SHORT)],
    ids=["regressor", "classifier"],
)


@both
@pytest.mark.parametrize(
    "weight",
    ["heavy", ["a"] * 6, np.full(6, 1j), np.ones((6, 2)), {}],
    ids=["a word", "words", "complex", "two columns", "a dict"],
)
def test_unusable_weights_are_named(estimator, weight):
    with pytest.raises((ValueError, TypeError), match="sample_weight"):
        estimator.fit(X, LABELS, weight)


@both
@pytest.mark.parametrize("y", [np.full(6, 1j), np.zeros((6, 2, 2, 2)), 3.0], ids=str)
def test_unusable_targets_are_named(estimator, y):
    with pytest.raises((ValueError, TypeError), match=r"\by\b"):
        estimator.fit(X, y)


@both
@pytest.mark.parametrize(
    "bad",
    [np.zeros((0, 3)), np.zeros((4, 0)), np.zeros(6), X * 1j, [["a", "b"]] * 6, pd.Series(X[:, 0])],
    ids=["no rows", "no columns", "1-D", "complex", "words", "a series"],
)
def test_unusable_samples_are_named(estimator, bad):
    with pytest.raises((ValueError, TypeError), match=r"\bX\b"):
        estimator.fit(bad, LABELS)


def test_validation_keeps_messages_that_name_their_argument():
    with pytest.raises(ValueError, match=r"^X is odd$"), validating("X"):
        raise ValueError("X is odd")
    with pytest.raises(TypeError, match=r"^X_val: X is odd$"), validating("X_val"):
        raise TypeError("X is odd")


# numbers whose sum, a quick test for infinity, is infinity minus infinity
HUGE = np.array([1.7e308, 1.7e308, 1.0, -1.7e308, -1.7e308, 1.0, 1.7e308, -1.7e308] * 2)


@pytest.mark.parametrize("form", [(16, 1), (4, 2, 2)])
def test_huge_samples_are_used_or_refused_without_a_warning(form):
    values = HUGE.reshape(form)
    try:
        model = ResidualTransformerRegressor(**SHORT).fit(values, np.arange(len(values)))
    except ValueError as error:
        assert "too large" in str(error)  # noqa: PT017
    else:
        assert np.isfinite(model.predict(values)).all()


def test_huge_targets_are_learned_without_a_warning():
    X = np.arange(16.0)[:, None]
    assert np.isfinite(ResidualTransformerRegressor(**SHORT).fit(X, HUGE).predict(X)).all()


def test_targets_whose_spread_overflows_are_refused():
    with pytest.raises(ValueError, match="y contains values too large"):
        ResidualTransformerRegressor(**SHORT).fit(X, [1.7e308, *[-1.7e308] * 5])


def test_weights_of_any_size_are_read_without_a_warning():
    weight = np.array([1.7e308, 1.7e308, 5e-324, 0.0])
    assert_allclose(read_sample_weight(weight, 4, ResidualTransformerRegressor()), [1, 1, 0, 0])


@both
def test_samples_that_overflow_in_units_of_the_training_samples_are_refused(estimator):
    estimator.fit(X * 1e-300, LABELS)
    with pytest.raises(ValueError, match="X is so far from the training samples"):
        estimator.predict(X * 1e10)


def test_standardising_overflows_in_silence():
    layout = TokenLayout("table", 1, 1, 1, np.array([-1e308]), np.array([1e-300]))
    assert np.isinf(layout.standardise(np.array([[1.7e308]])))


def test_validation_targets_that_overflow_in_units_of_y_are_refused():
    model = ResidualTransformerRegressor(**SHORT)
    with pytest.raises(ValueError, match="y_val is so far from"):
        model.fit(X, X[:, 0] * 1e-300, X_val=X, y_val=X[:, 0] * 1e10)


def test_a_spectrum_at_the_edge_of_range_overflows_in_silence():
    assert spectra([np.full((3, 3), 1.7e308)]).norm[0] == np.inf


def test_bfloat16_targets():
    y = torch.arange(6, dtype=torch.bfloat16)
    found = ResidualTransformerRegressor(**SHORT).fit(X, y).predict(X)
    assert_allclose(found, ResidualTransformerRegressor(**SHORT).fit(X, y.float()).predict(X))
    labels = torch.tensor(LABELS).to(torch.bfloat16)
    assert set(ResidualTransformerClassifier(**SHORT).fit(X, labels).classes_) == {0.0, 1.0}


@pytest.mark.parametrize("labels", [LABELS, np.arange(6) % 3], ids=["two", "three"])
@pytest.mark.parametrize("loss", ["log_loss", "squared_error"])
@pytest.mark.parametrize("small", [1e-300, 5e-324])
def test_a_class_of_next_to_no_weight(labels, loss, small):
    weight = np.where(labels == 0, small, 1.0)
    model = ResidualTransformerClassifier(**SHORT, loss=loss).fit(X, labels, weight)
    probabilities = model.predict_proba(X)
    assert np.isfinite(probabilities).all()
    if loss == "log_loss":
        assert (model.predict(X) > 0).all()
    again = ResidualTransformerClassifier(**SHORT, loss=loss).fit(X, labels, 1.0 - weight)
    assert np.isfinite(again.predict_proba(X)).all()


def test_tensors_with_gradients_as_targets_and_weights():
    windows, y = X.reshape(6, 2, 2), torch.tensor(X[:, :2], requires_grad=True)
    weight = torch.ones(6, requires_grad=True)
    model = ResidualTransformerRegressor(**SHORT, pooling="none")
    expected = model.fit(windows, X[:, :2]).predict(windows)
    assert_allclose(model.fit(windows, y, weight).predict(windows), expected)
    samples = [*windows]
    expected = model.fit(samples, [*X[:, :2]]).predict(samples)
    assert_allclose(model.fit(samples, [*y]).predict(samples), expected)


def test_predictions_beyond_float64_are_refused():
    y = np.array([1.7e308, -1.7e308, 1.7e308, -1.7e308, 1.7e308, -1.7e308])
    model = ResidualTransformerRegressor(**SHORT, standardize=False).fit(X, y)
    with pytest.raises(ValueError, match="overflow float64 in the units of y"):
        model.predict(1e6 * X)


@pytest.mark.parametrize("labels", [["a"] * 6, ["a", "b"] * 3], ids=["one", "two"])
def test_class_weights_that_leave_nothing_are_refused(labels):
    model = ResidualTransformerClassifier(**SHORT, class_weight={"a": 0.0, "b": 0.0})
    with pytest.raises(ValueError, match=r"class_weight=.* leaves no sample"):
        model.fit(X, labels)


@both
def test_unusable_validation_samples_are_named(estimator):
    for bad in (X * np.nan, X * 1j, X[0], X[:, :2]):
        with pytest.raises(ValueError, match="X_val"):
            estimator.fit(X, LABELS, X_val=bad, y_val=LABELS)
    for windows in (X.reshape(6, 2, 2), X.reshape(6, 4, 1), list(X.reshape(6, 2, 2))):
        with pytest.raises(ValueError, match=r"X_val: .* was fitted on"):
            estimator.fit(X, LABELS, X_val=windows, y_val=LABELS)
    with pytest.raises(ValueError, match="X_val has 6, y_val has 4"):
        estimator.fit(X, LABELS, X_val=X, y_val=LABELS[:4])


@pytest.mark.parametrize("name", ["alpha", "residual_beta", "ffn_residual_beta"])
def test_parameters_beyond_float32_are_refused_in_float32(name):
    with pytest.raises(ValueError, match=rf"{name}=1e\+300 is too large for training in float32"):
        ResidualTransformerRegressor(**SHORT, **{name: 1e300}, dtype="float32").fit(X, LABELS)


@pytest.mark.parametrize("name", ["init_scale", "residual_beta", "ffn_residual_beta"])
@pytest.mark.parametrize("diagnostics", [True, "full"])
@pytest.mark.parametrize("pooling", ["last", "none"])
def test_diagnostics_at_the_edge_of_range(name, diagnostics, pooling, capfd):
    parameters = SHORT | {name: 1e300, "diagnostics": diagnostics, "pooling": pooling}
    windows = X.reshape(6, 2, 2)
    y = X[:, :2] if pooling == "none" else LABELS
    try:
        ResidualTransformerRegressor(**parameters).fit(windows, y)
    except ValueError as error:
        assert "diverged" in str(error)  # noqa: PT017
    assert capfd.readouterr() == ("", "")


def test_diagnostics_of_a_model_that_does_not_move():
    model = ResidualTransformerRegressor(**SHORT, learning_rate=1e-300)
    model.fit(X, LABELS, X_val=X, y_val=LABELS)
    model.fit(X * 1e300, LABELS * 1e300)


def test_sizes_beyond_memory():
    with pytest.raises(MemoryError, match="d_ff"):
        ResidualTransformerRegressor(**SHORT | {"d_ff": 2**62}).fit(X, LABELS)


def test_a_search_with_huge_targets_says_nothing():
    y = np.array([1e300, -1e300, 2.0, 1e299, 0.0, 1e300])
    search = ResidualTransformerRegressorCV([0.0, 1.0], cv=2, **SHORT).fit(X, y)
    assert np.isfinite(search.predict(X)).all()


def test_a_search_counts_models_not_messages():
    def talkative(estimator, X, y):
        warnings.warn("one", UserWarning, stacklevel=1)
        warnings.warn("two", UserWarning, stacklevel=1)
        return 0.0

    search = ResidualTransformerRegressorCV([0.0, 1.0], cv=2, scoring=talkative, **SHORT)
    with pytest.warns(UserWarning, match=r"^4 of 4 cross-validation .* the first one says: one$"):
        search.fit(X, LABELS)
