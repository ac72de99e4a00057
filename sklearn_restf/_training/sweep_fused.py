"""Closed-form gradient of many one-layer, one-head models side by side.

The formulas of :mod:`sklearn_restf._model.gradient` with a leading model axis and transposed
attention weights (see :mod:`sklearn_restf._training.sweep_module`): with L = K F^T, K = F M, A =
softmax of L over its first axis (keys), C = A^T F, Z = beta F + C W_V, P = Z W_1, H = phi(P)::

    G_W1 = Z^T G_P       G_Z += G_P W_1^T      G_WV = C^T G_Z      G_C = G_Z W_V^T
    G_A  = F G_C^T       G_L = A o (G_A - colsum(A o G_A))
    G_K  = G_L F         G_M = F^T G_K         with M = W_K W_Q^T / sqrt(d_qk)

Rows are (S, N T, width). Large intermediate results live in buffers that are reused: memory
taken anew costs more than the pass that fills it, and two jobs wait for each other there.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sklearn_restf._model.forward import absorb_readout
from sklearn_restf._model.gradient import is_supported as is_one_layer
from sklearn_restf._model.gradient import relu_backward
from sklearn_restf._model.matmul import products, silent
from sklearn_restf._model.module import ACTIVATIONS, ModuleConfig
from sklearn_restf._training.sweep_module import (
    Parameters,
    Strengths,
    embed,
    forbidden_attention,
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
    buffers : dict of str to Tensor
        Memory to use, to which more is added; of a layer that is not needed any more, or empty.
    """

    def __init__(
        self,
        config: ModuleConfig,
        strengths: Strengths,
        x: Tensor,
        mask: Tensor | None,
        buffers: dict[str, Tensor],
    ) -> None:
        self.config, self.buffers = config, buffers
        self.constant_input = config.embedding == "none" and config.positional_encoding != "learned"
        self.strengths, self.x, self.mask = strengths, x, mask
        self.S, self.N, self.T = x.shape[:3]
        self.forbidden = forbidden_attention(self.config, x.shape[:3], mask, x.device)
        self.lengths = None if mask is None else mask.sum(2, keepdim=True)
        self.saved: dict[str, Tensor] = {}  # by model, for the gradient
        self._input: Tensor | None = None
        self._buffers_again: dict[str, Tensor] = {}

    def buffer(self, name: str, *shape: int) -> Tensor:
        """Return memory of a shape; what it held under this name is gone."""
        size = math.prod(shape)
        if name not in self.buffers or len(self.buffers[name]) < size:
            self.buffers[name] = self.x.new_empty(size)
        return self.buffers[name][:size].view(shape)

    def _embedded(self, weights: Parameters) -> Tensor:
        if self._input is not None:
            return self._input
        F = embed(self.config, weights, self.x).reshape(self.S, self.N * self.T, -1).contiguous()
        if self.constant_input:
            self._input = F
        return F

    # --- forward --------------------------------------------------------------------

    @silent
    def forward(self, weights: Parameters) -> Tensor:
        """Return the predictions (S, N, C), or (S, N, T, C) with ``pooling="none"``."""
        S, config = self.S, self.config
        self.weights = weights
        F = self._embedded(weights)
        R, D = F.shape[1:]
        B, T = S * self.N, self.T
        W_K, W_V, W_1 = (weights[f"blocks.0.{name}"] for name in ("key", "value", "ffn_in"))
        scaled_query = weights["blocks.0.query"] / math.sqrt(config.d_qk)
        M = torch.bmm(W_K, scaled_query.transpose(1, 2))
        K = products(F, M, out=self.buffer("K", S, R, D))
        tokens = F.view(B, T, D)
        L = products(K.view(B, T, D), tokens.transpose(1, 2), out=self.buffer("L", B, T, T))
        if self.forbidden is not None:
            L.masked_fill_(self.forbidden, -torch.inf)
        A = torch.softmax(L, 1, out=self.buffer("A", B, T, T))
        C = products(A.transpose(1, 2), tokens, out=self.buffer("C", B, T, D)).view(S, R, D)
        Z = products(C, W_V, out=self.buffer("Z", S, R, D)).addcmul_(F, self.strengths.beta)
        P = products(Z, W_1, out=self.buffer("P", S, R, config.d_ff))
        H = P.relu_() if config.activation == "relu" else ACTIVATIONS[config.activation](P)
        self.saved = {"F": F, "query": scaled_query, "M": M, "K": K, "A": A.view(S, -1, T, T)}
        self.saved |= {"C": C, "Z": Z, "H": H} | ({} if H is P else {"P": P})
        return self._read_out(Z, H)

    def forward_again(self, weights: Parameters, rows: Tensor) -> Tensor:
        """Evaluate the models in `rows` at other weights, which the gradient then belongs to.

        `weights` holds theirs only; the caller has put them into those of all models.
        """
        mask = None if self.mask is None else self.mask[rows]
        again = StackedLayer(
            self.config, self.strengths[rows], self.x[rows], mask, self._buffers_again
        )
        prediction = again.forward(weights)
        for name, value in again.saved.items():
            if not (name == "F" and self.constant_input):
                self.saved[name][rows] = value
        return prediction

    def _read_out(self, Z: Tensor, H: Tensor) -> Tensor:
        S, N, T, gamma = self.S, self.N, self.T, self.strengths.gamma
        W_2, W_U = self.weights["blocks.0.ffn_out"], self.weights["readout"]
        bias = self.weights["readout_bias"][:, None]
        D, M, C = Z.shape[2], H.shape[2], W_U.shape[2]
        if self.config.pooling == "mean":
            H_mean = self._mean(H)
            F_mean = torch.mul(self._mean(Z), gamma).baddbmm_(H_mean, W_2)
            self.saved |= {"H_mean": H_mean, "F_mean": F_mean}
            return torch.baddbmm(bias, F_mean, W_U)
        flatten = self.config.pooling == "flatten"
        rows = (S, N, T * D) if flatten else (S, N * T, D)
        tokens = T if flatten else 1  # matrices W_2 W_U
        self.absorbed = absorb_readout(self.config, N, T)
        if self.absorbed:
            W_2U = torch.matmul(W_2[:, None], W_U.view(S, tokens, D, C)).view(S, tokens * M, C)
            self.saved["W_2U"] = W_2U
            prediction = products(Z.view(rows), gamma * W_U)
            prediction += products(H.view(S, rows[1], -1), W_2U)
            prediction += bias
        else:
            F_out = products(H, W_2, out=self.buffer("F_out", S, N * T, D)).addcmul_(Z, gamma)
            self.saved["F_out"] = F_out
            prediction = torch.baddbmm(bias, F_out.view(rows), W_U)
        return prediction if flatten else prediction.view(S, N, T, C)

    def _mean(self, rows: Tensor) -> Tensor:
        """Return the mean over the real tokens of every sample."""
        values = rows.view(self.S, self.N, self.T, -1)
        if self.mask is None:
            return values.mean(2)
        return torch.where(self.mask[..., None], values, 0.0).sum(2) / self.lengths

    # --- backward -------------------------------------------------------------------

    @silent
    def backward(self, slope: Tensor, gradients: Parameters) -> None:
        """Write the gradient; `slope` is the derivative of the losses in the predictions."""
        slope = slope.reshape(self.S, -1, slope.shape[-1])
        gradients["readout_bias"].copy_(slope.sum(1))
        if self.config.pooling == "mean":
            G_Z = self._back_mean(slope, gradients)
        elif self.absorbed:
            G_Z = self._back_absorbed(slope, gradients)
        else:
            G_Z = self._back_tokens(slope, gradients)
        self._back_attention(G_Z, gradients)

    def _back_mean(self, slope: Tensor, gradients: Parameters) -> Tensor:
        """Return the gradient in Z where the tokens' mean is read out."""
        saved, W_2, W_U = self.saved, self.weights["blocks.0.ffn_out"], self.weights["readout"]
        products(saved["F_mean"].transpose(1, 2), slope, out=gradients["readout"])
        G_F = torch.bmm(slope, W_U.transpose(1, 2))
        products(saved["H_mean"].transpose(1, 2), G_F, out=gradients["blocks.0.ffn_out"])
        G_H = self._spread(torch.bmm(G_F, W_2.transpose(1, 2)))
        G_Z = self._back_hidden(self._back_activation(G_H), gradients)
        G_Z.view(self.S, self.N, self.T, -1).add_(self._spread(G_F * self.strengths.gamma))
        return G_Z

    def _back_tokens(self, slope: Tensor, gradients: Parameters) -> Tensor:
        """Return the gradient in Z where every token is read out."""
        saved, W_2, W_U = self.saved, self.weights["blocks.0.ffn_out"], self.weights["readout"]
        F_out, H = saved["F_out"], saved["H"]
        S, R, D = F_out.shape
        rows = F_out.view(S, slope.shape[1], -1)
        products(rows.transpose(1, 2), slope, out=gradients["readout"])
        G_F = products(slope, W_U.transpose(1, 2)).view(S, R, D)
        products(H.transpose(1, 2), G_F, out=gradients["blocks.0.ffn_out"])
        G_H = products(G_F, W_2.transpose(1, 2), out=self.buffer("G_H", *H.shape))
        G_P = self._back_activation(G_H.view(S, self.N, self.T, -1))
        G_Z = self._back_hidden(G_P, gradients)
        return G_Z.addcmul_(G_F, self.strengths.gamma)

    def _back_absorbed(self, slope: Tensor, gradients: Parameters) -> Tensor:
        """Return the gradient in Z where every token is read out, W_2 absorbed."""
        saved, W_2, W_U = self.saved, self.weights["blocks.0.ffn_out"], self.weights["readout"]
        Z, H, W_2U, gamma = saved["Z"], saved["H"], saved["W_2U"], self.strengths.gamma
        (S, R, D), M, C = Z.shape, H.shape[2], slope.shape[2]
        rows = slope.shape[1]  # predictions a model
        G_U = gradients["readout"]
        products(Z.view(S, rows, -1).transpose(1, 2), slope, out=G_U).mul_(gamma)
        H_rows = H.view(S, rows, -1).transpose(1, 2)
        G_W2U = products(H_rows, slope).view(S, -1, M, C)
        U = W_U.reshape(S, -1, D, C)
        gradients["blocks.0.ffn_out"].copy_(torch.matmul(G_W2U, U.transpose(2, 3)).sum(1))
        G_U.add_(torch.matmul(W_2.transpose(1, 2)[:, None], G_W2U).view(S, -1, C))
        G_H = self.buffer("G_H", S, rows, R * M // rows)
        products(slope, W_2U.transpose(1, 2), out=G_H)
        G_P = self._back_activation(G_H.view(S, self.N, self.T, M))
        G_Z = self._back_hidden(G_P, gradients)
        direct = self.buffer("part", S, rows, R * D // rows)
        products(slope, (gamma * W_U).transpose(1, 2), out=direct)
        return G_Z.add_(direct.view(S, R, D))

    def _back_hidden(self, G_P: Tensor, gradients: Parameters) -> Tensor:
        """Return the gradient in Z that comes through P."""
        Z = self.saved["Z"]
        products(Z.transpose(1, 2), G_P, out=gradients["blocks.0.ffn_in"])
        W_1 = self.weights["blocks.0.ffn_in"]
        return products(G_P, W_1.transpose(1, 2), out=self.buffer("G_Z", *Z.shape))

    def _spread(self, G: Tensor) -> Tensor:
        """Spread a gradient of means over the tokens, to broadcast over (S, N, T, width)."""
        if self.lengths is None or self.mask is None:
            return (G / self.T)[:, :, None]
        return (G / self.lengths)[:, :, None] * self.mask[..., None]

    def _back_activation(self, G_H: Tensor) -> Tensor:
        """Return the gradient in P; `G_H` broadcasts to (S, N, T, M)."""
        activation, H = self.config.activation, self.saved["H"]
        shape = (self.S, self.N, self.T, H.shape[2])
        if activation == "relu":  # in place of H, which is not needed any more
            H = H.view(shape)
            relu_backward(G_H.expand(shape), H, 0.0, grad_input=H)
            return H.view(self.saved["H"].shape)
        if activation == "identity":
            return H.copy_(G_H.expand(shape).reshape(H.shape))
        if activation == "tanh":
            return ((1.0 - H * H).view(shape) * G_H).view(H.shape)
        with torch.enable_grad():
            P = self.saved["P"].detach().requires_grad_()
            G_H = G_H.expand(shape).reshape(H.shape)
            (G_P,) = torch.autograd.grad(ACTIVATIONS[activation](P), P, G_H)
        return G_P

    def _back_attention(self, G_Z: Tensor, gradients: Parameters) -> None:
        S, N, T, (R, D) = self.S, self.N, self.T, G_Z.shape[1:]
        B = S * N
        W_K, W_V = self.weights["blocks.0.key"], self.weights["blocks.0.value"]
        F, K, C = (self.saved[name] for name in "FKC")
        A = self.saved["A"].view(B, T, T)
        tokens = F.view(B, T, D)
        products(C.transpose(1, 2), G_Z, out=gradients["blocks.0.value"])
        G_C = products(G_Z, W_V.transpose(1, 2), out=self.buffer("G_C", S, R, D)).view(B, T, D)
        G_L = self.buffer("L", B, T, T)  # L itself is not needed any more
        products(tokens, G_C.transpose(1, 2), out=G_L).mul_(A)
        G_L.addcmul_(A, G_L.sum(1, keepdim=True), value=-1.0)
        G_K = products(G_L, tokens, out=self.buffer("G_K", B, T, D)).view(S, R, D)
        G_M = products(F.transpose(1, 2), G_K)
        products(G_M, self.saved["query"], out=gradients["blocks.0.key"])
        G_query = products(G_M.transpose(1, 2), W_K, out=gradients["blocks.0.query"])
        G_query.div_(math.sqrt(self.config.d_qk))
        if self.constant_input:
            return
        G_F = products(A, G_C, out=self.buffer("G_F", B, T, D))
        part = self.buffer("part", B, T, D)
        G_F.add_(products(G_L.transpose(1, 2), K.view(B, T, D), out=part))
        rows = G_F.view(S, R, D).addcmul_(G_Z, self.strengths.beta)
        rows.add_(products(G_K, self.saved["M"].transpose(1, 2), out=part.view(S, R, D)))
        self._back_embedding(rows.view(S, N, T, D), gradients)

    def _back_embedding(self, G_F: Tensor, gradients: Parameters) -> None:
        S, N, T, D = G_F.shape
        config, W = self.config, self.x.shape[3]
        of_tokens = G_F.view(S, N, T * D).sum(1).view(S, T, D)
        if config.positional_encoding == "learned":
            gradients["position"].zero_()[:, :T].copy_(of_tokens)
        if config.embedding == "grouped":
            gradients["embedding_bias"].copy_(of_tokens)
            G_W = torch.einsum("sntw,sntd->stwd", self.x, G_F)
            gradients["embedding_weight"].copy_(G_W)
        elif config.embedding == "shared":
            gradients["embedding_bias"].copy_(of_tokens.sum(1))
            x = self.x.reshape(S, N * T, W)
            G_W = torch.bmm(x.transpose(1, 2), G_F.reshape(S, N * T, D))
            gradients["embedding_weight"].copy_(G_W)
