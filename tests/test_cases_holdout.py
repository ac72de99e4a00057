"""Cases that users of neighbouring projects reported, H1 to H12: none was used in designing."""

from __future__ import annotations

import copy
import logging
import os
import pickle
import random
import time
import warnings

import joblib
import numpy as np
import pandas as pd
import pytest
import sklearn
import torch
from sklearn.base import clone
from sklearn.ensemble import AdaBoostClassifier
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from sklearn_restf import diagnose
from sklearn_restf.exceptions import DivergenceError
from tests.builders import (
    SERIES,
    SERIES_YR,
    X2,
    X2D,
    X3,
    X3D,
    YC,
    YR,
    both,
    both_makers,
    both_on_series,
    make_classifier,
    make_regressor,
    pad,
)
from tests.tools import outputs, refusal

# --- H1: display -----------------------------------------------------------------------------


def _diverged():
    try:
        make_regressor(learning_rate=1e6).fit(X3, YR)
    except DivergenceError as error:
        return error.estimator
    raise AssertionError("did not diverge")


def _wide():
    X = np.random.default_rng(0).normal(size=(20, 3000))
    return pd.DataFrame(X, columns=[f"column number {i}" for i in range(3000)]), YR[:20]


_DISPLAYED = {
    "unfitted": make_regressor,
    "unfitted classifier": make_classifier,
    "table": lambda: make_regressor().fit(X2, YR),
    "classifier": lambda: make_classifier().fit(X2, YC),
    "series": lambda: make_regressor().fit(SERIES, SERIES_YR),
    "wide frame": lambda: make_regressor().fit(*_wide()),
    "without diagnostics": lambda: make_regressor(diagnostics=False).fit(X2, YR),
    "full diagnostics": lambda: make_regressor(diagnostics="full").fit(X2, YR),
    "constant": lambda: make_classifier().fit(X2, ["a"] * 64),
    "diverged": _diverged,
    "pipeline": lambda: make_pipeline(StandardScaler(), make_regressor()).fit(X2, YR),
}


@pytest.mark.parametrize("case", list(_DISPLAYED))
def test_display_is_quick_short_and_free_of_errors(case):
    """H1."""
    estimator = _DISPLAYED[case]()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        start = time.perf_counter()
        bundle = estimator._repr_mimebundle_()
        text = repr(estimator)
        elapsed = time.perf_counter() - start
    assert elapsed < 1.0
    assert len(bundle["text/html"]) < 500_000
    assert "ResidualTransformer" in text
    for dump in ("ModuleList", "ParameterDict", "tensor("):
        assert dump not in bundle["text/html"]
        assert dump not in text


@pytest.mark.parametrize("case", [c for c in _DISPLAYED if c != "pipeline"])
def test_every_public_attribute_can_be_looked_at(case):
    """H1: a property may be absent, but must not raise anything else."""
    estimator = _DISPLAYED[case]()
    for name in dir(estimator):
        if not name.startswith("_"):
            getattr(estimator, name, None)
    if not case.startswith("unfitted"):
        for name in ("module_", "net_", "loss_", "best_loss_", "loss_curve_", "n_iter_"):
            assert hasattr(estimator, name), name
        for name in ("validation_curve_", "learning_rate_", "device_", "convergence_diagnostics_"):
            assert hasattr(estimator, name), name


# --- H2: set_output --------------------------------------------------------------------------


@both
@pytest.mark.parametrize("kind", ["numpy", "pandas", "windows"])
def test_global_transform_output_does_not_reach_inside(make, y, kind):
    """H2."""
    X = {"numpy": X2, "pandas": pd.DataFrame(X2).add_prefix("c"), "windows": X3}[kind]
    expected = outputs(make().fit(X, y), X)
    choices = ["default", "pandas"]
    if pytest.importorskip("polars"):
        choices.append("polars")
    for choice in choices:
        with sklearn.config_context(transform_output=choice):
            before = sklearn.get_config()
            estimator = make(early_stopping=True).fit(X, y)
            estimator.predict(X)
            estimator = make().fit(X, y)
            result = outputs(estimator, X)
            assert type(estimator.predict(X)) is np.ndarray
            assert sklearn.get_config() == before
        assert type(result) is np.ndarray
        np.testing.assert_array_equal(result, expected)


@both
def test_skipped_validation_and_array_api_settings_do_no_harm(make, y):
    """H2: the other global settings."""
    expected = outputs(make().fit(X2, y), X2)
    for setting in ({"assume_finite": True}, {"skip_parameter_validation": True}):
        with sklearn.config_context(**setting):
            np.testing.assert_array_equal(outputs(make().fit(X2, y), X2), expected)


# --- H3: copies ------------------------------------------------------------------------------


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
def test_copies_after_use_are_independent(make, y, wrap):
    """H3: after a prediction and a look at the diagnostics and the module."""
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


def test_changing_the_module_of_a_copy_leaves_the_original_alone():
    """H3: arrays are not shared with the module that is handed out."""
    estimator = make_regressor().fit(X2, YR)
    expected = estimator.predict(X2)
    copied = copy.deepcopy(estimator)
    for fitted in (copied, estimator):
        with torch.no_grad():
            for parameter in fitted.module_.parameters():
                parameter.zero_()
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(estimator)).predict(X2), expected)


# --- H4: size --------------------------------------------------------------------------------


def _joblib_size(estimator, path):
    joblib.dump(estimator, path)
    return path.stat().st_size


@both_makers
@pytest.mark.parametrize("diagnostics", [True, False])
def test_saved_size_does_not_grow_with_the_data(make, diagnostics, tmp_path):
    """H4: "full" diagnostics speak of every sample, and are not meant here."""
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


# --- H5: global random state -----------------------------------------------------------------


@both
def test_global_generators_are_neither_seeded_nor_used(make, y):
    """H5."""
    for seed in (0, np.random.RandomState(0)):
        before = random.getstate(), np.random.get_state(), torch.random.get_rng_state()
        if torch.cuda.is_available():
            cuda = torch.cuda.get_rng_state_all()
        estimator = make(random_state=seed, early_stopping=True).fit(X2, y)
        estimator.predict(X2)
        repr(estimator.convergence_diagnostics_)
        assert random.getstate() == before[0]
        np.testing.assert_array_equal(np.random.get_state()[1], before[1][1])
        assert np.random.get_state()[2:] == before[1][2:]
        assert torch.equal(torch.random.get_rng_state(), before[2])
        if torch.cuda.is_available():
            assert all(map(torch.equal, torch.cuda.get_rng_state_all(), cuda))


def test_fits_in_threads_do_not_disturb_each_other():
    """H5."""

    def fit(seed):
        estimator = make_regressor(random_state=seed, max_iter=300, early_stopping=True)
        return estimator.fit(X2D, YR).predict(X2D)

    alone = [fit(seed) for seed in (0, 1)]
    together = joblib.Parallel(n_jobs=2, backend="threading")(
        joblib.delayed(fit)(seed) for seed in (0, 1)
    )
    np.testing.assert_array_equal(together, alone)


def test_predictions_in_threads_do_not_disturb_each_other():
    """H5."""
    estimator = make_regressor().fit(X2D, YR)
    expected = estimator.predict(X2D)
    estimator = pickle.loads(pickle.dumps(estimator))  # nothing rebuilt yet
    together = joblib.Parallel(n_jobs=2, backend="threading")(
        joblib.delayed(estimator.predict)(X2D) for _ in range(8)
    )
    np.testing.assert_array_equal(together, [expected] * 8)


# --- H6: random_state ------------------------------------------------------------------------


@both
@pytest.mark.parametrize("early_stopping", [False, True])
def test_seed_decides_everything(make, y, early_stopping):
    """H6: zero is a seed like any other, and the global generators play no part."""

    def fit(seed, global_seed):
        np.random.seed(global_seed)
        torch.manual_seed(global_seed)
        random.seed(global_seed)
        return outputs(make(random_state=seed, early_stopping=early_stopping).fit(X2, y), X2)

    zero = fit(0, 1)
    np.testing.assert_array_equal(fit(0, 2), zero)
    np.testing.assert_array_equal(fit(np.int64(0), 3), zero)
    assert not np.allclose(fit(1, 1), zero)
    np.testing.assert_array_equal(
        fit(np.random.RandomState(0), 4), fit(np.random.RandomState(0), 5)
    )
    assert not np.allclose(fit(np.random.RandomState(1), 4), fit(np.random.RandomState(0), 4))


@both
def test_random_state_object_is_kept_and_advances(make, y):
    """H6: as scikit-learn's glossary has it."""
    generator = np.random.RandomState(0)
    estimator = make(random_state=generator)
    first = outputs(estimator.fit(X2, y), X2)
    assert estimator.get_params()["random_state"] is generator
    assert not np.allclose(outputs(estimator.fit(X2, y), X2), first)
    seeded = make(random_state=np.int64(7))
    seed = seeded.random_state
    expected = outputs(seeded.fit(X2, y), X2)
    assert seeded.random_state is seed
    np.testing.assert_array_equal(outputs(clone(seeded).fit(X2, y), X2), expected)


def test_fits_without_a_seed_differ():
    """H6."""
    first, second = (make_regressor(random_state=None).fit(X2, YR).predict(X2) for _ in range(2))
    assert not np.allclose(first, second)


@pytest.mark.parametrize("seed", ["a", 1.5, -1])
def test_things_that_are_no_seeds_are_refused(seed):
    """H6."""
    with pytest.raises((ValueError, TypeError), match=r"random_state|seed"):
        make_regressor(random_state=seed).fit(X2, YR)


# --- H7: memory layouts ----------------------------------------------------------------------


def _read_only(X):
    X = X.copy()
    X.setflags(write=False)
    return X


def _odd_stride(X):
    return np.repeat(X, 2, axis=-1)[..., ::2]


_LAYOUTS = {
    "rows reversed": lambda X: X[::-1],
    "columns reversed": lambda X: X[:, ::-1],
    "fortran": np.asfortranarray,
    "big-endian": lambda X: X.astype(X.dtype.newbyteorder(">")),
    "read-only": _read_only,
    "strided": _odd_stride,
    "transposed": lambda X: np.ascontiguousarray(X.T).T,
    "broadcast": lambda X: np.broadcast_to(X[..., :1], X.shape),
}


def _strict(call, *args):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return call(*args)


@both
@pytest.mark.parametrize("X", [X2, X3], ids=["table", "windows"])
@pytest.mark.parametrize("layout", list(_LAYOUTS))
def test_memory_layout_of_x_does_not_matter(make, y, X, layout):
    """H7: bit-equal to the plain copy, and the input is left as it was."""
    odd = _LAYOUTS[layout](X)
    plain = np.ascontiguousarray(odd.astype("float32", copy=True))
    expected = make(max_iter=8).fit(plain, y)
    estimator = _strict(make(max_iter=8).fit, odd, y)
    assert estimator.loss_curve_ == expected.loss_curve_
    np.testing.assert_array_equal(_strict(outputs, estimator, odd), outputs(expected, plain))
    np.testing.assert_array_equal(odd, plain)


@pytest.mark.parametrize("layout", ["rows reversed", "big-endian", "read-only", "strided"])
def test_memory_layout_of_y_and_of_weights_does_not_matter(layout):
    """H7."""
    weights = np.random.default_rng(0).uniform(0.5, 2, size=64)
    odd_y, odd_weights = _LAYOUTS[layout](YR), _LAYOUTS[layout](weights)
    plain_y = np.array(odd_y, dtype="float64")
    plain_weights = np.array(odd_weights, dtype="float64")
    expected = make_regressor().fit(X2, plain_y, sample_weight=plain_weights)
    estimator = _strict(make_regressor().fit, X2, odd_y, odd_weights)
    np.testing.assert_array_equal(estimator.predict(X2), expected.predict(X2))
    np.testing.assert_array_equal(odd_y, plain_y)
    np.testing.assert_array_equal(odd_weights, plain_weights)
    several = np.c_[YR, -YR]
    np.testing.assert_array_equal(
        _strict(make_regressor().fit, X2, _LAYOUTS[layout](several)).predict(X2).shape, (64, 2)
    )


@pytest.mark.parametrize("layout", list(_LAYOUTS))
def test_memory_layout_of_series_does_not_matter(layout):
    """H7: of each array in a list."""
    odd = [_LAYOUTS[layout](s) for s in SERIES]
    plain = [np.ascontiguousarray(s.astype("float64", copy=True)) for s in odd]
    expected = make_regressor().fit(plain, SERIES_YR).predict(plain)
    estimator = _strict(make_regressor().fit, odd, SERIES_YR)
    np.testing.assert_array_equal(_strict(estimator.predict, odd), expected)


def test_views_and_files_are_read_in_place(tmp_path):
    """H7: read-only window views and memory-mapped files."""
    series = np.random.default_rng(0).normal(size=(87, 3)).astype("float32")
    windows = np.lib.stride_tricks.sliding_window_view(series, 24, axis=0).transpose(0, 2, 1)
    assert not windows.flags.writeable
    plain = np.ascontiguousarray(windows)
    file = tmp_path / "windows.npy"
    np.save(file, plain)
    mapped = np.load(file, mmap_mode="r")
    content = file.read_bytes()
    expected = make_regressor().fit(plain, YR).predict(plain)
    for X in (windows, mapped):
        estimator = _strict(make_regressor().fit, X, YR)
        np.testing.assert_array_equal(_strict(estimator.predict, X), expected)
    assert file.read_bytes() == content


# --- H8: torch's default dtype ---------------------------------------------------------------


@both
@pytest.mark.parametrize("X", [X2, X2D, X3], ids=["table32", "table64", "windows32"])
@pytest.mark.parametrize("when", ["before fit", "after fit", "after unpickling"])
def test_default_dtype_of_torch_is_respected_and_irrelevant(make, y, X, when):
    """H8."""
    expected = outputs(make(max_iter=8).fit(X, y), X)
    default = torch.get_default_dtype()
    estimator = make(max_iter=8)
    if when != "before fit":
        estimator.fit(X, y)
    if when == "after unpickling":
        estimator = pickle.loads(pickle.dumps(estimator))
    try:
        for dtype in (torch.float64, torch.float16, torch.float32):
            torch.set_default_dtype(dtype)
            if when == "before fit":
                estimator.fit(X, y)
            result = outputs(estimator, X)
            repr(estimator.convergence_diagnostics_)
            assert torch.get_default_dtype() == dtype
            np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)
    finally:
        torch.set_default_dtype(default)


@both
@pytest.mark.parametrize(
    "parameters",
    [{"diagnostics": "full"}, {"n_layers": 2, "layer_norm": True, "learning_rate": "theory"}],
    ids=["fused", "layers"],
)
def test_default_device_of_torch_is_respected_and_irrelevant(make, y, parameters):
    """H8: a device that holds no numbers stands for any other than the estimator's."""
    expected = make(max_iter=4, **parameters).fit(X2, y)
    curve = diagnose(expected, X2, y, full=True).predicted_curve
    torch.set_default_device("meta")
    try:
        estimator = make(max_iter=4, **parameters).fit(X2, y)
        np.testing.assert_array_equal(outputs(estimator, X2), outputs(expected, X2))
        np.testing.assert_array_equal(diagnose(estimator, X2, y, full=True).predicted_curve, curve)
        assert next(estimator.module_.parameters()).device.type == "cpu"
        assert torch.get_default_device().type == "meta"
    finally:
        torch.set_default_device(None)


@both
def test_disabled_gradients_do_not_matter(make, y):
    """H8: the same for torch's other global switches."""
    expected = outputs(make().fit(X2, y), X2)
    with torch.no_grad():
        np.testing.assert_array_equal(outputs(make().fit(X2, y), X2), expected)
        assert not torch.is_grad_enabled()
    with torch.inference_mode():
        np.testing.assert_array_equal(outputs(make().fit(X2, y), X2), expected)


# --- H9: the scale of weights ----------------------------------------------------------------


@both
@pytest.mark.parametrize("X", [X2, X3], ids=["table", "windows"])
@pytest.mark.parametrize("early_stopping", [False, True])
def test_scale_of_the_weights_does_not_matter(make, y, X, early_stopping):
    """H9: with the default alpha, the loss being the weighted mean."""
    X = X.astype("float64")

    def fit(weights):
        estimator = make(early_stopping=early_stopping, max_iter=10)
        estimator.fit(X, y, sample_weight=weights)
        return estimator.n_iter_, outputs(estimator, X)

    n_iter, expected = fit(None)
    for constant in (1.0, 1e-4, 1e4, 1e-300):
        again, result = fit(np.full(64, constant))
        assert again == n_iter
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-7)
    weights = np.random.default_rng(0).uniform(0.1, 3, size=64)
    n_iter, expected = fit(weights)
    for factor in (1e-6, 1e6):
        again, result = fit(factor * weights)
        assert again == n_iter
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-7)
    assert not np.allclose(expected, fit(None)[1], rtol=1e-3)


def test_boosting_with_weights_that_sum_to_one_learns():
    """H9."""
    boosted = AdaBoostClassifier(make_classifier(max_iter=60), n_estimators=3, random_state=0)
    assert boosted.fit(X2, YC).score(X2, YC) > 0.75


# --- H10: constant targets -------------------------------------------------------------------


@pytest.mark.parametrize("n", [3, 32])
@pytest.mark.parametrize("X", [X2, X3], ids=["table", "windows"])
@pytest.mark.parametrize(
    "y",
    [
        np.full(32, 5000, "float32"),
        np.full(32, 101325.0),
        np.full(32, 101325.1, "float32"),
        np.full(32, 7, int),
        np.full(32, 1e-12),
        np.full(32, -1e20),
        np.zeros(32),
        np.full((32, 2), [0.1, 1e9]),
    ],
    ids=["5000", "101325", "101325.1", "int", "tiny", "huge", "zero", "two outputs"],
)
def test_constant_target_is_predicted_exactly(y, X, n):
    """H10."""
    y = y[:n]
    estimator = make_regressor().fit(X[:n], y)
    predictions = estimator.predict(X)
    np.testing.assert_allclose(
        predictions, np.broadcast_to(y[0], predictions.shape), rtol=1e-6, atol=1e-18
    )
    assert np.isfinite(estimator.loss_curve_).all()
    assert estimator.convergence_diagnostics_ is not None
    assert estimator.score(X[:n], y) in (0.0, 1.0)


@pytest.mark.parametrize("n", [3, 32])
@pytest.mark.parametrize("early_stopping", [False, True])
def test_nearly_constant_target_stays_near(n, early_stopping):
    """H10: a few units in the last place of single precision."""
    y = (5000 + 1e-3 * np.random.default_rng(0).normal(size=n)).astype("float32")
    predictions = make_regressor(early_stopping=early_stopping).fit(X2[:n], y).predict(X2)
    assert (predictions >= y.min() - 1).all()
    assert (predictions <= y.max() + 1).all()


def test_one_constant_output_beside_a_varying_one():
    """H10."""
    Y = np.c_[np.full(64, 101325.0), YR]
    estimator = make_regressor(max_iter=100).fit(X2D, Y)
    predictions = estimator.predict(X2D)
    np.testing.assert_allclose(predictions[:, 0], 101325.0, rtol=1e-6)
    assert np.corrcoef(predictions[:, 1], YR)[0, 1] > 0.7


# --- H11: silence ----------------------------------------------------------------------------


@pytest.mark.parametrize("n_jobs", [1, pytest.param(2, marks=pytest.mark.slow)])
@both
def test_nothing_is_written_printed_or_logged(make, y, n_jobs, tmp_path, monkeypatch, capfd):
    """H11: at the default verbosity."""
    monkeypatch.chdir(tmp_path)
    modified = tmp_path.stat().st_mtime_ns
    handlers = list(logging.getLogger().handlers)
    estimator = make(early_stopping=True).fit(X2, y)
    estimator.predict(X2)
    repr(estimator.convergence_diagnostics_)
    GridSearchCV(make(), {"residual_beta": [0.0, 1.0]}, cv=2, n_jobs=n_jobs).fit(X2, y)
    cross_val_score(make(), X2, y, cv=2)
    assert os.listdir(tmp_path) == []
    assert tmp_path.stat().st_mtime_ns == modified
    printed = capfd.readouterr()
    assert printed.out == ""
    assert printed.err == ""
    assert logging.getLogger().handlers == handlers


def test_progress_is_printed_when_asked_for(capfd):
    """H11: the counterpart."""
    make_regressor(verbose=1).fit(X2, YR)
    printed = capfd.readouterr()
    assert printed.out + printed.err != ""


# --- H12: padding ----------------------------------------------------------------------------


@both_on_series
@pytest.mark.parametrize("pooling", ["mean", "last"])
@pytest.mark.parametrize("value", [0.0, 1e30, -1.0, np.nan])
@pytest.mark.parametrize("length", [16, 24, 48])
def test_content_and_length_of_padding_do_not_matter(make, y, pooling, value, length):
    """H12: for the loss curve and for what is predicted."""
    reference = make(pooling=pooling, max_iter=8).fit(SERIES, y)
    expected = outputs(reference, SERIES)
    padded = pad(SERIES, length, value)
    estimator = make(pooling=pooling, padding_value=value, max_iter=8).fit(padded, y)
    np.testing.assert_allclose(estimator.loss_curve_, reference.loss_curve_, rtol=1e-5)
    np.testing.assert_allclose(outputs(estimator, padded), expected, rtol=1e-5, atol=1e-7)
    again = pad(SERIES, length + 5, value)
    np.testing.assert_allclose(outputs(estimator, again), expected, rtol=1e-5, atol=1e-7)


@both_on_series
@pytest.mark.parametrize(
    "parameters",
    [
        {"n_layers": 2, "causal": True},
        {"layer_norm": True, "n_heads": 3},
        {"positional_encoding": "learned", "pooling": "last"},
        {"positional_encoding": "sinusoidal", "d_model": 4},
        {"activation": "gelu", "d_model": 6, "n_heads": 2, "n_layers": 2, "layer_norm": True},
    ],
    ids=["causal", "layer-norm", "learned", "sinusoidal", "deep"],
)
def test_padding_does_not_leak_through_any_option(make, y, parameters):
    """H12."""
    reference = make(**parameters).fit(SERIES, y)
    expected = outputs(reference, SERIES)
    padded = pad(SERIES, 16, 1e30)
    estimator = make(**parameters, padding_value=1e30).fit(padded, y)
    np.testing.assert_allclose(estimator.loss_curve_, reference.loss_curve_, rtol=1e-5)
    np.testing.assert_allclose(outputs(estimator, padded), expected, rtol=1e-5, atol=1e-7)
    for i in (0, 5, 11):
        alone = outputs(estimator, padded[i : i + 1, : len(SERIES[i])])
        np.testing.assert_allclose(alone, expected[i : i + 1], rtol=1e-5, atol=1e-7)
        np.testing.assert_allclose(
            outputs(reference, [SERIES[i]]), expected[i : i + 1], rtol=1e-5, atol=1e-7
        )


def test_padding_does_not_leak_into_predictions_for_every_token():
    """H12."""
    targets = [s[:, 0] + s[:, 1] for s in SERIES]
    estimator = make_regressor(pooling="none").fit(SERIES, targets)
    predictions = estimator.predict(SERIES)
    assert [p.shape for p in predictions] == [t.shape for t in targets]
    for series, prediction in zip(SERIES, predictions, strict=True):
        alone = estimator.predict([series])[0]
        np.testing.assert_allclose(alone, prediction, rtol=1e-5, atol=1e-7)


@both_on_series
def test_scaling_ignores_padding(make, y):
    """H12: short series among hundreds of padded steps are scaled by their real steps."""
    shifted = [s + 50 for s in SERIES]
    expected = outputs(make().fit(SERIES, y), SERIES)
    estimator = make(padding_value=0.0).fit(pad(shifted, 200, 0.0), y)
    np.testing.assert_allclose(
        outputs(estimator, pad(shifted, 300, 0.0)), expected, rtol=1e-5, atol=1e-6
    )


@both
def test_last_token_is_the_last_real_one(make, y):
    """H12: as in windows cut to their real length."""
    cut = X3D[:, :10]
    expected = outputs(make(pooling="last").fit(cut, y), cut)
    padded = np.concatenate([cut, np.full((64, 14, 3), np.nan)], axis=1)
    estimator = make(pooling="last", padding_value=np.nan).fit(padded, y)
    np.testing.assert_allclose(outputs(estimator, padded), expected, rtol=1e-5, atol=1e-7)


def test_padding_on_the_left_is_treated_alike_or_refused():
    """H12."""
    left = np.full((12, 24, 3), np.nan)
    for row, steps in zip(left, SERIES, strict=True):
        row[-len(steps) :] = steps
    estimator = make_regressor(padding_value=np.nan)
    message = refusal(estimator.fit, left, SERIES_YR)
    if message:
        assert "padding" in message
    else:
        expected = make_regressor().fit(SERIES, SERIES_YR).predict(SERIES)
        np.testing.assert_allclose(estimator.predict(left), expected, rtol=1e-5, atol=1e-7)
