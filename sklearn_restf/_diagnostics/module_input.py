"""Validation of the tokens that are given to a module rather than to an estimator."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from sklearn.utils import check_array
from torch import Tensor

from sklearn_restf._data.arrays import validating
from sklearn_restf._model import ModuleConfig


def module_tokens(config: ModuleConfig, X: Any, mask: Any) -> tuple[Tensor, Tensor | None]:
    """Validate the tokens of a module, and which of them are real."""
    if isinstance(X, Tensor):
        X = X.detach().cpu()
        X = X.double().numpy() if X.is_floating_point() else X.numpy()
    with validating("X"):
        values = check_array(X, allow_nd=True, ensure_2d=False, dtype=np.float64, input_name="X")
    longest = config.max_tokens if config.positional_encoding == "learned" else config.n_tokens
    if values.ndim != 3 or values.shape[2] != config.token_width or not values.shape[1]:
        raise ValueError(
            f"X must have shape (n_samples, n_tokens, {config.token_width}) for this module, got "
            f"{values.shape}."
        )
    if longest is not None and values.shape[1] > longest:
        raise ValueError(
            f"X has samples of {values.shape[1]} tokens, the module was made for {longest}."
        )
    if mask is None:
        return torch.from_numpy(values.copy()), None
    real = np.asarray(mask.detach().cpu() if isinstance(mask, Tensor) else mask)
    if real.dtype != bool or real.shape != values.shape[:2]:
        raise ValueError(
            f"mask must be an array of bool of shape {values.shape[:2]}, got {real.dtype} of shape "
            f"{real.shape}."
        )
    if not real[:, 0].all() or (real[:, 1:] > real[:, :-1]).any():
        raise ValueError("mask must say that the first tokens of a sample are real, at least one.")
    return torch.from_numpy(values.copy()), torch.from_numpy(real.copy())
