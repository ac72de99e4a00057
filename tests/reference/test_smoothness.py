"""Uniform attention, upper bounds and descent in the convergence theory, on random instances.

Numbers in brackets are those of the theory's formulas.
"""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from tests.builders import SEEDS, THEORY_ACTIVATIONS, assert_at_most, flat, instances, make_model
from tests.reference.diagnostics import centred, collapse_floor
from tests.reference.theory import (
    NAMES,
    Model,
    certificate,
    gradients,
    hessian_norm_bound,
    jacobian,
    jacobian_blocks,
    jacobian_norm_bounds,
    singular_value,
    softmax_jacobian,
    spectral_norm,
    tangent_kernel,
)

# --- uniform attention --------------------------------------------------------------------------


@st.composite
def uniform_instances(draw, **fixed):
    model, y = draw(instances(**fixed))
    return model.with_weights(model.weights | {"query": 0 * model.weights["query"]}), y


@given(uniform_instances())
def test_residual_keeps_the_centred_spectrum(instance):
    model, _ = instance
    n_tokens = model.n_tokens
    for x, z in zip(model.x, model.z_per_sample(), strict=True):
        assert_allclose(centred(z), model.beta * centred(x), atol=1e-12)
        assume(n_tokens > 1)
        expected = model.beta * singular_value(centred(x), n_tokens - 1)
        assert_allclose(singular_value(centred(z), n_tokens - 1), expected, atol=1e-12)


@given(uniform_instances())
def test_smallest_singular_value_under_uniform_attention(instance):
    model, _ = instance
    for x, z in zip(model.x, model.z_per_sample(), strict=True):
        n_tokens, width = x.shape
        assume(n_tokens <= width)
        v = model.weights["value"].T @ x.mean(axis=0)
        u = np.linalg.pinv(x.T) @ v
        mixing = model.beta * np.eye(n_tokens) + np.outer(np.ones(n_tokens), u)
        bound = singular_value(x, n_tokens) * singular_value(mixing, n_tokens)  # [6]
        assert_at_most(bound, singular_value(z, n_tokens), spectral_norm(z))
        # the only zeros of the bound are beta = -u.1 and, for more than one token, beta = 0
        determinant = model.beta ** (n_tokens - 1) * (model.beta + u.sum())
        assert_allclose(np.linalg.det(mixing), determinant, rtol=1e-9, atol=1e-9)


def test_more_residual_is_not_always_better_conditioned():
    betas, best = np.linspace(0.05, 3, 60), []
    for seed in range(30):
        model, _ = make_model(seed, n=1, n_tokens=4, d=6)
        ratios = []
        for beta in betas:
            z = Model(model.weights, model.x, beta).z()
            ratios.append((singular_value(z, 4) / spectral_norm(z)) ** 2)
        best.append(betas[np.argmax(ratios)])
    assert any(beta < 1 for beta in best)
    assert any(beta > 1 for beta in best)


@given(uniform_instances(beta=0.0))
def test_collapse_floor(instance):
    model, y = instance
    assert_allclose(np.ptp(model.predictions().reshape(y.shape), axis=1), 0, atol=1e-11)
    assert_at_most(collapse_floor(y), model.loss(y))  # [7]
    # the best constant prediction of each sample reaches it
    centre = y.mean(axis=1, keepdims=True)
    assert_allclose(collapse_floor(y), 0.5 * np.sum((y - centre) ** 2), rtol=1e-9)


# --- smoothness ---------------------------------------------------------------------------------


@settings(max_examples=300)
@given(instances())
def test_jacobian_norm_bounds(instance):
    model, _ = instance
    bounds = jacobian_norm_bounds(model)  # [8]
    norms = {name: spectral_norm(block) ** 2 for name, block in jacobian_blocks(model).items()}
    for name in NAMES:
        assert_at_most(norms[name], bounds[name], 1e-6)
    for name in ("readout", "ffn_out"):
        assert_allclose(norms[name], bounds[name], rtol=1e-9, atol=1e-12)
    total = spectral_norm(jacobian(model)) ** 2
    assert_at_most(max(norms.values()), total)
    assert_at_most(total, sum(norms.values()))
    assert_allclose(total, spectral_norm(tangent_kernel(model)), rtol=1e-9)


def two_opposite_tokens(**weights):
    """One sample of the tokens 1 and -1, which attend uniformly because W_Q or W_K is zero."""
    names = dict.fromkeys(NAMES, np.zeros((1, 1)))
    values = {name: np.full((1, 1), value) for name, value in weights.items()}
    return Model(names | values, np.array([[[1.0], [-1.0]]]), beta=0.0)


@pytest.mark.parametrize(("moved", "other"), [("query", "key"), ("key", "query")])
def test_jacobian_norm_bound_of_the_attention_is_attained(moved, other):
    model = two_opposite_tokens(**{other: 0.8, "value": 3.0, "readout": 2.0})
    norm = spectral_norm(jacobian_blocks(model)[moved]) ** 2
    assert_allclose(norm, 2 * (0.8 * 3 * 2) ** 2)
    assert_allclose(jacobian_norm_bounds(model)[moved], norm)


@given(SEEDS, st.integers(1, 6), st.sampled_from([0.1, 1.0, 5.0]))
def test_derivatives_of_the_softmax(seed, n, scale):
    rng = np.random.default_rng(seed)
    logits = scale * rng.standard_normal(n)
    a = np.exp(logits - logits.max())
    a /= a.sum()
    assert_at_most(spectral_norm(softmax_jacobian(a)), 0.5)
    u = rng.standard_normal(n)
    mean = a @ u
    # d^2 softmax[u, u] = a o ((u - mean)^2 - variance)
    second = a * ((u - mean) ** 2 - a @ (u - mean) ** 2)
    assert_at_most(np.linalg.norm(second), u @ u)


def hessian(model, y, step=1e-5):
    """Hessian of the loss by central differences of its closed-form gradient."""
    columns = []
    for name in NAMES:
        for index in np.ndindex(model.weights[name].shape):
            ends = []
            for sign in (1, -1):
                moved = {key: value.copy() for key, value in model.weights.items()}
                moved[name][index] += sign * step
                ends.append(flat(gradients(model.with_weights(moved), y)))
            columns.append((ends[0] - ends[1]) / (2 * step))
    return np.array(columns)


SMALL = {"n": 2, "n_tokens": 2, "d": 2, "d_qk": 1, "d_ff": 2, "k": 1}


@pytest.mark.parametrize("activation", THEORY_ACTIVATIONS)
@pytest.mark.parametrize("seed", range(4))
def test_hessian_norm_bound(activation, seed):
    model, y = make_model(seed, **SMALL, activation=activation, beta=0.5)
    found = hessian(model, y)
    assert_allclose(found, found.T, atol=1e-6 * abs(found).max())
    assert_at_most(spectral_norm(found), hessian_norm_bound(model, y))  # [9]
    exact = Model(model.weights, model.x, 0.5, 1.0, activation)
    fitted = exact.predictions().reshape(y.shape)
    # without errors the Hessian is J^T J
    expected = jacobian(exact).T @ jacobian(exact)
    assert_allclose(hessian(exact, fitted), expected, atol=1e-6 * abs(expected).max())


def test_hessian_norm_bound_where_only_the_bilinear_logits_curve():
    # J = 0 and the softmax has no first derivative here: all curvature is d^2 (W_Q W_K^T)
    model, y = two_opposite_tokens(value=3.0, readout=1.0), np.array([[[-1.0], [1.0]]])
    assert_allclose(jacobian(model), 0)
    found = spectral_norm(hessian(model, y))
    assert_allclose(found, 6, rtol=1e-6)
    assert_allclose(hessian_norm_bound(model, y), 2 * found, rtol=1e-6)


@pytest.mark.parametrize("activation", ["gelu", "tanh", "identity"])
@pytest.mark.parametrize("seed", range(2))
def test_descent_lemma(activation, seed):
    model, y = make_model(seed, **SMALL, activation=activation)
    gradient = gradients(model, y)
    square = float(np.sum(flat(gradient) ** 2))

    def after(step):
        moved = {name: model.weights[name] - step * gradient[name] for name in NAMES}
        return model.with_weights(moved)

    step = 1 / spectral_norm(hessian(model, y))
    for _ in range(30):
        points = [after(share * step) for share in np.linspace(0, 1, 5)]
        smoothness = 1.02 * max(spectral_norm(hessian(point, y)) for point in points)
        if step <= 1 / smoothness:
            break
        step = min(step / 2, 1 / smoothness)
    assert step <= 1 / smoothness
    decreased = after(step).loss(y)
    assert_at_most(decreased, model.loss(y) - step / 2 * square)
    assert_at_most(decreased, (1 - step * certificate(model).alpha) * model.loss(y))
