"""The step rules of full-batch gradient descent."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

import torch

from sklearn_restf._data.batches import Batches
from sklearn_restf._training.objective import Objective

GROWTH, SHRINK = 1.1, 0.5  # measured best of a handful of step rules
SMALLEST_RATE = 1e-20
FIRST_RATE = 0.1


def first_rate(learning_rate: float | str, gauss_newton_norm: Callable[[], float]) -> float:
    """Return the learning rate to start with; `gauss_newton_norm` is asked for "theory" only."""
    if not isinstance(learning_rate, str):
        return learning_rate
    norm = gauss_newton_norm() if learning_rate == "theory" else 0.0
    return 1.0 / norm if 0.0 < norm < math.inf else FIRST_RATE


class GradientDescent(torch.optim.Optimizer):
    """Full-batch (heavy-ball) gradient descent on an :class:`Objective`.

    With ``guarded=False`` this is ``torch.optim.SGD`` with the same rate and momentum: the
    theorem's setting. With ``guarded=True`` a step that would increase the objective is
    not taken: first the momentum is dropped, then the rate is halved; after each step the
    rate grows by `growth`. NaN compares false, so an overflow is a rejected step.

    Parameters
    ----------
    objective : Objective
        What to minimise.
    lr : float
        Learning rate at the start.
    momentum : float
        Heavy-ball momentum in [0, 1).
    guarded : bool
        Whether the objective may never increase.
    growth : float
        Factor on the rate after each accepted step.
    """

    def __init__(
        self, objective: Objective, *, lr: float, momentum: float, guarded: bool, growth: float
    ) -> None:
        self.objective = objective
        self.guarded, self.growth = guarded, growth
        super().__init__(objective.parameters, {"lr": lr, "momentum": momentum})
        self.velocity = torch.zeros_like(objective.theta)
        self.moving = False  # whether the velocity is non-zero
        self.loss = math.nan
        self.last_rate = lr

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters, as every optimizer of torch does.

        Around torch's method there is one that imports the compiler, which takes longer than
        many a fit.
        """
        inspect.unwrap(torch.optim.Optimizer.add_param_group)(self, param_group)

    def state_dict(self) -> dict[str, Any]:
        """Return the rate, and all else that the next step depends on besides the parameters."""
        descent = {
            "velocity": self.velocity.clone(),
            "gradient": self.objective.gradient.clone(),
            "moving": self.moving,
            "loss": self.loss,
            "last_rate": self.last_rate,
        }
        return super().state_dict() | {"descent": descent}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on where :meth:`state_dict` was called."""
        super().load_state_dict({k: v for k, v in state_dict.items() if k != "descent"})
        descent = state_dict["descent"]
        self.velocity.copy_(descent["velocity"])
        self.objective.gradient.copy_(descent["gradient"])
        self.moving = bool(descent["moving"])
        self.loss, self.last_rate = float(descent["loss"]), float(descent["last_rate"])

    def start(self) -> float:
        """Evaluate the objective and its gradient at the initial point."""
        self.loss = self.objective.evaluate()
        if math.isfinite(self.loss):
            self.objective.differentiate()
        return self.loss

    def gradient_norm(self) -> float:
        """Return the Euclidean norm of the gradient after the last step."""
        return self.objective.gradient_norm()

    def validation_loss(self, valid: Batches) -> float:
        """Return the loss on the validation samples after the last step."""
        return self.objective.validation_loss(valid)

    def settle(self, n_iter: int, best_theta: torch.Tensor) -> None:
        """Make an end after `n_iter` steps: nothing to do where steps are taken one by one."""

    def step(self, closure: Any = None) -> str | None:
        """Do what :meth:`advance` does, with the hooks that torch puts around a step."""
        return self.advance()

    def advance(self) -> str | None:
        """Take one step at rate `last_rate`; return why no further step makes sense, or None.

        Returns
        -------
        reason : {None, "stalled", "diverged"}
        """
        objective, group = self.objective, self.param_groups[0]
        momentum = group["momentum"]
        origin = objective.theta.clone()
        while True:
            step = objective.gradient * -group["lr"]
            if self.moving:
                step.add_(self.velocity, alpha=momentum)
            torch.add(origin, step, out=objective.theta)
            try:
                loss = objective.evaluate()
            except BaseException:  # an interrupt leaves the point that was reached
                objective.theta.copy_(origin)
                raise
            if loss <= self.loss or not self.guarded:
                break
            if self.moving:
                self.moving = False
            else:
                group["lr"] *= SHRINK
                if group["lr"] < SMALLEST_RATE:
                    objective.theta.copy_(origin)
                    return "stalled"
        self.velocity, self.moving, self.loss = step, momentum > 0, loss
        self.last_rate = group["lr"]
        if not math.isfinite(loss):
            return "diverged"
        objective.differentiate()
        group["lr"] *= self.growth
        return None
