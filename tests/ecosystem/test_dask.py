"""Model selection on the workers of a dask cluster."""

import joblib
import numpy as np
import pytest
from sklearn.model_selection import GridSearchCV

from sklearn_restf import ResidualTransformerClassifier

distributed = pytest.importorskip("distributed")

FEW = {"max_iter": 30, "tol": None, "random_state": 0}


def test_dask_backend_of_joblib(iris):
    with distributed.Client(
        n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None
    ):
        search = GridSearchCV(
            ResidualTransformerClassifier(**FEW), {"residual_beta": [0.0, 1.0]}, cv=2, n_jobs=2
        )
        with joblib.parallel_backend("dask"):
            search.fit(*iris)
    alone = GridSearchCV(
        ResidualTransformerClassifier(**FEW), {"residual_beta": [0.0, 1.0]}, cv=2
    ).fit(*iris)
    np.testing.assert_allclose(
        search.cv_results_["mean_test_score"], alone.cv_results_["mean_test_score"]
    )
