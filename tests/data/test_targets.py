"""Validation of sample weights and targets."""

import warnings

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.exceptions import DataConversionWarning

from sklearn_restf import ResidualTransformerClassifier, ResidualTransformerRegressor
from sklearn_restf._data.arrays import RawTokens
from sklearn_restf._data.targets import read_sample_weight, read_y_numeric
from tests.builders import X2, X3, X6, YC, YR, both, make_classifier, make_regressor, spoiled
from tests.tools import recorded_warnings

NAME = "ResidualTransformerRegressor"


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def weights(sample_weight, n_samples=3, **options):
    return read_sample_weight(sample_weight, n_samples, ResidualTransformerRegressor(), **options)


def test_weights_default_to_one_and_are_scale_free():
    assert_array_equal(weights(None), [1, 1, 1])
    for scale in (1, 1e-320, 1e308, 7):
        assert_allclose(weights(scale * np.array([0.0, 0.5, 1.0])), [0, 0.5, 1], rtol=1e-2)
    assert_array_equal(weights([0, 1, 2]), [0, 0.5, 1])
    assert_array_equal(weights(pd.Series([True, False, True], index=[5, 7, 9])), [1, 0, 1])


@pytest.mark.parametrize(
    ("sample_weight", "words"),
    [
        ([1, 1], r"sample_weight.shape == \(2,\), expected \(3,\)"),
        (np.ones((3, 1)), "Sample weights must be 1D array or scalar"),
        ([1, -1, 1], "Negative values in data passed to `sample_weight`"),
        ([1, np.nan, 1], "sample_weight contains NaN"),
        ([1, np.inf, 1], "sample_weight contains infinity"),
        ([0, 0, 0], "sample weights must not all be zero"),
        (["a", "b", "c"], "convert"),
    ],
)
def test_weights_refused(sample_weight, words):
    with pytest.raises(ValueError, match=words):
        weights(sample_weight)


def test_validation_weights_are_named():
    with pytest.raises(ValueError, match=r"sample_weight_val\.shape"):
        weights([1.0], input_name="sample_weight_val")


# --- targets ------------------------------------------------------------------------------------

ONE = RawTokens(np.ones((3, 2, 1)))
MANY = RawTokens(np.ones((6, 1)), np.array([1, 3, 2]))


def targets(y, tokens=ONE, per_token=False, input_name="y"):
    estimator = ResidualTransformerRegressor()
    return read_y_numeric(y, tokens, estimator, per_token=per_token, input_name=input_name)


@pytest.mark.parametrize(
    "form",
    [
        np.array,
        list,
        pd.Series,
        pl.Series,
        torch.tensor,
        lambda y: np.array(y, dtype=object),
        lambda y: np.array(y, dtype=np.int8),
        lambda y: np.array(y, dtype=">i4"),
    ],
)
def test_targets_of_every_kind(form):
    y = targets(form([1, 2, 4]))
    assert y.dtype == np.float64
    assert_array_equal(y, [1, 2, 4])


def test_several_targets_a_sample():
    y = normal(3, 2)
    for form in (np.array, pd.DataFrame, pl.DataFrame, torch.tensor, np.asfortranarray):
        assert_array_equal(targets(form(y)), y)


def test_a_column_is_a_vector_and_says_so():
    with pytest.warns(UserWarning, match="column-vector"):
        assert targets(np.ones((3, 1))).shape == (3,)


@pytest.mark.parametrize(
    ("y", "words"),
    [
        (None, f"This {NAME} estimator requires y to be passed"),
        ([1.0, 2.0], "inconsistent numbers of samples: X has 3, y has 2"),
        ([1.0, np.nan, 2.0], "y contains NaN"),
        ([1.0, np.inf, 2.0], "y contains infinity"),
        (["a", "b", "c"], "convert"),
        (np.ones((3, 2, 2)), "dim 3"),
    ],
)
def test_targets_refused(y, words):
    with pytest.raises(ValueError, match=words):
        targets(y)


def test_targets_per_token():
    y = normal(3, 2)
    assert_array_equal(targets(y, per_token=True), y)
    assert_array_equal(targets(y[..., None].tolist(), per_token=True), y[..., None])
    pieces = [np.array([1.0]), np.array([2.0, 3.0, 4.0]), np.array([5.0, 6.0])]
    assert_array_equal(targets(pieces, MANY, per_token=True), [1, 2, 3, 4, 5, 6])
    held = np.empty(3, dtype=object)  # as an index makes of a list
    held[:] = pieces
    assert_array_equal(targets(held, MANY, per_token=True), [1, 2, 3, 4, 5, 6])
    columns = [piece[:, None] for piece in pieces]
    assert_array_equal(targets(columns, MANY, per_token=True)[:, 0], [1, 2, 3, 4, 5, 6])


def test_tensors_that_are_no_arrays_are_refused_by_name():
    X, y = normal(3, 2), np.arange(3)
    empty = torch.empty(3, device="meta")  # nested tensors warn of being a prototype first
    with pytest.raises(TypeError, match="X: a tensor that NumPy cannot hold"):
        ResidualTransformerRegressor().fit(empty, y)
    for estimator in (ResidualTransformerRegressor(), ResidualTransformerClassifier()):
        with pytest.raises(TypeError, match="y: a tensor that NumPy cannot hold"):
            estimator.fit(X, empty)
        with pytest.raises(TypeError, match="sample_weight: a tensor that NumPy cannot hold"):
            estimator.fit(X, y, sample_weight=empty)


def test_padded_targets_per_token_ignore_what_is_padded():
    y = np.full((3, 4), np.nan)
    y[0, :1], y[1, :3], y[2, :2] = 1, 2, 3
    assert_array_equal(targets(y, MANY, per_token=True), [1, 2, 2, 2, 3, 3])
    y[1, 2] = np.nan
    with pytest.raises(ValueError, match="y contains NaN"):
        targets(y, MANY, per_token=True)


@pytest.mark.parametrize(
    ("y", "tokens", "words"),
    [
        (np.ones(3), ONE, r"y of shape \(3, 2\) or \(3, 2, n_outputs\).*got \(3,\)"),
        (np.ones((3, 3)), ONE, r"got \(3, 3\)"),
        (np.ones((2, 2)), ONE, r"got \(2, 2\)"),
        (np.ones((3, 2)), MANY, r"n_tokens >= 3; got \(3, 2\)"),
        (np.ones((2, 4)), MANY, "X has 3, y has 2"),
        ([np.ones(1), np.ones(3)], MANY, "X has 3, y has 2"),
        ([np.ones(1), np.ones(2), np.ones(2)], MANY, r"sample 1 has 3 tokens, but y\[1\].*\(2,\)"),
        ([np.ones(1), np.array([1, np.nan, 1]), np.ones(2)], MANY, "y contains NaN"),
    ],
)
def test_targets_per_token_refused(y, tokens, words):
    with pytest.raises(ValueError, match=words):
        targets(y, tokens, per_token=True)


def test_inputs_are_not_written_to():
    y, weight = normal(3, 2), np.ones(3)
    for array in (y, weight):
        array.flags.writeable = False
    assert_array_equal(targets(y, per_token=True), y)
    assert_array_equal(weights(weight), weight)


def test_missing_targets_are_refused_case_d15():
    target = pd.Series(YR).astype("Float64")
    target[3] = pd.NA
    with pytest.raises(ValueError, match="NaN"):
        make_regressor().fit(X6, target)
    labels = YC.astype(object)
    labels[3] = None
    with pytest.raises((ValueError, TypeError)) as caught:
        make_classifier().fit(X6, labels)
    assert "torch" not in str(caught.value).lower()


@both
@pytest.mark.parametrize("form", ["column", "frame", "series", "list"])
def test_shape_of_one_target_does_not_matter_case_d16(make, y, form):
    """The same losses and 1-d predictions; a column is pointed out once."""
    forms = {
        "column": y[:, None],
        "frame": pd.DataFrame({"target": y}),
        "series": pd.Series(y),
        "list": y.tolist(),
    }
    expected = make().fit(X2, y)
    with recorded_warnings() as caught:
        estimator = make().fit(X2, forms[form])
    columns = form in {"column", "frame"}
    assert [w.category for w in caught] == [DataConversionWarning] * columns
    assert estimator.loss_curve_ == expected.loss_curve_
    predictions = estimator.predict(X2)
    assert predictions.shape == (64,)
    np.testing.assert_array_equal(predictions, expected.predict(X2))
    assert estimator.n_outputs_ == 1


@both
def test_inconsistent_lengths_are_refused_case_d16(make, y):
    """Of targets and weights."""
    with pytest.raises(ValueError, match=r"(?i)inconsistent|samples"):
        make().fit(X2, y[:-1])
    with pytest.raises(ValueError, match=r"(?i)weight"):
        make().fit(X2, y, sample_weight=np.ones(63))
    with pytest.raises(ValueError, match=r"(?i)weight"):
        make().fit(X2, y, sample_weight=np.ones((64, 1)))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_nan_and_infinity_in_y_are_refused_case_d28(value):
    """In one target, in one of several, and per token."""
    words = r"(?i)y contains (NaN|infinity)"
    with pytest.raises(ValueError, match=words):
        make_regressor().fit(X2, spoiled(YR, value))
    with pytest.raises(ValueError, match=words):
        make_regressor().fit(X2, spoiled(np.c_[YR, YR], value))
    with pytest.raises(ValueError, match=r"NaN|infinity"):
        make_regressor(pooling="none").fit(X3, spoiled(X3[:, :, 0], value))
    with warnings.catch_warnings():
        # scikit-learn looks for fractional labels before it looks for infinite ones
        warnings.filterwarnings("ignore", "invalid value encountered in cast", RuntimeWarning)
        with pytest.raises(ValueError, match=r"NaN|infinity|Unknown label type"):
            make_classifier().fit(X2, spoiled((YR > 0).astype(float), value))


def test_weights_of_any_size_are_read_without_a_warning():
    weight = np.array([1.7e308, 1.7e308, 5e-324, 0.0])
    assert_allclose(read_sample_weight(weight, 4, ResidualTransformerRegressor()), [1, 1, 0, 0])
