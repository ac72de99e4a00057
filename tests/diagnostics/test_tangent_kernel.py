"""Products with the Jacobian, the extremes of the tangent kernel, and the loss it predicts."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from sklearn_restf import (
    THEOREM_SETTINGS,
    ResidualTransformerClassifier,
    ResidualTransformerRegressor,
    diagnose,
)
from sklearn_restf._diagnostics.tangent_kernel import (
    Linearisation,
    LocalQuadratic,
    largest_eigenvalue,
    local_quadratic,
    smallest_eigenvalue,
    valid_horizon,
)
from tests.builders import make_model
from tests.reference import theory as theory

RNG = np.random.default_rng(0)
X = RNG.normal(size=(20, 6, 8))
Y = X[:, -1, 0] + X[:, :, 1].mean(1)
Y_TOKENS = X[:, :, :2] ** 2
LABELS = np.digitize(Y, [-0.5, 0.5])
SERIES = [RNG.normal(size=(t, 4)) for t in (3, 6, 5, 2, 6)]


def theorem(**parameters):
    options = {"random_state": 0, "max_iter": 200, "pooling": "last"}
    return ResidualTransformerRegressor(**(THEOREM_SETTINGS | options | parameters))


def linearise(estimator, X, y, alpha=0.0):
    module, batches, loss = estimator._prepare_diagnosis(X, y)
    return Linearisation(module, batches, loss, alpha)


def dense_hessian(estimator, X, y, alpha):
    """J^T C J + D from the dense Jacobian and second derivatives of the loss by autograd."""
    module, batches, loss = estimator._prepare_diagnosis(X, y)
    (batch,) = batches
    parameters = list(module.parameters())
    output = module(batch.x, batch.mask)
    rows = [
        torch.autograd.grad(o, parameters, retain_graph=True, allow_unused=True)
        for o in output.flatten()
    ]
    J = torch.stack(
        [
            torch.cat(
                [
                    (torch.zeros_like(p) if g is None else g).flatten()
                    for g, p in zip(row, parameters, strict=True)
                ]
            )
            for row in rows
        ]
    )
    curvature = torch.autograd.functional.hessian(
        lambda o: loss(o.view_as(output), batch.y, batch.weight, batch.mask),
        output.detach().flatten(),
    )
    decay = linearise(estimator, X, y, alpha).decay
    return (J.T @ curvature @ J + torch.diag(decay)).detach().numpy()


REGRESSION = [
    ("last", X, Y),
    ("mean", X, Y),
    ("flatten", X, Y),
    ("none", X, Y_TOKENS),
    ("mean", SERIES, np.arange(5.0)),
    ("none", SERIES, [s[:, 0] for s in SERIES]),
]


@pytest.mark.parametrize(("pooling", "X", "y"), REGRESSION)
def test_products_against_the_dense_matrix(pooling, X, y):
    estimator = theorem(pooling=pooling, alpha=0.01)
    expected = dense_hessian(estimator, X, y, 0.01)
    found = linearise(estimator, X, y, 0.01)
    vector = RNG.normal(size=found.n_parameters)
    product = found.gauss_newton_product(torch.from_numpy(vector)).numpy()
    assert_allclose(product, expected @ vector, rtol=1e-9, atol=1e-10)
    assert largest_eigenvalue(found) == pytest.approx(np.linalg.eigvalsh(expected)[-1], rel=1e-3)
    J = found.jacobian()
    assert_allclose(J.T @ J, dense_hessian(estimator, X, y, 0.0), atol=1e-10)


@pytest.mark.parametrize("labels", [LABELS > 0, LABELS], ids=["binary", "three classes"])
def test_products_of_the_log_loss(labels):
    estimator = ResidualTransformerClassifier(
        random_state=0, pooling="last", class_weight="balanced"
    )
    expected = dense_hessian(estimator, X, labels, 0.02)
    found = linearise(estimator, X, labels, 0.02)
    vector = RNG.normal(size=found.n_parameters)
    product = found.gauss_newton_product(torch.from_numpy(vector)).numpy()
    assert_allclose(product, expected @ vector, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("chunk_size", [None, 7])
def test_gradient_is_that_of_training(chunk_size):
    estimator = theorem(alpha=0.1, chunk_size=chunk_size, max_iter=1).fit(X, Y)
    loss, gradient = linearise(estimator, X, Y, 0.1).objective_and_gradient()
    report = estimator.set_params(warm_start=True).fit(X, Y).convergence_diagnostics_
    assert loss == pytest.approx(report.loss[0])
    assert float(gradient.norm()) == pytest.approx(report.gradient_norm[0])


def test_chunks_change_nothing():
    whole, pieces = (linearise(theorem(chunk_size=size), X, Y) for size in (None, 7))
    vector = torch.from_numpy(RNG.normal(size=whole.n_parameters))
    assert_allclose(pieces.gauss_newton_product(vector), whole.gauss_newton_product(vector))
    assert_allclose(pieces.jacobian(), whole.jacobian())


def test_float32_data_are_taken_apart_in_float64():
    single, double = (linearise(theorem(), X.astype(dtype), Y) for dtype in ("f4", "f8"))
    assert_allclose(single.jacobian(), double.jacobian(), rtol=1e-4, atol=1e-5)
    assert single.jacobian().dtype == np.float64


def test_extremes_of_the_kernel_against_the_oracle():
    model, y = make_model(0, n=2, n_tokens=2, d=5, d_ff=6, k=1, d_qk=2)
    estimator = theorem(pooling="none", d_ff=6, d_qk=2).fit(model.x, y[:, :, 0])
    state = estimator._fitted.state
    weights = {name: state[f"blocks.0.{name}"] for name in theory.NAMES[:-1]}
    weights["readout"] = state["readout"]
    # the package's readout has a bias, whose kernel block is the matrix of ones
    kernel = theory.tangent_kernel(model.with_weights(weights)) + np.ones((4, 4))
    values = np.linalg.eigvalsh(kernel) / 2  # mean over two samples
    found = linearise(estimator, model.x, y[:, :, 0])
    assert largest_eigenvalue(found) == pytest.approx(values[-1], rel=1e-4)
    assert smallest_eigenvalue(found, 4)[0] == pytest.approx(values[0], rel=1e-6)


def test_more_predictions_than_parameters_have_a_singular_kernel():
    found = linearise(theorem(d_ff=1, d_model=1, n_tokens=1), RNG.normal(size=(50, 2)), np.ones(50))
    assert smallest_eigenvalue(found, 50) == (0.0, "")


def test_too_many_outputs_give_nan_and_a_reason():
    found = linearise(theorem(d_ff=200), X, Y)
    value, reason = smallest_eigenvalue(found, 513)
    assert np.isnan(value)
    assert "512" in reason


# --- the predicted loss -------------------------------------------------------------------------


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_descent_on_a_quadratic_is_exact(momentum):
    rng = np.random.default_rng(1)
    slopes, curvatures = rng.normal(size=5), rng.uniform(0, 2, 5)
    theta, velocity, expected = np.zeros(5), np.zeros(5), []
    for _ in range(31):
        expected.append(3.0 + slopes @ theta + 0.5 * curvatures @ theta**2)
        velocity = momentum * velocity - 0.3 * (slopes + curvatures * theta)
        theta = theta + velocity
    found = LocalQuadratic(3.0, slopes, curvatures).descend([0.3] * 30, momentum)
    assert_allclose(found, expected)


def test_krylov_prediction_is_that_of_the_full_quadratic():
    estimator = theorem(d_ff=64)
    H = dense_hessian(estimator, X, Y, 0.0)
    found = linearise(estimator, X, Y)
    loss, gradient = found.objective_and_gradient()
    values, vectors = np.linalg.eigh(H)
    exact = LocalQuadratic(loss, vectors.T @ gradient.numpy(), values)
    rates = [1 / values[-1]] * 500
    assert_allclose(
        local_quadratic(found).descend(rates, 0.0), exact.descend(rates, 0.0), rtol=1e-5
    )


QUADRATIC = [
    ("last", 32, X, Y, {}),
    ("last", 512, X, Y, {}),
    ("mean", 32, X, Y, {}),
    ("flatten", 32, X, Y, {}),
    ("none", 64, X, Y_TOKENS, {}),
    ("last", 32, X, Y, {"alpha": 1e-3}),
    ("last", 32, X, Y, {"learning_rate": 1e-2, "momentum": 0.9}),
    ("last", 32, X, Y, {"n_layers": 3, "layer_norm": True}),
]


@pytest.mark.parametrize(("pooling", "d_ff", "X", "y", "more"), QUADRATIC)
def test_prediction_is_within_ten_per_cent_near_a_minimum(pooling, d_ff, X, y, more):
    """After 400 iterations: the next 200, from the fitted weights, before they are run."""
    estimator = theorem(pooling=pooling, d_ff=d_ff, max_iter=400, **more).fit(X, y)
    estimator.set_params(warm_start=True, max_iter=200)
    rate = estimator.learning_rate_
    predicted = linearise(estimator, X, y, estimator.alpha)
    predicted = local_quadratic(predicted).descend([rate] * 200, estimator.momentum)
    actual = estimator.fit(X, y).convergence_diagnostics_.loss
    if estimator.momentum:  # warm_start keeps the velocity, which the prediction starts without
        actual, predicted = actual[50:], predicted[50:]
    # at 1e-20 the errors are rounding
    assert_allclose(predicted, actual, rtol=0.1, atol=1e-20)


def test_prediction_of_the_log_loss():
    estimator = ResidualTransformerClassifier(
        learning_rate="theory", momentum=0.0, alpha=0.0, tol=None, random_state=0, max_iter=400
    ).fit(X, LABELS)
    estimator.set_params(learning_rate=estimator.learning_rate_, max_iter=100)
    predicted = diagnose(estimator, X, LABELS, full=True).predicted_curve
    actual = estimator.set_params(warm_start=True).fit(X, LABELS).convergence_diagnostics_.loss
    assert_allclose(predicted, actual, rtol=0.1)


def test_full_diagnostics_tell_how_long_the_prediction_held():
    wide = theorem(pooling="none", d_ff=512, diagnostics="full").fit(X, Y_TOKENS)
    found = wide.convergence_diagnostics_
    horizon = found.predicted_horizon
    error = np.abs(found.predicted_curve / found.loss - 1)
    assert len(error) == 201
    assert 20 <= horizon <= 200
    assert (error[: horizon + 1] <= 0.1).all()
    assert horizon == 200 or error[horizon + 1] > 0.1
    assert found.jacobian_norm * wide.learning_rate_ == pytest.approx(1, rel=0.01)


def test_a_prediction_that_held_binds():
    small = theorem(learning_rate=1e-4, d_ff=64, diagnostics="full", max_iter=60).fit(X, Y)
    found = small.convergence_diagnostics_
    assert found.predicted_horizon == 60
    assert found.binding == "local"
    assert found.local_rate == pytest.approx(found.rate, rel=1e-3)
    # sharp where the certificate is only valid
    assert found.rate <= found.predicted_rate
    assert 1 - found.local_rate > 10 * (1 - found.predicted_rate)
    assert found.alpha_cert <= found.kernel_min * (1 + 1e-9)
    assert "rate, linearised" in found.summary()


def test_a_prediction_that_failed_says_when():
    estimator = theorem(learning_rate="adaptive", diagnostics="full").fit(X, Y)
    found = estimator.convergence_diagnostics_
    assert found.predicted_horizon < found.rate_window[1]
    assert np.isnan(found.local_rate)
    assert "left the linear regime" in found.reasons["local_rate"]
    assert found.binding == "certificate" or np.isnan(found.predicted_rate)


def test_forecast_is_what_more_iterations_bring():
    estimator = theorem(diagnostics="full", max_iter=300).fit(X, Y)
    forecast = estimator.convergence_diagnostics_.forecast
    further = estimator.set_params(warm_start=True).fit(X, Y)
    assert_allclose(forecast, further.convergence_diagnostics_.loss, rtol=0.1)


@pytest.mark.parametrize(
    ("predicted", "actual", "horizon"),
    [
        ([1, 1, 1], [1, 1, 1], 2),
        ([1, 1.2, 1], [1, 1, 1], 0),
        ([2, 1], [1, 1], -1),
        ([1, np.nan], [1, 1], 0),
    ],
)
def test_horizon(predicted, actual, horizon):
    assert valid_horizon(np.array(predicted), np.array(actual)) == horizon


def test_a_diverging_prediction_is_not_an_error():
    with np.errstate(all="raise"):
        values = LocalQuadratic(1.0, np.ones(1), np.full(1, 10.0)).descend([1.0] * 500, 0.0)
    assert not np.isfinite(values[-1])


def test_random_generators_are_left_alone(random_state_unchanged):
    theorem(diagnostics="full", max_iter=3).fit(X, Y)
