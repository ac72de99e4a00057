"""Runs a case and says what is wrong with its outcome."""

from __future__ import annotations

import pickle
import random
import re
import time
import warnings
from collections import Counter

import numpy as np
import pandas as pd
import polars as pl
import torch
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, DataConversionWarning

from sklearn_restf import ResidualTransformerClassifierCV, ResidualTransformerRegressorCV
from sklearn_restf.exceptions import RankCollapseWarning
from tests.fuzz.cases import INVALID, VALID

ALLOWED_WARNINGS = (ConvergenceWarning, RankCollapseWarning, DataConversionWarning)
# scikit-learn's own words about the names of columns, when containers are mixed
FEATURE_NAMES = re.compile("X has feature names|valid feature names")
# and its words, and ours, about folds: too few samples for two, or a candidate that diverged
SEARCHES = re.compile("n_splits|of cv|less than two samples|fits of .* failed and score NaN")
ARGUMENTS = {"X", "y", "sample_weight", "X_val", "y_val", "sample_weight_val"}
NAMES = ARGUMENTS | VALID.keys() | INVALID.keys() | {"class_weight"}
CPU_SECONDS = 30.0

outcomes: Counter[str] = Counter()


class Fault(AssertionError):
    """An outcome that no user should see."""


def fingerprint(value):
    """Return something equal exactly for equal content, whatever the container."""
    if isinstance(value, torch.Tensor):
        return "tensor", fingerprint(value.detach().numpy()), value.requires_grad
    if isinstance(value, np.ndarray) and value.dtype != object:
        return value.shape, str(value.dtype), value.strides, value.tobytes()
    if isinstance(value, pd.DataFrame | pd.Series):
        return fingerprint(value.to_numpy()), list(value.index)
    if isinstance(value, pl.DataFrame):
        return [(column.name, str(column.dtype), repr(column.to_list())) for column in value]
    if isinstance(value, list | tuple | np.ndarray):
        return type(value), [fingerprint(item) for item in value]
    if isinstance(value, np.random.RandomState):
        return "RandomState"  # fit may draw from it
    return repr(value)


def global_state():
    """Return what no call may change."""
    return (
        np.random.get_state()[1].tobytes(),
        torch.random.get_rng_state().numpy().tobytes(),
        random.getstate(),
        torch.get_num_threads(),
        torch.get_default_dtype(),
        torch.is_grad_enabled(),
        np.geterr(),
    )


def names_in(message, names=NAMES):
    """Return the arguments that a message names."""
    return {name for name in names if re.search(rf"(?<!\w){re.escape(name)}(?!\w)", message)}


def described(warning):
    """Return a warning and where it comes from in words."""
    where = f"{warning.filename}:{warning.lineno}"
    return f"{warning.category.__name__}: {warning.message} ({where})"


def observed(step, call, refusals=(ValueError, TypeError)):
    """Return the result of a call, the error that refused it, and its warnings.

    Anything else than a result or one of the refusals is a fault.
    """
    start = time.process_time()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            result, error = call(), None
        except refusals as exception:
            result, error = None, exception
        except Exception as exception:
            raise Fault(f"{step}: {type(exception).__name__}: {exception}") from exception
    seconds = time.process_time() - start
    if seconds > CPU_SECONDS:
        raise Fault(f"{step}: took {seconds:.0f} s")
    return result, error, caught


def check_warnings(step, caught, allowed):
    """Raise for a warning of another category than those allowed."""
    for warning in caught:
        fine = issubclass(warning.category, allowed)
        if not fine and not FEATURE_NAMES.search(str(warning.message)):
            raise Fault(f"{step}: {described(warning)}")


def attempt(step, case, call, *, must_refuse=frozenset()):
    """Return the result of a call, or None if it was refused in good words."""
    spoilt = case.spoilt("fit")
    refusals = [ValueError, TypeError]
    refusals += [FileNotFoundError] if "init" in spoilt else []
    refusals += [MemoryError] if "d_ff" in spoilt else []
    result, error, caught = observed(step, call, tuple(refusals))
    if step == "search":
        caught = [warning for warning in caught if not SEARCHES.search(str(warning.message))]
    check_warnings(step, caught, ALLOWED_WARNINGS)
    if error is None:
        if must_refuse:
            raise Fault(f"{step}: not refused: {sorted(must_refuse)}")
        outcomes[f"{step}: done"] += 1
        return result
    named = names_in(str(error))
    if step == "search" and SEARCHES.search(str(error)):
        named |= must_refuse or {"X"}
    # parameters may clash with the data, and be found to before what was spoilt is
    expected = must_refuse | case.parameters.keys() if must_refuse else NAMES
    if not named & expected:
        raise Fault(f"{step}: names {named}, not {sorted(must_refuse)}: {error!r}") from error
    outcomes[f"{step}: {type(error).__name__}"] += 1
    return None


def judge(case):
    """Run a case; raise :class:`Fault` when it ends in a way it should not."""
    outcomes["cases"] += 1
    estimator = case.make(**case.parameters)
    given = fingerprint(list(case.fit.values())), fingerprint(case.X_new)
    parameters = fingerprint(list(case.parameters.values()))
    before = global_state()
    try:
        run(case, estimator)
    finally:
        changed = [a != b for a, b in zip(before, global_state(), strict=True)]
    if case.parameters["random_state"] is None:  # NumPy's generator is what that asks for
        changed[0] = False
    if any(changed):
        raise Fault(f"global state changed: {changed}")
    if given != (fingerprint(list(case.fit.values())), fingerprint(case.X_new)):
        raise Fault("an input was written to")
    if parameters != fingerprint([estimator.get_params()[name] for name in case.parameters]):
        raise Fault("a parameter was changed")


def judge_search(case):
    """Choose residual_beta with the parameters and samples of a case."""
    outcomes["cases"] += 1
    make = ResidualTransformerRegressorCV
    if case.kind == "classifier":
        make = ResidualTransformerClassifierCV
    known = make().get_params()
    parameters = {name: v for name, v in case.parameters.items() if name in known}
    fit = {name: case.fit[name] for name in ("X", "y", "sample_weight")}
    must_refuse = case.spoilt("fit")
    if must_refuse - parameters.keys() - fit.keys():
        return  # spoilt where a search has no such argument
    estimator = make(residual_betas=[0.0, 1.0], cv=2, **parameters)
    before = global_state()[1:]  # splitting may draw from NumPy's generator
    fitted = attempt("search", case, lambda: estimator.fit(**fit), must_refuse=must_refuse)
    if before != global_state()[1:]:
        raise Fault("global state changed")
    if fitted is not None:
        refuse = case.spoilt("predict")
        attempt("predict", case, lambda: estimator.predict(case.X_new), must_refuse=refuse)


def run(case, estimator):
    """Fit, look at the fit, predict."""
    refuse = case.spoilt("fit")
    fitted = attempt("fit", case, lambda: estimator.fit(**case.fit), must_refuse=refuse)
    if fitted is None:
        left = [name for name in vars(estimator) if name.endswith("_")]
        if left or estimator.__sklearn_is_fitted__():
            raise Fault(f"a fit that failed left {left}")
        return
    look_at_fit(estimator)
    attempt("clone", case, lambda: clone(estimator))
    refuse = case.spoilt("predict")
    raw = attempt("predict", case, lambda: estimator.predict(case.X_new), must_refuse=refuse)
    if raw is None:
        return
    if case.kind == "regressor":
        look_at_predictions(case, estimator, raw)
    else:
        look_at_classes(case, estimator, raw)
    copied = pickle.loads(pickle.dumps(estimator))
    again = attempt("predict", case, lambda: copied.predict(case.X_new))
    if fingerprint(again) != fingerprint(raw):
        raise Fault("a pickled estimator predicts something else")
    if case.parameters.get("warm_start"):
        attempt("fit", case, lambda: estimator.fit(**case.fit))


def expect(condition, words):
    """Raise unless the condition holds."""
    if not condition:
        raise Fault(words)


def look_at_fit(estimator):
    """Check the fitted attributes."""
    curve = estimator.loss_curve_
    expect(np.isfinite([*curve, estimator.loss_, estimator.best_loss_]).all(), "loss not finite")
    expect(len(curve) == estimator.n_iter_ <= estimator.max_iter, "as many losses as iterations")
    expect(not np.isnan(estimator.validation_curve_).any(), "validation loss not finite")
    expect(estimator.learning_rate_ > 0, f"learning_rate_ {estimator.learning_rate_}")
    diagnostics = estimator.convergence_diagnostics_
    expect(isinstance(diagnostics.summary(), str), "no summary")
    diagnostics.to_dict()
    diagnostics.to_frame()
    diagnostics._repr_html_()


def look_at_predictions(case, estimator, raw):
    """Check the predictions of a regressor."""
    if estimator.pooling == "none":
        if isinstance(raw, list):
            raw = np.concatenate([sample.reshape(len(sample), -1) for sample in raw])
        expect(len(raw) >= case.n_new, f"{len(raw)} predictions")
        if case.form == "padded":
            raw = raw[~np.isnan(raw)]
    else:
        single = estimator.n_outputs_ == 1
        shapes = [(case.n_new, estimator.n_outputs_)] + [(case.n_new,)] * single
        expect(raw.shape in shapes, f"predictions of shape {raw.shape}")
    expect(raw.dtype == np.float64, f"predictions of dtype {raw.dtype}")
    expect(np.isfinite(raw).all(), f"predictions not finite: {raw}")


def look_at_classes(case, estimator, labels):
    """Check the predictions of a classifier in all their forms."""
    n, k = case.n_new, len(estimator.classes_)

    def call(name):
        return attempt(name, case, lambda: getattr(estimator, name)(case.X_new))

    expect(labels.shape == (n,), f"labels of shape {labels.shape}")
    expect(np.isin(labels, estimator.classes_).all(), "a label that is no class")
    probabilities = call("predict_proba")
    expect(probabilities.shape == (n, k), f"probabilities of shape {probabilities.shape}")
    expect(np.isfinite(probabilities).all(), f"probabilities not finite: {probabilities}")
    expect(np.allclose(probabilities.sum(axis=1), 1), "probabilities do not sum to one")
    expect(((probabilities >= 0) & (probabilities <= 1)).all(), "probabilities outside [0, 1]")
    chosen = probabilities[np.arange(n), np.searchsorted(estimator.classes_, labels)]
    expect((chosen >= probabilities.max(axis=1) - 1e-9).all(), "the label is not the most probable")
    logs = call("predict_log_proba")
    expect(not np.isnan(logs).any() and (logs <= 0).all(), f"log-probabilities: {logs}")
    if estimator.loss == "log_loss":
        expect(np.isfinite(logs).all(), f"log-probabilities: {logs}")
    scores = call("decision_function")
    expect(scores.shape == ((n,) if k <= 2 else (n, k)), f"scores of shape {scores.shape}")
    expect(np.isfinite(scores).all(), f"scores not finite: {scores}")
