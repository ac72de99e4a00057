"""The torch module against the oracle: every option, every intermediate result."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from sklearn_restf._model import pool, sinusoidal_positions, state_of
from tests.builders import (
    ACTIVATIONS,
    make_config,
    make_module,
    oracle_options,
    random_module,
    random_state_of,
    random_tokens,
)
from tests.reference.equations import (
    forward,
    numerical_gradient,
    sinusoidal_encoding,
    squared_error,
)

GPT2 = {"layer_norm": True, "causal": True, "n_heads": 2, "activation": "gelu_tanh"}
OPTIONS = {
    "plain": {},
    "beta 0": {"residual_beta": 0.0, "ffn_residual_beta": 0.0},
    "beta 1, gamma 0": {"residual_beta": 1.0, "ffn_residual_beta": 0.0},
    "beta 0, gamma 1": {"residual_beta": 0.0, "ffn_residual_beta": 1.0},
    "beta large": {"residual_beta": 3.0, "ffn_residual_beta": 2.5},
    **{f"activation {name}": {"activation": name} for name in ACTIVATIONS},
    **{f"pooling {name}": {"pooling": name} for name in ("mean", "last", "flatten", "none")},
    "2 heads": {"n_heads": 2},
    "4 heads of 1": {"n_heads": 4, "d_qk": 1},
    "layer norm": {"layer_norm": True},
    "layer norm, 2 heads": {"layer_norm": True, "n_heads": 2},
    "causal": {"causal": True, "pooling": "none"},
    "causal, last": {"causal": True, "pooling": "last"},
    "sinusoidal": {"positional_encoding": "sinusoidal", "pooling": "flatten"},
    "sinusoidal, odd width": {"positional_encoding": "sinusoidal", "d_model": 5},
    "learned": {"positional_encoding": "learned"},
    "shared embedding": {"embedding": "shared", "token_width": 2},
    "grouped embedding": {"embedding": "grouped", "token_width": 2, "n_features": 5},
    "grouped and learned": {
        "embedding": "grouped",
        "token_width": 2,
        "n_features": 6,
        "positional_encoding": "learned",
    },
    "2 layers": {"n_layers": 2},
    "3 layers": {"n_layers": 3, "d_ff": 2, "d_model": 2, "n_outputs": 1},
    "one token": {"n_tokens": 1},
    "GPT-2": GPT2 | {"n_layers": 2, "pooling": "last", "d_ff": 3, "d_qk": 2},
    "GPT-2 with positions": GPT2
    | {
        "pooling": "none",
        "positional_encoding": "learned",
        "embedding": "shared",
        "token_width": 2,
        "d_qk": 2,
    },
}
RAGGED = {
    **{f"ragged {name}": {"pooling": name} for name in ("mean", "last", "none")},
    "ragged causal": {"pooling": "none", "causal": True},
    "ragged causal, last": {"pooling": "last", "causal": True},
    "ragged learned": {"positional_encoding": "learned"},
    "ragged sinusoidal, shared": {
        "positional_encoding": "sinusoidal",
        "embedding": "shared",
        "token_width": 2,
    },
    "ragged GPT-2": GPT2 | {"n_layers": 2, "pooling": "last", "d_ff": 3, "d_qk": 2},
    "ragged layer norm": {"layer_norm": True, "n_layers": 2, "d_ff": 3, "pooling": "mean"},
}
LENGTHS = [1, 3, 2]
CASES = [pytest.param(options, None, id=name) for name, options in OPTIONS.items()]
CASES += [pytest.param(options | {"ragged": True}, LENGTHS, id=n) for n, options in RAGGED.items()]


@pytest.mark.parametrize(("options", "lengths"), CASES)
def test_module_is_the_oracle(options, lengths):
    rng = np.random.default_rng(0)
    config = make_config(**options)
    state = random_state_of(config, rng)
    module = make_module(config, state)
    x, mask = random_tokens(config, rng, lengths=lengths)
    expected = forward(state, x.numpy(), lengths, **oracle_options(config))
    with torch.no_grad():
        tokens = module.embed(x)
        layers = module.layers(x, mask)
        predictions = module(x, mask).numpy()

    real = [slice(length) for length in lengths or [x.shape[1]] * len(x)]
    if config.pooling == "none":
        for p, keep in enumerate(real):
            assert_allclose(
                predictions[p, keep], expected.predictions[p, keep], rtol=1e-12, atol=1e-12
            )
    else:
        assert_allclose(predictions, expected.predictions, rtol=1e-12, atol=1e-12)
    assert len(layers) == config.n_layers
    for p, keep in enumerate(real):
        assert_allclose(tokens[p, keep], expected.tokens[p], rtol=1e-12, atol=1e-12)
        for layer, wanted in zip(layers, expected.layers, strict=True):
            attention = layer.attention[p]
            assert_allclose(attention[:, keep, keep], wanted["attention"][p], atol=1e-12)
            assert not attention[:, keep, keep.stop :].any()
            for name in ("attention_output", "Z", "F"):
                found = getattr(layer, name)[p, keep]
                assert_allclose(found, wanted[name][p], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("options", "lengths"), CASES)
def test_gradients_are_those_of_the_oracle(options, lengths):
    rng = np.random.default_rng(1)
    config = make_config(**{"d_ff": 3, "d_qk": 2} | options)
    state = random_state_of(config, rng)
    lengths = lengths and lengths[:2]
    x, mask = random_tokens(config, rng, 2, lengths)
    shape = (2, x.shape[1], 2) if config.pooling == "none" else (2, 2)
    y = rng.standard_normal((*shape[:-1], config.n_outputs))

    def loss(params):
        predictions = forward(params, x.numpy(), lengths, **oracle_options(config)).predictions
        ragged_rows = lengths if config.pooling == "none" else None
        return squared_error(predictions, y, lengths=ragged_rows)

    module = make_module(config, state)
    errors = module(x, mask) - torch.from_numpy(y)
    if config.pooling == "none" and mask is not None:
        errors = errors[mask]
    (0.5 * errors.square().sum() / len(x)).backward()
    expected = numerical_gradient(loss, state)
    scale = max(np.abs(value).max() for value in expected.values())
    for name, parameter in module.named_parameters():
        found = np.zeros(parameter.shape) if parameter.grad is None else parameter.grad.numpy()
        assert_allclose(found, expected[name], rtol=1e-8, atol=1e-8 * scale, err_msg=name)


def test_what_is_padded_does_not_matter():
    rng = np.random.default_rng(2)
    for pooling in ("mean", "last", "none"):
        config = make_config(ragged=True, pooling=pooling, n_layers=2, n_tokens=5)
        module = random_module(config, rng)
        x, mask = random_tokens(config, rng, lengths=[2, 3, 1])
        with torch.no_grad():
            whole = module(x, mask)
            cut = module(x[:, :3], mask[:, :3])
            alone = module(x[:1, :2], mask[:1, :2])
            unmasked = module(x[:1, :2])
        if pooling == "none":
            whole = whole[:, :3]
            assert_allclose(whole[mask[:, :3]], cut[mask[:, :3]], rtol=1e-13)
            whole = whole[:, :2]
        else:
            assert_allclose(whole, cut, rtol=1e-13)
        assert_allclose(whole[:1], alone, rtol=1e-13)
        assert_allclose(whole[:1], unmasked, rtol=1e-13)


def test_mean_pooling_survives_padding_that_is_not_finite():
    F = torch.tensor([[[1.0], [3.0], [torch.inf]], [[5.0], [torch.nan], [torch.nan]]])
    mask = torch.tensor([[True, True, False], [True, False, False]])
    assert_allclose(pool(F, mask, "mean"), [[2.0], [5.0]])
    assert_allclose(pool(F, mask, "last"), [[3.0], [5.0]])


@pytest.mark.parametrize("width", [1, 2, 5])
def test_sinusoidal_positions(width):
    assert_allclose(sinusoidal_positions(7, width), sinusoidal_encoding(7, width), atol=1e-14)
    assert_allclose(sinusoidal_positions(1, width)[0], [0, 1, 0, 1, 0][:width])


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, {"query", "key", "value", "ffn_in", "ffn_out"}),
        ({"n_heads": 2}, {"query", "key", "value", "output", "ffn_in", "ffn_out"}),
        (
            {"layer_norm": True},
            {f"{n}{b}" for n in ("query", "key", "value", "output") for b in ("", "_bias")}
            | {f"{n}{b}" for n in ("ffn_in", "ffn_out") for b in ("", "_bias")}
            | {f"norm{i}_{kind}" for i in (1, 2) for kind in ("weight", "bias")},
        ),
    ],
)
def test_a_block_has_the_parameters_of_its_options_and_no_others(options, expected):
    rng = np.random.default_rng(0)
    state = state_of(random_module(make_config(**options), rng))
    prefix = "blocks.0."
    assert {n.removeprefix(prefix) for n in state if n.startswith(prefix)} == expected
    assert {n for n in state if not n.startswith(prefix)} == {"readout", "readout_bias"}


@pytest.mark.parametrize(
    ("options", "shapes"),
    [
        ({"pooling": "mean"}, {"readout": (4, 2)}),
        ({"pooling": "flatten"}, {"readout": (12, 2)}),
        ({"n_heads": 2}, {"blocks.0.query": (4, 6), "blocks.0.value": (4, 4)}),
        ({"positional_encoding": "learned"}, {"position": (3, 4)}),
        (
            {"embedding": "grouped", "token_width": 2, "n_features": 5},
            {"embedding_weight": (3, 2, 4), "embedding_bias": (3, 4)},
        ),
        (
            {"embedding": "shared", "token_width": 2},
            {"embedding_weight": (2, 4), "embedding_bias": (4,)},
        ),
    ],
)
def test_shapes_of_parameters(options, shapes):
    state = state_of(random_module(make_config(**options), np.random.default_rng(0)))
    for name, shape in shapes.items():
        assert state[name].shape == shape


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def module_with(query, key, *, T=4, D=3, causal=False, pooling="none"):
    """Return a module with random weights but for queries and keys, in float64."""
    config = make_config(
        n_tokens=T, d_model=D, n_outputs=1, d_qk=D, max_tokens=T,
        pooling=pooling, residual_beta=0.5, causal=causal,
    )  # fmt: skip
    state = random_state_of(config, np.random.default_rng(0))
    state["blocks.0.query"], state["blocks.0.key"] = query, key
    return make_module(config, state), state


@pytest.mark.parametrize("magnitude", [1e3, 1e30, 1e150])
@pytest.mark.parametrize("pooling", ["none", "mean", "last", "flatten"])
def test_huge_logits_choose_one_token(magnitude, pooling):
    module, state = module_with(magnitude * np.eye(3), magnitude * np.eye(3), pooling=pooling)
    x = torch.from_numpy(normal(2, 4, 3))
    Z = module.layers(x)[0].Z.detach().numpy()
    F = x.numpy()
    chosen = np.take_along_axis(F, (F @ F.swapaxes(1, 2)).argmax(axis=2)[..., None], axis=1)
    assert_allclose(Z, 0.5 * F + chosen @ state["blocks.0.value"], rtol=1e-12, atol=1e-14)
    module(x).sum().backward()
    assert all(torch.isfinite(parameter.grad).all() for parameter in module.parameters())


@pytest.mark.parametrize("causal", [False, True])
def test_equal_logits_average_the_tokens(causal):
    module, state = module_with(np.zeros((3, 3)), normal(3, 3), causal=causal)
    F = normal(2, 4, 3)
    Z = module.layers(torch.from_numpy(F))[0].Z.detach().numpy()
    mean = (
        np.cumsum(F, axis=1) / np.arange(1, 5)[:, None] if causal else F.mean(axis=1, keepdims=True)
    )
    assert_allclose(Z, 0.5 * F + mean @ state["blocks.0.value"], rtol=1e-12, atol=1e-14)


def test_a_single_token_attends_to_itself():
    module, state = module_with(normal(3, 3), normal(3, 3, seed=1), T=1)
    F = normal(5, 1, 3)
    Z = module.layers(torch.from_numpy(F))[0].Z.detach().numpy()
    assert_allclose(Z, 0.5 * F + F @ state["blocks.0.value"], rtol=1e-12)
