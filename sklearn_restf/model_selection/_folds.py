"""The samples of a sweep and their folds."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.utils import check_random_state

from sklearn_restf._data.samples import Samples
from sklearn_restf._estimator.fit import TrainableBase
from sklearn_restf._training import Problem
from sklearn_restf._utils.device import resolve_device


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
    posed: threading.local = field(default_factory=threading.local)  # .last: fold and problem

    def take(self, rows: np.ndarray) -> Held:
        """Return some samples in the user's form."""
        weight = self.samples.weight[rows] if self.weighted else None
        return Held(take_rows(self.X, rows), take_rows(self.y, rows), weight)

    def training_samples(self, plain: TrainableBase, fold: Fold) -> Samples:
        """Return the validated training samples of a fold, as ``plain.fit`` would see them."""
        return plain._with_class_weights(self.samples.take(fold.train))

    def problem(self, plain: TrainableBase, fold: Fold) -> tuple[TrainableBase, Problem]:
        """Return an estimator that has seen the training samples of a fold, and its problem.

        Folds come one after another: kept until the next is asked for, each is posed once.
        """
        last = getattr(self.posed, "last", None)
        if last is None or last[0] is not fold:
            estimator = clone(plain)
            vars(estimator).update(self.attributes)
            random_state = check_random_state(estimator.random_state)
            samples = self.training_samples(estimator, fold)
            samples, valid = estimator._split(samples, None, random_state)
            device = resolve_device(estimator.device)
            problem = estimator._pose(samples, valid, None, random_state, device)
            last = self.posed.last = fold, estimator, problem
        return last[1:]

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "posed"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, posed=threading.local())  # another process poses its own


def take_rows(values: Any, rows: np.ndarray) -> Any:
    """Return the given rows of an array, tensor, frame or list, in the same form."""
    if hasattr(values, "iloc"):
        return values.iloc[rows]
    if isinstance(values, list | tuple):
        return [values[i] for i in rows]
    if not hasattr(values, "shape"):
        values = np.asarray(values)
    return values[rows]
