"""scikit-learn's meta-estimators, searches, displays and savers around the estimators."""

import io
import json
import re
import warnings

import joblib
import numpy as np
import pandas as pd
import pytest
import sklearn
import torch
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import ColumnTransformer, TransformedTargetRegressor
from sklearn.ensemble import (
    AdaBoostRegressor,
    BaggingClassifier,
    StackingRegressor,
    VotingClassifier,
    VotingRegressor,
)
from sklearn.experimental import enable_halving_search_cv  # noqa: F401
from sklearn.feature_selection import SequentialFeatureSelector
from sklearn.inspection import partial_dependence, permutation_importance
from sklearn.linear_model import RidgeCV
from sklearn.model_selection import (
    GridSearchCV,
    HalvingGridSearchCV,
    KFold,
    RandomizedSearchCV,
    TimeSeriesSplit,
    cross_val_predict,
    cross_validate,
    learning_curve,
    validation_curve,
)
from sklearn.multioutput import MultiOutputClassifier, RegressorChain
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler
from sklearn.utils import estimator_html_repr

from sklearn_restf import ResidualTransformerClassifierCV, ResidualTransformerRegressorCV
from tests.builders import X2D, X3D, YC, YR, both, make_classifier, make_regressor
from tests.tools import outputs

pytestmark = pytest.mark.sklearn_contract
X = X2D[:, -12:]
BETAS = {"residual_beta": [0.0, 0.5, 1.0]}
Y_TWO = np.c_[YC, np.where(X[:, 0] > 0, "up", "down")]


def brief(make, **parameters):
    return make(**{"max_iter": 10, "diagnostics": False, **parameters})


# --- pipelines and searches ------------------------------------------------------------------


@both
def test_pipeline_and_grid_search(make, y):
    pipeline = make_pipeline(StandardScaler(), brief(make))
    name = pipeline.steps[-1][0]
    search = GridSearchCV(pipeline, {f"{name}__residual_beta": [0.0, 1.0]}, cv=3)
    search.set_params(error_score="raise").fit(X, y)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    assert len(search.predict(X)) == 64
    best = search.best_params_[f"{name}__residual_beta"]
    assert search.best_estimator_[-1].residual_beta == best
    own = brief(make, residual_beta=best).fit(StandardScaler().fit_transform(X), y)
    np.testing.assert_allclose(outputs(search.best_estimator_[-1], X), outputs(own, X), rtol=1e-9)


@both
def test_sweep_in_threads_leaves_warnings_as_they_were(make, y):
    """Filters, and who shows them; each model's warnings are counted once."""
    regression = make is make_regressor
    sweep = ResidualTransformerRegressorCV if regression else ResidualTransformerClassifierCV
    model = sweep(BETAS["residual_beta"], cv=4, n_jobs=4, max_iter=3, chunk_size=40, random_state=0)
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        before = list(warnings.filters), warnings.showwarning
        clone(model).set_params(n_jobs=1).fit(X, y)
        with joblib.parallel_backend("threading"):
            for _ in range(3):
                model.fit(X, y)
        assert (warnings.filters, warnings.showwarning) == before
        warnings.warn("seen as ever", UserWarning, stacklevel=1)
    *told, last = [str(warning.message) for warning in shown]
    assert re.match(r"\d+ of 12 cross-validation fits", told[0])
    assert told == told[: len(told) // 4] * 4
    assert last == "seen as ever"


@both
@pytest.mark.parametrize("resource", ["max_iter", "n_samples"])
def test_successive_halving(make, y, resource):
    options = {"max_resources": 12} if resource == "max_iter" else {"min_resources": 20}
    search = HalvingGridSearchCV(
        brief(make), BETAS, resource=resource, factor=3, cv=2, random_state=0, **options
    )
    search.set_params(error_score="raise").fit(X, y)
    assert search.n_iterations_ >= 2
    if resource == "max_iter":
        assert search.best_estimator_.n_iter_ == 12


def test_randomised_search_over_every_kind_of_parameter():
    distributions = {
        "activation": ["relu", "tanh"],
        "n_layers": [1, 2],
        "learning_rate": ["adaptive", 0.01],
        "alpha": np.logspace(-4, 0, 5),
        "max_iter": np.arange(5, 9),
        "layer_norm": np.array([False, True]),
    }
    search = RandomizedSearchCV(
        brief(make_regressor), distributions, n_iter=6, cv=2, random_state=0, error_score="raise"
    )
    assert np.isfinite(search.fit(X, YR).cv_results_["mean_test_score"]).all()


@both
def test_cross_validate_returns_usable_estimators(make, y):
    result = cross_validate(
        brief(make), X, y, cv=3, return_estimator=True, return_train_score=True, error_score="raise"
    )
    for estimator, score in zip(result["estimator"], result["train_score"], strict=True):
        assert estimator.n_iter_ == 10
        assert len(estimator.loss_curve_) == 10
        assert estimator.module_ is not None
        assert np.isfinite(score)


@both
def test_splitters_for_time_series_and_windows(make, y):
    cv = TimeSeriesSplit(3)
    result = cross_validate(
        brief(make, early_stopping="last"), X3D, y, cv=cv, return_estimator=True
    )
    assert np.isfinite(result["test_score"]).all()
    assert all(estimator.validation_curve_ for estimator in result["estimator"])


@both
def test_cross_val_predict(make, y):
    method = "predict_proba" if make is make_classifier else "predict"
    prediction = cross_val_predict(brief(make), X, y, cv=KFold(4), method=method)
    train = np.arange(64) >= 16
    expected = outputs(brief(make).fit(X[train], y[train]), X[:16])
    np.testing.assert_allclose(prediction[:16], expected, rtol=1e-9)


@both
def test_learning_and_validation_curves(make, y):
    sizes, train, test = learning_curve(
        brief(make), X, y, cv=2, train_sizes=[0.5, 1.0], error_score="raise"
    )
    assert list(sizes) == [16, 32]
    assert np.isfinite([train, test]).all()
    scores = validation_curve(
        brief(make), X, y, param_name="max_iter", param_range=[1, 30], cv=2, error_score="raise"
    )
    assert (scores[0][1] > scores[0][0]).all()  # longer training fits the training data better


# --- meta-estimators -------------------------------------------------------------------------


def test_transformed_target_regressor_case_d16():
    y = np.exp(YR / 4)
    meta = TransformedTargetRegressor(brief(make_regressor), func=np.log, inverse_func=np.exp)
    own = brief(make_regressor).fit(X, np.log(y))
    np.testing.assert_allclose(meta.fit(X, y).predict(X), np.exp(own.predict(X)), rtol=1e-7)


def test_stacking_and_voting_regressors():
    models = [("a", brief(make_regressor)), ("b", brief(make_regressor, residual_beta=0.0))]
    stacking = StackingRegressor(models, final_estimator=RidgeCV(), cv=3)
    for meta in (stacking, VotingRegressor(models)):
        meta.fit(X, YR)
        assert meta.predict(X).shape == (64,)
        assert meta.score(X, YR) > 0.2
    np.testing.assert_allclose(
        meta.predict(X), np.mean([m.predict(X) for m in meta.estimators_], axis=0)
    )


def test_soft_voting_and_calibration():
    voting = VotingClassifier(
        [("a", brief(make_classifier)), ("b", GaussianNB())], voting="soft"
    ).fit(X, YC)
    assert voting.score(X, YC) > 0.7
    for method in ("sigmoid", "isotonic"):
        calibrated = CalibratedClassifierCV(brief(make_classifier), method=method, cv=3)
        weight = 1.0 + np.arange(64) % 2
        p = calibrated.fit(X, YC, sample_weight=weight).predict_proba(X)
        np.testing.assert_allclose(p.sum(axis=1), 1.0)
        assert calibrated.score(X, YC) > 0.7


def test_several_targets_through_meta_estimators():
    several = MultiOutputClassifier(brief(make_classifier)).fit(X, Y_TWO)
    assert several.predict(X).shape == (64, 2)
    assert several.score(X, Y_TWO) > 0.4
    own = brief(make_classifier).fit(X, Y_TWO[:, 1])
    np.testing.assert_array_equal(several.predict(X)[:, 1], own.predict(X))
    chain = RegressorChain(brief(make_regressor)).fit(X, np.c_[YR, 2 * YR])
    assert chain.predict(X).shape == (64, 2)


def test_boosting_and_bagging():
    boosted = AdaBoostRegressor(brief(make_regressor), n_estimators=3, random_state=0).fit(X, YR)
    assert boosted.score(X, YR) > 0.2
    bagged = BaggingClassifier(
        brief(make_classifier, random_state=None),
        n_estimators=3,
        max_features=0.5,
        random_state=0,
        oob_score=False,
    )
    one, two = (clone(bagged).fit(X, YC).predict_proba(X) for _ in range(2))
    np.testing.assert_array_equal(one, two)  # the seed of the ensemble seeds its members


def test_inspection_tools():
    estimator = brief(make_regressor, max_iter=100).fit(X, YR)
    importance = permutation_importance(estimator, X, YR, n_repeats=2, random_state=0)
    assert importance.importances_mean.argmax() == 9  # the channel the target is made of
    dependence = partial_dependence(estimator, X, [9], kind="average", grid_resolution=5)
    assert (np.diff(dependence["average"][0]) > 0).all()
    selector = SequentialFeatureSelector(
        brief(make_regressor, max_iter=30), n_features_to_select=1, cv=2
    )
    assert selector.fit(X[:, 7:], YR).get_support().tolist().index(True) == 2


def test_columns_of_different_kinds():
    frame = pd.DataFrame(X, columns=[f"x{i}" for i in range(12)]).assign(kind=YC)
    encoder = ColumnTransformer([("kind", OneHotEncoder(), ["kind"])], remainder="passthrough")
    pipeline = make_pipeline(encoder, brief(make_regressor)).fit(frame, YR)
    assert pipeline.predict(frame).shape == (64,)
    windows = make_pipeline(
        StandardScaler(), FunctionTransformer(lambda X: X.reshape(64, -1, 3)), brief(make_regressor)
    )
    assert windows.fit(X, YR).score(X, YR) > 0.0


# --- metadata routing ------------------------------------------------------------------------


@both
def test_weights_are_routed_to_fit_and_to_score(make, y):
    weight = np.arange(64) % 3 * 1.0
    with sklearn.config_context(enable_metadata_routing=True):
        estimator = brief(make).set_fit_request(sample_weight=True)
        estimator.set_score_request(sample_weight=True)
        result = cross_validate(
            estimator,
            X,
            y,
            cv=KFold(2),
            params={"sample_weight": weight},
            return_estimator=True,
            error_score="raise",
        )
        train = np.arange(64) >= 32
        own = brief(make).fit(X[train], y[train], sample_weight=weight[train])
        expected = own.score(X[~train], y[~train], sample_weight=weight[~train])
        assert result["test_score"][0] == pytest.approx(expected, rel=1e-9)
        with pytest.raises(ValueError, match="sample_weight"):
            cross_validate(
                brief(make), X, y, cv=2, params={"sample_weight": weight}, error_score="raise"
            )


def test_requests_survive_clone_and_are_listed():
    with sklearn.config_context(enable_metadata_routing=True):
        estimator = make_regressor().set_fit_request(X_val=True, y_val=True, sample_weight=False)
        requests = clone(estimator).get_metadata_routing().fit.requests
    assert requests == {
        "X_val": True,
        "y_val": True,
        "sample_weight": False,
        "sample_weight_val": None,
    }


# --- display and configuration ---------------------------------------------------------------


@both
def test_repr_shows_what_was_changed(make, y):
    cls = type(make())
    assert repr(cls()) == f"{cls.__name__}()"
    assert repr(cls(residual_beta=0.5)) == f"{cls.__name__}(residual_beta=0.5)"
    with sklearn.config_context(print_changed_only=False):
        assert "learning_rate='adaptive'" in repr(cls())


@both
def test_html_display(make, y):
    for estimator in (make(), make().fit(X, y), make_pipeline(StandardScaler(), make()).fit(X, y)):
        html = estimator_html_repr(estimator)
        assert type(make()).__name__ in html
        assert len(html) < 500_000
    with sklearn.config_context(display="text"):
        assert "text/html" not in make()._repr_mimebundle_()


@both
@pytest.mark.parametrize("output", ["default", "pandas"])
def test_transform_output_of_earlier_steps(make, y, output):
    with sklearn.config_context(transform_output=output):
        pipeline = make_pipeline(StandardScaler(), brief(make)).fit(X, y)
        prediction = pipeline.predict(pd.DataFrame(X)[[*range(12)]].to_numpy())
    assert isinstance(prediction, np.ndarray)
    assert hasattr(pipeline[-1], "feature_names_in_") == (output == "pandas")


def test_parameters_and_curves_are_json():
    estimator = make_regressor().fit(X, YR)
    saved = json.loads(
        json.dumps({"parameters": estimator.get_params(), "curve": estimator.loss_curve_})
    )
    again = type(estimator)(**saved["parameters"]).fit(X, YR)
    assert again.loss_curve_ == saved["curve"]


# --- saving ----------------------------------------------------------------------------------


@both
@pytest.mark.parametrize("compress", [0, 3])
def test_fitted_search_is_saved_whole(make, y, compress):
    search = GridSearchCV(make_pipeline(StandardScaler(), brief(make)), {}, cv=2).fit(X, y)
    buffer = io.BytesIO()
    joblib.dump(search, buffer, compress=compress)
    buffer.seek(0)
    loaded = joblib.load(buffer)
    np.testing.assert_array_equal(loaded.predict(X), search.predict(X))
    assert loaded.best_estimator_[-1].loss_curve_ == search.best_estimator_[-1].loss_curve_


def test_memory_mapped_model_predicts_and_is_refitted(tmp_path):
    """As joblib hands large models to its workers: arrays that cannot be written to."""
    estimator = brief(make_regressor, warm_start=True).fit(X, YR)
    joblib.dump(estimator, tmp_path / "model.joblib")
    loaded = joblib.load(tmp_path / "model.joblib", mmap_mode="r")
    np.testing.assert_array_equal(loaded.predict(X), estimator.predict(X))
    assert loaded.fit(X, YR).loss_curve_ == estimator.fit(X, YR).loss_curve_


@both
def test_skops_saves_a_pipeline(make, y):
    skops_io = pytest.importorskip("skops.io", reason="skops is not installed")
    pipeline = make_pipeline(StandardScaler(), brief(make, warm_start=True)).fit(X, y)
    blob = skops_io.dumps(pipeline)
    untrusted = skops_io.get_untrusted_types(data=blob)
    assert {name.split(".")[0] for name in untrusted} == {"sklearn_restf"}
    loaded = skops_io.loads(blob, trusted=untrusted)
    np.testing.assert_array_equal(loaded.predict(X), pipeline.predict(X))
    assert loaded.fit(X, y)[-1].loss_curve_ == pipeline.fit(X, y)[-1].loss_curve_


@pytest.mark.parametrize("backend", [pytest.param("loky", marks=pytest.mark.slow), "threading"])
@both
def test_grid_search_scores_do_not_depend_on_n_jobs_case_d13(make, y, backend):
    grid = {"residual_beta": [0.0, 0.25, 0.5, 1.0]}
    search = GridSearchCV(make(), grid, cv=3, error_score="raise")
    alone = clone(search).fit(X2D, y)
    threads = torch.get_num_threads()
    with joblib.parallel_config(backend):
        shared = search.set_params(n_jobs=2).fit(X2D, y)
    assert torch.get_num_threads() == threads
    tolerance = 0 if backend == "threading" else 1e-6
    for key in ("mean_test_score", *(f"split{i}_test_score" for i in range(3))):
        np.testing.assert_allclose(shared.cv_results_[key], alone.cv_results_[key], rtol=tolerance)
