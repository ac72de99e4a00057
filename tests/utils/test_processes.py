"""Fits in forked processes and in several that share a device."""

import numpy as np
import pytest
from sklearn.model_selection import GridSearchCV

from tests.builders import X2D, YR, make_regressor
from tests.tools import linux_only, run_python

_FIT_IN_A_FORKED_CHILD = """
import multiprocessing, sys
import numpy as np
import torch
from sklearn_restf import ResidualTransformerRegressor

torch.set_num_threads(2)
X = np.random.default_rng(0).normal(size=(2000, 24, 3))
y = X[:, -1, 0]

def fit():
    return ResidualTransformerRegressor(
        max_iter=3, d_ff=32, tol=None, device=sys.argv[1], random_state=0
    ).fit(X, y)

def child(queue):
    try:
        fit().predict(X[:10])
        queue.put("fitted")
    except Exception as error:
        queue.put(f"{type(error).__name__}: {error}")

fit()
context = multiprocessing.get_context("fork")
queue = context.SimpleQueue()
process = context.Process(target=child, args=(queue,))
process.start()
process.join(60)
if process.is_alive():
    process.kill()
    print("hangs")
else:
    print(queue.get())
"""


@pytest.mark.slow
@linux_only
def test_fit_in_a_forked_child_does_not_hang_case_d13():
    """It works, or says in seconds what to do instead."""
    printed = run_python("-c", _FIT_IN_A_FORKED_CHILD, "cpu", timeout=120, OMP_NUM_THREADS="2")
    assert printed.strip() == "fitted" or "spawn" in printed or "loky" in printed


@pytest.mark.gpu
@pytest.mark.slow
def test_cuda_in_a_forked_child_names_the_remedy_case_d13():
    printed = run_python("-c", _FIT_IN_A_FORKED_CHILD, "cuda", timeout=120, OMP_NUM_THREADS="2")
    assert "loky" in printed or "spawn" in printed


@pytest.mark.gpu
@pytest.mark.slow
def test_two_jobs_share_one_gpu_case_d13():
    grid = {"residual_beta": [0.0, 1.0]}
    estimator = make_regressor(device="cuda")
    alone = GridSearchCV(estimator, grid, cv=3).fit(X2D, YR)
    shared = GridSearchCV(estimator, grid, cv=3, n_jobs=2).fit(X2D, YR)
    np.testing.assert_allclose(
        shared.cv_results_["mean_test_score"], alone.cv_results_["mean_test_score"], rtol=1e-4
    )
