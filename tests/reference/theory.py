"""A dense oracle of the convergence theory, for a one-layer one-head model without biases.

Shapes: n samples of T tokens of width d, N = n T rows; d_ff hidden units; k outputs per token. The
loss is the theorem's, 1/2 ||F W_U - Y||_F^2 summed over everything; a loss divided by n has its
constants (alpha, L) divided by n. Everything is written out in matrices: no product is avoided, no
matrix is left implicit. Weights are a dict of "query", "key", "value", "ffn_in", "ffn_out" and
"readout" (W_Q, W_K, W_V, W_1, W_2, W_U). The columns of the Jacobian follow that order; its rows
are (row of Z, output), as in vec of a row-major matrix.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tests.reference.equations import activate, attention_weights

Weights = dict[str, np.ndarray]
NAMES = ("query", "key", "value", "ffn_in", "ffn_out", "readout")

# sup |phi'| and sup |phi''|; ReLU and the identity have no curvature off the kink.
ACTIVATION_SLOPE = {"relu": 1.0, "identity": 1.0, "tanh": 1.0, "gelu": 1.128905}
ACTIVATION_CURVATURE = {
    "relu": 0.0,
    "identity": 0.0,
    "tanh": 4 / (3 * math.sqrt(3)),
    "gelu": 2 / math.sqrt(2 * math.pi),
}


def activation_slope(name: str, u: float) -> float:
    """phi'(u)."""
    if name == "relu":
        return float(u > 0)
    if name == "identity":
        return 1.0
    if name == "tanh":
        return 1 - math.tanh(u) ** 2
    if name == "gelu":
        density = math.exp(-(u**2) / 2) / math.sqrt(2 * math.pi)
        return 0.5 * math.erfc(-u / math.sqrt(2)) + u * density
    raise ValueError(f"no derivative written for activation {name!r}")


def spectral_norm(matrix: np.ndarray) -> float:
    """Largest singular value."""
    return float(np.linalg.svd(matrix, compute_uv=False)[0])


def singular_value(matrix: np.ndarray, r: int) -> float:
    """The r-th largest singular value, zero if the matrix has fewer than r."""
    values = np.linalg.svd(matrix, compute_uv=False)
    return float(values[r - 1]) if r <= len(values) else 0.0


@dataclass(frozen=True)
class Model:
    """Weights, inputs x (n, T, d) and residual factors; targets y are (n, T, k)."""

    weights: Weights
    x: np.ndarray
    beta: float = 1.0
    gamma: float = 1.0
    activation: str = "relu"

    @property
    def n_samples(self) -> int:
        return self.x.shape[0]

    @property
    def n_tokens(self) -> int:
        return self.x.shape[1]

    @property
    def scale(self) -> float:
        """The square root of d_qk."""
        return math.sqrt(self.weights["query"].shape[1])

    def with_weights(self, weights: Weights) -> "Model":
        return Model(weights, self.x, self.beta, self.gamma, self.activation)

    def attention(self) -> np.ndarray:
        """A, (n, T, T)."""
        query, key = self.weights["query"], self.weights["key"]
        return np.array([attention_weights(x @ query, x @ key) for x in self.x])

    def context(self) -> np.ndarray:
        """C: the rows of A_p X_p, stacked, (N, d)."""
        return np.vstack([a @ x for a, x in zip(self.attention(), self.x, strict=True)])

    def z(self) -> np.ndarray:
        """Z = beta X + C W_V, (N, d)."""
        stacked = np.vstack(list(self.x))
        return self.beta * stacked + self.context() @ self.weights["value"]

    def z_per_sample(self) -> np.ndarray:
        """Z_p, (n, T, d)."""
        return self.z().reshape(self.x.shape)

    def before(self) -> np.ndarray:
        """Z W_1, (N, d_ff)."""
        return self.z() @ self.weights["ffn_in"]

    def hidden(self) -> np.ndarray:
        """H = phi(Z W_1), (N, d_ff)."""
        return np.array([[activate(self.activation, u) for u in row] for row in self.before()])

    def slopes(self) -> np.ndarray:
        """phi'(Z W_1), (N, d_ff): row i is the diagonal of D_i."""
        rows = self.before()
        return np.array([[activation_slope(self.activation, u) for u in row] for row in rows])

    def f(self) -> np.ndarray:
        """F = gamma Z + H W_2, (N, d)."""
        return self.gamma * self.z() + self.hidden() @ self.weights["ffn_out"]

    def b(self) -> np.ndarray:
        """B = W_2 W_U, (d_ff, k)."""
        return self.weights["ffn_out"] @ self.weights["readout"]

    def m(self) -> np.ndarray:
        """M_i = (gamma I + W_1 D_i W_2) W_U, (N, d, k): how prediction i depends on row i of Z."""
        w = self.weights
        identity = np.eye(self.x.shape[2])
        feed_forward = [w["ffn_in"] @ np.diag(slope) @ w["ffn_out"] for slope in self.slopes()]
        return np.array([(self.gamma * identity + each) @ w["readout"] for each in feed_forward])

    def predictions(self) -> np.ndarray:
        """F W_U, (N, k)."""
        return self.f() @ self.weights["readout"]

    def errors(self, y: np.ndarray) -> np.ndarray:
        """E = F W_U - Y, (N, k)."""
        return self.predictions() - np.vstack(list(y))

    def loss(self, y: np.ndarray) -> float:
        """Phi = 1/2 ||E||_F^2."""
        return 0.5 * float(np.sum(self.errors(y) ** 2))


def softmax_jacobian(probabilities: np.ndarray) -> np.ndarray:
    """diag(a) - a a^T."""
    return np.diag(probabilities) - np.outer(probabilities, probabilities)


def gradients(model: Model, y: np.ndarray) -> Weights:
    """Gradient of the loss in every weight matrix, by the formulas of the theory."""
    w, errors, attention = model.weights, model.errors(y), model.attention()
    at_z = np.array([m @ error for m, error in zip(model.m(), errors, strict=True)])
    at_hidden = (errors @ model.b().T) * model.slopes()
    found = {
        "query": np.zeros_like(w["query"]),
        "key": np.zeros_like(w["key"]),
        "value": model.context().T @ at_z,
        "ffn_in": model.z().T @ at_hidden,
        "ffn_out": model.hidden().T @ errors @ w["readout"].T,
        "readout": model.f().T @ errors,
    }
    for p, x in enumerate(model.x):
        rows = slice(p * model.n_tokens, (p + 1) * model.n_tokens)
        at_attention = at_z[rows] @ (x @ w["value"]).T
        at_logits = np.array(
            [softmax_jacobian(a) @ row for a, row in zip(attention[p], at_attention, strict=True)]
        )
        found["query"] += x.T @ at_logits @ x @ w["key"] / model.scale
        found["key"] += x.T @ at_logits.T @ x @ w["query"] / model.scale
    return found


def jacobian_blocks(model: Model) -> Weights:
    """Jacobian of vec(F W_U), one dense matrix (N k, size of the weight) per weight matrix."""
    w = model.weights
    z, hidden, slopes, f = model.z(), model.hidden(), model.slopes(), model.f()
    context, b, m, attention = model.context(), model.b(), model.m(), model.attention()
    n_outputs = w["readout"].shape[1]
    rows: dict[str, list[np.ndarray]] = {name: [] for name in NAMES}
    for i in range(len(z)):
        p, t = divmod(i, model.n_tokens)
        x = model.x[p]
        queries, keys, values = x @ w["query"], x @ w["key"], x @ w["value"]
        for output in range(n_outputs):
            unit = np.eye(n_outputs)[output]
            # how the prediction depends on the logits of token t
            logits = softmax_jacobian(attention[p, t]) @ values @ m[i][:, output] / model.scale
            rows["query"].append(np.outer(x[t], logits @ keys))
            rows["key"].append(np.outer(logits @ x, queries[t]))
            rows["value"].append(np.outer(context[i], m[i][:, output]))
            rows["ffn_in"].append(np.outer(z[i], slopes[i] * b[:, output]))
            rows["ffn_out"].append(np.outer(hidden[i], w["readout"][:, output]))
            rows["readout"].append(np.outer(f[i], unit))
    return {name: np.array([np.ravel(row) for row in rows[name]]) for name in NAMES}


def jacobian(model: Model) -> np.ndarray:
    """J, (N k, number of weights)."""
    blocks = jacobian_blocks(model)
    return np.hstack([blocks[name] for name in NAMES])


def tangent_kernel_blocks(model: Model) -> Weights:
    """J_w J_w^T of every weight matrix; their sum is the tangent kernel K."""
    return {name: block @ block.T for name, block in jacobian_blocks(model).items()}


def tangent_kernel(model: Model) -> np.ndarray:
    """K = J J^T, (N k, N k)."""
    return sum(tangent_kernel_blocks(model).values())


def smallest_kernel_eigenvalue(model: Model) -> float:
    """lambda_min(K) = sigma_{N k}(J)^2, from J because forming K would lose half of the digits."""
    found = jacobian(model)
    return singular_value(found, len(found)) ** 2


@dataclass(frozen=True)
class Certificate:
    """Lower bounds on lambda_min of the blocks of K; ``alpha`` bounds lambda_min(K)."""

    readout: float  # [1], an equality
    ffn_out: float  # [2], an equality
    ffn_in_rows: float  # [3a]
    ffn_in_schur: float  # [3b]
    value: float  # [4]

    @property
    def alpha(self) -> float:
        return self.readout + self.ffn_out + max(self.ffn_in_rows, self.ffn_in_schur) + self.value


def certificate(model: Model, rows: Sequence[int] | None = None) -> Certificate:
    """alpha_cert of the model; ``rows`` of Z that are read out, all of them if None.

    With pooling "last" these are the n last rows of the samples: the Jacobian loses all other rows.
    """
    w, z, slopes, b = model.weights, model.z(), model.slopes(), model.b()
    m, n_outputs = model.m(), model.weights["readout"].shape[1]
    rows = list(range(len(z)) if rows is None else rows)
    n = len(rows)
    scaled = [np.diag(slopes[i]) @ b for i in rows]  # D_i B
    gram = np.vstack([np.hstack([left.T @ right for right in scaled]) for left in scaled])
    schur = 0.0
    if n * n_outputs <= len(b):
        # [B^T D_i D_j B] is itself a Gram matrix, of the D_i B side by side
        schur = max(0.0, float(np.linalg.eigvalsh(gram)[0]))
    return Certificate(
        readout=singular_value(model.f()[rows], n) ** 2,
        ffn_out=singular_value(model.hidden()[rows], n) ** 2
        * singular_value(w["readout"], n_outputs) ** 2,
        ffn_in_rows=singular_value(z[rows], n) ** 2
        * min(singular_value(each, n_outputs) for each in scaled) ** 2,
        ffn_in_schur=min(float(z[i] @ z[i]) for i in rows) * schur,
        value=singular_value(model.context()[rows], n) ** 2
        * min(singular_value(m[i], n_outputs) for i in rows) ** 2,
    )


def mean_pooled_certificate(model: Model) -> Certificate:
    """The same for predictions of row means of F: only the two equalities survive averaging."""
    w, shape = model.weights, (model.n_samples, model.n_tokens, -1)
    f, hidden = (each.reshape(shape).mean(axis=1) for each in (model.f(), model.hidden()))
    n_outputs = w["readout"].shape[1]
    return Certificate(
        readout=singular_value(f, len(f)) ** 2,
        ffn_out=singular_value(hidden, len(f)) ** 2 * singular_value(w["readout"], n_outputs) ** 2,
        ffn_in_rows=0.0,
        ffn_in_schur=0.0,
        value=0.0,
    )


def jacobian_norm_bounds(model: Model) -> dict[str, float]:
    """Upper bounds on the squared spectral norm of each block of J [8]; equal for the last two."""
    w, slopes, b = model.weights, model.slopes(), model.b()
    largest_m = max(spectral_norm(m) for m in model.m())
    attended = sum(spectral_norm(x) ** 4 * spectral_norm(x @ w["value"]) ** 2 for x in model.x)
    through_attention = 0.25 * attended * largest_m**2 / model.scale**2
    return {
        "query": through_attention * spectral_norm(w["key"]) ** 2,
        "key": through_attention * spectral_norm(w["query"]) ** 2,
        "value": spectral_norm(model.context()) ** 2 * largest_m**2,
        "ffn_in": spectral_norm(model.z()) ** 2
        * max(spectral_norm(np.diag(slope) @ b) for slope in slopes) ** 2,
        "ffn_out": spectral_norm(model.hidden()) ** 2 * spectral_norm(w["readout"]) ** 2,
        "readout": spectral_norm(model.f()) ** 2,
    }


def second_derivative_bound(model: Model, p: int) -> float:
    """Bound on ||d^2 F_p W_U [u, u]||_F over unit directions u, by the product rule (fdd_p in [9]).

    Norms of first and second derivatives are carried through the equations; each block of u is
    given the whole unit norm, so the bound is safe and loose.
    """
    w, x = {name: spectral_norm(value) for name, value in model.weights.items()}, model.x[p]
    rows = slice(p * model.n_tokens, (p + 1) * model.n_tokens)
    slope, curvature = ACTIVATION_SLOPE[model.activation], ACTIVATION_CURVATURE[model.activation]
    size, values = spectral_norm(x), spectral_norm(x @ model.weights["value"])
    logits = size**2 * (w["query"] + w["key"]) / model.scale
    logits2 = 2 * size**2 / model.scale
    # ||d softmax|| <= 1/2 and ||d^2 softmax[u, u]|| <= ||u||^2
    attention, attention2 = logits / 2, logits**2 + logits2 / 2
    z = attention * values + spectral_norm(model.context()[rows])
    z2 = attention2 * values + 2 * attention * size
    before = z * w["ffn_in"] + spectral_norm(model.z()[rows])
    before2 = z2 * w["ffn_in"] + 2 * z
    hidden, hidden2 = slope * before, curvature * before**2 + slope * before2
    f = model.gamma * z + hidden * w["ffn_out"] + spectral_norm(model.hidden()[rows])
    f2 = model.gamma * z2 + hidden2 * w["ffn_out"] + 2 * hidden
    return f2 * w["readout"] + 2 * f


def hessian_norm_bound(model: Model, y: np.ndarray) -> float:
    """Bound [9] on the spectral norm of the loss's Hessian."""
    errors = model.errors(y).reshape(model.n_samples, -1)
    curvature = sum(
        np.linalg.norm(errors[p]) * second_derivative_bound(model, p)
        for p in range(model.n_samples)
    )
    return spectral_norm(jacobian(model)) ** 2 + float(curvature)
