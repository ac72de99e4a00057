"""Full-batch gradient descent on one model, as an optimizer of torch."""

from __future__ import annotations

import inspect
import math
from typing import Any

import torch

from sklearn_restf._training.objective import Objective
from sklearn_restf._training.step_rule import StepRule


class GradientDescent(torch.optim.Optimizer):
    """Full-batch (heavy-ball) gradient descent on an :class:`Objective`.

    The learning rate and the momentum are those of the parameter group, where callbacks may
    change them between steps.

    Parameters
    ----------
    objective : Objective
        What to minimise.
    rule : StepRule
        Which steps are taken.
    """

    def __init__(self, objective: Objective, rule: StepRule) -> None:
        self.objective, self.rule = objective, rule
        super().__init__(objective.parameters, {"lr": rule.rate, "momentum": rule.momentum})
        self.velocity = torch.zeros_like(objective.theta)
        self.loss = math.nan

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
            "moving": self.rule.moving,
            "loss": self.loss,
            "last_rate": self.rule.last_rate,
        }
        return super().state_dict() | {"descent": descent}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on where :meth:`state_dict` was called."""
        super().load_state_dict({k: v for k, v in state_dict.items() if k != "descent"})
        descent = state_dict["descent"]
        self.velocity.copy_(descent["velocity"])
        self.objective.gradient.copy_(descent["gradient"])
        self.rule.moving = bool(descent["moving"])
        self.loss, self.rule.last_rate = float(descent["loss"]), float(descent["last_rate"])

    def start(self) -> float:
        """Evaluate the objective and its gradient at the initial point."""
        self.loss = self.objective.evaluate()
        if math.isfinite(self.loss):
            self.objective.differentiate()
        return self.loss

    def step(self, closure: Any = None) -> str:
        """Do what :meth:`advance` does, with the hooks that torch puts around a step."""
        return self.advance()

    def advance(self) -> str:
        """Take one step; return why no further step makes sense, or nothing.

        Returns
        -------
        reason : {"", "stalled", "diverged"}
        """
        objective, rule, group = self.objective, self.rule, self.param_groups[0]
        rule.rate, rule.momentum = group["lr"], group["momentum"]
        origin = objective.theta.clone()
        verdict = "again"
        while verdict == "again":
            step = objective.gradient * -rule.rate
            if rule.push:
                step.add_(self.velocity, alpha=rule.push)
            torch.add(origin, step, out=objective.theta)
            try:
                loss = objective.evaluate()
            except BaseException:  # an interrupt leaves the point that was reached
                objective.theta.copy_(origin)
                raise
            verdict = rule.judge(self.loss, loss)
        group["lr"] = rule.rate
        if verdict == "stalled":
            objective.theta.copy_(origin)
            return verdict
        self.velocity, self.loss = step, loss
        if verdict == "diverged":
            return verdict
        objective.differentiate()
        return ""
