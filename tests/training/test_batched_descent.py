"""Trials run ahead on the device take the very steps of the loop that reads every one."""

import numpy as np
import pytest

import sklearn_restf._training.batched_descent as batched_descent
from sklearn_restf import ResidualTransformerClassifier, ResidualTransformerRegressor
from sklearn_restf._training import BatchedDescent
from tests.builders import DESCENT_IRIS as IRIS
from tests.builders import DESCENT_SERIES as SERIES
from tests.builders import DESCENT_SERIES_Y as SERIES_Y
from tests.builders import DESCENT_X as X
from tests.builders import DESCENT_Y as Y
from tests.builders import MODELS, RULES, assert_same_fit, fitted


@pytest.fixture
def ahead(monkeypatch):
    """Run trials ahead on the CPU too, while switched on; count the runs."""

    class Switch:
        runs = 0

        def __call__(self, on):
            monkeypatch.setattr(batched_descent, "DEVICES", ("cuda", "cpu") if on else ())

    switch, start = Switch(), BatchedDescent.start

    def counted(self):
        switch.runs += 1
        return start(self)

    monkeypatch.setattr(BatchedDescent, "start", counted)
    return switch


def both_ways(ahead, estimator_class, X, y, **options):
    """Fit with and without running ahead."""
    options = {"max_iter": 45, "tol": None, "random_state": 0, "diagnostics_samples": 5} | options
    results = []
    for on in (False, True):
        ahead(on)
        results.append(fitted(estimator_class(**options), X, y))
    assert ahead.runs == 1
    return results


@pytest.mark.parametrize("name", MODELS)
def test_every_model_trains_alike(ahead, name):
    assert_same_fit(*both_ways(ahead, ResidualTransformerRegressor, X, Y, **MODELS[name]))


@pytest.mark.parametrize("name", RULES)
def test_every_step_rule_is_the_same(ahead, name):
    assert_same_fit(*both_ways(ahead, ResidualTransformerRegressor, X, Y, **RULES[name]))


@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_ragged_samples_in_buckets(ahead, pooling):
    options = {"pooling": pooling, "tol": 1e-2, "max_iter": 100}
    assert_same_fit(*both_ways(ahead, ResidualTransformerRegressor, SERIES, SERIES_Y, **options))


@pytest.mark.parametrize("loss", ["log_loss", "squared_error"])
@pytest.mark.parametrize("classes", [2, 3])
def test_classes(ahead, loss, classes):
    rows = IRIS[1] < classes
    data = IRIS[0][rows], IRIS[1][rows]
    assert_same_fit(*both_ways(ahead, ResidualTransformerClassifier, *data, loss=loss))


@pytest.mark.parametrize("rate", [2.0, 1e3, 1e200])
def test_divergence_is_found_in_the_same_iteration(ahead, rate):
    options = {"learning_rate": rate, "momentum": 0.0}
    a, b = both_ways(ahead, ResidualTransformerRegressor, X, Y, **options)
    assert a.stop_reason_ == "diverged"
    assert_same_fit(a, b)


def test_warm_start_goes_on_with_rate_and_velocity(ahead):
    results = []
    for on in (False, True):
        ahead(on)
        model = ResidualTransformerRegressor(max_iter=20, tol=None, warm_start=True, random_state=0)
        results.append(fitted(fitted(model, X, Y), X, Y))
    assert_same_fit(*results)


@pytest.mark.parametrize("trial", [1, 5, 40])
def test_an_interrupt_keeps_what_was_read(ahead, monkeypatch, trial):
    ahead(True)
    run, count = BatchedDescent._trial, [0]

    def interrupted(self):
        count[0] += 1
        if count[0] == trial:
            raise KeyboardInterrupt
        run(self)

    monkeypatch.setattr(BatchedDescent, "_trial", interrupted)
    model = ResidualTransformerRegressor(max_iter=60, tol=None, random_state=0, diagnostics=False)
    with pytest.warns(match="interrupted"):
        model.fit(X, Y)
    assert model.stop_reason_ == "interrupted"
    assert model.n_iter_ <= trial
    monkeypatch.undo()
    if model.n_iter_:
        same = ResidualTransformerRegressor(
            max_iter=model.n_iter_, tol=None, random_state=0, diagnostics=False
        )
        fitted(same, X, Y)
        assert model.loss_ == same.loss_
        np.testing.assert_array_equal(model.predict(X), same.predict(X))


def test_whoever_watches_every_iteration_gets_the_ordinary_loop(ahead):
    from skorch.callbacks import Callback

    ahead(True)
    options = {"max_iter": 3, "tol": None, "random_state": 0}
    fitted(ResidualTransformerRegressor(callbacks=[Callback()], **options), X, Y)
    fitted(ResidualTransformerRegressor(chunk_size=7, **options), X, Y)
    assert ahead.runs == 0


def test_progress_is_told_every_loss(ahead, capsys):
    ahead(True)
    fitted(ResidualTransformerRegressor(max_iter=20, tol=None, verbose=1), X, Y)
    assert ahead.runs == 1
    assert capsys.readouterr().out.count("loss = ") == 20
