"""Targets as numbers, and the folds by which no sentence is scored by its own label."""

from __future__ import annotations

from collections.abc import Iterable
from numbers import Integral
from typing import Any

import numpy as np
from sklearn.model_selection import KFold, StratifiedKFold, check_cv
from sklearn.preprocessing import LabelBinarizer
from sklearn.utils import assert_all_finite, check_array, column_or_1d
from sklearn.utils.multiclass import type_of_target

from sklearn_restf._data.arrays import as_numpy, validating


@validating("y")
def encode_target(
    y: Any, n_samples: int, target_type: str
) -> tuple[np.ndarray | None, str | None, np.ndarray | None, list[str]]:
    """Return a target as columns of numbers, what it means, its classes and the columns' suffixes.

    Numbers stay as they are; classes become -1 and 1, in one column if there are two. The suffix
    of an only column is empty.
    """
    if y is None:
        return None, None, None, []
    y = np.asarray(as_numpy(y))
    if y.ndim == 0 or len(y) != n_samples:
        raise ValueError(f"y has {y.shape[0] if y.ndim else 1} values for {n_samples} sentences.")
    if n_samples < 2:
        raise ValueError("At least 2 sentences are needed to learn from y (1 sample given).")
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.dtype.kind == "f":
        assert_all_finite(y, input_name="y")
    kind = type_of_target(y, input_name="y")
    if target_type == "auto":
        target_type = "regression" if kind.startswith("continuous") else "classification"
    if target_type == "regression":
        numbers = check_array(y, ensure_2d=False, dtype=np.float64, input_name="y")
        numbers = numbers.reshape(n_samples, -1)
        n_outputs = numbers.shape[1]
        suffixes = [""] if n_outputs == 1 else [f"_{j}" for j in range(n_outputs)]
        return numbers, target_type, None, suffixes
    if kind not in ("binary", "multiclass"):
        raise ValueError(f"Unknown label type: {kind}. One class for each sentence is needed.")
    binarizer = LabelBinarizer(neg_label=-1)
    target = binarizer.fit_transform(column_or_1d(y)).astype(np.float64)
    suffixes = [""] if target.shape[1] == 1 else [f"_{name}" for name in binarizer.classes_]
    return target, target_type, binarizer.classes_, suffixes


def cross_fitting_splits(
    cv: Any, y: Any, target_type: str | None, n_samples: int, random_state: Any
) -> Iterable[tuple[np.ndarray, np.ndarray]]:
    """Return the training and test rows of each fold of the cross-fitting.

    A number `cv` means so many shuffled folds, at most one for each sample; classes are stratified
    if each has a member for every fold.
    """
    rows = np.zeros((n_samples, 1))
    if not isinstance(cv, Integral):
        with validating("cv"):
            return list(check_cv(cv).split(rows, y))
    n_splits = min(int(cv), n_samples)
    stratify = False
    if target_type == "classification":
        y = column_or_1d(y)
        stratify = np.unique(y, return_counts=True)[1].min() >= n_splits
    folds = StratifiedKFold if stratify else KFold
    return folds(n_splits, shuffle=True, random_state=random_state).split(rows, y)
