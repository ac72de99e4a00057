"""Thread counts: one for small work, and what was before afterwards."""

import os
import threading

import numpy as np
import pytest
import torch
from skorch.callbacks import Callback
from threadpoolctl import threadpool_info, threadpool_limits

from sklearn_restf import ResidualTransformerRegressor
from sklearn_restf._utils.threads import SMALL_WORK, thread_limit
from tests.builders import X2, both, spoiled
from tests.tools import run_python


@pytest.fixture
def two_threads(set_torch_threads):
    set_torch_threads(2)


def test_small_work_runs_on_one_thread(two_threads):
    with thread_limit(SMALL_WORK - 1):
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 2


def test_large_work_keeps_the_threads(two_threads):
    with thread_limit(SMALL_WORK):
        assert torch.get_num_threads() == 2


def blas_threads():
    return {
        library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"
    }


def test_numpy_runs_on_one_thread_as_well(two_threads):
    with threadpool_limits(2, user_api="blas"):
        with thread_limit(0), thread_limit(0):
            assert blas_threads() == {1}
        assert blas_threads() == {2}


def test_restored_after_an_error(two_threads):
    with pytest.raises(RuntimeError), thread_limit(0):
        raise RuntimeError
    assert torch.get_num_threads() == 2


def test_nested(two_threads):
    with thread_limit(0):
        with thread_limit(0):
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 2


def test_a_callback_that_predicts_leaves_the_threads_of_the_fit_alone(two_threads):
    X, y = np.random.default_rng(0).normal(size=(20, 3)), np.arange(20.0)
    fitted = ResidualTransformerRegressor(max_iter=2, tol=None).fit(X, y)
    seen = []

    class Predicting(Callback):
        def on_epoch_end(self, net, **kwargs):
            fitted.predict(X)
            seen.append(torch.get_num_threads())

    ResidualTransformerRegressor(max_iter=3, tol=None, callbacks=[Predicting()]).fit(X, y)
    assert seen == [1, 1, 1]


def test_several_threads_at_once(two_threads):
    inside, failures = threading.Barrier(4), []

    def work():
        try:
            with thread_limit(0):
                inside.wait(timeout=30)
                assert torch.get_num_threads() == 1
                inside.wait(timeout=30)
        except Exception as error:  # shown by the assertion below
            failures.append(error)

    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not failures
    assert torch.get_num_threads() == 2
    with thread_limit(0):
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 2


FORKED = """
import os, torch
torch.set_num_threads(2)
from sklearn_restf._utils.threads import thread_limit
with thread_limit(1e12):
    assert torch.get_num_threads() == 2
torch.ones(600, 600) @ torch.ones(600, 600)
child = os.fork()
if child == 0:
    with thread_limit(1e12):
        ok = torch.get_num_threads() == 1
        torch.ones(600, 600) @ torch.ones(600, 600)
    os._exit(0 if ok else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_uses_one_thread_whatever_the_work():
    run_python("-c", FORKED, timeout=100)


@both
def test_thread_count_is_left_as_it_was_case_d13(make, y):
    """After success and after failure."""
    before = torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            make().fit(X2, y).predict(X2)
            assert torch.get_num_threads() == threads
            with pytest.raises(ValueError, match="NaN"):
                make().fit(spoiled(X2, np.nan), y)
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
