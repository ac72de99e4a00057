"""The step rule on the host and the one on the device decide alike, whatever happens."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sklearn_restf._training.step_rule import (
    FIRST_RATE,
    SMALLEST_RATE,
    DeviceStepRule,
    StepRule,
    first_rate,
)

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
