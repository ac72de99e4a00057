"""Cases that users of neighbouring projects reported, D15 to D28."""

from __future__ import annotations

import math
import pickle
import re
import threading
import warnings

import numpy as np
import pandas as pd
import pytest
import scipy.linalg
import sklearn
import torch
from sklearn.base import clone
from sklearn.compose import TransformedTargetRegressor
from sklearn.ensemble import BaggingRegressor
from sklearn.exceptions import ConvergenceWarning, DataConversionWarning, FitFailedWarning
from sklearn.metrics import r2_score
from sklearn.model_selection import GridSearchCV, KFold, cross_val_predict, cross_validate
from sklearn.multioutput import MultiOutputClassifier, MultiOutputRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import compute_sample_weight, get_tags

from sklearn_restf.exceptions import DivergenceError, RankCollapseWarning
from tests.builders import (
    SERIES,
    SERIES_YR,
    X2,
    X2D,
    X3,
    X3D,
    YC,
    YR,
    CountingCallback,
    LockCallback,
    both,
    both_makers,
    make_classifier,
    make_regressor,
    pad,
)
from tests.tools import ExtraMemory, linux_only, live_tensors, outputs, recorded_warnings, refusal

NAMES = [f"feature {i}" for i in range(6)]
X6 = X2D[:, :6].copy()

# --- D15: data frames ------------------------------------------------------------------------


def _shuffled_frame():
    """Return a frame and a series whose indices disagree; pairing goes by position."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(X6, columns=NAMES, index=rng.permutation(64))
    return frame, pd.Series(YR, index=rng.permutation(64) + 100, name="target")


def test_pandas_rows_are_paired_by_position():
    """D15."""
    frame, target = _shuffled_frame()
    expected = make_regressor().fit(X6, YR).predict(X6)
    estimator = make_regressor().fit(frame, target)
    assert list(estimator.feature_names_in_) == NAMES
    predictions = estimator.predict(frame)
    assert type(predictions) is np.ndarray
    np.testing.assert_allclose(predictions, expected, rtol=1e-7)
    weights = pd.Series(np.ones(64), index=frame.index)
    estimator.fit(frame, target, sample_weight=weights)
    np.testing.assert_allclose(estimator.predict(frame), expected, rtol=1e-7)


def test_pandas_labels_come_back_as_they_were():
    """D15: string and categorical columns of labels."""
    frame, _ = _shuffled_frame()
    expected = make_classifier().fit(X6, YC).predict_proba(X6)
    for labels in (pd.Series(YC), pd.Series(YC, dtype=object), pd.Series(YC, dtype="category")):
        estimator = make_classifier().fit(frame, labels)
        assert list(estimator.classes_) == ["neg", "pos"]
        np.testing.assert_allclose(estimator.predict_proba(frame), expected, rtol=1e-7)


def test_polars_frames_are_accepted_with_their_names():
    """D15."""
    pl = pytest.importorskip("polars")
    frame = pl.DataFrame(dict(zip(NAMES, X6.T, strict=True)))
    expected = make_regressor().fit(X6, YR).predict(X6)
    estimator = make_regressor().fit(frame, pl.Series("target", YR))
    assert list(estimator.feature_names_in_) == NAMES
    np.testing.assert_allclose(estimator.predict(frame), expected, rtol=1e-7)
    classifier = make_classifier().fit(frame, pl.Series("label", YC.tolist()))
    assert list(classifier.classes_) == ["neg", "pos"]
    with pytest.raises(ValueError, match="feature names"):
        estimator.predict(frame.select(NAMES[::-1]))


@pytest.mark.parametrize("dtype", [object, "Float64", "float32", "Int64"])
def test_numeric_columns_of_any_kind_are_accepted(dtype):
    """D15: object columns of numbers and nullable columns without a missing value."""
    whole = np.round(X6 * 3)
    frame = pd.DataFrame(whole, columns=NAMES)
    expected = make_regressor().fit(whole, YR).predict(whole)
    estimator = make_regressor().fit(frame.astype(dtype), YR)
    # float32 columns train in float32, whose rounding twenty iterations amplify
    tolerance = 1e-4 if dtype == "float32" else 1e-7
    np.testing.assert_allclose(
        estimator.predict(frame.astype(dtype)), expected, rtol=tolerance, atol=tolerance
    )


@both
@pytest.mark.parametrize("kind", ["nullable", "object", "string", "datetime"])
def test_missing_values_and_text_are_refused_in_scikit_learn_words(make, y, kind):
    """D15."""
    frame = pd.DataFrame(X6, columns=NAMES)
    estimator = make().fit(frame, y)
    if kind == "nullable":
        frame = frame.astype("Float64")
        frame.iloc[3, 2] = pd.NA
    elif kind == "object":
        frame = frame.astype(object)
        frame.iloc[3, 2] = None
    elif kind == "string":
        frame["feature 2"] = "low"
    else:
        frame["feature 2"] = pd.Timestamp("2020-01-01")
    for call in (lambda: make().fit(frame, y), lambda: estimator.predict(frame)):
        with pytest.raises((ValueError, TypeError)) as caught:
            call()
        assert "torch" not in str(caught.value).lower()
        if kind in {"nullable", "object"}:
            assert "NaN" in str(caught.value)


def test_missing_targets_are_refused():
    """D15."""
    target = pd.Series(YR).astype("Float64")
    target[3] = pd.NA
    with pytest.raises(ValueError, match="NaN"):
        make_regressor().fit(X6, target)
    labels = YC.astype(object)
    labels[3] = None
    with pytest.raises((ValueError, TypeError)) as caught:
        make_classifier().fit(X6, labels)
    assert "torch" not in str(caught.value).lower()


@both
def test_names_are_checked_at_predict(make, y):
    """D15."""
    frame = pd.DataFrame(X6, columns=NAMES)
    estimator = make().fit(frame, y)
    with pytest.raises(ValueError, match="feature names"):
        estimator.predict(frame[NAMES[::-1]])
    with pytest.warns(UserWarning, match="does not have valid feature names"):
        unnamed = outputs(estimator, X6)
    np.testing.assert_allclose(unnamed, outputs(estimator, frame), rtol=1e-7)
    with pytest.warns(UserWarning, match="X has feature names"):
        make().fit(X6, y).predict(frame)
    # Names of an earlier fit are forgotten.
    assert not hasattr(estimator.fit(X6, y), "feature_names_in_")


# --- D16: the shape of y ---------------------------------------------------------------------


@both
@pytest.mark.parametrize("form", ["column", "frame", "series", "list"])
def test_shape_of_one_target_does_not_matter(make, y, form):
    """D16: the same losses and 1-d predictions; a column is pointed out once."""
    forms = {
        "column": y[:, None],
        "frame": pd.DataFrame({"target": y}),
        "series": pd.Series(y),
        "list": y.tolist(),
    }
    expected = make().fit(X2, y)
    with recorded_warnings() as caught:
        estimator = make().fit(X2, forms[form])
    columns = form in {"column", "frame"}
    assert [w.category for w in caught] == [DataConversionWarning] * columns
    assert estimator.loss_curve_ == expected.loss_curve_
    predictions = estimator.predict(X2)
    assert predictions.shape == (64,)
    np.testing.assert_array_equal(predictions, expected.predict(X2))
    assert estimator.n_outputs_ == 1


@both
def test_single_row_is_predicted_as_one_row(make, y):
    """D16."""
    estimator = make().fit(X2, y)
    assert estimator.predict(X2[:1]).shape == (1,)
    assert outputs(estimator, X2[:1]).shape == ((1,) if make is make_regressor else (1, 2))
    assert make(token_dim=3).fit(X3, y).predict(X3[:1]).shape == (1,)


@pytest.mark.parametrize(
    "meta",
    [
        BaggingRegressor(make_regressor(), n_estimators=2, random_state=0),
        TransformedTargetRegressor(make_regressor(), transformer=StandardScaler()),
    ],
    ids=["bagging", "target-transformer"],
)
def test_meta_regressors_keep_targets_1d(meta):
    """D16."""
    assert meta.fit(X2, YR).predict(X2).shape == (64,)


@both
def test_inconsistent_lengths_are_refused(make, y):
    """D16: of targets and weights."""
    with pytest.raises(ValueError, match=r"(?i)inconsistent|samples"):
        make().fit(X2, y[:-1])
    with pytest.raises(ValueError, match=r"(?i)weight"):
        make().fit(X2, y, sample_weight=np.ones(63))
    with pytest.raises(ValueError, match=r"(?i)weight"):
        make().fit(X2, y, sample_weight=np.ones((64, 1)))


# --- D17: several targets --------------------------------------------------------------------


@pytest.mark.parametrize("X", [X2D, X3D], ids=["table", "windows"])
def test_targets_of_different_scale_are_fitted_equally_well(X):
    """D17."""
    Y = np.c_[YR, 1e5 * YR + 3e5]
    estimator = make_regressor(max_iter=100).fit(X, Y)
    predictions = estimator.predict(X)
    assert predictions.shape == (64, 2)
    assert estimator.n_outputs_ == 2
    first, second = r2_score(Y, predictions, multioutput="raw_values")
    assert first > 0.5
    assert abs(first - second) < 0.1
    frame = pd.DataFrame(Y, columns=["a", "b"])
    from_frame = make_regressor(max_iter=100).fit(X, frame).predict(X)
    np.testing.assert_allclose(from_frame, predictions, rtol=1e-7)


def test_multi_output_is_declared_and_wrapped():
    """D17."""
    assert get_tags(make_regressor()).target_tags.multi_output
    assert not get_tags(make_classifier()).target_tags.multi_output
    Y = np.c_[YR, -YR]
    assert MultiOutputRegressor(make_regressor()).fit(X2, Y).predict(X2).shape == (64, 2)
    labels = np.c_[YC, YC[::-1]]
    assert MultiOutputClassifier(make_classifier()).fit(X2, labels).predict(X2).shape == (64, 2)


@pytest.mark.parametrize(
    "y",
    [np.c_[YR > 0, YR < 0.5].astype(int), np.c_[YC, YC]],
    ids=["multilabel", "multi-output"],
)
def test_classifier_refuses_several_targets_by_name(y):
    """D17."""
    with pytest.raises(ValueError, match=r"(?i)multilabel|multi-?output"):
        make_classifier().fit(X2, y)


# --- D18: labels -----------------------------------------------------------------------------

_SIDE = YR > 0


@pytest.mark.parametrize("early_stopping", [False, True])
@pytest.mark.parametrize(
    "y",
    [
        np.where(_SIDE, "pos", "neg"),
        np.where(_SIDE, "pos", "neg").astype(object),
        _SIDE,
        _SIDE.astype("int8"),
        np.where(_SIDE, 1, -1),
        np.where(_SIDE, 7, 3),
        _SIDE.astype(float),
        np.digitize(YR, [-1.0, 1.0]) * 10,
        np.array(["ä", "Z", "b"])[np.digitize(YR, [-1.0, 1.0])],
    ],
    ids=["str", "object", "bool", "int8", "signs", "odd", "float", "three", "three-str"],
)
def test_labels_of_any_kind_are_returned_as_given(y, early_stopping):
    """D18: with and without early stopping."""
    estimator = make_classifier(early_stopping=early_stopping, max_iter=60).fit(X2, y)
    np.testing.assert_array_equal(estimator.classes_, np.unique(y))
    assert estimator.classes_.dtype == y.dtype
    predictions = estimator.predict(X2)
    assert predictions.dtype == y.dtype
    probabilities = estimator.predict_proba(X2)
    assert probabilities.shape == (64, len(estimator.classes_))
    np.testing.assert_array_equal(estimator.classes_[probabilities.argmax(axis=1)], predictions)
    np.testing.assert_allclose(
        estimator.predict_log_proba(X2), np.log(probabilities), rtol=1e-7, atol=1e-12
    )
    scores = estimator.decision_function(X2)
    if len(estimator.classes_) == 2:
        assert scores.shape == (64,)
        np.testing.assert_array_equal(estimator.classes_[(scores > 0).astype(int)], predictions)
    else:
        np.testing.assert_array_equal(estimator.classes_[scores.argmax(axis=1)], predictions)
    assert estimator.score(X2, y) > 0.7


def test_encoding_of_the_labels_does_not_change_the_probabilities():
    """D18."""
    expected = make_classifier().fit(X2, _SIDE).predict_proba(X2)
    for y in (np.where(_SIDE, "pos", "neg"), np.where(_SIDE, 7, 3), _SIDE.astype(float)):
        np.testing.assert_array_equal(make_classifier().fit(X2, y).predict_proba(X2), expected)


@pytest.mark.parametrize("loss", ["log_loss", "squared_error"])
@pytest.mark.parametrize("early_stopping", [False, True])
def test_continuous_labels_are_refused(loss, early_stopping):
    """D18."""
    with pytest.raises(ValueError, match="Unknown label type"):
        make_classifier(loss=loss, early_stopping=early_stopping).fit(X2, YR)


# --- D19: a single class, an absent class ----------------------------------------------------


@pytest.mark.parametrize("loss", ["log_loss", "squared_error"])
@pytest.mark.parametrize("weighted", [False, True])
def test_single_class_is_predicted_for_certain(weighted, loss):
    """D19: whether the others are missing or carry no weight."""
    if weighted:
        estimator = make_classifier(loss=loss).fit(
            X2, YC, sample_weight=(YC == "pos").astype(float)
        )
    else:
        estimator = make_classifier(loss=loss).fit(X2, ["pos"] * 64)
    assert list(estimator.classes_) == ["pos"]
    assert (estimator.predict(X2) == "pos").all()
    np.testing.assert_array_equal(estimator.predict_proba(X2), np.ones((64, 1)))
    np.testing.assert_array_equal(estimator.predict_log_proba(X2), np.zeros((64, 1)))
    assert estimator.score(X2, ["pos"] * 64) == 1.0
    assert estimator.n_iter_ >= 0
    assert isinstance(estimator.loss_curve_, list)
    assert estimator.convergence_diagnostics_ is not None
    loaded = pickle.loads(pickle.dumps(estimator))
    assert (loaded.predict(X2[:3]) == "pos").all()


def test_class_absent_from_a_fold_keeps_its_column():
    """D19."""
    y = np.where(YR > 0, 1, 2)
    y[:2] = 3  # both members fall into the first test fold
    with pytest.warns(RuntimeWarning, match="Number of classes in training fold"):
        probabilities = cross_val_predict(
            make_classifier(), X2, y, method="predict_proba", cv=KFold(5)
        )
    assert probabilities.shape == (64, 3)
    assert (probabilities[:13, 2] == 0).all()


def test_class_with_one_member_is_fitted():
    """D19."""
    y = YC.copy().astype("U4")
    y[0] = "rare"
    estimator = make_classifier().fit(X2, y)
    assert list(estimator.classes_) == ["neg", "pos", "rare"]
    assert np.isfinite(estimator.predict_proba(X2)).all()


# --- D20: sample and class weights -----------------------------------------------------------

_RARE = np.where(np.arange(64) < 4, "pos", "neg")


@pytest.mark.parametrize("loss", ["log_loss", "squared_error"])
def test_balanced_class_weight_is_the_balanced_sample_weight(loss):
    """D20."""
    balanced = make_classifier(class_weight="balanced", loss=loss).fit(X2D, _RARE)
    weights = compute_sample_weight("balanced", _RARE)
    weighted = make_classifier(loss=loss).fit(X2D, _RARE, sample_weight=weights)
    np.testing.assert_allclose(
        balanced.predict_proba(X2D), weighted.predict_proba(X2D), rtol=1e-5, atol=1e-8
    )
    plain = make_classifier(loss=loss).fit(X2D, _RARE)
    rare = _RARE == "pos"
    assert balanced.predict_proba(X2D)[rare, 1].mean() > plain.predict_proba(X2D)[rare, 1].mean()


def test_class_weight_is_a_mapping_of_labels():
    """D20: and multiplies the sample weights."""
    sample_weight = np.random.default_rng(0).uniform(0.5, 2, size=64)
    by_class = make_classifier(class_weight={"pos": 15.0, "neg": 1.0})
    by_sample = make_classifier().fit(
        X2D, _RARE, sample_weight=sample_weight * np.where(_RARE == "pos", 15.0, 1.0)
    )
    by_class.fit(X2D, _RARE, sample_weight=sample_weight)
    np.testing.assert_allclose(
        by_class.predict_proba(X2D), by_sample.predict_proba(X2D), rtol=1e-5, atol=1e-8
    )
    with pytest.raises(ValueError, match="class_weight"):
        make_classifier(class_weight="nope").fit(X2D, _RARE)


@both
@pytest.mark.parametrize("X", [X2D, X3D], ids=["table", "windows"])
def test_weight_zero_is_a_dropped_row_and_weight_two_a_repeated_row(make, y, X):
    """D20: in the loss and in the statistics that scale X and y."""
    X = X.copy()
    X[:8] = X[:8] * 50 + 300
    y = y.copy()
    if make is make_regressor:
        y[:8] = 1e4
    kept = np.ones(64)
    kept[:8] = 0
    np.testing.assert_allclose(
        outputs(make().fit(X, y, sample_weight=kept), X[8:]),
        outputs(make().fit(X[8:], y[8:]), X[8:]),
        rtol=1e-5,
        atol=1e-7,
    )
    counts = np.random.default_rng(0).integers(0, 4, size=64)
    np.testing.assert_allclose(
        outputs(make().fit(X, y, sample_weight=counts), X),
        outputs(make().fit(X.repeat(counts, axis=0), y.repeat(counts)), X),
        rtol=1e-5,
        atol=1e-7,
    )


def test_weights_of_series_enter_the_statistics():
    """D20."""
    counts = np.array([0, 1, 2, 3] * 3)
    repeated = [s for s, count in zip(SERIES, counts, strict=True) for _ in range(count)]
    np.testing.assert_allclose(
        make_regressor().fit(SERIES, SERIES_YR, sample_weight=counts).predict(SERIES),
        make_regressor().fit(repeated, SERIES_YR.repeat(counts)).predict(SERIES),
        rtol=1e-5,
        atol=1e-7,
    )


@both
@pytest.mark.parametrize(
    ("weights", "words"),
    [
        (np.zeros(64), r"(?is)weight.*zero|zero.*weight"),
        (np.r_[-1.0, np.ones(63)], r"(?is)weight.*negative|negative.*weight"),
        (np.r_[np.nan, np.ones(63)], r"(?is)weight.*NaN|NaN.*weight"),
        (np.r_[np.inf, np.ones(63)], r"(?is)weight.*inf|inf.*weight"),
    ],
    ids=["zero", "negative", "nan", "infinite"],
)
def test_weights_without_a_meaning_are_refused(make, y, weights, words):
    """D20."""
    with pytest.raises(ValueError, match=words):
        make().fit(X2, y, sample_weight=weights)


@both
def test_weights_are_routed_through_pipeline_and_grid_search(make, y):
    """D20."""
    weights = np.random.default_rng(0).integers(0, 3, size=64).astype(float)
    with sklearn.config_context(enable_metadata_routing=True):
        estimator = make().set_fit_request(sample_weight=True).set_score_request(sample_weight=True)
        scaler = StandardScaler().set_fit_request(sample_weight=False)
        search = GridSearchCV(make_pipeline(scaler, estimator), {f"{_step(make)}__d_ff": [4]}, cv=2)
        search.fit(X2D, y, sample_weight=weights)
    scaled = StandardScaler().fit_transform(X2D)
    direct = make(d_ff=4).fit(scaled, y, sample_weight=weights)
    np.testing.assert_allclose(outputs(search, X2D), outputs(direct, scaled), rtol=1e-6, atol=1e-9)


def _step(make):
    return type(make()).__name__.lower()


# --- D21: divergence -------------------------------------------------------------------------


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize(
    ("make", "X", "y"),
    [
        (make_regressor, X2 * 1e4, 1e6 * YR + 1e8),
        (make_regressor, X3D, YR),
        (make_classifier, X2, YC),
    ],
    ids=["regressor", "windows", "classifier"],
)
def test_diverging_constant_rate_stops_with_the_remedy(make, X, y, momentum):
    """D21: and the last good state is kept."""
    estimator = make(learning_rate=1e6, momentum=momentum, loss="squared_error")
    with pytest.raises(DivergenceError) as caught:
        estimator.fit(X, y)
    message = str(caught.value)
    assert "iteration" in message
    assert "learning_rate" in message
    assert "1000000" in message or "1e+06" in message or "1e6" in message
    assert "loss" in message
    assert "adaptive" in message
    rescued = caught.value.estimator
    assert np.isfinite(outputs(rescued, X)).all()
    assert math.isfinite(rescued.loss_)
    assert math.isfinite(rescued.best_loss_)
    assert all(math.isfinite(loss) for loss in rescued.loss_curve_[:-1])
    assert rescued.get_params() == estimator.get_params()


def test_diverging_candidates_do_not_stop_a_grid_search():
    """D21."""
    search = GridSearchCV(
        make_regressor(), {"learning_rate": [1e-2, 1e6]}, cv=3, error_score=np.nan
    )
    with recorded_warnings() as caught:
        search.fit(X2, YR)
    assert FitFailedWarning in [w.category for w in caught]
    np.testing.assert_array_equal(np.isnan(search.cv_results_["mean_test_score"]), [False, True])
    assert np.isfinite(search.predict(X2)).all()


@pytest.mark.parametrize("X", [X2, X3D * 1e6 + 1e8], ids=["table", "large windows"])
def test_units_of_the_target_do_not_matter(X):
    """D21: an untuned regressor explains 1e6*y + 1e8 as well as y."""
    plain = make_regressor(max_iter=200, tol=1e-4).fit(X, YR)
    large = make_regressor(max_iter=200, tol=1e-4).fit(X, 1e6 * YR + 1e8)
    score = plain.score(X, YR)
    assert score > 0.8
    assert abs(score - large.score(X, 1e6 * YR + 1e8)) < 1e-3


def test_default_rate_survives_extreme_data():
    """D21."""
    X = X2D * np.logspace(-6, 6, 72)
    X[0] *= 1e3
    estimator = make_regressor(max_iter=100).fit(X, np.exp(3 * YR))
    assert np.isfinite(estimator.predict(X)).all()
    losses = np.array(estimator.loss_curve_)
    assert (np.diff(losses) <= 1e-12 * losses[:-1]).all()


# --- D22: few samples, features, tokens ------------------------------------------------------


@both
@pytest.mark.parametrize("n", [1, 2, 3, 9])
@pytest.mark.parametrize("early_stopping", [True, "last"])
def test_too_few_samples_for_validation_are_refused_with_both_sizes(make, y, n, early_stopping):
    """D22: before training; or there are enough, and the fit succeeds."""
    y = y[:n] if make is make_regressor else np.resize(["a", "b"], n)
    estimator = make(early_stopping=early_stopping)
    message = refusal(estimator.fit, X2[:n], y)
    if message:
        assert "validation" in message
        assert "class" in message or len(re.findall(r"\d+", message)) >= 2
    else:
        assert n > 1
        assert np.isfinite(outputs(estimator, X2[:n])).all()
        assert len(estimator.validation_curve_) == estimator.n_iter_


def test_class_with_one_member_and_early_stopping():
    """D22: a stratified split is impossible; either it works, or the message says so."""
    y = np.where(np.arange(64) < 1, "rare", YC)
    estimator = make_classifier(early_stopping=True)
    message = refusal(estimator.fit, X2, y)
    if message:
        assert "rare" in message or "class" in message
    else:
        assert list(estimator.classes_) == ["neg", "pos", "rare"]


@both
def test_one_sample_is_enough_without_validation(make, y):
    """D22: or the message says how many there were."""
    estimator = make()
    message = refusal(estimator.fit, X2[:1], y[:1])
    if message:
        assert "1 sample" in message or "n_samples=1" in message
    else:
        assert np.isfinite(outputs(estimator, X2[:5])).all()


@both
@pytest.mark.parametrize(
    "X",
    [X2D[:, :1], X3D[:, :1], X3D[:, :, :1], X3D[:, :1, :1], [s[:, :1] for s in X3D]],
    ids=["one feature", "one token", "one channel", "one number", "series of one channel"],
)
def test_smallest_shapes_are_fitted(make, y, X):
    """D22."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RankCollapseWarning)
        estimator = make().fit(X, y)
    result = outputs(estimator, X)
    assert len(result) == 64
    assert np.isfinite(result).all()


# --- D23: own validation data ----------------------------------------------------------------

_SIGNAL = np.random.default_rng(5).normal(size=(531, 2)).cumsum(axis=0) / 10
WINDOWS = np.lib.stride_tricks.sliding_window_view(_SIGNAL, 8, axis=0).transpose(0, 2, 1)[:500]
AHEAD = _SIGNAL[11:511, 0]


def test_own_validation_data_is_used():
    """D23: the fit is that without them, stopped at the best validation loss."""
    train, held_out = slice(0, 400), slice(400, 500)
    estimator = make_regressor(early_stopping=True, max_iter=40, validation_fraction=0.5)
    estimator.fit(WINDOWS[train], AHEAD[train], X_val=WINDOWS[held_out], y_val=AHEAD[held_out])
    assert len(estimator.validation_curve_) == len(estimator.loss_curve_) == estimator.n_iter_
    assert estimator.best_iteration_ == 1 + np.argmin(estimator.validation_curve_)
    same = make_regressor(max_iter=estimator.best_iteration_)
    same.fit(WINDOWS[train], AHEAD[train])
    np.testing.assert_allclose(
        estimator.predict(WINDOWS), same.predict(WINDOWS), rtol=1e-6, atol=1e-9
    )


def test_last_block_can_be_the_validation_data():
    """D23: overlapping windows do not leak from one part into the other."""
    last = make_regressor(early_stopping="last", validation_fraction=0.2).fit(WINDOWS, AHEAD)
    own = make_regressor(early_stopping=True).fit(
        WINDOWS[:400], AHEAD[:400], X_val=WINDOWS[400:], y_val=AHEAD[400:]
    )
    np.testing.assert_allclose(last.validation_curve_, own.validation_curve_)
    np.testing.assert_allclose(last.predict(WINDOWS), own.predict(WINDOWS), rtol=1e-7)
    split = make_regressor(early_stopping=True, validation_fraction=0.2).fit(WINDOWS, AHEAD)
    assert not np.allclose(split.validation_curve_, own.validation_curve_)


@both_makers
def test_best_weights_are_restored_after_overfitting(make):
    """D23: labels are noise, so that the validation loss ends above its minimum."""
    rng = np.random.default_rng(7)
    noise = rng.normal(size=64) if make is make_regressor else rng.permutation(YC)
    estimator = make(early_stopping=True, max_iter=150, alpha=0.0, d_ff=32)
    estimator.fit(X2D[:40], noise[:40], X_val=X2D[40:], y_val=noise[40:])
    curve = estimator.validation_curve_
    best = int(np.argmin(curve))
    assert curve[-1] > min(curve)
    assert estimator.best_iteration_ == best + 1
    same = make(max_iter=best + 1, alpha=0.0, d_ff=32).fit(X2D[:40], noise[:40])
    np.testing.assert_allclose(outputs(estimator, X2D), outputs(same, X2D), rtol=1e-6, atol=1e-9)


@both
@pytest.mark.parametrize("max_iter", [1, 37])
def test_off_switch_runs_exactly_max_iter_iterations(make, y, max_iter):
    """D23: even when nothing is left to learn."""
    for X, target in ((X2, y), (X2[:4], np.resize(y[:2], 4))):
        estimator = make(max_iter=max_iter, early_stopping=False).fit(X, target)
        if len(np.unique(target)) > 1:
            assert estimator.n_iter_ == max_iter
            assert len(estimator.loss_curve_) == max_iter
        assert estimator.validation_curve_ is None or len(estimator.validation_curve_) == 0


def test_validation_data_are_routed():
    """D23."""
    with sklearn.config_context(enable_metadata_routing=True):
        estimator = make_regressor(early_stopping=True, max_iter=5).set_fit_request(
            X_val=True, y_val=True
        )
        pipeline = make_pipeline(estimator).fit(X2[:40], YR[:40], X_val=X2[40:], y_val=YR[40:])
    direct = make_regressor(early_stopping=True, max_iter=5).fit(
        X2[:40], YR[:40], X_val=X2[40:], y_val=YR[40:]
    )
    np.testing.assert_array_equal(pipeline.predict(X2), direct.predict(X2))


@pytest.mark.parametrize(
    ("validation", "words"),
    [
        ({"X_val": X2}, "y_val"),
        ({"y_val": YR}, "X_val"),
        ({"X_val": X2[:, :5], "y_val": YR}, "(?s)5.*72|72.*5"),
        ({"X_val": X2, "y_val": YR[:-1]}, "(?i)inconsistent|samples|length"),
        ({"X_val": np.full_like(X2, np.nan), "y_val": YR}, "NaN"),
        ({"X_val": X2, "y_val": np.full(64, np.nan)}, "NaN"),
    ],
    ids=["no-y", "no-x", "other-width", "short-y", "nan-x", "nan-y"],
)
def test_malformed_validation_data_are_refused(validation, words):
    """D23."""
    with pytest.raises(ValueError, match=words):
        make_regressor(early_stopping=True).fit(X2, YR, **validation)


def test_validation_labels_must_be_known():
    """D23."""
    with pytest.raises(ValueError, match="new"):
        make_classifier(early_stopping=True).fit(X2, YC, X_val=X2, y_val=["new"] * 64)


# --- D24: warm start -------------------------------------------------------------------------


@both
@pytest.mark.parametrize("X", [X2D, X3D], ids=["table", "windows"])
def test_two_warm_fits_are_one_longer_fit(make, y, X):
    """D24: to the last digit of the loss curve, momentum and step size included."""
    warm = make(warm_start=True, max_iter=30).fit(X, y)
    assert warm.n_iter_ == 30
    warm.fit(X, y)
    once = make(max_iter=60).fit(X, y)
    assert warm.n_iter_ == 30
    assert len(warm.loss_curve_) == 60
    np.testing.assert_allclose(warm.loss_curve_, once.loss_curve_, rtol=1e-6)
    np.testing.assert_allclose(outputs(warm, X), outputs(once, X), rtol=1e-6, atol=1e-9)


@both
def test_warm_start_goes_on_with_more_iterations(make, y):
    """D24: as pruners do, raising the budget step by step."""
    estimator = make(warm_start=True, max_iter=1)
    for step in range(1, 6):
        estimator.fit(X2D, y)
        assert estimator.n_iter_ == 1
        assert len(estimator.loss_curve_) == step
    once = make(max_iter=5).fit(X2D, y)
    np.testing.assert_allclose(estimator.loss_curve_, once.loss_curve_, rtol=1e-6)


@both
def test_cold_refit_restarts_from_the_same_weights(make, y):
    """D24."""
    estimator = make().fit(X2, y)
    curve, expected = list(estimator.loss_curve_), outputs(estimator, X2)
    estimator.fit(X2[::-1], y)
    estimator.fit(X2, y)
    assert estimator.loss_curve_ == curve
    np.testing.assert_array_equal(outputs(estimator, X2), expected)


def test_warm_start_refuses_data_of_another_kind():
    """D24: and keeps the model it had."""
    estimator = make_classifier(warm_start=True).fit(X3, YC)
    before = estimator.predict_proba(X3)
    with pytest.raises(ValueError, match=r"(?is)class"):
        estimator.fit(X3, np.where(YR > 0, "pos", "new"))
    with pytest.raises(ValueError, match=r"(?is)class"):
        estimator.fit(X3, np.digitize(YR, [-1, 1]).astype(str))
    with pytest.raises(ValueError, match=r"(?s)20.*24|24.*20"):
        estimator.fit(X3[:, :20], YC)
    with pytest.raises(ValueError, match=r"(?s)2.*3|3.*2"):
        estimator.fit(X3[:, :, :2], YC)
    np.testing.assert_array_equal(estimator.predict_proba(X3), before)
    regressor = make_regressor(warm_start=True).fit(X2, YR)
    with pytest.raises(ValueError, match=r"(?is)output|target"):
        regressor.fit(X2, np.c_[YR, YR])


# --- D25: warnings about convergence ---------------------------------------------------------


@both
@pytest.mark.parametrize("max_iter", [1, 2, 5, 20])
def test_at_most_one_convergence_warning_per_fit(make, y, max_iter):
    """D25: if there is one, it tells the number of iterations and the last change."""
    with recorded_warnings() as caught:
        estimator = make(max_iter=max_iter, tol=1e-4).fit(X2, y)
    assert len(caught) <= 1
    for warning in caught:
        assert warning.category is ConvergenceWarning
        assert str(estimator.n_iter_) in str(warning.message)
        assert "loss" in str(warning.message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", category=ConvergenceWarning)
        make(max_iter=max_iter, tol=1e-4).fit(X2, y)


def test_fit_cut_short_while_falling_fast_warns_for_the_user():
    """D25: attributed to the line that called fit, not to a line of ours."""
    with recorded_warnings() as caught:
        make_regressor(max_iter=3, tol=1e-4).fit(X3, YR)
    assert [w.category for w in caught] == [ConvergenceWarning]
    assert "max_iter" in str(caught[0].message)


@both
@pytest.mark.parametrize("max_iter", [1, 5])
def test_fixed_budget_never_warns(make, y, max_iter):
    """D25: tol=None says that the budget is meant."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make(max_iter=max_iter, tol=None).fit(X2, y)


@pytest.mark.parametrize("n_jobs", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_filtered_convergence_warnings_stay_silent_in_a_grid_search(n_jobs, capfd):
    """D25: in the workers as well."""
    grid = {"residual_beta": [0.0, 1.0]}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=ConvergenceWarning)
        GridSearchCV(make_regressor(max_iter=5, tol=1e-4), grid, cv=3, n_jobs=n_jobs).fit(X2, YR)
    printed = capfd.readouterr()
    assert "Warning" not in printed.out + printed.err


# --- D26: history and callbacks --------------------------------------------------------------


@both
def test_training_curves_survive_cross_validation(make, y):
    """D26."""
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


@both
def test_empty_list_of_callbacks_is_none(make, y):
    """D26."""
    none = make(callbacks=None).fit(X2, y)
    empty = make(callbacks=[]).fit(X2, y)
    assert empty.loss_curve_ == none.loss_curve_
    np.testing.assert_array_equal(outputs(empty, X2), outputs(none, X2))


@both
def test_callback_sees_every_iteration_and_changes_nothing(make, y):
    """D26."""
    callback = CountingCallback()
    callbacks = [callback]
    estimator = make(callbacks=callbacks).fit(X2, y)
    assert estimator.loss_curve_ == make().fit(X2, y).loss_curve_
    assert estimator.callbacks is callbacks
    assert callbacks == [callback]
    assert vars(callback) == {}
    used = [c for c in estimator.callbacks_ if isinstance(c, CountingCallback)]
    assert [c.epochs_ for c in used] == [list(range(1, 21))]


@both
def test_callbacks_survive_clone_pickle_and_grid_search(make, y):
    """D26."""
    estimator = make(callbacks=[CountingCallback()])
    copied = clone(estimator).fit(X2, y)
    assert copied.callbacks[0] is not estimator.callbacks[0]
    np.testing.assert_array_equal(
        outputs(pickle.loads(pickle.dumps(copied)), X2), outputs(copied, X2)
    )
    search = GridSearchCV(estimator, {"d_ff": [4, 8]}, cv=2, error_score="raise").fit(X2, y)
    used = [c for c in search.best_estimator_.callbacks_ if isinstance(c, CountingCallback)]
    assert [len(c.epochs_) for c in used] == [20]
    assert vars(estimator.callbacks[0]) == {}


@pytest.mark.parametrize("search", [False, True])
def test_callback_that_cannot_be_copied_works_in_one_process(search):
    """D26."""
    lock = threading.Lock()
    callback = LockCallback(lock)
    estimator = make_regressor(callbacks=[callback])
    if search:
        grid = GridSearchCV(estimator, {"d_ff": [4, 8]}, cv=2, n_jobs=1, error_score="raise")
        assert grid.fit(X2, YR).predict(X2).shape == (64,)
    else:
        assert estimator.fit(X2, YR).predict(X2).shape == (64,)
    assert estimator.callbacks[0] is callback
    assert vars(callback) == {"lock": lock}


@pytest.mark.parametrize("bad", ["progress", [object()], 3])
def test_objects_that_are_no_callbacks_are_refused(bad):
    """D26."""
    with pytest.raises((ValueError, TypeError), match="callback"):
        make_regressor(callbacks=bad).fit(X2, YR)


@both
@pytest.mark.parametrize("search", [False, True])
def test_scikit_learn_callbacks_are_supported(make, y, search, capfd):
    """D26."""
    callback_module = pytest.importorskip(
        "sklearn.callback", reason="scikit-learn before 1.9 has no callbacks"
    )
    pytest.importorskip("rich")
    progress = callback_module.ProgressBar()
    scoring = "r2" if make is make_regressor else "accuracy"
    monitor = callback_module.ScoringMonitor(scoring=scoring)
    estimator = make(max_iter=4)
    if search:  # scikit-learn wants callbacks for all levels on the outermost estimator
        estimator = GridSearchCV(estimator.set_callbacks(monitor), {"d_ff": [4, 8]}, cv=2)
        estimator.set_params(error_score="raise").set_callbacks(progress).fit(X2, y)
    else:
        estimator.set_callbacks(progress, monitor).fit(X2, y)
        assert estimator.loss_curve_ == make(max_iter=4).fit(X2, y).loss_curve_
    capfd.readouterr()
    scores = monitor.get_logs().data_as_pandas[scoring]
    assert len(scores) >= 4
    assert np.isfinite(scores).all()


# --- D27: spectra that do not fail -----------------------------------------------------------

_DUPLICATED = np.concatenate([X3D, X3D[:, :, :1]], axis=2)


@pytest.mark.parametrize("diagnostics", [True, "full"])
@pytest.mark.parametrize(
    ("X", "y"),
    [
        (_DUPLICATED, YR),
        (np.concatenate([X3D, X3D[:, :, :1] + 1e-9], axis=2), YR),
        (np.ones((64, 24, 3)), YR),
        (np.ones((64, 6)), YR),
        (X3D[:1], YR[:1]),
        (X2D[:, :1], YR),
        (X3D[:, :, :1], YR),
        (X3D[:, :1], YR),
        (np.repeat(X3D[:1], 64, axis=0), YR),
        (X3D * 1e-12, YR),
        (SERIES, SERIES_YR),
        (X3D, np.zeros(64)),
    ],
    ids=[
        "duplicate",
        "near-duplicate",
        "constant windows",
        "constant table",
        "one sample",
        "one feature",
        "one channel",
        "one token",
        "equal samples",
        "tiny",
        "series",
        "constant target",
    ],
)
def test_diagnostics_of_degenerate_data_are_numbers(X, y, diagnostics):
    """D27: plain floats, never negative; NaN only where there is nothing to measure."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RankCollapseWarning)
        estimator = make_regressor(diagnostics=diagnostics, max_iter=8).fit(X, y)
    report = estimator.convergence_diagnostics_
    for name in ("sigma_min", "norm", "condition_ratio", "effective_rank", "rank1_residual"):
        value = getattr(report, name)
        assert type(value) is float, name
        assert math.isnan(value) or value >= 0, name
    for name in ("rate", "predicted_rate", "rate_r2", "stable_rank"):
        assert type(getattr(report, name)) is float, name
    assert type(report.certified) is bool
    assert not report.sigma_min > report.norm * (1 + 1e-12)
    assert isinstance(repr(report), str)
    assert report.summary() is not None
    assert len(report.to_frame()) > 0


@both
def test_reading_diagnostics_has_no_side_effects(make, y):
    """D27: not on the model, not on any random generator, not on memory."""
    estimator = make(diagnostics="full").fit(X3, y)
    before = outputs(estimator, X3)
    state = np.random.get_state()[1].copy(), torch.random.get_rng_state()
    first = repr(estimator.convergence_diagnostics_)
    tensors = live_tensors()
    for _ in range(50):
        report = estimator.convergence_diagnostics_
        report.summary()
        report.to_frame()
        assert repr(report) == first
    assert live_tensors() == tensors
    np.testing.assert_array_equal(np.random.get_state()[1], state[0])
    assert torch.equal(torch.random.get_rng_state(), state[1])
    np.testing.assert_array_equal(outputs(estimator, X3), before)


@linux_only
def test_reading_diagnostics_takes_no_memory():
    """D27."""
    estimator = make_regressor(diagnostics="full").fit(X3, YR)
    estimator.convergence_diagnostics_.to_frame()
    with ExtraMemory() as extra:
        for _ in range(50):
            estimator.convergence_diagnostics_.to_frame()
    assert extra.peak < 20e6


def test_failing_svd_gives_nan_with_a_reason_and_the_fit_survives(monkeypatch):
    """D27."""
    expected = make_regressor().fit(X3D, YR).predict(X3D)

    def fail_numpy(*args, **kwargs):
        raise np.linalg.LinAlgError("SVD did not converge")

    def fail_torch(*args, **kwargs):
        raise torch.linalg.LinAlgError("linalg.svd: The algorithm failed to converge")

    for module in (np.linalg, scipy.linalg):
        monkeypatch.setattr(module, "svd", fail_numpy)
        monkeypatch.setattr(module, "svdvals", fail_numpy)
    monkeypatch.setattr(torch.linalg, "svd", fail_torch)
    monkeypatch.setattr(torch.linalg, "svdvals", fail_torch)
    estimator = make_regressor().fit(X3D, YR)
    np.testing.assert_array_equal(estimator.predict(X3D), expected)
    report = estimator.convergence_diagnostics_
    assert math.isnan(report.sigma_min)
    assert "converge" in str(report.reasons)


def test_diagnostics_of_a_rescued_model_are_numbers():
    """D27: after divergence."""
    with pytest.raises(DivergenceError) as caught:
        make_regressor(learning_rate=1e6, diagnostics="full").fit(X3, YR)
    report = caught.value.estimator.convergence_diagnostics_
    assert report.sigma_min >= 0
    assert type(report.rate) is float
    assert isinstance(repr(report), str)


# --- D28: values that cannot be used ---------------------------------------------------------


def _spoiled(X, value, index=3):
    X = X.copy()
    X.reshape(-1)[index] = value
    return X


@both
@pytest.mark.parametrize("X", [X2, X2D, X3, X3D], ids=["table32", "table64", "win32", "win64"])
@pytest.mark.parametrize(
    ("value", "words"), [(np.nan, "Input X contains NaN"), (np.inf, "infinity"), (-np.inf, "inf")]
)
def test_nan_and_infinity_in_x_are_refused(make, y, X, value, words):
    """D28: at fit and at predict."""
    with pytest.raises(ValueError, match=words):
        make().fit(_spoiled(X, value), y)
    estimator = make(max_iter=1, diagnostics=False).fit(X, y)
    with pytest.raises(ValueError, match=words):
        estimator.predict(_spoiled(X, value))


def test_nan_inside_a_real_token_is_refused_even_where_nan_is_padding():
    """D28: a step of which one channel is missing is not padding."""
    padded = pad(SERIES, 16, np.nan)
    padded[3, 1, 2] = np.nan
    with pytest.raises(ValueError, match="NaN"):
        make_regressor(padding_value=np.nan).fit(padded, SERIES_YR)
    spoiled = [s.copy() for s in SERIES]
    spoiled[3][1, 2] = np.nan
    with pytest.raises(ValueError, match="NaN"):
        make_regressor().fit(spoiled, SERIES_YR)


@pytest.mark.parametrize("dtype", ["auto", "float32"])
@pytest.mark.parametrize("X", [X2D, X3D], ids=["table", "windows"])
def test_values_beyond_single_precision_are_fitted_or_refused(X, dtype):
    """D28: never turned into infinity silently."""
    estimator = make_regressor(dtype=dtype)
    spoiled = _spoiled(X, 1e39, index=0)
    message = refusal(estimator.fit, spoiled, YR)
    if message:
        assert "too large" in message
    else:
        assert np.isfinite(estimator.predict(spoiled)).all()
        assert np.isfinite(estimator.loss_curve_).all()


@both
@pytest.mark.parametrize("constant", [0.0, 5.0, 1e8, -1e-12])
@pytest.mark.parametrize("ndim", [2, 3])
def test_constant_channel_is_harmless(make, y, constant, ndim):
    """D28: no division by zero, also when the channel varies at predict."""
    X = X3.copy()
    X[:, :, 1] = constant
    later = X3.copy()
    if ndim == 2:
        X, later = X.reshape(64, -1), later.reshape(64, -1)
    for dtype in ("float32", "float64"):
        estimator = make(dtype=dtype, max_iter=8).fit(X, y)
        assert np.isfinite(estimator.loss_curve_).all()
        assert np.isfinite(outputs(estimator, X)).all()
        assert np.isfinite(outputs(estimator, later)).all()


@both
def test_channel_of_tiny_scale_is_used_like_any_other(make, y):
    """D28."""
    X = X3D.copy()
    X[:, :, 0] *= 1e-30
    np.testing.assert_allclose(
        outputs(make().fit(X, y), X), outputs(make().fit(X3D, y), X3D), rtol=1e-5, atol=1e-7
    )


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_nan_and_infinity_in_y_are_refused(value):
    """D28: in one target, in one of several, and per token."""
    words = r"(?i)y contains (NaN|infinity)"
    with pytest.raises(ValueError, match=words):
        make_regressor().fit(X2, _spoiled(YR, value))
    with pytest.raises(ValueError, match=words):
        make_regressor().fit(X2, _spoiled(np.c_[YR, YR], value))
    with pytest.raises(ValueError, match=r"NaN|infinity"):
        make_regressor(pooling="none").fit(X3, _spoiled(X3[:, :, 0], value))
    with warnings.catch_warnings():
        # scikit-learn looks for fractional labels before it looks for infinite ones
        warnings.filterwarnings("ignore", "invalid value encountered in cast", RuntimeWarning)
        with pytest.raises(ValueError, match=r"NaN|infinity|Unknown label type"):
            make_classifier().fit(X2, _spoiled((YR > 0).astype(float), value))
