"""The cheapest exact order of computation for a given shape, for one model or many side by side.

Same function as :meth:`sklearn_restf._model.module.ResidualTransformer.forward`, evaluated in
an order chosen by counting multiplications:

* the readout only looks at ``pool(F_L)``, so the last layer computes no more than that:
  with ``pooling="last"`` one query per sample, with ``"mean"`` the pool comes before the
  linear maps it commutes with (W_2), with ``"flatten"`` and ``"none"`` W_2 is absorbed
  into the readout when there are few outputs;
* ``(F W_Q)(F W_K)^T = (F W_Q W_K^T) F^T``: one projection of the tokens instead of two.

Axes are counted from the end: samples (*S, N, T, W), parameters (*S, ...), rows (*S, N T, width),
with one leading model axis S or none. Attention goes over all B = S N samples, its weights
transposed, keys before queries: torch's softmax over a short last axis costs about 100 ns a row
whatever its length, over any other axis a tenth of it.
"""

from __future__ import annotations

import math
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

from sklearn_restf._model.module import (
    ACTIVATIONS,
    LAYER_NORM_EPS,
    ModuleConfig,
    allowed_attention,
    position_table,
)

Parameters = dict[str, Tensor]  # by their names in the module
Strength: TypeAlias = "float | Tensor"  # of a residual connection; (S, 1, 1)


def forward(
    config: ModuleConfig,
    weights: Parameters,
    x: Tensor,
    mask: Tensor | None = None,
    *,
    beta: Strength | None = None,
    gamma: Strength | None = None,
) -> Tensor:
    """Return the predictions (*S, N, C), or (*S, N, T, C) with ``pooling="none"``.

    Parameters
    ----------
    config : ModuleConfig
        The shape that all models share.
    weights : dict of str to Tensor
        Their parameters.
    x : Tensor of shape (*S, N, T, W)
        Tokens, right-padded where samples have unequal lengths.
    mask : bool Tensor of shape (*S, N, T), optional
        True for real tokens.
    beta, gamma : float or Tensor of shape (S, 1, 1), optional
        Strengths of the residual connections; those of the config by default.
    """
    beta = config.residual_beta if beta is None else beta
    gamma = config.ffn_residual_beta if gamma is None else gamma
    *S, N, T, _ = x.shape
    F = embed(config, weights, x).flatten(-3, -2).contiguous()
    flat_mask = None if mask is None else mask.reshape(-1, T)
    allowed = allowed_attention(T, flat_mask, config.causal, x.device)
    layers = [Layer(config, weights, i, (*S, N, T)) for i in range(config.n_layers)]
    for layer in layers[:-1]:
        Z = layer.attend_all(F, beta, allowed)
        F = add_scaled(layer.second_linear(layer.hidden(Z)), Z, gamma)

    last, readout, bias = layers[-1], weights["readout"], weights["readout_bias"].unsqueeze(-2)
    if config.pooling == "last":
        Z = last.attend_last(F, beta, flat_mask)
        return add_scaled(last.second_linear(last.hidden(Z)), Z, gamma) @ readout + bias
    Z = last.attend_all(F, beta, allowed)
    H = last.hidden(Z)
    if config.pooling == "mean":
        Z, H = (mean_of_tokens(rows.view(*S, N, T, -1), mask) for rows in (Z, H))
        return add_scaled(last.second_linear(H), Z, gamma) @ readout + bias
    y = last.read_tokens(Z, H, gamma) + bias
    return y if config.pooling == "flatten" else y.view(*S, N, T, -1)


def add_scaled(y: Tensor, x: Tensor, strength: Strength) -> Tensor:
    """Return ``y + strength x`` in one pass."""
    if not isinstance(strength, Tensor):
        return y if strength == 0 else torch.add(y, x, alpha=strength)
    return torch.addcmul(y, x, strength)


def embed(config: ModuleConfig, weights: Parameters, x: Tensor) -> Tensor:
    """Return F_0 (*S, N, T, D), as the module does."""
    T = x.shape[-2]
    F = x
    if config.embedding == "shared":
        rows = x.flatten(-3, -2) @ weights["embedding_weight"]
        F = (rows + weights["embedding_bias"].unsqueeze(-2)).view(*x.shape[:-1], -1)
    elif config.embedding == "grouped":
        F = torch.einsum("...ntw,...twd->...ntd", x, weights["embedding_weight"])
        F = F + weights["embedding_bias"].unsqueeze(-3)
    if config.positional_encoding == "learned":
        F = F + weights["position"][..., :T, :].unsqueeze(-3)
    elif config.positional_encoding == "sinusoidal":
        F = F + position_table(T, config.d_model, F.dtype, str(F.device))
    return F


def mean_of_tokens(F: Tensor, mask: Tensor | None) -> Tensor:
    """Return the mean over the real tokens (*S, N, width)."""
    if mask is None:
        return F.mean(-2)
    # where, not multiplication: a padded token must not leak even if it is inf or NaN
    return torch.where(mask[..., None], F, 0.0).sum(-2) / mask.sum(-1, keepdim=True)


def absorb_key(T: int, D: int, K: int) -> bool:
    """Tell whether ``(F W_Q W_K^T) F^T`` takes fewer multiplications than the plain form.

    Per sample: T D^2 + T^2 D against 2 T D K + T^2 K.
    """
    return T * D * D + T * T * D <= 2 * T * D * K + T * T * K


def absorb_readout(config: ModuleConfig, N: int, T: int) -> bool:
    """Tell whether ``gamma Z W_U + H (W_2 W_U)`` takes fewer multiplications than the plain form.

    The plain form is ``(gamma Z + H W_2) W_U``; with ``pooling="flatten"`` every token has a W_U.
    """
    D, M, C = config.d_model, config.d_ff, config.n_outputs
    products = T if config.pooling == "flatten" else 1
    return N * T * C * (D + M) + products * M * D * C <= N * T * D * (M + C)


class Layer:
    """One layer; rows are (*S, N T, width).

    Parameters
    ----------
    config : ModuleConfig
        Its shape.
    weights : dict of str to Tensor
        The parameters of all layers.
    index : int
        Which one it is.
    shape : tuple of int
        (*S, N, T).
    """

    def __init__(
        self, config: ModuleConfig, weights: Parameters, index: int, shape: tuple[int, ...]
    ) -> None:
        self.config, self.weights, self.prefix = config, weights, f"blocks.{index}."
        (*self.S, self.N, self.T), self.B = shape, math.prod(shape[:-1])

    def __getitem__(self, name: str) -> Tensor:
        return self.weights[self.prefix + name]

    def normalise(self, F: Tensor, which: str) -> Tensor:
        """Apply LayerNorm where the config asks for it."""
        if not self.config.layer_norm:
            return F
        weight, bias = self[f"{which}_weight"], self[f"{which}_bias"]
        if not self.S:
            return functional.layer_norm(F, weight.shape, weight, bias, LAYER_NORM_EPS)
        normal = functional.layer_norm(F, F.shape[-1:], eps=LAYER_NORM_EPS)
        return torch.addcmul(bias.unsqueeze(-2), normal, weight.unsqueeze(-2))

    def linear(self, rows: Tensor, name: str) -> Tensor:
        """Return ``rows @ W``, plus the bias where there is one."""
        y = rows @ self[name]
        return y + self[f"{name}_bias"].unsqueeze(-2) if self.config.layer_norm else y

    def heads(self, rows: Tensor) -> Tensor:
        """Split the last axis into heads: (B H, T, width of one head)."""
        if (H := self.config.n_heads) == 1:
            return rows.view(self.B, self.T, -1)
        return rows.view(self.B, self.T, H, -1).transpose(1, 2).flatten(0, 1)

    def attend_all(self, F: Tensor, beta: Strength, allowed: Tensor | None) -> Tensor:
        """Return Z for every token."""
        B, T, D = self.B, self.T, F.shape[-1]
        H, K = self.config.n_heads, self.config.d_qk
        X = self.normalise(F, "norm1")
        scale = 1.0 / math.sqrt(K)
        # a key bias shifts all logits of a query alike: softmax ignores it
        if H == 1 and absorb_key(T, D, K):
            queries = X @ ((self["query"] * scale) @ self["key"].mT)
            if self.config.layer_norm:
                bias = self["query_bias"].unsqueeze(-2) * scale
                queries = queries + bias @ self["key"].mT
            queries, keys = queries.view(B, T, D), X.view(B, T, D)
        else:
            queries = self.heads(self.linear(X, "query") * scale)
            keys = self.heads(X @ self["key"])
        logits = torch.bmm(keys, queries.mT)
        if allowed is not None:
            logits = logits.view(B, H, T, T).masked_fill(~allowed.mT, -torch.inf).view(-1, T, T)
        A = torch.softmax(logits, dim=1)
        attended = torch.bmm(A.mT, self.heads(self.linear(X, "value")))
        if H > 1:
            attended = attended.view(B, H, T, -1).transpose(1, 2)
        return self._add_residual(attended.reshape(F.shape), F, beta)

    def attend_last(self, F: Tensor, beta: Strength, mask: Tensor | None) -> Tensor:
        """Return Z (*S, N, D) for the last real token of each sample, its only query."""
        S, N, D = self.S, self.N, F.shape[-1]
        H, K = self.config.n_heads, self.config.d_qk
        X = self.normalise(F, "norm1")
        F_last = self._last_tokens(F, mask)
        X_last = F_last if X is F else self._last_tokens(X, mask)
        query = (self.linear(X_last, "query") / math.sqrt(K)).view(*S, N, H, K)
        # (q W_K^T) F^T: no key projection of all tokens; the key bias drops out of the softmax
        if H == 1:
            query = (query[..., 0, :] @ self["key"].mT).unsqueeze(-2)
        else:
            query = torch.einsum("...nhk,...dhk->...nhd", query, self["key"].view(*S, D, H, K))
        tokens = X.view(self.B, self.T, D)
        logits = torch.bmm(query.reshape(self.B, H, D), tokens.mT)
        if mask is not None:
            logits = logits.masked_fill(~mask[:, None, :], -torch.inf)
        # the last token sees every real token, so causal attention changes nothing here
        context = torch.bmm(torch.softmax(logits, dim=-1), tokens).view(*S, N, H, D)
        if H == 1:
            attended = context[..., 0, :] @ self["value"]
        else:
            value = self["value"].view(*S, D, H, D // H)
            attended = torch.einsum("...nhd,...dhv->...nhv", context, value).flatten(-2)
        if self.config.layer_norm:  # attention weights sum to one: the value bias passes through
            attended = attended + self["value_bias"].unsqueeze(-2)
        return self._add_residual(attended, F_last, beta)

    def _add_residual(self, attended: Tensor, F: Tensor, beta: Strength) -> Tensor:
        if self.config.n_heads > 1 or self.config.layer_norm:
            attended = self.linear(attended, "output")
        return add_scaled(attended, F, beta)

    def _last_tokens(self, rows: Tensor, mask: Tensor | None) -> Tensor:
        tokens = rows.view(self.B, self.T, -1)
        if mask is None:
            last = tokens[:, -1]
        else:
            last = tokens[torch.arange(self.B, device=mask.device), mask.sum(1) - 1]
        return last.view(*self.S, self.N, -1)

    def hidden(self, Z: Tensor) -> Tensor:
        """Return phi(Z W_1)."""
        before = self.linear(self.normalise(Z, "norm2"), "ffn_in")
        if self.config.activation == "relu":
            return torch.relu_(before)  # in place: the linear map does not need its output
        return ACTIVATIONS[self.config.activation](before)

    def second_linear(self, H: Tensor) -> Tensor:
        """Return H W_2 (plus its bias)."""
        return self.linear(H, "ffn_out")

    def read_tokens(self, Z: Tensor, H: Tensor, gamma: Strength) -> Tensor:
        """Return the readout of all tokens, without its bias: one row a token, or one of all."""
        config, D, C = self.config, Z.shape[-1], self.config.n_outputs
        readout = self.weights["readout"]
        flat = config.pooling == "flatten"
        rows = (*self.S, self.N, -1) if flat else (*self.S, self.N * self.T, -1)
        if not absorb_readout(config, self.N, self.T):
            return add_scaled(self.second_linear(H), Z, gamma).view(rows) @ readout
        per_token = readout.view(*self.S, -1, D, C)  # one matrix, or one a token
        combined = (self["ffn_out"].unsqueeze(-3) @ per_token).view(*self.S, -1, C)
        y = Z.view(rows) @ (gamma * readout) + H.view(rows) @ combined
        if config.layer_norm:
            y = y + self["ffn_out_bias"].unsqueeze(-2) @ per_token.sum(-3)
        return y
