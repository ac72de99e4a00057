"""The gradient of several models side by side against autograd of each module."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import sklearn_restf.model_selection._sweep as sweep
from sklearn_restf._model import matmul
from sklearn_restf._model.initialization import build_module
from sklearn_restf._model.losses import binary_log_loss, multinomial_log_loss
from tests.training.test_several_models import CLASSIFICATION, REGRESSION, trained

TOLERANCE = {"float64": 1e-12, "float32": 2e-6}  # of the norm of every model's gradient
CASES = [("regressor", name) for name in REGRESSION if name != "constant target"]
CASES += [("classifier", name) for name in CLASSIFICATION]


class Caught(Exception):
    """Carries the objective out of a search."""


def catch(objective, *_):
    raise Caught(objective)


def objective_of(kind, name, monkeypatch, **parameters):
    """Return the objective of a group of models, at other points than the initial ones."""
    monkeypatch.setattr(sweep, "BatchedDescent", catch)
    with pytest.raises(Caught) as caught:
        trained(kind, name, 5, **parameters)
    (objective,) = caught.value.args
    noise = np.random.default_rng(0).standard_normal(objective.theta.shape)
    objective.theta.add_(0.1 * torch.from_numpy(noise).to(objective.theta))
    return objective


def one_by_one(objective):
    """Return value and gradient of the readable module of each model, by autograd."""
    (batch,) = objective.batches
    values, gradients = [], []
    for i, theta in enumerate(objective.theta):
        beta, gamma = (float(strength[i]) for strength in objective.strengths)
        config = replace(objective.config, residual_beta=beta, ffn_residual_beta=gamma)
        module = build_module(config, objective.views.state(theta), dtype=theta.dtype)
        mask = None if batch.mask is None else batch.mask[i]
        value = objective.loss(module(batch.x[i], mask), batch.y[i], batch.weight[i], mask)
        flat = torch.cat([p.reshape(-1) for p in module.parameters()])
        value = value + 0.5 * (objective.decay * flat * flat).sum()
        pieces = torch.autograd.grad(
            value, list(module.parameters()), allow_unused=True, materialize_grads=True
        )
        values.append(value.detach())
        gradients.append(torch.cat([piece.reshape(-1) for piece in pieces]))
    return torch.stack(values), torch.stack(gradients)


def assert_equal_by_model(found, expected, dtype):
    error = (found - expected).norm(dim=1) / expected.norm(dim=1)
    assert float(error.max()) < TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize(("kind", "name"), CASES)
def test_value_and_gradient(kind, name, dtype, monkeypatch):
    objective = objective_of(kind, name, monkeypatch, dtype=dtype)
    value, gradient = one_by_one(objective)
    found = objective.evaluate(lambda tensor: tensor)
    torch.testing.assert_close(found, value, rtol=TOLERANCE[dtype], atol=0.0)
    objective.differentiate()
    assert_equal_by_model(objective.gradient, gradient, dtype)


@pytest.mark.parametrize("name", ["windows", "table", "mean", "last", "ragged", "per token"])
def test_products_by_torch(name, monkeypatch):
    monkeypatch.setattr(matmul, "_numpy_serves", lambda a: False)
    objective = objective_of("regressor", name, monkeypatch)
    objective.evaluate(lambda tensor: tensor)
    objective.differentiate()
    assert_equal_by_model(objective.gradient, one_by_one(objective)[1], "float64")


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
    loss = binary_log_loss if size == 1 else multinomial_log_loss
    value, slope = loss.value_and_slope(logits, y, weight)
    for model in range(2):
        leaf = logits[model].clone().requires_grad_()
        if size == 1:
            terms = torch.nn.functional.softplus(-y[model] * leaf)[:, 0]
        else:
            terms = torch.logsumexp(leaf, 1) - (leaf * y[model]).sum(1)
        expected = terms @ weight[model]
        torch.testing.assert_close(value[model], expected.detach(), rtol=1e-12, atol=1e-12)
        (gradient,) = torch.autograd.grad(expected, leaf)
        torch.testing.assert_close(slope[model], gradient, rtol=1e-12, atol=1e-12)
