"""Declarative checks of constructor parameters and of arguments of functions.

A constraint is a predicate and the words for it; a parameter is valid when one of its
constraints holds. scikit-learn's own machinery for this is private, hence this small one.
"""

from __future__ import annotations

import functools
import inspect
import numbers
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class Constraint:
    """A predicate with its description."""

    holds: Callable[[Any], bool]
    words: str


def is_bool(value: Any) -> bool:
    """Tell whether `value` is a bool, NumPy's included."""
    return isinstance(value, bool | np.bool_)


def integer(low: float = -np.inf, high: float = np.inf) -> Constraint:
    """Accept integers in [low, high]; bools are not numbers."""
    if low == -np.inf:
        words = "an int"
    else:
        words = f"an int >= {low}" if high == np.inf else f"an int in [{low}, {high}]"
    return Constraint(
        lambda v: isinstance(v, numbers.Integral) and not is_bool(v) and low <= int(v) <= high,
        words,
    )


def real(
    low: float = -np.inf,
    high: float = np.inf,
    *,
    low_open: bool = False,
    high_open: bool = False,
) -> Constraint:
    """Accept finite real numbers in [low, high]; without its ends where they are open."""

    def holds(v: Any) -> bool:
        if not isinstance(v, numbers.Real) or is_bool(v):
            return False
        try:
            number = float(v)
        except OverflowError:
            return False
        if not np.isfinite(number):
            return False
        above = low < number if low_open else low <= number
        return above and (number < high if high_open else number <= high)

    if low == -np.inf:
        words = "a finite float"
    elif high == np.inf:
        words = f"a finite float {'>' if low_open else '>='} {low}"
    else:
        words = f"a float in {'(' if low_open else '['}{low}, {high}{')' if high_open else ']'}"
    return Constraint(holds, words)


def one_of(*options: Any) -> Constraint:
    """Accept exactly the given strings or None."""
    return Constraint(
        lambda v: (v is None or isinstance(v, str)) and v in options,
        ("one of " if len(options) > 1 else "") + ", ".join(map(repr, options)),
    )


def instance_of(*types: type, words: str) -> Constraint:
    """Accept instances of `types`."""
    return Constraint(lambda v: isinstance(v, types), words)


def sequence_of(item: Constraint, words: str, length: int | None = None) -> Constraint:
    """Accept sequences and 1-D arrays, not empty, of items that hold."""

    def holds(v: Any) -> bool:
        if isinstance(v, str) or not (isinstance(v, Sequence) or np.ndim(v) == 1):
            return False
        return len(v) > 0 and length in (None, len(v)) and all(item.holds(x) for x in v)

    return Constraint(holds, words)


BOOL = Constraint(is_bool, "a bool")
NONE = one_of(None)
RANDOM_STATE = Constraint(
    lambda v: (
        v is None
        or isinstance(v, np.random.RandomState)
        or (isinstance(v, numbers.Integral) and not is_bool(v) and 0 <= int(v) < 2**32)
    ),
    "None, an int in [0, 2**32 - 1] or a numpy.random.RandomState instance",
)


def plain(value: Any) -> Any:
    """Return a number of another library as one of Python itself."""
    if isinstance(value, np.generic):
        value = value.item()
    is_other = isinstance(value, numbers.Real) and not isinstance(value, int | float)
    return float(value) if is_other else value  # a fraction, say


def check_parameters(
    name: str, parameters: Mapping[str, Any], constraints: Mapping[str, Sequence[Constraint]]
) -> None:
    """Raise an InvalidParameterError naming the first bad parameter.

    A subclass may have fewer of them, as in scikit-learn.
    """
    for parameter, allowed in constraints.items():
        if parameter not in parameters:
            continue
        value = parameters[parameter]
        if any(constraint.holds(value) for constraint in allowed):
            continue
        words = " or ".join(constraint.words for constraint in allowed)
        raise InvalidParameterError(
            f"The {parameter!r} parameter of {name} must be {words}. Got {value!r} instead."
        )


def check_arguments(**constraints: Sequence[Constraint]) -> Callable[[Function], Function]:
    """Check arguments of a function, those that are passed, before it is called."""

    def decorate(function: Function) -> Function:
        positions = list(inspect.signature(function).parameters)

        @functools.wraps(function)
        def checked(*args: Any, **kwargs: Any) -> Any:
            passed = dict(zip(positions, args, strict=False)) | kwargs
            check_parameters(function.__qualname__, passed, constraints)
            return function(*args, **kwargs)

        return checked  # type: ignore[return-value]

    return decorate


class InvalidParameterError(ValueError, TypeError):
    """A constructor parameter has a value or a type that is not allowed."""
