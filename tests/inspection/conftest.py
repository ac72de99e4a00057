"""Data, models and the legends of axes for the tests of the displays."""

import numpy as np
import pytest
from sklearn.model_selection import GridSearchCV

from sklearn_restf import ResidualTransformerRegressor

FAST = {"max_iter": 30, "tol": None, "random_state": 0}
BETAS = [0.0, 0.5, 1.0]


def labels(ax):
    return [text.get_text() for text in ax.get_legend().get_texts()]


@pytest.fixture(autouse=True)
def close_figures():
    pyplot = pytest.importorskip("matplotlib.pyplot", reason="the extra plot is not installed")
    yield
    pyplot.close("all")


@pytest.fixture(scope="module")
def table():
    X = np.random.default_rng(0).normal(size=(60, 5))
    return X, X[:, 0] + X[:, 1] ** 2


@pytest.fixture(scope="module")
def windows():
    X = np.random.default_rng(1).normal(size=(50, 6, 4))
    return X, X[:, 0, 0]


@pytest.fixture(scope="module")
def ragged():
    rng = np.random.default_rng(2)
    return [rng.normal(size=(2 + i % 5, 3)) for i in range(30)], rng.normal(size=30)


@pytest.fixture(scope="module")
def fitted(table):
    return ResidualTransformerRegressor(**FAST).fit(*table)


@pytest.fixture(scope="module")
def search(table):
    return GridSearchCV(
        ResidualTransformerRegressor(**FAST), {"residual_beta": [1.0, 0.0, 0.5]}, cv=3
    ).fit(*table)
