"""The same fit gives the same model; what may change the last digits changes little, as stated."""

import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from numpy.testing import assert_array_equal

from sklearn_restf import ResidualTransformerClassifier, ResidualTransformerRegressor
from sklearn_restf._utils import threads as threads_module
from tests.determinism import CHANGES, RUNS, difference, output

QUICK = "three layers, LayerNorm"  # the other runs, in processes of their own, are slow


@pytest.fixture(scope="module")
def outputs():
    return {name: output(name) for name in RUNS}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize(
    "name", [run if run == QUICK else pytest.param(run, marks=pytest.mark.slow) for run in RUNS]
)
def test_within_what_is_promised(name, change, outputs):
    how, promised = CHANGES[change]
    assert difference(how(name), outputs[name]) <= promised


SHORT = {"max_iter": 30, "tol": None, "d_ff": 8, "device": "cpu"}
RNG = np.random.default_rng(0)
X = RNG.standard_normal((50, 4, 3))
Y = X[:, 0, 0] + X[:, 1, 1] ** 2

KINDS = [
    ResidualTransformerRegressor(**SHORT, random_state=0),
    ResidualTransformerRegressor(**SHORT, random_state=1, n_layers=2, pooling="mean"),
    ResidualTransformerRegressor(**SHORT, random_state=2, dtype="float32", chunk_size=9),
    ResidualTransformerClassifier(**SHORT, random_state=3, early_stopping=True),
]


def fit(model):
    """Fit; return all numbers of the model, to the last bit."""
    y = Y > 0 if hasattr(model, "predict_proba") else Y
    model.fit(X, y)
    return model.loss_curve_, model.validation_curve_, model._fitted.state


def assert_same(found, expected):
    assert found[:2] == expected[:2]
    for name, value in expected[2].items():
        assert_array_equal(found[2][name], value)


@pytest.mark.parametrize("model", KINDS, ids=range(len(KINDS)))
def test_the_same_twice(model):
    assert_same(fit(model), fit(model))


@pytest.mark.parametrize("make", [np.random.RandomState, int], ids=["RandomState", "int"])
def test_the_same_seed_in_any_form(make):
    model = ResidualTransformerRegressor(**SHORT)
    assert_same(fit(model.set_params(random_state=make(5))), fit(model.set_params(random_state=5)))


def test_the_state_of_global_generators_does_not_matter():
    expected = fit(KINDS[0])
    np.random.seed(77)
    torch.manual_seed(77)
    assert_same(fit(KINDS[0]), expected)


def test_threads_that_fit_at_once_do_not_disturb_each_other_case_h5():
    expected = [fit(model) for model in KINDS]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(3):
            for found, value in zip(pool.map(fit, KINDS), expected, strict=True):
                assert_same(found, value)


def test_threads_that_predict_at_once_do_not_disturb_each_other_case_h5():
    model = KINDS[1].fit(X, Y)
    expected = model.predict(X)
    model = pickle.loads(pickle.dumps(model))  # nothing is rebuilt yet
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(model.predict, [X] * 20):
            assert_array_equal(found, expected)


def test_small_and_large_fits_at_once(monkeypatch):
    """A fit that uses several threads, beside small ones that use one."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        large = ResidualTransformerRegressor(**SHORT, random_state=0, n_layers=2)
        wide = np.tile(X, (4, 1, 1)), np.tile(Y, 4)
        expected = large.fit(*wide).predict(X)
        monkeypatch.setattr(threads_module, "SMALL_WORK", 1e6)
        with ThreadPoolExecutor(3) as pool:
            fits = [pool.submit(fit, model) for model in KINDS[:2]]
            found = pool.submit(large.fit, *wide).result().predict(X)
            for model, small in zip(KINDS, fits, strict=False):
                assert_same(small.result(), fit(model))
        assert difference(found, expected) < 1e-9
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


@pytest.mark.gpu
@pytest.mark.parametrize("name", RUNS)
def test_devices_agree(name, outputs):
    on_gpu = output(name, device="cuda")
    assert difference(on_gpu, outputs[name]) < 1e-9
    assert_array_equal(output(name, device="cuda"), on_gpu)
