"""The training loop: a skorch net whose epoch is one full-batch gradient-descent step.

skorch brings callbacks, history, checkpoints and progress; the exact objective and the
step rule are in :mod:`sklearn_restf._training.objective` and
:mod:`sklearn_restf._training.step_rule`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from sklearn.base import ClassifierMixin
from skorch import NeuralNet

from sklearn_restf._data.batches import Batches, with_less_memory
from sklearn_restf._model import ResidualTransformer, state_of
from sklearn_restf._training.batched_descent import BatchedDescent, pays_for_one
from sklearn_restf._training.distributed_objective import SharedObjective
from sklearn_restf._training.gradient_descent import GradientDescent
from sklearn_restf._training.objective import Objective
from sklearn_restf._training.observers import Observers, StoppedByCallback
from sklearn_restf._training.progress import Progress
from sklearn_restf._training.step_rule import StepRule, first_rate
from sklearn_restf._training.stopping import Best, StoppingRule
from sklearn_restf._training.training_result import TrainingResult, TrainingSettings
from sklearn_restf._training.training_state import recorded, restore, state_of_training
from sklearn_restf._utils.interrupts import InterruptWatch
from sklearn_restf._utils.process_group import StoppedByPeer, active_group, alone

# begin(iteration) and end(iteration, net), True to stop, of scikit-learn's callback protocol
IterationHooks = tuple[Callable[[int], None], Callable[[int, "FullBatchNet"], bool]]


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
        Wraps the iterations, see :mod:`sklearn_restf._training.progress`.
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
            verbose=settings.verbose,
            device=device,
        )
        self.settings = settings
        self.train = train
        self.valid = valid
        self.warm_start_from = warm_start_from
        self.hooks = hooks
        self.progress = progress
        self.group = active_group()  # the processes that hold the other samples

    @property
    def _default_callbacks(self) -> list[Any]:
        return []

    def initialize_optimizer(self, triggered_directly: Any = None) -> FullBatchNet:
        """Set up the objective and the step rule."""
        if self.train is None:
            return super().initialize_optimizer()
        settings = self.settings
        problem = self.module_, self.train, settings.loss, settings.alpha
        if self.group is not None:
            self.objective_: Objective = SharedObjective(
                *problem, group=self.group, valid=self.valid
            )
        else:
            self.objective_ = Objective(*problem)
        rate = settings.learning_rate
        velocity = None
        if self.warm_start_from is not None:
            previous, velocity = self.warm_start_from
            lr = previous if isinstance(rate, str) else rate  # a rate the user sets anew counts
        else:
            lr = first_rate(rate, self.objective_.gauss_newton_norm)
        rule = StepRule.of(settings, lr)
        self.optimizer_ = GradientDescent(self.objective_, rule)
        if velocity is not None:
            self.optimizer_.velocity.copy_(torch.from_numpy(np.array(velocity)))
            rule.moving = settings.momentum > 0
        return self

    def get_iterator(self, dataset: Any, training: bool = False) -> Any:
        """Yield the whole data set as one batch."""
        return [(dataset.X, dataset.y)]

    def forward_iter(
        self, X: Any, training: bool = False, device: str = "cpu"
    ) -> Iterator[torch.Tensor]:
        """Yield predictions; samples in several chunks come as :class:`Batches`."""
        if isinstance(X, Batches):
            yield self.predict_batches(X).to(device)
        else:
            yield from super().forward_iter(X, training=training, device=device)

    def notify(self, method_name: str, **cb_kwargs: Any) -> None:
        """Call the callbacks; skorch's way to stop from one is a KeyboardInterrupt."""
        if not self.callbacks_:
            super().notify(method_name, **cb_kwargs)
            return
        watch = InterruptWatch()
        try:
            with watch, alone():
                super().notify(method_name, **cb_kwargs)
        except KeyboardInterrupt as error:
            if watch.interrupted:
                raise
            raise StoppedByCallback from error

    def run(self) -> TrainingResult:
        """Train and return what happened; an interrupt ends training, it loses nothing."""
        self.initialize()
        # whoever wants to see every iteration has to wait for the device
        watched = bool(self.callbacks or self.hooks)
        if not watched and pays_for_one(self.objective_, self.valid):
            return self._run_ahead()
        result = self.result_ = TrainingResult(state_of(self.module_))  # for checkpoints, too
        best = self.best_ = Best(self.objective_.theta)
        observers = Observers(self) if self.callbacks_ else None
        try:
            if observers:
                observers.train_begin()
            self._join()
            if not result.losses:  # a checkpoint may have put the run past its start
                self._start(result, best, observers)
            if result.stop_reason != "diverged":
                self._loop(result, best, observers)
        except StoppedByCallback:
            result.stop_reason = "callback"
            self._join()
            if not result.losses:
                self._start(result, best, None)
        except KeyboardInterrupt:
            if not result.gradient_norms:
                raise
            result.drop_unfinished(best.n_offered)
            result.stop_reason = "interrupted"
        except StoppedByPeer as stopped:
            if not result.gradient_norms:
                raise KeyboardInterrupt from stopped
            result.drop_unfinished(best.n_offered)
            result.stop_reason = stopped.reason
        self._finish(result, best, observers)
        if observers:
            result.history = recorded(self.history)[: result.n_iter]
        return result if self.group is None else self.group.finish(result)

    def _run_ahead(self) -> TrainingResult:
        """Train on the device without waiting for it; nobody watches but the progress."""
        optimizer = self.optimizer_
        told: list[float] = []
        descent = BatchedDescent(
            self.objective_, [optimizer.rule], self.settings, self.valid, optimizer.velocity
        )
        descent.start()
        losses, reason = descent.histories.losses[0], ""
        check_validation_loss(descent.histories.criterion[0, 0], losses[0])
        try:
            shown: Any = range(1, self.settings.max_iter + 1)
            shown = iter(self.progress(shown, told) if self.progress else shown)
            for n_iter in descent.iterations():
                while len(told) < n_iter:
                    next(shown)
                    told.append(losses[len(told) + 1])
            next(shown, None)  # what comes after the last
        except KeyboardInterrupt:
            reason = "interrupted"
        (result,) = descent.results(reason)
        if not result.kept_best and bool(descent.rule.moving[0]):
            result.velocity = descent.velocity[0].cpu().numpy().copy()
        return result

    def _join(self) -> None:
        """Start where rank 0 starts, which may have a checkpoint."""
        if isinstance(self.objective_, SharedObjective) and not self.objective_.has_begun:
            restore(self, self.objective_.group.first(state_of_training(self)))
            self.objective_.begin()

    def _start(self, result: TrainingResult, best: Best, observers: Observers | None) -> None:
        """Visit the initial point."""
        first = self.optimizer_.start()
        norm = self.objective_.gradient_norm()
        result.losses.append(first)
        result.gradient_norms.append(norm)
        if not math.isfinite(first):
            result.stop_reason = "diverged"
            return
        criterion = self._criterion(first)
        check_validation_loss(criterion, first)
        best.offer(criterion, 0)
        if observers:
            observers.gradient_computed()

    def _loop(self, result: TrainingResult, best: Best, observers: Observers | None) -> None:
        settings, optimizer, validated = self.settings, self.optimizer_, self.valid is not None
        stopping = StoppingRule(
            settings, validated=validated, first=result.losses[0], criterion=best.history[0]
        )
        reason = ""
        numbers = result.losses, result.gradient_norms, best.history
        for values in list(zip(*numbers, strict=True))[1:]:  # after a checkpoint
            reason = stopping.after(*values)
        if reason:
            result.stop_reason = reason
            return
        iterations: Any = range(result.n_iter + 1, settings.max_iter + 1)
        if self.progress:
            iterations = self.progress(iterations, result.losses)
        # without anyone to see it, a step needs no hooks: a tenth of a small iteration
        step = optimizer.step if observers or self.hooks else optimizer.advance
        for iteration in iterations:
            if self.hooks:
                self.hooks[0](iteration)
            if observers:
                observers.iteration_begin()
            reason = step()
            if reason == "stalled":
                result.stop_reason = reason
                return
            loss = optimizer.loss
            if stopping.diverges(loss):
                result.learning_rates.append(optimizer.rule.last_rate)
                result.losses.append(loss)
                result.stop_reason = "diverged"
                return
            norm = self.objective_.gradient_norm()
            criterion = self._criterion(loss)
            # an interrupt before `offer` has ended leaves this iteration unfinished: `n_offered`
            result.learning_rates.append(optimizer.rule.last_rate)
            result.losses.append(loss)
            result.gradient_norms.append(norm)
            if validated:
                result.validation_losses.append(criterion)
            improved = best.offer(criterion, iteration)
            if observers:
                observers.iteration_end(result, improved)
            if self.hooks and self.hooks[1](iteration, self):
                result.stop_reason = "callback"
                return
            result.stop_reason = stopping.after(loss, norm, criterion)
            if result.stop_reason not in ("", "max_iter"):  # there the iterations end themselves
                return

    def _finish(self, result: TrainingResult, best: Best, observers: Observers | None) -> None:
        """Decide which weights to keep; callbacks see those, and may change them."""
        result.best_iteration = best.iteration
        result.learning_rate = self.optimizer_.param_groups[0]["lr"]
        interrupted = result.stop_reason in ("interrupted", "diverged")
        result.kept_best = self.valid is not None or interrupted
        if result.kept_best:
            self.objective_.theta.copy_(best.theta)
        elif self.optimizer_.rule.moving:
            result.velocity = self.optimizer_.velocity.detach().cpu().numpy().copy()
        result.loss = result.losses[best.iteration if result.kept_best else -1]
        if observers:
            kept = self.objective_.theta.clone()
            try:
                observers.train_end()
            except KeyboardInterrupt:
                result.stop_reason = "interrupted"
                self._finish(result, best, None)
                return
            if not torch.equal(kept, self.objective_.theta):  # weights a callback put back
                result.loss, result.velocity = self.objective_.evaluate(), None
        result.state = state_of(self.module_)

    def _criterion(self, loss: float) -> float:
        """Return what stopping watches: the loss, or that on the validation set."""
        if self.valid is None:
            return loss
        value = self.objective_.validation_loss(self.valid)
        return math.inf if math.isnan(value) else value

    def predict_batches(self, batches: Batches) -> torch.Tensor:
        """Return the predictions for all samples, in their order, NaN at padding."""
        with torch.no_grad():
            pieces = with_less_memory(
                batches, lambda: [self.objective_.predict(batch) for batch in batches]
            )
        if len(pieces) == 1:
            return pieces[0]
        longest = [max(sizes) for sizes in zip(*(piece.shape[1:] for piece in pieces), strict=True)]
        result = pieces[0].new_full((len(batches), *longest), torch.nan)
        for rows, piece in zip(batches.row_sets, pieces, strict=True):
            result[rows, : piece.shape[1]] = piece
        return result


class FullBatchClassifierNet(ClassifierMixin, FullBatchNet):
    """The same net for classes, which scoring callbacks can ask for labels and probabilities.

    Labels are class indices.
    """

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return class probabilities (n, K)."""
        return self.settings.loss.probabilities(super().predict_proba(X))

    def predict(self, X: Any) -> np.ndarray:
        """Return class indices (n,)."""
        return self.predict_proba(X).argmax(axis=1)

    @property
    def classes_(self) -> np.ndarray:
        """Class indices."""
        n_outputs = self.module_.config.n_outputs
        return np.arange(max(n_outputs, 2))


def check_validation_loss(criterion: float, first: float) -> None:
    """Raise where training could begin, but the validation samples cannot be watched."""
    if math.isfinite(first) and not math.isfinite(criterion):
        raise ValueError(
            "The validation loss is not finite: X_val (or the held-out part of X) is too far "
            "from the training samples. Check its units."
        )


@contextmanager
def gradients_enabled() -> Iterator[None]:
    """Train even where the user has switched gradients off."""
    with torch.inference_mode(False), torch.enable_grad():
        yield
