"""Settings of scikit-learn, torch and the process neither matter nor change."""

import logging
import os
import pickle
import signal
import sys
import warnings

import numpy as np
import pandas as pd
import pytest
import sklearn
import torch
from sklearn.model_selection import GridSearchCV, cross_val_score

from sklearn_restf import diagnose
from tests.builders import SERIES_YC, X2, X2D, X3, YR, both, make_classifier, make_regressor
from tests.tools import outputs


def test_scikit_learn_configuration_is_left_alone_case_d3():
    """The checks above did not depend on a changed configuration either."""
    before = sklearn.get_config()
    make_classifier().fit(X3, SERIES_YC.repeat(6)[:64]).predict(X3)
    assert sklearn.get_config() == before


@both
@pytest.mark.parametrize("kind", ["numpy", "pandas", "windows"])
def test_global_transform_output_does_not_reach_inside_case_h2(make, y, kind):
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
def test_skipped_validation_and_array_api_settings_do_no_harm_case_h2(make, y):
    """The other global settings."""
    expected = outputs(make().fit(X2, y), X2)
    for setting in ({"assume_finite": True}, {"skip_parameter_validation": True}):
        with sklearn.config_context(**setting):
            np.testing.assert_array_equal(outputs(make().fit(X2, y), X2), expected)


@both
@pytest.mark.parametrize("X", [X2, X2D, X3], ids=["table32", "table64", "windows32"])
@pytest.mark.parametrize("when", ["before fit", "after fit", "after unpickling"])
def test_default_dtype_of_torch_is_respected_and_irrelevant_case_h8(make, y, X, when):
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
def test_default_device_of_torch_is_respected_and_irrelevant_case_h8(make, y, parameters):
    """A device that holds no numbers stands for any other than the estimator's."""
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
def test_disabled_gradients_do_not_matter_case_h8(make, y):
    """The same for torch's other global switches."""
    expected = outputs(make().fit(X2, y), X2)
    with torch.no_grad():
        np.testing.assert_array_equal(outputs(make().fit(X2, y), X2), expected)
        assert not torch.is_grad_enabled()
    with torch.inference_mode():
        np.testing.assert_array_equal(outputs(make().fit(X2, y), X2), expected)


@pytest.mark.parametrize("n_jobs", [1, pytest.param(2, marks=pytest.mark.slow)])
@both
def test_nothing_is_written_printed_or_logged_case_h11(
    make, y, n_jobs, tmp_path, monkeypatch, capfd
):
    """At the default verbosity."""
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


def test_progress_is_printed_when_asked_for_case_h11(capfd):
    """The counterpart."""
    make_regressor(verbose=1).fit(X2, YR)
    printed = capfd.readouterr()
    assert printed.out + printed.err != ""


@both
def test_fit_and_predict_leave_the_process_as_it_was(make, y, random_state_unchanged):
    def state():
        return (
            list(warnings.filters),
            dict(os.environ),
            list(logging.getLogger().handlers),
            signal.getsignal(signal.SIGINT),
            torch.get_num_threads(),
            torch.get_num_interop_threads(),
            torch.are_deterministic_algorithms_enabled(),
            torch.backends.mkldnn.enabled,
            torch.is_inference_mode_enabled(),
            np.get_printoptions(),
            sys.getrecursionlimit(),
        )

    before = state()
    estimator = make(early_stopping=True, verbose=0, diagnostics="full").fit(X2D, y)
    outputs(estimator, X2D)
    repr(estimator.convergence_diagnostics_)
    assert state() == before
