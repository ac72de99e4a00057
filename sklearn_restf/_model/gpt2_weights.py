"""A GPT-2 model's blocks under our names: what its config says, and its weights."""

from __future__ import annotations

import json
import os
from typing import Any

import numpy as np

from sklearn_restf._model.gpt2_files import CONFIG, open_model_files, read_tensors
from sklearn_restf._model.module import LAYER_NORM_EPS, ModuleConfig
from sklearn_restf._utils.validation import integer, one_of

# GPT-2's names of activations and ours.
GPT2_ACTIVATIONS = {
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu": "gelu",
    "relu": "relu",
    "tanh": "tanh",
}
SIZES = {
    "n_embd": [integer(1)],
    "n_head": [integer(1)],
    "n_layer": [integer(1, 1000)],  # names are made for each: a damaged file must not ask for 1e9
    "n_inner": [integer(1), one_of(None)],
}
# Our parameter of a block: GPT-2's. The weights of both are (in, out).
BLOCK_NAMES = {
    "output": "attn.c_proj.weight",
    "output_bias": "attn.c_proj.bias",
    "ffn_in": "mlp.c_fc.weight",
    "ffn_in_bias": "mlp.c_fc.bias",
    "ffn_out": "mlp.c_proj.weight",
    "ffn_out_bias": "mlp.c_proj.bias",
    "norm1_weight": "ln_1.weight",
    "norm1_bias": "ln_1.bias",
    "norm2_weight": "ln_2.weight",
    "norm2_bias": "ln_2.bias",
}


def gpt2_block_state(model: str | os.PathLike[str], config: ModuleConfig) -> dict[str, np.ndarray]:
    """Return the weights of the first ``config.n_layers`` blocks under our names, float64."""
    files = open_model_files(model)
    check_fits(read_config(files.require(CONFIG), model), config, model)
    tensors = read_tensors(files, wanted_tensors(config), shapes(config.d_model, config.d_ff))
    state = {}
    for layer in range(config.n_layers):
        for suffix in ("", "_bias"):
            joint = tensors[f"h.{layer}.attn.c_attn.{'bias' if suffix else 'weight'}"]
            names = ("query", "key", "value")
            for name, part in zip(names, np.split(joint, 3, axis=-1), strict=True):
                state[f"blocks.{layer}.{name}{suffix}"] = part.copy()
        for ours, theirs in BLOCK_NAMES.items():
            state[f"blocks.{layer}.{ours}"] = tensors[f"h.{layer}.{theirs}"]
    return state


def read_config(path: str, model: Any) -> dict[str, Any]:
    """Read what matters of config.json, and refuse what our block cannot compute."""
    try:
        with open(path, encoding="utf-8") as stream:
            config = json.load(stream)
    except ValueError as error:
        raise ValueError(f"{path} is not a JSON file: {error}") from error
    kind = config.get("model_type") if isinstance(config, dict) else None
    if kind != "gpt2":
        raise ValueError(
            f"init={str(model)!r}: the model must be a GPT-2, but its config.json says "
            f"model_type={kind!r}."
        )
    # Absent entries mean the published GPT-2's values.
    config = {
        "n_embd": 768,
        "n_head": 12,
        "n_layer": 12,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5,
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        **config,
    }
    for name, allowed in SIZES.items():
        value = config.get(name)
        if not any(constraint.holds(value) for constraint in allowed):
            words = " or ".join(constraint.words for constraint in allowed)
            raise ValueError(
                f"init={str(model)!r}: the model's config.json has {name}={value!r}, which must be "
                f"{words}."
            )
    supported = {
        "layer_norm_epsilon": LAYER_NORM_EPS,
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
    }
    for name, value in supported.items():
        if config[name] != value:
            raise ValueError(
                f"init={str(model)!r}: the model has {name}={config[name]!r}; only {value!r} can "
                "be computed by ResidualTransformer."
            )
    activation = config["activation_function"]
    if not isinstance(activation, str) or activation not in GPT2_ACTIVATIONS:
        raise ValueError(
            f"init={str(model)!r}: the model's activation {config['activation_function']!r} is not "
            f"among those known: {sorted(GPT2_ACTIVATIONS)}."
        )
    return config


def parameters_of(gpt2: dict[str, Any]) -> dict[str, Any]:
    """Return what the estimator's parameters must be."""
    return {
        "token width": gpt2["n_embd"],
        "n_heads": gpt2["n_head"],
        "d_ff": gpt2.get("n_inner") or 4 * gpt2["n_embd"],
        "activation": GPT2_ACTIVATIONS[gpt2["activation_function"]],
        "layer_norm": True,
        "causal": True,
    }


def check_fits(gpt2: dict[str, Any], config: ModuleConfig, model: Any) -> None:
    """Raise unless the module has the shapes and options of the GPT-2 model."""
    expected = parameters_of(gpt2)
    given = {name: getattr(config, name, config.d_model) for name in expected}
    wrong = [name for name in expected if expected[name] != given[name]]
    if wrong:
        needed = ", ".join(f"{name}={expected[name]!r}" for name in wrong)
        found = ", ".join(f"{name}={given[name]!r}" for name in wrong)
        raise ValueError(
            f"init={str(model)!r}: the weights of this GPT-2 model need {needed}; got {found}. "
            "sklearn_restf.pretrained.gpt2_parameters returns parameters that fit; the token "
            "width is d_model or, without d_model, the number of features per token."
        )
    if config.d_qk != config.d_model // config.n_heads:
        raise ValueError(
            f"init={str(model)!r}: the weights of this GPT-2 model need "
            f"d_qk={config.d_model // config.n_heads}; got d_qk={config.d_qk}. Leave d_qk=None."
        )
    if config.n_layers > gpt2["n_layer"]:
        raise ValueError(
            f"init={str(model)!r}: the model has {gpt2['n_layer']} blocks; got "
            f"n_layers={config.n_layers}."
        )


def wanted_tensors(config: ModuleConfig) -> list[str]:
    """Name the tensors of the first blocks, without the prefix that language models have."""
    names = ["attn.c_attn.weight", "attn.c_attn.bias", *BLOCK_NAMES.values()]
    return [f"h.{layer}.{name}" for layer in range(config.n_layers) for name in names]


def shapes(D: int, M: int) -> dict[str, tuple[int, ...]]:
    """Return the shape of each tensor of a block, by the end of its name."""
    return {
        "attn.c_attn.weight": (D, 3 * D),
        "attn.c_attn.bias": (3 * D,),
        "attn.c_proj.weight": (D, D),
        "attn.c_proj.bias": (D,),
        "mlp.c_fc.weight": (D, M),
        "mlp.c_fc.bias": (M,),
        "mlp.c_proj.weight": (M, D),
        "mlp.c_proj.bias": (D,),
        "ln_1.weight": (D,),
        "ln_1.bias": (D,),
        "ln_2.weight": (D,),
        "ln_2.bias": (D,),
    }
