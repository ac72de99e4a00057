"""The theorem's setting as constructor parameters."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

#: Puts an estimator into the setting of the convergence theorem (arXiv 2506.05249v4): plain
#: gradient descent with the step ``1 / ||J||^2`` (constant, unless a step would raise the loss)
#: on the squared error, no penalty, no inner standardisation of X, a fixed number of iterations.
#: ``ResidualTransformerRegressor(**THEOREM_SETTINGS, pooling="none")`` is the theorem's
#: model.
THEOREM_SETTINGS: Mapping[str, Any] = MappingProxyType(
    {
        "loss": "squared_error",
        "standardize": False,
        "alpha": 0.0,
        "momentum": 0.0,
        "learning_rate": "theory",
        "tol": None,
        "early_stopping": False,
        "dtype": "float64",
    }
)
