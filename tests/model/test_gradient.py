"""The closed-form gradient against autograd of the plain module."""

import itertools

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from sklearn_restf._model import (
    ACTIVATIONS,
    ClosedForm,
    ModuleConfig,
    binary_log_loss,
    build_module,
    has_closed_form,
    initial_state,
    matmul,
    multinomial_log_loss,
    squared_error,
)

N, T, W = 5, 6, 3


@pytest.fixture(autouse=True, params=["numpy", "torch"])
def library(request, monkeypatch):
    """Products by either library, whatever the number of threads."""
    monkeypatch.setattr(matmul, "_numpy_serves", lambda a: request.param == "numpy")


def config_of(pooling, embedding, activation="relu", ragged=False, **options):
    return ModuleConfig(
        n_tokens=None if ragged else T,
        token_width=W,
        d_model=W if embedding == "none" else 4,
        n_features=T * W if embedding == "grouped" else W,
        embedding=embedding,
        d_qk=2,
        d_ff=5,
        activation=activation,
        pooling=pooling,
        max_tokens=T,
        **{"n_outputs": 2, "ffn_residual_beta": 0.7, **options},
    )


def batch_of(ragged, dtype=torch.float64):
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.standard_normal((N, T, W))).to(dtype)
    if not ragged:
        return x, None
    mask = torch.arange(T) < torch.tensor([1, 6, 3, 2, 6])[:, None]
    return torch.where(mask[:, :, None], x, 0.0), mask


def gradients_both_ways(config, dtype=torch.float64, passes=1):
    """Return predictions and gradients of the plain module and of the closed form."""
    ragged = config.n_tokens is None
    rng = np.random.RandomState(0)
    state = initial_state(config, rng, init="gaussian", init_scale=1.0)
    state["readout_bias"] = rng.standard_normal(config.n_outputs)
    module = build_module(config, state, dtype=dtype)
    x, mask = batch_of(ragged, dtype)
    expected = module(x, mask)
    upstream = torch.from_numpy(rng.standard_normal(tuple(expected.shape))).to(dtype)
    if ragged and config.pooling == "none":  # what stands at padding has no influence
        upstream = torch.where(mask[:, :, None], upstream, 0.0)
    names = [name for name, _ in module.named_parameters()]
    plain = torch.autograd.grad(
        expected, list(module.parameters()), upstream, allow_unused=True, materialize_grads=True
    )
    closed = {name: torch.zeros_like(p) for name, p in module.named_parameters()}
    weights = {name: p.detach() for name, p in module.named_parameters()}
    layer = ClosedForm(config).bind(x, mask)
    with torch.no_grad():
        for _ in range(passes):
            predictions = layer.forward(weights)
            layer.backward(upstream, closed)
    if ragged and config.pooling == "none":
        expected, predictions = expected[mask], predictions[mask]
    return expected.detach(), predictions, dict(zip(names, plain, strict=True)), closed


OPTIONS = [
    (pooling, embedding, ragged)
    for pooling, embedding, ragged in itertools.product(
        ["mean", "last", "flatten", "none"], ["none", "shared", "grouped"], [False, True]
    )
    if not (ragged and (pooling == "flatten" or embedding == "grouped"))
]


@pytest.mark.parametrize(("pooling", "embedding", "ragged"), OPTIONS)
@pytest.mark.parametrize("positional_encoding", [None, "learned", "sinusoidal"])
@pytest.mark.parametrize("causal", [False, True])
def test_gradient_is_that_of_autograd(pooling, embedding, ragged, positional_encoding, causal):
    for activation, n_outputs, beta in itertools.product(["relu", "gelu"], [1, 40], [0.0, 1.3]):
        config = config_of(
            pooling,
            embedding,
            activation,
            ragged,
            n_outputs=n_outputs,
            residual_beta=beta,
            causal=causal,
            positional_encoding=positional_encoding,
        )
        expected, predictions, plain, closed = gradients_both_ways(config)
        assert_close(predictions, expected, rtol=1e-12, atol=1e-12)
        for name, gradient in plain.items():
            assert_close(closed[name], gradient, rtol=1e-11, atol=1e-11, msg=name)


@pytest.mark.parametrize("one_dnn", [False, True])
@pytest.mark.parametrize("activation", sorted(ACTIVATIONS))
@pytest.mark.parametrize(
    ("pooling", "ragged"),
    [
        (p, r)
        for p in ("mean", "last", "flatten", "none")
        for r in (False, True)
        if p != "flatten" or not r
    ],
)
def test_every_activation_in_both_precisions(activation, pooling, ragged, one_dnn, monkeypatch):
    if one_dnn:  # whatever the size of a product
        for name in ("SMALL_PRODUCT", "SMALL_REDUCTION", "NARROW"):
            monkeypatch.setattr(matmul, name, 0)
    config = config_of(pooling, "shared" if ragged else "grouped", activation, ragged)
    for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 1e-5)):
        expected, predictions, plain, closed = gradients_both_ways(config, dtype)
        assert_close(predictions, expected, rtol=tolerance, atol=tolerance)
        for name, gradient in plain.items():
            scale = float(gradient.abs().max()) + 1e-30
            assert_close(closed[name] / scale, gradient / scale, rtol=tolerance, atol=tolerance)
        whole, other = (torch.cat([g.flatten() for g in d.values()]) for d in (plain, closed))
        assert (other - whole).norm() <= tolerance / 10 * whole.norm()


@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("pooling", ["mean", "last", "none"])
def test_predictions_without_a_way_back(pooling, ragged):
    for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 1e-5)):
        for activation in sorted(ACTIVATIONS):
            config = config_of(pooling, "shared", activation, ragged)
            rng = np.random.RandomState(0)
            state = initial_state(config, rng, init="gaussian", init_scale=1.0)
            module = build_module(config, state, dtype=dtype)
            x, mask = batch_of(ragged, dtype)
            weights = {name: p.detach() for name, p in module.named_parameters()}
            expected = module(x, mask).detach()
            found = ClosedForm(config).bind(x, mask).forward(weights)
            if ragged and pooling == "none":
                expected, found = expected[mask], found[mask]
            assert_close(found, expected, rtol=tolerance, atol=tolerance)


def test_gradients_add_up_over_passes():
    config = config_of("flatten", "grouped")
    _, _, plain, closed = gradients_both_ways(config, passes=3)
    for name, gradient in plain.items():
        assert_close(closed[name], 3 * gradient, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("options", [{"n_layers": 2}, {"n_heads": 2}, {"layer_norm": True}])
def test_other_models_are_left_to_autograd(options):
    assert not has_closed_form(config_of("mean", "none", **options))
    assert has_closed_form(config_of("mean", "none"))


@pytest.mark.parametrize("per_token", [False, True])
def test_slopes_are_the_derivatives_of_the_losses(per_token):
    rng = np.random.default_rng(1)
    shape = (N, T, 3) if per_token else (N, 3)
    weight = torch.from_numpy(rng.random(N))
    mask = torch.from_numpy(rng.random((N, T)) < 0.6) if per_token else None
    cases = [(squared_error, torch.from_numpy(rng.standard_normal(shape)))]
    if not per_token:
        one_hot = torch.eye(3, dtype=torch.float64)[torch.tensor([0, 2, 1, 1, 0])]
        cases.append((multinomial_log_loss, one_hot))
        cases.append((binary_log_loss, torch.tensor([[1.0], [-1], [1], [1], [-1]]).double()))
    for loss, y in cases:
        prediction = torch.from_numpy(rng.standard_normal(tuple(y.shape))).requires_grad_()
        value = loss(prediction, y, weight, mask)
        (expected,) = torch.autograd.grad(value, prediction)
        with torch.no_grad():
            again, slope = loss.value_and_slope(prediction, y, weight, mask)
        assert_close(again, value.detach(), rtol=1e-13, atol=1e-13)
        assert_close(slope, expected, rtol=1e-13, atol=1e-13)
