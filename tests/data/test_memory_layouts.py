"""The layout of arrays in memory does not matter, and they are read in place."""

import warnings

import numpy as np
import pytest

from tests.builders import SERIES, SERIES_YR, X2, X3, YR, both, make_regressor
from tests.tools import outputs


def _read_only(X):
    X = X.copy()
    X.setflags(write=False)
    return X


def _odd_stride(X):
    return np.repeat(X, 2, axis=-1)[..., ::2]


_LAYOUTS = {
    "rows reversed": lambda X: X[::-1],
    "columns reversed": lambda X: X[:, ::-1],
    "fortran": np.asfortranarray,
    "big-endian": lambda X: X.astype(X.dtype.newbyteorder(">")),
    "read-only": _read_only,
    "strided": _odd_stride,
    "transposed": lambda X: np.ascontiguousarray(X.T).T,
    "broadcast": lambda X: np.broadcast_to(X[..., :1], X.shape),
}


def _strict(call, *args):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return call(*args)


@both
@pytest.mark.parametrize("X", [X2, X3], ids=["table", "windows"])
@pytest.mark.parametrize("layout", list(_LAYOUTS))
def test_memory_layout_of_x_does_not_matter_case_h7(make, y, X, layout):
    """Bit-equal to the plain copy, and the input is left as it was."""
    odd = _LAYOUTS[layout](X)
    plain = np.ascontiguousarray(odd.astype("float32", copy=True))
    expected = make(max_iter=8).fit(plain, y)
    estimator = _strict(make(max_iter=8).fit, odd, y)
    assert estimator.loss_curve_ == expected.loss_curve_
    np.testing.assert_array_equal(_strict(outputs, estimator, odd), outputs(expected, plain))
    np.testing.assert_array_equal(odd, plain)


@pytest.mark.parametrize("layout", ["rows reversed", "big-endian", "read-only", "strided"])
def test_memory_layout_of_y_and_of_weights_does_not_matter_case_h7(layout):
    weights = np.random.default_rng(0).uniform(0.5, 2, size=64)
    odd_y, odd_weights = _LAYOUTS[layout](YR), _LAYOUTS[layout](weights)
    plain_y = np.array(odd_y, dtype="float64")
    plain_weights = np.array(odd_weights, dtype="float64")
    expected = make_regressor().fit(X2, plain_y, sample_weight=plain_weights)
    estimator = _strict(make_regressor().fit, X2, odd_y, odd_weights)
    np.testing.assert_array_equal(estimator.predict(X2), expected.predict(X2))
    np.testing.assert_array_equal(odd_y, plain_y)
    np.testing.assert_array_equal(odd_weights, plain_weights)
    several = np.c_[YR, -YR]
    np.testing.assert_array_equal(
        _strict(make_regressor().fit, X2, _LAYOUTS[layout](several)).predict(X2).shape, (64, 2)
    )


@pytest.mark.parametrize("layout", list(_LAYOUTS))
def test_memory_layout_of_series_does_not_matter_case_h7(layout):
    """Of each array in a list."""
    odd = [_LAYOUTS[layout](s) for s in SERIES]
    plain = [np.ascontiguousarray(s.astype("float64", copy=True)) for s in odd]
    expected = make_regressor().fit(plain, SERIES_YR).predict(plain)
    estimator = _strict(make_regressor().fit, odd, SERIES_YR)
    np.testing.assert_array_equal(_strict(estimator.predict, odd), expected)


def test_views_and_files_are_read_in_place_case_h7(tmp_path):
    """Read-only window views and memory-mapped files."""
    series = np.random.default_rng(0).normal(size=(87, 3)).astype("float32")
    windows = np.lib.stride_tricks.sliding_window_view(series, 24, axis=0).transpose(0, 2, 1)
    assert not windows.flags.writeable
    plain = np.ascontiguousarray(windows)
    file = tmp_path / "windows.npy"
    np.save(file, plain)
    mapped = np.load(file, mmap_mode="r")
    content = file.read_bytes()
    expected = make_regressor().fit(plain, YR).predict(plain)
    for X in (windows, mapped):
        estimator = _strict(make_regressor().fit, X, YR)
        np.testing.assert_array_equal(_strict(estimator.predict, X), expected)
    assert file.read_bytes() == content
