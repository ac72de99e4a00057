"""One warning at most, and only when the user's budget was too small."""

import warnings

import pytest
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import GridSearchCV

from tests.builders import X2, X2D, YR, both, make_regressor
from tests.tools import recorded_warnings


@both
@pytest.mark.parametrize("max_iter", [1, 2, 5, 20])
def test_at_most_one_convergence_warning_per_fit_case_d25(make, y, max_iter):
    """If there is one, it tells the number of iterations and the last change."""
    with recorded_warnings() as caught:
        estimator = make(max_iter=max_iter, tol=1e-4).fit(X2, y)
    assert len(caught) <= 1
    for warning in caught:
        assert warning.category is ConvergenceWarning
        assert str(estimator.n_iter_) in str(warning.message)
        assert "loss" in str(warning.message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", category=ConvergenceWarning)
        make(max_iter=max_iter, tol=1e-4).fit(X2, y)


@both
@pytest.mark.parametrize("max_iter", [1, 5])
def test_fixed_budget_never_warns_case_d25(make, y, max_iter):
    """Tol=None says that the budget is meant."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make(max_iter=max_iter, tol=None).fit(X2, y)


@pytest.mark.parametrize("n_jobs", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_filtered_convergence_warnings_stay_silent_in_a_grid_search_case_d25(n_jobs, capfd):
    """In the workers as well."""
    grid = {"residual_beta": [0.0, 1.0]}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=ConvergenceWarning)
        GridSearchCV(make_regressor(max_iter=5, tol=1e-4), grid, cv=3, n_jobs=n_jobs).fit(X2, YR)
    printed = capfd.readouterr()
    assert "Warning" not in printed.out + printed.err


@both
def test_training_that_ran_out_of_iterations_warns_once_case_d25(make, y):
    """Attributed to the line that called fit, not to a line of ours."""
    with pytest.warns(ConvergenceWarning, match=r"max_iter=5\b.*Raise max_iter") as caught:
        make(tol=1e-4, max_iter=5).fit(X2D, y)
    assert len(caught) == 1
    assert caught[0].filename == __file__
