"""The estimators that choose residual_beta by cross-validation."""

import inspect
import pickle
import warnings

import numpy as np
import pandas as pd
import pytest
import sklearn
import skops.io
import torch
from sklearn.base import ClassifierMixin, RegressorMixin, clone, is_classifier, is_regressor
from sklearn.datasets import load_diabetes, load_iris
from sklearn.exceptions import ConvergenceWarning, DataConversionWarning, NotFittedError
from sklearn.metrics import get_scorer
from sklearn.model_selection import GridSearchCV, GroupKFold, KFold, StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import estimator_checks_generator

from sklearn_restf import (
    THEOREM_SETTINGS,
    ResidualTransformerClassifier,
    ResidualTransformerClassifierCV,
    ResidualTransformerRegressor,
    ResidualTransformerRegressorCV,
    diagnose,
)
from sklearn_restf._data.arrays import read_X
from sklearn_restf._estimator import base
from sklearn_restf.exceptions import RankCollapseWarning
from tests.builders import FEW_STEPS, ROW_LABELS, ROWS, SERIES, SERIES_YR, X3D, YC, YR

BETAS = [0.0, 0.5, 1.0]
BRIEF = {"max_iter": 20, "tol": None, "random_state": 0, "d_ff": 8, "diagnostics_samples": 8}
SWEEP = {"residual_betas": BETAS, "cv": 3, **BRIEF}
PAIRS = [
    (ResidualTransformerRegressor, ResidualTransformerRegressorCV),
    (ResidualTransformerClassifier, ResidualTransformerClassifierCV),
]
IRIS, SPECIES = load_iris(return_X_y=True)
DIABETES, PROGRESSION = load_diabetes(return_X_y=True)


def regressor(**parameters):
    return ResidualTransformerRegressorCV(**{**SWEEP, **parameters})


def classifier(**parameters):
    return ResidualTransformerClassifierCV(**{**SWEEP, **parameters})


@pytest.mark.parametrize("cv_class", [cv for _, cv in PAIRS])
@pytest.mark.parametrize("parameters", [{}, {"n_jobs": None, "refit": True}])
def test_estimator_checks(cv_class, parameters):
    estimator = cv_class([0.0, 1.0], cv=3, max_iter=10, tol=None, **parameters)
    if parameters:
        estimator.set_params(n_tokens=1, diagnostics=False, residual_betas=[0.5])
    for checked, check in estimator_checks_generator(estimator):
        if check.func.__name__ == "check_array_api_input":  # needs SCIPY_ARRAY_API
            continue
        check(checked)


@pytest.mark.parametrize(("plain", "swept"), PAIRS)
def test_parameters_are_those_of_the_plain_estimator(plain, swept):
    plain_parameters = dict(inspect.signature(plain).parameters)
    own = dict(inspect.signature(swept).parameters)
    for name in ("residual_beta", "warm_start"):
        assert name not in own
        del plain_parameters[name]
    for name in ("residual_betas", "cv", "scoring", "refit", "n_jobs"):
        del own[name]
    assert list(own) == list(plain_parameters)
    assert {n: p.default for n, p in own.items()} == {
        n: p.default for n, p in plain_parameters.items()
    }
    for name in inspect.signature(swept).parameters:
        assert name in swept.__doc__, name


FORMS = {
    "table": (DIABETES[:120], PROGRESSION[:120]),
    "windows": (X3D, YR),
    "ragged": (SERIES, SERIES_YR),
}


@pytest.mark.parametrize("n_jobs", [None, 2])
@pytest.mark.parametrize("form", FORMS)
def test_regression_scores_are_those_of_grid_search(form, n_jobs):
    X, y = FORMS[form]
    model = regressor(n_jobs=n_jobs).fit(X, y)
    grid = GridSearchCV(ResidualTransformerRegressor(**BRIEF), {"residual_beta": BETAS}, cv=3)
    compare_with_grid(model, grid.fit(X, y), X)


def test_classification_scores_are_those_of_grid_search():
    model = classifier(scoring="neg_log_loss", max_iter=60).fit(IRIS, SPECIES)
    plain = ResidualTransformerClassifier(**BRIEF | {"max_iter": 60})
    grid = GridSearchCV(plain, {"residual_beta": BETAS}, cv=3, scoring="neg_log_loss")
    compare_with_grid(model, grid.fit(IRIS, SPECIES), IRIS)


def compare_with_grid(model, grid, X):
    ours, theirs = model.cv_results_, grid.cv_results_
    assert list(ours) == list(theirs)
    for name, value in theirs.items():
        assert type(ours[name]) is type(value), name
        if name.endswith("time"):
            continue
        if name == "params":
            assert ours[name] == value
            continue
        assert ours[name].dtype == value.dtype, name
        np.testing.assert_allclose(ours[name], value, atol=1e-4)
    assert model.residual_beta_ == grid.best_params_["residual_beta"]
    assert model.best_index_ == grid.best_index_
    assert model.best_score_ == pytest.approx(grid.best_score_, abs=1e-4)
    assert model.n_splits_ == grid.n_splits_
    np.testing.assert_allclose(model.predict(X), grid.predict(X), rtol=1e-6)


@pytest.mark.parametrize("scoring", [None, "neg_mean_absolute_error"])
def test_sample_weights_count_in_training_and_in_scoring(scoring):
    weight = np.random.default_rng(0).integers(0, 4, size=len(YR))
    model = regressor(scoring=scoring, refit=False).fit(X3D, YR, sample_weight=weight)
    with sklearn.config_context(enable_metadata_routing=True):
        plain = ResidualTransformerRegressor(**BRIEF)
        plain.set_fit_request(sample_weight=True).set_score_request(sample_weight=True)
        scorer = scoring and get_scorer(scoring).set_score_request(sample_weight=True)
        grid = GridSearchCV(plain, {"residual_beta": BETAS}, cv=3, scoring=scorer, refit=False)
        grid.fit(X3D, YR, sample_weight=weight)
    for name in ("mean_test_score", "std_test_score", "split2_test_score"):
        np.testing.assert_allclose(model.cv_results_[name], grid.cv_results_[name], atol=1e-4)


def test_a_scorer_without_weights_is_used_without():
    def largest_error(estimator, X, y):
        return -np.abs(estimator.predict(X) - y).max()

    weight = np.arange(1, len(YR) + 1)
    for scoring in (largest_error, "neg_max_error"):
        model = regressor(scoring=scoring, refit=False).fit(X3D, YR, sample_weight=weight)
        assert model.best_score_ < 0


def test_errors_in_a_scorer_are_not_hidden():
    def broken(estimator, X, y, sample_weight=None):
        raise TypeError("something else")

    with pytest.raises(TypeError, match="something else"):
        regressor(scoring=broken).fit(X3D, YR, sample_weight=np.ones(len(YR)))
    with pytest.raises(ValueError, match="scoring must return a number"):
        regressor(scoring=lambda estimator, X, y: [1.0, 2.0]).fit(X3D, YR)


def test_scorers_get_the_users_form():
    X = pd.DataFrame(DIABETES[:90], columns=[f"x{i}" for i in range(10)])
    y = pd.Series(PROGRESSION[:90])
    seen = []

    def scoring(estimator, X, y):
        seen.append(X)
        return estimator.score(X, y)

    model = regressor(scoring=scoring).fit(X, y)
    assert all(isinstance(part, pd.DataFrame) and len(part) == 30 for part in seen)
    assert model.feature_names_in_.tolist() == X.columns.tolist()
    model.predict(X)
    with pytest.warns(UserWarning, match="feature names"):
        model.predict(X.to_numpy())


@pytest.mark.parametrize(
    "X",
    [IRIS.tolist(), torch.from_numpy(IRIS), pd.DataFrame(IRIS), np.asfortranarray(IRIS)],
    ids=["lists", "tensor", "frame", "fortran"],
)
def test_forms_of_X_agree(X):
    expected = classifier().fit(IRIS, SPECIES).cv_results_["mean_test_score"]
    actual = classifier().fit(X, SPECIES.tolist()).cv_results_["mean_test_score"]
    np.testing.assert_allclose(actual, expected, atol=1e-12)


def test_polars_frames_are_split():
    polars = pytest.importorskip("polars", reason="polars is not installed")
    frame = polars.DataFrame(IRIS, schema=["a", "b", "c", "d"])
    model = classifier().fit(frame, SPECIES)
    assert model.feature_names_in_.tolist() == ["a", "b", "c", "d"]


def test_groups_reach_the_splitter_with_and_without_routing():
    groups = np.arange(len(YR)) % 4
    model = regressor(cv=GroupKFold(4)).fit(X3D, YR, groups=groups)
    assert model.n_splits_ == 4
    with pytest.raises(ValueError, match="groups"):
        regressor(cv=GroupKFold(4)).fit(X3D, YR)
    with sklearn.config_context(enable_metadata_routing=True):
        inner = regressor(cv=GroupKFold(4)).set_fit_request(groups=True, sample_weight=True)
        X2 = X3D.reshape(len(X3D), -1)
        pipeline = make_pipeline(StandardScaler().set_fit_request(sample_weight=False), inner)
        pipeline.fit(X2, YR, groups=groups, sample_weight=np.ones(len(YR)))
    assert pipeline[-1].n_splits_ == 4


def test_folds_given_as_masks_or_positions():
    train = np.arange(len(YR)) < 40
    masks, positions = [(train, ~train)], [(np.flatnonzero(train), np.flatnonzero(~train))]
    a, b = (regressor(cv=cv).fit(X3D, YR) for cv in (masks, positions))
    assert a.n_splits_ == 1
    assert a.best_score_ == b.best_score_


@pytest.mark.parametrize(
    ("cv", "weight", "words"),
    [
        ([], None, "yields no split"),
        ([(np.arange(10), np.array([], dtype=int))], None, "test part of split 0"),
        ([(np.arange(10), np.arange(10, 20))], np.r_[np.zeros(10), np.ones(54)], "training part"),
    ],
)
def test_useless_folds_are_refused(cv, weight, words):
    with pytest.raises(ValueError, match=words):
        regressor(cv=cv).fit(X3D, YR, sample_weight=weight)


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"residual_betas": []}, "residual_betas"),
        ({"residual_betas": [-1.0]}, "residual_betas"),
        ({"residual_betas": [np.nan]}, "residual_betas"),
        ({"residual_betas": 0.5}, "residual_betas"),
        ({"residual_betas": ["a"]}, "residual_betas"),
        ({"scoring": ["r2", "max_error"]}, "scoring"),
        ({"scoring": "no such score"}, "no such score"),
        ({"refit": "r2"}, "refit"),
        ({"n_jobs": 0}, "n_jobs"),
        ({"cv": "x"}, "cv"),
        ({"max_iter": 0}, "max_iter"),
    ],
)
def test_bad_parameters_are_named(parameters, words):
    with pytest.raises(ValueError, match=words):
        regressor(**parameters).fit(X3D, YR)


def test_numpy_values_are_good_parameters():
    model = regressor(residual_betas=np.linspace(0, 1, 3), n_jobs=np.int64(1)).fit(X3D, YR)
    assert isinstance(model.residual_beta_, float)
    assert clone(model).get_params()["residual_betas"].tolist() == [0.0, 0.5, 1.0]


def test_without_refit_there_is_a_choice_and_no_model():
    model = regressor(refit=False).fit(X3D, YR)
    assert model.residual_beta_ in BETAS
    assert not hasattr(model, "convergence_diagnostics_")
    with pytest.raises(NotFittedError, match="refit=True"):
        model.predict(X3D)


def test_refit_can_choose():
    def smallest_within_one_standard_error(results):
        best = results["mean_test_score"].argmax()
        limit = results["mean_test_score"][best] - results["std_test_score"][best]
        return np.flatnonzero(results["mean_test_score"] >= limit)[0]

    model = regressor(refit=smallest_within_one_standard_error).fit(X3D, YR)
    assert model.best_score_ == model.cv_results_["mean_test_score"][model.best_index_]
    assert model.residual_beta_ == BETAS[model.best_index_]
    with pytest.raises(ValueError, match=r"index in \[0, 2\]"):
        regressor(refit=lambda results: 7).fit(X3D, YR)


def test_the_model_is_the_plain_one_with_the_chosen_beta():
    model = regressor().fit(X3D, YR)
    plain = ResidualTransformerRegressor(model.residual_beta_, **BRIEF).fit(X3D, YR)
    np.testing.assert_array_equal(model.predict(X3D), plain.predict(X3D))
    assert model.loss_curve_ == plain.loss_curve_
    assert model.module_.config == plain.module_.config
    assert diagnose(model, X3D, YR).residual_beta == model.residual_beta_
    with pytest.raises(NotFittedError, match="no residual_beta before fit"):
        diagnose(regressor(), X3D, YR)


@pytest.mark.parametrize(("plain", "swept"), PAIRS)
def test_is_a_sibling_of_the_plain_estimator(plain, swept):
    """As RidgeCV is of Ridge: of the same kind, without parameters taken away."""
    assert not issubclass(swept, plain)
    for mixin in (RegressorMixin, ClassifierMixin):
        assert issubclass(swept, mixin) == issubclass(plain, mixin)
    for check in (is_regressor, is_classifier):
        assert check(swept()) == check(plain())
    for name in ("residual_beta", "warm_start"):
        assert not hasattr(swept(), name)


def test_the_search_and_the_model_read_the_samples_once(monkeypatch):
    reads = []

    def counted(estimator, X, *, reset, **options):
        reads.append(reset)
        return read_X(estimator, X, reset=reset, **options)

    monkeypatch.setattr(base, "read_X", counted)
    regressor().fit(X3D, YR)
    assert reads.count(True) == 1


def test_diagnostics_of_every_model_and_of_the_final_one():
    model = regressor().fit(X3D, YR)
    assert [len(row) for row in model.cv_diagnostics_] == [3, 3, 3]
    for beta, row in zip(BETAS, model.cv_diagnostics_, strict=True):
        assert {diagnostics.residual_beta for diagnostics in row} == {beta}
        assert all(np.isfinite(diagnostics.sigma_min) for diagnostics in row)
    assert model.convergence_diagnostics_.residual_beta == model.residual_beta_


def test_warnings_come_once_and_collapse_is_no_news():
    y = np.sin(3 * YR)
    model = regressor(tol=1e-4, max_iter=8, n_iter_no_change=3, refit=False, cv=4)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(X3D, y)
    assert not [w for w in caught if issubclass(w.category, RankCollapseWarning)]
    heard = [w for w in caught if issubclass(w.category, ConvergenceWarning)]
    assert len(heard) == 1
    assert "of 12 cross-validation fits" in str(heard[0].message)
    with pytest.warns(DataConversionWarning) as conversions:
        regressor().fit(X3D, YR[:, None])
    assert len(conversions) == 1


def test_per_token_targets_and_the_theorem():
    model = ResidualTransformerRegressorCV(
        BETAS, cv=3, **{**THEOREM_SETTINGS, "max_iter": 10, "pooling": "none", "random_state": 0}
    ).fit(X3D, X3D[:, :, 0])
    assert model.predict(X3D).shape == X3D.shape[:2]


def test_early_stopping_inside_every_fold():
    model = classifier(early_stopping=True, max_iter=50).fit(IRIS, SPECIES)
    assert len(model.validation_curve_) == model.n_iter_


@pytest.mark.parametrize("seed", [None, np.random.RandomState(0)])
def test_seeds_of_other_kinds(seed):
    before = pickle.dumps(seed)
    model = regressor(random_state=seed, refit=False).fit(X3D, YR)
    assert np.isfinite(model.best_score_)
    assert seed is None or pickle.dumps(seed) == before


@pytest.mark.parametrize("make", [regressor, classifier])
def test_kept_on_disk(make, tmp_path):
    model = make().fit(X3D, YR if make is regressor else YC)
    expected = model.predict(X3D)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).predict(X3D), expected)
    path = tmp_path / "model.skops"
    skops.io.dump(model, path)
    loaded = skops.io.load(path, trusted=skops.io.get_untrusted_types(file=path))
    np.testing.assert_array_equal(loaded.predict(X3D), expected)
    assert loaded.residual_beta_ == model.residual_beta_


def test_a_failed_fit_changes_nothing():
    model = regressor().fit(X3D, YR)
    before = dict(vars(model))
    for X, y in ((np.full_like(X3D, np.nan), YR), (X3D[:2], YR[:2])):
        with pytest.raises(ValueError, match=r"NaN|n_splits"):
            model.fit(X, y)
        assert vars(model) == before


def test_without_refit_nothing_is_left_of_the_model_before():
    model = regressor().fit(X3D, YR).set_params(refit=False).fit(X3D, YR)
    assert set(vars(model)) == set(vars(regressor(refit=False).fit(X3D, YR)))
    with pytest.raises(NotFittedError, match="refit=False"):
        model.predict(X3D)


def test_inputs_are_left_alone(random_state_unchanged):
    X, y, folds = X3D.copy(), YR.copy(), KFold(3)
    regressor(cv=folds).fit(X, y)
    np.testing.assert_array_equal(X, X3D)
    np.testing.assert_array_equal(y, YR)


def test_stratified_by_default():
    splits = []

    class Recorder(StratifiedKFold):
        def split(self, X, y=None, groups=None):
            splits.append(y)
            return super().split(X, y, groups)

    classifier(cv=Recorder(3)).fit(IRIS, SPECIES)
    np.testing.assert_array_equal(splits[0], SPECIES)
    assert classifier(cv=None).fit(IRIS, SPECIES).n_splits_ == 5


def test_a_search_with_huge_targets_says_nothing():
    y = np.array([1e300, -1e300, 2.0, 1e299, 0.0, 1e300])
    search = ResidualTransformerRegressorCV([0.0, 1.0], cv=2, **FEW_STEPS).fit(ROWS, y)
    assert np.isfinite(search.predict(ROWS)).all()


def test_a_search_counts_models_not_messages():
    def talkative(estimator, X, y):
        warnings.warn("one", UserWarning, stacklevel=1)
        warnings.warn("two", UserWarning, stacklevel=1)
        return 0.0

    search = ResidualTransformerRegressorCV([0.0, 1.0], cv=2, scoring=talkative, **FEW_STEPS)
    with pytest.warns(UserWarning, match=r"^4 of 4 cross-validation .* the first one says: one$"):
        search.fit(ROWS, ROW_LABELS)
