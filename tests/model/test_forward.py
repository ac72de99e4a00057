"""The cheap order of computation against the plain module: values and gradients."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sklearn_restf._model import ACTIVATIONS, build_module
from sklearn_restf._model import forward as forward_module
from tests.builders import make_config, random_state_of, random_tokens

POOLINGS = ("mean", "last", "flatten", "none")


def values_and_gradients(forward, module, x, mask, cotangent):
    """Predictions at real tokens, and the gradient of <predictions, cotangent>."""
    module.zero_grad()
    predictions = forward(module, x, mask)
    if predictions.ndim == 3 and mask is not None:
        predictions = torch.where(mask[:, :, None], predictions, 0.0)
    (predictions * cotangent).sum().backward()
    gradients = {
        name: np.zeros(p.shape) if p.grad is None else p.grad.double().numpy()
        for name, p in module.named_parameters()
    }
    return predictions.detach().double().numpy(), gradients


def plain(module, x, mask):
    return module(x, mask)


def in_the_cheapest_order(module, x, mask=None):
    return forward_module.forward(module.config, dict(module.named_parameters()), x, mask)


def largest_error(found, expected):
    """Errors of predictions and of gradients, each relative to the largest entry of its kind."""
    errors = []
    for left, right in zip(found, expected, strict=True):
        left, right = (each if isinstance(each, dict) else {"": each} for each in (left, right))
        scale = max(np.abs(value).max() for value in right.values())
        errors += [np.abs(left[name] - right[name]).max() / max(scale, 1e-300) for name in right]
    return max(errors)


def check(config, seed, n_samples=3, lengths=None, dtype=torch.float64):
    rng = np.random.default_rng(seed)
    state = random_state_of(config, rng)
    x, mask = random_tokens(config, rng, n_samples, lengths)
    shape = (len(x), x.shape[1]) if config.pooling == "none" else (len(x),)
    cotangent = torch.from_numpy(rng.standard_normal((*shape, config.n_outputs)))
    exact_module = build_module(config, state)
    exact = values_and_gradients(plain, exact_module, x, mask, cotangent)
    if dtype == torch.float64:
        fast = values_and_gradients(in_the_cheapest_order, exact_module, x, mask, cotangent)
        assert largest_error(fast, exact) < 1e-12
        return
    module = build_module(config, state, dtype=dtype)
    x, cotangent = x.to(dtype), cotangent.to(dtype)
    error = largest_error(
        values_and_gradients(in_the_cheapest_order, module, x, mask, cotangent), exact
    )
    unavoidable = largest_error(values_and_gradients(plain, module, x, mask, cotangent), exact)
    assert error < max(1e-6, 4 * unavoidable)


@st.composite
def configs(draw, ragged):
    n_heads = draw(st.sampled_from([1, 1, 2, 3]))
    embedding = draw(st.sampled_from(["none", "none", "shared", "grouped"]))
    n_tokens = draw(st.integers(1, 6))
    options = {
        "n_tokens": n_tokens,
        "n_heads": n_heads,
        "d_model": n_heads * draw(st.integers(1, 4)),
        "d_qk": draw(st.sampled_from([1, 2, 4, 9])),
        "d_ff": draw(st.sampled_from([1, 3, 8])),
        "n_outputs": draw(st.sampled_from([1, 2, 5])),
        "n_layers": draw(st.integers(1, 2)),
        "activation": draw(st.sampled_from(sorted(ACTIVATIONS))),
        "layer_norm": draw(st.booleans()),
        "causal": draw(st.booleans()),
        "positional_encoding": draw(st.sampled_from([None, "sinusoidal", "learned"])),
        "residual_beta": draw(st.sampled_from([0.0, 0.3, 1.0])),
        "ffn_residual_beta": draw(st.sampled_from([0.0, 0.8, 1.0])),
        "pooling": draw(st.sampled_from([p for p in POOLINGS if p != "flatten" or not ragged])),
        "token_width": 2,
        "embedding": embedding if embedding != "grouped" or not ragged else "shared",
    }
    if options["embedding"] == "grouped":
        options["n_features"] = n_tokens + draw(st.integers(0, n_tokens))
        options["token_width"] = -(-options["n_features"] // n_tokens)
    return make_config(ragged, **options)


@st.composite
def problems(draw):
    ragged = draw(st.booleans())
    config = draw(configs(ragged))
    n_samples = draw(st.integers(1, 4))
    lengths = None
    if ragged:
        lengths = [draw(st.integers(1, config.max_tokens)) for _ in range(n_samples)]
    return config, draw(st.integers(0, 2**32 - 1)), n_samples, lengths


@settings(max_examples=150)
@given(problems())
def test_equals_the_plain_module(problem):
    check(*problem)


@settings(max_examples=40)
@given(problems())
def test_equals_the_plain_module_in_float32(problem):
    check(*problem, dtype=torch.float32)


@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("layer_norm", [False, True])
@pytest.mark.parametrize("pooling", ["mean", "none"])
@pytest.mark.parametrize(("d_qk", "absorbed"), [(1, False), (8, True)])
def test_both_sides_of_absorbing_the_key(d_qk, absorbed, pooling, layer_norm, ragged):
    config = make_config(ragged, d_qk=d_qk, pooling=pooling, layer_norm=layer_norm, n_tokens=4)
    assert forward_module.absorb_key(4, config.d_model, d_qk) == absorbed
    check(config, 0, lengths=[4, 1, 2] if ragged else None)


def test_absorbing_the_key_is_chosen_by_multiplications():
    for T, D, K in itertools.product([1, 2, 3, 5, 50], repeat=3):
        absorbed = T * D * D + T * T * D  # X (W_Q W_K^T), then times X^T
        separate = 2 * T * D * K + T * T * K
        assert forward_module.absorb_key(T, D, K) == (absorbed <= separate)


@pytest.mark.parametrize("layer_norm", [False, True])
@pytest.mark.parametrize("pooling", ["flatten", "none"])
@pytest.mark.parametrize(("n_outputs", "absorbed"), [(1, True), (9, False)])
def test_both_sides_of_absorbing_the_readout(monkeypatch, n_outputs, absorbed, pooling, layer_norm):
    config = make_config(pooling=pooling, layer_norm=layer_norm, n_outputs=n_outputs, d_ff=8)
    calls = []
    second_linear = forward_module.Layer.second_linear
    monkeypatch.setattr(
        forward_module.Layer, "second_linear", lambda *args: calls.append(1) or second_linear(*args)
    )
    check(config, 0, n_samples=20)
    assert (not calls) == absorbed


@pytest.mark.parametrize("layer_norm", [False, True])
@pytest.mark.parametrize("n_heads", [1, 2])
@pytest.mark.parametrize("pooling", POOLINGS)
def test_every_pooling_with_one_and_more_heads(pooling, n_heads, layer_norm):
    check(make_config(pooling=pooling, n_heads=n_heads, layer_norm=layer_norm), 1)
    if pooling != "flatten":
        config = make_config(True, pooling=pooling, n_heads=n_heads, layer_norm=layer_norm)
        check(config, 1, lengths=[2, 3, 1])


@pytest.mark.parametrize("causal", [False, True])
def test_the_last_token_asks_alone(causal, monkeypatch):
    """With pooling="last" the attention of the last layer is one row a sample."""
    config = make_config(pooling="last", causal=causal, n_layers=1)
    monkeypatch.setattr(forward_module.Layer, "attend_all", None)
    check(config, 2)


def test_input_is_not_written_to():
    config = make_config(pooling="none", residual_beta=0.0, ffn_residual_beta=0.0)
    rng = np.random.default_rng(0)
    module = build_module(config, random_state_of(config, rng))
    x, _ = random_tokens(config, rng)
    before = x.clone()
    in_the_cheapest_order(module, x).sum().backward()
    assert torch.equal(x, before)
