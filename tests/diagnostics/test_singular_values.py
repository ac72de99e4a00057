"""Spectral quantities of token matrices against their plain definitions."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from sklearn_restf._diagnostics.singular_values import numerically_zero, singular_values, spectra
from tests.reference import diagnostics as plain

QUANTITIES = ("condition_ratio", "rank1_residual", "effective_rank", "stable_rank")


@settings(max_examples=50)
@given(
    st.integers(0, 2**32 - 1),
    st.lists(st.integers(1, 6), min_size=1, max_size=4),
    st.integers(1, 6),
)
def test_against_the_definitions(seed, lengths, width):
    rng = np.random.default_rng(seed)
    matrices = [rng.standard_normal((length, width)) for length in lengths]
    found = spectra(matrices)
    assert found.singular_values.shape == (len(lengths), max(min(t, width) for t in lengths))
    for row, matrix in enumerate(matrices):
        expected = plain.singular_values(matrix)
        rank = min(matrix.shape)
        assert_allclose(found.singular_values[row, :rank], expected, rtol=1e-10, atol=1e-14)
        assert np.isnan(found.singular_values[row, rank:]).all()
        assert_allclose(found.norm[row], expected[0], rtol=1e-12)
        assert_allclose(found.sigma_min[row], expected[-1], rtol=1e-10, atol=1e-14)
        for name in QUANTITIES:
            wanted = getattr(plain, name)(matrix)
            assert_allclose(getattr(found, name)[row], wanted, rtol=1e-9, atol=1e-13)


@pytest.mark.parametrize("scale", [1e-300, 1e-150, 1e150, 1e300])
def test_extreme_magnitudes_neither_overflow_nor_underflow(scale):
    matrix = np.random.default_rng(0).standard_normal((4, 3))
    found, expected = spectra([scale * matrix]), spectra([matrix])
    assert_allclose(found.singular_values / scale, expected.singular_values, rtol=1e-12)
    for name in QUANTITIES:
        assert_allclose(getattr(found, name), getattr(expected, name), rtol=1e-10)


def test_small_singular_values_are_not_lost_in_a_gram_matrix():
    rng = np.random.default_rng(0)
    U, V = (np.linalg.qr(rng.standard_normal((4, 4)))[0] for _ in range(2))
    values = np.array([1.0, 1e-3, 1e-9, 1e-12])
    assert_allclose(singular_values(U * values @ V.T), values, rtol=1e-3)


def test_a_matrix_of_zeros_has_no_ratios():
    found = spectra([np.zeros((3, 2)), np.eye(3, 2)])
    assert found.sigma_min[0] == found.norm[0] == 0
    assert_array_equal(found.singular_values[0], [0, 0])
    for name in QUANTITIES:
        assert np.isnan(getattr(found, name)[0])
        assert np.isfinite(getattr(found, name)[1])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_nan_without_a_warning(bad):
    matrix = np.ones((3, 2))
    matrix[1, 1] = bad
    found = spectra([matrix, np.eye(3, 2)])
    assert np.isnan(found.singular_values[0]).all()
    assert np.isnan(found.sigma_min[0])
    assert np.isnan(found.condition_ratio[0])
    assert_allclose(found.condition_ratio[1], 1)


def test_known_matrices():
    equal_tokens = np.tile([1.0, 2.0, 3.0], (4, 1))
    orthogonal = 2.0 * np.eye(3)
    found = spectra([equal_tokens, orthogonal])
    assert_allclose(found.rank1_residual[0], 0, atol=1e-15)
    assert_allclose(found.effective_rank, [1, 3], rtol=1e-6)
    assert_allclose(found.stable_rank, [1, 3])
    assert_allclose(found.condition_ratio, [0, 1], atol=1e-15)


def test_one_token_has_one_singular_value():
    found = spectra([np.array([[3.0, 4.0]])])
    assert_allclose(found.singular_values, [[5.0]])
    assert found.condition_ratio == 1
    assert found.rank1_residual == 0


def test_numerically_zero_depends_on_the_dtype_of_training():
    matrix = np.diag([1.0, 1e-10])
    spectrum = spectra([matrix, np.eye(2), np.diag([1.0, 0.0])])
    for dtype, expected in ((np.float64, [False, False, True]), (np.float32, [True, False, True])):
        eps = np.finfo(dtype).eps
        assert_array_equal(numerically_zero(spectrum, (2, 2), eps), expected)
        below = [s < plain.numerical_zero(m, dtype) for s, m in ((1e-10, matrix), (1, np.eye(2)))]
        assert below == expected[:2]


def test_a_spectrum_at_the_edge_of_range_overflows_in_silence():
    assert spectra([np.full((3, 3), 1.7e308)]).norm[0] == np.inf
