"""Gradient descent on many models side by side.

Every model follows the trajectory it would follow alone (see
:class:`sklearn_restf._descent.GradientDescent` and the stopping rules of
:mod:`sklearn_restf._training`), up to rounding. One round evaluates one point of every model:
one model may accept its step while another tries a shorter one, so that models reach the
same iteration in different rounds. Finished models leave.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from sklearn_restf._descent import GROWTH, SHRINK, SMALLEST_RATE
from sklearn_restf._state import NumpyState
from sklearn_restf._sweep_objective import StackedObjective
from sklearn_restf._training import BLOW_UP
from sklearn_restf._training_result import TrainingResult, TrainingSettings


class StackedDescent:
    """Train all models of an objective.

    Parameters
    ----------
    objective : StackedObjective
        What to minimise.
    theta : Tensor of shape (S, P)
        Initial parameters.
    rates : ndarray of shape (S,)
        Initial learning rates.
    settings : TrainingSettings
        Step rule and stopping rule, the same for all models.
    """

    def __init__(
        self,
        objective: StackedObjective,
        theta: Tensor,
        rates: np.ndarray,
        settings: TrainingSettings,
    ) -> None:
        S, n = len(theta), settings.max_iter
        self.objective, self.settings = objective, settings
        self.guarded = isinstance(settings.learning_rate, str)
        self.growth = GROWTH if settings.learning_rate == "adaptive" else 1.0
        # of the models still there
        self.model = np.arange(S)
        self.theta, self.velocity = theta, torch.zeros_like(theta)
        self.gradient = torch.zeros_like(theta)
        self.rate, self.moving = rates.astype(np.float64), np.zeros(S, dtype=bool)
        # the best weights are kept where the last ones need not be the best
        self.keeps_best = objective.valid is not None or not self.guarded
        self.best_theta, self.best_value = theta.clone(), np.full(S, np.inf)
        # of all models, by iteration; NaN where a model did not get to
        self.initial, self.n_iter = theta.clone(), np.zeros(S, dtype=int)
        self.losses, self.norms = np.full((S, n + 1), np.nan), np.full((S, n + 1), np.nan)
        self.rates, self.criterion = np.full((S, n), np.nan), np.full((S, n + 1), np.nan)
        self.best_so_far = np.full((S, n + 1), np.nan)  # running minimum of the criterion
        self.best_iteration = np.zeros(S, dtype=int)
        self.results: list[TrainingResult | None] = [None] * S

    def run(self) -> list[TrainingResult]:
        """Train until every model has ended."""
        start = self.theta.clone()
        loss = self.objective.value(start).cpu().numpy()
        self.gradient = gradient = self.objective.gradient(start)
        self.losses[:, 0], self.norms[:, 0] = loss, gradient.norm(dim=1).cpu().numpy()
        self._criterion(np.arange(len(loss)), loss)
        self._finish(np.where(np.isfinite(loss), "", "diverged"))
        while len(self.model):
            n = self.n_iter[self.model]
            stationary = (self.norms[self.model, n] == 0) & (n > 0)
            if self.settings.tol is not None:
                self._finish(np.where(stationary, "stationary", ""))
            if len(self.model):
                self._round()
        return self.results  # type: ignore[return-value]

    def _round(self) -> None:
        """Evaluate one point of every model; accept it, or prepare the next one."""
        momentum = self.settings.momentum
        step = self.gradient * self._column(-self.rate)
        if self.moving.any():
            step = torch.addcmul(step, self.velocity, self._column(momentum * self.moving))
        candidate = self.theta + step
        loss = self.objective.value(candidate).cpu().numpy()
        current = self.losses[self.model, self.n_iter[self.model]]
        accepted = (loss <= current) | (not self.guarded)  # NaN compares false
        if accepted.any():
            gradient = self.objective.gradient(candidate)
        candidate = candidate.detach()
        if accepted.all():
            self.theta, self.velocity, self.gradient = candidate, step, gradient
        elif accepted.any():
            here = torch.from_numpy(accepted).to(self.theta.device)[:, None]
            self.theta = torch.where(here, candidate, self.theta)
            self.velocity = torch.where(here, step, self.velocity)
            self.gradient = torch.where(here, gradient, self.gradient)
        reason = np.full(len(self.model), "", dtype="<U16")
        # rejected: first without momentum, then with shorter and shorter steps
        shorten = ~accepted & ~self.moving
        self.rate[shorten] *= SHRINK
        reason[shorten & (self.rate < SMALLEST_RATE)] = "stalled"
        self.moving = accepted & (momentum > 0)
        if accepted.any():
            self._record(np.flatnonzero(accepted), loss, reason)
        self._finish(reason)

    def _record(self, rows: np.ndarray, loss: np.ndarray, reason: np.ndarray) -> None:
        """Enter an accepted step of the models in `rows`, and say who ends with it."""
        settings, models = self.settings, self.model[rows]
        self.n_iter[models] += 1
        n = self.n_iter[models]
        self.losses[models, n], self.rates[models, n - 1] = loss[rows], self.rate[rows]
        self.rate[rows] *= self.growth
        norms = self.gradient.norm(dim=1).cpu().numpy()
        self.norms[models, n] = norms[rows]
        self._criterion(rows, loss)
        ended = np.where(n == settings.max_iter, "max_iter", "").astype("<U16")
        patience = settings.n_iter_no_change
        if settings.tol is not None:
            late = np.flatnonzero(n >= patience)
            if len(late):
                m, k = models[late], n[late]
                before = self.best_so_far[m, k - patience]
                window = k[:, None] - np.arange(patience)
                now = self.criterion[m[:, None], window].min(axis=1)
                done = before - now <= settings.tol * np.abs(before)
                ended[late[done]] = "tol" if self.objective.valid is None else "early_stopping"
        if not self.guarded:
            limit = BLOW_UP * np.maximum(self.losses[models, 0], 1.0)
            ended[~(loss[rows] <= limit)] = "diverged"
        reason[rows] = ended

    def _criterion(self, rows: np.ndarray, loss: np.ndarray) -> None:
        """Enter what stopping watches, and keep the best weights."""
        models = self.model[rows]
        n, value = self.n_iter[models], loss[rows]
        if self.objective.valid is not None:
            value = self.objective.validation_loss(self.theta).cpu().numpy()[rows]
        self.criterion[models, n] = value
        self.best_so_far[models, n] = np.fmin(self.best_so_far[models, n - 1], value)
        improved = value < self.best_value[rows]
        self.best_value[rows[improved]] = value[improved]
        self.best_iteration[models[improved]] = n[improved]
        if self.keeps_best and improved.any():
            index = torch.from_numpy(rows[improved]).to(self.theta.device)
            self.best_theta[index] = self.theta[index]

    def _finish(self, reason: np.ndarray) -> None:
        """Write down the results of the models with a reason to end, and drop them."""
        ended = reason != ""
        if not ended.any():
            return
        for row in np.flatnonzero(ended):
            self.results[self.model[row]] = self._result(int(row), str(reason[row]))
        kept = np.flatnonzero(~ended)
        self.model, self.rate, self.moving = self.model[kept], self.rate[kept], self.moving[kept]
        self.best_value = self.best_value[kept]
        if not len(kept):
            return
        index = torch.from_numpy(kept).to(self.theta.device)
        self.theta, self.velocity = self.theta[index], self.velocity[index]
        self.gradient, self.best_theta = self.gradient[index], self.best_theta[index]
        self.objective.keep(index)

    def _result(self, row: int, reason: str) -> TrainingResult:
        """Return what one model leaves behind, as :class:`FullBatchNet` would."""
        model = self.model[row]
        n = int(self.n_iter[model])
        visited = n if reason == "diverged" and n else n + 1  # points whose gradient was kept
        kept_best = self.objective.valid is not None or reason == "diverged"
        return TrainingResult(
            initial_state=self._state(self.initial[model]),
            state=self._state(self.best_theta[row] if kept_best else self.theta[row]),
            kept_best=kept_best,
            best_iteration=int(self.best_iteration[model]),
            losses=self.losses[model, : n + 1].tolist(),
            gradient_norms=self.norms[model, :visited].tolist(),
            learning_rates=self.rates[model, :n].tolist(),
            validation_losses=(
                [] if self.objective.valid is None else self.criterion[model, 1 : n + 1].tolist()
            ),
            stop_reason=reason,
            learning_rate=float(self.rate[row]),
        )

    def _state(self, theta: Tensor) -> NumpyState:
        """Return one flat vector as named arrays."""
        parameters = self.objective.views(theta.detach()[None])
        return {name: value[0].cpu().numpy().copy() for name, value in parameters.items()}

    def _column(self, values: np.ndarray) -> Tensor:
        """Return one number per model as a column."""
        return torch.from_numpy(values).to(self.theta.dtype).to(self.theta.device)[:, None]
