"""The samples of a sweep and their folds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from sklearn_restf._data.samples import Samples
from sklearn_restf._estimator.fit import TrainableBase


@dataclass(frozen=True)
class Fold:
    """The rows to train on and the rows to score on."""

    train: np.ndarray
    test: np.ndarray

    @classmethod
    def of(cls, train: Any, test: Any) -> Fold:
        """Take what a splitter yields: positions, or boolean masks."""
        parts = [np.asarray(part) for part in (train, test)]
        return cls(*(np.flatnonzero(p) if p.dtype == bool else p for p in parts))


@dataclass(frozen=True)
class Held:
    """The held-out samples of a fold, in the user's form."""

    X: Any
    y: Any
    weight: np.ndarray | None


@dataclass(frozen=True)
class SweepData:
    """All samples, in the user's form and validated.

    Estimators and scorers get the user's form, so that a scorer which wants a DataFrame
    gets one; batched training takes the validated one.
    """

    X: Any
    y: Any
    samples: Samples
    weighted: bool
    attributes: dict[str, Any]  # what reading X sets: n_features_in_ and feature_names_in_

    def take(self, rows: np.ndarray) -> Held:
        """Return some samples in the user's form."""
        weight = self.samples.weight[rows] if self.weighted else None
        return Held(take_rows(self.X, rows), take_rows(self.y, rows), weight)

    def training_samples(self, plain: TrainableBase, fold: Fold) -> Samples:
        """Return the validated training samples of a fold, as ``plain.fit`` would see them."""
        return plain._with_class_weights(self.samples.take(fold.train))


def take_rows(values: Any, rows: np.ndarray) -> Any:
    """Return the given rows of an array, tensor, frame or list, in the same form."""
    if hasattr(values, "iloc"):
        return values.iloc[rows]
    if isinstance(values, list | tuple):
        return [values[i] for i in rows]
    if not hasattr(values, "shape"):
        values = np.asarray(values)
    return values[rows]
