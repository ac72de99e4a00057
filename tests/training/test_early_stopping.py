"""Early stopping: on the user's validation data, or on the last block."""

import numpy as np
import pytest
import sklearn
import torch
from sklearn.base import clone
from sklearn.pipeline import make_pipeline

from sklearn_restf import ResidualTransformerRegressor
from tests.builders import (
    FEW_STEPS,
    ROW_LABELS,
    ROWS,
    X2,
    X2D,
    YC,
    YR,
    both,
    both_estimators,
    both_makers,
    make_classifier,
    make_regressor,
    recorded,
)
from tests.tools import outputs

_SIGNAL = np.random.default_rng(5).normal(size=(531, 2)).cumsum(axis=0) / 10

WINDOWS = np.lib.stride_tricks.sliding_window_view(_SIGNAL, 8, axis=0).transpose(0, 2, 1)[:500]

AHEAD = _SIGNAL[11:511, 0]


def test_own_validation_data_is_used_case_d23():
    """The fit is that without them, stopped at the best validation loss."""
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


def test_last_block_can_be_the_validation_data_case_d23():
    """Overlapping windows do not leak from one part into the other."""
    last = make_regressor(early_stopping="last", validation_fraction=0.2).fit(WINDOWS, AHEAD)
    own = make_regressor(early_stopping=True).fit(
        WINDOWS[:400], AHEAD[:400], X_val=WINDOWS[400:], y_val=AHEAD[400:]
    )
    np.testing.assert_allclose(last.validation_curve_, own.validation_curve_)
    np.testing.assert_allclose(last.predict(WINDOWS), own.predict(WINDOWS), rtol=1e-7)
    split = make_regressor(early_stopping=True, validation_fraction=0.2).fit(WINDOWS, AHEAD)
    assert not np.allclose(split.validation_curve_, own.validation_curve_)


@both_makers
def test_best_weights_are_restored_after_overfitting_case_d23(make):
    """Labels are noise, so that the validation loss ends above its minimum."""
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
def test_off_switch_runs_exactly_max_iter_iterations_case_d23(make, y, max_iter):
    """Even when nothing is left to learn."""
    for X, target in ((X2, y), (X2[:4], np.resize(y[:2], 4))):
        estimator = make(max_iter=max_iter, early_stopping=False).fit(X, target)
        if len(np.unique(target)) > 1:
            assert estimator.n_iter_ == max_iter
            assert len(estimator.loss_curve_) == max_iter
        assert estimator.validation_curve_ is None or len(estimator.validation_curve_) == 0


def test_validation_data_are_routed_case_d23():
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
def test_malformed_validation_data_are_refused_case_d23(validation, words):
    with pytest.raises(ValueError, match=words):
        make_regressor(early_stopping=True).fit(X2, YR, **validation)


def test_validation_labels_must_be_known_case_d23():
    with pytest.raises(ValueError, match="new"):
        make_classifier(early_stopping=True).fit(X2, YC, X_val=X2, y_val=["new"] * 64)


def test_validation_targets_that_overflow_in_units_of_y_are_refused():
    model = ResidualTransformerRegressor(**FEW_STEPS)
    with pytest.raises(ValueError, match="y_val is so far from"):
        model.fit(ROWS, ROWS[:, 0] * 1e-300, X_val=ROWS, y_val=ROWS[:, 0] * 1e10)


@both_estimators
def test_unusable_validation_samples_are_named(estimator):
    for bad in (ROWS * np.nan, ROWS * 1j, ROWS[0], ROWS[:, :2]):
        with pytest.raises(ValueError, match="X_val"):
            estimator.fit(ROWS, ROW_LABELS, X_val=bad, y_val=ROW_LABELS)
    for windows in (
        ROWS.reshape(6, 2, 2),
        ROWS.reshape(6, 4, 1),
        list(ROWS.reshape(6, 2, 2)),
    ):
        with pytest.raises(ValueError, match=r"X_val: .* was fitted on"):
            estimator.fit(ROWS, ROW_LABELS, X_val=windows, y_val=ROW_LABELS)
    with pytest.raises(ValueError, match="X_val has 6, y_val has 4"):
        estimator.fit(ROWS, ROW_LABELS, X_val=ROWS, y_val=ROW_LABELS[:4])


@both
@pytest.mark.parametrize("early_stopping", [True, "last", "given"])
def test_early_stopping_keeps_the_weights_of_the_lowest_validation_loss(make, y, early_stopping):
    train, held_out = slice(0, 44), slice(44, 64)
    options = {"max_iter": 400, "tol": 1e-4, "alpha": 1e-3, "validation_fraction": 0.3}
    if early_stopping == "given":
        estimator, recorder = recorded(
            make(**options), X2D[train], y[train], X_val=X2D[held_out], y_val=y[held_out]
        )
    else:
        estimator, recorder = recorded(make(early_stopping=early_stopping, **options), X2D, y)
    curve = estimator.validation_curve_
    assert {type(loss) for loss in curve} == {float}
    assert len(curve) == estimator.n_iter_ < 400
    assert estimator.stop_reason_ == "early_stopping"
    assert recorder.sizes_ == [44, 20]
    best = estimator.best_iteration_
    assert curve[best - 1] == min(curve)
    for name, weight in estimator.module_.state_dict().items():
        assert torch.equal(weight, recorder.weights_[best][name])
    assert estimator.loss_ == estimator.loss_curve_[best - 1]
    if early_stopping == "given" and make is make_regressor:  # the penalty is no validation loss
        error = (estimator.predict(X2D[held_out]) - y[held_out]) / y[train].std()
        assert min(curve) == pytest.approx(0.5 * np.mean(error**2), rel=1e-9)


@pytest.mark.parametrize(("n", "fraction", "sizes"), [(64, 0.1, [57, 7]), (40, 0.25, [30, 10])])
@pytest.mark.parametrize("early_stopping", [True, "last"])
def test_size_of_the_validation_set(n, fraction, sizes, early_stopping):
    _, recorder = recorded(
        make_regressor(early_stopping=early_stopping, validation_fraction=fraction, max_iter=2),
        X2D[:n],
        YR[:n],
    )
    assert recorder.sizes_ == sizes
    if early_stopping == "last":
        expected = (YR[n - sizes[1] : n] - YR[: sizes[0]].mean()) / YR[: sizes[0]].std()
        np.testing.assert_allclose(recorder.targets_[1][:, 0], expected, rtol=1e-9)


def test_random_validation_set_is_stratified_and_differs_by_seed():
    y = np.where(np.arange(64) % 4 == 0, "rare", "common")
    estimator = make_classifier(early_stopping=True, validation_fraction=0.25, max_iter=2)
    _, recorder = recorded(estimator, X2D, y)
    assert int((recorder.targets_[1] > 0).sum()) == 4
    regressor = make_regressor(early_stopping=True, validation_fraction=0.25, max_iter=2)
    targets = [
        recorded(clone(regressor).set_params(random_state=seed), X2D, YR)[1].targets_[1]
        for seed in (0, 0, 1)
    ]
    assert torch.equal(targets[0], targets[1])
    assert not torch.equal(targets[0], targets[2])


@both
def test_weights_of_the_validation_samples_count(make, y):
    train, held_out = slice(0, 44), slice(44, 64)
    weight = np.arange(20) % 3

    def curve(rows, w=None):
        X_val, y_val = X2D[held_out][rows], y[held_out][rows]
        estimator = make(max_iter=10)
        estimator.fit(X2D[train], y[train], X_val=X_val, y_val=y_val, sample_weight_val=w)
        return estimator.validation_curve_

    weighted = curve(np.arange(20), weight)
    np.testing.assert_allclose(weighted, curve(np.repeat(np.arange(20), weight)), rtol=1e-9)
    np.testing.assert_allclose(weighted, curve(np.arange(20), 1e5 * weight), rtol=1e-9)
    assert not np.allclose(weighted, curve(np.arange(20)))


def test_weights_of_a_validation_set_that_is_not_there_are_refused():
    with pytest.raises(ValueError, match="sample_weight_val"):
        make_regressor().fit(X2D, YR, sample_weight_val=np.ones(64))
