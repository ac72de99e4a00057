"""The lower bound alpha_cert on the smallest eigenvalue of the tangent kernel.

For squared error, with the Jacobian J of the stacked predictions and K = J J^T,
``||grad Phi||^2 >= 2 lambda_min(K) Phi``. K is a sum of positive semidefinite blocks, one
per weight matrix, and four of them have a computable lower bound:

* readout:       sigma_N(F)^2                                     (needs N <= d)
* W_2:           sigma_N(H)^2 sigma_k(W_U)^2                      (N <= d_ff, k <= d)
* W_1:           max of sigma_N(Z)^2 min_i sigma_k(D_i W_2 W_U)^2 (N <= d, k <= d_ff) and
                 min_i |z_i|^2 lambda_min([B^T D_i D_j B]_ij)     (N k <= d_ff)
* W_V:           sigma_N(A F)^2 min_i sigma_k(M_i)^2              (N <= d, k <= d)

with one row per prediction, ``B = W_2 W_U`` and ``M_i = (gamma I + W_1 D_i W_2) W_U``.
Sources: arXiv 2506.05249v4, and the derivation on the theory page. Further parameters (an
embedding, earlier layers, biases) only add positive semidefinite blocks, so the bound
stays valid for the last layer of any model of this family.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from sklearn_restf._diagnostics.singular_values import singular_values
from sklearn_restf._model import ACTIVATIONS, LayerOutput, ResidualTransformer, pool

SCHUR_LIMIT = 512  # largest N k for which the dense kernel of the W_1 bound is formed


@dataclass(frozen=True)
class Certificate:
    """alpha_cert with its four blocks, for the loss summed over predictions."""

    readout: float = 0.0
    ffn_out: float = 0.0
    ffn_in: float = 0.0
    value: float = 0.0
    reason: str = ""  # why it is zero or not defined

    @property
    def alpha(self) -> float:
        """The certified lower bound on lambda_min(K)."""
        return self.readout + self.ffn_out + self.ffn_in + self.value


def square(value: float) -> float:
    """Return the square; infinity where ``**`` would raise OverflowError."""
    return value * value


def smallest_singular_value(matrix: np.ndarray, rank: int) -> float:
    """Return the `rank`-th largest singular value, zero if there are fewer."""
    if rank > min(matrix.shape):
        return 0.0
    return float(singular_values(matrix)[rank - 1])


def weakest(matrices: np.ndarray, rank: int) -> float:
    """Return the smallest of the `rank`-th singular values of a stack of matrices."""
    if rank > min(matrices.shape[-2:]):
        return 0.0
    return float(singular_values(matrices)[:, rank - 1].min())


def certify(
    module: ResidualTransformer,
    inputs: torch.Tensor,
    output: LayerOutput,
    mask: torch.Tensor | None,
) -> Certificate:
    """Compute the certificate of a float64 module.

    Parameters
    ----------
    module : ResidualTransformer
        The model; the bound uses its last layer and the readout.
    inputs : Tensor of shape (n, T, d)
        What the last layer received, for all training samples.
    output : LayerOutput
        What the last layer made of it.
    mask : Tensor of shape (n, T) or None
        True for real tokens.
    """
    config, block = module.config, module.blocks[-1]
    pooling = config.pooling
    with torch.no_grad():
        ffn_input = block.normalise(output.Z, "norm2")
        preactivation = block.linear(ffn_input, "ffn_in")
        H = ACTIVATIONS[config.activation](preactivation)

    def rows(tensor: torch.Tensor) -> np.ndarray:
        """Return one row per prediction."""
        if pooling == "none":
            tensor = tensor.flatten(0, 1) if mask is None else tensor[mask]
        else:
            tensor = pool(tensor, mask, pooling)
        return tensor.detach().numpy()

    W_U = module.readout.detach().numpy()
    F_rows = rows(output.F)
    N, k = len(F_rows), W_U.shape[1]
    readout = square(smallest_singular_value(F_rows, N))
    if pooling == "flatten":
        # W_2 and below see all tokens of a sample at once: no bound was derived for them
        return Certificate(readout, reason=_reason(readout, N, F_rows.shape[1], config.d_ff))
    sigma_U = smallest_singular_value(W_U, k)
    ffn_out = square(smallest_singular_value(rows(H), N)) * square(sigma_U)
    ffn_in = value = 0.0
    if pooling != "mean":  # with mean pooling the rows of Z enter only through their mean
        slopes = activation_slopes(config.activation, preactivation)
        D_rows, Z_rows = rows(slopes), rows(ffn_input)
        B = (block.ffn_out @ module.readout).detach().numpy()
        ffn_in = _ffn_in_block(Z_rows, D_rows, B)
        if not config.layer_norm and config.n_heads == 1:
            C_rows = rows((output.attention[:, 0] @ inputs).detach())
            W_1 = block.ffn_in.detach().numpy()
            M = config.ffn_residual_beta * W_U[None] + np.einsum("dm,nm,mk->ndk", W_1, D_rows, B)
            value = square(smallest_singular_value(C_rows, N)) * square(weakest(M, k))
    certificate = Certificate(readout, ffn_out, ffn_in, value)
    reason = _reason(certificate.alpha, N, config.d_model, config.d_ff)
    return Certificate(readout, ffn_out, ffn_in, value, reason)


def _ffn_in_block(Z: np.ndarray, D: np.ndarray, B: np.ndarray) -> float:
    """Bound the W_1 block: the better of the rank route and the Schur-product route."""
    N, k = len(Z), B.shape[1]
    sigma_Z = smallest_singular_value(Z, N)
    rank_route = 0.0
    if sigma_Z > 0:
        rank_route = square(sigma_Z) * square(weakest(D[:, :, None] * B, k))
    schur_route = 0.0
    if N * k <= min(B.shape[0], SCHUR_LIMIT):
        stacked = (D[:, :, None] * B[None]).transpose(0, 2, 1).reshape(N * k, -1)
        smallest = smallest_singular_value(stacked, N * k)
        schur_route = float((Z**2).sum(1).min()) * smallest**2
    return max(rank_route, schur_route)


def _reason(alpha: float, N: int, d: int, d_ff: int) -> str:
    if np.isnan(alpha):
        return "the singular value decomposition did not converge"
    if alpha > 0:
        return ""
    if max(d, d_ff) < N:
        return (
            f"the certificate needs at most max(d, d_ff) = {max(d, d_ff)} predictions; there are "
            f"{N}"
        )
    return "the stacked features are rank-deficient"


def activation_slopes(activation: str, preactivation: torch.Tensor) -> torch.Tensor:
    """Return phi' at the preactivations."""
    x = preactivation.detach().requires_grad_()
    (slopes,) = torch.autograd.grad(ACTIVATIONS[activation](x).sum(), x)
    return slopes
