"""Fitted or not, never half; and what a fitted estimator keeps."""

import gc
import weakref

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.utils.validation import check_is_fitted

from sklearn_restf import (
    ResidualTransformerClassifier,
    ResidualTransformerClassifierCV,
    ResidualTransformerRegressor,
    ResidualTransformerRegressorCV,
)
from sklearn_restf.exceptions import DivergenceError
from tests.builders import (
    SERIES,
    SERIES_YR,
    X2,
    X2D,
    X3,
    YC,
    YR,
    both,
    both_makers,
    make_classifier,
    make_regressor,
    spoiled,
)
from tests.tools import fitted_names, live_tensors


@pytest.mark.parametrize(
    ("make", "method"),
    [
        (make_regressor, "predict"),
        (make_classifier, "predict"),
        (make_classifier, "predict_proba"),
        (make_classifier, "predict_log_proba"),
        (make_classifier, "decision_function"),
    ],
)
def test_prediction_before_fit_raises_not_fitted_error_case_d2(make, method):
    with pytest.raises(NotFittedError):
        getattr(make(), method)(X2)
    with pytest.raises(NotFittedError):
        make().score(X2, YR if make is make_regressor else YC)
    with pytest.raises(NotFittedError):
        check_is_fitted(make())


@both_makers
def test_unfitted_estimator_has_no_fitted_attributes_case_d2(make):
    """Not even those that are computed when asked for."""
    estimator = make()
    names = fitted_names(clone(estimator).fit(X2, YC if make is make_classifier else YR))
    for name in {*names, "module_", "net_", "convergence_diagnostics_"}:
        assert not hasattr(estimator, name), name


@pytest.mark.parametrize(
    ("parameters", "X", "y", "weights"),
    [
        ({}, X2, np.full(64, np.nan), None),
        ({}, X2, YR[:-1], None),
        ({}, spoiled(X2, np.nan), YR, None),
        ({}, spoiled(X3, np.inf), YR, None),
        ({"n_layers": -1}, X2, YR, None),
        ({"activation": "nope"}, X2, YR, None),
        ({"token_dim": 5}, X2, YR, None),
        ({"device": "nope"}, X2, YR, None),
        ({}, X2, YR, np.zeros(64)),
        ({"learning_rate": 1e6}, X2 * 1e4, 1e6 * YR, None),
        ({}, [*SERIES[:-1], np.zeros((0, 3))], SERIES_YR, None),
    ],
    ids=[
        "nan-y",
        "short-y",
        "nan-x",
        "inf-x",
        "bad-number",
        "bad-option",
        "bad-token-dim",
        "bad-device",
        "zero-weights",
        "divergence",
        "empty-series",
    ],
)
def test_failed_fit_leaves_the_estimator_unfitted_case_d2(parameters, X, y, weights):
    estimator = make_regressor(**parameters)
    with pytest.raises(ValueError):  # noqa: PT011 - the texts are tested elsewhere
        estimator.fit(X, y, sample_weight=weights)
    assert fitted_names(estimator) == []
    with pytest.raises(NotFittedError):
        check_is_fitted(estimator)
    with pytest.raises(NotFittedError):
        estimator.predict(X2)


@pytest.mark.parametrize("warm_start", [False, True])
def test_failed_refit_leaves_the_estimator_as_it_was_case_d2(warm_start):
    estimator = make_regressor(warm_start=warm_start).fit(X2, YR)
    before, predicted = dict(vars(estimator)), estimator.predict(X2)
    with pytest.raises(ValueError, match=r"NaN|features"):
        estimator.fit(X2[:, :2], np.full(64, np.nan))
    estimator.learning_rate = 1e6
    with pytest.raises(DivergenceError):
        estimator.fit(X2 * 1e4, 1e6 * YR)
    assert vars(estimator) == before | {"learning_rate": 1e6}
    np.testing.assert_array_equal(estimator.predict(X2), predicted)


@both
def test_what_a_subclass_sets_before_fit_survives_fit(make, y):
    class Named(type(make())):
        def fit(self, X, y):
            self.note_ = "mine"
            return super().fit(X, y)

    estimator = Named(max_iter=2, tol=None).fit(X2, y)
    assert estimator.note_ == "mine"
    with pytest.raises(ValueError, match="NaN"):
        estimator.fit(np.full_like(X2, np.nan), y)
    assert estimator.note_ == "mine"
    assert estimator.fit(X2, y).note_ == "mine"


@pytest.mark.parametrize(
    ("cls", "y"),
    [
        (ResidualTransformerRegressor, YR),
        (ResidualTransformerClassifier, YC),
        (ResidualTransformerRegressorCV, YR),
        (ResidualTransformerClassifierCV, YC),
    ],
)
def test_what_fit_sets_is_known_to_be_of_the_fit(cls, y):
    """So that a refit replaces it, and nothing else."""
    estimator = cls(max_iter=2, tol=None)
    before = set(vars(estimator))
    found = set(vars(estimator.fit(pd.DataFrame(X2).add_prefix("x"), y))) - before
    assert found <= cls._fitted_names


def test_refit_leaves_nothing_of_the_fit_before():
    """Neither names of features nor the callbacks that were used."""
    estimator = make_regressor(max_iter=2, tol=None)
    estimator.fit(pd.DataFrame(X2).add_prefix("x"), YR)
    assert len(estimator.feature_names_in_) == X2.shape[1]
    fitted = set(vars(estimator.fit(X2, YR)))
    assert fitted == set(vars(clone(estimator).fit(X2, YR)))


@both
@pytest.mark.parametrize("X", [X2, X3, SERIES], ids=["table", "windows", "series"])
def test_fitted_estimator_keeps_no_tensor_case_d12(make, y, X):
    """No gradient, optimizer state or activation."""
    y = y[: len(X)]
    make().fit(X, y).predict(X)  # whatever torch sets up once
    before = live_tensors()
    estimators = [make().fit(X, y) for _ in range(2)]
    for estimator in estimators:
        estimator.predict(X)
        assert estimator.convergence_diagnostics_ is not None
    assert live_tensors() == before


@both
def test_fitted_estimator_keeps_no_training_data_case_d12(make, y):
    X, y = X2D.copy(), y.copy()
    weights = np.ones(64)
    references = [weakref.ref(array) for array in (X, y, weights)]
    estimator = make().fit(X, y, sample_weight=weights)
    estimator.predict(X)
    del X, y, weights
    gc.collect()
    assert [reference() is None for reference in references] == [True] * 3
    assert estimator.n_features_in_ == 72
