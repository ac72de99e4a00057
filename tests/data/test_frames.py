"""Data frames: rows by position, columns by name, and their missing values."""

import numpy as np
import pandas as pd
import pytest

from tests.builders import X6, YC, YR, both, make_classifier, make_regressor
from tests.tools import outputs

NAMES = [f"feature {i}" for i in range(6)]


def _shuffled_frame():
    """Return a frame and a series whose indices disagree; pairing goes by position."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(X6, columns=NAMES, index=rng.permutation(64))
    return frame, pd.Series(YR, index=rng.permutation(64) + 100, name="target")


def test_pandas_rows_are_paired_by_position_case_d15():
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


def test_pandas_labels_come_back_as_they_were_case_d15():
    """String and categorical columns of labels."""
    frame, _ = _shuffled_frame()
    expected = make_classifier().fit(X6, YC).predict_proba(X6)
    for labels in (pd.Series(YC), pd.Series(YC, dtype=object), pd.Series(YC, dtype="category")):
        estimator = make_classifier().fit(frame, labels)
        assert list(estimator.classes_) == ["neg", "pos"]
        np.testing.assert_allclose(estimator.predict_proba(frame), expected, rtol=1e-7)


def test_polars_frames_are_accepted_with_their_names_case_d15():
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
def test_numeric_columns_of_any_kind_are_accepted_case_d15(dtype):
    """Object columns of numbers and nullable columns without a missing value."""
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
def test_missing_values_and_text_are_refused_in_scikit_learn_words_case_d15(make, y, kind):
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


@both
def test_names_are_checked_at_predict_case_d15(make, y):
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
