"""The step rule on the host and the one on the device decide alike, whatever happens."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sklearn_restf._training import FIRST_RATE, SMALLEST_RATE, DeviceStepRule, StepRule, first_rate
from tests.builders import X2D, X3D, YR, both, make_regressor, recorded

S, P = 3, 2
LOSSES = st.one_of(st.floats(0.0, 4.0), st.sampled_from([math.nan, math.inf, -math.inf, 1.0]))


@st.composite
def rules(draw):
    shared = {
        "momentum": draw(st.sampled_from([0.0, 0.5, 0.98])),
        "guarded": draw(st.booleans()),
        "growth": draw(st.sampled_from([1.0, 1.1])),
    }
    rates = st.sampled_from([0.1, 7.0, 3 * SMALLEST_RATE])
    return [StepRule(draw(rates), **shared, moving=draw(st.booleans())) for _ in range(S)]


@settings(max_examples=200)
@given(rules(), st.lists(st.tuples(*[LOSSES] * S), min_size=1, max_size=25), st.integers(0, 99))
def test_host_and_device_take_the_same_steps(host, trials, seed):
    device = DeviceStepRule.of(host, torch.device("cpu"))
    generator = np.random.default_rng(seed)
    loss, going = np.ones(S), np.ones(S, dtype=bool)
    for tried in trials:
        gradient, velocity = torch.from_numpy(generator.standard_normal((2, S, P)))
        step = device.step(gradient, velocity)
        for i in np.flatnonzero(going):
            expected = -host[i].rate * gradient[i] + host[i].push * velocity[i]
            torch.testing.assert_close(step[i], expected, rtol=1e-14, atol=1e-300)
        accepted, stalled = device.judge(
            torch.from_numpy(loss.copy()), torch.tensor(tried, dtype=torch.float64),
            torch.from_numpy(going.copy()),
        )  # fmt: skip
        for i, rule in enumerate(host):
            if not going[i]:
                assert not accepted[i]
                assert not stalled[i]
                continue
            verdict = rule.judge(loss[i], tried[i])
            assert bool(accepted[i]) == (verdict in ("accepted", "diverged"))
            assert bool(stalled[i]) == (verdict == "stalled")
            going[i] = verdict not in ("stalled", "diverged")
            loss[i] = tried[i] if accepted[i] else loss[i]
            if going[i]:
                assert (float(device.rate[i]), bool(device.moving[i])) == (rule.rate, rule.moving)


def test_guarded_steps_never_increase_the_loss():
    rule = StepRule(0.1, 0.9, guarded=True, growth=1.1)
    assert rule.judge(1.0, 1.0) == "accepted"
    assert rule.last_rate == 0.1
    for worse in (1.1, math.nan, math.inf):
        assert rule.judge(1.0, worse) == "again"
    assert rule.last_rate == 0.1


@pytest.mark.parametrize("norm", [4.0, 0.0, math.inf, math.nan])
def test_the_first_rate_is_one_over_the_curvature(norm):
    assert first_rate("theory", lambda: norm) == (0.25 if norm == 4.0 else FIRST_RATE)
    assert first_rate(0.3, None) == 0.3
    assert first_rate("adaptive", None) == FIRST_RATE


# --- as a user sees it -----------------------------------------------------------------------

STANDARD_Y = (YR - YR.mean()) / YR.std()


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("alpha", [0.0, 0.1])
@pytest.mark.parametrize("chunk_size", [None, 7])
def test_constant_rate_is_gradient_descent_on_all_samples(momentum, alpha, chunk_size):
    """The very iterates of torch's own SGD, fed with all samples at once."""
    estimator, recorder = recorded(
        make_regressor(
            learning_rate=0.01,
            momentum=momentum,
            alpha=alpha,
            standardize=False,
            chunk_size=chunk_size,
        ),
        X3D,
        STANDARD_Y,
    )
    module = estimator.module_
    module.load_state_dict(recorder.weights_[0])
    named = list(module.named_parameters())
    weights = [p for name, p in named if not name.endswith("_bias")]
    biases = [p for name, p in named if name.endswith("_bias")]
    groups = [{"params": weights, "weight_decay": alpha}, {"params": biases}]
    optimizer = torch.optim.SGD(groups, lr=0.01, momentum=momentum)
    x, y = torch.from_numpy(X3D), torch.from_numpy(STANDARD_Y)
    losses = []
    for _ in range(21):
        optimizer.zero_grad()
        loss = 0.5 * ((module(x)[:, 0] - y) ** 2).mean()
        squares = sum(float((w.detach() ** 2).sum()) for w in weights)
        losses.append(float(loss.detach()) + 0.5 * alpha * squares)
        loss.backward()
        optimizer.step()
    np.testing.assert_allclose(estimator.loss_curve_, losses[1:], rtol=1e-9)
    assert recorder.rates_ == [0.01] * 20
    assert estimator.learning_rate_ == 0.01


def test_theory_rate_is_one_over_the_squared_norm_of_the_jacobian():
    estimator, recorder = recorded(
        make_regressor(
            learning_rate="theory",
            momentum=0.0,
            alpha=0.0,
            standardize=False,
            d_ff=4,
            diagnostics="full",
        ),
        X3D[:, :4],
        STANDARD_Y,
    )
    module = estimator.module_
    start = recorder.weights_[0]

    def predictions(weights):
        return torch.func.functional_call(module, weights, torch.from_numpy(X3D[:, :4]))[:, 0]

    jacobian = torch.func.jacrev(predictions)(start)
    matrix = torch.cat([block.reshape(64, -1) for block in jacobian.values()], dim=1)
    norm = float(torch.linalg.matrix_norm(matrix, 2)) ** 2 / 64  # of the mean loss
    assert recorder.rates_[0] == pytest.approx(1 / norm, rel=0.02)
    assert estimator.convergence_diagnostics_.jacobian_norm == pytest.approx(norm, rel=0.02)
    assert set(recorder.rates_) == {recorder.rates_[0]}  # no step had to be shortened
    assert (np.diff(estimator.loss_curve_) < 0).all()


@both
@pytest.mark.parametrize("learning_rate", ["adaptive", "theory"])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_automatic_rates_never_increase_the_loss(make, y, learning_rate, momentum, dtype):
    estimator, recorder = recorded(
        make(learning_rate=learning_rate, momentum=momentum, dtype=dtype, max_iter=60), X2D, y
    )
    losses = np.array(estimator.loss_curve_)
    assert (np.diff(losses) <= 0).all()
    assert losses[-1] < 0.9 * losses[0]
    growth = np.diff(np.log(recorder.rates_))
    assert (growth <= (1e-9 if learning_rate == "theory" else np.log(1.1) + 1e-9)).all()


@both
def test_no_rate_at_all_is_needed_for_bad_starts(make, y):
    """Weights far too large: the first steps are cut down until the loss falls."""
    estimator = make(init_scale=20.0, max_iter=50).fit(X2D, y)
    assert np.isfinite(estimator.loss_curve_).all()
    assert estimator.loss_ < estimator.loss_curve_[0]
