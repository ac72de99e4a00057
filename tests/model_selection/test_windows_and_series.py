"""Windows and series through scikit-learn's searches, scorers and ensembles."""

import numpy as np
import pytest
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import TransformedTargetRegressor
from sklearn.ensemble import (
    BaggingClassifier,
    BaggingRegressor,
    StackingRegressor,
    VotingClassifier,
)
from sklearn.inspection import permutation_importance
from sklearn.linear_model import Ridge
from sklearn.model_selection import (
    GridSearchCV,
    TimeSeriesSplit,
    cross_val_predict,
    cross_val_score,
)
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from tests.builders import SERIES, X2, X3, YC, YR, both_on_series, make_classifier, make_regressor


@pytest.mark.parametrize("scoring", ["roc_auc", "neg_log_loss", "average_precision"])
def test_threshold_and_probability_scorers_work_case_d3(scoring):
    y = (YC == "pos").astype(int)
    scores = cross_val_score(make_classifier(), X2, y, scoring=scoring, cv=3, error_score="raise")
    assert np.isfinite(scores).all()


def test_roc_auc_works_with_string_labels_case_d3():
    scores = cross_val_score(
        make_classifier(), X2, YC, scoring="roc_auc", cv=3, error_score="raise"
    )
    assert np.isfinite(scores).all()


def test_pipeline_with_a_scaler_takes_the_2d_form_case_d4():
    pipeline = make_pipeline(StandardScaler(), make_regressor(token_dim=3)).fit(X2, YR)
    assert pipeline.predict(X2).shape == (64,)


@pytest.mark.parametrize(
    "meta",
    [
        GridSearchCV(make_regressor(), {"residual_beta": [0.0, 1.0]}, cv=3, error_score="raise"),
        GridSearchCV(make_regressor(), {"d_ff": [4, 8]}, cv=TimeSeriesSplit(2)),
        StackingRegressor([("a", make_regressor()), ("b", make_regressor(d_ff=4))], Ridge(), cv=2),
        TransformedTargetRegressor(make_regressor(), transformer=StandardScaler()),
    ],
    ids=["grid", "grid-time-series", "stacking", "target-transformer"],
)
def test_meta_regressors_accept_3d_windows_case_d4(meta):
    predictions = meta.fit(X3, YR).predict(X3)
    assert predictions.shape == (64,)
    assert np.isfinite(predictions).all()


@pytest.mark.parametrize(
    "meta",
    [
        GridSearchCV(make_classifier(), {"residual_beta": [0.0, 1.0]}, cv=3, error_score="raise"),
        CalibratedClassifierCV(make_classifier(), cv=2),
        VotingClassifier([("a", make_classifier()), ("b", make_classifier(d_ff=4))], voting="soft"),
    ],
    ids=["grid", "calibrated", "voting"],
)
def test_meta_classifiers_accept_3d_windows_case_d4(meta):
    probabilities = meta.fit(X3, YC).predict_proba(X3)
    assert probabilities.shape == (64, 2)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1.0)


def test_cross_validated_probabilities_of_3d_windows_case_d4():
    probabilities = cross_val_predict(make_classifier(), X3, YC, method="predict_proba", cv=3)
    assert probabilities.shape == (64, 2)


@pytest.mark.parametrize(
    ("meta", "y"),
    [
        (BaggingRegressor(make_regressor(token_dim=3), n_estimators=2, random_state=0), YR),
        (BaggingClassifier(make_classifier(token_dim=3), n_estimators=2, random_state=0), YC),
    ],
    ids=["regressor", "classifier"],
)
def test_bagging_takes_the_2d_form_of_windows_case_d4_and_d16(meta, y):
    """Bagging refuses 3-D arrays, so the 2-D form must serve it."""
    assert meta.fit(X2, y).predict(X2).shape == (64,)


def test_permutation_importance_takes_the_2d_form_of_windows_case_d4():
    estimator = make_regressor(token_dim=3, max_iter=5).fit(X2, YR)
    result = permutation_importance(estimator, X2, YR, n_repeats=1, random_state=0)
    assert result.importances_mean.shape == (72,)


@both_on_series
def test_list_of_unequal_series_is_fitted_and_searched_case_d5(make, y):
    search = GridSearchCV(make(), {"residual_beta": [0.0, 1.0]}, cv=3, error_score="raise")
    search.fit(SERIES, y)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    assert search.predict(SERIES).shape == (12,)
    assert cross_val_predict(make(), SERIES, y, cv=3).shape == (12,)
