"""A training problem: what an estimator's parameters and its samples amount to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from sklearn_restf._data.batches import Batches
from sklearn_restf._data.tokens import TokenLayout
from sklearn_restf._model import ModuleConfig, NumpyState


@dataclass(frozen=True)
class Problem:
    """All that training needs, on the device."""

    config: ModuleConfig
    layout: TokenLayout
    state: NumpyState
    train: Batches
    valid: Batches | None
    dtype: torch.dtype
    device: torch.device


def module_config(estimator: Any, layout: TokenLayout, n_outputs: int) -> ModuleConfig:
    """Resolve the defaults that depend on the data."""
    table = layout.kind == "table"
    d_model = estimator.d_model
    if d_model is None:
        d_model = 16 if table else layout.n_features
    if d_model % estimator.n_heads:
        raise ValueError(
            f"n_heads={estimator.n_heads} does not divide the token width {d_model}: set d_model "
            "to a multiple of n_heads."
        )
    pooling = estimator.pooling
    if pooling == "auto":
        pooling = "mean" if layout.kind == "ragged" else "flatten"
    gamma = estimator.ffn_residual_beta
    return ModuleConfig(
        n_tokens=layout.n_tokens,
        token_width=layout.token_width,
        d_model=int(d_model),
        n_outputs=n_outputs,
        n_features=layout.n_features,
        embedding="grouped" if table else "none" if estimator.d_model is None else "shared",
        n_layers=int(estimator.n_layers),
        n_heads=int(estimator.n_heads),
        d_qk=int(estimator.d_qk or d_model // estimator.n_heads),
        d_ff=int(estimator.d_ff),
        activation=estimator.activation,
        layer_norm=bool(estimator.layer_norm),
        causal=bool(estimator.causal),
        pooling=pooling,
        positional_encoding=estimator.positional_encoding,
        max_tokens=layout.max_tokens,
        residual_beta=float(estimator.residual_beta),
        ffn_residual_beta=float(estimator.residual_beta if gamma is None else gamma),
    )


def refuse_other_layout(old: TokenLayout, new: TokenLayout) -> None:
    """Raise when parameters that shape the tokens changed since the fit to go on from."""
    for name, same in (
        ("n_tokens", old.kind != "table" or old.n_tokens == new.n_tokens),
        ("standardize", (old.mean is None) == (new.mean is None)),
    ):
        if not same:
            raise ValueError(
                f"warm_start=True cannot go on with another {name!r}. Fit a clone, or set "
                "warm_start=False."
            )


def refuse_beyond_range(estimator: Any, dtype: torch.dtype) -> None:
    """Raise when a parameter of the model is no finite number in the dtype of training."""
    for name in ("residual_beta", "ffn_residual_beta", "alpha"):
        value = getattr(estimator, name)
        if value is not None and float(value) > torch.finfo(dtype).max:
            raise ValueError(
                f"{name}={value!r} is too large for training in {str(dtype)[6:]}. Lower it, or "
                "set dtype='float64'."
            )
