"""What is computed on a CUDA device is what the CPU computes."""

import copy
import warnings

import numpy as np
import pytest
import torch

import sklearn_restf._training.batched_descent as batched_descent
import sklearn_restf._training.cuda_graph as cuda_graph
from sklearn_restf import (
    ResidualTransformerClassifier,
    ResidualTransformerClassifierCV,
    ResidualTransformerRegressor,
    ResidualTransformerRegressorCV,
)
from tests.builders import DESCENT_IRIS as IRIS
from tests.builders import DESCENT_SERIES as SERIES
from tests.builders import DESCENT_SERIES_Y as SERIES_Y
from tests.builders import DESCENT_X as X
from tests.builders import DESCENT_Y as Y
from tests.builders import MODELS, RULES, assert_same_fit, fitted
from tests.simulated_cuda import simulated_cuda


@pytest.fixture(autouse=True, params=[pytest.param("hardware", marks=pytest.mark.gpu), "simulated"])
def device(request, monkeypatch):
    """The tests run on real hardware, and without it on a device that the CPU plays."""
    if request.param == "hardware":
        yield
        return
    if torch.cuda.is_available():
        pytest.skip("there is a real device")
    if request.node.get_closest_marker("hardware"):
        pytest.skip("needs the memory, or the streams, of real hardware")
    with simulated_cuda(monkeypatch):
        yield


COMMON = {"max_iter": 40, "tol": None, "random_state": 0, "diagnostics": False}


@pytest.fixture
def captures(monkeypatch):
    """The graphs captured during a test; None for every failed attempt."""
    graphs, capture = [], cuda_graph.capture

    def remember(*arguments):
        graphs.append(capture(*arguments))
        return graphs[-1]

    monkeypatch.setattr(cuda_graph, "capture", remember)
    return graphs


def on(device, estimator_class, X, y, **options):
    return fitted(estimator_class(**COMMON | options, device=device), X, y)


def assert_close_fit(here, cpu, X, rtol):
    assert (here.stop_reason_, here.n_iter_) == (cpu.stop_reason_, cpu.n_iter_)
    np.testing.assert_allclose(here.loss_curve_, cpu.loss_curve_, rtol=rtol)
    scale = np.abs(cpu.predict(X)).max()
    np.testing.assert_allclose(here.predict(X), cpu.predict(X), rtol=rtol, atol=rtol * scale)


@pytest.mark.parametrize("name", MODELS)
def test_every_model_is_captured_and_trains_as_on_the_cpu(captures, name):
    options, single = MODELS[name], "float32" in MODELS[name].values()
    if single:
        options = options | {"max_iter": 16}
    here = on("cuda", ResidualTransformerRegressor, X, Y, **options)
    assert here.device_.startswith("cuda")
    assert len(captures) == 1
    assert captures[0] is not None
    cpu = on("cpu", ResidualTransformerRegressor, X, Y, **options)
    assert_close_fit(here, cpu, X, 1e-2 if single else 1e-7)


@pytest.mark.parametrize("pooling", ["mean", "last"])
@pytest.mark.parametrize("n_layers", [1, 2])
def test_ragged_samples(captures, pooling, n_layers):
    options = {"pooling": pooling, "n_layers": n_layers}
    here = on("cuda", ResidualTransformerRegressor, SERIES, SERIES_Y, **options)
    assert captures[0] is not None
    cpu = on("cpu", ResidualTransformerRegressor, SERIES, SERIES_Y, **options)
    assert_close_fit(here, cpu, SERIES, 1e-7)


def test_targets_per_token(captures):
    targets = [series[:, 0] for series in SERIES]
    here = on("cuda", ResidualTransformerRegressor, SERIES, targets, pooling="none")
    cpu = on("cpu", ResidualTransformerRegressor, SERIES, targets, pooling="none")
    assert captures[0] is not None
    for mine, theirs in zip(here.predict(SERIES), cpu.predict(SERIES), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("classes", [2, 3])
def test_classes(captures, classes):
    rows = IRIS[1] < classes
    data = IRIS[0][rows], IRIS[1][rows]
    here, cpu = (on(d, ResidualTransformerClassifier, *data) for d in ("cuda", "cpu"))
    assert captures[0] is not None
    np.testing.assert_allclose(
        here.predict_proba(data[0]), cpu.predict_proba(data[0]), rtol=1e-6, atol=1e-9
    )


@pytest.mark.parametrize("name", RULES)
def test_a_graph_takes_the_steps_of_the_ordinary_loop(captures, monkeypatch, name):
    ahead = on("cuda", ResidualTransformerRegressor, X, Y, **RULES[name])
    assert None not in captures
    monkeypatch.setattr(batched_descent, "DEVICES", ())
    assert_same_fit(ahead, on("cuda", ResidualTransformerRegressor, X, Y, **RULES[name]), 1e-9)


def test_what_cannot_be_captured_is_started_operation_by_operation(monkeypatch):
    expected = on("cuda", ResidualTransformerRegressor, X, Y)
    monkeypatch.setattr(cuda_graph, "capture", lambda *arguments: None)
    assert_same_fit(on("cuda", ResidualTransformerRegressor, X, Y), expected, 1e-9)


def test_a_trial_reads_nothing_back():
    """torch raises where an operation waits for the device."""
    model = ResidualTransformerRegressor(**COMMON, device="cuda")
    trial = batched_descent.BatchedDescent._trial

    def watched(self):
        torch.cuda.set_sync_debug_mode("error")
        try:
            trial(self)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batched_descent, "FEWEST_ITERATIONS", 10**9)
        patch.setattr(batched_descent.BatchedDescent, "_trial", watched)
        for options in ({}, {"n_layers": 2}, {"alpha": 0.0, "momentum": 0.0}):
            fitted(model.set_params(**options), X, Y)


def test_warm_start_early_stopping_chunks_and_callbacks():
    from skorch.callbacks import Callback

    for options in (
        {"early_stopping": "last"},
        {"chunk_size": 7},
        {"callbacks": [Callback()]},
    ):
        here, cpu = (
            on(device, ResidualTransformerRegressor, X, Y, **options) for device in ("cuda", "cpu")
        )
        assert_close_fit(here, cpu, X, 1e-7)
    warm = []
    for device in ("cuda", "cpu"):
        model = ResidualTransformerRegressor(
            **COMMON | {"max_iter": 20}, warm_start=True, device=device
        )
        warm.append(fitted(fitted(model, X, Y), X, Y))
    assert_close_fit(*warm, X, 1e-7)


def test_divergence_is_reported_as_on_the_cpu():
    options = {"learning_rate": 1e3, "momentum": 0.0}
    here, cpu = (on(d, ResidualTransformerRegressor, X, Y, **options) for d in ("cuda", "cpu"))
    assert here.stop_reason_ == cpu.stop_reason_ == "diverged"
    assert here.best_iteration_ == cpu.best_iteration_


SWEEPS = {
    "closed form": (ResidualTransformerRegressorCV, X, Y, {}),
    "autograd": (ResidualTransformerRegressorCV, X, Y, {"n_layers": 2, "layer_norm": True}),
    "last": (ResidualTransformerRegressorCV, X, Y, {"pooling": "last"}),
    "ragged": (ResidualTransformerRegressorCV, SERIES, SERIES_Y, {"tol": 1e-2}),
    "validation": (ResidualTransformerRegressorCV, X, Y, {"early_stopping": "last"}),
    "constant rate": (ResidualTransformerRegressorCV, X, Y, {"learning_rate": 0.01}),
    "classes": (ResidualTransformerClassifierCV, *IRIS, {}),
}


@pytest.mark.parametrize("name", SWEEPS)
def test_the_batched_sweep_is_captured_and_scores_as_on_the_cpu(captures, name):
    scores, (model, data, y, options) = [], SWEEPS[name]
    for device in ("cuda", "cpu"):
        common = COMMON | {"cv": 3, "device": device} | options
        sweep = fitted(model([0.0, 0.5, 1.0], **common), data, y)
        if device == "cuda":
            assert len(captures) == 2  # all models at once, and the refitted one
            assert None not in captures
        scores.append(sweep.cv_results_["mean_test_score"])
        assert sweep.predict(data).shape == y.shape
    np.testing.assert_allclose(*scores, atol=1e-6)


def test_a_model_fitted_on_a_device_that_is_gone_predicts_on_the_cpu(monkeypatch):
    model = on("cuda", ResidualTransformerRegressor, X, Y)
    expected = model.predict(X)
    loaded = copy.deepcopy(model)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.warns(UserWarning, match="predicting on the CPU"):
        found = loaded.predict(X)
    np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-10)


@pytest.mark.hardware
def test_prediction_halves_its_chunks_when_memory_is_short():
    model = on("cuda", ResidualTransformerRegressor, X, Y, max_iter=2)
    many = np.tile(X, (3000, 1, 1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        expected = model.predict(many[:50])
        free, total = torch.cuda.mem_get_info()
        used = total - free
        torch.cuda.empty_cache()
        # room for what is there already and about 64 MiB
        share = (torch.cuda.memory_reserved() + 2**26) / total
        torch.cuda.set_per_process_memory_fraction(share)
        try:
            found = model.set_params(chunk_size=len(many)).predict(many)
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0)
    assert used >= 0
    np.testing.assert_allclose(found[:50], expected, rtol=1e-9, atol=1e-12)


@pytest.mark.hardware
def test_graphs_leave_no_memory_behind():
    on("cuda", ResidualTransformerRegressor, X, Y)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    for _ in range(5):
        on("cuda", ResidualTransformerRegressor, X, Y)
    assert abs(torch.cuda.memory_allocated() - before) < 1e6


@pytest.mark.hardware
def test_several_threads_train_at_once():
    from joblib import Parallel, delayed

    models = [ResidualTransformerRegressor(**COMMON | {"random_state": i}) for i in range(4)]
    alone = [fitted(copy.deepcopy(m).set_params(device="cuda"), X, Y) for m in models]
    together = Parallel(n_jobs=4, backend="threading")(
        delayed(lambda m: m.set_params(device="cuda").fit(X, Y))(m) for m in models
    )
    for a, b in zip(alone, together, strict=True):
        assert_close_fit(a, b, X, 1e-7)
