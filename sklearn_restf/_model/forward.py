"""The cheapest exact order of computation for a given shape.

Same function as :meth:`sklearn_restf._model.module.ResidualTransformer.forward`, evaluated in
an order chosen by counting multiplications:

* the readout only looks at ``pool(F_L)``, so the last layer computes no more than that:
  with ``pooling="last"`` one query per sample, with ``"mean"`` the pool comes before the
  linear maps it commutes with (W_2), with ``"flatten"`` and ``"none"`` W_2 is absorbed
  into the readout when there are few outputs;
* ``(F W_Q)(F W_K)^T = (F W_Q W_K^T) F^T``: one projection of the tokens instead of two.

Shape suffixes as in :mod:`sklearn_restf._model.module`.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sklearn_restf._model.module import (
    ACTIVATIONS,
    Block,
    ModuleConfig,
    ResidualTransformer,
    allowed_attention,
    pool,
)


def forward(module: ResidualTransformer, x: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return ``module(x, mask)`` in the cheapest order."""
    config = module.config
    F_NTD = module.embed(x)
    T = F_NTD.shape[1]
    allowed = allowed_attention(T, mask, config.causal, F_NTD.device)
    blocks = list(module.blocks)
    for block in blocks[:-1]:
        Z_NTD = attend_all(block, F_NTD, allowed)
        F_NTD = config.ffn_residual_beta * Z_NTD + feed_forward(block, Z_NTD)

    last = blocks[-1]
    if config.pooling == "last":
        Z_ND = attend_last(last, F_NTD, mask)
        F_ND = config.ffn_residual_beta * Z_ND + feed_forward(last, Z_ND)
        return F_ND @ module.readout + module.readout_bias
    Z_NTD = attend_all(last, F_NTD, allowed)
    if config.pooling == "mean":
        H_NM = pool(hidden(last, Z_NTD), mask, "mean")
        F_ND = config.ffn_residual_beta * pool(Z_NTD, mask, "mean") + second_linear(last, H_NM)
        return F_ND @ module.readout + module.readout_bias
    return token_readout(module, last, Z_NTD)


def attend_all(block: Block, F_NTD: Tensor, allowed: Tensor | None) -> Tensor:
    """Return Z for every token."""
    config = block.config
    N, T, D = F_NTD.shape
    H, K = config.n_heads, config.d_qk
    X_NTD = block.normalise(F_NTD, "norm1")
    if H == 1:
        if absorb_key(T, D, K):
            # F W_Q W_K^T F^T; a key bias shifts all logits of a row alike: softmax ignores it
            query_key_DD = (block.query / math.sqrt(K)) @ block.key.T
            q_NTD = X_NTD @ query_key_DD
            if config.layer_norm:
                q_NTD = q_NTD + (block.query_bias / math.sqrt(K)) @ block.key.T
            logits = torch.bmm(q_NTD, X_NTD.transpose(1, 2))
        else:
            q_NTK = block.linear(X_NTD, "query") / math.sqrt(K)
            logits = torch.bmm(q_NTK, (X_NTD @ block.key).transpose(1, 2))
        if allowed is not None:
            logits = logits.masked_fill(~allowed[:, 0], -torch.inf)
        A_NTT = torch.softmax(logits, dim=-1)
        attended_NTD = torch.bmm(A_NTT, block.linear(X_NTD, "value"))
    else:
        q_NHTK = (block.linear(X_NTD, "query") / math.sqrt(K)).view(N, T, H, K).transpose(1, 2)
        k_NHTK = (X_NTD @ block.key).view(N, T, H, K).transpose(1, 2)
        v_NHTV = block.linear(X_NTD, "value").view(N, T, H, D // H).transpose(1, 2)
        logits = q_NHTK @ k_NHTK.transpose(2, 3)
        if allowed is not None:
            logits = logits.masked_fill(~allowed, -torch.inf)
        attended_NTD = (torch.softmax(logits, -1) @ v_NHTV).transpose(1, 2).reshape(N, T, D)
    if hasattr(block, "output"):
        attended_NTD = block.linear(attended_NTD, "output")
    return residual(config.residual_beta, F_NTD, attended_NTD)


def absorb_key(T: int, D: int, K: int) -> bool:
    """Tell whether ``(F W_Q W_K^T) F^T`` takes fewer multiplications than the plain form.

    Per sample: T D^2 + T^2 D against 2 T D K + T^2 K.
    """
    return T * D * D + T * T * D <= 2 * T * D * K + T * T * K


def attend_last(block: Block, F_NTD: Tensor, mask: Tensor | None) -> Tensor:
    """Return Z for the last real token of each sample: one query a sample, no key projection."""
    config = block.config
    N, _, D = F_NTD.shape
    H, K = config.n_heads, config.d_qk
    F_ND = pool(F_NTD, mask, "last")
    X_NTD = block.normalise(F_NTD, "norm1")
    X_ND = F_ND if X_NTD is F_NTD else pool(X_NTD, mask, "last")

    q_NHK = (block.linear(X_ND, "query") / math.sqrt(K)).view(N, H, K)
    # (q W_K^T) F^T; the key bias drops out of the softmax
    if H == 1:
        q_NHD = q_NHK @ block.key.T
    else:
        q_NHD = torch.einsum("nhk,dhk->nhd", q_NHK, block.key.view(D, H, K))
    logits_NHT = torch.bmm(q_NHD, X_NTD.transpose(1, 2))
    if mask is not None:
        logits_NHT = logits_NHT.masked_fill(~mask[:, None, :], -torch.inf)
    # the last token sees every real token, so causal attention changes nothing here
    context_NHD = torch.bmm(torch.softmax(logits_NHT, dim=-1), X_NTD)
    if H == 1:
        attended_ND = context_NHD[:, 0] @ block.value
    else:
        value_DHV = block.value.view(D, H, D // H)
        attended_ND = torch.einsum("nhd,dhv->nhv", context_NHD, value_DHV).reshape(N, D)
    if config.layer_norm:  # attention weights sum to one, so the value bias passes through
        attended_ND = attended_ND + block.value_bias
    if hasattr(block, "output"):
        attended_ND = block.linear(attended_ND, "output")
    return residual(config.residual_beta, F_ND, attended_ND)


def residual(beta: float, x: Tensor, y: Tensor) -> Tensor:
    """Return ``beta x + y`` in one pass."""
    return y if beta == 0 else torch.add(y, x, alpha=beta)


def hidden(block: Block, Z: Tensor) -> Tensor:
    """Return phi(Z W_1)."""
    preactivation = block.linear(block.normalise(Z, "norm2"), "ffn_in")
    if block.config.activation == "relu":
        return torch.relu_(preactivation)  # in place: the linear map does not need its output
    return ACTIVATIONS[block.config.activation](preactivation)


def second_linear(block: Block, H: Tensor) -> Tensor:
    """Return H W_2 (plus its bias)."""
    return block.linear(H, "ffn_out")


def feed_forward(block: Block, Z: Tensor) -> Tensor:
    """Return phi(Z W_1) W_2."""
    return second_linear(block, hidden(block, Z))


def absorb_readout(config: ModuleConfig, N: int, T: int) -> bool:
    """Tell whether ``gamma Z W_U + H (W_2 W_U)`` takes fewer multiplications than the plain form.

    The plain form is ``(gamma Z + H W_2) W_U``; with ``pooling="flatten"`` every token has a W_U.
    """
    D, M, C = config.d_model, config.d_ff, config.n_outputs
    products = T if config.pooling == "flatten" else 1
    return N * T * C * (D + M) + products * M * D * C <= N * T * D * (M + C)


def token_readout(module: ResidualTransformer, block: Block, Z_NTD: Tensor) -> Tensor:
    """Return the readout of all tokens: one prediction a token, or one of all tokens."""
    config = module.config
    N, T, D = Z_NTD.shape
    M, C, gamma = config.d_ff, config.n_outputs, config.ffn_residual_beta
    H_NTM = hidden(block, Z_NTD)
    if not absorb_readout(config, N, T):
        F_NTD = gamma * Z_NTD + second_linear(block, H_NTM)
        return pool(F_NTD, None, config.pooling) @ module.readout + module.readout_bias
    if config.pooling != "flatten":
        y = (
            Z_NTD @ (gamma * module.readout)
            + H_NTM @ (block.ffn_out @ module.readout)
            + module.readout_bias
        )
        return y + block.ffn_out_bias @ module.readout if config.layer_norm else y
    readout_TDC = module.readout.view(T, D, C)
    combined_TMC = torch.matmul(block.ffn_out, readout_TDC)
    y = (
        Z_NTD.flatten(1) @ (gamma * module.readout)
        + H_NTM.flatten(1) @ combined_TMC.view(T * M, C)
        + module.readout_bias
    )
    return y + block.ffn_out_bias @ readout_TDC.sum(0) if config.layer_norm else y
