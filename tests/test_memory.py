"""Memory stays flat however often one fits and predicts; too little of it is no failure."""

import json
import os

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from sklearn_restf import ResidualTransformerClassifier, ResidualTransformerRegressor
from sklearn_restf._estimator import prediction as prediction_module
from sklearn_restf._training import objective as objective_module
from tests.soak import LIMITS
from tests.tools import run_python

RNG = np.random.default_rng(0)
X = RNG.standard_normal((40, 4, 3))
Y = X[:, 0, 0] + X[:, 1, 1] ** 2
RAGGED = [x[: 1 + i % 4] for i, x in enumerate(X)]
SHORT = {"max_iter": 8, "tol": None, "d_ff": 6, "device": "cpu", "random_state": 0}


# --- no growth ------------------------------------------------------------------------------


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="reads Linux's /proc")
@pytest.mark.parametrize(
    ("fits", "predicts", "limits"),
    [
        (16, 150, (20_000, 2_000)),
        pytest.param(200, 10_000, LIMITS, marks=[pytest.mark.slow, pytest.mark.timeout(900)]),
    ],
)
def test_memory_files_and_threads_do_not_grow(fits, predicts, limits):
    found = json.loads(run_python("tests/soak.py", fits, predicts))
    assert found["fit"]["bytes a call"] < limits[0]
    assert found["predict"]["bytes a call"] < limits[1]
    assert found["after"] == found["before"]


# --- out of memory --------------------------------------------------------------------------


def scarce(monkeypatch, n_rows):
    """Let everything that computes on more than `n_rows` samples run out of memory."""

    def limited(function, rows_of):
        def call(*args, **kwargs):
            if rows_of(*args) > n_rows:
                raise torch.cuda.OutOfMemoryError("CUDA out of memory")
            return function(*args, **kwargs)

        return call

    for owner, name, rows_of in (
        (objective_module.ClosedForm, "backward", lambda layer, *_: len(layer.x)),
        (objective_module.Objective, "predict", lambda self, batch, *_: len(batch.y)),
        (objective_module, "LinearizedBatch", lambda module, x, mask: len(x)),
    ):
        monkeypatch.setattr(owner, name, limited(getattr(owner, name), rows_of))
    make_forward = prediction_module.make_forward
    monkeypatch.setattr(
        prediction_module, "make_forward",
        lambda *args: limited(make_forward(*args), lambda x, mask: len(x)),
    )  # fmt: skip


@pytest.mark.parametrize("n_rows", [1, 7, 39])
@pytest.mark.parametrize("samples", [X, RAGGED], ids=["windows", "ragged"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"n_layers": 2, "layer_norm": True},
        {"learning_rate": "theory"},
        {"early_stopping": True, "validation_fraction": 0.4},
        {"chunk_size": 20},
    ],
    ids=str,
)
def test_smaller_chunks_give_the_same(monkeypatch, samples, options, n_rows):
    def fitted():
        model = ResidualTransformerRegressor(**SHORT | options).fit(samples, Y)
        return model.loss_curve_, model.validation_curve_, model.predict(samples)

    expected = fitted()
    scarce(monkeypatch, n_rows)
    for found, value in zip(fitted(), expected, strict=True):
        assert_allclose(found, value, rtol=1e-9, atol=1e-12)


def test_classes_in_smaller_chunks(monkeypatch):
    labels = np.digitize(Y, [0.0, 1.0])
    expected = ResidualTransformerClassifier(**SHORT).fit(X, labels).predict_proba(X)
    scarce(monkeypatch, 5)
    found = ResidualTransformerClassifier(**SHORT).fit(X, labels).predict_proba(X)
    assert_allclose(found, expected, rtol=1e-9)


@pytest.mark.parametrize("n_layers", [1, 2])
def test_memory_that_ends_in_the_gradient(monkeypatch, n_layers):
    """The forward pass fits, the backward pass does not: in the middle of training."""
    expected = ResidualTransformerRegressor(**SHORT, n_layers=n_layers).fit(X, Y).loss_curve_
    engine = objective_module.ClosedFormEngine if n_layers == 1 else objective_module.Autograd
    add_gradient, calls = engine.add_gradient, []

    def fail_twice(self):
        calls.append(None)
        if len(calls) in (3, 4):
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        add_gradient(self)

    monkeypatch.setattr(engine, "add_gradient", fail_twice)
    found = ResidualTransformerRegressor(**SHORT, n_layers=n_layers).fit(X, Y).loss_curve_
    assert len(calls) > 4
    assert_allclose(found, expected, rtol=1e-9)


def test_too_little_for_one_sample_says_what_to_do(monkeypatch):
    model = ResidualTransformerRegressor(**SHORT).fit(X, Y)
    scarce(monkeypatch, 0)
    with pytest.raises(MemoryError, match=r"one sample at a time .* device='cpu'"):
        model.predict(X)
    with pytest.raises(MemoryError, match=r"one sample at a time .* shorter samples .* d_ff"):
        ResidualTransformerRegressor(**SHORT).fit(X, Y)
