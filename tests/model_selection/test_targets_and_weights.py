"""Targets, weights and callbacks through scikit-learn's meta-estimators."""

import pickle

import numpy as np
import pytest
import sklearn
from sklearn.model_selection import GridSearchCV, KFold, cross_val_predict, cross_validate
from sklearn.multioutput import MultiOutputClassifier, MultiOutputRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import get_tags

from tests.builders import X2, X2D, YC, YR, both, make_classifier, make_regressor
from tests.tools import outputs


def test_multi_output_is_declared_and_wrapped_case_d17():
    assert get_tags(make_regressor()).target_tags.multi_output
    assert not get_tags(make_classifier()).target_tags.multi_output
    Y = np.c_[YR, -YR]
    assert MultiOutputRegressor(make_regressor()).fit(X2, Y).predict(X2).shape == (64, 2)
    labels = np.c_[YC, YC[::-1]]
    assert MultiOutputClassifier(make_classifier()).fit(X2, labels).predict(X2).shape == (64, 2)


def test_class_absent_from_a_fold_keeps_its_column_case_d19():
    y = np.where(YR > 0, 1, 2)
    y[:2] = 3  # both members fall into the first test fold
    with pytest.warns(RuntimeWarning, match="Number of classes in training fold"):
        probabilities = cross_val_predict(
            make_classifier(), X2, y, method="predict_proba", cv=KFold(5)
        )
    assert probabilities.shape == (64, 3)
    assert (probabilities[:13, 2] == 0).all()


def _step(make):
    return type(make()).__name__.lower()


@both
def test_weights_are_routed_through_pipeline_and_grid_search_case_d20(make, y):
    weights = np.random.default_rng(0).integers(0, 3, size=64).astype(float)
    with sklearn.config_context(enable_metadata_routing=True):
        estimator = make().set_fit_request(sample_weight=True).set_score_request(sample_weight=True)
        scaler = StandardScaler().set_fit_request(sample_weight=False)
        search = GridSearchCV(make_pipeline(scaler, estimator), {f"{_step(make)}__d_ff": [4]}, cv=2)
        search.fit(X2D, y, sample_weight=weights)
    scaled = StandardScaler().fit_transform(X2D)
    direct = make(d_ff=4).fit(scaled, y, sample_weight=weights)
    np.testing.assert_allclose(outputs(search, X2D), outputs(direct, scaled), rtol=1e-6, atol=1e-9)


@both
def test_training_curves_survive_cross_validation_case_d26(make, y):
    result = cross_validate(make(), X2, y, cv=3, return_estimator=True)
    for fitted in result["estimator"]:
        assert type(fitted.loss_curve_) is list
        assert all(type(loss) is float for loss in fitted.loss_curve_)
        assert len(fitted.loss_curve_) == fitted.n_iter_ == 20
        loaded = pickle.loads(pickle.dumps(fitted))
        assert loaded.loss_curve_ == fitted.loss_curve_
        assert loaded.convergence_diagnostics_.sigma_min == pytest.approx(
            fitted.convergence_diagnostics_.sigma_min, nan_ok=True
        )
