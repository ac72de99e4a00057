"""The oracle against cases worked out by hand: a wrong oracle would bless a wrong package."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from tests.builders import random_parameters
from tests.reference.equations import (
    attention_weights,
    forward,
    sinusoidal_encoding,
    softmax,
)


def identity_readout(params, width):
    return params | {"readout": np.eye(width), "readout_bias": np.zeros(width)}


@pytest.fixture
def rng():
    return np.random.default_rng(0)


# --- attention ----------------------------------------------------------------------------------


def test_attention_by_hand():
    queries = np.array([[np.sqrt(2), 0.0], [0.0, 0.0]])
    keys = np.array([[np.log(2), 7.0], [np.log(6), -3.0]])
    assert_allclose(attention_weights(queries, keys), [[0.25, 0.75], [0.5, 0.5]])


def test_equal_logits_give_uniform_attention_and_equal_rows_without_residual(rng):
    params = identity_readout(random_parameters(rng, 4), 4)
    params["blocks.0.query"][:] = 0
    x = rng.standard_normal((2, 3, 4))
    result = forward(params, x, residual_beta=0.0, pooling="none")
    for p in range(2):
        assert_allclose(result.layers[0]["attention"][p], np.full((1, 3, 3), 1 / 3))
        mean_value = x[p].mean(axis=0) @ params["blocks.0.value"]
        assert_allclose(result.layers[0]["Z"][p], np.tile(mean_value, (3, 1)))
        assert_allclose(result.predictions[p], np.tile(result.predictions[p, 0], (3, 1)))


def test_equal_logits_under_the_causal_mask_give_running_means(rng):
    params = random_parameters(rng, 4) | {"blocks.0.value": np.eye(4)}
    params["blocks.0.key"][:] = 0
    x = rng.standard_normal((1, 3, 4))
    layer = forward(params, x, causal=True).layers[0]
    assert_allclose(
        layer["attention"][0][0], [[1, 0, 0], [0.5, 0.5, 0], [1 / 3, 1 / 3, 1 / 3]], rtol=1e-15
    )
    running = np.cumsum(x[0], axis=0) / np.arange(1, 4)[:, None]
    assert_allclose(layer["attention_output"][0], running)


@pytest.mark.parametrize("layer_norm", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("n_heads", [1, 2])
def test_attention_rows_are_distributions(rng, n_heads, causal, layer_norm):
    params = random_parameters(rng, 4, n_layers=2, n_heads=n_heads, layer_norm=layer_norm)
    result = forward(
        params,
        rng.standard_normal((2, 5, 4)),
        n_layers=2,
        n_heads=n_heads,
        causal=causal,
        layer_norm=layer_norm,
    )
    for layer in result.layers:
        for attention in layer["attention"]:
            assert attention.shape == (n_heads, 5, 5)
            assert (attention >= 0).all()
            assert_allclose(attention.sum(axis=2), 1, rtol=1e-14)
            if causal:
                assert_array_equal(np.triu(attention, 1), 0)


def test_one_token_attends_to_itself_alone(rng):
    params = random_parameters(rng, 4)
    x = rng.standard_normal((3, 1, 4))
    result = forward(params, x, residual_beta=0.7, ffn_residual_beta=0.3)
    z = 0.7 * x[:, 0] + x[:, 0] @ params["blocks.0.value"]
    hidden = np.maximum(z @ params["blocks.0.ffn_in"], 0)
    f = 0.3 * z + hidden @ params["blocks.0.ffn_out"]
    assert_array_equal(np.array(result.layers[0]["attention"]), np.ones((3, 1, 1, 1)))
    assert_allclose(result.predictions, f @ params["readout"] + params["readout_bias"])
    mean = forward(params, x).predictions
    for pooling in ("last", "flatten"):
        assert_allclose(forward(params, x, pooling=pooling).predictions, mean)


def test_two_heads_are_two_single_heads_side_by_side(rng):
    params = random_parameters(rng, 4, n_heads=2)
    params["blocks.0.output"] = np.eye(4)
    x = rng.standard_normal((2, 3, 4))
    both = forward(params, x, n_heads=2).layers[0]
    for head, (columns, own) in enumerate([(slice(0, 3), slice(0, 2)), (slice(3, 6), slice(2, 4))]):
        alone = dict(params)
        for name in ("query", "key"):
            alone[f"blocks.0.{name}"] = params[f"blocks.0.{name}"][:, columns]
        single = forward(alone, x).layers[0]
        for p in range(2):
            assert_allclose(both["attention"][p][head], single["attention"][p][0])
            assert_allclose(
                both["attention_output"][p][:, own], single["attention_output"][p][:, own]
            )


# --- the block ----------------------------------------------------------------------------------


def test_identity_block_multiplies_by_both_residual_factors(rng):
    params = identity_readout(random_parameters(rng, 4, n_layers=2), 4)
    for layer in range(2):
        params[f"blocks.{layer}.value"][:] = 0
        params[f"blocks.{layer}.ffn_out"][:] = 0
    x = rng.standard_normal((2, 3, 4))
    result = forward(
        params, x, residual_beta=0.5, ffn_residual_beta=3.0, n_layers=2, pooling="none"
    )
    assert_allclose(result.predictions, 2.25 * x)
    shared = forward(params, x, residual_beta=0.5, n_layers=2, pooling="none")
    assert_allclose(shared.predictions, x / 16)


def test_identity_weights_and_identity_activation(rng):
    params = identity_readout(random_parameters(rng, 3, d_ff=3), 3)
    for name in ("value", "ffn_in", "ffn_out"):
        params[f"blocks.0.{name}"] = np.eye(3)
    x = rng.standard_normal((1, 4, 3))
    result = forward(params, x, activation="identity", pooling="none")
    mixing = result.layers[0]["attention"][0][0] + np.eye(4)
    assert_allclose(result.predictions[0], 2 * mixing @ x[0])


def test_block_against_the_matrix_equations(rng):
    params = random_parameters(rng, 4)
    x = rng.standard_normal((2, 3, 4))
    result = forward(params, x, residual_beta=0.6, ffn_residual_beta=0.9, pooling="none")
    weights = {name.removeprefix("blocks.0."): value for name, value in params.items()}
    for p in range(2):
        f = x[p]
        logits = (f @ weights["query"]) @ (f @ weights["key"]).T / np.sqrt(3)
        a = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        z = 0.6 * f + a @ f @ weights["value"]
        last = 0.9 * z + np.maximum(z @ weights["ffn_in"], 0) @ weights["ffn_out"]
        assert_allclose(result.layers[0]["Z"][p], z)
        assert_allclose(result.layers[0]["F"][p], last)
        assert_allclose(result.predictions[p], last @ weights["readout"] + weights["readout_bias"])


def test_pre_layer_norm_block_against_the_matrix_equations(rng):
    params = random_parameters(rng, 4, n_heads=2, layer_norm=True)
    x = rng.standard_normal((1, 3, 4))
    options = {"n_heads": 2, "layer_norm": True, "activation": "tanh", "pooling": "none"}
    result = forward(params, x, **options)
    w = {name.removeprefix("blocks.0."): value for name, value in params.items()}

    def norm(f, name):
        centred = f - f.mean(axis=1, keepdims=True)
        scale = np.sqrt(f.var(axis=1, keepdims=True) + 1e-5)
        return centred / scale * w[f"{name}_weight"] + w[f"{name}_bias"]

    seen = norm(x[0], "norm1")
    q, k, v = (seen @ w[name] + w[f"{name}_bias"] for name in ("query", "key", "value"))
    mixed = np.hstack(
        [
            np.array([softmax(row) for row in q[:, of] @ k[:, of].T / np.sqrt(3)]) @ v[:, own]
            for of, own in [(slice(0, 3), slice(0, 2)), (slice(3, 6), slice(2, 4))]
        ]
    )
    z = x[0] + mixed @ w["output"] + w["output_bias"]
    hidden = np.tanh(norm(z, "norm2") @ w["ffn_in"] + w["ffn_in_bias"])
    last = z + hidden @ w["ffn_out"] + w["ffn_out_bias"]
    assert_allclose(result.layers[0]["Z"][0], z)
    assert_allclose(result.predictions[0], last @ w["readout"] + w["readout_bias"])


def test_layers_feed_each_other(rng):
    params = random_parameters(rng, 4, n_layers=2)
    x = rng.standard_normal((2, 3, 4))
    deep = forward(params, x, n_layers=2, pooling="none")
    second = {
        name.replace("blocks.1", "blocks.0"): v for name, v in params.items() if "s.0" not in name
    }
    again = forward(second, np.array(deep.layers[0]["F"]), pooling="none")
    assert_allclose(again.predictions, deep.predictions)


# --- reading out, order and padding -------------------------------------------------------------


def test_poolings_of_an_identity_block(rng):
    params = identity_readout(random_parameters(rng, 2), 2)
    params["blocks.0.value"][:] = 0
    params["blocks.0.ffn_out"][:] = 0
    x = np.array([[[1.0, 2.0], [3.0, 4.0], [5.0, 9.0]]])
    assert_allclose(forward(params, x, pooling="mean").predictions, [[3.0, 5.0]])
    assert_allclose(forward(params, x, pooling="last").predictions, [[5.0, 9.0]])
    assert_allclose(forward(params, x, pooling="none").predictions, x)
    flat = params | {"readout": np.eye(6)[:, [1, 4]], "readout_bias": np.array([0.5, 0.0])}
    assert_allclose(forward(flat, x, pooling="flatten").predictions, [[2.5, 5.0]])


def test_mean_pooling_ignores_order_until_positions_are_added(rng):
    params = random_parameters(rng, 4) | {"position": rng.standard_normal((6, 4))}
    x = rng.standard_normal((2, 5, 4))
    turned = x[:, ::-1]
    assert_allclose(forward(params, turned).predictions, forward(params, x).predictions)
    for encoding in ("sinusoidal", "learned"):
        plain = forward(params, x, positional_encoding=encoding).predictions
        moved = forward(params, turned, positional_encoding=encoding).predictions
        assert abs(plain - moved).max() > 1e-3


def test_tokens_are_what_is_fed_plus_positions(rng):
    params = random_parameters(rng, 4) | {"position": rng.standard_normal((6, 4))}
    x = rng.standard_normal((1, 5, 4))
    assert_allclose(forward(params, x).tokens[0], x[0])
    learned = forward(params, x, positional_encoding="learned").tokens[0]
    assert_allclose(learned, x[0] + params["position"][:5])
    sinusoidal = forward(params, x, positional_encoding="sinusoidal").tokens[0]
    assert_allclose(sinusoidal, x[0] + sinusoidal_encoding(5, 4))


@pytest.mark.parametrize("pooling", ["mean", "last", "none"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("positional_encoding", [None, "sinusoidal", "learned"])
def test_padding_is_the_same_as_a_shorter_sequence(rng, pooling, causal, positional_encoding):
    params = random_parameters(rng, 4, n_layers=2) | {"position": rng.standard_normal((5, 4))}
    options = {
        "n_layers": 2,
        "pooling": pooling,
        "causal": causal,
        "positional_encoding": positional_encoding,
    }
    x = rng.standard_normal((3, 5, 4))
    lengths = [5, 2, 1]
    for p, length in enumerate(lengths):
        x[p, length:] = np.nan
    padded = forward(params, x, lengths, **options)
    for p, length in enumerate(lengths):
        alone = forward(params, x[p : p + 1, :length], **options)
        found = padded.predictions[p, :length] if pooling == "none" else padded.predictions[p]
        assert_array_equal(found, alone.predictions[0])
        assert padded.layers[1]["F"][p].shape == (length, 4)
    if pooling == "none":
        assert np.isnan(padded.predictions[1, 2:]).all()


def test_cutting_the_padding_is_what_a_mask_of_minus_infinity_does(rng):
    queries, keys = rng.standard_normal((2, 5, 3))
    masked = queries @ keys.T / np.sqrt(3)
    masked[:, 3:] = -np.inf
    attention = np.array([softmax(row) for row in masked])
    assert_allclose(attention[:3, :3], attention_weights(queries[:3], keys[:3]))
    assert_array_equal(attention[:, 3:], 0)
