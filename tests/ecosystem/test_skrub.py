"""A table of any columns, made numeric by skrub."""

import pytest
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from sklearn_restf import ResidualTransformerRegressor

skrub = pytest.importorskip("skrub")

FEW = {"max_iter": 30, "tol": None, "random_state": 0}


def test_skrub_table_vectorizer(employees):
    frame, salary = employees
    model = make_pipeline(
        skrub.TableVectorizer(), StandardScaler(), ResidualTransformerRegressor(**FEW)
    )
    assert model.fit(frame, salary).score(frame, salary) > 0.8
