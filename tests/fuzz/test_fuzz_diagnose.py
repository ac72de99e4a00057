"""Diagnoses of estimators and modules, and the monitor that watches them train."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.exceptions import DataConversionWarning

from sklearn_restf import ResidualTransformerRegressor, diagnose
from sklearn_restf.callbacks import ConvergenceMonitor, TrainingCheckpoint
from tests.fuzz.calls import NO_COUNT, NO_FLAG, called, spoil
from tests.fuzz.cases import cases
from tests.fuzz.data import draw_container, rarely
from tests.fuzz.judge import ALLOWED_WARNINGS, NAMES, expect, outcomes
from tests.fuzz.length import N_CASES, SLOW_TO_DRAW, search_at_length

OPTIONS = {"n_samples": NO_COUNT, "full": NO_FLAG}
# what fit looks at and a diagnosis does not need
UNSEEN = {"sample_weight", "X_val", "y_val", "sample_weight_val", "device"}
X = np.random.default_rng(0).standard_normal((6, 3, 2))
WATCHED = {"max_iter": 3, "tol": None, "d_ff": 4, "random_state": 0, "diagnostics": False}

MONITOR = {
    "module": [None, "blocks.0", "blocks.1"],
    "residual_beta": [0.0, 1, 0.5, 1e300],
    "batch_first": [None, True, False],
    "n_samples": [1, 3, 10**9],
    "every": [1, 2, 10**9],
}
INVALID_MONITOR = {
    "module": ["nothing", "", 3, ["blocks.0"], True],
    "residual_beta": ["1", np.nan, np.inf, None, [1.0], True],
    "batch_first": NO_FLAG[1:],
    "n_samples": NO_COUNT,
    "every": NO_COUNT,
}


@st.composite
def diagnoses(draw):
    """Draw a case and the arguments of a diagnosis of it."""
    case = draw(cases())
    arguments = {"n_samples": draw(st.sampled_from([64, 1, 3]))}
    if rarely(draw, 3):
        arguments["full"] = True
    with_y = arguments.get("full", False) or not rarely(draw)
    spoilt = {name for name in case.spoilt("fit") if name not in UNSEEN}
    spoilt -= set() if with_y else {"y", "pooling"}
    if case.fit["y"] is None and not arguments.get("full"):  # a diagnosis can do without
        spoilt -= {"y"}
    if not spoilt:
        spoilt = spoil(draw, OPTIONS, arguments)
    return case, arguments, with_y, rarely(draw, 3), spoilt


def judge_diagnosis(drawn):
    """Diagnose an estimator, fitted or not."""
    outcomes["cases"] += 1
    case, arguments, with_y, fit_first, spoilt = drawn
    estimator = case.make(**case.parameters)
    if fit_first and not case.faults:
        called("fit", lambda: estimator.fit(case.fit["X"], case.fit["y"]), names=NAMES,
               draws=True, warns=ALLOWED_WARNINGS)  # fmt: skip
    before = sorted(vars(estimator))
    y = case.fit["y"] if with_y else None
    refusals = (ValueError, TypeError, FileNotFoundError, MemoryError)
    found = called("diagnose", lambda: diagnose(estimator, case.fit["X"], y, **arguments),
                   names=NAMES | {"n_samples", "full"}, spoilt=spoilt, clashes=case.parameters,
                   inputs=[case.fit["X"], y], refusals=refusals,
                   warns=[DataConversionWarning])  # fmt: skip
    expect(sorted(vars(estimator)) == before, "the estimator was changed")
    if found is not None:
        look_at_diagnostics(found)


def look_at_diagnostics(found):
    """Check what is common to all diagnostics."""
    expect(isinstance(found.summary(), str), "no summary")
    found.to_dict()
    found.to_frame()
    found._repr_html_()
    for name in ("sigma_min", "norm", "condition_ratio", "rank1_residual", "effective_rank"):
        value = getattr(found, name)
        expect(np.isnan(value) or value >= 0, f"{name} is {value}")


def module_of(**parameters):
    """Return a fitted module."""
    model = ResidualTransformerRegressor(**WATCHED, **parameters)
    return model.set_params(max_iter=1).fit(X, X[:, 0, 0]).module_


MODULES = [{}, {"n_layers": 2, "layer_norm": True, "pooling": "last"},
           {"positional_encoding": "learned", "pooling": "flatten"}]  # fmt: skip
NO_TOKENS = [None, 3.0, "X", [], np.zeros((6, 3)), np.zeros((6, 3, 5)), np.zeros((0, 3, 2)),
             np.full((2, 3, 2), np.nan), np.full((2, 3, 2), 1j), [["a"]], {}, object(),
             np.zeros((2, 0, 2))]  # fmt: skip
NO_MASK = ["mask", np.ones((2, 3)), np.zeros((6, 3), bool), np.ones((6, 3, 1), bool), 3, [[1]],
           np.full((6, 3), np.nan)]  # fmt: skip


@st.composite
def module_diagnoses(draw):
    """Draw a module and arguments of a diagnosis of it."""
    number = draw(st.integers(0, len(MODULES) - 1))
    arguments = {"X": draw_container(draw, X), "n_samples": draw(st.sampled_from([64, 1, 4]))}
    if rarely(draw, 2) and MODULES[number].get("pooling") != "flatten":
        lengths = draw(st.lists(st.integers(1, 3), min_size=6, max_size=6))
        arguments["mask"] = np.arange(3) < np.array(lengths)[:, None]
    invalid = {"X": NO_TOKENS, "mask": NO_MASK, "n_samples": NO_COUNT, "full": [True, "no", 2]}
    return number, arguments, spoil(draw, invalid, arguments)


def judge_module_diagnosis(drawn):
    """Diagnose a module."""
    outcomes["cases"] += 1
    number, arguments, spoilt = drawn
    module = module_of(**MODULES[number])
    found = called("diagnose", lambda: diagnose(module, **arguments), names=arguments,
                   spoilt=spoilt, inputs=arguments.values())  # fmt: skip
    if found is not None:
        look_at_diagnostics(found)


@st.composite
def monitors(draw):
    """Draw the parameters of a monitor."""
    names = draw(st.lists(st.sampled_from(sorted(MONITOR)), max_size=5, unique=True))
    parameters = {name: draw(st.sampled_from(MONITOR[name])) for name in names}
    return parameters, spoil(draw, INVALID_MONITOR, parameters)


def judge_monitor(drawn):
    """Watch a fit."""
    outcomes["cases"] += 1
    parameters, spoilt = drawn
    monitor = ConvergenceMonitor(**parameters)
    model = ResidualTransformerRegressor(**WATCHED, n_layers=2, callbacks=[monitor])
    fitted = called("fit", lambda: model.fit(X, X[:, 0, 0]), names=MONITOR, spoilt=spoilt,
                    clashes=parameters, inputs=[X])  # fmt: skip
    if fitted is None:
        return
    monitor = model.callbacks_[0]
    expect(len(monitor.loss_) == model.n_iter_, "as many losses as iterations")
    every = parameters.get("every", 10)
    expect(monitor.epochs_ == list(range(0, model.n_iter_ + 1, every)), f"{monitor.epochs_}")
    expect(np.isfinite(monitor.to_frame().to_numpy()).all(), "spectra not finite")
    look_at_diagnostics(monitor.diagnostics_)


@settings(max_examples=60, suppress_health_check=SLOW_TO_DRAW)
@given(diagnoses())
def test_diagnosed_or_refused(drawn):
    judge_diagnosis(drawn)


@settings(max_examples=60, suppress_health_check=SLOW_TO_DRAW)
@given(module_diagnoses())
def test_modules_diagnosed_or_refused(drawn):
    judge_module_diagnosis(drawn)


@settings(max_examples=60, suppress_health_check=SLOW_TO_DRAW)
@given(monitors())
def test_monitored_or_refused(drawn):
    judge_monitor(drawn)


@pytest.mark.parametrize("path", [None, 3, [], {}], ids=str)
def test_unusable_paths_of_checkpoints_are_named(path):
    model = ResidualTransformerRegressor(**WATCHED, callbacks=[TrainingCheckpoint(path)])
    called("fit", lambda: model.fit(X, X[:, 0, 0]), names=["path"], spoilt=["path"])


@pytest.mark.parametrize(
    "something", [None, 3, "model", torch.nn.Linear(2, 2), object, {}], ids=str
)
def test_what_is_neither_estimator_nor_module_is_refused(something):
    called("diagnose", lambda: diagnose(something, X), names=["diagnose"], spoilt=["diagnose"])


@pytest.mark.fuzz
@pytest.mark.timeout(0)
@pytest.mark.parametrize(
    ("judge", "drawn", "share"),
    [
        (judge_diagnosis, diagnoses(), 4),
        (judge_module_diagnosis, module_diagnoses(), 10),
        (judge_monitor, monitors(), 10),
    ],
)
def test_diagnoses_at_length(capsys, judge, drawn, share):
    search_at_length(capsys, judge, drawn, N_CASES // share)
