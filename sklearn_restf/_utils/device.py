"""Devices and dtypes: what the user asked for, and what this machine has."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from sklearn_restf._utils.warnings import warn

DTYPES = {"float32": torch.float32, "float64": torch.float64}


@contextmanager
def cpu_by_default() -> Iterator[None]:
    """Create tensors on the CPU where no device is named, whatever the user's default device."""
    if torch.get_default_device().type == "cpu":
        yield  # the context costs time at every call of torch
    else:
        with torch.device("cpu"):
            yield


def is_available(device: torch.device) -> bool:
    """Tell whether tensors can live on `device` here."""
    if device.type == "cpu":
        return True
    if device.type == "cuda":
        return torch.cuda.is_available() and (device.index or 0) < torch.cuda.device_count()
    if device.type == "mps":
        return torch.backends.mps.is_available()
    if device.type == "meta":  # shapes without numbers
        return False
    try:
        torch.empty(0, device=device)
    except (RuntimeError, NotImplementedError, AssertionError):
        return False
    return True


def resolve_device(device: str | torch.device) -> torch.device:
    """Return the device to train on; "auto" is CUDA if there is one, else the CPU."""
    if isinstance(device, str) and device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        resolved = torch.device(device)
    except RuntimeError as error:
        raise ValueError(
            f"device={device!r} is not a device torch knows. Use 'auto', 'cpu', 'cuda', 'cuda:0' "
            "or 'mps'."
        ) from error
    if not is_available(resolved):
        raise ValueError(
            f"device={device!r} is not available on this machine. Use device='auto' or 'cpu'."
        )
    return resolved


def prediction_device(fitted_on: str, name: str) -> torch.device:
    """Return where to predict in float64: the device of fit if it is here, else the CPU."""
    device = torch.device(fitted_on)
    if device.type == "mps":  # has no float64
        return torch.device("cpu")
    if is_available(device):
        return device
    warn(
        f"{name} was fitted on {fitted_on}, which is not available here; predicting on the CPU.",
        UserWarning,
    )
    return torch.device("cpu")


def resolve_dtype(dtype: str, X_dtype: np.dtype, device: torch.device) -> torch.dtype:
    """Return the training dtype: float32 for float32 input, float64 for everything else."""
    if device.type == "mps":
        return torch.float32
    if dtype == "auto":
        return torch.float32 if X_dtype.newbyteorder("=") == np.float32 else torch.float64
    return DTYPES[dtype]
