"""Validation of X: what is accepted, and the words when it is not."""

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from scipy import sparse

from sklearn_restf import ResidualTransformerRegressor
from sklearn_restf._data.arrays import (
    RawTokens,
    drop_padding,
    is_ragged,
    read_X,
    real_token_mask,
    token_index,
    validating,
)

NAME = "ResidualTransformerRegressor"


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def read(X, *, reset=True, estimator=None, token_dim=None, padding_value=None):
    estimator = estimator or ResidualTransformerRegressor(token_dim=token_dim)
    return read_X(estimator, X, reset=reset, token_dim=token_dim, padding_value=padding_value)


def sequences(*lengths, width=2):
    return [normal(length, width, seed=i) for i, length in enumerate(lengths)]


# --- RawTokens ----------------------------------------------------------------------------------


@given(st.lists(st.integers(1, 5), min_size=1, max_size=8), st.data())
def test_taking_ragged_samples_is_taking_from_a_list(lengths, data):
    samples = sequences(*lengths)
    tokens = RawTokens(np.concatenate(samples), np.array(lengths))
    indices = st.lists(st.integers(0, len(lengths) - 1), min_size=1, max_size=8)
    rows = np.array(data.draw(indices))
    taken = tokens.take(rows)
    assert taken.n_samples == len(rows)
    assert_array_equal(taken.lengths, tokens.lengths[rows])
    expected = np.concatenate([samples[row] for row in rows])
    assert_array_equal(taken.values, expected)
    index = token_index(tokens.offsets[rows], tokens.lengths[rows])
    assert_array_equal(tokens.values[index], expected)


def test_slices_cover_everything_once():
    tokens = RawTokens(np.broadcast_to(np.float32(0), (1000, 100, 1000)))
    pieces = list(tokens.slices())
    assert len(pieces) > 1
    assert_array_equal(np.concatenate([np.arange(1000)[p] for p in pieces]), np.arange(1000))
    assert max(p.stop - p.start for p in pieces) * 100 * 1000 * 8 <= 2**24


# --- X: accepted --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "form",
    [
        np.array,
        np.asfortranarray,
        pd.DataFrame,
        pl.DataFrame,
        torch.tensor,
        lambda x: torch.tensor(x, requires_grad=True),
        lambda x: x.tolist(),
        lambda x: x.astype(object),
        lambda x: x.astype(">f8"),
        lambda x: x[::-1].copy()[::-1],
        lambda x: np.ma.masked_array(x).filled(),
    ],
)
def test_tables(form):
    X = normal(6, 3)
    tokens = read(form(X))
    assert tokens.lengths is None
    assert_array_equal(tokens.values.astype(float), X)


def test_a_memory_map_is_neither_copied_nor_cast(tmp_path):
    np.save(tmp_path / "x.npy", normal(6, 3, 2).astype(np.float32))
    X = np.load(tmp_path / "x.npy", mmap_mode="r")
    values = read(X).values
    assert values.dtype == np.float32
    assert np.shares_memory(values, X)


@pytest.mark.parametrize("dtype", [bool, np.int8, np.uint16, np.int64, np.float16, np.float32])
def test_dtypes_are_kept(dtype):
    for shape in ((6, 3), (6, 3, 2)):
        X = (normal(*shape) > 0).astype(dtype)
        values = read(X).values
        assert values.dtype == dtype
        assert np.shares_memory(values, X)


def test_bfloat16_tensors():
    X = torch.arange(12, dtype=torch.bfloat16).reshape(6, 2)
    assert_array_equal(read(X).values, X.float())
    samples = [X[:4], X[4:]]
    assert_array_equal(read(samples).values, X.float())


def test_names_are_remembered():
    estimator = ResidualTransformerRegressor()
    read(pd.DataFrame(normal(4, 2), columns=["a", "b"]), estimator=estimator)
    assert list(estimator.feature_names_in_) == ["a", "b"]
    assert estimator.n_features_in_ == 2
    with pytest.raises(ValueError, match="feature names"):
        read(pd.DataFrame(normal(4, 2), columns=["b", "a"]), estimator=estimator, reset=False)


def test_sequences_count_features_per_token():
    for X in (normal(4, 3, 2), sequences(1, 3), np.full((2, 3, 2), 7)):
        estimator = ResidualTransformerRegressor()
        read(X, estimator=estimator)
        assert estimator.n_features_in_ == 2


def test_windows_are_cut_into_tokens():
    X = normal(4, 6)
    assert_array_equal(read(X, token_dim=2).values, X.reshape(4, 3, 2))
    assert_array_equal(read(X.reshape(4, 3, 2), token_dim=2).values, X.reshape(4, 3, 2))
    assert read(X, token_dim=6).values.shape == (4, 1, 6)


def test_either_form_of_windows_at_prediction():
    X = normal(4, 6)
    for fitted, other in ((X, X.reshape(4, 3, 2)), (X.reshape(4, 3, 2), X)):
        estimator = ResidualTransformerRegressor(token_dim=2)
        read(fitted, estimator=estimator, token_dim=2)
        tokens = read(other, estimator=estimator, token_dim=2, reset=False)
        assert_array_equal(tokens.values, X.reshape(4, 3, 2))


@pytest.mark.parametrize(
    ("X", "expected"),
    [
        (sequences(1, 2), True),
        (tuple(sequences(2, 2)), True),
        ([torch.ones(2, 1)], True),
        ([pd.DataFrame(np.ones((2, 1)))], True),
        (np.array([*sequences(1, 2), None], dtype=object)[:2], True),
        (np.ones((2, 2, 2)), False),
        (np.ones((2, 2), dtype=object), False),
        ([[1.0, 2.0], [3.0, 4.0]], False),
        ([np.ones(2), np.ones(2)], False),
        ([], False),
        ("text", False),
        (None, False),
    ],
)
def test_what_is_a_list_of_samples(X, expected):
    assert is_ragged(X) == expected


# --- padding ------------------------------------------------------------------------------------


@pytest.mark.parametrize("padding_value", [np.nan, 0.0, -1.0])
def test_a_token_is_padding_where_all_of_its_features_are(padding_value):
    X = np.array([[[1.0, 2.0], [9.0, 9.0], [9.0, 3.0]], [[9.0, 9.0], [4.0, 5.0], [9.0, 9.0]]])
    if np.isnan(padding_value):
        X[0, 2] = [6.0, 3.0]  # a token that is NaN in part is an error, tested below
    X[X == 9.0] = padding_value
    tokens = read(X, padding_value=padding_value)
    assert_array_equal(tokens.lengths, [2, 1])
    assert_array_equal(tokens.values, [X[0, 0], X[0, 2], X[1, 1]])


def test_without_a_padding_value_every_token_is_real():
    assert real_token_mask(np.zeros((2, 3, 1)), None).all()
    assert read(np.zeros((2, 3, 1))).lengths is None


def test_a_padding_value_is_compared_in_the_dtype_of_the_array():
    X = np.full((2, 3, 1), 0.1, dtype=np.float32)
    X[:, 0] = 1
    assert_array_equal(read(X, padding_value=0.1).lengths, [1, 1])
    assert_array_equal(read(X, padding_value=1e300).values, X.reshape(6, 1))


@pytest.mark.parametrize(
    ("dtype", "padding_value"), [(np.uint8, -1), (np.uint8, 256), (np.int64, 0.5), (int, np.nan)]
)
def test_a_padding_value_that_the_dtype_does_not_have_pads_nothing(dtype, padding_value):
    X = np.array([[[255], [0]], [[1], [255]]]).astype(dtype)
    assert_array_equal(read(X, padding_value=padding_value).lengths, [2, 2])


def test_whole_numbers_may_be_padded():
    X = np.array([[[3], [-1]], [[1], [2]]])
    tokens = read(X, padding_value=-1)
    assert_array_equal(tokens.lengths, [1, 2])
    assert_array_equal(tokens.values, [[3], [1], [2]])


@pytest.mark.parametrize("width", [1, 3])
def test_dropping_padding_keeps_the_order_of_tokens(width):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((20, 7, width))
    real = rng.random((20, 7)) < 0.5
    real[:, 3] = True
    X[~real] = np.nan
    tokens = drop_padding(X, np.nan)
    assert_array_equal(tokens.lengths, real.sum(axis=1))
    assert_array_equal(tokens.values, np.concatenate([x[r] for x, r in zip(X, real, strict=True)]))


# --- X: refused ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("X", "options", "words"),
    [
        (np.ones((2, 2, 2, 2)), {}, r"X has 4 dimensions; .*\(n_samples, n_tokens, features\)"),
        (np.ones(5), {}, "Expected 2D array, got 1D"),
        (np.ones((4, 5)), {"token_dim": 2}, r"X has 5 columns.*divisible by token_dim=2"),
        (np.ones((4, 2, 3)), {"token_dim": 2}, "3 features per token, but token_dim=2"),
        (np.ones((4, 0, 3)), {}, r"\(4, 0, 3\): no tokens"),
        (np.ones((4, 3, 0)), {}, r"\(4, 3, 0\): no tokens or no features"),
        (np.array([["a", "b"]] * 3), {}, "numeric"),
        (np.array([[["a", "b"]]] * 3), {}, "numeric"),
        (np.ones((4, 2)) * 1j, {}, "Complex data not supported"),
        (np.full((3, 2), np.datetime64("2020-01-01")), {}, r"dtype datetime64.*takes numbers"),
        (np.full((3, 2, 2), np.timedelta64(1, "s")), {}, r"dtype timedelta64.*takes numbers"),
        (sequences(1, 2)[:1] + sequences(2, width=3), {}, r"different numbers.*\[2, 3\]"),
        ([np.ones((2, 2)), np.ones((0, 2))], {}, r"1 sample\(s\) without a real token.*row\(s\) 1"),
        ([np.ones((2, 2)), np.array([["a", "b"]])], {}, "Sample 1 of X is not usable"),
        ([np.ones((2, 2)), np.full((1, 2), np.nan)], {}, r"Sample 1 of X.*contains NaN"),
        ([np.ones((2, 2)), np.full((1, 2), np.inf)], {}, r"Sample 1 of X.*contains infinity"),
        ([np.ones((2, 2)), np.ones((1, 0))], {}, "Sample 1 of X"),
    ],
)
def test_refused(X, options, words):
    with pytest.raises(ValueError, match=words):
        read(X, **options)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("shape", [(5, 4), (5, 2, 2)])
def test_not_finite(shape, bad):
    X = normal(*shape)
    X[-1, -1] = bad
    with pytest.raises(ValueError, match=r"X contains (NaN|infinity)[\s\S]*"):
        read(X)


@pytest.mark.parametrize("X", [normal(4, 3, 2), np.array([[[1.0, np.nan]]])])
def test_a_token_that_is_nan_in_part_is_no_padding(X):
    X = X.copy()
    X[0, 0] = [1.0, np.nan]
    with pytest.raises(ValueError, match="X contains NaN"):
        read(X, padding_value=np.nan)


def test_samples_of_padding_alone_are_named():
    X = np.ones((30, 2, 1))
    X[[1, 4]] = np.nan
    with pytest.raises(ValueError, match=r"2 sample\(s\).*row\(s\) 1, 4: drop them.*padding_value"):
        read(X, padding_value=np.nan)
    X[:] = np.nan
    with pytest.raises(ValueError, match=r"30 sample\(s\).* 8, 9, \.\.\.:"):
        read(X, padding_value=np.nan)


@pytest.mark.parametrize(
    "X",
    [
        [np.ones((3, 2)), np.ones(4)],
        [np.ones(3), np.ones(4)],
        [[[1.0, 2.0]], [[1.0, 2.0], [3.0, 4.0]]],
    ],
    ids=["mixed dimensions", "1-D samples", "nested lists"],
)
def test_lists_of_anything_but_2d_arrays_are_told_what_to_be(X):
    with pytest.raises(ValueError, match=r"\(n_tokens_i, features\)"):
        read(X)


def test_sparse_matrices_are_refused():
    with pytest.raises(TypeError, match=r"[Ss]parse"):
        read(sparse.csr_array(np.eye(3)))


def test_another_number_of_features_at_prediction():
    estimator = ResidualTransformerRegressor()
    read(normal(4, 3), estimator=estimator)
    with pytest.raises(ValueError, match=f"X has 2 features, but {NAME} is expecting 3"):
        read(normal(4, 2), estimator=estimator, reset=False)


def test_inputs_are_not_written_to():
    X = normal(5, 3, 2)
    X[0, 2] = np.nan
    X.flags.writeable = False
    tokens = read(X, padding_value=np.nan)
    assert_array_equal(tokens.lengths, [2, 3, 3, 3, 3])


def test_validation_keeps_messages_that_name_their_argument():
    with pytest.raises(ValueError, match=r"^X is odd$"), validating("X"):
        raise ValueError("X is odd")
    with pytest.raises(TypeError, match=r"^X_val: X is odd$"), validating("X_val"):
        raise TypeError("X is odd")
