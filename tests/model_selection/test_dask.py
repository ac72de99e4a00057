"""Model selection on the processes of a dask cluster."""

import os
import signal
from pathlib import Path

import joblib
import pytest
from numpy.testing import assert_allclose
from sklearn.datasets import load_iris
from sklearn.model_selection import GridSearchCV
from skorch.callbacks import Callback

from sklearn_restf import ResidualTransformerClassifier, ResidualTransformerClassifierCV

distributed = pytest.importorskip("distributed", reason="dask's distributed is not installed")

FEW = {"max_iter": 20, "tol": None, "random_state": 0}
BETAS = [0.0, 0.5, 1.0]


class KillOnce(Callback):
    """Kills the process that it runs in, in the middle of a fit, once."""

    def __init__(self, folder):
        self.folder = folder

    def on_epoch_end(self, net, **kwargs):
        if len(net.history) < 10:
            return
        try:
            (Path(self.folder) / "killed").touch(exist_ok=False)
        except FileExistsError:
            return
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with (
        distributed.LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            processes=True,
            dashboard_address=None,
            local_directory=tmp_path_factory.mktemp("dask"),
            silence_logs="CRITICAL",
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def iris():
    return load_iris(return_X_y=True)


def search(**parameters):
    model = ResidualTransformerClassifier(**FEW | parameters)
    return GridSearchCV(model, {"residual_beta": BETAS}, cv=2, n_jobs=2)


def assert_same_search(found, expected):
    assert_allclose(
        found.cv_results_["mean_test_score"], expected.cv_results_["mean_test_score"], rtol=1e-6
    )
    assert found.best_params_ == expected.best_params_
    assert_allclose(found.best_estimator_.loss_curve_, expected.best_estimator_.loss_curve_)


@pytest.fixture(scope="module")
def alone(iris):
    return search().set_params(n_jobs=1).fit(*iris)


def test_grid_search(cluster, iris, alone):
    with joblib.parallel_config("dask"):
        found = search().fit(*iris)
    assert_same_search(found, alone)


def test_a_search_outlives_the_death_of_a_worker(cluster, iris, alone, tmp_path):
    before = set(cluster.run(os.getpid).values())
    with joblib.parallel_config("dask"):
        found = search(callbacks=[KillOnce(str(tmp_path))]).set_params(refit=False).fit(*iris)
    assert (tmp_path / "killed").exists()
    assert_allclose(
        found.cv_results_["mean_test_score"], alone.cv_results_["mean_test_score"], rtol=1e-6
    )
    cluster.wait_for_workers(2, timeout=60)
    assert set(cluster.run(os.getpid).values()) != before


@pytest.mark.slow
def test_batched_search_one_by_one(cluster, iris):
    """With callbacks the models of a ...CV estimator are trained by joblib."""
    parameters = FEW | {"residual_betas": BETAS, "cv": 2, "n_jobs": 2, "callbacks": [Callback()]}
    with joblib.parallel_config("dask"):
        found = ResidualTransformerClassifierCV(**parameters).fit(*iris)
    here = ResidualTransformerClassifierCV(**parameters | {"n_jobs": 1, "callbacks": None})
    here.fit(*iris)
    assert found.residual_beta_ == here.residual_beta_
    assert_allclose(
        found.cv_results_["mean_test_score"], here.cv_results_["mean_test_score"], rtol=1e-4
    )
