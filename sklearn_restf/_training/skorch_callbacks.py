"""The user's skorch callbacks, copied so that fit changes no parameter."""

from __future__ import annotations

import contextlib
from typing import Any

from sklearn.base import clone
from skorch.callbacks import Callback

from sklearn_restf._training.checkpoint import TrainingCheckpoint


def usable_callbacks(callbacks: Any, random_state: Any) -> list[Any] | None:
    """Return copies of the user's skorch callbacks, so that fit changes no parameter.

    Checkpoints come last: they save what the others have recorded.
    """
    if not callbacks:
        return None
    copies = []
    for item in callbacks:
        name, callback = item if isinstance(item, tuple) else (None, item)
        is_class = isinstance(callback, type) and issubclass(callback, Callback)
        if not is_class and not isinstance(callback, Callback):
            raise TypeError(
                "callbacks must be skorch callbacks (instances, classes or (name, callback) "
                f"pairs); got {callback!r}."
            )
        if isinstance(callback, TrainingCheckpoint) and random_state is None:
            raise ValueError(
                "TrainingCheckpoint in callbacks needs random_state: without it the same fit "
                "cannot begin again, and none could go on from the checkpoint. Set "
                "random_state=0, say."
            )
        used = callback
        if not is_class:
            # one that cannot be copied (it holds a lock, say) is used as it is
            with contextlib.suppress(TypeError):
                used = clone(callback, safe=False)
        copies.append(used if name is None else (name, used))
    return sorted(copies, key=is_checkpoint)


def is_checkpoint(item: Any) -> bool:
    """Tell whether a callback, or a (name, callback) pair, is a checkpoint."""
    return isinstance(item[1] if isinstance(item, tuple) else item, TrainingCheckpoint)
