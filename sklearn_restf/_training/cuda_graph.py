"""Gradient descent that does not wait for the device after every step.

A GPU runs a small model's iteration in less time than Python takes to start its operations,
and every number read back makes both wait. Here one trial of the step rule (candidate, loss,
gradient, decision) is a fixed sequence of operations on tensors of the device: on CUDA it is
captured as a graph, replayed a number of times, and what happened is read in one go.

The rule is that of :class:`~sklearn_restf._training.gradient_descent.GradientDescent`, with
``torch.where`` in place of branches. The caller takes steps one by one as ever; where training
ends in the middle of what was replayed, the state before is put back and replayed as needed.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Self

import torch
from torch import Tensor

from sklearn_restf._data.batches import Batches
from sklearn_restf._training.gradient_descent import SHRINK, SMALLEST_RATE, GradientDescent
from sklearn_restf._training.objective import Objective

DEVICES = ("cuda",)
TRIALS = 32  # at most so many between two readings
WARM_UP = 3  # trials before capture: libraries and buffers are set up in them
FEWEST_ITERATIONS = 16  # of a fit, for capture to pay

_one_at_a_time = threading.Lock()


def is_supported(objective: Objective, batches: Batches, valid: Batches | None) -> bool:
    """Tell whether trials of fixed shapes can be run: all samples stay on the device."""
    # an objective of several processes waits for the others, and is a subclass
    plain = type(objective) is Objective
    stays = batches.keeps_graph and batches.is_cached and (valid is None or valid.is_cached)
    return plain and batches.device.type in DEVICES and stays


def choose_descent(
    objective: Objective,
    batches: Batches,
    valid: Batches | None,
    *,
    watched: bool,
    n_iter: int,
    **rule: Any,
) -> GradientDescent:
    """Return the step rule, run ahead where that pays and nobody watches every iteration."""
    if is_supported(objective, batches, valid) and not watched:
        return DeviceDescent(objective, valid, n_iter=n_iter, **rule)
    return GradientDescent(objective, **rule)


class Tensors:
    """Copying for dataclasses of tensors."""

    def clone(self) -> Self:
        """Copy all tensors."""
        return type(self)(*(getattr(self, f.name).clone() for f in fields(self)))  # type: ignore[arg-type]

    def copy_(self, other: Self) -> None:
        """Take over the values of another."""
        for f in fields(self):  # type: ignore[arg-type]
            getattr(self, f.name).copy_(getattr(other, f.name))


@dataclass
class State(Tensors):
    """What the next trial depends on, on the device; `gradient` and `theta` are the objective's."""

    theta: Tensor
    gradient: Tensor
    velocity: Tensor
    moving: Tensor  # bool: whether the velocity counts
    rate: Tensor
    loss: Tensor
    best_theta: Tensor
    best_value: Tensor  # of the loss, or of that on the validation samples


@dataclass(frozen=True)
class Trial:
    """What is read back of one trial."""

    accepted: bool
    loss: float
    gradient_norm: float
    rate: float
    next_rate: float
    value: float  # the loss, or that on the validation samples


@dataclass
class Ahead:
    """Trials that were run, and the state before them."""

    before: State
    first_iteration: int  # iterations taken before them
    trials: list[Trial]
    used: int = 0


class DeviceDescent(GradientDescent):
    """:class:`GradientDescent` whose trials are run ahead and read in batches.

    Parameters
    ----------
    objective : Objective
        What to minimise; see :func:`is_supported`.
    valid : Batches or None
        Validation samples.
    n_iter : int
        How many steps there will be at most.
    **options
        Of :class:`GradientDescent`.
    """

    def __init__(
        self, objective: Objective, valid: Batches | None = None, *, n_iter: int, **options: Any
    ) -> None:
        super().__init__(objective, **options)
        self.valid, self.n_iter = valid, n_iter
        self.iteration = 0
        self.graph: torch.cuda.CUDAGraph | None = None
        self._norm = self._value = math.nan
        self._ahead: Ahead | None = None
        self._state: State | None = None

    def gradient_norm(self) -> float:
        """Return the Euclidean norm of the gradient after the last step."""
        return super().gradient_norm() if self._ahead is None else self._norm

    def validation_loss(self, valid: Batches) -> float:
        """Return the loss on the validation samples after the last step."""
        return super().validation_loss(valid) if self._ahead is None else self._value

    def advance(self) -> str | None:
        """Take one step, as :meth:`GradientDescent.advance` does."""
        group = self.param_groups[0]
        while True:
            trial = self._next_trial()
            group["lr"], self.last_rate = trial.next_rate, trial.rate
            if trial.accepted:
                break
            if not self.moving and trial.next_rate < SMALLEST_RATE:
                return "stalled"
            self.moving = False
        self.iteration += 1
        self.loss, self._norm, self._value = trial.loss, trial.gradient_norm, trial.value
        self.moving = group["momentum"] > 0
        return None if math.isfinite(trial.loss) else "diverged"

    def settle(self, n_iter: int, best_theta: Tensor) -> None:
        """Bring the parameters to those after `n_iter` steps, and the best ones so far."""
        ahead, state = self._ahead, self._state
        if ahead is None or state is None:
            return
        state.copy_(ahead.before)
        steps = n_iter - ahead.first_iteration
        for trial in ahead.trials:
            if steps <= 0:
                break
            self._run_trial()
            steps -= trial.accepted
        best_theta.copy_(state.best_theta)
        self.velocity = state.velocity
        self.graph = None  # with the memory it holds

    def _next_trial(self) -> Trial:
        ahead = self._ahead
        if ahead is None or ahead.used == len(ahead.trials):
            ahead = self._run_ahead()
        ahead.used += 1
        return ahead.trials[ahead.used - 1]

    def _run_ahead(self) -> Ahead:
        """Run as many trials as there can be of use, and read what happened."""
        state = self._prepare() if self._state is None else self._state
        # exchanged as a whole: an interrupt finds the state before the trials, or after the last
        ahead = self._ahead = Ahead(state.clone(), self.iteration, [])
        # a step takes one trial at least, so that the last iteration is never passed
        count = max(1, min(TRIALS, self.n_iter - self.iteration))
        records = run_many(self._run_trial, self._record, count)
        ahead.trials = [Trial(bool(accepted), *numbers) for accepted, *numbers in records.tolist()]
        return ahead

    def _prepare(self) -> State:
        """Put the state onto the device, and capture a trial."""
        objective, device = self.objective, self.objective.theta.device

        def number(value: float) -> Tensor:
            return torch.full((), value, dtype=torch.float64, device=device)

        theta, loss = objective.theta, number(self.loss)
        value = loss if self.valid is None else objective.samples_loss(self.valid, as_tensor)
        self._state = state = State(
            theta=theta,
            gradient=objective.gradient,
            velocity=self.velocity,
            moving=torch.full((), self.moving, device=device),
            rate=number(self.param_groups[0]["lr"]),
            loss=loss,
            best_theta=theta.clone(),
            best_value=value.clone(),
        )
        self._record = torch.zeros(6, dtype=torch.float64, device=device)
        self.graph = capture_where_it_pays(self._trial, state, self.n_iter, device)
        return state

    def _run_trial(self) -> None:
        if self.graph is None:
            self._trial()
        else:
            self.graph.replay()

    def _trial(self) -> None:
        """Try one step; the device decides, and nothing is read back."""
        state, objective, momentum = self._state, self.objective, self.param_groups[0]["momentum"]
        assert state is not None
        origin, gradient = state.theta.clone(), state.gradient.clone()
        step = gradient * -state.rate
        if momentum:
            pushed = torch.add(step, state.velocity, alpha=momentum)
            step = torch.where(state.moving, pushed, step)
        torch.add(origin, step, out=state.theta)
        loss = objective.evaluate(as_tensor)
        objective.differentiate()
        accepted = loss <= state.loss if self.guarded else torch.ones_like(state.moving)
        for kept, before in ((state.theta, origin), (state.gradient, gradient)):
            torch.where(accepted, kept, before, out=kept)
        torch.where(accepted, step, state.velocity, out=state.velocity)
        # rejected: first without momentum, then with shorter and shorter steps
        shortened = torch.where(state.moving, state.rate, state.rate * SHRINK)
        next_rate = torch.where(accepted, state.rate * self.growth, shortened)
        value = loss
        if self.valid is not None:
            value = objective.samples_loss(self.valid, as_tensor)
        improved = accepted & (value < state.best_value)
        torch.where(improved, state.theta, state.best_theta, out=state.best_theta)
        torch.where(improved, value, state.best_value, out=state.best_value)
        norm = torch.linalg.vector_norm(state.gradient).double()
        numbers = accepted.double(), loss, norm, state.rate, next_rate, value
        torch.stack(numbers, out=self._record)
        torch.where(accepted, loss, state.loss, out=state.loss)
        state.rate.copy_(next_rate)
        state.moving.copy_(accepted if momentum else torch.zeros_like(accepted))


def as_tensor(value: Tensor) -> Tensor:
    """Return a number as it is, on its device, so that nothing waits for it."""
    return value


def run_many(run_trial: Callable[[], None], record: Tensor, count: int) -> Tensor:
    """Run trials, and read what each has left in `record` in one go."""
    records = record.new_empty((count, *record.shape))
    for row in records:
        run_trial()
        row.copy_(record)
    return records.cpu()


def capture_where_it_pays(
    trial: Callable[[], None], state: Tensors, n_iter: int, device: torch.device
) -> torch.cuda.CUDAGraph | None:
    """Capture a trial on CUDA, if there are iterations enough; it leaves `state` as it was."""
    if device.type != "cuda" or n_iter < FEWEST_ITERATIONS:
        return None
    before = state.clone()
    graph = capture(trial, device)
    state.copy_(before)
    return graph


def capture(trial: Any, device: torch.device) -> torch.cuda.CUDAGraph | None:
    """Capture a function as a CUDA graph; None if it cannot be.

    What works without capture needs no capture to be right: trials are then started one by one.
    """
    graph = torch.cuda.CUDAGraph()
    stream = torch.cuda.Stream(device)
    with _one_at_a_time, torch.cuda.device(device):
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP):
                trial()
            stream.synchronize()
            try:
                # other threads may go on using the device
                graph.capture_begin(capture_error_mode="thread_local")
                try:
                    trial()
                finally:
                    graph.capture_end()
            except RuntimeError:
                graph = None
        torch.cuda.current_stream().wait_stream(stream)
    return graph
