"""The training loop: a skorch net whose epoch is one full-batch gradient-descent step.

skorch brings callbacks, history, checkpoints and progress; the exact objective and the
step rule are in :mod:`sklearn_restf._descent`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from skorch import NeuralNet
from skorch.dataset import Dataset

from sklearn_restf._batches import Batches
from sklearn_restf._descent import FIRST_RATE, GROWTH, GradientDescent, Objective
from sklearn_restf._losses import Loss
from sklearn_restf._module import ResidualTransformer
from sklearn_restf._progress import Progress
from sklearn_restf._state import NumpyState, state_of

BLOW_UP = 1e6  # a constant rate whose loss exceeds this multiple of the first one diverges

# begin(iteration) and end(iteration, net) of scikit-learn's callback protocol; end returns
# True to stop
IterationHooks = tuple[Callable[[int], None], Callable[[int, "FullBatchNet"], bool]]


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


@dataclass
class TrainingResult:
    """What a run leaves behind: weights at three moments, and its history.

    `losses`, `gradient_norms` have one entry per visited point (the initial one included),
    `learning_rates` and `restarts` one per step.
    """

    initial_state: NumpyState
    final_state: NumpyState
    best_state: NumpyState
    best_iteration: int
    losses: list[float] = field(default_factory=list)
    gradient_norms: list[float] = field(default_factory=list)
    learning_rates: list[float] = field(default_factory=list)
    validation_losses: list[float] = field(default_factory=list)
    stop_reason: str = "max_iter"
    learning_rate: float = math.nan
    velocity: np.ndarray | None = None

    @property
    def n_iter(self) -> int:
        """Number of gradient-descent steps taken."""
        return len(self.learning_rates)


class FullBatchNet(NeuralNet):
    """A skorch net trained by full-batch gradient descent: one epoch is one iteration.

    Any skorch callback works with it. ``history`` has ``train_loss`` (the objective after
    the iteration), ``valid_loss`` where there is a validation set, ``learning_rate`` and
    ``gradient_norm``.

    Parameters
    ----------
    module : ResidualTransformer
        Module with its initial weights.
    settings : TrainingSettings
        Step rule and stopping rule.
    train, valid : Batches or None
        Training and validation samples. Without training samples the net only predicts.
    warm_start_from : tuple of (float, ndarray or None), optional
        Learning rate and velocity to go on with.
    callbacks : list or None
        skorch callbacks.
    hooks : pair of callables or None
        scikit-learn's callback protocol, see :data:`IterationHooks`.
    progress : callable or None
        Wraps the iterations, see :mod:`sklearn_restf._progress`.
    """

    def __init__(
        self,
        module: ResidualTransformer,
        *,
        settings: TrainingSettings,
        train: Batches | None = None,
        valid: Batches | None = None,
        warm_start_from: tuple[float, np.ndarray | None] | None = None,
        callbacks: list[Any] | None = None,
        hooks: IterationHooks | None = None,
        progress: Progress | None = None,
        device: str | torch.device = "cpu",
    ) -> None:
        super().__init__(
            module,
            criterion=torch.nn.Identity,  # the loss needs weights and masks: see Objective
            max_epochs=settings.max_iter,
            train_split=None,
            callbacks=callbacks,
            predict_nonlinearity=None,
            verbose=0,
            device=device,
        )
        self.settings = settings
        self.train = train
        self.valid = valid
        self.warm_start_from = warm_start_from
        self.hooks = hooks
        self.progress = progress

    @property
    def _default_callbacks(self) -> list[Any]:
        return []

    def initialize_optimizer(self, triggered_directly: Any = None) -> FullBatchNet:
        """Set up the objective and the step rule."""
        settings = self.settings
        self.objective_ = Objective(self.module_, self.train, settings.loss, settings.alpha)
        rate = settings.learning_rate
        lr: float = FIRST_RATE if isinstance(rate, str) else rate
        velocity = None
        if self.warm_start_from is not None:
            lr, velocity = self.warm_start_from
        elif rate == "theory" and self.train is not None:
            norm = self.objective_.gauss_newton_norm()
            lr = 1.0 / norm if norm > 0 and math.isfinite(norm) else FIRST_RATE
        self.optimizer_ = GradientDescent(
            self.objective_,
            lr=lr,
            momentum=settings.momentum,
            guarded=isinstance(rate, str),
            growth=GROWTH if rate == "adaptive" else 1.0,
        )
        if velocity is not None:
            self.optimizer_.velocity.copy_(torch.from_numpy(velocity))
            self.optimizer_.moving = settings.momentum > 0
        return self

    def get_iterator(self, dataset: Any, training: bool = False) -> Any:
        """Yield the whole data set as one batch."""
        return [(dataset.X, dataset.y)]

    def train_step(self, batch: Any, **fit_params: Any) -> dict[str, Any]:
        """Take one gradient-descent step."""
        reason = self.optimizer_.step()
        if reason is None:
            self.notify(
                "on_grad_computed",
                named_parameters=list(self.get_all_learnable_params()),
                batch=batch,
                training=True,
            )
        return {"loss": as_scalar(self.optimizer_.loss), "stop_reason": reason}

    def notify(self, method_name: str, **cb_kwargs: Any) -> None:
        """Call the callbacks; skorch's way to stop from one is a KeyboardInterrupt."""
        if not self.callbacks_:
            getattr(self, method_name)(self, **cb_kwargs)
            return
        try:
            super().notify(method_name, **cb_kwargs)
        except KeyboardInterrupt as error:
            raise StoppedByCallback from error

    def run(self) -> TrainingResult:
        """Train and return what happened; an interrupt ends training, it loses nothing."""
        self.initialize()
        result = TrainingResult(state_of(self.module_), {}, {}, 0)
        best = _Best(self.objective_.theta)
        datasets = {
            "dataset_train": as_dataset(self.train),
            "dataset_valid": None if self.valid is None else as_dataset(self.valid),
        }
        batch = (datasets["dataset_train"].X, datasets["dataset_train"].y)
        # scoring callbacks want predictions; without callbacks nobody does
        predict_for = self.callbacks_ and batch[0] is not None
        try:
            self.notify("on_train_begin", X=batch[0], y=batch[1])
            first = self.optimizer_.start()
            result.losses.append(first)
            result.gradient_norms.append(float(self.objective_.gradient.norm()))
            if not math.isfinite(first):
                result.stop_reason = "diverged"
            else:
                best.offer(first if self.valid is None else self.validation_loss(), 0)
                self._loop(result, best, datasets, batch, bool(predict_for))
        except StoppedByCallback:
            result.stop_reason = "callback"
        except KeyboardInterrupt:
            result.stop_reason = "interrupted"
        result.final_state = state_of(self.module_)
        self.objective_.theta.copy_(best.theta)
        result.best_state, result.best_iteration = state_of(self.module_), best.iteration
        result.learning_rate = self.optimizer_.param_groups[0]["lr"]
        if self.optimizer_.moving:
            result.velocity = self.optimizer_.velocity.detach().cpu().numpy().copy()
        self.notify("on_train_end", X=batch[0], y=batch[1])
        return result

    def _loop(
        self,
        result: TrainingResult,
        best: _Best,
        datasets: dict[str, Any],
        batch: tuple[Any, Any],
        predict: bool,
    ) -> None:
        iterations: Any = range(1, self.settings.max_iter + 1)
        if self.progress:
            iterations = self.progress(iterations, result.losses)
        for iteration in iterations:
            if result.gradient_norms[-1] == 0:
                result.stop_reason = "stationary"
                return
            if self.hooks:
                self.hooks[0](iteration)
            self.notify("on_epoch_begin", **datasets)
            self.notify("on_batch_begin", batch=batch, training=True)
            rate = self.optimizer_.param_groups[0]["lr"]
            step = self.train_step(batch)
            if step["stop_reason"] == "stalled":
                result.stop_reason = "stalled"
                return
            loss = self.optimizer_.loss
            if self.optimizer_.guarded:  # the rate that was accepted, before it grew
                rate = self.optimizer_.param_groups[0]["lr"] / self.optimizer_.growth
            if not loss <= BLOW_UP * max(result.losses[0], 1.0):
                result.stop_reason = "diverged"
                result.learning_rates.append(rate)
                result.losses.append(loss)
                return
            result.losses.append(loss)
            result.learning_rates.append(rate)
            result.gradient_norms.append(float(self.objective_.gradient.norm()))
            self.history.record("train_loss", loss)
            self.history.record("learning_rate", rate)
            self.history.record("gradient_norm", result.gradient_norms[-1])
            criterion = loss
            if self.valid is not None:
                criterion = self.validation_loss()
                result.validation_losses.append(criterion)
                self.history.record("valid_loss", criterion)
            improved = best.offer(criterion, iteration)
            key = "train_loss_best" if self.valid is None else "valid_loss_best"
            self.history.record(key, improved)
            if predict:
                step["y_pred"] = self.predict_batches(self.train)
            self.notify("on_batch_end", batch=batch, training=True, **step)
            if predict and self.valid is not None:
                self._notify_validation(datasets["dataset_valid"], criterion)
            self.notify("on_epoch_end", **datasets)
            if self.hooks and self.hooks[1](iteration, self):
                result.stop_reason = "callback"
                return
            reason = self._stop_reason(result, best)
            if reason is not None:
                result.stop_reason = reason
                return

    def _stop_reason(self, result: TrainingResult, best: _Best) -> str | None:
        tol, patience = self.settings.tol, self.settings.n_iter_no_change
        if tol is None:
            return None
        if self.valid is not None:
            values, reason = best.history, "early_stopping"
        else:
            values, reason = result.losses, "tol"
        if len(values) <= patience:
            return None
        before, now = min(values[:-patience]), min(values[-patience:])
        return reason if before - now <= tol * abs(before) else None

    def _notify_validation(self, dataset: Any, loss: float) -> None:
        batch = (dataset.X, dataset.y)
        self.notify("on_batch_begin", batch=batch, training=False)
        step = {"loss": as_scalar(loss), "y_pred": self.predict_batches(self.valid)}
        self.notify("on_batch_end", batch=batch, training=False, **step)

    def validation_loss(self) -> float:
        """Return the loss on the validation set, without penalty."""
        with torch.no_grad():
            return sum(float(self.objective_.batch_loss(batch)) for batch in self.valid)

    def predict_batches(self, batches: Batches) -> torch.Tensor:
        """Return the predictions for all samples, in their order."""
        with torch.no_grad():
            pieces = [self.objective_.predict(batch) for batch in batches]
        if len(pieces) == 1:
            return pieces[0]
        result = pieces[0].new_empty((len(batches), *pieces[0].shape[1:]))
        for rows, piece in zip(batches.row_sets, pieces, strict=True):
            result[rows] = piece
        return result


def as_scalar(value: float) -> torch.Tensor:
    """Return a number the way skorch's callbacks expect it."""
    return torch.tensor(value, dtype=torch.float64)


@contextmanager
def gradients_enabled() -> Iterator[None]:
    """Train even where the user has switched gradients off."""
    with torch.inference_mode(False), torch.enable_grad():
        yield


class StoppedByCallback(Exception):
    """A callback asked to stop."""


class _Best:
    """The parameters of the lowest criterion so far."""

    def __init__(self, theta: torch.Tensor) -> None:
        self.current, self.theta = theta, theta.clone()
        self.value, self.iteration = math.inf, 0
        self.history: list[float] = []

    def offer(self, value: float, iteration: int) -> bool:
        """Keep the current parameters if `value` is the lowest yet."""
        self.history.append(value)
        if not value < self.value:
            return False
        self.theta.copy_(self.current)
        self.value, self.iteration = value, iteration
        return True


def as_dataset(batches: Batches) -> Dataset:
    """Wrap the samples for skorch's callbacks, in their order: ``X`` goes to the module."""
    y = torch.from_numpy(batches.y).to(batches.dtype)
    if len(batches.row_sets) > 1:
        return Dataset(None, y, length=len(batches))
    batch = next(iter(batches))
    X = {"x": batch.x} if batch.mask is None else {"x": batch.x, "mask": batch.mask}
    return Dataset(X, y, length=len(batches))
