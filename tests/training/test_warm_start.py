"""warm_start: what is carried over, what may change between two fits, and what may not."""

import copy
import pickle
import warnings

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from skorch.callbacks import Callback

from tests.builders import (
    SERIES,
    SERIES_YR,
    X2,
    X2D,
    X3,
    X3D,
    YC,
    YR,
    both,
    make_classifier,
    make_regressor,
)
from tests.tools import outputs


@both
@pytest.mark.parametrize("parameters", [{}, {"learning_rate": 0.02}, {"momentum": 0.0}], ids=str)
def test_counts_are_of_the_call_and_curves_go_on(make, y, parameters):
    estimator = make(warm_start=True, max_iter=7, **parameters).fit(X2D, y)
    first = list(estimator.loss_curve_)
    estimator.set_params(max_iter=5).fit(X2D, y)
    assert estimator.n_iter_ == 5
    assert len(estimator.loss_curve_) == 12
    assert estimator.loss_curve_[:7] == first
    assert estimator.loss_ == estimator.loss_curve_[-1]
    assert estimator.best_loss_ <= min(estimator.loss_curve_)


@both
def test_copies_go_on_like_the_original(make, y):
    """Rate and momentum are part of what is saved."""
    estimator = make(warm_start=True).fit(X2D, y)
    copies = [copy.deepcopy(estimator), pickle.loads(pickle.dumps(estimator))]
    estimator.fit(X2D, y)
    for copied in copies:
        copied.fit(X2D, y)
        assert copied.loss_curve_ == estimator.loss_curve_
    cold = clone(estimator).fit(X2D, y)
    assert cold.loss_curve_ == estimator.loss_curve_[:20]


@both
def test_cold_fit_can_be_continued(make, y):
    """warm_start decides at the second fit."""
    estimator = make().fit(X2D, y)
    loss = estimator.loss_
    estimator.set_params(warm_start=True).fit(X2D, y)
    assert estimator.loss_curve_[20] <= loss
    estimator.set_params(warm_start=False).fit(X2D, y)
    assert estimator.loss_ == loss
    assert len(estimator.loss_curve_) == 20


@pytest.mark.parametrize(
    ("X", "y", "parameters"),
    [
        (SERIES, SERIES_YR, {"pooling": "last"}),
        (X3D, np.c_[YR, YR**2], {"positional_encoding": "learned"}),
        (X3D, X3D[:, :, 0], {"pooling": "none"}),
        (X2D, YR, {"layer_norm": True, "n_heads": 2}),
    ],
    ids=["series", "outputs", "per-token", "layer-norm"],
)
def test_two_halves_make_a_whole(X, y, parameters):
    halves = make_regressor(warm_start=True, max_iter=6, **parameters).fit(X, y).fit(X, y)
    whole = make_regressor(max_iter=12, **parameters).fit(X, y)
    np.testing.assert_allclose(halves.loss_curve_, whole.loss_curve_, rtol=1e-9)
    for one, other in zip(halves.predict(X), whole.predict(X), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-7, atol=1e-9)


def test_new_samples_are_scaled_like_the_first():
    """The second fit goes on with the same model: the same units of X and y."""
    estimator = make_regressor(warm_start=True, momentum=0.0).fit(X2D, YR)
    before = estimator.predict(X2D)
    estimator.set_params(max_iter=1, learning_rate=1e-12).fit(100 + 50 * X2D[:10], 1e4 + YR[:10])
    np.testing.assert_allclose(estimator.predict(X2D), before, rtol=1e-4, atol=1e-4)


@both
def test_early_stopping_goes_on_from_the_best_weights(make, y):
    estimator = make(warm_start=True, early_stopping=True, max_iter=15, validation_fraction=0.3)
    estimator.fit(X2D, y)
    best = min(estimator.validation_curve_)
    estimator.fit(X2D, y)
    assert len(estimator.validation_curve_) == len(estimator.loss_curve_) == 30
    second = estimator.validation_curve_[15:]
    assert estimator.best_iteration_ == 0 or min(second) <= best
    assert estimator.n_iter_ == 15


# --- what may change -------------------------------------------------------------------------


@pytest.mark.parametrize("before", ["adaptive", 0.01])
def test_new_constant_rate_is_used(before):
    estimator = make_regressor(warm_start=True, learning_rate=before, momentum=0.0).fit(X2D, YR)
    estimator.set_params(learning_rate=0.003).fit(X2D, YR)
    assert estimator.learning_rate_ == 0.003


def test_change_from_a_constant_to_the_automatic_rate_never_increases_the_loss():
    estimator = make_regressor(warm_start=True, learning_rate=0.01).fit(X2D, YR)
    estimator.set_params(learning_rate="adaptive").fit(X2D, YR)
    assert (np.diff(estimator.loss_curve_[20:]) <= 0).all()
    assert estimator.learning_rate_ > 0.01


def test_penalty_momentum_and_precision_may_change():
    estimator = make_regressor(warm_start=True, alpha=0.0).fit(X2D, YR)
    estimator.set_params(alpha=10.0, momentum=0.0, dtype="float32", max_iter=40).fit(X2D, YR)
    assert estimator.dtype_ == "float32"
    assert np.abs(estimator.predict(X2D) - YR.mean()).max() < 1  # shrunk towards the mean


def test_interrupted_fit_can_be_continued():
    class Interrupted(Callback):
        def on_epoch_end(self, net, **kwargs):
            if len(net.history) == 5:
                raise KeyboardInterrupt

    estimator = make_regressor(warm_start=True, callbacks=[("interrupted", Interrupted)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        estimator.fit(X2D, YR)
    estimator.set_params(callbacks=None, max_iter=15).fit(X2D, YR)
    whole = make_regressor().fit(X2D, YR)
    assert len(estimator.loss_curve_) == 20
    np.testing.assert_allclose(estimator.loss_curve_, whole.loss_curve_, rtol=0.2)


# --- what may not ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        {"d_ff": 9},
        {"d_model": 8},
        {"n_layers": 2},
        {"n_heads": 2},
        {"layer_norm": True},
        {"pooling": "mean"},
        {"positional_encoding": "learned"},
        {"n_tokens": 3},
        {"token_dim": 9},
    ],
    ids=str,
)
def test_another_architecture_is_refused_and_the_model_kept(change):
    estimator = make_regressor(warm_start=True).fit(X2D, YR)
    before = estimator.predict(X2D)
    estimator.set_params(**change)
    with pytest.raises(ValueError, match=r"(?i)warm_start|fitted on"):
        estimator.fit(X2D, YR)
    estimator.set_params(**{name: make_regressor().get_params()[name] for name in change})
    np.testing.assert_array_equal(estimator.predict(X2D), before)


def test_other_number_of_outputs_is_refused():
    estimator = make_regressor(warm_start=True).fit(X2D, YR)
    with pytest.raises(ValueError, match="2 output"):
        estimator.fit(X2D, np.c_[YR, YR])


def test_a_constant_target_cannot_be_taken_to_another():
    """The predictions of such a model are that constant, whatever its weights."""
    estimator = make_regressor(warm_start=True).fit(X2D, np.full(64, 3.0))
    estimator.fit(X2D, np.full(64, 3.0))
    with pytest.raises(ValueError, match="cannot go on: y was constant"):
        estimator.fit(X2D, YR)
    np.testing.assert_array_equal(estimator.predict(X2D), 3.0)
    two = np.column_stack([YR, np.ones(64)])
    estimator.set_params(warm_start=False).fit(X2D, two)
    estimator.set_params(warm_start=True).fit(X2D, two)
    with pytest.raises(ValueError, match="cannot go on: y was constant"):
        estimator.fit(X2D, two[:, ::-1])


def test_other_classes_are_refused_fewer_are_fine():
    y = np.digitize(YR, [-1, 1])
    estimator = make_classifier(warm_start=True).fit(X2D, y)
    with pytest.raises(ValueError, match="5"):
        estimator.fit(X2D, y + 3)
    estimator.fit(X2D[y < 2], y[y < 2])
    np.testing.assert_array_equal(estimator.classes_, [0, 1, 2])
    assert outputs(estimator, X2D).shape == (64, 3)


@both
@pytest.mark.parametrize("X", [X2D, X3D], ids=["table", "windows"])
def test_two_warm_fits_are_one_longer_fit_case_d24(make, y, X):
    """To the last digit of the loss curve, momentum and step size included."""
    warm = make(warm_start=True, max_iter=30).fit(X, y)
    assert warm.n_iter_ == 30
    warm.fit(X, y)
    once = make(max_iter=60).fit(X, y)
    assert warm.n_iter_ == 30
    assert len(warm.loss_curve_) == 60
    np.testing.assert_allclose(warm.loss_curve_, once.loss_curve_, rtol=1e-6)
    np.testing.assert_allclose(outputs(warm, X), outputs(once, X), rtol=1e-6, atol=1e-9)


@both
def test_warm_start_goes_on_with_more_iterations_case_d24(make, y):
    """As pruners do, raising the budget step by step."""
    estimator = make(warm_start=True, max_iter=1)
    for step in range(1, 6):
        estimator.fit(X2D, y)
        assert estimator.n_iter_ == 1
        assert len(estimator.loss_curve_) == step
    once = make(max_iter=5).fit(X2D, y)
    np.testing.assert_allclose(estimator.loss_curve_, once.loss_curve_, rtol=1e-6)


@both
def test_cold_refit_restarts_from_the_same_weights_case_d24(make, y):
    estimator = make().fit(X2, y)
    curve, expected = list(estimator.loss_curve_), outputs(estimator, X2)
    estimator.fit(X2[::-1], y)
    estimator.fit(X2, y)
    assert estimator.loss_curve_ == curve
    np.testing.assert_array_equal(outputs(estimator, X2), expected)


def test_warm_start_refuses_data_of_another_kind_case_d24():
    """And keeps the model it had."""
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
