"""The certified lower bound on the smallest eigenvalue of the tangent kernel."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from sklearn_restf._diagnostics.certificate import Certificate, activation_slopes, certify
from tests.builders import (
    ACTIVATIONS,
    assert_at_most,
    instances,
    make_config,
    make_model,
    make_module,
    random_module,
    random_state_of,
    random_tokens,
)
from tests.reference.theory import certificate, mean_pooled_certificate, singular_value


def certified(module, x, mask=None):
    with torch.no_grad():
        outputs = module.layers(x, mask)
        inputs = outputs[-2].F if len(outputs) > 1 else module.embed(x)
    return certify(module, inputs, outputs[-1], mask)


def module_of(model, pooling):
    """The package's module with the weights of the theory's model."""
    d, d_qk = model.weights["query"].shape
    k = model.weights["readout"].shape[1]
    config = make_config(
        n_tokens=model.n_tokens,
        d_model=d,
        n_outputs=k,
        d_qk=d_qk,
        d_ff=model.weights["ffn_in"].shape[1],
        activation=model.activation,
        pooling=pooling,
        residual_beta=model.beta,
        ffn_residual_beta=model.gamma,
    )
    state = {f"blocks.0.{n}": value for n, value in model.weights.items() if n != "readout"}
    state |= {"readout": model.weights["readout"], "readout_bias": np.zeros(k)}
    return make_module(config, state), torch.from_numpy(model.x)


def smallest_eigenvalue(module, x, mask=None):
    """lambda_min(J J^T) of the predictions at real tokens, from the dense Jacobian by autograd."""
    output = module(x, mask)
    if output.ndim == 3 and mask is not None:
        output = output[mask]
    parameters = list(module.parameters())
    rows = []
    for value in output.reshape(-1):
        pieces = torch.autograd.grad(value, parameters, retain_graph=True, allow_unused=True)
        rows.append(
            torch.cat(
                [
                    torch.zeros(p.numel()).double() if piece is None else piece.reshape(-1)
                    for piece, p in zip(pieces, parameters, strict=True)
                ]
            ).numpy()
        )
    jacobian = np.array(rows)
    return singular_value(jacobian, len(jacobian)) ** 2


def assert_same(found, expected):
    scale = max(expected.alpha, 1.0)
    ffn_in = max(expected.ffn_in_rows, expected.ffn_in_schur)
    for left, right in (
        (found.readout, expected.readout),
        (found.ffn_out, expected.ffn_out),
        (found.ffn_in, ffn_in),
        (found.value, expected.value),
        (found.alpha, expected.alpha),
    ):
        assert_allclose(left, right, rtol=1e-8, atol=1e-11 * scale)


@settings(max_examples=60)
@given(instances())
def test_without_pooling_as_in_the_theory(instance):
    model, _ = instance
    module, x = module_of(model, "none")
    found = certified(module, x)
    assert_same(found, certificate(model))
    assert_at_most(found.alpha, smallest_eigenvalue(module, x))


@settings(max_examples=40)
@given(instances())
def test_last_token_as_in_the_theory(instance):
    model, _ = instance
    module, x = module_of(model, "last")
    rows = [(p + 1) * model.n_tokens - 1 for p in range(model.n_samples)]
    found = certified(module, x)
    assert_same(found, certificate(model, rows))
    assert_at_most(found.alpha, smallest_eigenvalue(module, x))


@settings(max_examples=40)
@given(instances())
def test_mean_pooling_as_in_the_theory(instance):
    model, _ = instance
    module, x = module_of(model, "mean")
    found = certified(module, x)
    assert_same(found, mean_pooled_certificate(model))
    assert_at_most(found.alpha, smallest_eigenvalue(module, x))


@st.composite
def any_models(draw):
    """Every option of the module; few predictions, so that the bound is not trivially zero."""
    ragged = draw(st.booleans())
    n_heads = draw(st.sampled_from([1, 2]))
    pooling = draw(st.sampled_from(["none", "last", "mean"] + ["flatten"] * (not ragged)))
    embeddings = ["none", "shared"] + ["grouped"] * (not ragged)
    n_tokens = draw(st.integers(1, 3))
    config = make_config(
        ragged,
        pooling=pooling,
        n_tokens=n_tokens,
        n_heads=n_heads,
        d_model=n_heads * draw(st.integers(1, 4)),
        d_ff=draw(st.sampled_from([2, 8, 20])),
        n_outputs=draw(st.integers(1, 2)),
        n_layers=draw(st.integers(1, 2)),
        activation=draw(st.sampled_from(sorted(ACTIVATIONS))),
        layer_norm=draw(st.booleans()),
        causal=draw(st.booleans()),
        positional_encoding=draw(st.sampled_from([None, "sinusoidal", "learned"])),
        embedding=draw(st.sampled_from(embeddings)),
        token_width=3,
        n_features=3 * n_tokens,
        residual_beta=draw(st.sampled_from([0.0, 0.5, 1.0])),
        ffn_residual_beta=draw(st.sampled_from([0.0, 1.0])),
    )
    n_samples = draw(st.integers(1, 3))
    lengths = [draw(st.integers(1, n_tokens)) for _ in range(n_samples)] if ragged else None
    return config, n_samples, lengths, draw(st.integers(0, 2**32 - 1))


@settings(max_examples=150)
@given(any_models())
def test_a_lower_bound_for_every_option(problem):
    config, n_samples, lengths, seed = problem
    rng = np.random.default_rng(seed)
    module = random_module(config, rng)
    x, mask = random_tokens(config, rng, n_samples, lengths)
    found = certified(module, x, mask)
    smallest = smallest_eigenvalue(module, x, mask)
    assert min(found.readout, found.ffn_out, found.ffn_in, found.value) >= 0
    assert_at_most(found.alpha, smallest, scale=1e-3)
    assert (found.reason == "") == (found.alpha > 0)


@pytest.mark.parametrize(
    ("options", "lengths", "blocks"),
    [
        ({"pooling": "none"}, None, {"readout", "ffn_out", "ffn_in", "value"}),
        ({"pooling": "none"}, [1, 2], {"readout", "ffn_out", "ffn_in", "value"}),
        ({"pooling": "last"}, None, {"readout", "ffn_out", "ffn_in", "value"}),
        ({"pooling": "last"}, [1, 3], {"readout", "ffn_out", "ffn_in", "value"}),
        ({"pooling": "last", "n_layers": 2}, None, {"readout", "ffn_out", "ffn_in", "value"}),
        ({"pooling": "last", "causal": True}, [3, 2], {"readout", "ffn_out", "ffn_in", "value"}),
        ({"pooling": "last", "n_heads": 2}, None, {"readout", "ffn_out", "ffn_in"}),
        ({"pooling": "last", "layer_norm": True}, None, {"readout", "ffn_out", "ffn_in"}),
        ({"pooling": "mean"}, None, {"readout", "ffn_out"}),
        ({"pooling": "mean"}, [2, 3], {"readout", "ffn_out"}),
        ({"pooling": "flatten"}, None, {"readout"}),
    ],
)
def test_which_blocks_contribute(options, lengths, blocks):
    rng = np.random.default_rng(0)
    config = make_config(lengths is not None, d_model=8, d_ff=40, activation="tanh", **options)
    module = random_module(config, rng)
    x, mask = random_tokens(config, rng, 2, lengths)
    if config.pooling == "none":
        x, mask = x[:, :2], mask if mask is None else mask[:, :2]
    found = certified(module, x, mask)
    positive = {n for n in ("readout", "ffn_out", "ffn_in", "value") if getattr(found, n) > 0}
    assert positive == blocks
    assert_allclose(found.alpha, sum(getattr(found, name) for name in blocks), rtol=1e-14)
    assert found.alpha <= smallest_eigenvalue(module, x, mask)
    assert found.reason == ""


def test_what_is_padded_does_not_matter():
    rng = np.random.default_rng(0)
    for pooling in ("none", "last", "mean"):
        config = make_config(True, pooling=pooling, d_model=8, d_ff=20)
        module = random_module(config, rng)
        x, mask = random_tokens(config, rng, 2, [1, 2])
        longer = torch.cat([x, torch.full((2, 2, 8), 7.0)], dim=1)
        longer_mask = torch.cat([mask, torch.zeros((2, 2), dtype=torch.bool)], dim=1)
        found, expected = certified(module, longer, longer_mask), certified(module, x, mask)
        assert_allclose(found.alpha, expected.alpha, rtol=1e-10)
        assert expected.alpha > 0


def test_too_many_predictions_are_named_as_the_reason():
    model, _ = make_model(0, n=4, n_tokens=3, d=4, d_ff=5)
    found = certified(*module_of(model, "none"))
    assert found.alpha == 0
    assert "12" in found.reason
    assert "max(d, d_ff) = 5" in found.reason


def test_equal_samples_are_named_as_the_reason():
    model, _ = make_model(0, n=2, n_tokens=2, d=8, d_ff=40)
    module, x = module_of(model, "last")
    found = certified(module, torch.stack([x[0], x[0]]))
    assert_allclose(found.alpha, 0, atol=1e-25)
    module.blocks[0].ffn_out.data.zero_()
    assert certified(module, torch.zeros_like(x)).reason == (
        "the stacked features are rank-deficient"
    )


def test_weights_that_are_not_finite_give_nan_and_a_reason():
    rng = np.random.default_rng(0)
    config = make_config(pooling="last", d_model=8)
    state = random_state_of(config, rng)
    state["blocks.0.ffn_out"][0, 0] = np.nan
    x, _ = random_tokens(config, rng, 2)
    found = certified(make_module(config, state), x)
    assert np.isnan(found.alpha)
    assert found.reason


def test_module_is_left_as_it_was():
    rng = np.random.default_rng(0)
    module = random_module(make_config(pooling="last"), rng)
    x, _ = random_tokens(module.config, rng, 2)
    before = {name: p.clone() for name, p in module.named_parameters()}
    certified(module, x)
    for name, parameter in module.named_parameters():
        assert torch.equal(parameter, before[name])
        assert parameter.grad is None


@pytest.mark.parametrize("name", sorted(ACTIVATIONS))
def test_slopes_are_derivatives(name):
    x = torch.tensor([-2.0, -0.3, 0.4, 3.0], dtype=torch.float64)
    h = 1e-6
    difference = (ACTIVATIONS[name](x + h) - ACTIVATIONS[name](x - h)) / (2 * h)
    with torch.inference_mode(False):
        assert_allclose(activation_slopes(name, x), difference, atol=1e-8)


def test_an_empty_certificate_is_zero():
    assert Certificate().alpha == 0
