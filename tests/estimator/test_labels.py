"""Labels of any kind come back as they were given."""

import pickle

import numpy as np
import pytest

from tests.builders import X2, YC, YR, make_classifier


@pytest.mark.parametrize(
    "y",
    [np.c_[YR > 0, YR < 0.5].astype(int), np.c_[YC, YC]],
    ids=["multilabel", "multi-output"],
)
def test_classifier_refuses_several_targets_by_name_case_d17(y):
    with pytest.raises(ValueError, match=r"(?i)multilabel|multi-?output"):
        make_classifier().fit(X2, y)


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
def test_labels_of_any_kind_are_returned_as_given_case_d18(y, early_stopping):
    """With and without early stopping."""
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


def test_encoding_of_the_labels_does_not_change_the_probabilities_case_d18():
    expected = make_classifier().fit(X2, _SIDE).predict_proba(X2)
    for y in (np.where(_SIDE, "pos", "neg"), np.where(_SIDE, 7, 3), _SIDE.astype(float)):
        np.testing.assert_array_equal(make_classifier().fit(X2, y).predict_proba(X2), expected)


@pytest.mark.parametrize("loss", ["log_loss", "squared_error"])
@pytest.mark.parametrize("early_stopping", [False, True])
def test_continuous_labels_are_refused_case_d18(loss, early_stopping):
    with pytest.raises(ValueError, match="Unknown label type"):
        make_classifier(loss=loss, early_stopping=early_stopping).fit(X2, YR)


@pytest.mark.parametrize("loss", ["log_loss", "squared_error"])
@pytest.mark.parametrize("weighted", [False, True])
def test_single_class_is_predicted_for_certain_case_d19(weighted, loss):
    """Whether the others are missing or carry no weight."""
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


def test_class_with_one_member_is_fitted_case_d19():
    y = YC.copy().astype("U4")
    y[0] = "rare"
    estimator = make_classifier().fit(X2, y)
    assert list(estimator.classes_) == ["neg", "pos", "rare"]
    assert np.isfinite(estimator.predict_proba(X2)).all()
