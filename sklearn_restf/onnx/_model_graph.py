"""The residual Transformer in ONNX operators, in the order of the readable module."""

from __future__ import annotations

import math

import numpy as np

from sklearn_restf._data.tokens import TokenLayout
from sklearn_restf._estimator.fitted_model import FittedModel
from sklearn_restf._model import LAYER_NORM_EPS, ModuleConfig, NumpyState, sinusoidal_positions
from sklearn_restf.onnx._graph_builder import GraphBuilder


def write_model(graph: GraphBuilder, fitted: FittedModel) -> str:
    """Write everything from the input ``X`` to the module's outputs; return their name."""
    config, state = fitted.config, fitted.state
    x_NTW = write_tokens(graph, fitted.layout)
    F_NTD = write_embedding(graph, x_NTW, config, state)
    for layer in range(config.n_layers):
        weights = {
            name.removeprefix(f"blocks.{layer}."): graph.constant(value, name=name)
            for name, value in state.items()
            if name.startswith(f"blocks.{layer}.")
        }
        F_NTD = write_block(graph, F_NTD, config, weights)
    pooled = write_pooling(graph, F_NTD, config)
    raw = graph.add("MatMul", pooled, graph.constant(state["readout"], name="readout"))
    return graph.add("Add", raw, graph.constant(state["readout_bias"], name="readout_bias"))


def write_tokens(graph: GraphBuilder, layout: TokenLayout) -> str:
    """Standardise the samples and cut them into tokens (N, T, W)."""
    assert layout.n_tokens is not None
    table = layout.kind == "table"
    x = "X" if table else graph.reshape("X", layout.n_tokens, layout.n_features)
    if layout.mean is not None and layout.scale is not None:
        # in float64, or the mean of a channel far from zero would cost digits
        x = graph.cast(x, np.float64)
        x = graph.add("Sub", x, graph.constant(layout.mean, np.float64))
        x = graph.add("Div", x, graph.constant(layout.scale, np.float64))
        x = graph.cast(x, graph.dtype)
    if not table:
        return x
    columns = layout.group_columns()
    if (columns == layout.n_features).any():  # narrower groups take a column of zeros
        x = graph.add("Pad", x, graph.indices([0, 0, 0, 1]), graph.constant(0.0))
        x = graph.add("Gather", x, graph.indices(columns.ravel()), axis=1)
    return graph.reshape(x, *columns.shape)


def write_embedding(graph: GraphBuilder, x: str, config: ModuleConfig, state: NumpyState) -> str:
    """Write F_0: the tokens, embedded and with positions where asked for."""
    T, D = config.n_tokens, config.d_model
    assert T is not None
    if config.embedding != "none":
        weight = graph.constant(state["embedding_weight"], name="embedding_weight")
        if config.embedding == "grouped":  # a matrix of its own for every token
            x = graph.reshape(x, T, 1, config.token_width)
            x = graph.reshape(graph.add("MatMul", x, weight), T, D)
        else:
            x = graph.add("MatMul", x, weight)
        x = graph.add("Add", x, graph.constant(state["embedding_bias"], name="embedding_bias"))
    if config.positional_encoding == "learned":
        x = graph.add("Add", x, graph.constant(state["position"][:T], name="position"))
    elif config.positional_encoding == "sinusoidal":
        x = graph.add("Add", x, graph.constant(sinusoidal_positions(T, D), name="position"))
    return x


def write_block(graph: GraphBuilder, F: str, config: ModuleConfig, weights: dict[str, str]) -> str:
    """Write one layer."""
    T, D, H, K = config.n_tokens, config.d_model, config.n_heads, config.d_qk
    assert T is not None

    def normalised(x: str, which: str) -> str:
        if not config.layer_norm:
            return x
        scale_and_shift = weights[f"{which}_weight"], weights[f"{which}_bias"]
        return graph.add("LayerNormalization", x, *scale_and_shift, epsilon=LAYER_NORM_EPS)

    def linear(x: str, name: str) -> str:
        y = graph.add("MatMul", x, weights[name])
        return graph.add("Add", y, weights[f"{name}_bias"]) if config.layer_norm else y

    def heads(x: str, width: int) -> str:
        return graph.add("Transpose", graph.reshape(x, T, H, width), perm=[0, 2, 1, 3])

    X = normalised(F, "norm1")
    q_NHTK, k_NHTK = heads(linear(X, "query"), K), heads(linear(X, "key"), K)
    v_NHTV = heads(linear(X, "value"), D // H)
    k_NHKT = graph.add("Transpose", k_NHTK, perm=[0, 1, 3, 2])
    logits = graph.add("MatMul", q_NHTK, k_NHKT)
    logits = graph.add("Div", logits, graph.constant(math.sqrt(K)))
    if config.causal:
        hidden = np.triu(np.full((T, T), -np.inf), k=1)  # token t sees tokens s <= t
        logits = graph.add("Add", logits, graph.constant(hidden))
    attention = graph.add("Softmax", logits, axis=-1)

    attended = graph.add("MatMul", attention, v_NHTV)
    attended = graph.reshape(graph.add("Transpose", attended, perm=[0, 2, 1, 3]), T, D)
    if "output" in weights:
        attended = linear(attended, "output")
    Z = residual(graph, config.residual_beta, F, attended)
    hidden_NTM = write_activation(graph, linear(normalised(Z, "norm2"), "ffn_in"), config)
    return residual(graph, config.ffn_residual_beta, Z, linear(hidden_NTM, "ffn_out"))


def residual(graph: GraphBuilder, strength: float, x: str, update: str) -> str:
    """Write ``strength x + update``."""
    return graph.add("Add", graph.add("Mul", graph.constant(strength), x), update)


def write_activation(graph: GraphBuilder, x: str, config: ModuleConfig) -> str:
    """Write the activation function, in operators that onnxruntime has for float64 too."""

    def half_x_times_one_plus(y: str) -> str:
        half_x = graph.add("Mul", x, graph.constant(0.5))
        return graph.add("Mul", half_x, graph.add("Add", y, graph.constant(1.0)))

    name = config.activation
    if name == "relu":
        return graph.add("Relu", x)
    if name == "tanh":
        return graph.add("Tanh", x)
    if name == "leaky_relu":
        return graph.add("Max", x, graph.add("Mul", x, graph.constant(0.01)))
    if name == "gelu":
        scaled = graph.add("Mul", x, graph.constant(math.sqrt(0.5)))
        error_function = graph.add("Erf", graph.cast(scaled, np.float32))
        return half_x_times_one_plus(graph.cast(error_function, graph.dtype))
    if name == "gelu_tanh":
        cube = graph.add("Mul", graph.add("Mul", x, x), x)
        inner = graph.add("Add", x, graph.add("Mul", cube, graph.constant(0.044715)))
        inner = graph.add("Mul", inner, graph.constant(math.sqrt(2 / math.pi)))
        return half_x_times_one_plus(graph.add("Tanh", inner))
    assert name == "identity"
    return x


def write_pooling(graph: GraphBuilder, F: str, config: ModuleConfig) -> str:
    """Write what the readout looks at."""
    assert config.n_tokens is not None
    if config.pooling == "mean":
        return graph.add("ReduceMean", F, axes=[1], keepdims=0)
    if config.pooling == "last":
        return graph.add("Gather", F, graph.constant(config.n_tokens - 1, np.int64), axis=1)
    if config.pooling == "flatten":
        return graph.reshape(F, config.n_tokens * config.d_model)
    assert config.pooling == "none"
    return F
