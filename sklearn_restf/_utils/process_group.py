"""What the processes that train one model together tell each other.

A full-batch gradient is a sum over samples, so that processes which each hold some of the
samples need to exchange little: facts about the data before training (their moments, the
classes, shapes) and one sum per iteration. While a fit shares its samples, its thread knows the
group, see :func:`active_group`; :func:`gather` and the like speak to it, and return at once where
there is none.

No rank may wait for one that has given up. So all ranks take the same sequence of two kinds
of exchange, and a rank that fails still takes part in the next one, to say so: :meth:`gather`
outside of training, :meth:`sum`, always of one length, within.
"""

from __future__ import annotations

import pickle
import signal
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import reduce
from operator import add
from types import FrameType, TracebackType
from typing import Any

import torch
from torch import Tensor, distributed

from sklearn_restf.exceptions import RankError

EVALUATE, PRODUCT, END = range(3)  # what a sum is for
FAILED, INTERRUPTED, CALLBACK = range(3, 6)  # why a rank wants to stop
HEADER = 6


class StoppedByPeer(Exception):
    """Another rank ended training; `reason` says why."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class ProcessGroup:
    """The ranks of a ``torch.distributed`` process group, during one fit.

    Used as a context manager: an error inside is told to the other ranks, which raise
    :class:`~sklearn_restf.exceptions.RankError`. The first SIGINT inside is kept until the next
    exchange, so that it never strikes between two ranks' halves of one.

    Parameters
    ----------
    group : torch.distributed.ProcessGroup
        The group.
    """

    def __init__(self, group: Any) -> None:
        self._group = group
        self.rank = distributed.get_rank(group)
        self.size = distributed.get_world_size(group)
        self._rank_0 = distributed.get_global_rank(group, 0)
        self._buffer: Tensor | None = None  # of the sums, while training
        self._closed = False
        self._interrupted = False
        self._handler: Any = None

    # --- outside of training ----------------------------------------------------------

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all ranks, in their order."""
        if self._interrupted:
            raise KeyboardInterrupt
        answers = self._exchange(("", value))
        self._raise_failure(answers)
        return [value for _, value in answers]

    def first(self, value: Any) -> Any:
        """Return the value of rank 0, which may be large."""
        values = [pickle.dumps(value) if self.rank == 0 else b""]
        self.gather(None)  # after this no rank fails
        self._call(distributed.broadcast_object_list, values, self._rank_0)
        return value if self.rank == 0 else pickle.loads(values[0])

    def agree(self, facts: dict[str, Any]) -> None:
        """Raise on all ranks unless they agree on the facts, named for the message."""
        answers = self.gather({name: repr(value) for name, value in facts.items()})
        for rank, answer in enumerate(answers):
            for name, value in answers[0].items():
                if answer[name] != value:
                    raise ValueError(
                        f"The ranks disagree on {name}: rank 0 has {value}, rank {rank} has "
                        f"{answer[name]}. Every rank of the process group must call fit on its "
                        "part of the same data with the same parameters; for models of their own "
                        "call fit within sklearn_restf.distributed.single_process()."
                    )

    # --- training ---------------------------------------------------------------------

    def begin(self, n_parameters: int, device: torch.device) -> None:
        """Begin training a model of so many parameters."""
        self.agree({"the number of parameters": n_parameters})
        # in double precision whatever that of the model: single precision would hide small
        # decreases of the loss
        self._buffer = torch.zeros(
            HEADER + 2 + n_parameters, dtype=torch.float64, device=self._device(device)
        )

    def _device(self, device: torch.device) -> torch.device:
        """Return where the backend wants its tensors."""
        backends = str(distributed.get_backend_config(self._group))
        if device.type == "cuda" and "nccl" in backends:
            return device
        return torch.device("cpu" if "gloo" in backends or "mpi" in backends else "cuda")

    def sum(self, purpose: int, numbers: tuple[float, float], vector: Tensor) -> Tensor:
        """Return two numbers and a vector of the parameters' size, summed over the ranks.

        Raises
        ------
        StoppedByPeer
            When a rank wants to stop, for a reason that is no error.
        """
        assert self._buffer is not None
        self._buffer.zero_()
        self._buffer[HEADER], self._buffer[HEADER + 1] = numbers
        self._buffer[HEADER + 2 :] = vector
        flags = self._reduce(purpose, INTERRUPTED if self._interrupted else None)
        if flags[END] or flags[INTERRUPTED]:
            raise StoppedByPeer(_reason(flags))
        if flags[purpose] != self.size:
            self._closed = True
            raise RankError(
                "The ranks are out of step. They must have the same callbacks and the same "
                "versions of torch and of this package.",
                rank=self.rank,
            )
        return self._buffer[HEADER:].clone()

    def _reduce(self, purpose: int | None, wish: int | None) -> list[int]:
        """Sum the buffer over the ranks, and return what they are about."""
        assert self._buffer is not None
        for slot in (purpose, wish):
            if slot is not None:
                self._buffer[slot] = 1.0
        self._call(distributed.all_reduce, self._buffer)
        flags = [int(count) for count in self._buffer[:HEADER].tolist()]
        if flags[FAILED] and wish != FAILED:
            self._raise_failure(self._exchange(("", None)))
        return flags

    def end(self, reason: str = "") -> None:
        """Make an end of sums, on all ranks."""
        wish = {"interrupted": INTERRUPTED, "callback": CALLBACK}.get(reason)
        while True:  # others may still be in an iteration, and end because of this
            assert self._buffer is not None
            self._buffer.zero_()
            if self._reduce(END, wish)[END] == self.size:
                break
        self._buffer = None
        self._interrupted = self._interrupted and reason != "interrupted"

    def finish(self, result: Any) -> Any:
        """End training on all ranks, and return the result of rank 0."""
        if self._buffer is None:  # an interrupt before the first exchange
            raise KeyboardInterrupt
        self.end(result.stop_reason)
        return self.first(result)

    # --- failures ---------------------------------------------------------------------

    def __enter__(self) -> ProcessGroup:
        if threading.current_thread() is threading.main_thread():
            handler = signal.getsignal(signal.SIGINT)
            if callable(handler):
                self._handler = handler
                signal.signal(signal.SIGINT, self._interrupt)
        return self

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if self._interrupted:  # someone insists
            self._handler(number, frame)
        self._interrupted = True

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None and not self._closed:
            self._tell(error)
        if self._handler is not None:
            signal.signal(signal.SIGINT, self._handler)
        if error is None and self._interrupted:
            raise KeyboardInterrupt

    def _tell(self, error: BaseException) -> None:
        """Tell the others, at their next exchange, why this rank gives up."""
        try:
            if self._buffer is not None:
                self._buffer.zero_()
                self._reduce(None, FAILED)
            self._exchange((f"{type(error).__name__}: {error}", None))
        except RankError:  # they are gone as well
            pass

    def _raise_failure(self, answers: list[tuple[str, Any]]) -> None:
        for rank, (failure, _) in enumerate(answers):
            if failure:
                self._closed = True
                raise RankError(f"Rank {rank} could not go on: {failure}", rank=rank)

    def _exchange(self, message: tuple[str, Any]) -> list[tuple[str, Any]]:
        answers: list[Any] = [None] * self.size
        self._call(distributed.all_gather_object, answers, message)
        return answers

    def _call(self, function: Any, *arguments: Any) -> None:
        try:
            function(*arguments, group=self._group)
        except RuntimeError as error:
            self._closed = True
            raise RankError(
                f"Rank {self.rank} lost contact to the others, or they did not call fit: {error}",
                rank=self.rank,
            ) from error


def _reason(flags: list[int]) -> str:
    if flags[INTERRUPTED]:
        return "interrupted"
    return "callback" if flags[CALLBACK] else "tol"


chosen: list[Any] = []  # process groups chosen by the user, the last one counts; None is none
_this_thread = threading.local()  # .group: the one that a fit of this thread trains in


def available_group() -> ProcessGroup | None:
    """Return the processes that a fit begun now would share its samples with."""
    if chosen:
        group = chosen[-1]
    else:
        has_group = distributed.is_available() and distributed.is_initialized()
        group = distributed.group.WORLD if has_group else None
    single = group is None or distributed.get_world_size(group) == 1
    return None if single else ProcessGroup(group)


def active_group() -> ProcessGroup | None:
    """Return the processes that share the samples of the fit at work in this thread."""
    return getattr(_this_thread, "group", None)


@contextmanager
def sharing_samples() -> Iterator[None]:
    """Fit on the samples of all processes of the available group."""
    group = available_group()
    if group is None:
        with alone():
            yield
        return
    with group, _active(group):
        yield


def alone() -> AbstractContextManager[None]:
    """Speak to no other process: for what is no part of a fit, as what its callbacks do."""
    return nullcontext() if active_group() is None else _active(None)


@contextmanager
def _active(group: ProcessGroup | None) -> Iterator[None]:
    before, _this_thread.group = active_group(), group
    try:
        yield
    finally:
        _this_thread.group = before


def rank() -> int:
    """Return the position of this process among those that share samples."""
    group = active_group()
    return 0 if group is None else group.rank


def gather(value: Any) -> list[Any]:
    """Return the values of all ranks, in their order."""
    group = active_group()
    return [value] if group is None else group.gather(value)


def first(value: Any) -> Any:
    """Return the value of rank 0."""
    group = active_group()
    return value if group is None else group.first(value)


def total(value: Any) -> Any:
    """Return the sum of a number or array over the ranks, the same bits on each."""
    return reduce(add, gather(value))


def agree(facts: dict[str, Any]) -> None:
    """Raise on all ranks unless they agree on the facts, named for the message."""
    group = active_group()
    if group is not None:
        group.agree(facts)
