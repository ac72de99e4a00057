"""The measured rate on curves whose rate is known."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sklearn_restf._diagnostics.convergence_rate import measure_rate, moving_average, noise_level
from tests.reference.diagnostics import rate_from_decrements


def speed_error(estimate, rate):
    """Relative error of 1 - rate, stricter than that of the rate itself."""
    return abs((1 - estimate.rate) / (1 - rate) - 1)


@pytest.mark.parametrize("floor", [0.0, 1.0, 100.0])
@pytest.mark.parametrize("n_iter", [20, 50, 300, 3000])
@pytest.mark.parametrize("rate", [0.3, 0.5, 0.9, 0.99, 0.999])
def test_one_mode_is_exact_whatever_the_floor(rate, n_iter, floor):
    estimate = measure_rate(floor + rate ** np.arange(n_iter + 1))
    assert speed_error(estimate, rate) < 1e-3
    assert estimate.r2 > 0.9999
    assert not estimate.reason


@given(st.floats(0.5, 0.995), st.floats(-6, 6), st.floats(-3, 3), st.integers(30, 500))
def test_one_mode_is_exact_at_any_magnitude(rate, log_scale, log_floor, n_iter):
    t = np.arange(n_iter + 1)
    estimate = measure_rate(10**log_scale * (rate**t + 10**log_floor))
    assert speed_error(estimate, rate) < 1e-2


@pytest.mark.parametrize("floor", [0.0, 0.3, 30.0])
@pytest.mark.parametrize(
    ("fast", "slow", "fast_share", "n_iter"),
    [
        (0.5, 0.95, 1, 200),
        (0.9, 0.99, 1, 300),
        (0.9, 0.99, 10, 300),
        (0.8, 0.99, 100, 400),
        (0.9, 0.98, 1, 5000),
        (0.9, 0.999, 1, 2000),
    ],
)
def test_the_slow_of_two_modes_once_the_fast_one_died(fast, slow, fast_share, n_iter, floor):
    t = np.arange(n_iter + 1)
    estimate = measure_rate(floor + fast_share * fast**t + slow**t)
    assert speed_error(estimate, slow) < 0.02


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("noise", [1e-5, 1e-4, 1e-3])
@pytest.mark.parametrize(("rate", "n_iter"), [(0.95, 200), (0.97, 300), (0.99, 1000), (0.97, 3000)])
@pytest.mark.parametrize("fast_share", [0, 1])
def test_noise_and_a_floor(fast_share, rate, n_iter, noise, seed):
    t = np.arange(n_iter + 1)
    rng = np.random.default_rng(seed)
    curve = 0.5 + rate**t + fast_share * 0.8**t + noise * rng.standard_normal(n_iter + 1)
    estimate = measure_rate(curve)
    assert abs(estimate.rate / rate - 1) < 0.02
    assert speed_error(estimate, rate) < (0.02 if noise < 1e-3 else 0.05)
    assert estimate.r2 > 0.99


@pytest.mark.parametrize("noise", [0.0, 1e-4])
@pytest.mark.parametrize(
    ("plateau", "rate", "n_iter"),
    [(50, 0.95, 200), (300, 0.97, 500), (300, 0.95, 2000), (900, 0.95, 1000)],
)
def test_an_early_plateau_and_a_flat_tail_do_not_count(plateau, rate, n_iter, noise):
    t = np.arange(n_iter + 1)
    excess = (1 - 1e-5 * np.minimum(t, plateau)) * rate ** np.maximum(t - plateau, 0.0)
    rng = np.random.default_rng(0)
    estimate = measure_rate(0.2 + excess + noise * rng.standard_normal(n_iter + 1))
    assert speed_error(estimate, rate) < 0.02
    assert plateau <= estimate.window[0] < estimate.window[1] <= n_iter


def test_escape_from_a_saddle():
    """A logistic curve: flat, steep, and in the end exponential."""
    t = np.arange(201)
    estimate = measure_rate(0.2 + 1 / (1 + np.exp(0.05 * (t - 50))))
    assert speed_error(estimate, np.exp(-0.05)) < 0.02


def test_swings_of_momentum_at_the_start_are_not_taken_for_noise():
    """Heavy-ball steps on a quadratic: the first ones overshoot."""
    eigenvalues = np.array([1.0, 2e-3])
    theta, velocity, losses = np.ones(2), np.zeros(2), []
    for _ in range(1500):
        losses.append(0.5 * eigenvalues @ theta**2)
        velocity = 0.9 * velocity - 0.1 * eigenvalues * theta
        theta = theta + velocity
    assert (np.diff(losses) > 0).any()
    estimate = measure_rate(losses)
    # the slow mode: the larger root of r^2 - (1 + momentum - lr lambda) r + momentum
    trace = 1.9 - 0.1 * eigenvalues[1]
    slow = ((trace + np.sqrt(trace**2 - 3.6)) / 2) ** 2
    assert speed_error(estimate, slow) < 0.02
    assert estimate.window[1] > 1490


def test_rounding_to_float32_does_no_harm():
    curve = (1 + 0.95 ** np.arange(3001)).astype(np.float32)
    assert speed_error(measure_rate(curve), 0.95) < 0.02


def test_agrees_with_the_plain_definition():
    curve = 0.3 + 0.9 ** np.arange(60) + 0.5 * 0.6 ** np.arange(60)
    estimate = measure_rate(curve)
    start, end = estimate.window
    plain = rate_from_decrements(curve[start : end + 1], lag=10)
    assert estimate.rate == pytest.approx(plain, rel=1e-3)


def test_a_broad_spectrum_looks_faster_than_it_is():
    """Only the modes still active are seen: optimistic about the end, and the fit looks good."""
    t = np.arange(1001)
    rates = 1 - np.geomspace(1e-4, 1, 20)
    estimate = measure_rate((rates[:, None] ** t).sum(axis=0))
    slowest = rates.max()
    assert 1 - estimate.rate > 3 * (1 - slowest)
    assert estimate.rate < slowest
    assert estimate.r2 > 0.98


@pytest.mark.parametrize(
    ("losses", "reason"),
    [
        ([], "too few"),
        ([1.0], "too few"),
        ([1.0, 0.5, 0.25], "too few"),
        (np.ones(100), "too few"),
        (np.zeros(100), "too few"),
        (np.arange(100.0), "too few"),
        ([*np.ones(50), np.nan], "not finite"),
        ([1.0, np.inf] * 20, "not finite"),
    ],
)
def test_no_rate_without_a_falling_loss_and_a_reason_why(losses, reason):
    estimate = measure_rate(losses)
    assert np.isnan(estimate.rate)
    assert reason in estimate.reason


def test_a_straight_line_does_not_contract():
    estimate = measure_rate(np.linspace(1, 0, 50))
    assert estimate.rate == pytest.approx(1)
    assert np.isnan(estimate.r2)


def test_pure_noise_has_no_rate():
    rng = np.random.default_rng(0)
    estimate = measure_rate(1 + rng.standard_normal(500))
    assert np.isnan(estimate.rate)


def test_losses_are_not_written_to():
    curve = 1 + 0.9 ** np.arange(50)
    curve.flags.writeable = False
    measure_rate(curve)


def test_noise_level():
    rng = np.random.default_rng(0)
    assert noise_level(2 + 0.1 * rng.standard_normal(5000)) == pytest.approx(0.1, rel=0.05)
    assert noise_level(0.9 ** np.arange(20)) == 0
    assert noise_level(np.array([1.0])) == 0
    assert noise_level(np.array([])) == 0
    assert noise_level(np.concatenate([[1.0, 5.0, 2.0], 2 - 0.01 * np.arange(60)])) == 0


def test_moving_average():
    average = moving_average(np.array([1.0, 2.0, 6.0, 4.0]), 2)
    np.testing.assert_allclose(average + 4.0, [1.5, 4.0, 5.0])
