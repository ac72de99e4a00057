"""The stopping rule on the host and the one on the device end training alike."""

import math
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.exceptions import ConvergenceWarning

from sklearn_restf._model import squared_error
from sklearn_restf._training import (
    BLOW_UP,
    REASONS,
    Best,
    DeviceStoppingRule,
    StoppingRule,
    TrainingSettings,
)
from tests.builders import X2D, YR, both, make_regressor

S = 3
VALUES = st.sampled_from([0.0, 0.5, 0.99, 1.0, 1.001, 2.0, 3 * BLOW_UP, math.inf, math.nan])
CRITERIA = st.sampled_from([0.0, 0.5, 0.99, 1.0, 1.001, 2.0, math.inf])
NORMS = st.sampled_from([0.0, 1.0, 1.0])


def training_settings(max_iter=6, tol=1e-2, n_iter_no_change=2):
    return TrainingSettings(
        squared_error, "adaptive", 0.9, 0.0, max_iter=max_iter, tol=tol,
        n_iter_no_change=n_iter_no_change,
    )  # fmt: skip


@settings(max_examples=300)
@given(
    st.tuples(st.integers(1, 8), st.sampled_from([None, 0.0, 1e-2, 0.6]), st.integers(1, 9)),
    st.booleans(),
    st.lists(st.tuples(*[st.tuples(VALUES, NORMS, CRITERIA, st.booleans())] * S), max_size=14),
)
def test_host_and_device_end_alike(parameters, validated, trials):
    given_settings = training_settings(*parameters)
    start = {"validated": validated, "first": 1.0, "criterion": 1.0}
    host = [StoppingRule(given_settings, **start) for _ in range(S)]
    ones = torch.ones(S, dtype=torch.float64)
    start = {"validated": validated, "first": ones, "criterion": ones}
    device = DeviceStoppingRule(given_settings, **start)
    going = [True] * S
    for trial in trials:
        numbers = torch.tensor([t[:3] for t in trial], dtype=torch.float64).T
        entered = [go and t[3] for go, t in zip(going, trial, strict=True)]
        codes = device.after(*numbers, torch.tensor(entered))
        for i, (loss, norm, criterion, _) in enumerate(trial):
            reason = host[i].after(loss, norm, criterion) if entered[i] else ""
            assert REASONS[int(codes[i])] == reason
            going[i] = going[i] and not reason


@pytest.mark.parametrize(
    ("losses", "options", "reason"),
    [
        ([0.5, 0.499, 0.4985], {}, "tol"),
        ([0.5, 0.4, 0.3], {"max_iter": 3}, "max_iter"),
        ([0.5, 0.5, 0.5], {"tol": None}, ""),
        ([BLOW_UP, 2 * BLOW_UP], {}, "diverged"),
    ],
)
def test_reasons(losses, options, reason):
    rule = StoppingRule(training_settings(**options), validated=False, first=1.0, criterion=1.0)
    assert [rule.after(loss, 1.0, loss) for loss in losses][-1] == reason


def test_a_zero_gradient_ends_training_unless_the_budget_is_meant():
    for tol, reason in ((1e-4, "stationary"), (None, "")):
        rule = StoppingRule(training_settings(tol=tol), validated=False, first=1.0, criterion=1.0)
        assert rule.after(0.5, 0.0, 0.5) == reason


def test_best_parameters_are_those_of_the_lowest_criterion():
    theta = torch.zeros(2)
    best = Best(theta)
    for iteration, value in enumerate([3.0, 1.0, math.nan, 2.0]):
        theta.fill_(iteration)
        assert best.offer(value, iteration) == (iteration < 2)
    assert best.theta.tolist() == [1.0, 1.0]
    assert best.iteration == 1


# --- as a user sees it -----------------------------------------------------------------------


@pytest.mark.parametrize("tol", [1e-3, 3e-2])
@pytest.mark.parametrize("patience", [3, 10])
def test_training_stops_as_soon_as_the_improvement_is_below_tol(tol, patience):
    estimator = make_regressor(tol=tol, n_iter_no_change=patience, max_iter=2000).fit(X2D, YR)
    assert estimator.stop_reason_ == "tol"
    losses = estimator.convergence_diagnostics_.loss

    def improvement(n_iter):
        before = losses[: n_iter + 1 - patience].min()
        return (before - losses[n_iter + 1 - patience : n_iter + 1].min()) / before

    assert improvement(estimator.n_iter_) <= tol
    assert all(improvement(n) > tol for n in range(patience, estimator.n_iter_))


@both
def test_zero_tol_trains_while_there_is_any_improvement(make, y):
    estimator = make(tol=0.0, max_iter=150)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        estimator.fit(X2D, y)
    assert estimator.n_iter_ == 150
    assert estimator.stop_reason_ == "max_iter"


@pytest.mark.parametrize("tol", [None, 1e-4])
@pytest.mark.parametrize("max_iter", [1, 5])
def test_nothing_to_learn_still_counts_iterations(tol, max_iter):
    """Constant X and y without penalty: the gradient is zero from the start."""
    estimator = make_regressor(alpha=0.0, tol=tol, max_iter=max_iter)
    estimator.fit(np.ones((10, 3)), np.ones(10))
    assert 1 <= estimator.n_iter_ == len(estimator.loss_curve_)
    if tol is None:
        assert estimator.n_iter_ == max_iter
    np.testing.assert_array_equal(estimator.predict(np.ones((2, 3))), 1.0)
