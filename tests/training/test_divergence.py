"""Training that diverges stops with the remedy and the last good model."""

import math
import pickle

import numpy as np
import pytest
from sklearn.exceptions import FitFailedWarning, NotFittedError
from sklearn.model_selection import GridSearchCV

from sklearn_restf.exceptions import DivergenceError
from tests.builders import X2, X2D, X3, X3D, YC, YR, both, make_classifier, make_regressor
from tests.tools import objective, outputs, recorded_warnings


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize(
    ("make", "X", "y"),
    [
        (make_regressor, X2 * 1e4, 1e6 * YR + 1e8),
        (make_regressor, X3D, YR),
        (make_classifier, X2, YC),
    ],
    ids=["regressor", "windows", "classifier"],
)
def test_diverging_constant_rate_stops_with_the_remedy_case_d21(make, X, y, momentum):
    """And the last good state is kept."""
    estimator = make(learning_rate=1e6, momentum=momentum, loss="squared_error")
    with pytest.raises(DivergenceError) as caught:
        estimator.fit(X, y)
    message = str(caught.value)
    assert "iteration" in message
    assert "learning_rate" in message
    assert "1000000" in message or "1e+06" in message or "1e6" in message
    assert "loss" in message
    assert "adaptive" in message
    rescued = caught.value.estimator
    assert np.isfinite(outputs(rescued, X)).all()
    assert math.isfinite(rescued.loss_)
    assert math.isfinite(rescued.best_loss_)
    assert all(math.isfinite(loss) for loss in rescued.loss_curve_[:-1])
    assert rescued.get_params() == estimator.get_params()


def test_diverging_candidates_do_not_stop_a_grid_search_case_d21():
    search = GridSearchCV(
        make_regressor(), {"learning_rate": [1e-2, 1e6]}, cv=3, error_score=np.nan
    )
    with recorded_warnings() as caught:
        search.fit(X2, YR)
    assert FitFailedWarning in [w.category for w in caught]
    np.testing.assert_array_equal(np.isnan(search.cv_results_["mean_test_score"]), [False, True])
    assert np.isfinite(search.predict(X2)).all()


def test_diagnostics_of_a_rescued_model_are_numbers_case_d27():
    """After divergence."""
    with pytest.raises(DivergenceError) as caught:
        make_regressor(learning_rate=1e6, diagnostics="full").fit(X3, YR)
    report = caught.value.estimator.convergence_diagnostics_
    assert report.sigma_min >= 0
    assert type(report.rate) is float
    assert isinstance(repr(report), str)


@both
def test_divergence_leaves_the_best_model_in_the_exception(make, y):
    estimator = make(learning_rate=30.0, momentum=0.0, max_iter=100, alpha=1.0)
    with pytest.raises(DivergenceError, match=r"iteration \d+.*30\.0.*adaptive") as diverged:
        estimator.fit(X2D, y)
    with pytest.raises(NotFittedError):
        estimator.predict(X2D)
    rescued = diverged.value.estimator
    assert type(rescued) is type(estimator)
    assert rescued.get_params() == estimator.get_params()
    assert np.isfinite(outputs(rescued, X2D)).all()
    assert rescued.stop_reason_ == "diverged"
    assert rescued.loss_ == rescued.best_loss_ == pytest.approx(objective(rescued, X2D, y))
    loaded = pickle.loads(pickle.dumps(diverged.value))
    assert str(loaded) == str(diverged.value)
    np.testing.assert_array_equal(outputs(loaded.estimator, X2D), outputs(rescued, X2D))
