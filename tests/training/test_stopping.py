"""When training ends: tolerance, patience, nothing to learn."""

import warnings

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

from tests.builders import X2D, YR, both, make_regressor


@pytest.mark.parametrize("tol", [1e-3, 3e-2])
@pytest.mark.parametrize("patience", [3, 10])
def test_training_stops_as_soon_as_the_improvement_is_below_tol(tol, patience):
    estimator = make_regressor(tol=tol, n_iter_no_change=patience, max_iter=2000).fit(X2D, YR)
    assert estimator.stop_reason_ == "tol"
    losses = estimator.convergence_diagnostics_.loss

    def improvement(n_iter):
        before = losses[: n_iter + 1 - patience].min()
        return (before - losses[n_iter + 1 - patience : n_iter + 1].min()) / before

    assert improvement(estimator.n_iter_) <= tol
    assert all(improvement(n) > tol for n in range(patience, estimator.n_iter_))


@both
def test_zero_tol_trains_while_there_is_any_improvement(make, y):
    estimator = make(tol=0.0, max_iter=150)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        estimator.fit(X2D, y)
    assert estimator.n_iter_ == 150
    assert estimator.stop_reason_ == "max_iter"


@pytest.mark.parametrize("tol", [None, 1e-4])
@pytest.mark.parametrize("max_iter", [1, 5])
def test_nothing_to_learn_still_counts_iterations(tol, max_iter):
    """Constant X and y without penalty: the gradient is zero from the start."""
    estimator = make_regressor(alpha=0.0, tol=tol, max_iter=max_iter)
    estimator.fit(np.ones((10, 3)), np.ones(10))
    assert 1 <= estimator.n_iter_ == len(estimator.loss_curve_)
    if tol is None:
        assert estimator.n_iter_ == max_iter
    np.testing.assert_array_equal(estimator.predict(np.ones((2, 3))), 1.0)
