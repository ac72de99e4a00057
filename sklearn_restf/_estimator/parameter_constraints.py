"""What each constructor parameter may be, shared by the estimators."""

from __future__ import annotations

import numpy as np
import torch

from sklearn_restf._model import ACTIVATIONS, may_be_model
from sklearn_restf._utils.validation import (
    BOOL,
    NONE,
    RANDOM_STATE,
    Constraint,
    instance_of,
    integer,
    one_of,
    real,
)

NAN = Constraint(lambda v: isinstance(v, float | np.floating) and bool(np.isnan(v)), "nan")
GPT2_MODEL = Constraint(may_be_model, "the folder, or the name on the hub, of a GPT-2 model")

PARAMETER_CONSTRAINTS: dict[str, list[Constraint]] = {
    "residual_beta": [real(0.0)],
    "ffn_residual_beta": [NONE, real(0.0)],
    "n_layers": [integer(1)],
    "n_heads": [integer(1)],
    "d_model": [NONE, integer(1)],
    "d_qk": [NONE, integer(1)],
    "d_ff": [integer(1)],
    "activation": [one_of(*ACTIVATIONS)],
    "layer_norm": [BOOL],
    "causal": [BOOL],
    "pooling": [one_of("auto", "mean", "last", "flatten", "none")],
    "positional_encoding": [one_of(None, "sinusoidal", "learned")],
    "n_tokens": [one_of("auto"), integer(1)],
    "token_dim": [NONE, integer(1)],
    "padding_value": [NONE, real(), NAN],
    "standardize": [BOOL],
    "init": [one_of("gaussian", "xavier"), GPT2_MODEL],
    "init_scale": [real(0.0, low_open=True)],
    "loss": [one_of("squared_error")],
    "learning_rate": [one_of("adaptive", "theory"), real(0.0, low_open=True)],
    "momentum": [real(0.0, 1.0, high_open=True)],
    "alpha": [real(0.0)],
    "max_iter": [integer(1)],
    "tol": [NONE, real(0.0)],
    "n_iter_no_change": [integer(1)],
    "early_stopping": [BOOL, one_of("last")],
    "validation_fraction": [real(0.0, 1.0, low_open=True, high_open=True)],
    "chunk_size": [NONE, integer(1)],
    "diagnostics": [BOOL, one_of("full")],
    "diagnostics_samples": [integer(1)],
    "device": [
        instance_of(str, torch.device, words="a device name such as 'auto', 'cpu' or 'cuda:0'")
    ],
    "dtype": [one_of("auto", "float32", "float64")],
    "warm_start": [BOOL],
    "callbacks": [NONE, instance_of(list, tuple, words="a list of skorch callbacks")],
    "random_state": [RANDOM_STATE],
    "verbose": [integer(0), BOOL],
}
