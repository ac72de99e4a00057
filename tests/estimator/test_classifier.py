"""The classifier: labels in, labels and probabilities out."""

import warnings

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from scipy.special import expit, logsumexp, softmax
from sklearn.datasets import load_digits, load_iris
from sklearn.metrics import accuracy_score

from sklearn_restf import ResidualTransformerClassifier
from tests.builders import X2D, X3D, YC, YR, make_classifier

Y_THREE = np.digitize(YR, [-1, 1])
targets = pytest.mark.parametrize("y", [YC, Y_THREE], ids=["two", "three"])
losses = pytest.mark.parametrize("loss", ["log_loss", "squared_error"])


@targets
@losses
def test_outputs_fit_together(y, loss):
    estimator = make_classifier(loss=loss).fit(X2D, y)
    k = len(np.unique(y))
    scores, p = estimator.decision_function(X2D), estimator.predict_proba(X2D)
    assert scores.shape == ((64,) if k == 2 else (64, k))
    assert p.shape == (64, k)
    assert p.dtype == scores.dtype == np.float64
    assert (p >= 0).all()
    np.testing.assert_allclose(p.sum(axis=1), 1.0, rtol=1e-12)
    by_score = (scores > 0).astype(int) if k == 2 else scores.argmax(axis=1)
    np.testing.assert_array_equal(estimator.predict(X2D), estimator.classes_[by_score])
    surest = p.max(axis=1) > np.sort(p, axis=1)[:, -2]  # clipping makes ties
    assert surest.mean() > 0.5
    np.testing.assert_array_equal(p.argmax(axis=1)[surest], by_score[surest])
    with np.errstate(divide="ignore"):
        np.testing.assert_allclose(
            estimator.predict_log_proba(X2D), np.log(p), rtol=1e-9, atol=1e-12
        )
    assert estimator.score(X2D, y) == accuracy_score(y, estimator.predict(X2D))


def test_log_loss_probabilities_are_those_of_the_logits():
    two = make_classifier().fit(X2D, YC)
    scores = two.decision_function(X2D)
    np.testing.assert_allclose(two.predict_proba(X2D)[:, 1], expit(scores), rtol=1e-12)
    three = make_classifier().fit(X2D, Y_THREE)
    logits = three.decision_function(X2D)
    np.testing.assert_allclose(three.predict_proba(X2D), softmax(logits, axis=1), rtol=1e-12)


@losses
def test_two_class_probabilities_rank_as_the_scores_do(loss):
    """Else the area under the ROC curve would depend on which of them a scorer takes."""
    estimator = make_classifier(loss=loss, max_iter=10).fit(X2D, YC)
    order = np.argsort(estimator.decision_function(X2D))
    assert (np.diff(estimator.predict_proba(X2D)[order, 1]) >= 0).all()


@targets
def test_log_probabilities_stay_finite_for_certain_samples(y):
    """Logits in the thousands: the probability is 0, its logarithm is not."""
    estimator = make_classifier(alpha=0.0).fit(X3D, y)
    far = 1e4 * X3D
    assert (estimator.predict_proba(far) == 0).any()
    log_p = estimator.predict_log_proba(far)
    assert np.isfinite(log_p).all()
    np.testing.assert_allclose(logsumexp(log_p, axis=1), 0.0, atol=1e-9)


@targets
def test_first_guess_is_the_class_frequencies(y):
    """Nothing to learn from a constant X: what is left are the weighted frequencies."""
    weight = np.arange(64) % 5
    estimator = make_classifier(alpha=0.0).fit(np.ones((64, 3)), y, sample_weight=weight)
    frequencies = [weight[y == label].sum() / weight.sum() for label in np.unique(y)]
    np.testing.assert_allclose(estimator.predict_proba(np.ones((1, 3)))[0], frequencies, rtol=1e-6)


def test_class_weights_multiply_the_sample_weights():
    weight = 1.0 + np.arange(64) % 3
    weights = {"neg": 0.5, "pos": 4.0}
    one = make_classifier(class_weight=weights).fit(X2D, YC, sample_weight=weight)
    other = make_classifier().fit(X2D, YC, sample_weight=weight * np.where(YC == "neg", 0.5, 4.0))
    np.testing.assert_allclose(one.predict_proba(X2D), other.predict_proba(X2D), rtol=1e-7)
    plain = make_classifier().fit(X2D, YC, sample_weight=weight)
    assert one.predict_proba(X2D)[:, 1].mean() > plain.predict_proba(X2D)[:, 1].mean()


def test_class_of_weight_zero_is_as_good_as_absent():
    one = make_classifier(class_weight={0: 1, 1: 1, 2: 0}).fit(X2D, Y_THREE)
    other = make_classifier().fit(X2D[Y_THREE < 2], Y_THREE[Y_THREE < 2])
    np.testing.assert_array_equal(one.classes_, other.classes_)
    np.testing.assert_allclose(one.predict_proba(X2D), other.predict_proba(X2D), rtol=1e-7)


def test_balanced_means_equal_shares():
    y = np.where(np.arange(64) % 8 == 0, "rare", "common")
    estimator = make_classifier(class_weight="balanced", alpha=0.0).fit(np.ones((64, 2)), y)
    np.testing.assert_allclose(estimator.predict_proba(np.ones((1, 2))), 0.5, rtol=1e-9)


def test_balance_counts_samples_by_their_weights():
    """A sample of weight 2 is two samples, here as well; of next to no weight, next to none."""
    y, weight = Y_THREE, 1.0 + (np.arange(64) < 32)
    one = make_classifier(class_weight="balanced").fit(X2D, y, sample_weight=weight)
    rows = np.repeat(np.arange(64), weight.astype(int))
    other = make_classifier(class_weight="balanced").fit(X2D[rows], y[rows])
    np.testing.assert_allclose(one.predict_proba(X2D), other.predict_proba(X2D), rtol=1e-7)
    absent = make_classifier(class_weight="balanced").fit(X2D[:32], y[:32])
    faint = np.where(np.arange(64) < 32, 1.0, 1e-12)
    near = make_classifier(class_weight="balanced").fit(X2D, y, sample_weight=faint)
    np.testing.assert_allclose(near.predict_proba(X2D), absent.predict_proba(X2D), rtol=1e-6)


@pytest.mark.parametrize("scale", [5e-324, 1e-300, 1e308])
def test_only_ratios_of_class_weights_matter(scale):
    scaled = make_classifier(class_weight={"neg": scale, "pos": scale}).fit(X2D, YC)
    plain = make_classifier().fit(X2D, YC)
    np.testing.assert_allclose(scaled.predict_proba(X2D), plain.predict_proba(X2D), rtol=1e-7)


def test_names_of_the_classes_do_not_matter():
    one = make_classifier().fit(X2D, Y_THREE)
    other = make_classifier().fit(X2D, np.array(["x", "y", "z"])[Y_THREE])
    assert one.loss_curve_ == other.loss_curve_
    np.testing.assert_array_equal(one.predict_proba(X2D), other.predict_proba(X2D))
    np.testing.assert_array_equal(np.array(["x", "y", "z"])[one.predict(X2D)], other.predict(X2D))


@losses
def test_swapping_two_classes_swaps_their_probabilities(loss):
    y = (YC == "pos").astype(int)
    one = make_classifier(loss=loss, max_iter=100).fit(X2D, y)
    other = make_classifier(loss=loss, max_iter=100).fit(X2D, 1 - y)
    assert one.score(X2D, y) > 0.9
    assert other.score(X2D, 1 - y) > 0.9


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_labels_that_are_not_finite_are_refused_without_other_noise(value):
    """A ValueError, no RuntimeWarning of a cast before it."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ValueError, match=r"Input y contains (NaN|infinity)"):
            make_classifier().fit(X2D, np.where(np.arange(64) < 5, value, 1.0))


@pytest.mark.parametrize(
    "labels",
    [
        pd.Series(YC, dtype="string"),
        pd.Series(YC, dtype="category"),
        pd.Series(YC == "pos", dtype="boolean"),
        pd.Series(pd.to_datetime(np.where(YC == "pos", "2025-01-01", "2026-01-01"))),
        pd.Series(YC, dtype=object),
    ],
    ids=lambda labels: str(labels.dtype),
)
def test_missing_labels_of_pandas_are_called_so(labels):
    y = labels.copy()
    y[3] = pd.NA if y.dtype == object else None
    with pytest.raises(ValueError, match="Input y contains NaN"):
        make_classifier().fit(X2D, y)
    with pytest.raises(ValueError, match="Input y_val contains NaN"):
        make_classifier().fit(X2D, labels, X_val=X2D, y_val=y)


@pytest.mark.parametrize("other", [YC.astype(object), YC], ids=["objects", "strings"])
def test_labels_of_another_kind_are_unknown(other):
    with pytest.raises(ValueError, match=r"y_val contains class labels .* \['neg' 'pos'\]"):
        make_classifier().fit(X2D, Y_THREE, X_val=X2D, y_val=other)


def test_sparse_labels_are_refused_as_such():
    with pytest.raises(TypeError, match="Sparse data was passed for y"):
        make_classifier().fit(X2D, sparse.csr_matrix(YC[:, None] == "pos"))


@pytest.mark.parametrize("label", [None, "", b"bytes"], ids=repr)
def test_odd_labels(label):
    y = np.array([label, "b"] * 32, dtype=object)
    if label == "":
        estimator = make_classifier().fit(X2D, y)
        assert set(estimator.predict(X2D)) <= {"", "b"}
    else:
        with pytest.raises((ValueError, TypeError)):
            make_classifier().fit(X2D, y)


def test_labels_of_the_test_set_may_be_new_to_score():
    estimator = make_classifier().fit(X2D, YC)
    assert estimator.score(X2D, np.full(64, "other")) == 0.0


def test_changing_the_loss_after_fit_does_not_change_predictions():
    """What was fitted is what predicts."""
    estimator = make_classifier().fit(X2D, YC)
    before = estimator.predict_proba(X2D), estimator.decision_function(X2D)
    estimator.set_params(loss="squared_error")
    np.testing.assert_array_equal(estimator.predict_proba(X2D), before[0])
    np.testing.assert_array_equal(estimator.decision_function(X2D), before[1])


@losses
def test_defaults_learn_iris(loss):
    X, y = load_iris(return_X_y=True)
    estimator = ResidualTransformerClassifier(loss=loss, random_state=0).fit(X[::2], y[::2])
    assert estimator.score(X[1::2], y[1::2]) > 0.9


def test_defaults_learn_digits():
    X, y = load_digits(return_X_y=True)
    estimator = ResidualTransformerClassifier(random_state=0, max_iter=100, tol=None)
    assert estimator.fit(X[:600], y[:600]).score(X[600:1200], y[600:1200]) > 0.85


def test_many_classes():
    y = np.arange(64) % 20
    estimator = make_classifier().fit(X2D, y)
    assert estimator.predict_proba(X2D).shape == (64, 20)
