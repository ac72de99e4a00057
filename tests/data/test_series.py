"""Series of unequal length, and what is refused of them."""

import numpy as np
import pytest

from tests.builders import SERIES, SERIES_YR, X3D, YR, both_on_series, make_regressor
from tests.tools import outputs


@both_on_series
@pytest.mark.parametrize("length", [1, 7, 16, 30])
def test_series_of_other_lengths_are_predicted_case_d5(make, y, length):
    """Shorter than any, all alike, and longer than any series seen in training."""
    estimator = make().fit(SERIES, y)
    series = [np.random.default_rng(i).normal(size=(length, 3)) for i in range(4)]
    result = outputs(estimator, series)
    assert result.shape[0] == 4
    assert np.isfinite(result).all()
    np.testing.assert_allclose(outputs(estimator, np.stack(series)), result, rtol=1e-7)
    np.testing.assert_allclose(outputs(estimator, series[:1]), result[:1], rtol=1e-7)


def test_series_longer_than_the_learned_positions_are_refused_with_both_lengths_case_d5():
    estimator = make_regressor(positional_encoding="learned").fit(SERIES, SERIES_YR)
    assert np.isfinite(estimator.predict([s[:4] for s in SERIES])).all()
    with pytest.raises(ValueError, match=r"(?s)(30.*16|16.*30)"):
        estimator.predict([np.zeros((30, 3))])


def test_equal_series_in_a_list_match_the_3d_array_case_d5():
    as_list = make_regressor(pooling="mean").fit(list(X3D), YR)
    as_array = make_regressor(pooling="mean").fit(X3D, YR)
    np.testing.assert_allclose(as_list.predict(list(X3D)), as_array.predict(X3D), rtol=1e-9)


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
def test_malformed_lists_are_refused_in_plain_words_case_d5(series):
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - only the origin matters
        make_regressor().fit(series, np.arange(len(series), dtype=float))
    assert "torch" not in str(caught.value)


def test_number_of_channels_is_checked_at_predict_case_d5():
    estimator = make_regressor().fit(SERIES, SERIES_YR)
    with pytest.raises(ValueError, match=r"(?s)2.*3|3.*2"):
        estimator.predict([np.zeros((5, 2))])


def test_flatten_pooling_refuses_unequal_series_case_d5():
    with pytest.raises(ValueError, match="flatten"):
        make_regressor(pooling="flatten").fit(SERIES, SERIES_YR)
