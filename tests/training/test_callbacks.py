"""A user's callbacks: called, never changed, copied with the estimator."""

import copy
import pickle
import threading

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV

from sklearn_restf import ResidualTransformerRegressor, diagnose
from sklearn_restf.callbacks import ConvergenceMonitor
from tests.builders import (
    FEW_STEPS,
    ROW_LABELS,
    ROWS,
    X2,
    YR,
    CountingCallback,
    LockCallback,
    both,
    make_regressor,
)
from tests.tools import outputs


@both
def test_empty_list_of_callbacks_is_none_case_d26(make, y):
    none = make(callbacks=None).fit(X2, y)
    empty = make(callbacks=[]).fit(X2, y)
    assert empty.loss_curve_ == none.loss_curve_
    np.testing.assert_array_equal(outputs(empty, X2), outputs(none, X2))


@both
def test_callback_sees_every_iteration_and_changes_nothing_case_d26(make, y):
    callback = CountingCallback()
    callbacks = [callback]
    estimator = make(callbacks=callbacks).fit(X2, y)
    assert estimator.loss_curve_ == make().fit(X2, y).loss_curve_
    assert estimator.callbacks is callbacks
    assert callbacks == [callback]
    assert vars(callback) == {}
    used = [c for c in estimator.callbacks_ if isinstance(c, CountingCallback)]
    assert [c.epochs_ for c in used] == [list(range(1, 21))]


@both
def test_callbacks_survive_clone_pickle_and_grid_search_case_d26(make, y):
    estimator = make(callbacks=[CountingCallback()])
    copied = clone(estimator).fit(X2, y)
    assert copied.callbacks[0] is not estimator.callbacks[0]
    np.testing.assert_array_equal(
        outputs(pickle.loads(pickle.dumps(copied)), X2), outputs(copied, X2)
    )
    search = GridSearchCV(estimator, {"d_ff": [4, 8]}, cv=2, error_score="raise").fit(X2, y)
    used = [c for c in search.best_estimator_.callbacks_ if isinstance(c, CountingCallback)]
    assert [len(c.epochs_) for c in used] == [20]
    assert vars(estimator.callbacks[0]) == {}


@pytest.mark.parametrize("search", [False, True])
def test_callback_that_cannot_be_copied_works_in_one_process_case_d26(search):
    lock = threading.Lock()
    callback = LockCallback(lock)
    estimator = make_regressor(callbacks=[callback])
    if search:
        grid = GridSearchCV(estimator, {"d_ff": [4, 8]}, cv=2, n_jobs=1, error_score="raise")
        assert grid.fit(X2, YR).predict(X2).shape == (64,)
    else:
        assert estimator.fit(X2, YR).predict(X2).shape == (64,)
    assert estimator.callbacks[0] is callback
    assert vars(callback) == {"lock": lock}


@pytest.mark.parametrize("bad", ["progress", [object()], 3])
def test_objects_that_are_no_callbacks_are_refused_case_d26(bad):
    with pytest.raises((ValueError, TypeError), match="callback"):
        make_regressor(callbacks=bad).fit(X2, YR)


def test_a_copy_or_a_pickle_leaves_the_callbacks_of_the_fit_alone():
    model = ResidualTransformerRegressor(**FEW_STEPS, callbacks=[ConvergenceMonitor()])
    monitor = model.fit(ROWS, ROW_LABELS).callbacks_[0]
    pickle.dumps(model)
    copy.copy(model)
    diagnose(model, ROWS)
    assert model.callbacks_ == [monitor]
