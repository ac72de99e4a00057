"""Closed-form gradient of many one-layer, one-head models side by side.

The formulas of :mod:`sklearn_restf._fused` with a leading model axis and transposed attention
weights (see :mod:`sklearn_restf._sweep_module`): with L = K F^T, K = F M, A = softmax of L
over its first axis (keys), C = A^T F, Z = beta F + C W_V, P = Z W_1, H = phi(P)::

    G_W1 = Z^T G_P       G_Z += G_P W_1^T      G_WV = C^T G_Z      G_C = G_Z W_V^T
    G_A  = F G_C^T       G_L = A o (G_A - colsum(A o G_A))
    G_K  = G_L F         G_M = F^T G_K         with M = W_K W_Q^T / sqrt(d_qk)

Rows are (S, N T, width); intermediates live in buffers reused by every round.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sklearn_restf._compute import absorb_readout
from sklearn_restf._fused import is_supported as is_one_layer
from sklearn_restf._fused import relu_backward
from sklearn_restf._module import ACTIVATIONS, ModuleConfig
from sklearn_restf._sweep_module import (
    Parameters,
    Strengths,
    embed,
    forbidden_attention,
    is_block_diagonal,
)


def is_supported(config: ModuleConfig) -> bool:
    """Tell whether the closed form covers a model."""
    return is_one_layer(config) and config.pooling != "last"


class StackedLayer:
    """Forward pass and gradient of S models.

    Parameters
    ----------
    config : ModuleConfig
        The shape that all models share.
    strengths : Strengths
        Their residual strengths.
    x : Tensor of shape (S, N, T, W)
        Their samples.
    mask : bool Tensor of shape (S, N, T) or None
        True for real tokens.
    """

    def __init__(
        self, config: ModuleConfig, strengths: Strengths, x: Tensor, mask: Tensor | None
    ) -> None:
        self.config, self.strengths, self.x, self.mask = config, strengths, x, mask
        self.S, self.N, self.T = x.shape[:3]
        # attention matrices (one a pack) and their size
        self.pack = packed_samples(self.T)
        self.packs, self.size = self.S * self.N // self.pack, self.pack * self.T
        self.forbidden = self._forbidden()
        self.lengths = None if mask is None else mask.sum(2, keepdim=True)
        self.constant_input = config.embedding == "none" and config.positional_encoding != "learned"
        self._input: Tensor | None = None
        self._buffers: dict[str, Tensor] = {}

    def _forbidden(self) -> Tensor | None:
        """Return where keys are hidden from queries: padded, later, or of another sample."""
        hidden = forbidden_attention(self.config, self.x.shape[:3], self.mask, self.x.device)
        if self.pack == 1:
            return hidden
        g, T = self.pack, self.T
        same = torch.eye(g, dtype=torch.bool, device=self.x.device)[:, None, :, None]
        if hidden is None:
            return ~same.expand(g, T, g, T).reshape(1, g * T, g * T)
        hidden = hidden.expand(max(len(hidden), g), T, T).reshape(-1, g, T, 1, T)
        return (hidden | ~same).view(-1, g * T, g * T)

    def buffer(self, name: str, *shape: int) -> Tensor:
        """Return a reusable uninitialised tensor."""
        if name not in self._buffers:
            self._buffers[name] = self.x.new_empty(shape)
        return self._buffers[name]

    def _embedded(self, weights: Parameters) -> Tensor:
        if self._input is not None:
            return self._input
        F = embed(self.config, weights, self.x).reshape(self.S, self.N * self.T, -1).contiguous()
        if self.constant_input:
            self._input = F
        return F

    # --- forward --------------------------------------------------------------------

    def forward(self, weights: Parameters) -> Tensor:
        """Return the predictions (S, N, C), or (S, N, T, C) with ``pooling="none"``."""
        S, _N, _T, config = self.S, self.N, self.T, self.config
        self.weights = weights
        self.F = F = self._embedded(weights)
        R, D = F.shape[1:]
        W_K, W_V, W_1 = (weights[f"blocks.0.{name}"] for name in ("key", "value", "ffn_in"))
        self.scaled_query = weights["blocks.0.query"] / math.sqrt(config.d_qk)
        self.M = torch.bmm(W_K, self.scaled_query.transpose(1, 2))
        self.K = torch.bmm(F, self.M, out=self.buffer("K", S, R, D))
        B, Q = self.packs, self.size
        tokens = F.view(B, Q, D)
        L = self.buffer("L", B, Q, Q)
        torch.bmm(self.K.view(B, Q, D), tokens.transpose(1, 2), out=L)
        if self.forbidden is not None:
            L.masked_fill_(self.forbidden, -torch.inf)
        self.A = torch.softmax(L, 1, out=self.buffer("A", B, Q, Q))
        C = self.buffer("C", S, R, D)
        torch.bmm(self.A.transpose(1, 2), tokens, out=C.view(B, Q, D))
        self.C = C
        self.Z = torch.mul(F, self.strengths.beta, out=self.buffer("Z", S, R, D))
        self.Z.baddbmm_(C, W_V)
        self.P = torch.bmm(self.Z, W_1, out=self.buffer("P", S, R, config.d_ff))
        if config.activation == "relu":
            self.H = self.P.relu_()
        else:
            self.H = ACTIVATIONS[config.activation](self.P)
        return self._read_out()

    def _read_out(self) -> Tensor:
        S, N, T, gamma = self.S, self.N, self.T, self.strengths.gamma
        W_2, W_U = self.weights["blocks.0.ffn_out"], self.weights["readout"]
        bias = self.weights["readout_bias"][:, None]
        D, M, C = self.Z.shape[2], self.H.shape[2], W_U.shape[2]
        if self.config.pooling == "mean":
            self.H_pooled = self._mean(self.H)
            self.F_pooled = torch.mul(self._mean(self.Z), gamma).baddbmm_(self.H_pooled, W_2)
            return torch.baddbmm(bias, self.F_pooled, W_U)
        flatten = self.config.pooling == "flatten"
        self.rows = (S, N, T * D) if flatten else (S, N * T, D)
        tokens = T if flatten else 1  # matrices W_2 W_U
        self.absorbed = absorb_readout(self.config, N, T)
        if self.absorbed:
            W_2U = torch.matmul(W_2[:, None], W_U.view(S, tokens, D, C))
            self.W_2U = W_2U.view(S, tokens * M, C)
            # U^T Z^T: products with a long last axis are faster than with a short one
            Z, H = self.Z.view(self.rows), self.H.view(S, self.rows[1], -1)
            prediction = torch.bmm((gamma * W_U).transpose(1, 2), Z.transpose(1, 2))
            prediction.baddbmm_(self.W_2U.transpose(1, 2), H.transpose(1, 2))
            prediction = prediction.transpose(1, 2) + bias
        else:
            self.F_out = torch.mul(self.Z, gamma, out=self.buffer("F_out", S, N * T, D))
            self.F_out.baddbmm_(self.H, W_2)
            prediction = torch.baddbmm(bias, self.F_out.view(self.rows), W_U)
        return prediction if flatten else prediction.view(S, N, T, C)

    def _mean(self, rows: Tensor) -> Tensor:
        """Return the mean over the real tokens of every sample."""
        values = rows.view(self.S, self.N, self.T, -1)
        if self.mask is None:
            return values.mean(2)
        return torch.where(self.mask[..., None], values, 0.0).sum(2) / self.lengths

    # --- backward -------------------------------------------------------------------

    def backward(self, slope: Tensor, gradients: Parameters) -> None:
        """Write the gradient; `slope` is the derivative of the losses in the predictions."""
        slope = slope.reshape(self.S, -1, slope.shape[-1])
        gradients["readout_bias"].copy_(slope.sum(1))
        G_Z, G_P = self._back_read_out(slope, gradients)
        gradients["blocks.0.ffn_in"].copy_(torch.bmm(self.Z.transpose(1, 2), G_P))
        transposed = self.buffer("G_Z transposed", self.S, G_Z.shape[2], G_Z.shape[1])
        W_1 = self.weights["blocks.0.ffn_in"]
        G_Z.add_(torch.bmm(W_1, G_P.transpose(1, 2), out=transposed).transpose(1, 2))
        self._back_attention(G_Z, gradients)

    def _back_read_out(self, slope: Tensor, gradients: Parameters) -> tuple[Tensor, Tensor]:
        """Return the gradients in Z, as far as it is read out directly, and in P."""
        S, N, T, gamma = self.S, self.N, self.T, self.strengths.gamma
        W_2, W_U = self.weights["blocks.0.ffn_out"], self.weights["readout"]
        D, M, C = self.Z.shape[2], self.H.shape[2], W_U.shape[2]
        G_Z = self.buffer("G_Z", S, N * T, D)
        G_F = outer(slope, W_U.transpose(1, 2).contiguous())
        if self.config.pooling == "mean":
            gradients["readout"].copy_(torch.bmm(self.F_pooled.transpose(1, 2), slope))
            gradients["blocks.0.ffn_out"].copy_(torch.bmm(self.H_pooled.transpose(1, 2), G_F))
            G_H = torch.bmm(G_F, W_2.transpose(1, 2))
            G_Z.view(S, N, T, D).copy_(self._spread(G_F * gamma))
            return G_Z, self._back_activation(self._spread(G_H))
        if self.absorbed:
            slope_T = slope.transpose(1, 2)
            G_U = torch.bmm(slope_T, self.Z.view(self.rows)).transpose(1, 2)
            gradients["readout"].copy_(G_U).mul_(gamma)
            U = W_U.reshape(S, -1, D, C)
            G_W2U = torch.bmm(slope_T, self.H.view(S, self.rows[1], -1)).transpose(1, 2)
            G_W2U = G_W2U.reshape(S, -1, M, C)
            G_W2 = torch.matmul(G_W2U, U.transpose(2, 3)).sum(1)
            gradients["blocks.0.ffn_out"].copy_(G_W2)
            gradients["readout"].add_(
                torch.matmul(W_2.transpose(1, 2)[:, None], G_W2U).view(S, -1, C)
            )
            G_H = self.buffer("G_H", S, N * T, M)
            outer(slope, self.W_2U.transpose(1, 2), out=G_H.view(S, self.rows[1], -1))
            torch.mul(G_F, gamma, out=G_Z.view(G_F.shape))
            return G_Z, self._back_activation(G_H.view(S, N, T, M))
        G_F = G_F.view(S, N * T, D)
        G_U = torch.bmm(slope.transpose(1, 2), self.F_out.view(self.rows)).transpose(1, 2)
        gradients["readout"].copy_(G_U)
        gradients["blocks.0.ffn_out"].copy_(torch.bmm(self.H.transpose(1, 2), G_F))
        G_H = torch.bmm(G_F, W_2.transpose(1, 2), out=self.buffer("G_H", S, N * T, M))
        torch.mul(G_F, gamma, out=G_Z)
        return G_Z, self._back_activation(G_H.view(S, N, T, M))

    def _spread(self, G: Tensor) -> Tensor:
        """Spread a gradient of means over the tokens, to broadcast over (S, N, T, width)."""
        if self.lengths is None or self.mask is None:
            return (G / self.T)[:, :, None]
        return (G / self.lengths)[:, :, None] * self.mask[..., None]

    def _back_activation(self, G_H: Tensor) -> Tensor:
        """Return the gradient in P; `G_H` broadcasts to (S, N, T, M)."""
        activation, P, H = self.config.activation, self.P, self.H
        shape = (self.S, self.N, self.T, H.shape[2])
        if activation == "relu":  # in place of H, which is not needed any more
            H = H.view(shape)
            relu_backward(G_H.expand(shape), H, 0.0, grad_input=H)
            return H.view(self.H.shape)
        if activation == "tanh":
            return ((1.0 - H * H).view(shape) * G_H).view(H.shape)
        with torch.enable_grad():
            P = P.detach().requires_grad_()
            G_H = G_H.expand(shape).reshape(H.shape)
            (G_P,) = torch.autograd.grad(ACTIVATIONS[activation](P), P, G_H)
        return G_P

    def _back_attention(self, G_Z: Tensor, gradients: Parameters) -> None:
        S, N, T, B, Q = self.S, self.N, self.T, self.packs, self.size
        R, D = G_Z.shape[1:]
        W_K, W_V = self.weights["blocks.0.key"], self.weights["blocks.0.value"]
        tokens = self.F.view(B, Q, D)
        gradients["blocks.0.value"].copy_(torch.bmm(self.C.transpose(1, 2), G_Z))
        G_C = torch.bmm(G_Z, W_V.transpose(1, 2), out=self.buffer("G_C", S, R, D))
        G_C = G_C.view(B, Q, D)
        G_L = self.buffer("L", B, Q, Q)  # L itself is not needed any more
        torch.bmm(tokens, G_C.transpose(1, 2), out=G_L)
        G_L.mul_(self.A)
        G_L.addcmul_(self.A, G_L.sum(1, keepdim=True), value=-1.0)
        G_K = self.buffer("G_K", S, R, D)
        torch.bmm(G_L, tokens, out=G_K.view(B, Q, D))
        G_M = torch.bmm(self.F.transpose(1, 2), G_K)
        gradients["blocks.0.key"].copy_(torch.bmm(G_M, self.scaled_query))
        G_query = torch.bmm(G_M.transpose(1, 2), W_K).div_(math.sqrt(self.config.d_qk))
        gradients["blocks.0.query"].copy_(G_query)
        if self.constant_input:
            return
        G_F = self.buffer("G_F", B, Q, D)
        torch.bmm(self.A, G_C, out=G_F)
        G_F.baddbmm_(G_L.transpose(1, 2), self.K.view(B, Q, D))
        rows = G_F.view(S, R, D)
        rows.addcmul_(G_Z, self.strengths.beta).baddbmm_(G_K, self.M.transpose(1, 2))
        self._back_embedding(rows.view(S, N, T, D), gradients)

    def _back_embedding(self, G_F: Tensor, gradients: Parameters) -> None:
        S, N, T, D = G_F.shape
        config, W = self.config, self.x.shape[3]
        of_tokens = G_F.view(S, N, T * D).sum(1).view(S, T, D)
        if config.positional_encoding == "learned":
            gradients["position"].zero_()[:, :T].copy_(of_tokens)
        if config.embedding == "grouped":
            gradients["embedding_bias"].copy_(of_tokens)
            if is_block_diagonal(T, W):
                x, flat = self.x.view(S, N, T * W), G_F.view(S, N, T * D)
                blocks = torch.bmm(x.transpose(1, 2), flat).view(S, T, W, T, D)
                G_W = blocks.diagonal(dim1=1, dim2=3).permute(0, 3, 1, 2)
            else:
                G_W = torch.einsum("sntw,sntd->stwd", self.x, G_F)
            gradients["embedding_weight"].copy_(G_W)
        elif config.embedding == "shared":
            gradients["embedding_bias"].copy_(of_tokens.sum(1))
            x = self.x.reshape(S, N * T, W)
            G_W = torch.bmm(x.transpose(1, 2), G_F.reshape(S, N * T, D))
            gradients["embedding_weight"].copy_(G_W)


def packed_samples(T: int) -> int:
    """Return how many short samples share one attention matrix, hidden from each other.

    Below about 8 x 8, a product costs less as a part of a larger one than by itself.
    """
    return max(1, 8 // T)


def outer(left: Tensor, right: Tensor, out: Tensor | None = None) -> Tensor:
    """Return ``left @ right``; an outer product is one multiplication."""
    return (torch.mul if left.shape[2] == 1 else torch.bmm)(left, right, out=out)
