"""Padded samples: what is padded matters neither in training nor in prediction."""

import numpy as np
import pytest
import torch

from tests.builders import SERIES, SERIES_YR, X3D, YR, both_on_series, make_regressor, pad
from tests.tools import outputs


@both_on_series
def test_padded_array_matches_the_list_case_d5(make, y):
    from_list = outputs(make().fit(SERIES, y), SERIES)
    padded = pad(SERIES, 16, np.nan)
    from_array = outputs(make(padding_value=np.nan).fit(padded, y), padded)
    np.testing.assert_allclose(from_array, from_list, rtol=1e-7)


@both_on_series
def test_samples_without_a_token_are_refused_by_row_case_d6(make, y):
    """At fit and at predict, in a list and in a padded array."""
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


def test_short_samples_keep_everything_finite_case_d6():
    """One real token beside 23 padded ones, in loss, parameters and predictions."""
    X = X3D.copy()
    X[5, 1:] = np.nan
    X[6, 3:] = np.nan
    estimator = make_regressor(padding_value=np.nan).fit(X, YR)
    assert np.isfinite(estimator.loss_curve_).all()
    assert all(torch.isfinite(p).all() for p in estimator.module_.parameters())
    assert np.isfinite(estimator.predict(X)).all()


@pytest.mark.parametrize("pooling", ["mean", "last", "none"])
def test_module_computes_the_same_in_training_and_evaluation_mode_case_d7(pooling):
    """Also when every row of a batch is padded."""
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
def test_batch_in_which_every_row_is_padded_is_predicted_case_d7(make, y):
    estimator = make(padding_value=np.nan).fit(pad(SERIES, 16, np.nan), y)
    for length in (1, 5):
        short = [s[:length] for s in SERIES]
        np.testing.assert_allclose(
            outputs(estimator, pad(short, 24, np.nan)), outputs(estimator, short), rtol=1e-6
        )


def test_nan_inside_a_real_token_is_refused_even_where_nan_is_padding_case_d28():
    """A step of which one channel is missing is not padding."""
    padded = pad(SERIES, 16, np.nan)
    padded[3, 1, 2] = np.nan
    with pytest.raises(ValueError, match="NaN"):
        make_regressor(padding_value=np.nan).fit(padded, SERIES_YR)
    holed = [s.copy() for s in SERIES]
    holed[3][1, 2] = np.nan
    with pytest.raises(ValueError, match="NaN"):
        make_regressor().fit(holed, SERIES_YR)
