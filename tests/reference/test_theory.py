"""The lower bounds of the convergence theory, on random instances: the oracle checks itself.

Numbers in brackets are those of the theory's formulas.
"""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from tests.builders import SEEDS, THEORY_ACTIVATIONS, assert_at_most, flat, instances, make_model
from tests.reference.equations import forward, numerical_gradient
from tests.reference.theory import (
    NAMES,
    Model,
    certificate,
    gradients,
    jacobian,
    jacobian_blocks,
    mean_pooled_certificate,
    singular_value,
    smallest_kernel_eigenvalue,
    spectral_norm,
    tangent_kernel,
)

# --- the closed forms against the equations -----------------------------------------------------


@given(instances())
def test_predictions_are_those_of_the_forward_oracle(instance):
    model, _ = instance
    params = {f"blocks.0.{name}": model.weights[name] for name in NAMES[:-1]}
    params |= {"readout": model.weights["readout"], "readout_bias": np.zeros(1)}
    options = {"residual_beta": model.beta, "ffn_residual_beta": model.gamma}
    plain = forward(params, model.x, activation=model.activation, pooling="none", **options)
    assert_allclose(model.predictions(), np.vstack(list(plain.predictions)), rtol=1e-11, atol=1e-12)
    assert_allclose(model.z(), np.vstack(plain.layers[0]["Z"]), rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("activation", THEORY_ACTIVATIONS)
@pytest.mark.parametrize("seed", range(3))
def test_gradients_against_finite_differences(activation, seed):
    model, y = make_model(seed, d=3, d_ff=4, beta=0.7, gamma=0.4, activation=activation)
    expected = numerical_gradient(lambda w: model.with_weights(w).loss(y), model.weights)
    found = gradients(model, y)
    for name in NAMES:
        largest = abs(expected[name]).max()
        assert_allclose(found[name], expected[name], rtol=1e-8, atol=1e-9 * largest)


@pytest.mark.parametrize("activation", THEORY_ACTIVATIONS)
def test_jacobian_against_finite_differences(activation):
    model, _ = make_model(5, n_tokens=2, d=3, d_ff=4, beta=0.7, gamma=0.4, activation=activation)
    found = jacobian(model)
    for row, index in enumerate(np.ndindex(model.predictions().shape)):
        expected = numerical_gradient(
            lambda w, index=index: model.with_weights(w).predictions()[index], model.weights
        )
        assert_allclose(found[row], flat(expected), rtol=1e-8, atol=1e-9)


@given(instances())
def test_gradient_is_the_jacobian_times_the_errors(instance):
    model, y = instance
    blocks, errors = jacobian_blocks(model), model.errors(y).ravel()
    for name, gradient in gradients(model, y).items():
        expected = blocks[name].T @ errors
        assert_allclose(gradient.ravel(), expected, rtol=1e-9, atol=1e-11 * abs(errors).max())


# --- the lower bound ----------------------------------------------------------------------------


@settings(max_examples=300)
@given(instances())
def test_certificate_bounds_every_block_and_the_whole_kernel(instance):
    model, _ = instance
    found, blocks = certificate(model), jacobian_blocks(model)
    rows = len(blocks["readout"])
    smallest = {name: singular_value(block, rows) ** 2 for name, block in blocks.items()}
    size = spectral_norm(jacobian(model)) ** 2
    assert_allclose(found.readout, smallest["readout"], rtol=1e-7, atol=1e-13 * size)  # [1]
    assert_allclose(found.ffn_out, smallest["ffn_out"], rtol=1e-7, atol=1e-13 * size)  # [2]
    assert_at_most(found.ffn_in_rows, smallest["ffn_in"], 1e-4 * size)  # [3a]
    assert_at_most(found.ffn_in_schur, smallest["ffn_in"], 1e-4 * size)  # [3b]
    assert_at_most(found.value, smallest["value"], 1e-4 * size)  # [4]
    assert_at_most(found.alpha, smallest_kernel_eigenvalue(model), 1e-4 * size)
    assert_at_most(sum(smallest.values()), smallest_kernel_eigenvalue(model), 1e-4 * size)


@settings(max_examples=300)
@given(instances())
def test_polyak_lojasiewicz_inequality(instance):
    model, y = instance
    square = float(np.sum(flat(gradients(model, y)) ** 2))
    kernel, errors = tangent_kernel(model), model.errors(y).ravel()
    assert_allclose(square, errors @ kernel @ errors, rtol=1e-9, atol=1e-12)
    assert_at_most(2 * certificate(model).alpha * model.loss(y), square)
    local = square / (2 * model.loss(y))
    largest = spectral_norm(kernel)
    assert_at_most(smallest_kernel_eigenvalue(model), local, largest)
    assert_at_most(local, largest)


@given(instances())
def test_smallest_eigenvalue_is_the_best_constant(instance):
    model, _ = instance
    values, vectors = np.linalg.eigh(tangent_kernel(model))
    y = (
        model.predictions() - vectors[:, 0].reshape(-1, model.weights["readout"].shape[1])
    ).reshape(*model.x.shape[:2], -1)
    square = float(np.sum(flat(gradients(model, y)) ** 2))
    assert_allclose(square, 2 * values[0] * model.loss(y), rtol=1e-7, atol=1e-12 * values[-1])


@given(instances())
def test_certificate_is_zero_where_dimensions_forbid_it(instance):
    model, _ = instance
    (n_rows, d), (d_ff, k) = model.z().shape, model.b().shape
    found = certificate(model)
    if n_rows > d:
        assert found.readout == found.ffn_in_rows == found.value == 0
    if n_rows > d_ff or k > d:
        assert found.ffn_out == 0
    if n_rows * k > d_ff:
        assert found.ffn_in_schur == 0
    if n_rows <= min(d, d_ff) and k <= d and model.gamma and model.beta:
        assert found.alpha > 0


@given(instances())
def test_certificate_of_the_pooled_models(instance):
    model, _ = instance
    n, n_tokens, k = model.n_samples, model.n_tokens, model.weights["readout"].shape[1]
    full, last = (
        jacobian(model).reshape(n, n_tokens, k, -1),
        range(n_tokens - 1, n * n_tokens, n_tokens),
    )
    size = spectral_norm(jacobian(model)) ** 2
    of_last = full[:, -1].reshape(n * k, -1)
    bound = certificate(model, last).alpha
    assert_at_most(bound, singular_value(of_last, n * k) ** 2, 1e-4 * size)
    of_mean = full.mean(axis=1).reshape(n * k, -1)
    bound = mean_pooled_certificate(model).alpha
    assert_at_most(bound, singular_value(of_mean, n * k) ** 2, 1e-4 * size)


@given(SEEDS, st.integers(1, 5), st.integers(1, 3))
def test_schur_product_bound(seed, n, k):
    rng = np.random.default_rng(seed)
    left, right = rng.standard_normal((n, n + 1)), rng.standard_normal((n * k, n * k + 1))
    p, q = left @ left.T, right @ right.T
    product = np.kron(p, np.ones((k, k))) * q
    assert_at_most(
        p.diagonal().min() * np.linalg.eigvalsh(q)[0], np.linalg.eigvalsh(product)[0], p.trace()
    )


@given(instances())
def test_feed_forward_skip_carries_the_spectrum_of_z(instance):
    model, _ = instance
    rows = len(model.z())
    through = spectral_norm(model.hidden() @ model.weights["ffn_out"])
    weyl = model.gamma * singular_value(model.z(), rows) - through
    assert_at_most(weyl, singular_value(model.f(), rows), through)


# --- how the smallest singular value of Z enters ------------------------------------------------


@st.composite
def paired_instances(draw):
    """W_1 = [W, -W] wide enough, W_2 = 0."""
    model, y = draw(instances(activations=("relu",)))
    d = model.x.shape[2]
    half = np.random.default_rng(draw(SEEDS)).standard_normal((d, d + draw(st.integers(0, 3))))
    paired = {"ffn_in": np.hstack([half, -half]), "ffn_out": np.zeros((2 * half.shape[1], d))}
    return model.with_weights(model.weights | paired), half, y


@settings(max_examples=300)
@given(paired_instances())
def test_paired_initialisation(instance):
    model, half, _ = instance
    z, hidden, readout = model.z(), model.hidden(), model.weights["readout"]
    (rows, d), k = z.shape, readout.shape[1]
    gain = 0.5 * singular_value(half, d) ** 2
    difference = hidden @ hidden.T - gain * z @ z.T
    assert_at_most(0, np.linalg.eigvalsh(difference)[0], spectral_norm(hidden) ** 2)
    mixed = z @ half
    both = 0.5 * (mixed @ mixed.T + abs(mixed) @ abs(mixed).T)
    assert_allclose(hidden @ hidden.T, both, rtol=1e-9, atol=1e-10)
    closed = singular_value(z, rows) ** 2 * (
        model.gamma**2 + gain * singular_value(readout, k) ** 2
    )
    size = 1e-4 * spectral_norm(jacobian(model)) ** 2
    assert_at_most(closed, certificate(model).alpha, size)
    assert_at_most(closed, smallest_kernel_eigenvalue(model), size)
    blocks = jacobian_blocks(model)
    readable = np.hstack([blocks[name] for name in ("ffn_in", "ffn_out", "readout")])
    upper = np.sum(z**2) * (model.gamma**2 + spectral_norm(half) ** 2 * spectral_norm(readout) ** 2)
    assert_at_most(spectral_norm(readable) ** 2, upper)


@given(SEEDS, st.integers(1, 6), st.integers(1, 6))
def test_gaussian_feed_forward_in_expectation(seed, rows, d):
    z = np.random.default_rng(seed).standard_normal((rows, d))
    norms = np.linalg.norm(z, axis=1)
    cosine = np.clip(z @ z.T / np.outer(norms, norms), -1, 1)
    angle = np.arccos(cosine)
    # E[relu(w.z_i) relu(w.z_j)] for one standard Gaussian unit w
    expected = np.outer(norms, norms) * (np.sin(angle) + (np.pi - angle) * cosine) / (2 * np.pi)
    assert_at_most(0, np.linalg.eigvalsh(expected - z @ z.T / 4)[0], 10 * np.sum(z**2))


@given(instances())
def test_stacking_samples_and_near_duplicates_lower_the_spectrum(instance):
    model, _ = instance
    z, hidden = model.z(), model.hidden()
    stacked = singular_value(z, len(z))
    alone = min(singular_value(each, model.n_tokens) for each in model.z_per_sample())
    assert_at_most(stacked, alone, spectral_norm(z))
    assume(len(z) > 1)
    gaps = [np.linalg.norm(z[i] - z[j]) for i in range(len(z)) for j in range(i)]
    assert_at_most(stacked, min(gaps) / np.sqrt(2), spectral_norm(z))  # [5]
    assume(model.activation != "gelu")  # its slope exceeds 1
    through = spectral_norm(model.weights["ffn_in"]) * min(gaps) / np.sqrt(2)
    assert_at_most(singular_value(hidden, len(z)), through, spectral_norm(hidden))  # [5]


def test_equal_samples_have_no_certificate_whatever_each_alone_says():
    model, _ = make_model(0, n=1, n_tokens=2, d=6, d_ff=8, k=1)
    smallest = []
    for distance in (0.0, 1e-3, 1e-2, 1e-1):
        other = model.x[0] + distance * np.random.default_rng(1).standard_normal((2, 6))
        both = Model(model.weights, np.array([model.x[0], other]))
        assert min(singular_value(z, 2) for z in both.z_per_sample()) > 0.1
        smallest.append(smallest_kernel_eigenvalue(both))
    assert smallest[0] < 1e-25
    assert smallest[0] < smallest[1] < smallest[2] < smallest[3]


def test_relu_can_increase_the_spectral_norm():
    matrix = np.array([[1.0, 1.0], [1.0, -1.0]])
    assert spectral_norm(np.maximum(matrix, 0)) > spectral_norm(matrix)
