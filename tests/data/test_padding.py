"""Padded samples: what is padded matters neither in training nor in prediction."""

import numpy as np
import pytest
import torch

from tests.builders import SERIES, SERIES_YR, X3D, YR, both, both_on_series, make_regressor, pad
from tests.tools import outputs, refusal


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


@both_on_series
@pytest.mark.parametrize("pooling", ["mean", "last"])
@pytest.mark.parametrize("value", [0.0, 1e30, -1.0, np.nan])
@pytest.mark.parametrize("length", [16, 24, 48])
def test_content_and_length_of_padding_do_not_matter_case_h12(make, y, pooling, value, length):
    """For the loss curve and for what is predicted."""
    reference = make(pooling=pooling, max_iter=8).fit(SERIES, y)
    expected = outputs(reference, SERIES)
    padded = pad(SERIES, length, value)
    estimator = make(pooling=pooling, padding_value=value, max_iter=8).fit(padded, y)
    np.testing.assert_allclose(estimator.loss_curve_, reference.loss_curve_, rtol=1e-5)
    np.testing.assert_allclose(outputs(estimator, padded), expected, rtol=1e-5, atol=1e-7)
    again = pad(SERIES, length + 5, value)
    np.testing.assert_allclose(outputs(estimator, again), expected, rtol=1e-5, atol=1e-7)


@both_on_series
@pytest.mark.parametrize(
    "parameters",
    [
        {"n_layers": 2, "causal": True},
        {"layer_norm": True, "n_heads": 3},
        {"positional_encoding": "learned", "pooling": "last"},
        {"positional_encoding": "sinusoidal", "d_model": 4},
        {"activation": "gelu", "d_model": 6, "n_heads": 2, "n_layers": 2, "layer_norm": True},
    ],
    ids=["causal", "layer-norm", "learned", "sinusoidal", "deep"],
)
def test_padding_does_not_leak_through_any_option_case_h12(make, y, parameters):
    reference = make(**parameters).fit(SERIES, y)
    expected = outputs(reference, SERIES)
    padded = pad(SERIES, 16, 1e30)
    estimator = make(**parameters, padding_value=1e30).fit(padded, y)
    np.testing.assert_allclose(estimator.loss_curve_, reference.loss_curve_, rtol=1e-5)
    np.testing.assert_allclose(outputs(estimator, padded), expected, rtol=1e-5, atol=1e-7)
    for i in (0, 5, 11):
        alone = outputs(estimator, padded[i : i + 1, : len(SERIES[i])])
        np.testing.assert_allclose(alone, expected[i : i + 1], rtol=1e-5, atol=1e-7)
        np.testing.assert_allclose(
            outputs(reference, [SERIES[i]]), expected[i : i + 1], rtol=1e-5, atol=1e-7
        )


def test_padding_does_not_leak_into_predictions_for_every_token_case_h12():
    targets = [s[:, 0] + s[:, 1] for s in SERIES]
    estimator = make_regressor(pooling="none").fit(SERIES, targets)
    predictions = estimator.predict(SERIES)
    assert [p.shape for p in predictions] == [t.shape for t in targets]
    for series, prediction in zip(SERIES, predictions, strict=True):
        alone = estimator.predict([series])[0]
        np.testing.assert_allclose(alone, prediction, rtol=1e-5, atol=1e-7)


@both_on_series
def test_scaling_ignores_padding_case_h12(make, y):
    """Short series among hundreds of padded steps are scaled by their real steps."""
    shifted = [s + 50 for s in SERIES]
    expected = outputs(make().fit(SERIES, y), SERIES)
    estimator = make(padding_value=0.0).fit(pad(shifted, 200, 0.0), y)
    np.testing.assert_allclose(
        outputs(estimator, pad(shifted, 300, 0.0)), expected, rtol=1e-5, atol=1e-6
    )


@both
def test_last_token_is_the_last_real_one_case_h12(make, y):
    """As in windows cut to their real length."""
    cut = X3D[:, :10]
    expected = outputs(make(pooling="last").fit(cut, y), cut)
    padded = np.concatenate([cut, np.full((64, 14, 3), np.nan)], axis=1)
    estimator = make(pooling="last", padding_value=np.nan).fit(padded, y)
    np.testing.assert_allclose(outputs(estimator, padded), expected, rtol=1e-5, atol=1e-7)


def test_padding_on_the_left_is_treated_alike_or_refused_case_h12():
    left = np.full((12, 24, 3), np.nan)
    for row, steps in zip(left, SERIES, strict=True):
        row[-len(steps) :] = steps
    estimator = make_regressor(padding_value=np.nan)
    message = refusal(estimator.fit, left, SERIES_YR)
    if message:
        assert "padding" in message
    else:
        expected = make_regressor().fit(SERIES, SERIES_YR).predict(SERIES)
        np.testing.assert_allclose(estimator.predict(left), expected, rtol=1e-5, atol=1e-7)
