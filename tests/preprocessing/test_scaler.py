"""One mean and scale per channel for windows, 3-D arrays and ragged sequences."""

import pickle

import numpy as np
import pandas as pd
import polars as pl
import pytest
import sklearn
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.lib.stride_tricks import sliding_window_view
from numpy.testing import assert_allclose
from scipy.sparse import csr_matrix
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import Ridge
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import estimator_checks_generator

from sklearn_restf import ResidualTransformerRegressor
from sklearn_restf.preprocessing import TokenStandardScaler
from tests.builders import ROWS

CHECKS = [
    pair
    for estimator in (
        TokenStandardScaler(),
        TokenStandardScaler(token_dim=1),
        TokenStandardScaler(with_mean=False, with_std=False),
    )
    for pair in estimator_checks_generator(estimator)
]


@pytest.mark.parametrize(("estimator", "check"), CHECKS)
def test_contract(estimator, check):
    check(estimator)


@pytest.fixture
def X3():
    rng = np.random.default_rng(0)
    return rng.normal(size=(40, 6, 3)) * [1, 100, 1e-3] + [0, -5e4, 7]


def by_token(X3, **options):
    """The oracle: scikit-learn's scaler on the tokens of all samples."""
    return StandardScaler(**options).fit(X3.reshape(-1, X3.shape[-1]))


@pytest.mark.parametrize("with_mean", [True, False])
@pytest.mark.parametrize("with_std", [True, False])
def test_equals_standard_scaler_on_tokens(X3, with_mean, with_std):
    options = {"with_mean": with_mean, "with_std": with_std}
    expected = by_token(X3, **options).transform(X3.reshape(-1, 3)).reshape(X3.shape)
    scaler = TokenStandardScaler(**options)
    np.testing.assert_allclose(scaler.fit_transform(X3), expected, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(scaler.inverse_transform(expected), X3, rtol=1e-9)
    flat = TokenStandardScaler(token_dim=3, **options).fit_transform(X3.reshape(40, 18))
    np.testing.assert_allclose(flat, expected.reshape(40, 18), rtol=1e-9, atol=1e-9)
    ragged = TokenStandardScaler(**options).fit_transform(list(X3))
    assert isinstance(ragged, list)
    np.testing.assert_allclose(np.stack(ragged), expected, rtol=1e-9, atol=1e-9)


def test_a_table_is_scaled_by_column(X3):
    X = X3[:, 0]
    np.testing.assert_allclose(
        TokenStandardScaler().fit_transform(X), StandardScaler().fit_transform(X), rtol=1e-9
    )


def test_forms_are_interchangeable_with_token_dim(X3):
    flat = X3.reshape(40, 18)
    on_flat, on_3d = (TokenStandardScaler(token_dim=3).fit(X) for X in (flat, X3))
    for scaler in (on_flat, on_3d):
        np.testing.assert_allclose(scaler.transform(X3).reshape(40, 18), scaler.transform(flat))
        np.testing.assert_allclose(np.stack(scaler.transform(list(X3))), scaler.transform(X3))
    np.testing.assert_array_equal(on_flat.mean_, on_3d.mean_)
    assert (on_flat.n_features_in_, on_3d.n_features_in_) == (18, 3)
    # Without token_dim the meaning of a 2-D column is unknown.
    with pytest.raises(ValueError, match="set token_dim"):
        TokenStandardScaler().fit(X3).transform(flat)
    with pytest.raises(ValueError, match="Set token_dim"):
        TokenStandardScaler().fit(flat).transform(X3)


def test_ragged_forms(X3):
    lengths = np.random.default_rng(0).integers(1, 7, size=40)
    sequences = [x[:t] for x, t in zip(X3, lengths, strict=True)]
    scaler = TokenStandardScaler().fit(sequences)
    expected = StandardScaler().fit(np.concatenate(sequences))
    np.testing.assert_allclose(scaler.mean_, expected.mean_, rtol=1e-12)
    np.testing.assert_allclose(scaler.scale_, expected.scale_, rtol=1e-9)
    objects = np.empty(40, dtype=object)
    objects[:] = sequences
    tensors = [torch.from_numpy(s) for s in sequences]
    for same in (objects, tuple(sequences), tensors):
        other = TokenStandardScaler().fit(same)
        np.testing.assert_array_equal(other.mean_, scaler.mean_)
        for a, b in zip(other.transform(same), scaler.transform(sequences), strict=True):
            np.testing.assert_array_equal(a, b)
    back = scaler.inverse_transform(scaler.transform(sequences))
    np.testing.assert_allclose(np.concatenate(back), np.concatenate(sequences), rtol=1e-9)
    tensor = torch.from_numpy(X3).float()
    assert TokenStandardScaler().fit_transform(tensor).dtype == np.float32


def test_padding_is_neither_counted_nor_changed(X3):
    lengths = np.random.default_rng(1).integers(1, 7, size=40)
    sequences = [x[:t] for x, t in zip(X3, lengths, strict=True)]
    expected = TokenStandardScaler().fit(sequences)
    for value in (0.0, -9999.0, np.nan):
        padded = np.full_like(X3, value)
        for row, sequence in zip(padded, sequences, strict=True):
            row[: len(sequence)] = sequence
        scaler = TokenStandardScaler(padding_value=value).fit(padded)
        np.testing.assert_allclose(scaler.mean_, expected.mean_, rtol=1e-12)
        np.testing.assert_allclose(scaler.scale_, expected.scale_, rtol=1e-9)
        scaled = scaler.transform(padded)
        for i, sequence in enumerate(sequences):
            np.testing.assert_array_equal(scaled[i, len(sequence) :], padded[i, len(sequence) :])
            np.testing.assert_allclose(
                scaled[i, : len(sequence)], expected.transform([sequence])[0], rtol=1e-9
            )


@pytest.mark.parametrize("value", [0.1, np.float64(0.1), np.nan])
def test_padding_of_flattened_windows_and_of_single_precision(X3, value):
    padded = X3.astype(np.float32)
    padded[:20, 4:] = value
    expected = TokenStandardScaler().fit([*padded[:20, :4], *padded[20:]])
    windows = TokenStandardScaler(padding_value=value).fit(padded)
    np.testing.assert_allclose(windows.mean_, expected.mean_, rtol=1e-9)
    scaled = windows.transform(padded)
    np.testing.assert_array_equal(scaled[:20, 4:], padded[:20, 4:])
    flat = TokenStandardScaler(3, padding_value=value)
    np.testing.assert_array_equal(
        flat.fit_transform(padded.reshape(40, -1)), scaled.reshape(40, -1)
    )
    table = TokenStandardScaler(padding_value=value)  # rows of numbers, none of them padding
    rows = np.full((4, 2), 0.1) if np.isfinite(value) else np.ones((4, 2))
    np.testing.assert_array_equal(table.fit_transform(rows), np.zeros((4, 2)))


def test_nan_is_left_out_and_left_in(X3):
    X3[::3, 2, 1] = np.nan
    X3[:, :, 2] = np.nan
    scaler = TokenStandardScaler().fit(X3)
    tokens = X3.reshape(-1, 3)
    np.testing.assert_allclose(scaler.mean_[:2], np.nanmean(tokens[:, :2], axis=0), rtol=1e-9)
    np.testing.assert_allclose(scaler.scale_[:2], np.nanstd(tokens[:, :2], axis=0), rtol=1e-9)
    np.testing.assert_array_equal(np.isnan(scaler.transform(X3)), np.isnan(X3))
    assert (scaler.mean_[2], scaler.scale_[2]) == (0, 1)
    np.testing.assert_array_equal(scaler.n_tokens_seen_, [240, 240 - 14, 0])


@pytest.mark.parametrize("form", ["2d", "3d", "ragged"])
def test_weights_stand_for_repetition(X3, form):
    X = {"2d": X3.reshape(40, 18), "3d": X3, "ragged": list(X3)}[form]
    weights = np.random.default_rng(0).integers(0, 4, size=40)
    rows = np.repeat(np.arange(40), weights)
    repeated = [X[i] for i in rows] if form == "ragged" else X[rows]
    weighted = TokenStandardScaler(token_dim=3).fit(X, sample_weight=weights)
    expected = TokenStandardScaler(token_dim=3).fit(repeated)
    for name in ("mean_", "var_", "scale_", "n_tokens_seen_"):
        np.testing.assert_allclose(getattr(weighted, name), getattr(expected, name), rtol=1e-9)
    rescaled = TokenStandardScaler(token_dim=3).fit(X, sample_weight=1e-6 * weights)
    np.testing.assert_allclose(rescaled.scale_, weighted.scale_, rtol=1e-9)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (np.zeros(40), "must not all be zero"),
        (-np.ones(40), "weights must be >= 0"),
        (np.ones(39), r"expected \(40,\): one weight per sample"),
        (np.ones((40, 2)), "must be 1D"),
        (np.full(40, np.nan), "NaN"),
    ],
)
def test_bad_weights_are_named(X3, weights, message):
    with pytest.raises(ValueError, match=message):
        TokenStandardScaler().fit(X3, sample_weight=weights)


@given(st.floats(-1e12, 1e12), st.integers(2, 50))
def test_a_constant_channel_is_only_centred(value, n):
    X = np.stack([np.full((n, 3), value), np.arange(3.0 * n).reshape(n, 3)], axis=2)
    scaler = TokenStandardScaler().fit(X)
    assert scaler.scale_[0] == 1
    assert abs(scaler.transform(X)[..., 0]).max() <= 1e-9 * max(1, abs(value))


def test_large_views_are_not_copied_whole():
    base = np.random.default_rng(0).normal(size=(20_000, 2)).astype(np.float32) + 1e4
    X = sliding_window_view(base, 100, axis=0).swapaxes(1, 2)
    scaler = TokenStandardScaler().fit(X)
    inside = base[99:-99].astype(np.float64)
    np.testing.assert_allclose(scaler.mean_, inside.mean(axis=0), atol=1e-3)
    scaled = scaler.transform(X[:500])
    assert scaled.dtype == np.float32
    expected = (X[:500].astype(np.float64) - scaler.mean_) / scaler.scale_
    np.testing.assert_allclose(scaled, expected, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", ">f8", "float16"])
def test_input_is_not_modified_whatever_its_layout(X3, dtype):
    X = X3.clip(-100, 100).astype(dtype)
    expected = TokenStandardScaler().fit_transform(np.ascontiguousarray(X.astype(np.float64)))
    for view in (X, np.asfortranarray(X), X.copy()[::-1][::-1]):
        before = view.copy()
        view.flags.writeable = False
        result = TokenStandardScaler().fit_transform(view)
        np.testing.assert_array_equal(view, before)
        assert result.dtype == (np.float32 if dtype == "float32" else np.float64)
        np.testing.assert_allclose(result, expected, atol=1e-4 if dtype == "float32" else 1e-9)


def read_only(X):
    """Return a view that cannot be written to."""
    view = X[:]
    view.flags.writeable = False
    return view


def mapped(X, folder):
    """Return the samples as a memory map."""
    np.save(folder / "X.npy", X)
    return np.load(folder / "X.npy", mmap_mode="r")


# each from an array (n, T, c) to what users may have
FORMS = {
    "array": lambda X, _: X,
    "nested lists": lambda X, _: X.tolist(),
    "read-only": lambda X, _: read_only(X),
    "memory map": mapped,
    "tensor": lambda X, _: torch.from_numpy(X),
    "tensor with a gradient": lambda X, _: torch.from_numpy(X).requires_grad_(),
    "bfloat16": lambda X, _: torch.from_numpy(X).bfloat16(),
    "half precision": lambda X, _: torch.from_numpy(X).half(),
    "integers": lambda X, _: X.astype(np.int8),
    "pandas": lambda X, _: pd.DataFrame(X.reshape(len(X), -1)).add_prefix("c"),
    "pandas with its own missing values": lambda X, _: (
        pd.DataFrame(X.reshape(len(X), -1)).add_prefix("c").convert_dtypes()
    ),
    "polars": lambda X, _: pl.DataFrame(X.reshape(len(X), -1)),
    "ragged": lambda X, _: [X[0, :2], *X[1:]],
    "ragged lists of tensors": lambda X, _: [
        torch.from_numpy(x).bfloat16().requires_grad_() for x in X
    ],
}


@pytest.mark.parametrize("form", FORMS)
def test_takes_what_the_estimators_take(X3, form, tmp_path):
    whole = np.random.default_rng(0).integers(-8, 8, size=(12, 4, 3)).astype("f8")
    X = FORMS[form](whole, tmp_path)
    model = ResidualTransformerRegressor(token_dim=3, max_iter=1, tol=None, random_state=0)
    assert np.isfinite(model.fit(X, whole[:, 0, 0]).predict(X)).all()
    scaler = TokenStandardScaler(token_dim=3)
    scaled = scaler.fit(X).transform(X)
    if "ragged" not in form:  # the very numbers, which all of these can hold
        expected = TokenStandardScaler().fit(whole)
        assert_allclose(scaler.mean_, expected.mean_, rtol=1e-12, atol=1e-12)
        assert_allclose(np.reshape(scaled, whole.shape), expected.transform(whole), atol=1e-6)
    both = make_pipeline(scaler, model).fit(X, whole[:, 0, 0])
    assert np.isfinite(both.predict(X)).all()


@pytest.mark.parametrize(
    "X",
    [
        [["a", "b", "c"]],
        np.ones((3, 7)),
        np.ones((3, 2, 4)),
        np.ones((2, 2, 2, 2)),
        np.full((2, 2, 3), np.inf),
        np.ones((2, 2, 3)) * 1j,
        csr_matrix(np.eye(3)),
        [np.ones((2, 3)), np.ones((2, 4))],
        [np.ones((2, 3)), np.ones(3)],
        torch.empty((2, 2, 3), device="meta"),
    ],
    ids=range(10),
)
def test_refuses_what_the_estimators_refuse_and_says_so_alike(X):
    messages = []
    for estimator in (
        ResidualTransformerRegressor(token_dim=3, max_iter=1),
        TokenStandardScaler(token_dim=3),
    ):
        with pytest.raises((ValueError, TypeError)) as caught:
            estimator.fit(X, np.ones(len(X) if isinstance(X, list) else X.shape[0]))
        messages.append(str(caught.value).replace(type(estimator).__name__, "it"))
    assert messages[0] == messages[1]


@pytest.mark.parametrize(
    ("X", "error", "message"),
    [
        (csr_matrix(np.eye(4)), TypeError, "[Ss]parse"),
        (np.array([[[1.0, np.inf, 2.0]]]), ValueError, "infinity"),
        ([np.ones((2, 3)), np.full((1, 3), np.inf)], ValueError, r"X\[1\]"),
        ([np.ones((2, 3)), np.ones((2, 4))], ValueError, r"\[3, 4\], sample 1"),
        ([np.ones((2, 3)), np.ones(3)], ValueError, "not all 2-D arrays"),
        ([np.ones((2, 3)), np.array([["a"] * 3])], ValueError, "Sample 1 of X is not usable"),
        ([np.ones((2, 3)), np.ones((0, 3))], ValueError, r"real token, in row\(s\) 1"),
        (np.ones((2, 2, 2, 2)), ValueError, "dim"),
        (np.ones((3, 7)), ValueError, "7 columns.*token_dim=3"),
        (np.ones((3, 2, 4)), ValueError, "4 features per token, but token_dim=3"),
        ([np.ones((2, 4))], ValueError, "4 features per token, but token_dim=3"),
    ],
)
def test_bad_input_is_named(X, error, message):
    scaler = TokenStandardScaler(token_dim=3)
    with pytest.raises(error, match=message):
        scaler.fit(X)
    with pytest.raises(NotFittedError):
        scaler.transform(np.ones((2, 3)))


def test_bad_token_dim_is_named(X3):
    for token_dim in (0, 1.5, True, "3"):
        with pytest.raises(ValueError, match="token_dim"):
            TokenStandardScaler(token_dim=token_dim).fit(X3)


def test_width_of_new_data_is_checked(X3):
    scaler = TokenStandardScaler().fit(X3)
    for X in (X3[:, :, :2], [x[:, :2] for x in X3]):
        with pytest.raises(ValueError, match="expecting 3"):
            scaler.transform(X)


def test_containers_and_names(X3):
    frame = pd.DataFrame(X3.reshape(40, 18), index=np.arange(100, 140)).add_prefix("c")
    scaler = TokenStandardScaler(token_dim=3).set_output(transform="pandas")
    for model in (scaler, clone(scaler), pickle.loads(pickle.dumps(scaler))):
        out = model.fit_transform(frame)
        assert list(out.columns) == list(frame.columns) == list(model.get_feature_names_out())
        assert out.index.equals(frame.index)
    out = TokenStandardScaler().set_output(transform="polars").fit_transform(frame)
    assert isinstance(out, pl.DataFrame)
    table = pl.from_pandas(frame)
    # Whether columns of polars are seen is up to the version of scikit-learn.
    names = StandardScaler().fit(table).get_feature_names_out()
    assert TokenStandardScaler().fit(table).get_feature_names_out().tolist() == names.tolist()
    # A refit on tokens forgets the columns of the frame.
    assert list(scaler.fit(X3).get_feature_names_out(["u", "v", "w"])) == ["u", "v", "w"]
    assert not hasattr(scaler, "feature_names_in_")
    with pytest.raises(ValueError, match="should have length"):
        scaler.get_feature_names_out(["u"])
    with pytest.raises(ValueError, match="must be one of"):
        scaler.set_output(transform="xarray")


@pytest.mark.parametrize("container", ["pandas", "polars"])
def test_global_container_spares_tokens(X3, container):
    with sklearn.config_context(transform_output=container):
        assert isinstance(TokenStandardScaler().fit_transform(X3), np.ndarray)
        assert isinstance(TokenStandardScaler().fit_transform(list(X3)), list)
        flat = TokenStandardScaler().fit(X3).set_params(token_dim=3).transform(X3.reshape(40, 18))
    assert flat.shape == (40, 18)
    assert type(flat).__name__ == "DataFrame"


def test_in_a_pipeline_under_cross_validation(X3):
    y = X3[:, -1, 0]
    pipe = make_pipeline(TokenStandardScaler(token_dim=3), Ridge())
    search = GridSearchCV(pipe, {"tokenstandardscaler__with_std": [True, False]}, cv=3)
    search.fit(X3.reshape(40, 18), y)
    assert search.best_score_ > 0.9
    weights = np.ones(40)
    pipe.fit(X3.reshape(40, 18), y, tokenstandardscaler__sample_weight=weights)


@pytest.mark.parametrize("unit", [1e-300, 1e-160, 1e160, 1e300])
def test_tokens_of_any_magnitude_are_standardised(unit):
    scaled = TokenStandardScaler().fit_transform(unit * ROWS)
    assert_allclose(scaled, TokenStandardScaler().fit_transform(ROWS))


def test_tokens_whose_spread_overflows_are_refused():
    with pytest.raises(ValueError, match="X contains values too large"):
        TokenStandardScaler().fit([[1.7e308], [-1.7e308], [-1.7e308]])
    with pytest.raises(ValueError, match="X is so far from the training samples"):
        TokenStandardScaler().fit(1e-300 * ROWS).transform(1e300 * ROWS)


def test_a_padding_value_beyond_float32():
    scaler = TokenStandardScaler(padding_value=1e300)
    assert np.isfinite(scaler.fit_transform(ROWS.reshape(6, 2, 2).astype("f4"))).all()
