"""The step rules of gradient descent, against torch and on toy objectives."""

import math

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from sklearn_restf._data.arrays import RawTokens
from sklearn_restf._data.tokens import TokenLayout
from sklearn_restf._model import (
    binary_log_loss,
    build_module,
    is_weight,
    multinomial_log_loss,
    state_of,
)
from sklearn_restf._training import SHRINK, SMALLEST_RATE, GradientDescent, StepRule
from tests.builders import make_config, make_objective, random_problem, random_state_of


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("chunk_size", [None, 2])
def test_unguarded_steps_are_those_of_torch(momentum, chunk_size):
    config, state, tokens, layout, y, weight = random_problem(activation="tanh")
    objective = make_objective(
        config, state, tokens, layout, y, weight, alpha=0.01, chunk_size=chunk_size
    )
    optimizer = GradientDescent(objective, StepRule(0.02, momentum, guarded=False, growth=1.0))
    optimizer.start()

    module = build_module(config, state)
    groups = [
        {
            "params": [p for name, p in module.named_parameters() if is_weight(name) == penalised],
            "weight_decay": 0.01 * penalised,
        }
        for penalised in (True, False)
    ]
    torch_optimizer = torch.optim.SGD(groups, lr=0.02, momentum=momentum)
    x, target, share = (torch.from_numpy(v) for v in (tokens.values, y, weight / weight.sum()))
    for _ in range(30):
        torch_optimizer.zero_grad()
        (0.5 * (module(x) - target).square().sum(1) @ share).backward()
        torch_optimizer.step()
        assert optimizer.step() == ""
        for ours, theirs in zip(objective.module.parameters(), module.parameters(), strict=True):
            assert_allclose(ours.detach(), theirs.detach(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("lr", [1e-4, 1.0, 1e6])
def test_guarded_steps_never_increase_the_objective(lr, momentum):
    objective = make_objective(*random_problem(activation="relu"), alpha=0.01)
    optimizer = GradientDescent(objective, StepRule(lr, momentum, guarded=True, growth=1.1))
    losses = [optimizer.start()]
    for _ in range(60):
        assert optimizer.step() == ""
        losses.append(optimizer.loss)
        assert_allclose(objective.evaluate(), optimizer.loss, rtol=1e-14)
        objective.differentiate()
    assert (np.diff(losses) <= 0).all()
    assert losses[-1] < losses[0]


class Toy:
    """An objective of one parameter, given as a function with its derivative."""

    def __init__(self, f, derivative, start):
        self.f, self.derivative = f, derivative
        self.theta = torch.tensor([start], dtype=torch.float64)
        self.gradient = torch.zeros(1, dtype=torch.float64)
        self.parameters = [torch.nn.Parameter(self.theta)]
        self.tried = []

    def evaluate(self):
        self.tried.append(float(self.theta))
        return self.f(float(self.theta))

    def differentiate(self):
        self.gradient.fill_(self.derivative(float(self.theta)))


def parabola(start=1.0):
    return Toy(lambda x: 0.5 * x * x, lambda x: x, start)


def descend(toy, **options):
    rule = {"rate": 0.1, "momentum": 0.0, "guarded": True, "growth": 1.0} | options
    optimizer = GradientDescent(toy, StepRule(**rule))
    optimizer.start()
    return optimizer


def test_the_rate_is_halved_until_the_objective_falls():
    toy = parabola()
    optimizer = descend(toy, rate=7.0, growth=1.1)
    assert optimizer.step() == ""
    assert_allclose(toy.tried, [1, 1 - 7.0, 1 - 3.5, 1 - 1.75])
    assert_allclose(optimizer.param_groups[0]["lr"], 1.1 * 7.0 * SHRINK**2)


def test_steps_call_the_hooks_that_torch_offers():
    optimizer, called = descend(parabola(), rate=0.1), []
    optimizer.register_step_post_hook(lambda *args: called.append(1))
    assert optimizer.step() == ""
    assert optimizer.advance() == ""
    assert len(called) == 1


def test_momentum_is_dropped_before_the_rate_is_halved():
    toy = parabola()
    optimizer = descend(toy, rate=1.0, momentum=0.9)
    optimizer.velocity.fill_(-5.0)
    optimizer.rule.moving = True
    assert optimizer.step() == ""
    assert_allclose(toy.tried, [1, 1 - 1 - 4.5, 0])  # with momentum, then without
    assert optimizer.param_groups[0]["lr"] == 1.0
    assert_allclose(optimizer.velocity, [-1.0])
    assert optimizer.rule.moving


def test_a_step_to_nan_or_inf_is_rejected():
    for nowhere in (math.nan, math.inf):
        toy = Toy(lambda x, bad=nowhere: 0.5 * x * x if x > 0 else bad, lambda x: x, 1.0)
        optimizer = descend(toy, rate=4.0)
        assert optimizer.step() == ""
        assert optimizer.loss < 0.5
        assert float(toy.theta) > 0


def test_an_unguarded_step_to_nan_diverges():
    toy = Toy(lambda x: 0.5 * x * x if x > 0 else math.nan, lambda x: x, 1.0)
    assert descend(toy, rate=4.0, guarded=False).step() == "diverged"


def test_an_unguarded_step_may_increase_the_objective():
    optimizer = descend(parabola(), rate=3.0, guarded=False)
    assert optimizer.step() == ""
    assert_allclose(optimizer.loss, 2.0)


def test_stalled_where_no_step_helps_and_nothing_moves():
    toy = Toy(lambda x: 1.0, lambda x: 1e6, 1.0)
    optimizer = descend(toy, momentum=0.9)
    toy.f = lambda x: 2.0  # whatever the step
    assert optimizer.step() == "stalled"
    assert float(toy.theta) == 1.0
    assert optimizer.param_groups[0]["lr"] < SMALLEST_RATE


def test_the_rate_grows_after_every_accepted_step():
    optimizer = descend(parabola(), rate=1e-3, growth=1.1)
    for _ in range(5):
        optimizer.step()
    assert_allclose(optimizer.param_groups[0]["lr"], 1e-3 * 1.1**5)


def test_start_at_a_point_that_is_not_finite():
    toy = Toy(lambda x: math.nan, lambda x: 1.0, 1.0)
    optimizer = GradientDescent(toy, StepRule(1.0, 0.0, guarded=True, growth=1.0))
    assert math.isnan(optimizer.start())
    assert not optimizer.objective.gradient.any()  # no gradient was asked for


def test_filler_columns_of_narrow_groups_stay_zero():
    """A table of 5 features in 3 groups: 2, 2 and 1 features."""
    rng = np.random.default_rng(0)
    config = make_config(embedding="grouped", token_width=2, n_features=5)
    tokens = RawTokens(rng.standard_normal((9, 5)))
    layout = TokenLayout("table", 5, 3, 3)
    state = random_state_of(config, rng)
    y = rng.standard_normal((9, 2))
    objective = make_objective(config, state, tokens, layout, y, alpha=0.1)
    optimizer = GradientDescent(objective, StepRule(0.1, 0.9, guarded=True, growth=1.1))
    optimizer.start()
    for _ in range(20):
        optimizer.step()
    weight = state_of(objective.module)["embedding_weight"]
    assert not weight[2, 1].any()
    assert weight[2, 0].all()
    assert weight[:2].all()


def test_losses_agree_with_their_definitions_at_extreme_logits():
    logits = torch.tensor([[800.0], [-800.0]], dtype=torch.float64)
    y, weight = torch.tensor([[1.0], [1.0]]), torch.tensor([0.5, 0.5])
    assert_allclose(binary_log_loss(logits, y, weight), 400.0)
    logits = torch.tensor([[800.0, 0.0, -800.0]], dtype=torch.float64)
    y = torch.tensor([[0.0, 0.0, 1.0]])
    assert_allclose(multinomial_log_loss(logits, y, torch.ones(1)), 1600.0)
