"""Sample and class weights: what they mean, and what they cannot be."""

import numpy as np
import pytest
from sklearn.ensemble import AdaBoostClassifier
from sklearn.utils import compute_sample_weight

from sklearn_restf import ResidualTransformerClassifier
from tests.builders import (
    FEW_STEPS,
    ROW_LABELS,
    ROWS,
    SERIES,
    SERIES_YR,
    X2,
    X2D,
    X3,
    X3D,
    YC,
    both,
    both_estimators,
    make_classifier,
    make_regressor,
)
from tests.tools import outputs

_RARE = np.where(np.arange(64) < 4, "pos", "neg")


@pytest.mark.parametrize("loss", ["log_loss", "squared_error"])
def test_balanced_class_weight_is_the_balanced_sample_weight_case_d20(loss):
    balanced = make_classifier(class_weight="balanced", loss=loss).fit(X2D, _RARE)
    weights = compute_sample_weight("balanced", _RARE)
    weighted = make_classifier(loss=loss).fit(X2D, _RARE, sample_weight=weights)
    np.testing.assert_allclose(
        balanced.predict_proba(X2D), weighted.predict_proba(X2D), rtol=1e-5, atol=1e-8
    )
    plain = make_classifier(loss=loss).fit(X2D, _RARE)
    rare = _RARE == "pos"
    assert balanced.predict_proba(X2D)[rare, 1].mean() > plain.predict_proba(X2D)[rare, 1].mean()


def test_class_weight_is_a_mapping_of_labels_case_d20():
    """And multiplies the sample weights."""
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
def test_weight_zero_is_a_dropped_row_and_weight_two_a_repeated_row_case_d20(make, y, X):
    """In the loss and in the statistics that scale X and y."""
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


def test_weights_of_series_enter_the_statistics_case_d20():
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
def test_weights_without_a_meaning_are_refused_case_d20(make, y, weights, words):
    with pytest.raises(ValueError, match=words):
        make().fit(X2, y, sample_weight=weights)


@both
@pytest.mark.parametrize("X", [X2, X3], ids=["table", "windows"])
@pytest.mark.parametrize("early_stopping", [False, True])
def test_scale_of_the_weights_does_not_matter_case_h9(make, y, X, early_stopping):
    """With the default alpha, the loss being the weighted mean."""
    X = X.astype("float64")

    def fit(weights):
        estimator = make(early_stopping=early_stopping, max_iter=10)
        estimator.fit(X, y, sample_weight=weights)
        return estimator.n_iter_, outputs(estimator, X)

    n_iter, expected = fit(None)
    for constant in (1.0, 1e-4, 1e4, 1e-300):
        again, result = fit(np.full(64, constant))
        assert again == n_iter
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-7)
    weights = np.random.default_rng(0).uniform(0.1, 3, size=64)
    n_iter, expected = fit(weights)
    for factor in (1e-6, 1e6):
        again, result = fit(factor * weights)
        assert again == n_iter
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-7)
    assert not np.allclose(expected, fit(None)[1], rtol=1e-3)


def test_boosting_with_weights_that_sum_to_one_learns_case_h9():
    boosted = AdaBoostClassifier(make_classifier(max_iter=60), n_estimators=3, random_state=0)
    assert boosted.fit(X2, YC).score(X2, YC) > 0.75


@both_estimators
@pytest.mark.parametrize(
    "weight",
    ["heavy", ["a"] * 6, np.full(6, 1j), np.ones((6, 2)), {}],
    ids=["a word", "words", "complex", "two columns", "a dict"],
)
def test_unusable_weights_are_named(estimator, weight):
    with pytest.raises((ValueError, TypeError), match="sample_weight"):
        estimator.fit(ROWS, ROW_LABELS, weight)


@pytest.mark.parametrize("labels", [ROW_LABELS, np.arange(6) % 3], ids=["two", "three"])
@pytest.mark.parametrize("loss", ["log_loss", "squared_error"])
@pytest.mark.parametrize("small", [1e-300, 5e-324])
def test_a_class_of_next_to_no_weight(labels, loss, small):
    weight = np.where(labels == 0, small, 1.0)
    model = ResidualTransformerClassifier(**FEW_STEPS, loss=loss).fit(ROWS, labels, weight)
    probabilities = model.predict_proba(ROWS)
    assert np.isfinite(probabilities).all()
    if loss == "log_loss":
        assert (model.predict(ROWS) > 0).all()
    again = ResidualTransformerClassifier(**FEW_STEPS, loss=loss).fit(ROWS, labels, 1.0 - weight)
    assert np.isfinite(again.predict_proba(ROWS)).all()


@pytest.mark.parametrize("labels", [["a"] * 6, ["a", "b"] * 3], ids=["one", "two"])
def test_class_weights_that_leave_nothing_are_refused(labels):
    model = ResidualTransformerClassifier(**FEW_STEPS, class_weight={"a": 0.0, "b": 0.0})
    with pytest.raises(ValueError, match=r"class_weight=.* leaves no sample"):
        model.fit(ROWS, labels)
