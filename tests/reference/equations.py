"""A slow, exact float64 oracle of the residual Transformer, written from its equations.

Nothing is vectorised over samples, tokens or heads and nothing is imported from the package: an
error in the package cannot hide in the oracle. Per sample, with rows as tokens::

    A_l = softmax((F W_Q)(F W_K)^T / sqrt(d_qk))    per head
    Z_l = beta F + A_l F W_V                        heads side by side, then the output projection
    F_l = gamma Z_l + phi(Z_l W_1) W_2
    prediction = pool(F_L) W_U + b

With ``layer_norm=True`` attention and feed-forward read a normalised copy of F and of Z, and every
linear map has a bias. Parameters are a dict of arrays under the names of the module's state dict.
A ragged batch is given as right-padded ``x`` plus ``lengths``: the padding is cut off before
anything is computed, which is what a mask has to amount to.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

Parameters = dict[str, np.ndarray]
LAYER_NORM_EPSILON = 1e-5


class Forward(NamedTuple):
    """Predictions, the tokens F_0 of each sample, and what each layer computed.

    ``layers[l]`` maps "attention", "attention_output", "Z" and "F" to a list over the samples of
    arrays (n_heads, T, T), (T, D), (T, D) and (T, D), T being the sample's real length.
    "attention_output" is what is added to ``beta F``. Predictions are (n, k), or (n, T_max, k) with
    pooling "none", NaN at padding.
    """

    predictions: np.ndarray
    tokens: list[np.ndarray]
    layers: list[dict[str, list[np.ndarray]]]


def activate(name: str, u: float) -> float:
    """Activation function of one number."""
    if name == "relu":
        return max(u, 0.0)
    if name == "leaky_relu":
        return u if u > 0 else 0.01 * u
    if name == "gelu":
        return u * 0.5 * math.erfc(-u / math.sqrt(2))
    if name == "gelu_tanh":
        return 0.5 * u * (1 + math.tanh(math.sqrt(2 / math.pi) * (u + 0.044715 * u**3)))
    if name == "tanh":
        return math.tanh(u)
    if name == "identity":
        return u
    raise ValueError(f"unknown activation {name!r}")


def softmax(logits: Sequence[float]) -> np.ndarray:
    """Softmax of one row, safe against overflow."""
    largest = max(logits)
    exponentials = [math.exp(value - largest) for value in logits]
    total = math.fsum(exponentials)
    return np.array([value / total for value in exponentials])


def layer_normalise(row: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """LayerNorm of one token, with the biased variance."""
    mean = math.fsum(row) / len(row)
    variance = math.fsum((value - mean) ** 2 for value in row) / len(row)
    return (row - mean) / math.sqrt(variance + LAYER_NORM_EPSILON) * weight + bias


def sinusoidal_encoding(n_tokens: int, width: int) -> np.ndarray:
    """Sine at even and cosine at odd coordinates, (n_tokens, width)."""
    encoding = np.zeros((n_tokens, width))
    for t in range(n_tokens):
        for j in range(width):
            angle = t / 10000 ** (2 * (j // 2) / width)
            encoding[t, j] = math.sin(angle) if j % 2 == 0 else math.cos(angle)
    return encoding


def group_features(x: np.ndarray, n_groups: int) -> np.ndarray:
    """Groups of adjacent features (n, G, g) of a table (n, p), narrow ones filled with zeros."""
    groups = np.array_split(np.arange(x.shape[1]), n_groups)
    grouped = np.zeros((len(x), n_groups, max(len(group) for group in groups)))
    for j, group in enumerate(groups):
        grouped[:, j, : len(group)] = x[:, group]
    return grouped


def embed_table(x: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """Tokens (n, G, d_model) of a table (n, p), or of its groups (n, G, g): one map per group."""
    grouped = group_features(x, len(weight)) if x.ndim == 2 else x
    groups = range(len(weight))
    return np.array([[sample[j] @ weight[j] + bias[j] for j in groups] for sample in grouped])


def embed_tokens(x: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """Tokens (n, T, d_model) of (n, T, c): one linear map for all tokens."""
    return np.array([[token @ weight + bias for token in sample] for sample in x])


def attention_weights(queries: np.ndarray, keys: np.ndarray, causal: bool = False) -> np.ndarray:
    """Attention (T, T) of one head, from its queries and keys (T, d_qk)."""
    n_tokens, d_qk = queries.shape
    attention = np.zeros((n_tokens, n_tokens))
    for t in range(n_tokens):
        visible = t + 1 if causal else n_tokens
        logits = [queries[t] @ keys[s] / math.sqrt(d_qk) for s in range(visible)]
        attention[t, :visible] = softmax(logits)
    return attention


def _linear(f: np.ndarray, params: Parameters, name: str, biased: bool) -> np.ndarray:
    rows = [row @ params[name] for row in f]
    return np.array([row + params[f"{name}_bias"] for row in rows] if biased else rows)


def _normalised(f: np.ndarray, params: Parameters, name: str) -> np.ndarray:
    weight, bias = params[f"{name}_weight"], params[f"{name}_bias"]
    return np.array([layer_normalise(row, weight, bias) for row in f])


def block(
    f: np.ndarray,
    params: Parameters,
    prefix: str,
    *,
    residual_beta: float,
    ffn_residual_beta: float,
    n_heads: int,
    activation: str,
    layer_norm: bool,
    causal: bool,
) -> dict[str, np.ndarray]:
    """One layer on one sample ``f`` (T, D); ``prefix`` is "blocks.{l}"."""
    seen = _normalised(f, params, f"{prefix}.norm1") if layer_norm else f
    queries = _linear(seen, params, f"{prefix}.query", layer_norm)
    keys = _linear(seen, params, f"{prefix}.key", layer_norm)
    values = _linear(seen, params, f"{prefix}.value", layer_norm)
    n_tokens, width = f.shape
    d_qk, d_value = queries.shape[1] // n_heads, width // n_heads
    attention = np.zeros((n_heads, n_tokens, n_tokens))
    mixed = np.zeros((n_tokens, width))
    for head in range(n_heads):
        of_qk = slice(head * d_qk, (head + 1) * d_qk)
        of_value = slice(head * d_value, (head + 1) * d_value)
        attention[head] = attention_weights(queries[:, of_qk], keys[:, of_qk], causal)
        for t in range(n_tokens):
            for s in range(n_tokens):
                mixed[t, of_value] += attention[head, t, s] * values[s, of_value]
    projected = n_heads > 1 or layer_norm
    output = _linear(mixed, params, f"{prefix}.output", layer_norm) if projected else mixed
    z = residual_beta * f + output

    seen = _normalised(z, params, f"{prefix}.norm2") if layer_norm else z
    before = _linear(seen, params, f"{prefix}.ffn_in", layer_norm)
    hidden = np.array([[activate(activation, u) for u in row] for row in before])
    f_next = ffn_residual_beta * z + _linear(hidden, params, f"{prefix}.ffn_out", layer_norm)
    return {"attention": attention, "attention_output": output, "Z": z, "F": f_next}


def embed(
    params: Parameters,
    x: np.ndarray,
    lengths: Sequence[int] | None,
    positional_encoding: str | None,
) -> list[np.ndarray]:
    """F_0 of every sample, the padding cut off."""
    x = np.asarray(x, dtype=np.float64)
    if "embedding_weight" in params:
        weight, bias = params["embedding_weight"], params["embedding_bias"]
        x = embed_table(x, weight, bias) if weight.ndim == 3 else embed_tokens(x, weight, bias)
    n_samples, n_tokens, width = x.shape
    tokens = []
    for p in range(n_samples):
        length = n_tokens if lengths is None else int(lengths[p])
        f = x[p, :length].copy()
        if positional_encoding == "sinusoidal":
            f += sinusoidal_encoding(length, width)
        elif positional_encoding == "learned":
            f += params["position"][:length]
        elif positional_encoding is not None:
            raise ValueError(f"unknown positional_encoding {positional_encoding!r}")
        tokens.append(f)
    return tokens


def read_out(f: np.ndarray, params: Parameters, pooling: str) -> np.ndarray:
    """Prediction (k,) of one sample from its F_L (T, D); (T, k) with pooling "none"."""
    weight, bias = params["readout"], params["readout_bias"]
    if pooling == "none":
        return np.array([row @ weight + bias for row in f])
    if pooling == "mean":
        pooled = sum(f[t] for t in range(len(f))) / len(f)
    elif pooling == "last":
        pooled = f[len(f) - 1]
    elif pooling == "flatten":
        pooled = np.concatenate([f[t] for t in range(len(f))])
    else:
        raise ValueError(f"unknown pooling {pooling!r}")
    return pooled @ weight + bias


def forward(
    params: Parameters,
    x: np.ndarray,
    lengths: Sequence[int] | None = None,
    *,
    residual_beta: float = 1.0,
    ffn_residual_beta: float | None = None,
    n_layers: int = 1,
    n_heads: int = 1,
    activation: str = "relu",
    layer_norm: bool = False,
    causal: bool = False,
    pooling: str = "mean",
    positional_encoding: str | None = None,
) -> Forward:
    """Run the model on one batch: ``x`` is (n, T, c), or (n, p) if the embedding is a table's."""
    params = {name: np.asarray(value, dtype=np.float64) for name, value in params.items()}
    gamma = residual_beta if ffn_residual_beta is None else ffn_residual_beta
    options = {
        "residual_beta": residual_beta,
        "ffn_residual_beta": gamma,
        "n_heads": n_heads,
        "activation": activation,
        "layer_norm": layer_norm,
        "causal": causal,
    }
    tokens = embed(params, x, lengths, positional_encoding)
    layers = [{"attention": [], "attention_output": [], "Z": [], "F": []} for _ in range(n_layers)]
    results = []
    for f in tokens:
        for layer in range(n_layers):
            found = block(f, params, f"blocks.{layer}", **options)
            for name, value in found.items():
                layers[layer][name].append(value)
            f = found["F"]
        results.append(read_out(f, params, pooling))
    if pooling != "none":
        return Forward(np.array(results), tokens, layers)
    n_tokens = np.shape(x)[1] if np.ndim(x) == 3 else len(tokens[0])
    predictions = np.full((len(results), n_tokens, results[0].shape[1]), np.nan)
    for p, result in enumerate(results):
        predictions[p, : len(result)] = result
    return Forward(predictions, tokens, layers)


def _weighted_mean(losses: list[float], sample_weight: Sequence[float] | None) -> float:
    weights = [1.0] * len(losses) if sample_weight is None else sample_weight
    return math.fsum(w * v for w, v in zip(weights, losses, strict=True)) / math.fsum(weights)


def squared_error(
    predictions: np.ndarray,
    y: np.ndarray,
    sample_weight: Sequence[float] | None = None,
    lengths: Sequence[int] | None = None,
) -> float:
    """Weighted mean over the samples of half the squared error, summed over tokens and outputs.

    ``lengths`` limits predictions for every token (n, T, k) to the real ones.
    """
    if np.shape(predictions) != np.shape(y):
        raise ValueError(f"predictions {np.shape(predictions)} and y {np.shape(y)} differ in shape")
    losses = []
    for p in range(len(y)):
        errors = np.subtract(predictions[p], y[p])
        if lengths is not None:
            errors = errors[: int(lengths[p])]
        losses.append(0.5 * math.fsum(np.ravel(errors) ** 2))
    return _weighted_mean(losses, sample_weight)


def log_loss_binary(
    logits: np.ndarray, y: Sequence[int], sample_weight: Sequence[float] | None = None
) -> float:
    """Weighted mean of log(1 + exp(-s f)), s = 1 for class 1 and -1 for class 0, f one logit."""
    losses = []
    for logit, label in zip(np.ravel(logits), y, strict=True):
        margin = float(logit) if label == 1 else -float(logit)
        losses.append(max(-margin, 0.0) + math.log1p(math.exp(-abs(margin))))
    return _weighted_mean(losses, sample_weight)


def log_loss_multinomial(
    logits: np.ndarray, y: Sequence[int], sample_weight: Sequence[float] | None = None
) -> float:
    """Weighted mean of logsumexp(f) - f_y for logits (n, k) and class indices y."""
    losses = []
    for row, label in zip(logits, y, strict=True):
        largest = max(row)
        total = math.fsum(math.exp(value - largest) for value in row)
        losses.append(largest + math.log(total) - row[label])
    return _weighted_mean(losses, sample_weight)


def is_weight_matrix(name: str) -> bool:
    """Whether the L2 penalty counts this parameter: no bias, LayerNorm parameter or position."""
    return not (name.endswith("bias") or ".norm" in name or name == "position")


def l2_penalty(params: Parameters, alpha: float) -> float:
    """alpha/2 times the sum of squares of the weight matrices."""
    counted = [value for name, value in params.items() if is_weight_matrix(name)]
    return 0.5 * alpha * math.fsum(np.sum(np.square(value)) for value in counted)


def _central_difference(f: Callable[[float], float], step: float) -> tuple[float, float]:
    """Derivative at 0 extrapolated from step, step/2 and step/4, and an estimate of its error."""
    coarse, middle, fine = ((f(h) - f(-h)) / (2 * h) for h in (step, step / 2, step / 4))
    first, second = (4 * middle - coarse) / 3, (4 * fine - middle) / 3
    best = (16 * second - first) / 15
    return best, max(abs(best - second), abs(second - first))


def numerical_gradient(
    f: Callable[[Parameters], float],
    params: Parameters,
    step: float = 4e-3,
    tolerance: float = 1e-8,
) -> Parameters:
    """Gradient of ``f(params)`` by extrapolated central differences, to about 1e-9 relative.

    Where the extrapolations disagree (the kink of a ReLU within the step), the step is made smaller
    and the estimate with the smallest apparent error is taken. ``params`` are not modified.
    """
    params = {name: np.array(value, dtype=np.float64) for name, value in params.items()}
    gradient = {name: np.zeros_like(value) for name, value in params.items()}
    for name, value in params.items():
        for index in np.ndindex(value.shape):
            start = value[index]

            def shifted(change, value=value, index=index, start=start):
                value[index] = start + change
                result = f(params)
                value[index] = start
                return float(result)

            candidates = []
            for shrink in (1, 8, 64, 512):
                estimate, error = _central_difference(shifted, step / shrink)
                candidates.append((error, estimate))
                if error <= tolerance * max(1.0, abs(estimate)):
                    break
            gradient[name][index] = min(candidates)[1]
    return gradient
