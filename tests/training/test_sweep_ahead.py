"""Trials of many models run ahead on the device end where the ordinary loop ends."""

import numpy as np
import pytest
import torch

import sklearn_restf._training.cuda_graph as descent_ahead
import sklearn_restf._training.sweep_ahead as sweep_ahead
import sklearn_restf._training.sweep_descent as sweep_descent
from tests.training.test_sweep import CASES, assert_same, trained

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


@pytest.fixture
def ahead(monkeypatch):
    """Train with trials run ahead, on the CPU too; count the batches."""
    batches = []
    run_ahead = sweep_ahead.DeviceStackedDescent._run_ahead

    def counted(self):
        batches.append(len(self.model))
        return run_ahead(self)

    monkeypatch.setattr(sweep_ahead.DeviceStackedDescent, "_run_ahead", counted)

    def train(*arguments, **options):
        before = len(batches)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(descent_ahead, "DEVICES", ("cuda", "cpu"))
            models = trained(*arguments, **options)
        assert len(batches) > before
        return models

    return train


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_every_model_trains_alike(ahead, kind, name):
    assert_same(ahead(kind, name, 9), trained(kind, name, 9))


@pytest.mark.parametrize("options", [
    {"max_iter": 3000, "tol": 1e-3},
    {"max_iter": 200, "tol": 1e-2, "early_stopping": True},
    {"max_iter": descent_ahead.TRIALS, "tol": None},
    {"max_iter": 1},
    {"max_iter": 7, "n_iter_no_change": 8},
    {"tol": 0.9, "n_iter_no_change": 1},
    {"learning_rate": 0.05, "momentum": 0.5, "max_iter": 40, "early_stopping": "last"},
], ids=str)  # fmt: skip
def test_every_rule_ends_models_alike(ahead, options):
    assert_same(ahead("regressor", "windows", 9, **options), trained(
        "regressor", "windows", 9, **options
    ))  # fmt: skip


def test_models_that_stall(ahead, monkeypatch):
    for module in (sweep_descent, sweep_ahead):
        monkeypatch.setattr(module, "SMALLEST_RATE", 0.2)
    found = ahead("regressor", "windows", 9, max_iter=60, tol=None)
    assert {model.stop_reason_ for model in found[1]} == {"stalled", "max_iter"}
    assert_same(found, trained("regressor", "windows", 9, max_iter=60, tol=None))


class Quadratic:
    """Objectives ``a theta^2 / 2`` of one parameter each."""

    valid = None

    def __init__(self, curvature):
        self.curvature = torch.tensor(curvature, dtype=torch.float64)
        self.views = lambda theta: {"theta": theta}

    def value(self, theta):
        return 0.5 * self.curvature * theta[:, 0] ** 2

    def value_again(self, theta, rows):
        return 0.5 * self.curvature[rows] * theta[:, 0] ** 2

    def gradient(self, theta):
        return self.curvature[:, None] * theta

    def keep(self, models):
        self.curvature = self.curvature[models]


@pytest.mark.parametrize("rate", ["adaptive", 0.5, 3.0])
def test_divergence_overflow_and_stationary_points(rate):
    """At curvature 2 a step of 1/2 ends at the minimum; 1e3 diverges; inf never begins."""
    curvature = [1.0, 2.0, 1e3, np.inf, np.nan, 0.0]
    settings = sweep_descent.TrainingSettings(
        loss=None, learning_rate=rate, momentum=0.0, alpha=0.0, max_iter=50, tol=1e-12,
        n_iter_no_change=3,
    )  # fmt: skip
    results = []
    for descent in (sweep_descent.StackedDescent, sweep_ahead.DeviceStackedDescent):
        theta = torch.ones((len(curvature), 1), dtype=torch.float64)
        first = np.full(len(curvature), 0.5 if rate == "adaptive" else rate)
        results.append(descent(Quadratic(curvature), theta, first, settings).run())
    for a, b in zip(*results, strict=True):
        assert (a.stop_reason, a.best_iteration, a.kept_best) == (
            b.stop_reason, b.best_iteration, b.kept_best,
        )  # fmt: skip
        for name in ("losses", "gradient_norms", "learning_rates", "learning_rate"):
            np.testing.assert_allclose(getattr(a, name), getattr(b, name), rtol=1e-12)
        np.testing.assert_allclose(a.state["theta"], b.state["theta"], rtol=1e-12)
    reasons = {result.stop_reason for result in results[0]}
    assert {"diverged", "stationary"} <= reasons
