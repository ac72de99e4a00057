"""What a training run is told, and what it leaves behind."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sklearn_restf._model import Loss, NumpyState


@dataclass(frozen=True)
class TrainingSettings:
    """What the training loop needs to know of the estimator's parameters."""

    loss: Loss
    learning_rate: float | str
    momentum: float
    alpha: float
    max_iter: int
    tol: float | None
    n_iter_no_change: int
    verbose: int = 0


@dataclass
class TrainingResult:
    """What a run leaves behind: initial weights, weights to keep, and its history.

    `losses` and `gradient_norms` have one entry per visited point (the initial one included),
    `learning_rates` one per step.
    """

    initial_state: NumpyState
    state: NumpyState = field(default_factory=dict)
    kept_best: bool = False  # whether `state` is the best one rather than the last
    best_iteration: int = 0
    losses: list[float] = field(default_factory=list)
    gradient_norms: list[float] = field(default_factory=list)
    learning_rates: list[float] = field(default_factory=list)
    validation_losses: list[float] = field(default_factory=list)
    stop_reason: str = "max_iter"
    loss: float = math.nan  # objective at `state`
    learning_rate: float = math.nan
    velocity: np.ndarray | None = None
    history: list[dict[str, Any]] | None = None  # what callbacks recorded, by iteration

    @property
    def n_iter(self) -> int:
        """Number of gradient-descent steps taken."""
        return len(self.learning_rates)

    def drop_unfinished(self, n: int) -> None:
        """Forget the half of an iteration that an interrupt left after `n` whole ones."""
        del self.losses[n + 1 :], self.gradient_norms[n + 1 :]
        del self.learning_rates[n:], self.validation_losses[n:]
