"""Closed-form gradient of the one-layer, one-head model: fewer passes than autograd.

The default model spends its time in passes over (N T, d_ff) and (N, T, T) arrays and in the
overhead of small operations. Here the forward pass keeps what the gradient needs, the
gradient adds its products straight into the flat gradient vector, and large intermediates
live in buffers that are reused from one iteration to the next: memory that is given back to the
system and taken anew can cost as much as all the rest.

The formulas (row tokens; X = F_0, C = A X, P = Z W_1, H = phi(P), G_x the gradient in x)::

    G_P = phi'(P) o G_H          G_W1 = Z^T G_P        G_Z += G_P W_1^T
    G_C = G_Z W_V^T              G_WV = C^T G_Z        G_A = G_C X^T
    G_S = A o (G_A - rowsum(A o G_A))
    S = X M X^T with M = W_Q W_K^T / sqrt(d_qk):  G_M = X^T (G_S X)

Everything else (several layers or heads, LayerNorm) goes through autograd. Shape suffixes as
in :mod:`sklearn_restf._model.module`.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from sklearn_restf._model.forward import absorb_readout
from sklearn_restf._model.matmul import add_reduction, product, products, silent
from sklearn_restf._model.module import (
    ACTIVATIONS,
    ModuleConfig,
    allowed_attention,
    last_token_index,
    position_table,
)

relu_backward = torch.ops.aten.threshold_backward.grad_input  # one pass instead of two


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
    config : ModuleConfig
        A supported model.
    weights : dict of str to Tensor
        Its parameters, by their names in the module.
    gradients : dict of str to Tensor, optional
        Where the gradient of each parameter is added to; without, there is no way back.
    """

    def __init__(
        self,
        config: ModuleConfig,
        weights: dict[str, Tensor],
        gradients: dict[str, Tensor] | None = None,
    ) -> None:
        self.config, self.weights, self.gradients = config, weights, gradients or {}
        self.last, self.mean = config.pooling == "last", config.pooling == "mean"
        self.scale = 1.0 / math.sqrt(config.d_qk)
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
        allowed = allowed_attention(self.T, mask, causal, x.device)
        self.forbidden = None if allowed is None else ~allowed[:, 0]
        self.last_index = None if mask is None else last_token_index(mask)
        self.padded = None
        self.share: float | Tensor = 1.0 / self.T  # of one token in a mean
        if mask is not None and self.mean:
            self.share = 1.0 / mask.sum(1, keepdim=True).to(x.dtype)
            self.padded = torch.nonzero(~mask.view(-1))[:, 0]
        self._F = self._embed() if self.constant_input else None
        return self

    def buffer(self, name: str, *shape: int) -> Tensor:
        """Return a reusable uninitialised tensor."""
        if name not in self._buffers:
            self._buffers[name] = self.x.new_empty(shape)
        return self._buffers[name]

    def _embed(self) -> Tensor:
        """Return F_0, as :meth:`ResidualTransformer.embed` does."""
        config, weights = self.config, self.weights
        N, T, D = self.N, self.T, config.d_model
        position = self._position()
        if config.embedding == "none":
            x = self.x.contiguous()
            return x if position is None else torch.add(x, position, out=self.buffer("F", N, T, D))
        weight, bias = weights["embedding_weight"], weights["embedding_bias"]
        F = self.buffer("F", N, T, D)
        if config.embedding == "shared":
            F = product(self.x.reshape(N * T, -1), weight, out=F.view(N * T, D)).view(N, T, D)
            return F.add_(bias if position is None else bias + position)
        if position is not None:
            bias = bias + position
        # one (N x width)(width x D) product per group
        torch.baddbmm(bias[:, None], self.x.transpose(0, 1), weight, out=F.transpose(0, 1))
        return F

    def _position(self) -> Tensor | None:
        encoding = self.config.positional_encoding
        if encoding == "learned":
            return self.weights["position"][: self.T]
        if encoding is None:
            return None
        return position_table(self.T, self.config.d_model, self.x.dtype, str(self.x.device))

    # --- forward --------------------------------------------------------------------

    @silent
    def forward(self) -> Tensor:
        """Return the predictions at the current weights."""
        F = self._F if self._F is not None else self._embed()
        self.saved = {"F": F}
        Z = self._attend(F)
        if self.padded is not None:
            # every activation is 0 at 0: padding then adds nothing to sums over tokens
            Z.index_fill_(0, self.padded, 0.0)
        P = self.buffer("P", Z.shape[0], self.config.d_ff)
        P = product(Z, self.weights["blocks.0.ffn_in"], out=P)
        H = P.relu_() if self.config.activation == "relu" else self._activate(P)
        self.saved |= {"Z": Z, "P": P, "H": H}
        return self._read_out(Z, H)

    def _activate(self, P: Tensor) -> Tensor:
        return ACTIVATIONS[self.config.activation](P)

    def _attend(self, F: Tensor) -> Tensor:
        """Return Z of the tokens that ask: all of them, or the last of each sample."""
        N, T, D = F.shape
        weights = self.weights
        if not self.last:
            source, Q = F.view(N * T, D), T
        else:
            source, Q = F[:, -1] if self.last_index is None else F[self.last_index], 1
        # F W_Q W_K^T F^T: one projection of the tokens instead of two
        M = self.buffer("M", D, D)
        torch.addmm(
            M, weights["blocks.0.query"], weights["blocks.0.key"].T, beta=0, alpha=self.scale, out=M
        )
        query = product(source, M, out=self.buffer("query", N * Q, D)).view(N, Q, D)
        S = products(query, F.transpose(1, 2), out=self.buffer("S", N, Q, T))
        if self.forbidden is not None:
            S.masked_fill_(self.forbidden, -torch.inf)
        A = row_softmax(S, self.buffer("A", N, Q, T))
        C = products(A, F, out=self.buffer("C", N, Q, D)).view(N * Q, D)
        self.saved |= {"source": source, "M": M, "query": query, "A": A, "C": C}
        Z = product(C, weights["blocks.0.value"], out=self.buffer("Z", N * Q, D))
        return Z.add_(source, alpha=self.config.residual_beta)

    def _read_out(self, Z: Tensor, H: Tensor) -> Tensor:
        gamma, pooling = self.config.ffn_residual_beta, self.config.pooling
        W_2, W_U, b = (
            self.weights["blocks.0.ffn_out"],
            self.weights["readout"],
            self.weights["readout_bias"],
        )
        if self.mean:
            Z, H = self._sum_tokens(Z), self._sum_tokens(H)
        if self.mean or self.last:
            F_pooled = torch.addmm(Z, H, W_2, beta=gamma)
            if self.mean:
                F_pooled.mul_(self.share)
            self.saved |= {"F_pooled": F_pooled, "H_sum": H}
            return torch.addmm(b, F_pooled, W_U)
        D, C = Z.shape[1], W_U.shape[1]
        self.saved["absorbed"] = absorbed = absorb_readout(self.config, self.N, self.T)
        rows = (self.N, self.T * D) if pooling == "flatten" else (self.N * self.T, D)
        if absorbed:
            U = W_U.view(-1, D, C)  # one matrix, or one per token
            W_2U = torch.matmul(W_2, U)
            prediction = torch.addmm(b, Z.view(rows), W_U, alpha=gamma)
            prediction.addmm_(H.view(rows[0], -1), W_2U.view(-1, C))
            self.saved |= {"W_2U": W_2U}
        else:
            F_out = product(H, W_2, out=self.buffer("F_out", *Z.shape)).add_(Z, alpha=gamma)
            self.saved["F_out"] = F_out
            prediction = torch.addmm(b, F_out.view(rows), W_U)
        return prediction.view(self.N, self.T, C) if pooling == "none" else prediction

    def _sum_tokens(self, rows: Tensor) -> Tensor:
        """Return the sum over the tokens of each sample."""
        return rows.view(self.N, self.T, -1).sum(1)

    # --- backward -------------------------------------------------------------------

    @silent
    def backward(self, slope: Tensor) -> None:
        """Add the gradient; `slope` is the derivative of the loss in the predictions."""
        slope = slope.reshape(-1, slope.shape[-1])
        self.gradients["readout_bias"].add_(slope.sum(0))
        pooled = self.mean or self.last
        G_Z = self._back_pooled(slope) if pooled else self._back_tokens(slope)
        self._back_attention(G_Z)

    def _back_pooled(self, slope: Tensor) -> Tensor:
        """Return the gradient in Z where tokens are summed, or one is read, per sample."""
        saved, gradients, weights = self.saved, self.gradients, self.weights
        gradients["readout"].addmm_(saved["F_pooled"].T, slope)
        if self.mean:
            slope = slope * self.share
        G_F = slope @ weights["readout"].T  # the same for every token of a sample
        gradients["blocks.0.ffn_out"].addmm_(saved["H_sum"].T, G_F)
        G_Z = self._back_hidden(G_F @ weights["blocks.0.ffn_out"].T)
        G_Z.view(self.N, -1, G_F.shape[1]).add_(G_F[:, None], alpha=self.config.ffn_residual_beta)
        return G_Z if self.padded is None else G_Z.index_fill_(0, self.padded, 0.0)

    def _back_tokens(self, slope: Tensor) -> Tensor:
        """Return the gradient in Z where every token is read out."""
        saved, gradients = self.saved, self.gradients
        W_2, W_U = self.weights["blocks.0.ffn_out"], self.weights["readout"]
        Z, H = saved["Z"], saved["H"]
        (R, D), M, C = Z.shape, H.shape[1], W_U.shape[1]
        gamma = self.config.ffn_residual_beta
        rows = (self.N, self.T * D) if self.config.pooling == "flatten" else (R, D)
        G_F = product(slope, W_U.T, out=self.buffer("G_F read", *rows)).view(R, D)
        G_H = self.buffer("G_H", R, M)
        if saved["absorbed"]:
            gradients["readout"].addmm_(Z.view(rows).T, slope, alpha=gamma)
            G_W2U = (H.view(rows[0], -1).T @ slope).view(-1, M, C)
            U = W_U.view(-1, D, C)
            gradients["blocks.0.ffn_out"].add_(torch.matmul(G_W2U, U.transpose(1, 2)).sum(0))
            gradients["readout"].view(-1, D, C).add_(torch.matmul(W_2.T, G_W2U))
            W_2U = saved["W_2U"].view(-1, C)
            G_H = product(slope, W_2U.T, out=G_H.view(rows[0], -1)).view(R, M)
        else:
            gradients["readout"].addmm_(saved["F_out"].view(rows).T, slope)
            add_reduction(gradients["blocks.0.ffn_out"], H, G_F)
            G_H = product(G_F, W_2.T, out=G_H)
        return self._back_hidden(G_H).add_(G_F, alpha=gamma)

    def _back_hidden(self, G_H: Tensor) -> Tensor:
        """Return the part of the gradient in Z that comes through H; G_H may be one a sample."""
        Z, W_1 = self.saved["Z"], self.weights["blocks.0.ffn_in"]
        G_P = self._back_activation(G_H)
        add_reduction(self.gradients["blocks.0.ffn_in"], Z, G_P)
        return product(G_P, W_1.T, out=self.buffer("G_Z", *Z.shape))

    def _back_activation(self, G_H: Tensor) -> Tensor:
        """Return the gradient in the preactivation."""
        activation, H = self.config.activation, self.saved["H"]
        if G_H.shape[0] != H.shape[0]:
            G_H = G_H[:, None].expand(self.N, self.T, -1)
        if activation == "relu":  # in place of H, which is not needed any more
            H = H.view(G_H.shape)
            return relu_backward(G_H, H, 0, grad_input=H).view(-1, H.shape[-1])
        G_H = G_H.reshape(H.shape)
        if activation == "identity":
            return G_H
        if activation == "tanh":
            return G_H * (1.0 - H * H)
        with torch.enable_grad():
            P = self.saved["P"].detach().requires_grad_()
            (G_P,) = torch.autograd.grad(ACTIVATIONS[activation](P), P, G_H)
        return G_P

    def _back_attention(self, G_Z: Tensor) -> None:
        saved, gradients, weights = self.saved, self.gradients, self.weights
        F, A, C, query = saved["F"], saved["A"], saved["C"], saved["query"]
        N, T, D = F.shape
        Q = A.shape[1]
        add_reduction(gradients["blocks.0.value"], C, G_Z)
        W_V = weights["blocks.0.value"]
        G_C = product(G_Z, W_V.T, out=self.buffer("G_C", N * Q, D)).view(N, Q, D)
        G_S = products(G_C, F.transpose(1, 2), out=self.buffer("G_S", N, Q, T))
        G_S.mul_(A)  # the softmax's Jacobian: A o G - A rowsum(A o G)
        G_S.addcmul_(A, G_S.sum(-1, keepdim=True), value=-1.0)
        G_query = products(G_S, F, out=self.buffer("G_query", N, Q, D)).view(N * Q, D)
        G_M = self.buffer("G_M", D, D).zero_()
        add_reduction(G_M, saved["source"], G_query)
        W_Q, W_K, scale = weights["blocks.0.query"], weights["blocks.0.key"], self.scale
        gradients["blocks.0.query"].addmm_(G_M, W_K, alpha=scale)
        gradients["blocks.0.key"].addmm_(G_M.T, W_Q, alpha=scale)
        if self.constant_input:
            return
        G_F = products(A.transpose(1, 2), G_C, out=self.buffer("G_F", N, T, D))
        G_F.add_(products(G_S.transpose(1, 2), query, out=self.buffer("G_F keys", N, T, D)))
        own = product(G_query, saved["M"].T, out=self.buffer("own", N * Q, D))
        own.add_(G_Z, alpha=self.config.residual_beta)
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
            x, G_F = self.x.flatten(0, 1), G_F.flatten(0, 1)
            add_reduction(gradients["embedding_weight"], x, G_F)
