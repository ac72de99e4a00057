"""From what users fit (pipelines, searches) to the estimator inside, and to its tokens."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from sklearn.frozen import FrozenEstimator
from sklearn.pipeline import Pipeline
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from sklearn_restf._data.arrays import RawTokens
from sklearn_restf._estimator.base import ResidualTransformerBase

# what scikit-learn's meta-estimators call the one estimator they have fitted
INSIDE = ("best_estimator_", "regressor_", "estimator_")


def unwrap(estimator: Any, X: Any = None) -> tuple[ResidualTransformerBase, Any]:
    """Return the fitted residual Transformer inside `estimator`, and X as it comes to it.

    Parameters
    ----------
    estimator : estimator
        One of this package's, or a pipeline, search or target transformer around it.
    X : array-like, default=None
        Samples as `estimator` takes them.
    """
    outer = type(estimator).__name__
    while not isinstance(estimator, ResidualTransformerBase):
        if isinstance(estimator, type) or not hasattr(estimator, "fit"):
            raise TypeError(f"estimator must be a fitted estimator, got {estimator!r:.60}.")
        check_is_fitted(estimator)
        if isinstance(estimator, Pipeline):
            if X is not None and len(estimator) > 1:
                X = estimator[:-1].transform(X)
            estimator = estimator[-1]
            continue
        inside = estimator_inside(estimator)
        if inside is None:
            raise TypeError(
                "Expected a fitted ResidualTransformerRegressor or ResidualTransformerClassifier, "
                f"alone, in a Pipeline or in a search with refit=True; got {outer}."
            )
        estimator = inside
    check_is_fitted(estimator)
    return estimator, X


def estimator_inside(estimator: Any) -> Any:
    """Return the one fitted estimator in a meta-estimator, or None."""
    if isinstance(estimator, FrozenEstimator):
        return estimator.estimator
    if hasattr(estimator, "estimators_"):  # an ensemble: its estimator_ is a template
        return None
    return next((getattr(estimator, name) for name in INSIDE if hasattr(estimator, name)), None)


def token_batch(
    estimator: ResidualTransformerBase, tokens: RawTokens, rows: np.ndarray
) -> tuple[Tensor, Tensor | None]:
    """Return some samples as float64 tokens and, if ragged, their mask."""
    layout = estimator._fitted.layout
    return layout.batch(tokens, rows, torch.float64, torch.device("cpu"))
