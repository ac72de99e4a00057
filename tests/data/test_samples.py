"""Every form of input that users give, end to end."""

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal

from sklearn_restf import ResidualTransformerRegressor


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def regressor(**options):
    options = {"max_iter": 5, "tol": None, "diagnostics": False, "random_state": 0} | options
    return ResidualTransformerRegressor(**options)


X2, X3 = normal(24, 6), normal(24, 3, 2, seed=1)
Y = normal(24, seed=2)
LENGTHS = np.resize([1, 2, 3], 24)
LIST = [x[:length] for x, length in zip(X3, LENGTHS, strict=True)]


def padded(value, side="right"):
    x = np.full(X3.shape, value)
    for i, sample in enumerate(LIST):
        length = len(sample)
        where = slice(None, length) if side == "right" else slice(3 - length, None)
        if side == "interior" and length == 2:
            where = slice(None, None, 2)
        x[i, where] = sample
    return x


@pytest.mark.parametrize("n_tokens", ["auto", 1, 4, 6])
@pytest.mark.parametrize(
    "form",
    [
        pd.DataFrame,
        pl.DataFrame,
        torch.tensor,
        np.asfortranarray,
        lambda x: x[::-1].copy()[::-1],
        lambda x: np.repeat(x, 2, axis=1)[:, ::2],
        lambda x: x.astype(">f8"),
        lambda x: x.astype(object),
        lambda x: x.tolist(),
    ],
    ids=[
        "pandas",
        "polars",
        "torch",
        "F order",
        "reversed",
        "strided",
        "big-endian",
        "object",
        "list",
    ],
)
def test_tables_of_every_kind(form, n_tokens):
    X = form(X2)
    expected = regressor(n_tokens=n_tokens).fit(X2, Y).predict(X2)
    assert_allclose(regressor(n_tokens=n_tokens).fit(X, Y).predict(X), expected, rtol=1e-10)
    assert expected.std() > 0


def test_windows_and_sequences_are_the_same():
    sequences = regressor().fit(X3, Y)
    windows = regressor(token_dim=2).fit(X3.reshape(24, 6), Y)
    either = regressor(token_dim=2).fit(X3, Y)
    expected = sequences.predict(X3)
    for X in (X3, X3.reshape(24, 6)):
        for estimator in (windows, either):
            assert_allclose(estimator.predict(X), expected, rtol=1e-12)
    assert windows.n_tokens_ == sequences.n_tokens_ == 3


@pytest.mark.parametrize(
    "form",
    [
        torch.tensor,
        np.asfortranarray,
        lambda x: x[::-1].copy()[::-1],
        lambda x: x.astype(object),
        lambda x: x.astype(">f8"),
        lambda x: x.tolist(),
    ],
    ids=["torch", "F order", "reversed", "object", "big-endian", "nested lists"],
)
def test_sequences_of_every_kind(form):
    expected = regressor().fit(X3, Y).predict(X3)
    X = form(X3)
    assert_allclose(regressor().fit(X, Y).predict(X), expected, rtol=1e-12)


@pytest.mark.parametrize("chunk_size", [None, 5])
def test_memory_maps(tmp_path, chunk_size):
    np.save(tmp_path / "x.npy", X3)
    X = np.load(tmp_path / "x.npy", mmap_mode="r")
    expected = regressor().fit(X3, Y).predict(X3)
    found = regressor(chunk_size=chunk_size).fit(X, Y).predict(X)
    assert_allclose(found, expected, rtol=1e-9)


@pytest.mark.parametrize("side", ["right", "left", "interior"])
@pytest.mark.parametrize("padding_value", [np.nan, -999.0, 0.0])
def test_padding_wherever_it_stands_is_the_list_of_real_tokens(padding_value, side):
    X = padded(padding_value, side)
    before = X.copy()
    expected = regressor().fit(LIST, Y).predict(LIST)
    estimator = regressor(padding_value=padding_value).fit(X, Y)
    assert_allclose(estimator.predict(X), expected, rtol=1e-10)
    assert_allclose(estimator.predict(LIST), expected, rtol=1e-10)
    assert estimator.n_tokens_ is None
    assert_array_equal(X, before)


@pytest.mark.parametrize(
    "form",
    [
        tuple,
        lambda samples: [torch.tensor(sample) for sample in samples],
        lambda samples: [pd.DataFrame(sample) for sample in samples],
        lambda samples: [pl.DataFrame(sample) for sample in samples],
        lambda samples: [np.asfortranarray(sample) for sample in samples],
        lambda samples: [sample[::-1].copy()[::-1] for sample in samples],
        lambda samples: [sample.astype(object) for sample in samples],
    ],
    ids=["tuple", "torch", "pandas", "polars", "F order", "reversed", "object"],
)
def test_lists_of_every_kind(form):
    expected = regressor().fit(LIST, Y).predict(LIST)
    X = form(LIST)
    assert_allclose(regressor().fit(X, Y).predict(X), expected, rtol=1e-12)


def test_an_object_array_of_samples_is_a_list():
    X = np.empty(24, dtype=object)
    X[:] = LIST
    expected = regressor().fit(LIST, Y).predict(LIST)
    assert_allclose(regressor().fit(X, Y).predict(X[::-1])[::-1], expected, rtol=1e-10)


@pytest.mark.parametrize("dtype", [bool, np.int8, np.uint8, np.int64, np.float16])
def test_whole_numbers_of_every_dtype(dtype):
    X = (X2 > 0).astype(dtype)
    expected = regressor().fit(X.astype(float), Y).predict(X.astype(float))
    assert_allclose(regressor().fit(X, Y).predict(X), expected, rtol=1e-10)


@pytest.mark.parametrize("X", [X2, X3, LIST], ids=["table", "sequences", "list"])
def test_samples_do_not_know_each_other(X):
    estimator = regressor().fit(X, Y)
    expected = estimator.predict(X)
    order = np.random.default_rng(0).permutation(24)
    permuted = [X[i] for i in order] if isinstance(X, list) else X[order]
    assert_allclose(estimator.predict(permuted), expected[order], rtol=1e-10)
    one_by_one = [estimator.predict(X[i : i + 1])[0] for i in range(24)]
    assert_allclose(one_by_one, expected, rtol=1e-10)
    in_chunks = estimator.set_params(chunk_size=5).predict(X)
    assert_allclose(in_chunks, expected, rtol=1e-10)


@pytest.mark.parametrize("lengths", [LENGTHS, np.full(24, 3), np.full(24, 1)])
def test_targets_per_token_of_lists_and_of_padded_arrays(lengths):
    real = np.arange(3) < lengths[:, None]
    X, y = np.where(real[:, :, None], X3, np.nan), np.where(real, X3.sum(axis=2), np.nan)
    X_list = [x[:length] for x, length in zip(X3, lengths, strict=True)]
    y_list = [targets[:length] for targets, length in zip(y, lengths, strict=True)]
    options = {"pooling": "none", "max_iter": 40}
    from_list = regressor(**options).fit(X_list, y_list)
    from_array = regressor(padding_value=np.nan, **options).fit(X, y)
    assert from_list.loss_ < 0.5 * from_list.loss_curve_[0]
    predictions = from_list.predict(X_list)
    assert [len(each) for each in predictions] == list(lengths)
    assert_allclose(np.concatenate(predictions), from_array.predict(X)[real], rtol=1e-9)


def test_uneven_groups_train_with_fillers_at_zero():
    X = normal(24, 7)
    estimator = regressor(n_tokens=3, max_iter=50, alpha=0.1).fit(X, Y)
    weight = estimator.module_.embedding_weight.detach().numpy()
    assert weight.shape == (3, 3, 16)
    assert not weight[1:, 2].any()
    assert weight[1:, :2].all()
    assert weight[0].all()
