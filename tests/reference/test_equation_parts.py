"""The oracle's parts, losses and numerical gradient against cases worked out by hand."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from tests.builders import random_parameters
from tests.reference.equations import (
    activate,
    embed_table,
    embed_tokens,
    forward,
    group_features,
    is_weight_matrix,
    l2_penalty,
    layer_normalise,
    log_loss_binary,
    log_loss_multinomial,
    numerical_gradient,
    sinusoidal_encoding,
    softmax,
    squared_error,
)

THEORY_ACTIVATIONS = ["relu", "leaky_relu", "gelu", "gelu_tanh", "tanh", "identity"]


@pytest.fixture
def rng():
    return np.random.default_rng(0)


# --- the parts ----------------------------------------------------------------------------------


def test_activations_at_known_points():
    assert [activate("relu", u) for u in (-2.0, 0.0, 3.0)] == [0.0, 0.0, 3.0]
    assert [activate("leaky_relu", u) for u in (-2.0, 3.0)] == [-0.02, 3.0]
    assert activate("identity", -1.5) == -1.5
    assert activate("tanh", 0.5 * np.log(3)) == pytest.approx(0.5)
    # Phi(1), the normal distribution function, is 0.841344746...
    assert activate("gelu", 1.0) == pytest.approx(0.8413447460685429)
    assert activate("gelu", -1.0) == pytest.approx(-0.15865525393145707)
    assert activate("gelu_tanh", 1.0) == pytest.approx(0.8411919906082768)


def test_both_gelus_are_close_but_not_the_same():
    points = np.linspace(-4, 4, 81)
    gap = max(abs(activate("gelu", u) - activate("gelu_tanh", u)) for u in points)
    assert 1e-5 < gap < 1e-3


def test_unknown_names_are_refused(rng):
    with pytest.raises(ValueError, match="activation 'swish'"):
        activate("swish", 1.0)
    params, x = random_parameters(rng, 4), rng.standard_normal((1, 2, 4))
    with pytest.raises(ValueError, match="pooling 'max'"):
        forward(params, x, pooling="max")
    with pytest.raises(ValueError, match="positional_encoding 'rotary'"):
        forward(params, x, positional_encoding="rotary")


def test_softmax_of_known_ratios_and_of_huge_logits():
    assert_allclose(softmax([0.0, np.log(2), np.log(5)]), [1 / 8, 2 / 8, 5 / 8])
    assert_allclose(softmax([1e5, 1e5, -1e5]), [0.5, 0.5, 0.0])


def test_layer_norm_by_hand():
    row = layer_normalise(np.array([1.0, 3.0]), np.array([2.0, 2.0]), np.array([0.0, 10.0]))
    assert_allclose(row, np.array([-2, 12]) + np.array([1, -1]) * 1e-5, atol=1e-9)


def test_sinusoidal_encoding_by_hand():
    encoding = sinusoidal_encoding(3, 4)
    assert_array_equal(encoding[0], [0, 1, 0, 1])
    assert_allclose(encoding[2], [np.sin(2), np.cos(2), np.sin(0.02), np.cos(0.02)])
    assert_allclose(sinusoidal_encoding(3, 5)[2, 4], np.sin(2 / 10000**0.8))


def test_table_embedding_with_unequal_groups():
    # five features in two groups: array_split gives three and two
    weight = np.arange(12.0).reshape(2, 3, 2)
    bias = np.array([[100.0, 200.0], [300.0, 400.0]])
    x = np.array([[1.0, 10.0, 100.0, 2.0, 3.0]])
    assert_array_equal(group_features(x, 2), [[[1, 10, 100], [2, 3, 0]]])
    tokens = embed_table(x, weight, bias)
    assert_array_equal(embed_table(group_features(x, 2), weight, bias), tokens)
    assert tokens.shape == (1, 2, 2)
    assert_array_equal(tokens[0, 0], [100 + 0 + 20 + 400, 200 + 1 + 30 + 500])
    assert_array_equal(tokens[0, 1], [300 + 12 + 24, 400 + 14 + 27])


def test_table_embedding_of_single_features_and_of_the_whole_row(rng):
    x = rng.standard_normal((3, 4))
    weight, bias = rng.standard_normal((4, 1, 2)), rng.standard_normal((4, 2))
    assert_allclose(embed_table(x, weight, bias), x[:, :, None] * weight[None, :, 0] + bias)
    whole, bias = rng.standard_normal((1, 4, 2)), rng.standard_normal((1, 2))
    assert_allclose(embed_table(x, whole, bias)[:, 0], x @ whole[0] + bias[0])


def test_token_embedding_is_used_by_forward(rng):
    x, weight, bias = rng.standard_normal((2, 3, 5)), rng.standard_normal((5, 4)), np.arange(4.0)
    params = random_parameters(rng, 4)
    tokens = embed_tokens(x, weight, bias)
    assert_allclose(tokens, x @ weight + bias)
    embedded = forward(params | {"embedding_weight": weight, "embedding_bias": bias}, x)
    assert_allclose(embedded.predictions, forward(params, tokens).predictions)


# --- losses and gradients -----------------------------------------------------------------------


def test_squared_error_by_hand():
    predictions, y = np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([[0.0, 0.0], [3.0, 2.0]])
    assert squared_error(predictions, y) == pytest.approx((2.5 + 2) / 2)
    assert squared_error(predictions, y, [1, 3]) == pytest.approx((2.5 + 6) / 4)
    assert squared_error(predictions, y, [10, 30]) == pytest.approx((2.5 + 6) / 4)
    assert squared_error(np.array([1.0, 2.0]), np.array([0.0, 0.0])) == pytest.approx(1.25)
    with pytest.raises(ValueError, match="differ in shape"):
        squared_error(predictions, y[:, 0])


def test_squared_error_per_token_sums_over_real_tokens():
    predictions = np.array([[[1.0], [2.0]], [[3.0], [np.nan]]])
    y = np.zeros((2, 2, 1))
    assert squared_error(predictions, y, lengths=[2, 1]) == pytest.approx((2.5 + 4.5) / 2)
    assert squared_error(predictions[:1], y[:1]) == pytest.approx(2.5)


def test_log_losses_by_hand():
    assert log_loss_binary([0.0], [1]) == pytest.approx(np.log(2))
    assert log_loss_binary([np.log(3), np.log(3)], [1, 0]) == pytest.approx(
        (np.log(4 / 3) + np.log(4)) / 2
    )
    assert log_loss_binary([1000.0, -1000.0], [1, 0]) == 0.0
    assert log_loss_binary([1000.0], [0]) == 1000.0
    logits = np.log([[1.0, 2.0, 5.0], [1.0, 1.0, 2.0]])
    assert log_loss_multinomial(logits, [2, 0]) == pytest.approx((np.log(8 / 5) + np.log(4)) / 2)
    assert log_loss_multinomial(logits + 1e4, [2, 0], [1, 0]) == pytest.approx(np.log(8 / 5))


def test_binary_log_loss_is_the_two_class_one(rng):
    logits, y, weights = rng.standard_normal(6), rng.integers(0, 2, 6), rng.random(6)
    two = np.column_stack([np.zeros(6), logits])
    assert log_loss_binary(logits, y, weights) == pytest.approx(
        log_loss_multinomial(two, y, weights)
    )


def test_penalty_counts_weight_matrices_only():
    params = {
        "embedding_weight": np.array([1.0]),
        "embedding_bias": np.array([10.0]),
        "position": np.array([10.0]),
        "blocks.0.query": np.array([2.0]),
        "blocks.0.query_bias": np.array([10.0]),
        "blocks.0.norm1_weight": np.array([10.0]),
        "blocks.0.ffn_out": np.array([3.0]),
        "readout": np.array([4.0]),
        "readout_bias": np.array([10.0]),
    }
    assert l2_penalty(params, 0.1) == pytest.approx(0.05 * (1 + 4 + 9 + 16))
    assert [name for name in params if is_weight_matrix(name)] == [
        "embedding_weight",
        "blocks.0.query",
        "blocks.0.ffn_out",
        "readout",
    ]


def test_numerical_gradient_of_known_functions():
    params = {"a": np.array([[0.3, -1.2], [2.0, 0.0]]), "b": np.array([0.7])}

    def f(p):
        return np.sum(np.sin(p["a"])) * np.exp(p["b"][0])

    found = numerical_gradient(f, params)
    assert_allclose(found["a"], np.cos(params["a"]) * np.exp(0.7), rtol=1e-10)
    assert_allclose(found["b"], [np.sum(np.sin(params["a"])) * np.exp(0.7)], rtol=1e-10)
    assert_array_equal(params["a"], [[0.3, -1.2], [2.0, 0.0]])


@pytest.mark.parametrize("distance", [3e-3, 1e-3, 3e-4, 3e-5])
def test_numerical_gradient_next_to_a_kink(distance):
    params = {"a": np.array([distance])}
    found = numerical_gradient(lambda p: max(p["a"][0], 0.0) + p["a"][0], params)
    assert_allclose(found["a"], [2.0], rtol=1e-9)


@pytest.mark.parametrize("activation", THEORY_ACTIVATIONS)
def test_gradient_of_the_readout_is_known_exactly(rng, activation):
    params = random_parameters(rng, 3, d_qk=2, d_ff=2)
    x, y = rng.standard_normal((2, 3, 3)), rng.standard_normal((2, 2))
    result = forward(params, x, activation=activation)
    errors = (result.predictions - y) / 2
    pooled = np.array([f.mean(axis=0) for f in result.layers[0]["F"]])

    def loss(p):
        predictions = forward(p, x, activation=activation).predictions
        return squared_error(predictions, y) + l2_penalty(p, 0.1)

    found = numerical_gradient(loss, params)
    expected = pooled.T @ errors + 0.1 * params["readout"]
    assert_allclose(found["readout"], expected, rtol=1e-8, atol=1e-10)
    assert_allclose(found["readout_bias"], errors.sum(axis=0), rtol=1e-8, atol=1e-10)
