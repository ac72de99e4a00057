"""Closed-form gradient of the one-layer, one-head model: fewer passes than autograd.

The default model spends its time in passes over (N T, d_ff) and (N, T, T) arrays and in the
overhead of small operations. Here the forward pass keeps what the gradient needs, the
gradient adds its products straight into the flat gradient vector, and large intermediates
live in buffers that are reused from one iteration to the next.

The formulas (row tokens; X = F_0, C = A X, P = Z W_1, H = phi(P), G_x the gradient in x)::

    G_P = phi'(P) o G_H          G_W1 = Z^T G_P        G_Z += G_P W_1^T
    G_C = G_Z W_V^T              G_WV = C^T G_Z        G_A = G_C X^T
    G_S = A o (G_A - rowsum(A o G_A))
    S = X M X^T with M = W_Q W_K^T / sqrt(d_qk):  G_M = X^T (G_S X)

Everything else (several layers or heads, LayerNorm) goes through autograd. Shape suffixes as
in :mod:`sklearn_restf._module`.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from sklearn_restf._module import (
    ACTIVATIONS,
    ModuleConfig,
    ResidualTransformer,
    allowed_attention,
    last_token_index,
)


def row_softmax(S: Tensor, out: Tensor) -> Tensor:
    """Return the softmax over the last axis.

    torch's kernel works row by row: on rows of fewer than about 16 numbers, and in float64, four
    passes over the whole array are 2 to 5 times faster on a CPU.
    """
    if S.device.type != "cpu" or (S.shape[-1] >= 16 and S.dtype == torch.float32):
        return torch.softmax(S, dim=-1, out=out)
    torch.sub(S, S.amax(-1, keepdim=True), out=out).exp_()
    return out.div_(out.sum(-1, keepdim=True))


def is_supported(config: ModuleConfig) -> bool:
    """Tell whether the closed form covers a model."""
    return config.n_layers == 1 and config.n_heads == 1 and not config.layer_norm


class FusedLayer:
    """Forward pass and gradient for one batch, with its buffers.

    Parameters
    ----------
    module : ResidualTransformer
        A supported model.
    gradients : dict of str to Tensor
        Where the gradient of each parameter is added to.
    """

    def __init__(self, module: ResidualTransformer, gradients: dict[str, Tensor]) -> None:
        self.module, self.gradients = module, gradients
        self.config = config = module.config
        self.weights = {name: p.detach() for name, p in module.named_parameters()}
        self.last = config.pooling == "last"
        self.constant_input = config.embedding == "none" and config.positional_encoding != "learned"
        self._buffers: dict[str, Tensor] = {}
        self.saved: dict[str, Any] = {}
        self.x = torch.empty(0)

    def bind(self, x: Tensor, mask: Tensor | None) -> FusedLayer:
        """Work on this batch from now on; buffers are kept while the shape stays."""
        if self.x.shape != x.shape:
            self._buffers.clear()
        self.x, self.mask = x, mask
        self.N, self.T = x.shape[:2]
        causal = self.config.causal and not self.last  # the last token sees all anyway
        self.allowed = allowed_attention(self.T, mask, causal, x.device)
        self.lengths = None if mask is None else mask.sum(1, keepdim=True)
        self.last_index = None if mask is None else last_token_index(mask)
        self._F = self._embed() if self.constant_input else None
        return self

    def buffer(self, name: str, *shape: int) -> Tensor:
        """Return a reusable uninitialised tensor."""
        if name not in self._buffers:
            self._buffers[name] = self.x.new_empty(shape)
        return self._buffers[name]

    def _embed(self) -> Tensor:
        with torch.no_grad():
            return self.module.embed(self.x).contiguous()

    # --- forward --------------------------------------------------------------------

    def forward(self) -> Tensor:
        """Return the predictions at the current weights."""
        F = self._F if self._F is not None else self._embed()
        self.saved = {"F": F}
        Z = self._attend_last(F) if self.last else self._attend_all(F)
        P = self.buffer("P", Z.shape[0], self.config.d_ff)
        torch.mm(Z, self.weights["blocks.0.ffn_in"], out=P)
        if self.config.activation == "relu":
            H = P.relu_()
        else:
            H = ACTIVATIONS[self.config.activation](P)
        self.saved |= {"Z": Z, "P": P, "H": H}
        return self._read_out(Z, H)

    def _logits_and_context(self, query: Tensor, F: Tensor) -> tuple[Tensor, Tensor]:
        """Return A and C = A F for queries (N, Q, D) already multiplied by W_K^T."""
        Q, T, D = query.shape[1], self.T, F.shape[2]
        S = torch.bmm(query, F.transpose(1, 2), out=self.buffer("S", self.N, Q, T))
        if self.allowed is not None:
            S.masked_fill_(~self.allowed[:, 0], -torch.inf)
        A = row_softmax(S, self.buffer("A", self.N, Q, T))
        C = torch.bmm(A, F, out=self.buffer("C", self.N, Q, D))
        return A, C

    def _attend_all(self, F: Tensor) -> Tensor:
        N, T, D = F.shape
        W_Q, W_K, W_V = self._attention_weights()
        flat = F.view(N * T, D)
        M = W_Q @ W_K.T
        query = torch.mm(flat, M, out=self.buffer("query", N * T, D)).view(N, T, D)
        A, C = self._logits_and_context(query, F)
        Z = torch.mm(C.view(N * T, D), W_V, out=self.buffer("Z", N * T, D))
        Z.add_(flat, alpha=self.config.residual_beta)
        self.saved |= {"M": M, "query": query, "A": A, "C": C}
        return Z

    def _attend_last(self, F: Tensor) -> Tensor:
        W_Q, W_K, W_V = self._attention_weights()
        F_last = F[:, -1] if self.last_index is None else F[self.last_index]
        M = W_Q @ W_K.T
        query = F_last @ M
        A, C = self._logits_and_context(query[:, None], F)
        Z = C[:, 0] @ W_V
        Z.add_(F_last, alpha=self.config.residual_beta)
        self.saved |= {"M": M, "query": query, "A": A, "C": C, "F_last": F_last}
        return Z

    def _attention_weights(self) -> tuple[Tensor, Tensor, Tensor]:
        scale = 1.0 / math.sqrt(self.config.d_qk)
        weights = self.weights
        return weights["blocks.0.query"] * scale, weights["blocks.0.key"], weights["blocks.0.value"]

    def _read_out(self, Z: Tensor, H: Tensor) -> Tensor:
        gamma, pooling = self.config.ffn_residual_beta, self.config.pooling
        W_2, W_U, b = (
            self.weights["blocks.0.ffn_out"],
            self.weights["readout"],
            self.weights["readout_bias"],
        )
        if pooling in ("mean", "last"):
            Z_pooled, H_pooled = (Z, H) if self.last else (self._mean(Z), self._mean(H))
            F_pooled = torch.addmm(Z_pooled, H_pooled, W_2, beta=gamma)
            self.saved |= {"F_pooled": F_pooled, "H_pooled": H_pooled}
            return torch.addmm(b, F_pooled, W_U)
        D, M, C, T = Z.shape[1], H.shape[1], W_U.shape[1], self.T
        if pooling == "none":
            absorbed = D + M < (D * M + D * C) / C
        else:
            absorbed = T * C * (D + M) + T * M * D * C / self.N < T * D * (M + C)
        self.saved["absorbed"] = absorbed
        rows = (self.N, T * D) if pooling == "flatten" else (self.N * T, D)
        if absorbed:
            U = W_U.view(-1, D, C)  # one matrix, or one per token
            W_2U = torch.matmul(W_2, U)
            prediction = torch.addmm(b, Z.view(rows), W_U, alpha=gamma)
            prediction.addmm_(H.view(rows[0], -1), W_2U.view(-1, C))
            self.saved |= {"W_2U": W_2U}
        else:
            F_out = torch.addmm(Z, H, W_2, beta=gamma)
            self.saved["F_out"] = F_out
            prediction = torch.addmm(b, F_out.view(rows), W_U)
        return prediction.view(self.N, T, C) if pooling == "none" else prediction

    def _mean(self, rows: Tensor) -> Tensor:
        """Return the mean over the real tokens of each sample."""
        values = rows.view(self.N, self.T, -1)
        if self.mask is None:
            return values.mean(1)
        return torch.where(self.mask[:, :, None], values, 0.0).sum(1) / self.lengths

    # --- backward -------------------------------------------------------------------

    def backward(self, slope: Tensor) -> None:
        """Add the gradient; `slope` is the derivative of the loss in the predictions."""
        G_Z, G_H = self._back_read_out(slope)
        saved, gradients, weights = self.saved, self.gradients, self.weights
        G_P = self._back_activation(G_H)
        gradients["blocks.0.ffn_in"].addmm_(saved["Z"].T, G_P)
        G_Z = torch.addmm(
            G_Z, G_P, weights["blocks.0.ffn_in"].T, out=self.buffer("G_Z", *G_Z.shape)
        )
        self._back_attention(G_Z)

    def _back_read_out(self, slope: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradients in Z and H; both new tensors or buffers."""
        gamma, pooling, saved = self.config.ffn_residual_beta, self.config.pooling, self.saved
        gradients, W_2, W_U = (
            self.gradients,
            self.weights["blocks.0.ffn_out"],
            self.weights["readout"],
        )
        slope = slope.reshape(-1, W_U.shape[1])
        gradients["readout_bias"].add_(slope.sum(0))
        N, T, Z, H = self.N, self.T, saved["Z"], saved["H"]
        if pooling in ("mean", "last"):
            G_F = slope @ W_U.T
            gradients["readout"].addmm_(saved["F_pooled"].T, slope)
            gradients["blocks.0.ffn_out"].addmm_(saved["H_pooled"].T, G_F)
            G_H = G_F @ W_2.T
            if self.config.activation == "relu" and self.lengths is None and not self.last:
                return self._spread(gamma * G_F), G_H / T
            return self._spread(gamma * G_F), self._spread(G_H)
        D, M, C = Z.shape[1], H.shape[1], W_U.shape[1]
        rows = (N, T * D) if pooling == "flatten" else (N * T, D)
        G_H = self.buffer("G_H", N * T, M)
        if saved["absorbed"]:
            gradients["readout"].addmm_(Z.view(rows).T, slope, alpha=gamma)
            G_W2U = (H.view(rows[0], -1).T @ slope).view(-1, M, C)
            U = W_U.view(-1, D, C)
            gradients["blocks.0.ffn_out"].add_(torch.matmul(G_W2U, U.transpose(1, 2)).sum(0))
            gradients["readout"].view(-1, D, C).add_(torch.matmul(W_2.T, G_W2U))
            torch.mm(slope, saved["W_2U"].view(-1, C).T, out=G_H.view(rows[0], -1))
            return gamma * (slope @ W_U.T).view(N * T, D), G_H
        G_F = (slope @ W_U.T).view(N * T, D)
        gradients["readout"].addmm_(saved["F_out"].view(rows).T, slope)
        gradients["blocks.0.ffn_out"].addmm_(H.T, G_F)
        torch.mm(G_F, W_2.T, out=G_H)
        return gamma * G_F, G_H

    def _spread(self, G: Tensor) -> Tensor:
        """Spread a gradient of means over the tokens, without copying where possible."""
        if self.last:
            return G
        if self.lengths is None or self.mask is None:
            return (G / self.T)[:, None].expand(-1, self.T, -1).reshape(self.N * self.T, -1)
        spread = (G / self.lengths)[:, None] * self.mask[:, :, None]
        return spread.view(self.N * self.T, -1)

    def _times_slope(self, G_H: Tensor) -> Tensor:
        """Multiply by relu'(P), in place of H, which is not needed any more."""
        H = self.saved["H"]
        slope = H.gt_(0.0)  # relu'(P), as 0.0 and 1.0
        if G_H.shape[0] == H.shape[0]:
            return slope.mul_(G_H)
        # the gradient of a mean is the same for all tokens of a sample
        slope.view(self.N, self.T, -1).mul_(G_H[:, None])
        return slope

    def _back_activation(self, G_H: Tensor) -> Tensor:
        """Return the gradient in the preactivation."""
        activation, H = self.config.activation, self.saved["H"]
        if activation == "relu":
            return self._times_slope(G_H)
        if activation == "identity":
            return G_H
        if activation == "tanh":
            return G_H * (1.0 - H * H)
        with torch.enable_grad():
            P = self.saved["P"].detach().requires_grad_()
            (G_P,) = torch.autograd.grad(ACTIVATIONS[activation](P), P, G_H)
        return G_P

    def _back_attention(self, G_Z: Tensor) -> None:
        saved, gradients, beta = self.saved, self.gradients, self.config.residual_beta
        F, A, C, query = saved["F"], saved["A"], saved["C"], saved["query"]
        N, T, D = F.shape
        Q = A.shape[1]
        W_Q, W_K, W_V = self._attention_weights()
        gradients["blocks.0.value"].addmm_(C.view(N * Q, D).T, G_Z)
        G_C = torch.mm(G_Z, W_V.T, out=self.buffer("G_C", N * Q, D)).view(N, Q, D)
        G_S = torch.bmm(G_C, F.transpose(1, 2), out=self.buffer("G_S", N, Q, T))
        G_S.mul_(A)  # the softmax's Jacobian: A o G - A rowsum(A o G)
        G_S.addcmul_(A, G_S.sum(-1, keepdim=True), value=-1.0)
        G_query = torch.bmm(G_S, F, out=self.buffer("G_query", N, Q, D)).view(N * Q, D)
        source = saved["F_last"] if self.last else F.view(N * T, D)
        G_M = source.T @ G_query
        scale = 1.0 / math.sqrt(self.config.d_qk)
        gradients["blocks.0.query"].addmm_(G_M, W_K, alpha=scale)
        gradients["blocks.0.key"].addmm_(G_M.T, W_Q)
        if self.constant_input:
            return
        G_F = torch.bmm(A.transpose(1, 2), G_C)
        G_F.baddbmm_(G_S.transpose(1, 2), query.view(N, Q, D))
        own = torch.addmm(G_Z, G_query, saved["M"].T, beta=beta)
        if not self.last:
            G_F.view(N * T, D).add_(own)
        elif self.last_index is None:
            G_F[:, -1] += own
        else:
            G_F[self.last_index] += own
        self._back_embedding(G_F)

    def _back_embedding(self, G_F: Tensor) -> None:
        gradients, config = self.gradients, self.config
        if config.positional_encoding == "learned":
            gradients["position"][: self.T].add_(G_F.sum(0))
        if config.embedding == "grouped":
            gradients["embedding_bias"].add_(G_F.sum(0))
            # one (width x N)(N x D) product per group
            gradients["embedding_weight"].baddbmm_(self.x.permute(1, 2, 0), G_F.transpose(0, 1))
        elif config.embedding == "shared":
            gradients["embedding_bias"].add_(G_F.sum((0, 1)))
            gradients["embedding_weight"].addmm_(self.x.flatten(0, 1).T, G_F.flatten(0, 1))
