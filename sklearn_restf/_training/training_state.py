"""All that the rest of a training run depends on, to be saved or sent, and put back."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import torch
from skorch.history import History

if TYPE_CHECKING:
    from sklearn_restf._training.net import FullBatchNet

FORMAT_VERSION = 1
CURVES = ("losses", "gradient_norms", "learning_rates", "validation_losses")


def state_of_training(net: FullBatchNet) -> dict[str, Any]:
    """Return all that the rest of a run depends on, as tensors and plain data."""
    curves = {name: getattr(net.result_, name) for name in CURVES}
    return {
        "format_version": FORMAT_VERSION,
        "theta": net.objective_.theta.detach(),
        "optimizer": net.optimizer_.state_dict(),
        "best": net.best_.state_dict(),
        "history": json.dumps(list(net.history), default=plain),
        **{name: torch.tensor(curve, dtype=torch.float64) for name, curve in curves.items()},
    }


def restore(net: FullBatchNet, state: dict[str, Any]) -> None:
    """Put a run to where it was saved."""
    net.objective_.theta.copy_(state["theta"])
    net.optimizer_.load_state_dict(state["optimizer"])
    net.best_.load_state_dict(state["best"])
    for name in CURVES:
        getattr(net.result_, name)[:] = state[name].tolist()
    net.history = History(json.loads(state["history"]))


def recorded(history: History) -> list[dict[str, Any]]:
    """Return what callbacks recorded of every epoch, and not of its one batch again."""
    rows: list[dict[str, Any]] = json.loads(json.dumps(list(history), default=plain))
    return [row | {"batches": []} for row in rows]


def plain(value: Any) -> Any:
    """Return what callbacks recorded in a form that JSON has."""
    try:
        return value.item()
    except (AttributeError, ValueError, RuntimeError):
        return repr(value)
