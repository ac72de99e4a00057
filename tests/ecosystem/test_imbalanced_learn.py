"""Resampling before the estimator, in the pipeline of imbalanced-learn."""

import pytest

from sklearn_restf import ResidualTransformerClassifier

pytest.importorskip("imblearn")

FEW = {"max_iter": 30, "tol": None, "random_state": 0}


def test_imbalanced_learn_pipeline(iris):
    from imblearn.over_sampling import RandomOverSampler
    from imblearn.pipeline import make_pipeline as make_resampling_pipeline

    X, y = iris[0][:110], iris[1][:110]
    model = make_resampling_pipeline(
        RandomOverSampler(random_state=0), ResidualTransformerClassifier(**FEW)
    ).fit(X, y)
    assert model.score(X, y) > 0.9
