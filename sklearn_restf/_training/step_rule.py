"""The step rule of gradient descent: for one model in plain numbers, and on a device in tensors.

A step is ``-rate * gradient + push * velocity``, where the velocity is the last step. Guarded, it
is taken only if the objective does not increase: else first the momentum is dropped, then the
rate is halved; after each step the rate grows. NaN compares false, so an overflow is a rejected
step. Unguarded this is ``torch.optim.SGD`` with the same rate and momentum.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from sklearn_restf._training.training_result import TrainingSettings

GROWTH, SHRINK = 1.1, 0.5  # measured best of a handful of step rules
SMALLEST_RATE = 1e-20
FIRST_RATE = 0.1


def first_rate(learning_rate: float | str, gauss_newton_norm: Callable[[], float]) -> float:
    """Return the learning rate to start with; `gauss_newton_norm` is asked for "theory" only."""
    if not isinstance(learning_rate, str):
        return learning_rate
    norm = gauss_newton_norm() if learning_rate == "theory" else 0.0
    return 1.0 / norm if 0.0 < norm < math.inf else FIRST_RATE


@dataclass
class StepRule:
    """The rule and its state, of one model.

    Parameters
    ----------
    rate : float
        Learning rate of the next step.
    momentum : float
        Heavy-ball momentum in [0, 1).
    guarded : bool
        Whether the objective may never increase.
    growth : float
        Factor on the rate after each accepted step.
    moving : bool
        Whether the velocity counts in the next step.
    last_rate : float
        Learning rate of the last step taken.
    """

    rate: float
    momentum: float
    guarded: bool
    growth: float
    moving: bool = False
    last_rate: float = math.nan

    @classmethod
    def of(cls, settings: TrainingSettings, rate: float) -> StepRule:
        """Return the rule that the settings ask for."""
        growth = GROWTH if settings.learning_rate == "adaptive" else 1.0
        return cls(rate, settings.momentum, isinstance(settings.learning_rate, str), growth)

    @property
    def push(self) -> float:
        """What the velocity is multiplied by in the next step."""
        return self.momentum if self.moving else 0.0

    def judge(self, before: float, loss: float) -> str:
        """Decide about the step that led from one objective to another.

        Returns
        -------
        verdict : {"accepted", "again", "stalled", "diverged"}
            A step that is not accepted is tried again with another `rate` or `push`.
        """
        if loss <= before or not self.guarded:
            self.last_rate, self.moving = self.rate, self.momentum > 0
            if not math.isfinite(loss):
                return "diverged"
            self.rate *= self.growth
            return "accepted"
        if self.moving:
            self.moving = False
            return "again"
        self.rate *= SHRINK
        return "again" if self.rate >= SMALLEST_RATE else "stalled"


@dataclass
class DeviceStepRule:
    """:class:`StepRule` of S models as tensors (S,) on a device, which decides by itself."""

    rate: Tensor  # float64
    moving: Tensor  # bool
    momentum: float
    guarded: bool
    growth: float

    @classmethod
    def of(cls, rules: list[StepRule], device: torch.device) -> DeviceStepRule:
        """Take over the rules of the models, which differ in their state only."""
        first = rules[0]
        rate = torch.tensor([rule.rate for rule in rules], dtype=torch.float64, device=device)
        moving = torch.tensor([rule.moving for rule in rules], device=device)
        return cls(rate, moving, first.momentum, first.guarded, first.growth)

    def step(self, gradient: Tensor, velocity: Tensor) -> Tensor:
        """Return the step (S, P) to try."""
        step = gradient * -self.rate.to(gradient.dtype)[:, None]
        if not self.momentum:
            return step
        pushed = torch.add(step, velocity, alpha=self.momentum)
        return torch.where(self.moving[:, None], pushed, step)

    def judge(self, before: Tensor, loss: Tensor, going: Tensor) -> tuple[Tensor, Tensor]:
        """Decide about the steps of the models that are going: which are accepted, or stalled."""
        accepted = going & (loss <= before) if self.guarded else going
        shortened = torch.where(self.moving, self.rate, self.rate * SHRINK)
        stalled = going & ~accepted & ~self.moving & (shortened < SMALLEST_RATE)
        rate = torch.where(accepted, self.rate * self.growth, shortened)
        self.rate.copy_(torch.where(going, rate, self.rate))
        moving = accepted if self.momentum else torch.zeros_like(accepted)
        self.moving.copy_(torch.where(going, moving, self.moving))
        return accepted, stalled
