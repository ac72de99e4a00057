"""polars frames go in as they are."""

import numpy as np
import pytest

from sklearn_restf import ResidualTransformerClassifier

polars = pytest.importorskip("polars")

FEW = {"max_iter": 30, "tol": None, "random_state": 0}


def test_polars_frame(iris):
    X, y = iris
    frame = polars.DataFrame({name: X[name].to_numpy() for name in X})
    model = ResidualTransformerClassifier(**FEW).fit(frame, y)
    assert model.feature_names_in_.tolist() == list(X.columns)
    np.testing.assert_array_equal(
        model.predict(frame), ResidualTransformerClassifier(**FEW).fit(X, y).predict(X)
    )
