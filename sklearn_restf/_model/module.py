"""The residual Transformer, equation by equation.

One sample is a matrix of T tokens (rows) of width D; shape suffixes name the axes:
N samples, T tokens, D token width, H heads, K query/key width of one head,
M feed-forward width, C outputs. Read from bottom to top of the equations::

    F_0  = tokens, or an embedding of them, plus positions
    A_l  = softmax((F_{l-1} W_Q) (F_{l-1} W_K)^T / sqrt(d_qk))
    Z_l  = beta F_{l-1} + A_l F_{l-1} W_V
    F_l  = gamma Z_l + phi(Z_l W_1) W_2
    Yhat = pool(F_L) W_U + b

This module is the plain form, the one to read and to trust;
:mod:`sklearn_restf._model.forward` evaluates the same function in a cheaper order.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

LAYER_NORM_EPS = 1e-5

ACTIVATIONS = {
    "relu": functional.relu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "tanh": torch.tanh,
    "leaky_relu": functional.leaky_relu,
    "identity": lambda x: x,
}


@dataclass(frozen=True)
class ModuleConfig:
    """Everything that fixes the function computed by a module, except its weights."""

    __module__ = "sklearn_restf._model"  # lasting: saved models name it

    n_tokens: int | None  # None: ragged samples, any number of tokens
    token_width: int  # numbers per token as they come in
    d_model: int  # token width D inside
    n_outputs: int
    n_features: int  # columns of a table, or numbers per token
    embedding: str  # "none", "shared" (one linear map) or "grouped" (one per token)
    n_layers: int = 1
    n_heads: int = 1
    d_qk: int = 0
    d_ff: int = 32
    activation: str = "relu"
    layer_norm: bool = False
    causal: bool = False
    pooling: str = "mean"
    positional_encoding: str | None = None
    max_tokens: int = 0  # length of the learned position table
    residual_beta: float = 1.0
    ffn_residual_beta: float = 1.0


@dataclass(frozen=True)
class LayerOutput:
    """Intermediate results of one layer, kept for diagnostics and displays."""

    attention: Tensor  # A, (N, H, T, T)
    attention_output: Tensor  # A F W_V (W_O), (N, T, D)
    Z: Tensor  # (N, T, D)
    F: Tensor  # (N, T, D)


class Block(nn.Module):
    """One layer: attention and feed-forward network, each with a residual connection."""

    def __init__(self, config: ModuleConfig) -> None:
        super().__init__()
        self.config = config
        D, M, HK = config.d_model, config.d_ff, config.n_heads * config.d_qk
        shapes: dict[str, tuple[int, ...]] = {"query": (D, HK), "key": (D, HK), "value": (D, D)}
        if config.n_heads > 1 or config.layer_norm:
            shapes["output"] = (D, D)
        shapes |= {"ffn_in": (D, M), "ffn_out": (M, D)}
        if config.layer_norm:  # GPT-2's block: normalised inputs, and biases
            shapes |= {f"{name}_bias": shape[1:] for name, shape in shapes.items()}
            for norm in ("norm1", "norm2"):
                shapes |= {f"{norm}_weight": (D,), f"{norm}_bias": (D,)}
        for name, shape in shapes.items():
            self.register_parameter(name, nn.Parameter(torch.zeros(shape, dtype=torch.float64)))

    def normalise(self, x_NTD: Tensor, which: str) -> Tensor:
        """Apply LayerNorm ``which`` ("norm1" or "norm2") where the config asks for it."""
        if not self.config.layer_norm:
            return x_NTD
        weight, bias = getattr(self, f"{which}_weight"), getattr(self, f"{which}_bias")
        return functional.layer_norm(x_NTD, weight.shape, weight, bias, LAYER_NORM_EPS)

    def linear(self, x: Tensor, name: str) -> Tensor:
        """Return ``x @ W``, plus the bias where there is one."""
        y = x @ getattr(self, name)
        return y + getattr(self, f"{name}_bias") if self.config.layer_norm else y

    def forward(self, F_NTD: Tensor, allowed: Tensor | None) -> LayerOutput:
        """Evaluate the layer; ``allowed`` (broadcast to N, H, T, T) says who may see whom."""
        N, T, D = F_NTD.shape
        H, K = self.config.n_heads, self.config.d_qk
        X_NTD = self.normalise(F_NTD, "norm1")
        q_NHTK = self.linear(X_NTD, "query").view(N, T, H, K).transpose(1, 2)
        k_NHTK = self.linear(X_NTD, "key").view(N, T, H, K).transpose(1, 2)
        v_NHTV = self.linear(X_NTD, "value").view(N, T, H, D // H).transpose(1, 2)

        logits_NHTT = q_NHTK @ k_NHTK.transpose(2, 3) / math.sqrt(K)
        if allowed is not None:
            logits_NHTT = logits_NHTT.masked_fill(~allowed, -torch.inf)
        A_NHTT = torch.softmax(logits_NHTT, dim=-1)

        attended_NTD = (A_NHTT @ v_NHTV).transpose(1, 2).reshape(N, T, D)
        if hasattr(self, "output"):
            attended_NTD = self.linear(attended_NTD, "output")
        Z_NTD = self.config.residual_beta * F_NTD + attended_NTD

        hidden_NTM = self.linear(self.normalise(Z_NTD, "norm2"), "ffn_in")
        hidden_NTM = ACTIVATIONS[self.config.activation](hidden_NTM)
        F_NTD = self.config.ffn_residual_beta * Z_NTD + self.linear(hidden_NTM, "ffn_out")
        return LayerOutput(A_NHTT, attended_NTD, Z_NTD, F_NTD)


class ResidualTransformer(nn.Module):
    """Tokens in, predictions out.

    Parameters
    ----------
    config : ModuleConfig
        Shapes and options. The weights are zero until
        :func:`sklearn_restf._model.initialization.initialise` draws them.
    """

    def __init__(self, config: ModuleConfig) -> None:
        super().__init__()
        self.config = config
        G, W, D = config.n_tokens, config.token_width, config.d_model
        shapes: dict[str, tuple[int, ...]] = {}
        if config.embedding == "shared":
            shapes = {"embedding_weight": (W, D), "embedding_bias": (D,)}
        elif config.embedding == "grouped":
            assert G is not None  # tables always have a fixed number of tokens
            shapes = {"embedding_weight": (G, W, D), "embedding_bias": (G, D)}
        if config.positional_encoding == "learned":
            shapes["position"] = (config.max_tokens, D)
        for name, shape in shapes.items():
            self.register_parameter(name, nn.Parameter(torch.zeros(shape, dtype=torch.float64)))
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.n_layers))
        readout_width = D * G if config.pooling == "flatten" and G is not None else D
        self.readout = nn.Parameter(
            torch.zeros((readout_width, config.n_outputs), dtype=torch.float64)
        )
        self.readout_bias = nn.Parameter(torch.zeros(config.n_outputs, dtype=torch.float64))

    def embed(self, x_NTW: Tensor) -> Tensor:
        """Return F_0: the tokens, embedded and with positions where asked for."""
        if self.config.embedding == "shared":
            F_NTD = x_NTW @ self.embedding_weight + self.embedding_bias
        elif self.config.embedding == "grouped":
            F_NTD = torch.einsum("ntw,twd->ntd", x_NTW, self.embedding_weight)
            F_NTD = F_NTD + self.embedding_bias
        else:
            F_NTD = x_NTW
        T = F_NTD.shape[1]
        if self.config.positional_encoding == "learned":
            F_NTD = F_NTD + self.position[:T]
        elif self.config.positional_encoding == "sinusoidal":
            D = self.config.d_model
            F_NTD = F_NTD + position_table(T, D, F_NTD.dtype, str(F_NTD.device))
        return F_NTD

    def layers(self, x_NTW: Tensor, mask_NT: Tensor | None = None) -> list[LayerOutput]:
        """Return the intermediate results of every layer."""
        F_NTD = self.embed(x_NTW)
        allowed = allowed_attention(F_NTD.shape[1], mask_NT, self.config.causal, F_NTD.device)
        outputs = []
        for block in self.blocks:
            outputs.append(block(F_NTD, allowed))
            F_NTD = outputs[-1].F
        return outputs

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return predictions (N, C), or (N, T, C) with ``pooling="none"``.

        Parameters
        ----------
        x : Tensor of shape (N, T, W)
            Tokens, right-padded where samples have unequal lengths.
        mask : bool Tensor of shape (N, T), optional
            True for real tokens.
        """
        F_NTD = self.layers(x, mask)[-1].F
        return pool(F_NTD, mask, self.config.pooling) @ self.readout + self.readout_bias


def pool(F_NTD: Tensor, mask_NT: Tensor | None, pooling: str) -> Tensor:
    """Reduce the tokens of each sample to what the readout looks at."""
    if pooling == "none":
        return F_NTD
    if pooling == "flatten":
        return F_NTD.flatten(1)
    if pooling == "last":
        return F_NTD[:, -1] if mask_NT is None else F_NTD[last_token_index(mask_NT)]
    if mask_NT is None:
        return F_NTD.mean(1)
    # where, not multiplication: a padded token must not leak even if it is inf or NaN
    kept_NTD = torch.where(mask_NT[:, :, None], F_NTD, 0.0)
    return kept_NTD.sum(1) / mask_NT.sum(1, keepdim=True)


def last_token_index(mask_NT: Tensor) -> tuple[Tensor, Tensor]:
    """Index the last real token of every (right-padded) sample."""
    return torch.arange(len(mask_NT), device=mask_NT.device), mask_NT.sum(1) - 1


def allowed_attention(
    T: int, mask_NT: Tensor | None, causal: bool, device: torch.device
) -> Tensor | None:
    """Return which token (row) may attend to which (column), or None for "all to all"."""
    allowed = None
    if causal:
        # True on and below the diagonal: token t sees tokens s <= t
        allowed = torch.ones((1, 1, T, T), dtype=torch.bool, device=device).tril()
    if mask_NT is not None:
        keys = mask_NT[:, None, None, :]
        allowed = keys if allowed is None else allowed & keys
    return allowed


def sinusoidal_positions(T: int, D: int) -> np.ndarray:
    """Return the positional encoding of Vaswani et al. (2017), shape (T, D), float64."""
    columns = np.arange(D)
    angles = np.arange(T)[:, None] / 10000.0 ** (2 * (columns // 2) / D)
    return np.where(columns % 2 == 0, np.sin(angles), np.cos(angles))


@lru_cache(maxsize=8)
def position_table(T: int, D: int, dtype: torch.dtype, device: str) -> Tensor:
    """Return :func:`sinusoidal_positions` on a device, where it stays between iterations."""
    with torch.inference_mode(False):
        return torch.from_numpy(sinusoidal_positions(T, D)).to(dtype).to(device)
