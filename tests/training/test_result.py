"""What training leaves behind: losses that fit together, whatever the chunks and the precision."""

import numpy as np
import pytest
import torch
from sklearn.metrics import log_loss

from tests.builders import SERIES, SERIES_YR, X2D, YC, YR, both, make_classifier, make_regressor
from tests.tools import objective, outputs, penalty

_SETTINGS = [
    {},
    {"learning_rate": 0.02},
    {"learning_rate": "theory", "momentum": 0.0},
    {"alpha": 0.0, "tol": 1e-2, "max_iter": 100},
    {"chunk_size": 10, "n_layers": 2, "n_heads": 2, "layer_norm": True},
    {"positional_encoding": "learned", "alpha": 0.3},
    {"dtype": "float32"},
    {"max_iter": 1},
]


@both
@pytest.mark.parametrize("parameters", _SETTINGS, ids=str)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_loss_attributes_fit_together_and_match_the_predictions(make, y, parameters):
    estimator = make(**parameters).fit(X2D, y)
    assert type(estimator.loss_curve_) is list
    assert {type(loss) for loss in estimator.loss_curve_} == {float}
    assert len(estimator.loss_curve_) == estimator.n_iter_ >= 1
    assert type(estimator.n_iter_) is int
    assert estimator.loss_ == estimator.loss_curve_[-1]
    assert estimator.best_loss_ <= min(estimator.loss_curve_)
    assert estimator.validation_curve_ == []
    diagnostics = estimator.convergence_diagnostics_
    np.testing.assert_array_equal(diagnostics.loss[1:], estimator.loss_curve_)
    precise = estimator.dtype_ == "float64"
    assert estimator.loss_ == pytest.approx(
        objective(estimator, X2D, y), rel=1e-9 if precise else 1e-4
    )
    assert type(estimator.learning_rate_) is float
    assert estimator.learning_rate_ > 0
    assert estimator.net_.history[:, "train_loss"] == estimator.loss_curve_
    assert estimator.device_ == "cpu"


def test_loss_of_several_outputs_is_their_sum():
    Y = np.c_[YR, 100 * YR**2 + 7]
    estimator = make_regressor().fit(X2D, Y)
    assert estimator.loss_ == pytest.approx(objective(estimator, X2D, Y), rel=1e-9)


@pytest.mark.parametrize("chunk_size", [1, 5, 12, 100])
@pytest.mark.parametrize(
    "parameters",
    [
        {"pooling": "mean"},
        {"pooling": "last", "learning_rate": "theory", "momentum": 0.0},
        {"early_stopping": "last", "validation_fraction": 0.25},
        {"learning_rate": 0.02, "layer_norm": True},
    ],
    ids=str,
)
def test_chunks_of_unequal_series_change_nothing(chunk_size, parameters):
    weight = np.arange(12) % 3 + 0.5
    fits = [
        make_regressor(chunk_size=size, max_iter=8, **parameters).fit(SERIES, SERIES_YR, weight)
        for size in (None, chunk_size)
    ]
    np.testing.assert_allclose(fits[1].loss_curve_, fits[0].loss_curve_, rtol=1e-9)
    np.testing.assert_allclose(fits[1].validation_curve_, fits[0].validation_curve_, rtol=1e-9)
    np.testing.assert_allclose(fits[1].predict(SERIES), fits[0].predict(SERIES), rtol=1e-7)


@both
def test_single_precision_is_close_to_double(make, y):
    single, double = (make(dtype=dtype).fit(X2D, y) for dtype in ("float32", "float64"))
    assert (single.dtype_, double.dtype_) == ("float32", "float64")
    assert {p.dtype for p in single.module_.parameters()} == {torch.float32}
    np.testing.assert_allclose(single.loss_curve_, double.loss_curve_, rtol=1e-3)
    np.testing.assert_allclose(outputs(single, X2D), outputs(double, X2D), rtol=0.02, atol=0.02)
    assert outputs(single, X2D.astype("float32")).dtype == np.float64


def test_classifier_objective_counts_class_weights():
    estimator = make_classifier(class_weight={"neg": 3.0, "pos": 1.0}).fit(X2D, YC)
    weight = np.where(YC == "neg", 3.0, 1.0)
    mean_loss = log_loss(YC, estimator.predict_proba(X2D), sample_weight=weight)
    assert estimator.loss_ == pytest.approx(mean_loss + penalty(estimator), rel=1e-9)
