"""The residual Transformer in ONNX operators, in the order of the readable module."""

from __future__ import annotations

import math

import numpy as np

from sklearn_restf._data.tokens import TokenLayout
from sklearn_restf._estimator.fitted_model import FittedModel
from sklearn_restf._model import LAYER_NORM_EPS, ModuleConfig, sinusoidal_positions
from sklearn_restf.onnx._graph_builder import GraphBuilder, Value

Weights = dict[str, Value]


def write_model(graph: GraphBuilder, fitted: FittedModel) -> Value:
    """Write everything from the input to the module's outputs."""
    config = fitted.config
    weights = {name: graph.constant(value, name=name) for name, value in fitted.state.items()}
    x_NTW = write_tokens(graph, fitted.layout)
    F_NTD = write_embedding(x_NTW, config, weights)
    for layer in range(config.n_layers):
        prefix = f"blocks.{layer}."
        of_block = {n.removeprefix(prefix): w for n, w in weights.items() if n.startswith(prefix)}
        F_NTD = write_block(F_NTD, config, of_block)
    return write_pooling(F_NTD, config) @ weights["readout"] + weights["readout_bias"]


def write_tokens(graph: GraphBuilder, layout: TokenLayout) -> Value:
    """Standardise the samples and cut them into tokens (N, T, W)."""
    assert layout.n_tokens is not None
    table = layout.kind == "table"
    x = graph.input if table else graph.input.reshape(layout.n_tokens, layout.n_features)
    if layout.mean is not None and layout.scale is not None:
        # in float64, or the mean of a channel far from zero would cost digits
        mean, scale = (graph.constant(each, np.float64) for each in (layout.mean, layout.scale))
        x = ((x.cast(np.float64) - mean) / scale).cast(graph.dtype)
    if not table:
        return x
    columns = layout.group_columns()
    if (columns == layout.n_features).any():  # narrower groups take a column of zeros
        x = x.apply("Pad", [0, 0, 0, 1], 0.0).apply("Gather", columns.ravel(), axis=1)
    return x.reshape(*columns.shape)


def write_embedding(x: Value, config: ModuleConfig, weights: Weights) -> Value:
    """Write F_0: the tokens, embedded and with positions where asked for."""
    T, D = config.n_tokens, config.d_model
    assert T is not None
    if config.embedding == "grouped":  # a matrix of its own for every token
        x = (x.reshape(T, 1, config.token_width) @ weights["embedding_weight"]).reshape(T, D)
    elif config.embedding != "none":
        x = x @ weights["embedding_weight"]
    if config.embedding != "none":
        x = x + weights["embedding_bias"]
    if config.positional_encoding == "learned":
        x = x + weights["position"]
    elif config.positional_encoding == "sinusoidal":
        x = x + sinusoidal_positions(T, D)
    return x


def write_block(F: Value, config: ModuleConfig, weights: Weights) -> Value:
    """Write one layer."""
    T, D, H, K = config.n_tokens, config.d_model, config.n_heads, config.d_qk
    assert T is not None

    def normalised(x: Value, which: str) -> Value:
        if not config.layer_norm:
            return x
        scale_and_shift = weights[f"{which}_weight"], weights[f"{which}_bias"]
        return x.apply("LayerNormalization", *scale_and_shift, epsilon=LAYER_NORM_EPS)

    def linear(x: Value, name: str) -> Value:
        y = x @ weights[name]
        return y + weights[f"{name}_bias"] if config.layer_norm else y

    def heads(x: Value, width: int) -> Value:
        return x.reshape(T, H, width).transpose(0, 2, 1, 3)

    X = normalised(F, "norm1")
    q_NHTK, k_NHTK = heads(linear(X, "query"), K), heads(linear(X, "key"), K)
    v_NHTV = heads(linear(X, "value"), D // H)
    logits = q_NHTK @ k_NHTK.transpose(0, 1, 3, 2) / math.sqrt(K)
    if config.causal:
        logits = logits + np.triu(np.full((T, T), -np.inf), k=1)  # token t sees tokens s <= t
    attention = logits.apply("Softmax", axis=-1)
    attended = (attention @ v_NHTV).transpose(0, 2, 1, 3).reshape(T, D)
    if "output" in weights:
        attended = linear(attended, "output")
    Z = float(config.residual_beta) * F + attended
    hidden_NTM = write_activation(linear(normalised(Z, "norm2"), "ffn_in"), config.activation)
    return float(config.ffn_residual_beta) * Z + linear(hidden_NTM, "ffn_out")


def write_activation(x: Value, name: str) -> Value:
    """Write the activation function, in operators that onnxruntime has for float64 too."""
    if name == "relu":
        return x.apply("Relu")
    if name == "tanh":
        return x.apply("Tanh")
    if name == "leaky_relu":
        return x.apply("Max", 0.01 * x)
    if name == "gelu":
        error_function = (math.sqrt(0.5) * x).cast(np.float32).apply("Erf").cast(x.graph.dtype)
        return 0.5 * x * (error_function + 1.0)
    if name == "gelu_tanh":
        inner = math.sqrt(2 / math.pi) * (x + 0.044715 * (x * x * x))
        return 0.5 * x * (inner.apply("Tanh") + 1.0)
    assert name == "identity"
    return x


def write_pooling(F: Value, config: ModuleConfig) -> Value:
    """Write what the readout looks at."""
    assert config.n_tokens is not None
    if config.pooling == "mean":
        return F.apply("ReduceMean", axes=[1], keepdims=0)
    if config.pooling == "last":
        return F.apply("Gather", config.n_tokens - 1, axis=1)
    if config.pooling == "flatten":
        return F.reshape(config.n_tokens * config.d_model)
    assert config.pooling == "none"
    return F
