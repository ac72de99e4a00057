"""Arguments of the displays, checked so that a message names them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from sklearn_restf._data.arrays import validating
from sklearn_restf._diagnostics.convergence_diagnostics import ConvergenceDiagnostics
from sklearn_restf._utils.validation import instance_of


def numbers(values: ArrayLike, name: str, ndim: int = 1) -> np.ndarray:
    """Return float64 numbers of so many dimensions."""
    with validating(name):
        array = np.asarray(values)
        if np.iscomplexobj(array):
            raise TypeError(f"{name} must be real numbers.")
        array = array.astype(np.float64)
    if array.ndim != ndim:
        raise ValueError(f"{name} must have {ndim} dimension(s), got the shape {array.shape}.")
    return array


def number(value: Any, name: str) -> float:
    """Return one number; NaN says that it is not known."""
    return float(numbers(value, name, 0))


def as_list(values: Any, name: str) -> list[Any]:
    """Return a sequence as a list; a word is none."""
    if isinstance(values, str):
        raise TypeError(f"{name} must be a sequence, got {values!r}.")
    with validating(name):
        return list(values)


DIAGNOSTICS = instance_of(ConvergenceDiagnostics, words="a ConvergenceDiagnostics")
