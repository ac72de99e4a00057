"""Saved, loaded and copied estimators are the estimator, and small."""

import copy
import io
import json
import pickle

import joblib
import numpy as np
import pytest
import torch
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from tests.builders import (
    SERIES,
    SERIES_YR,
    X2,
    X3,
    YC,
    YR,
    both,
    both_makers,
    make_classifier,
    make_regressor,
)
from tests.tools import fitted_names, outputs, pickled_modules, run_python, torch_objects


@both
@pytest.mark.parametrize("through", ["pickle", "joblib", "deepcopy"])
def test_loaded_estimator_scores_as_the_saved_one_case_d1(make, y, through):
    estimator = make().fit(X2, y)
    if through == "pickle":
        loaded = pickle.loads(pickle.dumps(estimator))
    elif through == "joblib":
        buffer = io.BytesIO()
        joblib.dump(estimator, buffer)
        buffer.seek(0)
        loaded = joblib.load(buffer)
    else:
        loaded = copy.deepcopy(estimator)
    assert loaded.score(X2, y) == estimator.score(X2, y)
    assert fitted_names(loaded) == fitted_names(estimator)


@both
@pytest.mark.parametrize("wrap", ["bare", "pipeline", "grid"])
def test_saved_state_contains_nothing_of_torch_case_d8(make, y, wrap):
    """What is stored are NumPy arrays, whatever was computed or looked at before."""
    estimator = make(token_dim=3)
    if wrap == "pipeline":
        estimator = make_pipeline(StandardScaler(), estimator)
    elif wrap == "grid":
        estimator = GridSearchCV(estimator, {"d_ff": [4]}, cv=2)
    estimator.fit(X2, y).predict(X2)
    inner = {"bare": lambda e: e, "pipeline": lambda e: e[-1], "grid": lambda e: e.best_estimator_}
    fitted = inner[wrap](estimator)
    assert fitted.module_ is not None
    assert fitted.net_ is not None
    assert fitted.convergence_diagnostics_ is not None
    assert torch_objects(fitted.__getstate__()) == []
    assert "torch" not in pickled_modules(pickle.dumps(estimator))


_LOAD_AND_PREDICT = """
import json, pickle, sys, warnings
import numpy as np
with open(sys.argv[1], "rb") as file:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        estimator = pickle.load(file)
        predictions = estimator.predict(np.load(sys.argv[2]))
print(json.dumps([predictions.tolist(), [w.category.__name__ for w in caught]]))
"""


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("wrap", ["bare", "pipeline", "grid"])
def test_estimator_fitted_on_cuda_loads_where_there_is_none_case_d8(tmp_path, wrap):
    estimator = make_regressor(device="cuda")
    if wrap == "pipeline":
        estimator = make_pipeline(StandardScaler(), estimator)
    elif wrap == "grid":
        estimator = GridSearchCV(estimator, {"d_ff": [4]}, cv=2)
    estimator.fit(X2, YR)
    joblib.dump(estimator, tmp_path / "again.joblib")
    (tmp_path / "e.pickle").write_bytes(pickle.dumps(estimator))
    np.save(tmp_path / "X.npy", X2)
    printed = run_python(
        *("-c", _LOAD_AND_PREDICT, tmp_path / "e.pickle", tmp_path / "X.npy"),
        CUDA_VISIBLE_DEVICES="",
    )
    predictions, caught = json.loads(printed)
    assert caught == ["UserWarning"]
    np.testing.assert_allclose(predictions, estimator.predict(X2), rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(
        joblib.load(tmp_path / "again.joblib").predict(X2), estimator.predict(X2)
    )


@both
def test_pickle_does_not_go_through_torch_load_case_d9(make, y, monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("torch serialisation used")

    estimator = make().fit(X2, y)
    expected = outputs(estimator, X2)
    monkeypatch.setattr(torch, "load", refuse)
    monkeypatch.setattr(torch, "save", refuse)
    loaded = pickle.loads(pickle.dumps(estimator))
    np.testing.assert_array_equal(outputs(loaded, X2), expected)


@pytest.mark.parametrize(
    ("make", "X", "y", "parameters"),
    [
        (make_regressor, X2, YR, {}),
        (make_regressor, X3, np.c_[YR, -YR], {"positional_encoding": "learned"}),
        (make_regressor, SERIES, SERIES_YR, {"random_state": np.random.RandomState(0)}),
        (make_regressor, X2, YR, {"diagnostics": "full", "early_stopping": True}),
        (make_classifier, X2, YC, {"class_weight": "balanced"}),
        (make_classifier, X2, YC.astype(object), {"layer_norm": True, "n_layers": 2}),
        (make_classifier, X3, YC == "pos", {"diagnostics": False}),
    ],
    ids=["table", "multi-output", "series", "full", "strings", "objects", "bools"],
)
def test_skops_needs_to_trust_only_our_names_case_d9(make, X, y, parameters):
    skops_io = pytest.importorskip("skops.io")
    estimator = make(**parameters).fit(X, y)
    expected = outputs(estimator, X)
    blob = skops_io.dumps(estimator)
    untrusted = skops_io.get_untrusted_types(data=blob)
    assert [name for name in untrusted if not name.startswith("sklearn_restf.")] == []
    loaded = skops_io.loads(blob, trusted=untrusted)
    np.testing.assert_array_equal(outputs(loaded, X), expected)
    np.testing.assert_array_equal(loaded.predict(X), estimator.predict(X))


@pytest.mark.slow
def test_pickle_loads_in_a_fresh_process_without_warnings_case_d9(tmp_path):
    estimator = make_regressor().fit(X2, YR)
    (tmp_path / "e.pickle").write_bytes(pickle.dumps(estimator))
    np.save(tmp_path / "X.npy", X2)
    printed = run_python(
        *("-W", "error", "-c", _LOAD_AND_PREDICT, tmp_path / "e.pickle", tmp_path / "X.npy")
    )
    predictions, caught = json.loads(printed)
    assert caught == []
    np.testing.assert_allclose(predictions, estimator.predict(X2), rtol=1e-7)


def _copiers():
    yield copy.deepcopy
    yield lambda e: pickle.loads(pickle.dumps(e))
    try:
        import cloudpickle
    except ImportError:
        return
    yield lambda e: pickle.loads(cloudpickle.dumps(e))


@both
@pytest.mark.parametrize("wrap", ["bare", "pipeline", "grid"])
def test_copies_after_use_are_independent_case_h3(make, y, wrap):
    """After a prediction and a look at the diagnostics and the module."""
    estimator = make(token_dim=3, diagnostics="full")
    if wrap == "pipeline":
        estimator = make_pipeline(StandardScaler(), estimator)
    elif wrap == "grid":
        estimator = GridSearchCV(estimator, {"d_ff": [4]}, cv=2)
    estimator.fit(X2, y)
    expected = outputs(estimator, X2)
    inner = {"bare": lambda e: e, "pipeline": lambda e: e[-1], "grid": lambda e: e.best_estimator_}
    fitted = inner[wrap](estimator)
    repr(fitted.convergence_diagnostics_)
    fitted.module_(torch.zeros(2, 24, 3, dtype=next(fitted.module_.parameters()).dtype))
    other = -y if make is make_regressor else np.where(y == "pos", "neg", "pos")
    for copier in _copiers():
        copied = copier(estimator)
        np.testing.assert_array_equal(outputs(copied, X2), expected)
        copied.fit(X2, other)
        assert not np.allclose(outputs(copied, X2), expected)
        np.testing.assert_array_equal(outputs(estimator, X2), expected)


def test_changing_the_module_of_a_copy_leaves_the_original_alone_case_h3():
    """Arrays are not shared with the module that is handed out."""
    estimator = make_regressor().fit(X2, YR)
    expected = estimator.predict(X2)
    copied = copy.deepcopy(estimator)
    for fitted in (copied, estimator):
        with torch.no_grad():
            for parameter in fitted.module_.parameters():
                parameter.zero_()
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(estimator)).predict(X2), expected)


def _joblib_size(estimator, path):
    joblib.dump(estimator, path)
    return path.stat().st_size


@both_makers
@pytest.mark.parametrize("diagnostics", [True, False])
def test_saved_size_does_not_grow_with_the_data_case_h4(make, diagnostics, tmp_path):
    """ "full" diagnostics speak of every sample, and are not meant here."""
    rng = np.random.default_rng(0)
    sizes = []
    for n in (64, 4096):
        X = rng.normal(size=(n, 24, 3)).astype("float32")
        y = X[:, -1, 0] if make is make_regressor else X[:, -1, 0] > 0
        estimator = make(diagnostics=diagnostics, diagnostics_samples=64).fit(X, y)
        fresh = len(pickle.dumps(estimator))
        estimator.predict(X)
        repr(estimator.convergence_diagnostics_)
        parameter_bytes = sum(p.nbytes for p in estimator.module_.parameters())
        used = len(pickle.dumps(estimator))
        assert abs(used - fresh) <= 0.05 * fresh
        assert used < 2 * parameter_bytes + 300_000
        sizes.append((used, _joblib_size(estimator, tmp_path / f"{n}.joblib")))
    (pickle_small, joblib_small), (pickle_large, joblib_large) = sizes
    assert abs(pickle_large - pickle_small) <= 0.05 * pickle_small
    assert abs(joblib_large - joblib_small) <= 0.05 * joblib_small
