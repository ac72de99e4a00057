"""Many models of one shape side by side: the model's equations with a leading model axis.

The same function as :mod:`sklearn_restf._model.forward`, for S models at once, each with its own
samples, weights and residual strengths. Suffixes as in :mod:`sklearn_restf._model.module`, with S
for the models; matrix products go over batches of S, or of S N samples.

Attention weights are kept transposed, keys before queries: torch's softmax over a short
last axis costs about 100 ns a row whatever its length, over any other axis a tenth of it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from sklearn_restf._model.forward import absorb_key
from sklearn_restf._model.module import (
    ACTIVATIONS,
    LAYER_NORM_EPS,
    ModuleConfig,
    ResidualTransformer,
    position_table,
)

Parameters = dict[str, Tensor]  # each with a leading model axis


@dataclass
class Strengths:
    """The residual strengths of every model, shaped to broadcast over (S, rows, D)."""

    beta: Tensor
    gamma: Tensor

    @classmethod
    def of(cls, beta: Tensor, gamma: Tensor) -> Strengths:
        """Take one number a model."""
        return cls(beta.view(-1, 1, 1), gamma.view(-1, 1, 1))

    def __getitem__(self, models: Any) -> Strengths:
        return Strengths(self.beta[models], self.gamma[models])


class ParameterViews:
    """Names and shapes of the parameters that a flat vector holds one after another."""

    def __init__(self, config: ModuleConfig) -> None:
        named = list(ResidualTransformer(config).named_parameters())
        self.names = [name for name, _ in named]
        self.shapes = [tuple(parameter.shape) for _, parameter in named]
        self.sizes = [parameter.numel() for _, parameter in named]

    def __call__(self, theta_SP: Tensor) -> Parameters:
        """Return the parameters of all models as views of their flat vectors."""
        pieces = torch.split(theta_SP, self.sizes, dim=1)
        return {
            name: piece.view(-1, *shape)
            for name, piece, shape in zip(self.names, pieces, self.shapes, strict=True)
        }


def forward(
    config: ModuleConfig,
    parameters: Parameters,
    strengths: Strengths,
    x_SNTW: Tensor,
    mask_SNT: Tensor | None,
) -> Tensor:
    """Return the predictions (S, N, C), or (S, N, T, C) with ``pooling="none"``."""
    S, N, T, _ = x_SNTW.shape
    D = config.d_model
    F = embed(config, parameters, x_SNTW).reshape(S, N * T, D)
    forbidden = forbidden_attention(config, x_SNTW.shape[:3], mask_SNT, x_SNTW.device)
    blocks = [Layer(config, parameters, i, (S, N, T)) for i in range(config.n_layers)]
    for block in blocks[:-1]:
        Z = block.attend_all(F, strengths.beta, forbidden)
        F = torch.addcmul(block.linear(block.hidden(Z), "ffn_out"), Z, strengths.gamma)

    last, gamma = blocks[-1], strengths.gamma
    readout, bias = parameters["readout"], parameters["readout_bias"][:, None]
    if config.pooling == "last":
        Z = last.attend_last(F, strengths.beta, mask_SNT)
        F = torch.addcmul(last.linear(last.hidden(Z), "ffn_out"), Z, gamma)
        return torch.baddbmm(bias, F, readout)
    Z = last.attend_all(F, strengths.beta, forbidden)
    if config.pooling == "mean":
        Z_SND = mean_of_tokens(Z.view(S, N, T, D), mask_SNT)
        H_SNM = mean_of_tokens(last.hidden(Z).view(S, N, T, -1), mask_SNT)
        F = torch.addcmul(last.linear(H_SNM, "ffn_out"), Z_SND, gamma)
        return torch.baddbmm(bias, F, readout)
    if config.pooling == "none":
        F = torch.addcmul(last.linear(last.hidden(Z), "ffn_out"), Z, gamma)
        return torch.baddbmm(bias, F, readout).view(S, N, T, -1)
    return last.flat_readout(Z, gamma, readout, bias)


def embed(config: ModuleConfig, parameters: Parameters, x_SNTW: Tensor) -> Tensor:
    """Return F_0 (S, N, T, D)."""
    S, N, T, W = x_SNTW.shape
    F = x_SNTW
    if config.embedding == "shared":
        weight, bias = parameters["embedding_weight"], parameters["embedding_bias"]
        F = torch.baddbmm(bias[:, None], x_SNTW.reshape(S, N * T, W), weight).view(S, N, T, -1)
    elif config.embedding == "grouped":
        weight, bias = parameters["embedding_weight"], parameters["embedding_bias"]
        F = torch.einsum("sntw,stwd->sntd", x_SNTW, weight) + bias[:, None]
    if config.positional_encoding == "learned":
        F = F + parameters["position"][:, None, :T]
    elif config.positional_encoding == "sinusoidal":
        F = F + position_table(T, config.d_model, F.dtype, str(F.device))
    return F


def forbidden_attention(
    config: ModuleConfig, shape: torch.Size, mask_SNT: Tensor | None, device: torch.device
) -> Tensor | None:
    """Return where keys (second last axis) are hidden from queries (last), (S N or 1, T, T)."""
    T = shape[2]
    forbidden = None
    if config.causal:
        forbidden = torch.ones((1, T, T), dtype=torch.bool, device=device).tril(-1)
    if mask_SNT is not None:
        padded = ~mask_SNT.reshape(-1, T, 1)
        forbidden = padded if forbidden is None else forbidden | padded
    return forbidden


def mean_of_tokens(F_SNTD: Tensor, mask_SNT: Tensor | None) -> Tensor:
    """Return the mean over real tokens, (S, N, D)."""
    if mask_SNT is None:
        return F_SNTD.mean(2)
    kept = torch.where(mask_SNT[..., None], F_SNTD, 0.0)
    return kept.sum(2) / mask_SNT.sum(2, keepdim=True)


class Layer:
    """One layer of S models; rows are (S, N T, D)."""

    def __init__(
        self, config: ModuleConfig, parameters: Parameters, index: int, shape: tuple[int, int, int]
    ) -> None:
        self.config, self.parameters, self.shape = config, parameters, shape
        self.prefix = f"blocks.{index}."

    def __getitem__(self, name: str) -> Tensor:
        return self.parameters[self.prefix + name]

    def normalise(self, F: Tensor, which: str) -> Tensor:
        """Apply LayerNorm where the config asks for it."""
        if not self.config.layer_norm:
            return F
        normal = functional.layer_norm(F, F.shape[-1:], eps=LAYER_NORM_EPS)
        return torch.addcmul(
            self[f"{which}_bias"][:, None], normal, self[f"{which}_weight"][:, None]
        )

    def linear(self, rows: Tensor, name: str) -> Tensor:
        """Return ``rows @ W``, plus the bias where there is one."""
        if self.config.layer_norm:
            return torch.baddbmm(self[f"{name}_bias"][:, None], rows, self[name])
        return torch.bmm(rows, self[name])

    def add_residual(self, attended: Tensor, F: Tensor, beta: Tensor) -> Tensor:
        """Return Z of what the heads saw."""
        if self.config.n_heads > 1 or self.config.layer_norm:
            attended = self.linear(attended, "output")
        return torch.addcmul(attended, F, beta)

    def attend_all(self, F: Tensor, beta: Tensor, forbidden: Tensor | None) -> Tensor:
        """Return Z for every token."""
        (S, N, T), D = self.shape, F.shape[-1]
        H, K = self.config.n_heads, self.config.d_qk
        X = self.normalise(F, "norm1")
        if H == 1 and not self.config.layer_norm and absorb_key(T, D, K):
            key_query = torch.bmm(self["key"], (self["query"] / math.sqrt(K)).transpose(1, 2))
            keys, queries = torch.bmm(X, key_query).view(S * N, T, D), X.view(S * N, T, D)
        else:
            # a key bias shifts all logits of a query alike: softmax ignores it
            keys = self.heads(torch.bmm(X, self["key"]))
            queries = self.heads(self.linear(X, "query") / math.sqrt(K))
        logits = torch.bmm(keys, queries.transpose(1, 2))
        if forbidden is not None:
            logits = logits.view(S * N, H, T, T).masked_fill(forbidden[:, None], -torch.inf)
            logits = logits.view(S * N * H, T, T)
        A = torch.softmax(logits, dim=1)
        attended = torch.bmm(A.transpose(1, 2), self.heads(self.linear(X, "value")))
        if H > 1:
            attended = attended.view(S * N, H, T, -1).transpose(1, 2)
        return self.add_residual(attended.reshape(S, N * T, D), F, beta)

    def heads(self, rows: Tensor) -> Tensor:
        """Split the last axis into heads: (S N H, T, width of one head)."""
        S, N, T = self.shape
        H = self.config.n_heads
        if H == 1:
            return rows.view(S * N, T, -1)
        return rows.view(S * N, T, H, -1).transpose(1, 2).reshape(S * N * H, T, -1)

    def attend_last(self, F: Tensor, beta: Tensor, mask_SNT: Tensor | None) -> Tensor:
        """Return Z (S, N, D) for the last real token of every sample, its only query."""
        (S, N, T), D = self.shape, F.shape[-1]
        H, K = self.config.n_heads, self.config.d_qk
        X = self.normalise(F, "norm1")
        F_last = last_tokens(F.view(S, N, T, D), mask_SNT)
        X_last = F_last if X is F else last_tokens(X.view(S, N, T, D), mask_SNT)
        query = (self.linear(X_last, "query") / math.sqrt(K)).view(S, N, H, K)
        # (q W_K^T) F^T: no key projection of all tokens
        key_SDHK = self["key"].view(S, D, H, K)
        query_SNHD = torch.einsum("snhk,sdhk->snhd", query, key_SDHK)
        X_tokens = X.view(S * N, T, D)
        logits = torch.bmm(query_SNHD.reshape(S * N, H, D), X_tokens.transpose(1, 2))
        if mask_SNT is not None:
            logits = logits.masked_fill(~mask_SNT.view(S * N, 1, T), -torch.inf)
        context_SNHD = torch.bmm(torch.softmax(logits, -1), X_tokens).view(S, N, H, D)
        value_SDHV = self["value"].view(S, D, H, D // H)
        attended = torch.einsum("snhd,sdhv->snhv", context_SNHD, value_SDHV).reshape(S, N, D)
        if self.config.layer_norm:  # attention weights sum to one
            attended = attended + self["value_bias"][:, None]
        return self.add_residual(attended, F_last, beta)

    def hidden(self, Z: Tensor) -> Tensor:
        """Return phi(Z W_1)."""
        before = self.linear(self.normalise(Z, "norm2"), "ffn_in")
        if self.config.activation == "relu":
            return torch.relu_(before)
        return ACTIVATIONS[self.config.activation](before)

    def flat_readout(self, Z: Tensor, gamma: Tensor, readout: Tensor, bias: Tensor) -> Tensor:
        """Return the readout of all tokens side by side, W_2 absorbed when that is cheaper."""
        (S, N, T), D = self.shape, Z.shape[-1]
        M, C = self.config.d_ff, self.config.n_outputs
        H = self.hidden(Z)
        if N * T * C * (D + M) + T * M * D * C > N * T * D * (M + C):
            F = torch.addcmul(self.linear(H, "ffn_out"), Z, gamma)
            return torch.baddbmm(bias, F.view(S, N, T * D), readout)
        readout_STDC = readout.view(S, T, D, C)
        combined = torch.matmul(self["ffn_out"][:, None], readout_STDC).view(S, T * M, C)
        y = torch.baddbmm(bias, Z.view(S, N, T * D), gamma * readout)
        y = torch.baddbmm(y, H.view(S, N, T * M), combined)
        if self.config.layer_norm:
            y = y + torch.bmm(self["ffn_out_bias"][:, None], readout_STDC.sum(1))
        return y


def last_tokens(F_SNTD: Tensor, mask_SNT: Tensor | None) -> Tensor:
    """Return the last real token of every sample, (S, N, D)."""
    if mask_SNT is None:
        return F_SNTD[:, :, -1]
    index = (mask_SNT.sum(2) - 1)[..., None, None].expand(-1, -1, 1, F_SNTD.shape[-1])
    return F_SNTD.gather(2, index)[:, :, 0]
