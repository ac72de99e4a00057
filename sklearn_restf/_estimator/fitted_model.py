"""What a fitted estimator stores: plain data, with the format of older files brought up to date."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from sklearn_restf._data.tokens import TokenLayout
from sklearn_restf._model import ModuleConfig, NumpyState, ResidualTransformer
from sklearn_restf._utils.validation import is_bool

FORMAT_VERSION = 1
# what brings the state of a FittedModel of a format into the next one
MIGRATIONS: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {}


@dataclass(frozen=True)
class FittedModel:
    """All a fitted estimator needs to predict or to go on training; plain data only."""

    __module__ = "sklearn_restf._estimator"  # lasting: saved models name it

    config: ModuleConfig
    layout: TokenLayout
    state: NumpyState
    loss: str
    learning_rate: float
    velocity: np.ndarray | None = None  # kept for warm_start only
    history: list[dict[str, Any]] | None = None  # what callbacks recorded in the last fit
    format_version: int = FORMAT_VERSION

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take over what a file holds, of this or an older format."""
        self.__dict__.update(migrate(state))


def migrate(state: dict[str, Any]) -> dict[str, Any]:
    """Bring what a file holds into the present format; refuse what is newer."""
    version = state.get("format_version") if isinstance(state, dict) else None
    if is_bool(version) or not isinstance(version, int) or version < 1:
        raise ValueError("This is no model of sklearn-restf, or the file is damaged.")
    if version > FORMAT_VERSION:
        raise ValueError(
            f"This model was saved by a newer sklearn-restf (its format is {version}, known here "
            f"up to {FORMAT_VERSION}). Update sklearn-restf to load it."
        )
    for older in range(version, FORMAT_VERSION):
        state = MIGRATIONS[older](dict(state)) | {"format_version": older + 1}
    return state


def check_same_shapes(state: dict[str, np.ndarray], config: ModuleConfig) -> None:
    """Raise when warm_start would go on with weights of another model."""
    for name, parameter in ResidualTransformer(config).named_parameters():
        if name not in state or state[name].shape != tuple(parameter.shape):
            raise ValueError(
                f"warm_start=True cannot go on: parameter {name!r} had shape "
                f"{getattr(state.get(name), 'shape', None)} and would now have "
                f"{tuple(parameter.shape)}. Fit a clone, or set warm_start=False."
            )
