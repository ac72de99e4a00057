"""When training ends, and the best parameters so far.

What stopping watches, its criterion, is the objective, or the loss on the validation samples.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sklearn_restf._training.training_result import TrainingSettings

BLOW_UP = 1e6  # a constant rate whose loss exceeds this multiple of the first one diverges
REASONS = ("", "max_iter", "tol", "early_stopping", "diverged", "stationary", "stalled")
CODES = {reason: float(code) for code, reason in enumerate(REASONS)}


class StoppingRule:
    """The rule for one model, in plain numbers.

    Parameters
    ----------
    settings : TrainingSettings
        `max_iter`, `tol` and `n_iter_no_change`.
    validated : bool
        Whether the criterion is the loss on the validation samples.
    first : float
        The objective at the initial point.
    criterion : float
        The criterion there.
    """

    def __init__(
        self, settings: TrainingSettings, *, validated: bool, first: float, criterion: float
    ) -> None:
        self.settings, self.limit = settings, BLOW_UP * max(first, 1.0)
        self.reason_of_tol = "early_stopping" if validated else "tol"
        self.criterion, self.best_so_far = [criterion], [criterion]

    @property
    def n_iter(self) -> int:
        """Number of iterations entered."""
        return len(self.criterion) - 1

    def diverges(self, loss: float) -> bool:
        """Tell whether the loss, or NaN, is beyond all bounds."""
        return not loss <= self.limit

    def after(self, loss: float, gradient_norm: float, criterion: float) -> str:
        """Enter an iteration; return why training ends with it, or nothing."""
        self.criterion.append(criterion)
        self.best_so_far.append(min(self.best_so_far[-1], criterion))
        n, patience, tol = self.n_iter, self.settings.n_iter_no_change, self.settings.tol
        if self.diverges(loss):
            return "diverged"
        if tol is not None and n >= patience:
            before, now = self.best_so_far[n - patience], min(self.criterion[-patience:])
            if before - now <= tol * abs(before):
                return self.reason_of_tol
        if n >= self.settings.max_iter:
            return "max_iter"
        return "stationary" if gradient_norm == 0 and tol is not None else ""


class DeviceStoppingRule:
    """:class:`StoppingRule` of S models as tensors (S,) on a device, which decides by itself.

    Parameters
    ----------
    settings, validated
        As there.
    first, criterion : Tensor of shape (S,)
        Objective and criterion at the initial points.
    """

    def __init__(
        self, settings: TrainingSettings, *, validated: bool, first: Tensor, criterion: Tensor
    ) -> None:
        self.settings, self.limit = settings, BLOW_UP * first.clamp(min=1.0)
        self.code_of_tol = CODES["early_stopping" if validated else "tol"]
        self.n_iter = torch.zeros(len(first), dtype=torch.int64, device=first.device)
        self.criterion = first.new_full((len(first), settings.max_iter + 1), torch.inf)
        self.criterion[:, 0] = criterion
        self.best_so_far = self.criterion.clone()

    def after(self, loss: Tensor, gradient_norm: Tensor, criterion: Tensor, entered: Tensor) -> Any:
        """Enter an iteration of the models in the mask; return why they end with it, as codes."""
        settings, patience = self.settings, self.settings.n_iter_no_change
        self.n_iter += entered
        n = self.n_iter[:, None]
        here = torch.where(entered[:, None], n, 0)  # an old value where there was no iteration
        before = self.best_so_far.gather(1, (here - 1).clamp(min=0))[:, 0]
        value = torch.where(entered, criterion, self.criterion[:, 0])
        self.criterion.scatter_(1, here, value[:, None])
        best = torch.where(entered, torch.fmin(before, criterion), self.best_so_far[:, 0])
        self.best_so_far.scatter_(1, here, best[:, None])

        reason = torch.zeros_like(self.limit)
        if settings.tol is not None:
            reason = torch.where(gradient_norm == 0, CODES["stationary"], reason)
        reason = torch.where(self.n_iter >= settings.max_iter, CODES["max_iter"], reason)
        if settings.tol is not None and patience <= settings.max_iter:
            before = self.best_so_far.gather(1, (n - patience).clamp(min=0))[:, 0]
            window = n - torch.arange(patience, device=n.device)
            now = self.criterion.gather(1, window.clamp(min=0)).amin(1)
            done = (self.n_iter >= patience) & (before - now <= settings.tol * before.abs())
            reason = torch.where(done, self.code_of_tol, reason)
        reason = torch.where(loss <= self.limit, reason, CODES["diverged"])
        return torch.where(entered, reason, 0.0)


class Kept(NamedTuple):
    """Parameters, their criterion, and the iteration that reached them."""

    theta: Tensor
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

    def __init__(self, theta: Tensor) -> None:
        self.current = theta
        self.kept = Kept(theta.clone(), math.inf, 0)
        self.history: list[float] = []
        self._spare = theta.clone()

    @property
    def theta(self) -> Tensor:
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
