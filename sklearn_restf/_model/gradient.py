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

Everything else (several layers or heads, LayerNorm) goes through autograd. Axes as in
:mod:`sklearn_restf._model.forward`: one model, or many side by side.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sklearn_restf._model.forward import Parameters, Strength, absorb_readout
from sklearn_restf._model.matmul import (
    add_product,
    add_reduction,
    product,
    products,
    reduction,
    silent,
)
from sklearn_restf._model.module import (
    ACTIVATIONS,
    ModuleConfig,
    allowed_attention,
    position_table,
)

relu_backward = torch.ops.aten.threshold_backward.grad_input  # one pass instead of two


def has_closed_form(config: ModuleConfig) -> bool:
    """Tell whether the closed form covers a model."""
    return config.n_layers == 1 and config.n_heads == 1 and not config.layer_norm


def row_softmax(S: Tensor, out: Tensor) -> Tensor:
    """Return the softmax over the last axis.

    torch's kernel works row by row: on rows of fewer than about 16 numbers, and in float64, four
    passes over the whole array are 2 to 5 times faster on a CPU.
    """
    if S.device.type != "cpu" or (S.shape[-1] >= 16 and S.dtype == torch.float32):
        return torch.softmax(S, dim=-1, out=out)
    torch.sub(S, S.amax(-1, keepdim=True), out=out).exp_()
    return out.div_(out.sum(-1, keepdim=True))


def add_scaled_(y: Tensor, x: Tensor, strength: Strength) -> Tensor:
    """Add ``strength x`` to y, in place."""
    if isinstance(strength, Tensor):
        return y.addcmul_(x, strength)
    return y.add_(x, alpha=strength)


class ClosedForm:
    """Forward pass and gradient for some samples, with its buffers.

    Parameters
    ----------
    config : ModuleConfig
        A supported model, or the shape that several share.
    beta, gamma : float or Tensor of shape (S, 1, 1), optional
        Strengths of the residual connections; those of the config by default.
    """

    def __init__(
        self, config: ModuleConfig, beta: Strength | None = None, gamma: Strength | None = None
    ) -> None:
        self.config = config
        self.beta = config.residual_beta if beta is None else beta
        self.gamma = config.ffn_residual_beta if gamma is None else gamma
        self.last, self.mean = config.pooling == "last", config.pooling == "mean"
        self.scale = 1.0 / math.sqrt(config.d_qk)
        self.constant_input = config.embedding == "none" and config.positional_encoding != "learned"
        self._memory: dict[str, Tensor] = {}  # flat, as large as was ever needed
        self.weights: Parameters = {}
        self.saved: dict[str, Tensor] = {}  # what the gradient needs of the forward pass

    def bind(self, x: Tensor, mask: Tensor | None) -> ClosedForm:
        """Work on these samples from now on: x (*S, N, T, W), mask (*S, N, T)."""
        self.x, (*self.S, self.N, self.T) = x, x.shape[:-1]
        self.B = math.prod((*self.S, self.N))
        self._buffers: dict[str, Tensor] = {}  # views of the memory, of the shapes of now
        mask = None if mask is None else mask.reshape(self.B, self.T)
        causal = self.config.causal and not self.last  # the last token sees all anyway
        allowed = allowed_attention(self.T, mask, causal, x.device)
        self.forbidden = None if allowed is None else ~allowed[:, 0]
        self.last_index = self.padded = None
        self.share: float | Tensor = 1.0 / self.T  # of one token in a mean
        if mask is not None:
            lengths = mask.sum(1)
            self.last_index = torch.arange(self.B, device=x.device), lengths - 1
            if self.mean:
                self.share = (1.0 / lengths.to(x.dtype)).view(*self.S, self.N, 1)
                self.padded = torch.nonzero(~mask.view(-1))[:, 0]
        if self.config.embedding == "grouped":  # one matrix (N, W) a group
            self.columns = x.transpose(-3, -2).reshape(-1, self.N, x.shape[-1])
        if self.constant_input:
            self._read_tokens(self._embed({}))
        return self

    def buffer(self, name: str, *shape: int) -> Tensor:
        """Return memory of a shape; what it held under this name is gone."""
        found = self._buffers.get(name)
        if found is None:
            size = math.prod(shape)
            if name not in self._memory or len(self._memory[name]) < size:
                self._memory[name] = self.x.new_empty(size)
            found = self._buffers[name] = self._memory[name][:size].view(shape)
        return found

    def _embed(self, weights: Parameters) -> Tensor:
        """Return F_0 (*S, N, T, D), as the module does."""
        config, (N, T, D) = self.config, (self.N, self.T, self.config.d_model)
        position = None
        if config.positional_encoding == "learned":
            position = weights["position"][..., :T, :]
        elif config.positional_encoding == "sinusoidal":
            position = position_table(T, D, self.x.dtype, str(self.x.device))
        if config.embedding == "none":
            if position is None:
                return self.x.contiguous()
            return torch.add(self.x, position.unsqueeze(-3), out=self.buffer("F", *self.S, N, T, D))
        weight, bias = weights["embedding_weight"], weights["embedding_bias"]
        F = self.buffer("F", *self.S, N, T, D)
        if config.embedding == "shared":
            rows = product(self.x.flatten(-3, -2), weight, out=F.view(*self.S, N * T, D))
            bias = bias.unsqueeze(-2) if position is None else bias.unsqueeze(-2) + position
            return rows.view(F.shape).add_(bias.unsqueeze(-3))
        if position is not None:
            bias = bias + position
        bias, weight = bias.reshape(-1, 1, D), weight.reshape(-1, *weight.shape[-2:])
        groups = F.transpose(-3, -2)
        if self.S:
            groups.copy_(torch.baddbmm(bias, self.columns, weight).view(groups.shape))
        else:
            torch.baddbmm(bias, self.columns, weight, out=groups)
        return F

    # --- forward --------------------------------------------------------------------

    @silent
    def forward(self, weights: Parameters) -> Tensor:
        """Return the predictions (*S, N, C), or (*S, N, T, C) with ``pooling="none"``."""
        self.weights = weights
        if not self.constant_input:
            self._read_tokens(self._embed(weights))
        Z = self._attend()
        if self.padded is not None:
            # every activation is 0 at 0: padding then adds nothing to sums over tokens
            Z.view(-1, Z.shape[-1]).index_fill_(0, self.padded, 0.0)
        P = self.buffer("P", *Z.shape[:-1], self.config.d_ff)
        P = product(Z, weights["blocks.0.ffn_in"], out=P)
        relu = self.config.activation == "relu"
        H = P.relu_() if relu else ACTIVATIONS[self.config.activation](P)
        self.saved["Z"], self.saved["H"] = Z, H
        if not relu:
            self.saved["P"] = P
        return self._read_out(Z, H)

    def _read_tokens(self, F: Tensor) -> None:
        """Set the tokens that are asked, and the rows that ask: all, or the last of each sample."""
        D = F.shape[-1]
        self.tokens = F.view(self.B, self.T, D)
        if self.last:
            index = (slice(None), -1) if self.last_index is None else self.last_index
            self.source = self.tokens[index].view(*self.S, self.N, D)
        else:
            self.source = F.view(*self.S, self.N * self.T, D)

    def _attend(self) -> Tensor:
        """Return Z of the tokens that ask."""
        tokens, source, weights = self.tokens, self.source, self.weights
        (B, T, D), rows, Q = tokens.shape, source.shape, 1 if self.last else self.T
        # F W_Q W_K^T F^T: one projection of the tokens instead of two
        M = self.buffer("M", *self.S, D, D)
        M = add_product(M, weights["blocks.0.query"], weights["blocks.0.key"].mT, 0.0, self.scale)
        query = product(source, M, out=self.buffer("query", *rows)).view(B, Q, D)
        S = products(query, tokens.mT, out=self.buffer("S", B, Q, T))
        if self.forbidden is not None:
            S.masked_fill_(self.forbidden, -torch.inf)
        A = row_softmax(S, self.buffer("A", B, Q, T))
        C = products(A, tokens, out=self.buffer("C", B, Q, D)).view(rows)
        self.saved = {"M": M, "query": query, "A": A, "C": C}
        Z = product(C, weights["blocks.0.value"], out=self.buffer("Z", *rows))
        return add_scaled_(Z, source, self.beta)

    def _read_out(self, Z: Tensor, H: Tensor) -> Tensor:
        W_2, W_U = self.weights["blocks.0.ffn_out"], self.weights["readout"]
        b = self.weights["readout_bias"].unsqueeze(-2)
        if self.mean:
            Z, H = self._sum_tokens(Z), self._sum_tokens(H)
        if self.mean or self.last:
            F_pooled = add_product(Z, H, W_2, self.gamma)
            if self.mean:
                F_pooled.mul_(self.share)
            self.saved["F_pooled"], self.saved["H_sum"] = F_pooled, H
            return add_product(b, F_pooled, W_U)
        D, C = Z.shape[-1], W_U.shape[-1]
        Z_read, H_read = self._as_read(Z), self._as_read(H)
        self.absorbed = absorb_readout(self.config, self.N, self.T)
        if self.absorbed:
            U = W_U.view(*self.S, -1, D, C)  # one matrix, or one per token
            W_2U = torch.matmul(W_2.unsqueeze(-3), U).flatten(-3, -2)
            prediction = add_product(b, Z_read, self.gamma * W_U)
            prediction += product(H_read, W_2U)
            self.saved["W_2U"] = W_2U
        else:
            F_out = product(H, W_2, out=self.buffer("F_out", *Z.shape))
            self.saved["F_out"] = add_scaled_(F_out, Z, self.gamma)
            prediction = add_product(b, self._as_read(F_out), W_U)
        if self.config.pooling == "flatten":
            return prediction
        return prediction.view(*self.S, self.N, self.T, C)

    def _sum_tokens(self, rows: Tensor) -> Tensor:
        return rows.view(*self.S, self.N, self.T, -1).sum(-2)

    def _as_read(self, rows: Tensor) -> Tensor:
        """Return rows as the readout sees them: one a token, or one a sample."""
        return rows.view(*self.S, self.N, -1) if self.config.pooling == "flatten" else rows

    # --- backward -------------------------------------------------------------------

    @silent
    def backward(self, slope: Tensor, gradients: Parameters) -> None:
        """Add the gradient; `slope` is the derivative of the loss in the predictions."""
        self.gradients = gradients
        slope = slope.reshape(*self.S, -1, slope.shape[-1])
        gradients["readout_bias"].add_(slope.sum(-2))
        pooled = self.mean or self.last
        self._back_attention(self._back_pooled(slope) if pooled else self._back_tokens(slope))

    def _back_pooled(self, slope: Tensor) -> Tensor:
        """Return the gradient in Z where tokens are summed, or one is read, per sample."""
        saved, gradients, weights = self.saved, self.gradients, self.weights
        add_reduction(gradients["readout"], saved["F_pooled"], slope)
        if self.mean:
            slope = slope * self.share
        G_F = slope @ weights["readout"].mT  # the same for every token of a sample
        add_reduction(gradients["blocks.0.ffn_out"], saved["H_sum"], G_F)
        G_Z = self._back_hidden(G_F @ weights["blocks.0.ffn_out"].mT)
        gamma = self.gamma.unsqueeze(-1) if isinstance(self.gamma, Tensor) else self.gamma
        add_scaled_(G_Z.view(*self.S, self.N, -1, G_F.shape[-1]), G_F.unsqueeze(-2), gamma)
        if self.padded is not None:
            G_Z.view(-1, G_Z.shape[-1]).index_fill_(0, self.padded, 0.0)
        return G_Z

    def _back_tokens(self, slope: Tensor) -> Tensor:
        """Return the gradient in Z where every token is read out."""
        saved, gradients = self.saved, self.gradients
        W_2, W_U = self.weights["blocks.0.ffn_out"], self.weights["readout"]
        Z, H = saved["Z"], saved["H"]
        D, M, C = Z.shape[-1], H.shape[-1], W_U.shape[-1]
        Z_read, H_read = self._as_read(Z), self._as_read(H)
        G_F = product(slope, W_U.mT, out=self.buffer("G_F read", *Z_read.shape)).view(Z.shape)
        G_H = self.buffer("G_H", *H.shape)
        if self.absorbed:
            U = W_U.view(*self.S, -1, D, C)
            add_reduction(gradients["readout"], Z_read, slope, self.gamma)
            G_W2U = reduction(H_read, slope).view(*self.S, -1, M, C)
            gradients["blocks.0.ffn_out"].add_(torch.matmul(G_W2U, U.mT).sum(-3))
            gradients["readout"].view(U.shape).add_(torch.matmul(W_2.mT.unsqueeze(-3), G_W2U))
            G_H = product(slope, saved["W_2U"].mT, out=G_H.view(H_read.shape)).view(H.shape)
        else:
            add_reduction(gradients["readout"], self._as_read(saved["F_out"]), slope)
            add_reduction(gradients["blocks.0.ffn_out"], H, G_F)
            G_H = product(G_F, W_2.mT, out=G_H)
        return add_scaled_(self._back_hidden(G_H), G_F, self.gamma)

    def _back_hidden(self, G_H: Tensor) -> Tensor:
        """Return the part of the gradient in Z that comes through H; G_H may be one a sample."""
        Z, W_1 = self.saved["Z"], self.weights["blocks.0.ffn_in"]
        G_P = self._back_activation(G_H)
        add_reduction(self.gradients["blocks.0.ffn_in"], Z, G_P)
        return product(G_P, W_1.mT, out=self.buffer("G_Z", *Z.shape))

    def _back_activation(self, G_H: Tensor) -> Tensor:
        """Return the gradient in the preactivation."""
        activation, H = self.config.activation, self.saved["H"]
        if G_H.shape != H.shape:
            G_H = G_H.unsqueeze(-2).expand(*self.S, self.N, self.T, -1)
        if activation == "relu":  # in place of H, which is not needed any more
            H = H.view(G_H.shape)
            return relu_backward(G_H, H, 0, grad_input=H).view(self.saved["H"].shape)
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
        tokens, source, A, C, query = (
            self.tokens,
            self.source,
            saved["A"],
            saved["C"],
            saved["query"],
        )
        (B, Q, T), D, rows = A.shape, tokens.shape[-1], G_Z.shape
        add_reduction(gradients["blocks.0.value"], C, G_Z)
        G_C = product(G_Z, weights["blocks.0.value"].mT, out=self.buffer("G_C", *rows))
        G_C = G_C.view(B, Q, D)
        G_S = products(G_C, tokens.mT, out=self.buffer("G_S", B, Q, T))
        G_S.mul_(A)  # the softmax's Jacobian: A o G - A rowsum(A o G)
        G_S.addcmul_(A, G_S.sum(-1, keepdim=True), value=-1.0)
        G_query = products(G_S, tokens, out=self.buffer("G_query", B, Q, D)).view(rows)
        G_M = self.buffer("G_M", *saved["M"].shape).zero_()
        add_reduction(G_M, source, G_query)
        W_Q, W_K = weights["blocks.0.query"], weights["blocks.0.key"]
        add_reduction(gradients["blocks.0.query"], G_M.mT, W_K, self.scale)
        add_reduction(gradients["blocks.0.key"], G_M, W_Q, self.scale)
        if self.constant_input:
            return
        G_F = products(A.mT, G_C, out=self.buffer("G_F", B, T, D))
        G_F.add_(products(G_S.mT, query, out=self.buffer("G_F keys", B, T, D)))
        own = product(G_query, saved["M"].mT, out=self.buffer("own", *rows))
        own = add_scaled_(own, G_Z, self.beta).view(B, Q, D)
        if not self.last:
            G_F.add_(own)
        elif self.last_index is None:
            G_F[:, -1] += own[:, 0]
        else:
            G_F[self.last_index] += own[:, 0]
        self._back_embedding(G_F.view(*self.S, self.N, T, D))

    def _back_embedding(self, G_F: Tensor) -> None:
        gradients, config, D = self.gradients, self.config, G_F.shape[-1]
        if config.positional_encoding == "learned":
            gradients["position"][..., : self.T, :].add_(G_F.sum(-3))
        if config.embedding == "grouped":
            gradients["embedding_bias"].add_(G_F.sum(-3))
            target = gradients["embedding_weight"]
            if self.S:
                groups = G_F.transpose(-3, -2).reshape(-1, self.N, D)
                target.add_(torch.bmm(self.columns.mT, groups).view(target.shape))
            else:
                target.baddbmm_(self.columns.mT, G_F.transpose(0, 1))
        elif config.embedding == "shared":
            gradients["embedding_bias"].add_(G_F.sum((-3, -2)))
            x, G_F = self.x.flatten(-3, -2), G_F.flatten(-3, -2)
            add_reduction(gradients["embedding_weight"], x, G_F)
