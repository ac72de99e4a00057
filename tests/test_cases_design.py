"""Cases that users of neighbouring projects reported, D1 to D14."""

from __future__ import annotations

import ast
import copy
import gc
import inspect
import io
import json
import pickle
import weakref

import joblib
import numpy as np
import pytest
import sklearn
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin, clone, is_classifier
from sklearn.base import is_regressor as sklearn_is_regressor
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import TransformedTargetRegressor
from sklearn.ensemble import (
    BaggingClassifier,
    BaggingRegressor,
    StackingRegressor,
    VotingClassifier,
)
from sklearn.exceptions import NotFittedError
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
from sklearn.utils import get_tags
from sklearn.utils.validation import check_is_fitted

from tests.builders import (
    SERIES,
    SERIES_YC,
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
from tests.conftest import REPOSITORY
from tests.tools import (
    ExtraMemory,
    fitted_names,
    linux_only,
    live_tensors,
    outputs,
    pickled_modules,
    recorded_warnings,
    run_python,
    torch_objects,
)

# --- D1: parameters, clone, persistence ------------------------------------------------------


@both
def test_clone_of_a_fitted_estimator_is_unfitted(make, y):
    """D1."""
    estimator = make().fit(X2, y)
    assert fitted_names(estimator)
    copied = clone(estimator)
    assert fitted_names(copied) == []
    with pytest.raises(NotFittedError):
        copied.predict(X2)


@both
def test_fit_leaves_the_constructor_parameters_as_the_same_objects(make, y):
    """D1."""
    parameters = {"callbacks": [], "random_state": np.random.RandomState(0), "n_tokens": 6}
    if make is make_classifier:
        parameters["class_weight"] = {"pos": 1.0, "neg": 2.0}
    estimator = make(**parameters)
    before = estimator.get_params()
    contents = copy.deepcopy(parameters)
    estimator.fit(X2, y).predict(X2)
    after = estimator.get_params()
    assert after.keys() == before.keys()
    assert all(after[name] is before[name] for name in before)
    assert estimator.callbacks == contents["callbacks"]
    if make is make_classifier:
        assert estimator.class_weight == contents["class_weight"]


@both_makers
def test_get_params_lists_every_constructor_argument(make):
    """D1."""
    signature = inspect.signature(type(make()).__init__).parameters
    assert set(signature) - {"self"} == set(make().get_params())
    variadic = {inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL}
    assert not [p for p in signature.values() if p.kind in variadic]


@both_makers
def test_constructor_neither_validates_nor_copies_its_arguments(make):
    """D1."""
    cls = type(make())
    odd = {name: object() for name in make().get_params()}
    estimator = cls(**odd)
    assert vars(estimator) == odd


@both
@pytest.mark.parametrize("through", ["pickle", "joblib", "deepcopy"])
def test_loaded_estimator_scores_as_the_saved_one(make, y, through):
    """D1."""
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


@both_makers
def test_unknown_parameter_is_refused_by_name(make):
    """D1."""
    with pytest.raises(ValueError, match="nope"):
        make().set_params(nope=1)
    with pytest.raises(TypeError, match="nope"):
        make(nope=1)


# --- D2: not fitted --------------------------------------------------------------------------


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
def test_prediction_before_fit_raises_not_fitted_error(make, method):
    """D2."""
    with pytest.raises(NotFittedError):
        getattr(make(), method)(X2)
    with pytest.raises(NotFittedError):
        make().score(X2, YR if make is make_regressor else YC)
    with pytest.raises(NotFittedError):
        check_is_fitted(make())


@both_makers
def test_unfitted_estimator_has_no_fitted_attributes(make):
    """D2: not even those that are computed when asked for."""
    estimator = make()
    names = fitted_names(clone(estimator).fit(X2, YC if make is make_classifier else YR))
    for name in {*names, "module_", "net_", "convergence_diagnostics_"}:
        assert not hasattr(estimator, name), name


def _with(X, value):
    X = X.copy()
    X.flat[7] = value
    return X


@pytest.mark.parametrize(
    ("parameters", "X", "y", "weights"),
    [
        ({}, X2, np.full(64, np.nan), None),
        ({}, X2, YR[:-1], None),
        ({}, _with(X2, np.nan), YR, None),
        ({}, _with(X3, np.inf), YR, None),
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
def test_failed_fit_leaves_the_estimator_unfitted(parameters, X, y, weights):
    """D2."""
    estimator = make_regressor(**parameters)
    with pytest.raises(ValueError):  # noqa: PT011 - the texts are tested elsewhere
        estimator.fit(X, y, sample_weight=weights)
    assert fitted_names(estimator) == []
    with pytest.raises(NotFittedError):
        check_is_fitted(estimator)
    with pytest.raises(NotFittedError):
        estimator.predict(X2)


@pytest.mark.parametrize("warm_start", [False, True])
def test_failed_refit_never_leaves_a_half_fitted_estimator(warm_start):
    """D2: after a failure the old model is whole, or gone (only without ``warm_start``)."""
    estimator = make_regressor(warm_start=warm_start).fit(X2, YR)
    before = estimator.predict(X2)
    with pytest.raises(ValueError, match="NaN"):
        estimator.fit(X2, np.full(64, np.nan))
    if warm_start or fitted_names(estimator):
        np.testing.assert_array_equal(estimator.predict(X2), before)
    else:
        with pytest.raises(NotFittedError):
            estimator.predict(X2)


# --- D3: scikit-learn's public surface only --------------------------------------------------


def test_estimators_are_told_apart_by_scikit_learn():
    """D3."""
    assert is_classifier(make_classifier())
    assert sklearn_is_regressor(make_regressor())
    assert not is_classifier(make_regressor())
    assert get_tags(make_classifier()).estimator_type == "classifier"
    assert get_tags(make_regressor()).estimator_type == "regressor"


@pytest.mark.parametrize(
    ("make", "mixin"), [(make_regressor, RegressorMixin), (make_classifier, ClassifierMixin)]
)
def test_mixins_come_before_base_estimator(make, mixin):
    """D3: otherwise the tags of the mixin are lost from scikit-learn 1.7 on."""
    order = type(make()).__mro__
    assert order.index(mixin) < order.index(BaseEstimator)


@pytest.mark.parametrize("scoring", ["roc_auc", "neg_log_loss", "average_precision"])
def test_threshold_and_probability_scorers_work(scoring):
    """D3."""
    y = (YC == "pos").astype(int)
    scores = cross_val_score(make_classifier(), X2, y, scoring=scoring, cv=3, error_score="raise")
    assert np.isfinite(scores).all()


def test_roc_auc_works_with_string_labels():
    """D3."""
    scores = cross_val_score(
        make_classifier(), X2, YC, scoring="roc_auc", cv=3, error_score="raise"
    )
    assert np.isfinite(scores).all()


def test_package_imports_nothing_private_from_scikit_learn():
    """D3."""
    private = []
    for file in sorted((REPOSITORY / "sklearn_restf").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("sklearn."):
                names = [*node.module.split("."), *(alias.name for alias in node.names)]
            elif isinstance(node, ast.Import):
                names = [
                    part
                    for alias in node.names
                    if alias.name.startswith("sklearn.")
                    for part in alias.name.split(".")
                ]
            else:
                continue
            private += [f"{file.name}: {name}" for name in names if name.startswith("_")]
    assert private == []


def test_import_is_free_of_warnings():
    """D3."""
    run_python("import sklearn_restf", options=["-W", "error"])


# --- D4: windows as 3-D and as 2-D -----------------------------------------------------------
# check_estimator itself runs in test_common.py.


@both_makers
def test_tags_declare_2d_and_3d_input(make):
    """D4."""
    tags = get_tags(make()).input_tags
    assert tags.two_d_array
    assert tags.three_d_array


@both
def test_2d_and_3d_forms_of_the_same_windows_agree(make, y):
    """D4: whichever form fit and predict are given."""
    flat = make(token_dim=3).fit(X2D, y)
    windows = make(token_dim=3).fit(X3D, y)
    plain = make().fit(X3D, y)
    expected = outputs(plain, X3D)
    for estimator in (flat, windows):
        np.testing.assert_allclose(outputs(estimator, X2D), expected, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(outputs(estimator, X3D), expected, rtol=1e-9, atol=1e-12)


@both
@pytest.mark.parametrize("X", [X2D, X3D], ids=["table", "windows"])
def test_units_of_a_channel_do_not_matter(make, y, X):
    """D4: each channel is centred and scaled inside."""
    factors = np.array([1.0, 1e3, 1e-3])
    shifts = np.array([0.0, 5.0, -7.0])
    if X.ndim == 2:
        factors, shifts = np.tile(factors, 24), np.tile(shifts, 24)
    rescaled = X * factors + shifts
    expected = outputs(make().fit(X, y), X)
    np.testing.assert_allclose(
        outputs(make().fit(rescaled, y), rescaled), expected, rtol=1e-5, atol=1e-6
    )


def test_pipeline_with_a_scaler_takes_the_2d_form():
    """D4."""
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
def test_meta_regressors_accept_3d_windows(meta):
    """D4."""
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
def test_meta_classifiers_accept_3d_windows(meta):
    """D4."""
    probabilities = meta.fit(X3, YC).predict_proba(X3)
    assert probabilities.shape == (64, 2)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1.0)


def test_cross_validated_probabilities_of_3d_windows():
    """D4."""
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
def test_bagging_takes_the_2d_form_of_windows(meta, y):
    """D4: bagging refuses 3-D arrays, so the 2-D form must serve it."""
    assert meta.fit(X2, y).predict(X2).shape == (64,)


def test_permutation_importance_takes_the_2d_form_of_windows():
    """D4."""
    estimator = make_regressor(token_dim=3, max_iter=5).fit(X2, YR)
    result = permutation_importance(estimator, X2, YR, n_repeats=1, random_state=0)
    assert result.importances_mean.shape == (72,)


# --- D5: series of unequal length ------------------------------------------------------------


@both_on_series
def test_list_of_unequal_series_is_fitted_and_searched(make, y):
    """D5."""
    search = GridSearchCV(make(), {"residual_beta": [0.0, 1.0]}, cv=3, error_score="raise")
    search.fit(SERIES, y)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    assert search.predict(SERIES).shape == (12,)
    assert cross_val_predict(make(), SERIES, y, cv=3).shape == (12,)


@both_on_series
@pytest.mark.parametrize("length", [1, 7, 16, 30])
def test_series_of_other_lengths_are_predicted(make, y, length):
    """D5: shorter than any, all alike, and longer than any series seen in training."""
    estimator = make().fit(SERIES, y)
    series = [np.random.default_rng(i).normal(size=(length, 3)) for i in range(4)]
    result = outputs(estimator, series)
    assert result.shape[0] == 4
    assert np.isfinite(result).all()
    np.testing.assert_allclose(outputs(estimator, np.stack(series)), result, rtol=1e-7)
    np.testing.assert_allclose(outputs(estimator, series[:1]), result[:1], rtol=1e-7)


def test_series_longer_than_the_learned_positions_are_refused_with_both_lengths():
    """D5."""
    estimator = make_regressor(positional_encoding="learned").fit(SERIES, SERIES_YR)
    assert np.isfinite(estimator.predict([s[:4] for s in SERIES])).all()
    with pytest.raises(ValueError, match=r"(?s)(30.*16|16.*30)"):
        estimator.predict([np.zeros((30, 3))])


@pytest.mark.parametrize("pooling", ["auto", "flatten"])
def test_windows_of_another_length_are_refused_with_both_lengths(pooling):
    """D5."""
    estimator = make_regressor(pooling=pooling).fit(X3, YR)
    for length in (7, 30):
        with pytest.raises(ValueError, match=rf"(?s)({length}.*24|24.*{length})"):
            estimator.predict(np.zeros((2, length, 3)))


def test_equal_series_in_a_list_match_the_3d_array():
    """D5."""
    as_list = make_regressor(pooling="mean").fit(list(X3D), YR)
    as_array = make_regressor(pooling="mean").fit(X3D, YR)
    np.testing.assert_allclose(as_list.predict(list(X3D)), as_array.predict(X3D), rtol=1e-9)


@both_on_series
def test_padded_array_matches_the_list(make, y):
    """D5."""
    from_list = outputs(make().fit(SERIES, y), SERIES)
    padded = pad(SERIES, 16, np.nan)
    from_array = outputs(make(padding_value=np.nan).fit(padded, y), padded)
    np.testing.assert_allclose(from_array, from_list, rtol=1e-7)


@pytest.mark.parametrize(
    "series",
    [
        [np.zeros((5, 3)), np.zeros((5, 2))],
        [np.zeros((5, 3)), np.zeros(5)],
        [np.zeros((5, 3, 1)), np.zeros((4, 3, 1))],
        [],
    ],
    ids=["other-width", "one-1d", "4d", "empty"],
)
def test_malformed_lists_are_refused_in_plain_words(series):
    """D5."""
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - only the origin matters
        make_regressor().fit(series, np.arange(len(series), dtype=float))
    assert "torch" not in str(caught.value)


def test_number_of_channels_is_checked_at_predict():
    """D5."""
    estimator = make_regressor().fit(SERIES, SERIES_YR)
    with pytest.raises(ValueError, match=r"(?s)2.*3|3.*2"):
        estimator.predict([np.zeros((5, 2))])


def test_flatten_pooling_refuses_unequal_series():
    """D5."""
    with pytest.raises(ValueError, match="flatten"):
        make_regressor(pooling="flatten").fit(SERIES, SERIES_YR)


# --- D6: samples without a real token --------------------------------------------------------


@both_on_series
def test_samples_without_a_token_are_refused_by_row(make, y):
    """D6: at fit and at predict, in a list and in a padded array."""
    padded = pad(SERIES, 16, np.nan)
    estimator = make(padding_value=np.nan).fit(padded, y)
    padded[[5, 9]] = np.nan
    empty = [np.zeros((0, 3)) if i in (5, 9) else s for i, s in enumerate(SERIES)]
    for X in (padded, empty):
        with pytest.raises(ValueError, match=r"(?s)\b5\b.*\b9\b"):
            make(padding_value=np.nan).fit(X, y)
        with pytest.raises(ValueError, match=r"(?s)\b5\b.*\b9\b"):
            estimator.predict(X)
    with pytest.raises(ValueError, match=r"\b0\b"):
        estimator.predict(padded[5:6])


def test_short_samples_keep_everything_finite():
    """D6: one real token beside 23 padded ones, in loss, parameters and predictions."""
    X = X3D.copy()
    X[5, 1:] = np.nan
    X[6, 3:] = np.nan
    estimator = make_regressor(padding_value=np.nan).fit(X, YR)
    assert np.isfinite(estimator.loss_curve_).all()
    assert all(torch.isfinite(p).all() for p in estimator.module_.parameters())
    assert np.isfinite(estimator.predict(X)).all()


# --- D7: training and evaluation agree -------------------------------------------------------


@pytest.mark.parametrize("pooling", ["mean", "last", "none"])
def test_module_computes_the_same_in_training_and_evaluation_mode(pooling):
    """D7: also when every row of a batch is padded."""
    X = X3D.copy()
    X[:, 16:] = np.nan
    y = np.tile(YR[:, None], (1, 24)) if pooling == "none" else YR
    estimator = make_regressor(padding_value=np.nan, pooling=pooling).fit(X, y)
    module = estimator.module_
    tokens = torch.tensor(np.nan_to_num(X), dtype=next(module.parameters()).dtype)
    mask = torch.tensor(~np.isnan(X[:, :, 0]))
    trained = module.train()(tokens, mask)
    with torch.no_grad():
        evaluated = module.eval()(tokens, mask)
    assert trained.shape == evaluated.shape
    assert trained.shape[:2] == ((64, 24) if pooling == "none" else (64, 1))
    real = mask if pooling == "none" else slice(None)
    torch.testing.assert_close(trained[real].detach(), evaluated[real], rtol=1e-6, atol=1e-6)


@both_on_series
def test_batch_in_which_every_row_is_padded_is_predicted(make, y):
    """D7."""
    estimator = make(padding_value=np.nan).fit(pad(SERIES, 16, np.nan), y)
    for length in (1, 5):
        short = [s[:length] for s in SERIES]
        np.testing.assert_allclose(
            outputs(estimator, pad(short, 24, np.nan)), outputs(estimator, short), rtol=1e-6
        )


# --- D8: fitted on one device, used on another -----------------------------------------------


@both
@pytest.mark.parametrize("wrap", ["bare", "pipeline", "grid"])
def test_saved_state_contains_nothing_of_torch(make, y, wrap):
    """D8: what is stored are NumPy arrays, whatever was computed or looked at before."""
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


def test_estimator_from_a_missing_device_predicts_on_the_cpu_with_one_warning():
    """D8: as if fitted on the 64th GPU."""
    estimator = make_regressor().fit(X2, YR)
    expected = estimator.predict(X2)
    estimator.device = estimator.device_ = "cuda:63"
    loaded = pickle.loads(pickle.dumps(estimator))
    with recorded_warnings() as caught:
        predictions = loaded.predict(X2)
    assert [w.category for w in caught] == [UserWarning]
    assert "cuda:63" in str(caught[0].message)
    np.testing.assert_allclose(predictions, expected, rtol=1e-4)
    assert loaded.get_params()["device"] == "cuda:63"


@pytest.mark.parametrize("device", ["cuda:63", "nope", "meta"])
def test_fit_on_a_missing_device_is_refused_by_name(device):
    """D8."""
    with pytest.raises(ValueError, match=device):
        make_regressor(device=device).fit(X2, YR)


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
def test_estimator_fitted_on_cuda_loads_where_there_is_none(tmp_path, wrap):
    """D8."""
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
        _LOAD_AND_PREDICT,
        tmp_path / "e.pickle",
        tmp_path / "X.npy",
        environment={"CUDA_VISIBLE_DEVICES": ""},
    )
    predictions, caught = json.loads(printed)
    assert caught == ["UserWarning"]
    np.testing.assert_allclose(predictions, estimator.predict(X2), rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(
        joblib.load(tmp_path / "again.joblib").predict(X2), estimator.predict(X2)
    )


# --- D9: pickle and skops --------------------------------------------------------------------


@both
def test_pickle_does_not_go_through_torch_load(make, y, monkeypatch):
    """D9."""

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
def test_skops_needs_to_trust_only_our_names(make, X, y, parameters):
    """D9."""
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
def test_pickle_loads_in_a_fresh_process_without_warnings(tmp_path):
    """D9."""
    estimator = make_regressor().fit(X2, YR)
    (tmp_path / "e.pickle").write_bytes(pickle.dumps(estimator))
    np.save(tmp_path / "X.npy", X2)
    printed = run_python(
        _LOAD_AND_PREDICT, tmp_path / "e.pickle", tmp_path / "X.npy", options=["-W", "error"]
    )
    predictions, caught = json.loads(printed)
    assert caught == []
    np.testing.assert_allclose(predictions, estimator.predict(X2), rtol=1e-7)


# --- D10: a row's prediction depends on the row alone ----------------------------------------


@both
@pytest.mark.parametrize("X", [X2, X2D, X3, X3D], ids=["table32", "table64", "win32", "win64"])
def test_prediction_of_a_row_does_not_depend_on_its_company(make, y, X):
    """D10."""
    estimator = make().fit(X, y)
    whole = outputs(estimator, X)
    assert whole.dtype == np.float64
    by_row = np.concatenate([outputs(estimator, X[i : i + 1]) for i in range(len(X))])
    order = np.random.default_rng(1).permutation(len(X))
    permuted = np.empty_like(whole)
    permuted[order] = outputs(estimator, X[order])
    np.testing.assert_allclose(by_row, whole, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(permuted, whole, rtol=1e-7, atol=1e-9)
    for chunk_size in (1, 7, 64):
        estimator.set_params(chunk_size=chunk_size)
        np.testing.assert_allclose(outputs(estimator, X), whole, rtol=1e-7, atol=1e-9)


@both_on_series
def test_prediction_of_a_series_does_not_depend_on_its_company(make, y):
    """D10."""
    estimator = make().fit(SERIES, y)
    whole = outputs(estimator, SERIES)
    by_row = np.concatenate([outputs(estimator, [s]) for s in SERIES])
    np.testing.assert_allclose(by_row, whole, rtol=1e-7, atol=1e-9)
    for chunk_size in (1, 7, 64):
        estimator.set_params(chunk_size=chunk_size)
        np.testing.assert_allclose(outputs(estimator, SERIES), whole, rtol=1e-7, atol=1e-9)


# --- D11: more windows than memory -----------------------------------------------------------


def _window_view(n):
    base = np.random.default_rng(0).normal(size=(n + 143, 14)).astype("float32")
    return np.lib.stride_tricks.sliding_window_view(base, 144, axis=0).transpose(0, 2, 1)


@linux_only
def test_prediction_on_a_view_of_many_windows_stays_small():
    """D11: 20 000 windows would take 323 MB in double precision."""
    windows = _window_view(20_000)
    estimator = make_regressor(pooling="last", max_iter=2).fit(windows[:256], windows[:256, -1, 0])
    with ExtraMemory() as extra:
        predictions = estimator.predict(windows)
    assert predictions.shape == (20_000,)
    assert extra.peak < 150e6
    np.testing.assert_allclose(predictions[-3:], estimator.predict(windows[-3:]), rtol=1e-7)


@linux_only
def test_prediction_on_a_view_larger_than_comfortable_stays_small():
    """D11: 1.6 GB in single precision, 3.2 GB in double, 11 MB in memory."""
    windows = _window_view(200_000)
    estimator = make_regressor(pooling="last", max_iter=2).fit(windows[:256], windows[:256, -1, 0])
    with ExtraMemory() as extra:
        predictions = estimator.predict(windows)
    assert np.isfinite(predictions).all()
    assert extra.peak < 250e6


@linux_only
def test_fit_in_chunks_keeps_memory_within_the_chunk():
    """D11: the attention weights of all samples would take 92 MB, several times over."""
    X = np.random.default_rng(0).normal(size=(20_000, 24, 3))
    y = X[:, -1, 0]
    with ExtraMemory() as extra:
        make_regressor(max_iter=1, chunk_size=250, diagnostics=False).fit(X, y)
    assert extra.peak < 100e6


@both
@pytest.mark.parametrize("chunk_size", [1, 7, 64, 1000])
def test_gradient_summed_over_chunks_is_the_full_gradient(make, y, chunk_size):
    """D11."""
    weights = np.random.default_rng(2).uniform(0.5, 2.0, size=64)
    whole = make().fit(X3D, y, sample_weight=weights)
    chunked = make(chunk_size=chunk_size).fit(X3D, y, sample_weight=weights)
    np.testing.assert_allclose(chunked.loss_curve_, whole.loss_curve_, rtol=1e-9)
    np.testing.assert_allclose(outputs(chunked, X3D), outputs(whole, X3D), rtol=1e-7, atol=1e-9)


def test_fit_that_cannot_fit_in_memory_says_so_before_starting():
    """D11: the attention weights of one sample alone would take 1.3 TB."""
    X = np.random.default_rng(0).normal(size=(4, 400_000, 1)).astype("float32")
    with pytest.raises((MemoryError, ValueError)) as caught:
        make_regressor(pooling="mean", max_iter=1, diagnostics=False).fit(X, np.arange(4.0))
    message = str(caught.value)
    assert "4" in message
    assert "400000" in message.replace("_", "").replace(",", "")
    assert any(unit in message for unit in ("bytes", "GB", "GiB", "TB", "TiB"))
    assert "chunk_size" in message or "shorter" in message


# --- D12: nothing is kept --------------------------------------------------------------------


@both
@pytest.mark.parametrize("X", [X2, X3, SERIES], ids=["table", "windows", "series"])
def test_fitted_estimator_keeps_no_tensor(make, y, X):
    """D12: no gradient, optimizer state or activation."""
    y = y[: len(X)]
    make().fit(X, y).predict(X)  # whatever torch sets up once
    before = live_tensors()
    estimators = [make().fit(X, y) for _ in range(2)]
    for estimator in estimators:
        estimator.predict(X)
        assert estimator.convergence_diagnostics_ is not None
    assert live_tensors() == before


@both
def test_fitted_estimator_keeps_no_training_data(make, y):
    """D12."""
    X, y = X2D.copy(), y.copy()
    weights = np.ones(64)
    references = [weakref.ref(array) for array in (X, y, weights)]
    estimator = make().fit(X, y, sample_weight=weights)
    estimator.predict(X)
    del X, y, weights
    gc.collect()
    assert [reference() is None for reference in references] == [True] * 3
    assert estimator.n_features_in_ == 72


@pytest.mark.gpu
def test_gpu_memory_is_released_after_cross_validation():
    """D12."""
    make_regressor(device="cuda").fit(X3, YR)
    gc.collect()
    before = torch.cuda.memory_allocated()
    for _ in range(2):
        cross_val_score(make_regressor(device="cuda"), X3, YR, cv=10)
    gc.collect()
    assert abs(torch.cuda.memory_allocated() - before) < 1e6
    kept = [make_regressor(device="cuda").fit(X3, YR) for _ in range(5)]
    gc.collect()
    assert len(kept) == 5
    assert abs(torch.cuda.memory_allocated() - before) < 1e6


# --- D13: processes and threads --------------------------------------------------------------


@pytest.mark.parametrize("backend", [pytest.param("loky", marks=pytest.mark.slow), "threading"])
@both
def test_grid_search_scores_do_not_depend_on_n_jobs(make, y, backend):
    """D13."""
    grid = {"residual_beta": [0.0, 0.25, 0.5, 1.0]}
    alone = GridSearchCV(make(), grid, cv=3).fit(X2D, y)
    threads = torch.get_num_threads()
    with joblib.parallel_config(backend):
        shared = GridSearchCV(make(), grid, cv=3, n_jobs=2).fit(X2D, y)
    assert torch.get_num_threads() == threads
    for key in (f"split{i}_test_score" for i in range(3)):
        np.testing.assert_allclose(shared.cv_results_[key], alone.cv_results_[key], rtol=1e-6)


@both
def test_thread_count_is_left_as_it_was(make, y):
    """D13: after success and after failure."""
    before = torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            make().fit(X2, y).predict(X2)
            assert torch.get_num_threads() == threads
            with pytest.raises(ValueError, match="NaN"):
                make().fit(_with(X2, np.nan), y)
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)


_FIT_IN_A_FORKED_CHILD = """
import multiprocessing, sys
import numpy as np
import torch
from sklearn_restf import ResidualTransformerRegressor

torch.set_num_threads(2)
X = np.random.default_rng(0).normal(size=(2000, 24, 3))
y = X[:, -1, 0]

def fit():
    return ResidualTransformerRegressor(
        max_iter=3, d_ff=32, tol=None, device=sys.argv[1], random_state=0
    ).fit(X, y)

def child(queue):
    try:
        fit().predict(X[:10])
        queue.put("fitted")
    except Exception as error:
        queue.put(f"{type(error).__name__}: {error}")

fit()
context = multiprocessing.get_context("fork")
queue = context.SimpleQueue()
process = context.Process(target=child, args=(queue,))
process.start()
process.join(60)
if process.is_alive():
    process.kill()
    print("hangs")
else:
    print(queue.get())
"""


@pytest.mark.slow
@linux_only
def test_fit_in_a_forked_child_does_not_hang():
    """D13: it works, or says in seconds what to do instead."""
    printed = run_python(
        _FIT_IN_A_FORKED_CHILD, "cpu", environment={"OMP_NUM_THREADS": "2"}, timeout=120
    )
    assert printed.strip() == "fitted" or "spawn" in printed or "loky" in printed


@pytest.mark.gpu
@pytest.mark.slow
def test_cuda_in_a_forked_child_names_the_remedy():
    """D13."""
    printed = run_python(_FIT_IN_A_FORKED_CHILD, "cuda", timeout=120)
    assert "loky" in printed or "spawn" in printed


@pytest.mark.gpu
@pytest.mark.slow
def test_two_jobs_share_one_gpu():
    """D13."""
    grid = {"residual_beta": [0.0, 1.0]}
    estimator = make_regressor(device="cuda")
    alone = GridSearchCV(estimator, grid, cv=3).fit(X2D, YR)
    shared = GridSearchCV(estimator, grid, cv=3, n_jobs=2).fit(X2D, YR)
    np.testing.assert_allclose(
        shared.cv_results_["mean_test_score"], alone.cv_results_["mean_test_score"], rtol=1e-4
    )


# --- D14: dtypes -----------------------------------------------------------------------------

_WHOLE = np.random.default_rng(3).integers(0, 2, size=(64, 12))
_WHOLE_Y = _WHOLE[:, :4].sum(axis=1)


def _forms(X):
    return {
        "float64": X.astype("float64"),
        "float32": X.astype("float32"),
        "float16": X.astype("float16"),
        "int64": X.astype("int64"),
        "int32": X.astype("int32"),
        "uint8": X.astype("uint8"),
        "bool": X.astype(bool),
        "object": X.astype(object),
        "list": X.tolist(),
    }


@both_makers
@pytest.mark.parametrize("shape", [(64, 12), (64, 4, 3)], ids=["table", "windows"])
def test_equal_values_in_any_dtype_give_the_same_model(make, shape):
    """D14."""
    y = _WHOLE_Y if make is make_regressor else _WHOLE_Y > 1
    forms = _forms(_WHOLE.reshape(shape))
    reference = make().fit(forms["float64"], y)
    expected = outputs(reference, forms["float64"])
    for name, X in forms.items():
        np.testing.assert_allclose(
            outputs(reference, X), expected, rtol=1e-5, atol=1e-5, err_msg=f"predict {name}"
        )
        np.testing.assert_allclose(
            outputs(make().fit(X, y), forms["float64"]),
            expected,
            rtol=1e-5,
            atol=1e-5,
            err_msg=f"fit {name}",
        )


@pytest.mark.parametrize(
    "dtype", ["int64", "int32", "int8", "uint8", "float32", "float16", "bool", "object"]
)
def test_targets_of_any_dtype_give_the_same_regressor(dtype):
    """D14."""
    whole = _WHOLE_Y > 1 if dtype == "bool" else _WHOLE_Y
    X = _WHOLE.astype("float64")
    expected = make_regressor().fit(X, whole.astype("float64")).predict(X)
    predictions = make_regressor().fit(X, whole.astype(dtype)).predict(X)
    np.testing.assert_allclose(predictions, expected, rtol=1e-5, atol=1e-5)
    from_list = make_regressor().fit(X, whole.astype("float64").tolist()).predict(X)
    np.testing.assert_array_equal(from_list, expected)


def test_torch_tensors_are_accepted_like_arrays():
    """D14."""
    X, y = torch.tensor(X3D), torch.tensor(YR)
    expected = make_regressor().fit(X3D, YR).predict(X3D)
    np.testing.assert_array_equal(make_regressor().fit(X, y).predict(X), expected)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_dtype_parameter_overrules_the_dtype_of_the_data(dtype):
    """D14."""
    from_single = make_regressor(dtype=dtype).fit(X2, YR).predict(X2)
    from_double = make_regressor(dtype=dtype).fit(X2D, YR).predict(X2D)
    np.testing.assert_allclose(from_single, from_double, rtol=1e-5, atol=1e-5)


@pytest.mark.skipif(not torch.backends.mps.is_available(), reason="needs an Apple GPU (MPS)")
def test_double_precision_data_is_fitted_on_mps():
    """D14: MPS has no float64."""
    expected = make_regressor(dtype="float32").fit(X2D, YR).predict(X2D)
    predictions = make_regressor(device="mps").fit(X2D, YR).predict(X2D)
    np.testing.assert_allclose(predictions, expected, rtol=1e-3, atol=1e-3)


def test_complex_and_text_data_are_refused():
    """D14."""
    with pytest.raises(ValueError, match="Complex"):
        make_regressor().fit(X2.astype(complex), YR)
    with pytest.raises(ValueError, match=r"(?i)string|convert|numeric"):
        make_regressor().fit(np.full((64, 3), "a"), YR)


def test_scikit_learn_configuration_is_left_alone():
    """D3: the checks above did not depend on a changed configuration either."""
    before = sklearn.get_config()
    make_classifier().fit(X3, SERIES_YC.repeat(6)[:64]).predict(X3)
    assert sklearn.get_config() == before
