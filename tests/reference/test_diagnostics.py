"""The oracle's diagnostics on matrices and loss curves whose answers are known."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from tests.builders import SEEDS, THEORY_ACTIVATIONS, make_model
from tests.reference.diagnostics import (
    certified_loss_bound,
    collapse_floor,
    condition_ratio,
    effective_rank,
    gradient_descent,
    is_certified,
    local_pl_constants,
    numerical_zero,
    rank1_residual,
    rate_from_decrements,
    rate_from_gradients,
    rate_from_losses,
    stable_rank,
    sufficient_decrease,
)
from tests.reference.theory import (
    certificate,
    jacobian,
    smallest_kernel_eigenvalue,
    spectral_norm,
)


def test_spectral_diagnostics_of_known_matrices():
    assert stable_rank(np.eye(4)) == pytest.approx(4)
    assert effective_rank(np.eye(4)) == pytest.approx(4)
    assert condition_ratio(np.eye(4)) == pytest.approx(1)
    assert rank1_residual(np.eye(4)) == pytest.approx(np.sqrt(3) / 2)
    diagonal = np.array([[3.0, 0.0], [0.0, 1.0], [0.0, 0.0]])
    assert stable_rank(diagonal) == pytest.approx(10 / 9)
    assert condition_ratio(diagonal) == pytest.approx(1 / 9)
    assert effective_rank(diagonal) == pytest.approx(4 / 3**0.75)
    assert numerical_zero(diagonal, np.float32) == pytest.approx(9 * 2.0**-23)


def test_equal_tokens_have_rank_one():
    z = np.tile([1.0, -2.0, 0.5], (4, 1))
    assert rank1_residual(z) == 0
    assert stable_rank(z) == pytest.approx(1)
    assert effective_rank(z) == pytest.approx(1, abs=1e-12)
    assert condition_ratio(z) < 1e-30


def test_diagnostics_of_nothing_are_nan():
    zeros = np.zeros((3, 2))
    for diagnostic in (condition_ratio, stable_rank, effective_rank, rank1_residual):
        assert np.isnan(diagnostic(zeros))


@given(SEEDS, st.integers(1, 6), st.integers(1, 6))
def test_ranges_of_the_spectral_diagnostics(seed, n_tokens, width):
    z = np.random.default_rng(seed).standard_normal((n_tokens, width))
    rank = min(n_tokens, width)
    assert 1 - 1e-12 <= stable_rank(z) <= rank + 1e-12
    assert 1 - 1e-12 <= effective_rank(z) <= rank + 1e-12
    assert 0 <= condition_ratio(z) <= 1 + 1e-12
    assert 0 <= rank1_residual(z) <= 1 + 1e-12
    for diagnostic in (stable_rank, effective_rank, condition_ratio, rank1_residual):
        assert diagnostic(-7 * z) == pytest.approx(diagnostic(z), rel=1e-9, abs=1e-12)


def test_collapse_floor_by_hand():
    y = np.array([[[1.0], [3.0]], [[5.0], [5.0]]])
    assert collapse_floor(y) == pytest.approx(1.0)


@pytest.mark.parametrize("activation", THEORY_ACTIVATIONS)
@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("seed", range(3))
def test_a_posteriori_certificate(activation, beta, seed):
    sizes = {"n": 2, "n_tokens": 2, "d": 5, "d_ff": 8}
    model, y = make_model(seed, **sizes, beta=beta, activation=activation)
    step = 0.3 / spectral_norm(jacobian(model)) ** 2
    losses, squares, weights = gradient_descent(model, y, step, 30)
    alphas, decrease = (
        local_pl_constants(losses, squares),
        sufficient_decrease(losses, squares, step),
    )
    assert_allclose(losses[1:] / losses[:-1], 1 - 2 * decrease * step * alphas[:-1], rtol=1e-12)
    assert is_certified(losses, squares, step)
    assert losses[-1] <= certified_loss_bound(losses, squares, step) * (1 + 1e-12)
    # the a-priori form, with the smallest constant that the run met
    alpha = alphas[:-1].min()
    assert np.all(losses <= (1 - step * alpha) ** np.arange(31) * losses[0] * (1 + 1e-12))
    lengths = step * np.sqrt(squares[:-1])
    falls = np.sqrt(losses[:-1]) - np.sqrt(losses[1:])
    assert np.all(falls >= step * squares[:-1] / (4 * np.sqrt(losses[:-1])) * (1 - 1e-9))
    assert np.all(falls >= lengths * np.sqrt(2 * alpha) / 4 * (1 - 1e-9))
    assert lengths.sum() <= np.sqrt(8 * losses[0] / alpha)
    # a Rayleigh quotient of the kernel, at the start and at the end
    for where, local in ((model, alphas[0]), (model.with_weights(weights), alphas[-1])):
        assert certificate(where).alpha <= smallest_kernel_eigenvalue(where) * (1 + 1e-9) + 1e-12
        assert smallest_kernel_eigenvalue(where) <= local * (1 + 1e-9)
        assert local <= spectral_norm(jacobian(where)) ** 2 * (1 + 1e-9)


def test_small_steps_do_twice_what_is_guaranteed():
    model, y = make_model(1, d=5, activation="tanh")
    step = 1e-5 / spectral_norm(jacobian(model)) ** 2
    losses, squares, _ = gradient_descent(model, y, step, 3)
    assert_allclose(sufficient_decrease(losses, squares, step), 1, rtol=1e-3)


def test_a_step_that_is_too_long_is_not_certified():
    model, y = make_model(1, d=5)
    step = 20 / spectral_norm(jacobian(model)) ** 2
    losses, squares, _ = gradient_descent(model, y, step, 2)
    assert not is_certified(losses, squares, step)


def curve(rates, amplitudes, floor=0.0, n_iterations=400):
    """Loss and squared gradient norm of gradient descent (unit step) on a quadratic."""
    t = np.arange(n_iterations)[:, None]
    modes = np.array(amplitudes) * np.array(rates) ** t
    curvature = 1 - np.sqrt(rates)
    return floor + modes.sum(axis=1), (2 * curvature * modes).sum(axis=1)


@pytest.mark.parametrize("floor", [0.0, 0.5, 100.0])
@pytest.mark.parametrize("rate", [0.9, 0.99, 0.999])
def test_rate_of_one_mode(rate, floor):
    losses, squares = curve([rate], [1.0], floor, 200)
    assert 1 - rate_from_decrements(losses, 10) == pytest.approx(1 - rate, rel=1e-4)
    assert 1 - rate_from_gradients(squares) == pytest.approx(1 - rate, rel=1e-6)
    slope = 1 - rate_from_losses(losses)
    if floor == 0:
        assert slope == pytest.approx(1 - rate, rel=1e-9)
    else:
        assert slope < 0.7 * (1 - rate)


@pytest.mark.parametrize("floor", [0.0, 0.5])
def test_rate_of_two_modes_is_the_slow_one_once_the_fast_one_is_gone(floor):
    losses, squares = curve([0.8, 0.98], [5.0, 1.0], floor)
    late = slice(80, 300)
    assert 1 - rate_from_decrements(losses[late], 10) == pytest.approx(0.02, rel=0.02)
    assert 1 - rate_from_gradients(squares[late]) == pytest.approx(0.02, rel=0.02)


def test_rate_of_a_broad_spectrum_is_that_of_the_modes_still_active():
    rates = 1 - np.logspace(-4, -0.3, 20)
    losses, squares = curve(rates, np.ones(20), n_iterations=1000)
    slowest = 1 - rates.max()
    assert 1 - rate_from_decrements(losses[200:], 50) > 2 * slowest
    assert 1 - rate_from_gradients(squares[200:]) > 2 * slowest


def test_rate_is_nan_when_the_loss_stands_still():
    assert np.isnan(rate_from_decrements(np.ones(50), 5))
