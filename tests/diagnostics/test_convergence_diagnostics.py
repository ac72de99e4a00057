"""The convergence diagnostics of a fit, against the oracle and against known situations."""

import dataclasses
import json
import math
import pickle
import time

import numpy as np
import pytest
import skops.io
import torch
from numpy.testing import assert_allclose

from sklearn_restf import (
    THEOREM_SETTINGS,
    ConvergenceDiagnostics,
    ResidualTransformerClassifier,
    ResidualTransformerRegressor,
    diagnose,
)
from tests.builders import X3, YR, both, make_model, make_regressor
from tests.reference import diagnostics as oracle
from tests.tools import ExtraMemory, linux_only, live_tensors, outputs

RNG = np.random.default_rng(0)
X = RNG.normal(size=(12, 5, 6))
Y = X[:, -1, 0] + X[:, :, 1].mean(1)
Y_TOKENS = np.tanh(X[:, :, 0])


def theorem(**parameters):
    """A regressor in the theorem's setting."""
    options = {"random_state": 0, "max_iter": 30, "d_ff": 80, "pooling": "last"}
    return ResidualTransformerRegressor(**(THEOREM_SETTINGS | options | parameters))


# --- the certificate of a run -------------------------------------------------------------------


@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("seed", range(3))
def test_predicted_rate_bounds_the_measured_rate(beta, seed):
    estimator = theorem(residual_beta=beta, random_state=seed)
    rate = 0.25 / diagnose(estimator, X, Y).jacobian_norm
    fitted = estimator.set_params(learning_rate=rate).fit(X, Y)
    found = fitted.convergence_diagnostics_
    assert found.alpha_cert > 0
    assert found.certified
    assert found.rate <= found.predicted_rate < 1
    assert found.predicted_rate == pytest.approx(1 - fitted.learning_rate_ * found.alpha_cert)
    # what the certificate promises of the whole run, and the sharper a-posteriori product
    promised = found.loss[0] * np.prod(1 - found.learning_rates * found.local_pl[:-1])
    assert found.loss[-1] <= promised <= found.loss[0] * found.predicted_rate**found.n_iter


def test_certificate_of_weighted_samples_is_that_of_the_smallest_weight():
    weight = np.linspace(1, 3, len(X))
    plain = theorem().fit(X, Y).convergence_diagnostics_
    weighted = theorem().fit(X, Y, sample_weight=weight).convergence_diagnostics_
    ratio = (weight / weight.sum()).min() * len(X)
    assert weighted.alpha_cert == pytest.approx(ratio * plain.alpha_cert)


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"momentum": 0.9}, "momentum=0"),
        ({"alpha": 0.1}, "alpha=0"),
        ({"d_ff": 4}, "at most max"),
    ],
)
def test_no_predicted_rate_comes_with_its_reason(parameters, words):
    found = theorem(**parameters).fit(X, Y).convergence_diagnostics_
    assert math.isnan(found.predicted_rate)
    assert words in found.reasons["predicted_rate"]
    assert words in found.summary()


def test_log_loss_has_no_certificate_and_says_so():
    fitted = ResidualTransformerClassifier(max_iter=10, tol=None, random_state=0).fit(X, Y > 0)
    assert "squared error" in fitted.convergence_diagnostics_.reasons["predicted_rate"]


# --- the history --------------------------------------------------------------------------------


def test_history_is_that_of_plain_gradient_descent():
    """Per-token targets, no penalty: the oracle's trajectory, loss divided by n."""
    model, y = make_model(3, n=2, n_tokens=3, d=6, d_ff=8, k=2)
    estimator = theorem(
        pooling="none", d_ff=8, d_qk=2, max_iter=25, random_state=1, learning_rate=1e-2
    ).fit(model.x, y)
    found = estimator.convergence_diagnostics_
    alpha = oracle.local_pl_constants(found.loss, found.gradient_norm**2)
    assert_allclose(found.local_pl, alpha)
    decrease = oracle.sufficient_decrease(found.loss, found.gradient_norm**2, 1e-2)
    assert_allclose(found.armijo, decrease)
    assert found.certified == oracle.is_certified(found.loss, found.gradient_norm**2, 1e-2)
    assert_allclose(found.loss[1:] / found.loss[:-1], 1 - 2e-2 * found.armijo * alpha[:-1])
    assert found.loss[-1] <= oracle.certified_loss_bound(found.loss, found.gradient_norm**2, 1e-2)


def test_collapse_floor_is_the_oracles():
    found = theorem(pooling="none").fit(X, Y_TOKENS).convergence_diagnostics_
    scaled = (Y_TOKENS / Y_TOKENS.std())[:, :, None]
    assert found.collapse_floor == pytest.approx(oracle.collapse_floor(scaled) / len(X))
    assert math.isnan(theorem().fit(X, Y).convergence_diagnostics_.collapse_floor)


def test_collapsed_tokens_cannot_beat_the_collapse_floor():
    """Gradient descent does get out of the collapse, but only then below the floor."""
    parameters = {"residual_beta": 0.0, "ffn_residual_beta": 1.0, "init_scale": 1e-3}
    estimator = theorem(pooling="none", momentum=0.9, learning_rate="adaptive", **parameters)
    early = estimator.set_params(max_iter=15).fit(X, Y_TOKENS).convergence_diagnostics_
    assert early.final_rank1_residual < 1e-3
    assert early.loss.min() > 0.999 * early.collapse_floor
    late = estimator.set_params(max_iter=60).fit(X, Y_TOKENS).convergence_diagnostics_
    assert late.final_rank1_residual > 1e-2
    assert late.loss.min() < 0.5 * late.collapse_floor


@pytest.mark.parametrize("per_token", [False, True])
def test_trivial_loss_of_the_regressor_is_half_the_variance(per_token):
    estimator = theorem(pooling="none" if per_token else "last", max_iter=2)
    found = estimator.fit(X, Y_TOKENS if per_token else Y).convergence_diagnostics_
    assert found.trivial_loss == pytest.approx(0.5 * (5 if per_token else 1))


@pytest.mark.parametrize("n_classes", [2, 3])
def test_trivial_loss_of_the_classifier_is_the_entropy(n_classes):
    labels = np.arange(12) % n_classes
    estimator = ResidualTransformerClassifier(max_iter=2, tol=None, random_state=0).fit(X, labels)
    assert estimator.convergence_diagnostics_.trivial_loss == pytest.approx(np.log(n_classes))


def test_penalty_is_its_share_of_the_objective():
    found = theorem(alpha=0.05).fit(X, Y)
    named = found.module_.named_parameters()
    squares = sum(float((p.detach() ** 2).sum()) for n, p in named if "bias" not in n)
    share = 0.5 * 0.05 * squares / found.loss_
    assert found.convergence_diagnostics_.penalty == pytest.approx(share)


def test_end_of_an_early_stopped_run_is_the_model_that_was_kept():
    Xt, yt = RNG.normal(size=(60, 5, 6)), RNG.normal(size=60)
    fitted = ResidualTransformerRegressor(
        early_stopping=True, max_iter=60, random_state=0, diagnostics="full"
    ).fit(Xt, yt)
    assert fitted.best_iteration_ < fitted.n_iter_
    # "full" looks at every training sample; the kept module gives the same norm on them
    module = fitted.module_.double()
    scaled = torch.from_numpy((Xt - Xt.reshape(-1, 6).mean(0)) / Xt.reshape(-1, 6).std(0))
    with torch.no_grad():
        norms = np.linalg.norm(module.layers(scaled)[-1].Z.numpy(), 2, axis=(1, 2))
    assert fitted.convergence_diagnostics_.final_norm == pytest.approx(norms.max(), rel=0.1)


# --- the object ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def found():
    return theorem(n_layers=2, diagnostics="full").fit(X, Y).convergence_diagnostics_


def test_survives_pickle_skops_and_json(found):
    estimator = theorem(n_layers=2, diagnostics="full").fit(X, Y)
    dumped = skops.io.dumps(estimator)
    trusted = skops.io.get_untrusted_types(data=dumped)
    assert all(name.startswith("sklearn_restf.") for name in trusted)
    for copy in (
        pickle.loads(pickle.dumps(found)),
        skops.io.loads(dumped, trusted=trusted).convergence_diagnostics_,
    ):
        assert copy.summary() == found.summary()
        assert_allclose(copy.loss, found.loss)
        assert_allclose(copy.forecast, found.forecast)
    text = json.dumps(found.to_dict(), allow_nan=False)
    assert json.loads(text)["sigma_min"] == found.sigma_min


def test_json_of_an_empty_report():
    assert json.loads(json.dumps(ConvergenceDiagnostics().to_dict()))["rate"] is None


def test_frame_has_a_row_per_layer(found):
    frame = found.to_frame()
    assert frame.index.tolist() == [1, 2]
    assert frame["sigma_min"].iloc[-1] == found.sigma_min
    assert frame["final_norm"].iloc[-1] == found.final_norm


def test_scalars_are_plain_floats(found):
    for name, value in vars(found).items():
        allowed = (float, int, str, bool, tuple, dict, np.ndarray)
        assert type(value) in allowed, name


def test_a_rate_above_one_is_explained(found):
    words = "the loss fell ever faster"
    assert words not in dataclasses.replace(found, rate=0.99).summary()
    assert words in dataclasses.replace(found, rate=1.006).summary()


def test_repr_is_quick(found):
    start = time.perf_counter()
    for _ in range(100):
        repr(found)
    assert time.perf_counter() - start < 1.0


def test_repr_in_a_notebook_shows_the_same(found):
    html = found._repr_html_()
    assert html.startswith("<")
    assert f"{found.sigma_min:.4g}" in html
    assert found.advice.split(".")[0] in html


def test_switched_off_there_are_no_spectra_but_a_history():
    found = theorem(diagnostics=False).fit(X, Y).convergence_diagnostics_
    assert math.isnan(found.sigma_min)
    assert found.reasons["sigma_min"] == "diagnostics=False"
    assert len(found.loss) == found.n_iter + 1
    assert len(found.to_frame()) == 0
    assert isinstance(found.advice, str)


def test_few_samples_are_looked_at_unless_full():
    Xt, yt = RNG.normal(size=(100, 4)), RNG.normal(size=100)
    some = ResidualTransformerRegressor(diagnostics_samples=7, max_iter=3, tol=None).fit(Xt, yt)
    assert some.convergence_diagnostics_.norm_per_sample.shape == (1, 7)
    every = ResidualTransformerRegressor(diagnostics="full", max_iter=3, tol=None).fit(Xt, yt)
    assert every.convergence_diagnostics_.norm_per_sample.shape == (1, 100)


def test_diagnostics_cost_a_small_part_of_a_default_fit():
    Xt, yt = RNG.normal(size=(300, 10)), RNG.normal(size=300)

    def seconds(diagnostics):
        best = math.inf
        for _ in range(3):
            start = time.process_time()
            ResidualTransformerRegressor(diagnostics=diagnostics, random_state=0).fit(Xt, yt)
            best = min(best, time.process_time() - start)
        return best

    # a few per cent; the bound is wide because other processes share the machine
    assert seconds(True) < 1.25 * seconds(False)


@both
def test_reading_diagnostics_has_no_side_effects_case_d27(make, y):
    """Not on the model, not on any random generator, not on memory."""
    estimator = make(diagnostics="full").fit(X3, y)
    before = outputs(estimator, X3)
    state = np.random.get_state()[1].copy(), torch.random.get_rng_state()
    first = repr(estimator.convergence_diagnostics_)
    tensors = live_tensors()
    for _ in range(50):
        report = estimator.convergence_diagnostics_
        report.summary()
        report.to_frame()
        assert repr(report) == first
    assert live_tensors() == tensors
    np.testing.assert_array_equal(np.random.get_state()[1], state[0])
    assert torch.equal(torch.random.get_rng_state(), state[1])
    np.testing.assert_array_equal(outputs(estimator, X3), before)


@linux_only
def test_reading_diagnostics_takes_no_memory_case_d27():
    estimator = make_regressor(diagnostics="full").fit(X3, YR)
    estimator.convergence_diagnostics_.to_frame()
    with ExtraMemory() as extra:
        for _ in range(50):
            estimator.convergence_diagnostics_.to_frame()
    assert extra.peak < 20e6
