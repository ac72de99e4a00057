"""What the loss of a fit is compared with: trivial predictions, and the penalty."""

from __future__ import annotations

import numpy as np

from sklearn_restf._data.batches import Batches
from sklearn_restf._model import (
    Loss,
    ModuleConfig,
    NumpyState,
    binary_log_loss,
    is_weight,
    squared_error,
)
from sklearn_restf._utils.process_group import total


def penalty_share(state: NumpyState, alpha: float, objective: float) -> float:
    """Return the share of the L2 penalty in the objective."""
    squares = sum(float((value**2).sum()) for name, value in state.items() if is_weight(name))
    return 0.5 * alpha * squares / objective if objective > 0 else np.nan


def trivial_loss(batches: Batches, config: ModuleConfig, loss: Loss) -> float:
    """Return the loss of the best constant prediction."""
    y, weight = batches.y, batches.weight
    if loss is not squared_error:
        labels = (y > 0).astype(float)  # one-hot, or one column of -1 and 1
        share = total(weight @ labels)
        if loss is binary_log_loss:
            share = np.append(share, 1 - share)
        return float(-(share[share > 0] * np.log(share[share > 0])).sum())
    if config.pooling == "none":
        lengths = batches.tokens.lengths
        repeats = batches.layout.max_tokens if lengths is None else lengths
        y, weight = y.reshape(-1, y.shape[-1]), np.repeat(weight, repeats)
    centred = y - total(weight @ y) / total(weight.sum())
    return float(total(0.5 * weight @ (centred**2).sum(axis=1)))


def collapse_floor(batches: Batches, config: ModuleConfig, loss: Loss) -> float:
    """Return the smallest loss when all predictions of a sample coincide; nan if one each.

    ``1/2 sum_p w_p ||P Y_p||_F^2`` with P the centring over tokens.
    """
    if config.pooling != "none" or loss is not squared_error:
        return np.nan
    lengths = batches.tokens.lengths
    samples = batches.y if lengths is None else np.split(batches.y, np.cumsum(lengths)[:-1])
    floors = [0.5 * ((y - y.mean(axis=0)) ** 2).sum() for y in samples]
    return float(total(batches.weight @ np.array(floors)))
