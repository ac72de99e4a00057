"""Random modules and tokens, and the same thing as arguments for the oracle."""

import numpy as np
import torch

from sklearn_restf._data.arrays import RawTokens
from sklearn_restf._data.tokens import TokenLayout
from sklearn_restf._model.initialization import build_module, initial_state
from sklearn_restf._model.module import ModuleConfig

ORACLE_OPTIONS = (
    "residual_beta",
    "ffn_residual_beta",
    "n_layers",
    "n_heads",
    "activation",
    "layer_norm",
    "causal",
    "pooling",
    "positional_encoding",
)


def make_config(ragged=False, **options):
    """A small configuration; ``n_features`` follows from the embedding unless given."""
    options = {
        "n_tokens": 3,
        "token_width": 4,
        "d_model": 4,
        "n_outputs": 2,
        "embedding": "none",
        "d_qk": 3,
        "d_ff": 5,
        "max_tokens": 3,
        "residual_beta": 0.7,
        "ffn_residual_beta": 0.9,
    } | options
    if options["embedding"] == "none":
        options["token_width"] = options["d_model"]
    options.setdefault("n_features", options["token_width"])
    if options.get("positional_encoding") == "learned" or ragged:
        options["max_tokens"] = options["n_tokens"]
    if ragged:
        options["n_tokens"] = None
    return ModuleConfig(**options)


def random_state_of(config, rng, scale=0.6):
    """Every parameter random, biases and LayerNorm's included; fillers of groups stay zero."""
    drawn = initial_state(config, np.random.RandomState(0), init="gaussian", init_scale=1.0)
    state = {name: scale * rng.standard_normal(value.shape) for name, value in drawn.items()}
    if config.embedding == "grouped":
        state["embedding_weight"] *= drawn["embedding_weight"] != 0
    return state


def random_module(config, rng, **options):
    return build_module(config, random_state_of(config, rng), **options)


def random_tokens(config, rng, n_samples=3, lengths=None):
    """Tokens (n, T, W) and a mask, None without `lengths`; what is padded is rubbish."""
    n_tokens = config.n_tokens or config.max_tokens
    x = rng.standard_normal((n_samples, n_tokens, config.token_width))
    if lengths is None:
        return torch.from_numpy(x), None
    mask = np.arange(n_tokens) < np.asarray(lengths)[:, None]
    x[~mask] = 1e3
    return torch.from_numpy(x), torch.from_numpy(mask)


def oracle_options(config):
    return {name: getattr(config, name) for name in ORACLE_OPTIONS}


def raw_tokens_and_layout(config, rng, n_samples, lengths=None):
    """The same kind of input one step earlier, as `Batches` takes it."""
    if lengths is None:
        x = rng.standard_normal((n_samples, config.n_tokens, config.token_width))
        tokens, kind = RawTokens(x), "windows"
    else:
        x = rng.standard_normal((int(np.sum(lengths)), config.token_width))
        tokens, kind = RawTokens(x, np.asarray(lengths)), "ragged"
    return tokens, TokenLayout(kind, config.n_features, config.n_tokens, config.max_tokens)
