"""Many one-layer models at once: full-batch gradient descent with a leading model axis.

The equations are those of ``sklearn_restf._model.module``, one layer, one head, no biases;
beta is an axis like the seed and the step, so that a whole sweep is one tensor computation. A test
compares it with the package's module. M models, N samples, T tokens, D width, K query width.
"""

from dataclasses import dataclass

import numpy as np
import torch

NAMES = ("query", "key", "value", "ffn_in", "ffn_out", "readout")


@dataclass(frozen=True)
class Sizes:
    """Widths of a one-layer model, and how its weights are drawn."""

    d: int
    d_ff: int
    d_qk: int
    ffn_out_scale: float = 1.0
    wide_logits: bool = False  # W_Q, W_K of variance 1/d_qk instead of 1/d


def draw_weights(sizes, seeds):
    """Return float64 Gaussian fan-in weights, one set per seed: dict of (M, in, out)."""
    shapes = {
        "query": (sizes.d, sizes.d_qk),
        "key": (sizes.d, sizes.d_qk),
        "value": (sizes.d, sizes.d),
        "ffn_in": (sizes.d, sizes.d_ff),
        "ffn_out": (sizes.d_ff, sizes.d),
        "readout": (sizes.d, 1),
    }
    drawn = {name: [] for name in NAMES}
    for seed in seeds:
        rng = np.random.default_rng(seed)
        for name, shape in shapes.items():
            variance = 1 / shape[0]
            if sizes.wide_logits and name in ("query", "key"):
                variance = 1 / sizes.d_qk
            scale = np.sqrt(variance) * (sizes.ffn_out_scale if name == "ffn_out" else 1.0)
            drawn[name].append(scale * rng.standard_normal(shape))
    return {name: torch.from_numpy(np.stack(values)) for name, values in drawn.items()}


def attention_output(weights, x_NTD, beta_M, queries_NQD=None):
    """Return Z (M, N, Q, D) of the tokens that ask: all of them by default."""
    queries_NQD = x_NTD if queries_NQD is None else queries_NQD
    K = weights["query"].shape[-1]
    logits_MDD = weights["query"] @ weights["key"].transpose(1, 2) / np.sqrt(K)
    # (X W_Q W_K^T) X^T and (A X) W_V, each in two products over stacked rows
    keyed_MNQD = torch.einsum("nqd,mde->mnqe", queries_NQD, logits_MDD)
    A_MNQT = torch.softmax(keyed_MNQD @ x_NTD.transpose(1, 2), dim=-1)
    attended_MNQD = torch.einsum("mnqd,mde->mnqe", A_MNQT @ x_NTD, weights["value"])
    return beta_M[:, None, None, None] * queries_NQD + attended_MNQD


def predict(weights, x_NTD, beta_M, pooling, gamma=1.0):
    """Return predictions (M, N) or, with pooling "none", (M, N * T)."""
    Z = attention_output(weights, x_NTD, beta_M, x_NTD[:, -1:] if pooling == "last" else None)
    M, N, T, D = Z.shape
    Z = Z.reshape(M, N * T, D)
    F = gamma * Z + torch.relu(Z @ weights["ffn_in"]) @ weights["ffn_out"]
    y = (F @ weights["readout"]).view(M, N, T)
    return y.mean(2) if pooling == "mean" else y.reshape(M, N * T)


def losses_of(weights, x, y, beta, pooling):
    """Return half the squared error, summed over tokens, mean over samples: (M,)."""
    error = predict(weights, x, beta, pooling) - y
    return 0.5 * (error**2).sum(1) / len(x)


def jacobian_norms(weights, x, beta, pooling, n_iter=60):
    """Return ||J||^2 / N of every model, by power iteration."""
    leaves = {name: value.clone().requires_grad_() for name, value in weights.items()}
    output = predict(leaves, x, beta, pooling)
    dummy = torch.zeros_like(output, requires_grad=True)
    parameters = list(leaves.values())
    pulled = torch.autograd.grad(output, parameters, dummy, create_graph=True)
    rng = np.random.default_rng(0)
    u = torch.from_numpy(rng.standard_normal(output.shape)).to(output)
    for _ in range(n_iter):
        u = u / u.norm(dim=1, keepdim=True)
        back = torch.autograd.grad(output, parameters, u, retain_graph=True)
        (forth,) = torch.autograd.grad(
            pulled, dummy, [piece.detach() for piece in back], retain_graph=True
        )
        norms, u = (forth * u).sum(1), forth
    return norms.detach() / len(x)


def train(weights, x, y, beta, rate, pooling, n_iter):
    """Run gradient descent with one constant rate per model; return losses (n_iter + 1, M).

    A model that diverges has losses of inf from then on.
    """
    theta = {name: value.clone() for name, value in weights.items()}
    history = np.full((n_iter + 1, len(beta)), np.inf)
    shaped = {name: rate.view(-1, *[1] * (value.ndim - 1)) for name, value in theta.items()}
    for iteration in range(n_iter + 1):
        leaves = {name: value.requires_grad_() for name, value in theta.items()}
        loss = losses_of(leaves, x, y, beta, pooling)
        history[iteration] = loss.detach().numpy()
        if iteration == n_iter or not np.isfinite(history[iteration]).any():
            break
        gradients = torch.autograd.grad(loss.sum(), list(leaves.values()))
        with torch.no_grad():
            theta = {
                name: leaf - shaped[name] * gradient
                for (name, leaf), gradient in zip(leaves.items(), gradients, strict=True)
            }
    history[~np.isfinite(history)] = np.inf
    return np.where(np.maximum.accumulate(np.isinf(history), axis=0), np.inf, history)
