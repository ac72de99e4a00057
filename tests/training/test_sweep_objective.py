"""The gradient of many models side by side against autograd on the plain equations."""

import numpy as np
import pytest
import torch

import sklearn_restf.model_selection._sweep as sweep
from sklearn_restf._model import matmul
from sklearn_restf._model.losses import binary_log_loss, multinomial_log_loss
from sklearn_restf._training.sweep_objective import StackedSamples, losses_and_slopes
from tests.training.test_sweep import CLASSIFICATION, REGRESSION, trained

TOLERANCE = {"float64": 1e-12, "float32": 2e-6}  # of the norm of every model's gradient
CASES = [("regressor", name) for name in REGRESSION if name != "constant target"]
CASES += [("classifier", name) for name in CLASSIFICATION]


class Caught(Exception):
    """Carries the objective and the initial parameters out of a search."""


def catch(objective, theta, _rates, _settings):
    raise Caught(objective, theta)


def objective_of(kind, name, monkeypatch, **parameters):
    """Return the objective of a group of models, and other points than the initial ones."""
    monkeypatch.setattr(sweep, "StackedDescent", catch)
    with pytest.raises(Caught) as caught:
        trained(kind, name, 5, **parameters)
    objective, theta = caught.value.args
    noise = np.random.default_rng(0).standard_normal((3, *theta.shape))
    return objective, [theta + 0.1 * torch.from_numpy(n).to(theta) for n in noise]


def by_autograd(objective, theta):
    """Return value and gradient of the plain equations with a model axis."""
    theta = theta.clone().requires_grad_()
    value = objective._losses(theta, objective.train, objective.strengths)
    value = value + 0.5 * (objective.decay * theta * theta).sum(1)
    return value.detach(), torch.autograd.grad(value.sum(), theta)[0]


def assert_equal_by_model(found, expected, dtype):
    error = (found - expected).norm(dim=1) / expected.norm(dim=1)
    assert float(error.max()) < TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize(("kind", "name"), CASES)
def test_value_and_gradient(kind, name, dtype, monkeypatch):
    objective, (theta, _, _) = objective_of(kind, name, monkeypatch, dtype=dtype)
    value, gradient = by_autograd(objective, theta)
    torch.testing.assert_close(objective.value(theta), value, rtol=TOLERANCE[dtype], atol=0.0)
    assert_equal_by_model(objective.gradient(theta), gradient, dtype)


@pytest.mark.parametrize("numpy", [True, False])
@pytest.mark.parametrize("name", ["windows", "table", "mean", "ragged", "per token", "two layers"])
def test_gradient_where_some_models_were_evaluated_again(name, numpy, monkeypatch):
    if not numpy:
        monkeypatch.setattr(matmul, "_numpy_serves", lambda a: False)
    objective, (theta, second, third) = objective_of("regressor", name, monkeypatch)
    objective.value(theta)
    for rows, other in (([0, 2, 3], second), ([3], third)):
        theta[rows] = other[rows]
        value = objective.value_again(theta[rows], torch.tensor(rows))
        torch.testing.assert_close(value, by_autograd(objective, theta)[0][rows])
    assert_equal_by_model(objective.gradient(theta), by_autograd(objective, theta)[1], "float64")


@pytest.mark.parametrize("size", [1, 3])
def test_logits_of_any_size(size):
    """The log-loss and its derivative where exponentials over- and underflow."""
    generator = torch.Generator().manual_seed(0)
    logits = 1e3 * torch.randn(2, 5, size, generator=generator, dtype=torch.float64)
    classes = torch.randint(size, (2, 5), generator=generator)
    y = torch.nn.functional.one_hot(classes, size).double()
    if size == 1:
        y = 2.0 * torch.randint(2, (2, 5, 1), generator=generator).double() - 1.0
    weight = torch.rand(2, 5, generator=generator, dtype=torch.float64)
    samples = StackedSamples(logits, None, y, weight)
    loss = binary_log_loss if size == 1 else multinomial_log_loss
    value, slope = losses_and_slopes(loss, logits, samples)
    for model in range(2):
        leaf = logits[model].clone().requires_grad_()
        expected = loss(leaf, y[model], weight[model])
        torch.testing.assert_close(value[model], expected.detach(), rtol=1e-12, atol=1e-12)
        (gradient,) = torch.autograd.grad(expected, leaf)
        torch.testing.assert_close(slope[model], gradient, rtol=1e-12, atol=1e-12)
