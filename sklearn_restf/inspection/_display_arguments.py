"""Arguments of the displays, checked so that a message names them."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from sklearn_restf._data.arrays import validating
from sklearn_restf._diagnostics.convergence_diagnostics import ConvergenceDiagnostics
from sklearn_restf._utils.validation import check_parameters, integer, is_bool


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


def check_counts(owner: str, **counts: Any) -> None:
    """Raise unless these are positive whole numbers."""
    check_parameters(owner, counts, {name: [integer(1)] for name in counts})


def check_place(place: Any, name: str) -> None:
    """Raise unless this is a whole number; whether there is such a place is seen later."""
    if is_bool(place) or not isinstance(place, Integral):
        raise TypeError(f"{name} must be an integer, got {place!r}.")


def check_layers(layers: Any, n_layers: int) -> list[int]:
    """Return the numbers of layers, all of them by default."""
    chosen: Sequence[Any] = range(1, n_layers + 1) if layers is None else as_list(layers, "layers")
    if not chosen or not all(integer(1, n_layers).holds(layer) for layer in chosen):
        raise ValueError(f"layers must be among 1 to {n_layers}, got {chosen}.")
    return [int(layer) for layer in chosen]


def check_diagnostics(diagnostics: Any) -> None:
    """Raise for anything but diagnostics."""
    if not isinstance(diagnostics, ConvergenceDiagnostics):
        raise TypeError(
            f"diagnostics must be a ConvergenceDiagnostics, got {type(diagnostics).__name__}."
        )
