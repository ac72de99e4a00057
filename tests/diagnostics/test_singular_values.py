"""Spectral quantities of token matrices against their plain definitions."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from sklearn_restf import diagnose
from sklearn_restf._diagnostics.singular_values import numerically_zero, singular_values, spectra
from tests.builders import make_config, random_module
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
    module = random_module(
        make_config(n_tokens=4, d_model=3, residual_beta=0.5), np.random.default_rng(0)
    )
    with torch.no_grad():
        module.blocks[0].value.zero_()  # Z = residual_beta * F
    x = np.stack([with_singular_values([1.0, 0.1, smallest], 4, seed) for seed in range(3)])
    found = diagnose(module, x)
    assert_allclose(found.sigma_min, 0.5 * smallest, rtol=5e-16 / smallest + 1e-12)
    assert_allclose(found.norm, 0.5)


def test_a_stack_and_a_list_have_equal_spectra():
    stack = np.random.default_rng(0).normal(size=(4, 5, 3))
    one, other = spectra(stack), spectra(list(stack))
    for name, value in vars(one).items():
        assert_allclose(value, getattr(other, name), rtol=1e-13)


def test_one_matrix_that_fails_spoils_no_other(monkeypatch):
    stack = np.random.default_rng(0).normal(size=(3, 4, 2))
    svd = np.linalg.svd

    def picky(matrices, **options):
        if matrices.ndim == 3 or np.array_equal(matrices, stack[1] / np.abs(stack[1]).max()):
            raise np.linalg.LinAlgError("SVD did not converge")
        return svd(matrices, **options)

    expected = svd(stack, compute_uv=False)
    monkeypatch.setattr(np.linalg, "svd", picky)
    found = singular_values(stack)
    assert_allclose(found[[0, 2]], expected[[0, 2]])
    assert np.isnan(found[1]).all()
