"""The objective over all samples, its exact gradient, and the step rules."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from sklearn_restf._data import batches as batches_module
from sklearn_restf._data.arrays import RawTokens
from sklearn_restf._model import (
    binary_log_loss,
    is_weight,
    multinomial_log_loss,
    squared_error,
    state_of,
)
from tests.builders import make_objective, oracle_options, random_problem
from tests.reference import equations as reference


def evaluated(objective):
    """Objective and a copy of its gradient."""
    value = objective.evaluate()
    objective.differentiate()
    return value, objective.gradient.numpy().copy()


# --- the objective ------------------------------------------------------------------------------


@pytest.mark.parametrize("chunk_size", [1, 3, 7, 100])
@pytest.mark.parametrize("pooling", ["mean", "last", "flatten", "none"])
def test_chunks_change_nothing(pooling, chunk_size):
    problem = random_problem(pooling=pooling)
    whole = evaluated(make_objective(*problem, alpha=0.1))
    chunked = evaluated(make_objective(*problem, alpha=0.1, chunk_size=chunk_size))
    assert_allclose(chunked[0], whole[0], rtol=1e-12)
    assert_allclose(chunked[1], whole[1], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("chunk_size", [1, 30, 1000])
@pytest.mark.parametrize("pooling", ["mean", "last", "none"])
def test_chunks_and_buckets_of_ragged_samples_change_nothing(pooling, chunk_size, monkeypatch):
    """Enough samples for several buckets; the oracle here is one sample after the other."""
    lengths = np.random.default_rng(3).integers(1, 4, 200)
    problem = random_problem(lengths=lengths, pooling=pooling, causal=True)
    monkeypatch.setitem(batches_module.WORK_OF_CALLS, "cpu", 1.0)
    monkeypatch.setattr(batches_module, "TOKENS_OF_CALLS", 0)
    bucketed = make_objective(*problem, alpha=0.1)
    assert len(bucketed.batches.row_sets) == 3
    assert bucketed.batches.keeps_graph
    whole = evaluated(bucketed)
    chunked = evaluated(make_objective(*problem, alpha=0.1, chunk_size=chunk_size))
    assert_allclose(chunked[0], whole[0], rtol=1e-12)
    assert_allclose(chunked[1], whole[1], rtol=1e-12, atol=1e-12)


@settings(max_examples=30)
@given(st.data())
def test_chunks_change_nothing_for_random_ragged_problems(data):
    lengths = np.array(data.draw(st.lists(st.integers(1, 3), min_size=2, max_size=9)))
    lengths[0] = 2  # not all of length one
    pooling = data.draw(st.sampled_from(["mean", "last", "none"]))
    problem = random_problem(data.draw(st.integers(0, 1000)), lengths=lengths, pooling=pooling)
    whole = evaluated(make_objective(*problem))
    chunked = evaluated(make_objective(*problem, chunk_size=data.draw(st.integers(1, 10))))
    assert_allclose(chunked[0], whole[0], rtol=1e-12)
    assert_allclose(chunked[1], whole[1], rtol=1e-11, atol=1e-12)


def test_a_memory_map_gives_what_the_array_gives(tmp_path):
    config, state, tokens, layout, y, weight = random_problem(n_samples=11)
    np.save(tmp_path / "x.npy", tokens.values)
    mapped = RawTokens(np.load(tmp_path / "x.npy", mmap_mode="r"))
    expected = evaluated(make_objective(config, state, tokens, layout, y, weight))
    found = make_objective(config, state, mapped, layout, y, weight, chunk_size=4)
    assert_allclose(evaluated(found)[0], expected[0], rtol=1e-12)
    reversed_view = RawTokens(tokens.values[::-1].copy()[::-1])
    found = make_objective(config, state, reversed_view, layout, y, weight)
    assert_allclose(evaluated(found)[1], expected[1], rtol=1e-12)


@pytest.mark.parametrize("lengths", [None, [2, 1, 3]])
@pytest.mark.parametrize("loss", [squared_error, binary_log_loss, multinomial_log_loss])
def test_objective_and_gradient_against_the_oracle(loss, lengths):
    n_outputs = {squared_error: 2, binary_log_loss: 1, multinomial_log_loss: 3}[loss]
    config, state, tokens, layout, y, weight = random_problem(
        n_samples=3,
        lengths=None if lengths is None else np.array(lengths),
        n_outputs=n_outputs,
        layer_norm=True,
        activation="gelu",
        positional_encoding="learned",
        d_ff=3,
    )
    labels = np.array([0, 1, 0])
    if loss is binary_log_loss:
        y = np.where(labels, 1.0, -1.0)[:, None]
    elif loss is multinomial_log_loss:
        y = np.eye(3)[labels]
    if lengths is None:
        x = tokens.values
    else:
        x = np.zeros((3, 3, config.d_model))
        x[np.arange(3) < np.array(lengths)[:, None]] = tokens.values

    def oracle(params):
        predictions = reference.forward(params, x, lengths, **oracle_options(config)).predictions
        if loss is squared_error:
            value = reference.squared_error(predictions, y, weight)
        elif loss is binary_log_loss:
            value = reference.log_loss_binary(predictions, labels, weight)
        else:
            value = reference.log_loss_multinomial(predictions, labels, weight)
        return value + reference.l2_penalty(params, 0.05)

    objective = make_objective(config, state, tokens, layout, y, weight, loss=loss, alpha=0.05)
    value, gradient = evaluated(objective)
    assert_allclose(value, oracle(state), rtol=1e-13)
    numerical = reference.numerical_gradient(oracle, state)
    expected = np.concatenate([numerical[name].ravel() for name in state_of(objective.module)])
    assert_allclose(gradient, expected, rtol=1e-8, atol=1e-8 * np.abs(expected).max())


def test_per_token_loss_sums_over_real_tokens():
    lengths = np.array([2, 1, 3])
    config, state, tokens, layout, y, weight = random_problem(lengths=lengths, pooling="none")
    padded = np.zeros((3, 3, 2))
    x = np.zeros((3, 3, 4))
    real = np.arange(3) < lengths[:, None]
    padded[real], x[real] = y, tokens.values
    predictions = reference.forward(state, x, lengths, **oracle_options(config)).predictions
    expected = reference.squared_error(predictions, padded, weight, lengths)
    objective = make_objective(config, state, tokens, layout, y, weight)
    assert_allclose(objective.evaluate(), expected, rtol=1e-13)


def test_sample_weights_are_scale_free_and_stand_for_repetitions():
    config, state, tokens, layout, y, _ = random_problem(n_samples=3)
    weight = np.array([2.0, 1.0, 3.0])
    weighted = evaluated(make_objective(config, state, tokens, layout, y, weight))
    scaled = evaluated(make_objective(config, state, tokens, layout, y, 1e-3 * weight))
    rows = [0, 0, 1, 2, 2, 2]
    repeated = evaluated(make_objective(config, state, tokens.take(rows), layout, y[rows]))
    for other in (scaled, repeated):
        assert_allclose(other[0], weighted[0], rtol=1e-13)
        assert_allclose(other[1], weighted[1], rtol=1e-11, atol=1e-13)


def test_the_penalty_is_on_weights_only():
    problem = random_problem(layer_norm=True, positional_encoding="learned", embedding="shared")
    free, penalised = make_objective(*problem), make_objective(*problem, alpha=0.3)
    difference = evaluated(penalised)[1] - evaluated(free)[1]
    start = 0
    squares = 0.0
    for name, value in state_of(free.module).items():
        piece = difference[start : start + value.size].reshape(value.shape)
        start += value.size
        expected = 0.3 * value if is_weight(name) else np.zeros(value.shape)
        assert_allclose(piece, expected, atol=1e-14, err_msg=name)
        squares += is_weight(name) * np.square(value).sum()
    assert_allclose(penalised.penalty(), 0.15 * squares, rtol=1e-13)
    assert free.penalty() == 0


def test_module_and_vector_are_the_same_memory():
    objective = make_objective(*random_problem())
    with torch.no_grad():
        objective.theta.fill_(0.25)
    assert all((value == 0.25).all() for value in state_of(objective.module).values())
    evaluated(objective)
    gradients = torch.cat([p.grad.reshape(-1) for p in objective.module.parameters()])
    assert torch.equal(gradients, objective.gradient)


def dense_gauss_newton_norm(objective):
    """Largest eigenvalue of J^T W J, the Jacobian built row by row."""
    rows, weights = [], []
    parameters = list(objective.module.parameters())
    for batch in objective.batches:
        output = objective.module(batch.x, batch.mask)
        for index in np.ndindex(tuple(output.shape)):
            if output.ndim == 3 and batch.mask is not None and not batch.mask[index[:2]]:
                continue
            pieces = torch.autograd.grad(
                output[index], parameters, retain_graph=True, allow_unused=True
            )
            rows.append(
                np.concatenate(
                    [
                        np.zeros(p.numel()) if piece is None else piece.numpy().ravel()
                        for piece, p in zip(pieces, parameters, strict=True)
                    ]
                )
            )
            weights.append(float(batch.weight[index[0]]))
    return np.linalg.norm(np.sqrt(weights)[:, None] * np.array(rows), 2) ** 2


@pytest.mark.parametrize("chunk_size", [None, 2])
@pytest.mark.parametrize(
    ("options", "lengths"),
    [
        ({}, None),
        ({"pooling": "none", "layer_norm": True}, None),
        ({"pooling": "none"}, np.array([1, 3, 2])),
        ({"pooling": "last", "n_heads": 2}, np.array([1, 3, 2])),
        ({"pooling": "flatten", "n_layers": 2, "activation": "tanh"}, None),
    ],
)
def test_gauss_newton_norm_is_that_of_the_dense_jacobian(options, lengths, chunk_size):
    objective = make_objective(*random_problem(lengths=lengths, **options), chunk_size=chunk_size)
    expected = dense_gauss_newton_norm(objective)
    assert_allclose(objective.gauss_newton_norm(max_iter=3000, tol=1e-11), expected, rtol=1e-6)
    assert_allclose(objective.gauss_newton_norm(), expected, rtol=0.05)


def test_gauss_newton_norm_knows_the_loss_and_the_penalty():
    problem = random_problem(n_outputs=1)
    config, state, tokens, layout, _, weight = problem
    y = np.ones((7, 1))
    squared = make_objective(*problem).gauss_newton_norm()
    logistic = make_objective(
        config, state, tokens, layout, y, weight, loss=binary_log_loss, alpha=0.5
    )
    assert_allclose(logistic.gauss_newton_norm(), squared / 4 + 0.5, rtol=1e-12)


def test_a_float32_objective_is_close_to_the_exact_one():
    problem = random_problem(n_samples=50)
    exact, single = (
        evaluated(make_objective(*problem)),
        evaluated(make_objective(*problem, dtype=torch.float32)),
    )
    assert_allclose(single[0], exact[0], rtol=1e-5)
    assert_allclose(single[1], exact[1], rtol=1e-3, atol=1e-5)
