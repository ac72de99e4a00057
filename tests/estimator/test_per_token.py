"""pooling="none": a prediction for every token."""

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.metrics import r2_score
from sklearn.model_selection import GridSearchCV, cross_val_predict

from sklearn_restf import THEOREM_SETTINGS, ResidualTransformerRegressor
from tests.builders import SERIES, X2D, X3D, make_classifier, make_regressor, pad

Y3 = X3D[:, :, 0] - 0.5 * X3D[:, :, 1]
Y3K = np.stack([Y3, X3D[:, :, 2] ** 2], axis=-1)
SERIES_Y = [s[:, 0] - 0.5 * s[:, 1] for s in SERIES]
SERIES_YK = [np.c_[y, s[:, 2]] for y, s in zip(SERIES_Y, SERIES, strict=True)]


def make(**parameters):
    return make_regressor(pooling="none", **parameters)


def flat(predictions):
    return np.concatenate([np.asarray(p).reshape(-1) for p in predictions])


# --- forms -----------------------------------------------------------------------------------


def test_windows_of_equal_length():
    estimator = make(max_iter=100).fit(X3D, Y3)
    assert estimator.predict(X3D).shape == (64, 24)
    assert estimator.predict(X3D).dtype == np.float64
    assert estimator.n_outputs_ == 1
    assert estimator.n_tokens_ == 24
    assert estimator.score(X3D, Y3) == pytest.approx(
        r2_score(Y3.ravel(), estimator.predict(X3D).ravel()), rel=1e-9
    )
    assert estimator.score(X3D, Y3) > 0.8


def test_several_outputs_a_token():
    estimator = make(max_iter=100).fit(X3D, Y3K)
    prediction = estimator.predict(X3D)
    assert prediction.shape == (64, 24, 2)
    assert estimator.n_outputs_ == 2
    expected = r2_score(Y3K.reshape(-1, 2), prediction.reshape(-1, 2))
    assert estimator.score(X3D, Y3K) == pytest.approx(expected, rel=1e-9)
    one = make(max_iter=100).fit(X3D, Y3[..., None])
    assert one.predict(X3D).shape == (64, 24, 1)


def test_two_dimensional_form_of_windows():
    flat_form = make(token_dim=3).fit(X2D, Y3)
    np.testing.assert_allclose(
        flat_form.predict(X2D), make().fit(X3D, Y3).predict(X3D), rtol=1e-7, atol=1e-9
    )


@pytest.mark.parametrize("y", [SERIES_Y, SERIES_YK], ids=["one", "two"])
def test_series_of_unequal_length_are_predicted_as_a_list(y):
    estimator = make(max_iter=100).fit(SERIES, y)
    prediction = estimator.predict(SERIES)
    assert isinstance(prediction, list)
    assert [p.shape for p in prediction] == [np.shape(t) for t in y]
    k = 1 if y is SERIES_Y else 2
    true, predicted = (np.concatenate(v).reshape(-1, k) for v in (y, prediction))
    assert estimator.score(SERIES, y) == pytest.approx(r2_score(true, predicted), rel=1e-9)
    assert estimator.score(SERIES, y) > 0.5
    assert estimator.n_tokens_ is None


@pytest.mark.parametrize("value", [np.nan, -9.0])
@pytest.mark.parametrize("y", [SERIES_Y, SERIES_YK], ids=["one", "two"])
def test_padded_arrays_match_the_list(value, y):
    """What stands at padded positions, of X and of y, is ignored; predicted is NaN."""
    X_padded = pad(SERIES, 20, value)
    y_padded = np.full((12, 20, *y[0].shape[1:]), np.nan)
    for row, target in zip(y_padded, y, strict=True):
        row[: len(target)] = target
    listed = make().fit(SERIES, y)
    padded = make(padding_value=value).fit(X_padded, y_padded)
    np.testing.assert_allclose(padded.loss_curve_, listed.loss_curve_, rtol=1e-9)
    prediction = padded.predict(X_padded)
    assert prediction.shape == y_padded.shape
    np.testing.assert_array_equal(np.isnan(prediction), np.isnan(y_padded))
    for row, expected in zip(prediction, listed.predict(SERIES), strict=True):
        np.testing.assert_allclose(row[: len(expected)], expected, rtol=1e-7, atol=1e-9)
    assert padded.score(X_padded, y_padded) == pytest.approx(listed.score(SERIES, y), rel=1e-9)


@pytest.mark.parametrize("where", ["left", "middle"])
def test_target_stays_with_its_token_wherever_the_padding_is(where):
    """Padding that is not on the right is treated alike, or refused; never shifted silently."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 6, 3))
    y = X[:, :, 0].copy()
    gaps = slice(0, 3) if where == "left" else slice(1, 3)
    X[::2, gaps] = np.nan
    y[::2, gaps] = 0.0
    real = ~np.isnan(X).all(axis=2)
    listed = make().fit([x[r] for x, r in zip(X, real, strict=True)], [*map(np.compress, real, y)])
    estimator = make(padding_value=np.nan)
    try:
        estimator.fit(X, y)
    except ValueError as error:
        assert "padding" in str(error)  # noqa: PT017 - either outcome is right
        return
    np.testing.assert_allclose(estimator.loss_curve_, listed.loss_curve_, rtol=1e-9)
    prediction = estimator.predict(X)
    np.testing.assert_array_equal(np.isnan(prediction), ~real)
    assert estimator.score(X, y) == pytest.approx(r2_score(y[real], prediction[real]))


def test_forms_are_interchangeable_at_predict():
    ragged = make().fit(SERIES, SERIES_Y)
    assert flat(ragged.predict(np.stack([s[:5] for s in SERIES]))).shape == (60,)
    fixed = make(token_dim=3).fit(X3D, Y3)
    as_array = fixed.predict(X3D[:4])
    np.testing.assert_array_equal(fixed.predict(X2D[:4]), as_array)
    as_list = fixed.predict(list(X3D[:4]))
    assert isinstance(as_list, list)
    np.testing.assert_allclose(np.stack(as_list), as_array, rtol=1e-7)


def test_frame_of_windows():
    names = [f"c{i}_{t}" for t in range(24) for i in range(3)]
    estimator = make(token_dim=3).fit(pd.DataFrame(X2D, columns=names), pd.DataFrame(Y3))
    np.testing.assert_array_equal(estimator.feature_names_in_, names)
    assert estimator.predict(pd.DataFrame(X2D, columns=names)).shape == (64, 24)


# --- bad input -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("X", "y", "words"),
    [
        (X3D, Y3[:, 0], r"\(64, 24"),
        (X3D, Y3[:, :-1], r"\(64, 24.*\(64, 23\)"),
        (X3D, Y3[:-1], r"\(64, 24|inconsistent"),
        (SERIES, SERIES_Y[:-1], "(?s)inconsistent.*12.*11"),
        (SERIES, [SERIES_Y[0][:-1], *SERIES_Y[1:]], "sample 0 has 5 tokens"),
        (SERIES, [y[:, None, None] for y in SERIES_Y], r"y\[0\]"),
        (SERIES, np.zeros((12, 7)), "16"),
        (SERIES, [*SERIES_Y[:-1], np.full(16, np.nan)], "NaN"),
        (SERIES, np.zeros(12), "pooling"),
        (X2D, Y3, "token_dim"),
        (X3D, None, "y"),
    ],
    ids=[
        "one-a-sample",
        "short",
        "missing-row",
        "missing-series",
        "short-series",
        "3d-series",
        "narrow",
        "nan",
        "1d",
        "table",
        "none",
    ],
)
def test_targets_that_do_not_fit_the_tokens_are_refused(X, y, words):
    with pytest.raises(ValueError, match=words):
        make().fit(X, y)


def test_classifier_has_no_per_token_predictions():
    with pytest.raises(ValueError, match="pooling"):
        make_classifier(pooling="none").fit(X3D, (Y3 > 0).astype(int))


# --- meaning ---------------------------------------------------------------------------------


def test_loss_is_half_the_squared_frobenius_norm_a_sample():
    estimator = make(alpha=0.0).fit(X3D, Y3)
    error = (estimator.predict(X3D) - Y3) / Y3.std()
    assert estimator.loss_ == pytest.approx(0.5 * (error**2).sum(axis=1).mean(), rel=1e-9)
    ragged = make(alpha=0.0).fit(SERIES, SERIES_Y)
    scale = np.concatenate(SERIES_Y).std()
    errors = [p - t for p, t in zip(ragged.predict(SERIES), SERIES_Y, strict=True)]
    expected = np.mean([0.5 * (e**2).sum() for e in errors]) / scale**2
    assert ragged.loss_ == pytest.approx(expected, rel=1e-9)


def test_units_of_the_target_do_not_matter():
    one = make().fit(X3D, Y3)
    other = make().fit(X3D, 1e6 * Y3 + 1e8)
    np.testing.assert_allclose(other.predict(X3D), 1e6 * one.predict(X3D) + 1e8, rtol=1e-7)


def test_causal_predictions_do_not_look_ahead():
    estimator = make(causal=True, n_layers=2).fit(X3D, Y3)
    changed = X3D.copy()
    changed[:, 12:] += 10
    before, after = estimator.predict(X3D), estimator.predict(changed)
    np.testing.assert_array_equal(before[:, :12], after[:, :12])
    assert not np.allclose(before[:, 12:], after[:, 12:])
    both_ways = make(n_layers=2).fit(X3D, Y3)
    assert not np.allclose(both_ways.predict(X3D)[:, :12], both_ways.predict(changed)[:, :12])


@pytest.mark.parametrize("form", ["windows", "series"])
def test_sample_weights(form):
    """Zero drops a sample, two repeats it, and the scale does not matter."""
    X, y = (X3D[:12], Y3[:12]) if form == "windows" else (SERIES, SERIES_Y)
    weight = np.arange(12) % 3
    rows = np.repeat(np.arange(12), weight)
    repeated = make().fit([X[i] for i in rows], [y[i] for i in rows])
    for factor in (1, 1e-5):
        weighted = make().fit(list(X), list(y), sample_weight=factor * weight)
        np.testing.assert_allclose(weighted.loss_curve_, repeated.loss_curve_, rtol=1e-9)
        np.testing.assert_allclose(
            flat(weighted.predict(list(X))), flat(repeated.predict(list(X))), rtol=1e-6, atol=1e-9
        )
    score = repeated.score(list(X), list(y), sample_weight=weight)
    again = repeated.score([X[i] for i in rows], [y[i] for i in rows])
    assert score == pytest.approx(again, rel=1e-9)


@pytest.mark.parametrize("early_stopping", [True, "last"])
@pytest.mark.parametrize("form", ["windows", "series"])
def test_early_stopping(form, early_stopping):
    X, y = (X3D, Y3) if form == "windows" else (SERIES, SERIES_Y)
    estimator = make(early_stopping=early_stopping, validation_fraction=0.25, max_iter=60)
    estimator.fit(X, y)
    assert len(estimator.validation_curve_) == 60
    if early_stopping == "last":
        k = len(X) - len(X) // 4
        own = make(max_iter=60).fit(X[:k], y[:k], X_val=X[k:], y_val=y[k:])
        np.testing.assert_allclose(own.validation_curve_, estimator.validation_curve_, rtol=1e-9)
        scale = flat(y[:k]).std()
        errors = [p - t for p, t in zip(own.predict(X[k:]), y[k:], strict=True)]
        expected = np.mean([0.5 * (e**2).sum() for e in errors]) / scale**2
        assert min(own.validation_curve_) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("chunk_size", [1, 5])
@pytest.mark.parametrize("form", ["windows", "series"])
def test_chunks_change_nothing(form, chunk_size):
    X, y = (X3D, Y3K) if form == "windows" else (SERIES, SERIES_YK)
    whole, chunked = make().fit(X, y), make(chunk_size=chunk_size).fit(X, y)
    np.testing.assert_allclose(chunked.loss_curve_, whole.loss_curve_, rtol=1e-9)
    np.testing.assert_allclose(flat(chunked.predict(X)), flat(whole.predict(X)), rtol=1e-6)


def test_order_of_the_samples_does_not_matter():
    order = np.random.default_rng(0).permutation(12)
    estimator = make().fit(SERIES, SERIES_Y)
    shuffled = clone(estimator).fit([SERIES[i] for i in order], [SERIES_Y[i] for i in order])
    np.testing.assert_allclose(shuffled.loss_curve_, estimator.loss_curve_, rtol=1e-9)
    expected = estimator.predict(SERIES)
    for i, prediction in zip(order, estimator.predict([SERIES[i] for i in order]), strict=True):
        np.testing.assert_array_equal(prediction, expected[i])


def test_model_selection():
    grid = {"residual_beta": [0.0, 1.0]}
    for X, y in ((X3D, Y3), (SERIES, SERIES_Y)):
        search = GridSearchCV(make(max_iter=60), grid, cv=3, error_score="raise").fit(X, y)
        assert search.best_params_ == {"residual_beta": 1.0}
    assert cross_val_predict(make(), X3D, Y3, cv=2).shape == (64, 24)


def test_setting_of_the_theorem():
    estimator = ResidualTransformerRegressor(
        **THEOREM_SETTINGS, pooling="none", max_iter=30, d_ff=64, random_state=0
    )
    estimator.fit(X3D[:2], Y3[:2])
    assert (np.diff(estimator.loss_curve_) < 0).all()
    assert estimator.dtype_ == "float64"
    diagnostics = estimator.convergence_diagnostics_
    assert 0 < diagnostics.condition_ratio < 1
    assert 0 < diagnostics.predicted_rate < 1
