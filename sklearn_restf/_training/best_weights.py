"""The best parameters of a run so far."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch


class Kept(NamedTuple):
    """Parameters, their criterion, and the iteration that reached them."""

    theta: torch.Tensor
    value: float
    iteration: int


class Best:
    """The parameters of the lowest criterion so far.

    An interrupt may come at any moment: what is kept is exchanged as a whole, in one
    assignment, so that it is either the old or the new.

    Parameters
    ----------
    theta : Tensor
        The current parameters, which training changes in place.
    """

    def __init__(self, theta: torch.Tensor) -> None:
        self.current = theta
        self.kept = Kept(theta.clone(), math.inf, 0)
        self.history: list[float] = []
        self._spare = theta.clone()

    @property
    def theta(self) -> torch.Tensor:
        """The best parameters."""
        return self.kept.theta

    @property
    def iteration(self) -> int:
        """The iteration that reached them."""
        return self.kept.iteration

    def offer(self, value: float, iteration: int) -> bool:
        """Keep the current parameters if `value` is the lowest yet."""
        improved = value < self.kept.value
        if improved:
            before, spare = self.kept, self._spare
            spare.copy_(self.current)
            self.kept = Kept(spare, value, iteration)
            self._spare = before.theta
        self.history.append(value)
        return improved

    @property
    def n_offered(self) -> int:
        """How many iterations were looked at to their end, the start not counted."""
        return max(len(self.history) - 1, self.iteration)

    def state_dict(self) -> dict[str, Any]:
        """Return all of it as tensors and numbers."""
        return {**self.kept._asdict(), "history": list(self.history)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what :meth:`state_dict` returned."""
        self._spare.copy_(state["theta"])
        spare, self._spare = self._spare, self.kept.theta
        self.kept = Kept(spare, float(state["value"]), int(state["iteration"]))
        self.history[:] = state["history"]
