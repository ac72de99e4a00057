"""Initial weights from a pretrained GPT-2 model (extra: ``text``).

With ``n_heads``, ``layer_norm``, ``causal`` and ``activation="gelu_tanh"`` a layer of the residual
Transformer is a GPT-2 block, so that the weights of one fit the other. With
``residual_beta=1`` the model then computes what GPT-2 computes.
"""

from __future__ import annotations

import json
import os
from typing import Any

import numpy as np

from sklearn_restf._model_files import CONFIG, open_model_files, read_tensors
from sklearn_restf._module import LAYER_NORM_EPS, ModuleConfig
from sklearn_restf._parameters import integer, one_of

# GPT-2's names of activations and ours.
_ACTIVATIONS = {
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu": "gelu",
    "relu": "relu",
    "tanh": "tanh",
}
_SIZES = {
    "n_embd": [integer(1)],
    "n_head": [integer(1)],
    "n_layer": [integer(1, 1000)],  # names are made for each: a damaged file must not ask for 1e9
    "n_inner": [integer(1), one_of(None)],
}
# Our parameter of a block: GPT-2's. The weights of both are (in, out).
_BLOCK_NAMES = {
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


def gpt2_parameters(
    model: str | os.PathLike[str], *, n_layers: int | None = None
) -> dict[str, Any]:
    """Return the estimator parameters with which a GPT-2 model's weights can be loaded.

    Only the model's ``config.json`` is read.

    Parameters
    ----------
    model : str or path-like
        Folder of a GPT-2 model in Hugging Face's format, or its name on the hub.
    n_layers : int, default=None
        Use the first `n_layers` blocks; all of them by default.

    Returns
    -------
    parameters : dict
        ``init``, ``n_layers``, ``n_heads``, ``d_ff``, ``activation``, ``layer_norm``, ``causal``.
        The tokens must be as wide as the model (768 for the smallest GPT-2), or ``d_model``
        must be set to that width.

    Raises
    ------
    OSError
        If there is no such model.
    ValueError
        If it is not a GPT-2 model, or `n_layers` is more than it has.

    See Also
    --------
    sklearn_restf.preprocessing.TextTokenEmbedder : With ``layer=0``, the input of the first
        block.

    Notes
    -----
    Only blocks are loaded. The readout, and the input map if there is one, start from Gaussian
    draws as with ``init="gaussian"``, scaled by ``init_scale``; so does a learned table of
    positions, because the estimator's tokens are features, not words. GPT-2's final LayerNorm is
    not part of the model.

    Examples
    --------
    Sentences, what GPT-2 makes of them before its first block, and six trainable blocks:

    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn_restf import ResidualTransformerClassifier
    >>> from sklearn_restf.preprocessing import TextTokenEmbedder
    >>> from sklearn_restf.pretrained import gpt2_parameters
    >>> model = make_pipeline(
    ...     TextTokenEmbedder("gpt2", layer=0),
    ...     ResidualTransformerClassifier(
    ...         standardize=False, pooling="last", **gpt2_parameters("gpt2", n_layers=6)
    ...     ),
    ... )  # doctest: +SKIP
    """
    config = _read_config(open_model_files(model).require(CONFIG), model)
    if n_layers is not None and not 1 <= n_layers <= config["n_layer"]:
        raise ValueError(
            f"n_layers={n_layers}: the model {str(model)!r} has {config['n_layer']} blocks."
        )
    parameters = _needed(config)
    del parameters["token width"]
    return {"init": model, "n_layers": n_layers or config["n_layer"], **parameters}


def gpt2_block_state(model: str | os.PathLike[str], config: ModuleConfig) -> dict[str, np.ndarray]:
    """Return the weights of the first ``config.n_layers`` blocks under our names, float64."""
    files = open_model_files(model)
    _check_fits(_read_config(files.require(CONFIG), model), config, model)
    tensors = read_tensors(files, _wanted_tensors(config), _shapes(config.d_model, config.d_ff))
    state = {}
    for layer in range(config.n_layers):
        for suffix in ("", "_bias"):
            joint = tensors[f"h.{layer}.attn.c_attn.{'bias' if suffix else 'weight'}"]
            names = ("query", "key", "value")
            for name, part in zip(names, np.split(joint, 3, axis=-1), strict=True):
                state[f"blocks.{layer}.{name}{suffix}"] = part.copy()
        for ours, theirs in _BLOCK_NAMES.items():
            state[f"blocks.{layer}.{ours}"] = tensors[f"h.{layer}.{theirs}"]
    return state


def _read_config(path: str, model: Any) -> dict[str, Any]:
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
    for name, allowed in _SIZES.items():
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
    if not isinstance(activation, str) or activation not in _ACTIVATIONS:
        raise ValueError(
            f"init={str(model)!r}: the model's activation {config['activation_function']!r} is not "
            f"among those known: {sorted(_ACTIVATIONS)}."
        )
    return config


def _needed(gpt2: dict[str, Any]) -> dict[str, Any]:
    """Return what the estimator's parameters must be."""
    return {
        "token width": gpt2["n_embd"],
        "n_heads": gpt2["n_head"],
        "d_ff": gpt2.get("n_inner") or 4 * gpt2["n_embd"],
        "activation": _ACTIVATIONS[gpt2["activation_function"]],
        "layer_norm": True,
        "causal": True,
    }


def _check_fits(gpt2: dict[str, Any], config: ModuleConfig, model: Any) -> None:
    """Raise unless the module has the shapes and options of the GPT-2 model."""
    needed = _needed(gpt2)
    given = {name: getattr(config, name, config.d_model) for name in needed}
    wrong = [name for name in needed if needed[name] != given[name]]
    if wrong:
        expected = ", ".join(f"{name}={needed[name]!r}" for name in wrong)
        found = ", ".join(f"{name}={given[name]!r}" for name in wrong)
        raise ValueError(
            f"init={str(model)!r}: the weights of this GPT-2 model need {expected}; got {found}. "
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


def _wanted_tensors(config: ModuleConfig) -> list[str]:
    """Name the tensors of the first blocks, without the prefix that language models have."""
    names = ["attn.c_attn.weight", "attn.c_attn.bias", *_BLOCK_NAMES.values()]
    return [f"h.{layer}.{name}" for layer in range(config.n_layers) for name in names]


def _shapes(D: int, M: int) -> dict[str, tuple[int, ...]]:
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
