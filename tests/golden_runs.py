"""The runs whose results are kept in ``tests/golden``, and how they are recorded.

Every parameter that shapes a run is stated here, so that another default is no other run; the
one run named for the defaults is the exception.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from sklearn.base import is_classifier

from sklearn_restf import ResidualTransformerClassifier, ResidualTransformerRegressor

FOLDER = Path(__file__).parent / "golden"
N, T, C, P = 24, 5, 3, 7

STATED = {
    "residual_beta": 0.8,
    "n_layers": 1,
    "n_heads": 1,
    "d_model": None,
    "d_ff": 6,
    "activation": "relu",
    "pooling": "last",
    "n_tokens": 3,
    "standardize": True,
    "init": "gaussian",
    "init_scale": 0.7,
    "learning_rate": "adaptive",
    "momentum": 0.9,
    "alpha": 1e-3,
    "max_iter": 15,
    "tol": None,
    "diagnostics": True,
    "diagnostics_samples": 16,
    "device": "cpu",
    "dtype": "float64",
    "random_state": 3,
}


def data():
    """Return the samples of every form; RandomState's numbers never change."""
    rng = np.random.RandomState(7)
    table, windows = rng.standard_normal((N, P)), rng.standard_normal((N, T, C))
    lengths = rng.randint(1, T + 1, size=N)
    signal = windows[:, 0, 0] * 2 + np.tanh(windows[:, 0, 1])
    return {
        "table": table,
        "windows": windows,
        "ragged": [w[:length] for w, length in zip(windows, lengths, strict=True)],
        "padded": np.where((np.arange(T) < lengths[:, None])[:, :, None], windows, np.nan),
        "y": signal + 0.1 * rng.standard_normal(N),
        "y of the table": table[:, 0] - table[:, 1] * table[:, 2],
        "outputs": np.column_stack([signal, windows[:, 0, 2], 100 * windows[:, 0, 0]]),
        "tokens": np.cumsum(windows[:, :, 0], axis=1),
        "labels": np.where(signal > 0.2, "yes", "no"),
        "classes": np.digitize(signal, [-1.0, 1.0]),
        "weight": rng.random_sample(N) + 0.1,
    }


#: name: (class, X, y, sample_weight, parameters)
RUNS = {
    "table_defaults": (
        ResidualTransformerRegressor, "table", "y of the table", None,
        {"max_iter": 15, "tol": None, "device": "cpu", "random_state": 3},
    ),
    "table": (ResidualTransformerRegressor, "table", "y of the table", None, {"d_model": 4}),
    "theorem": (
        ResidualTransformerRegressor, "windows", "y", None,
        {"learning_rate": 0.05, "momentum": 0.0, "alpha": 0.0, "residual_beta": 1.0},
    ),
    "theory_rate": (
        ResidualTransformerRegressor, "windows", "y", None,
        {"learning_rate": "theory", "momentum": 0.0, "activation": "tanh", "pooling": "mean"},
    ),
    "outputs_in_chunks": (
        ResidualTransformerRegressor, "windows", "outputs", "weight",
        {"pooling": "flatten", "activation": "gelu", "init": "xavier", "chunk_size": 5},
    ),
    "deep_gpt2_block": (
        ResidualTransformerRegressor, "windows", "y", None,
        {"n_layers": 2, "n_heads": 2, "d_model": 4, "layer_norm": True, "causal": True,
         "positional_encoding": "sinusoidal", "activation": "gelu_tanh"},
    ),
    "ragged_learned_positions": (
        ResidualTransformerRegressor, "ragged", "y", "weight",
        {"pooling": "mean", "positional_encoding": "learned", "ffn_residual_beta": 0.3},
    ),
    "padded_per_token": (
        ResidualTransformerRegressor, "padded", "tokens", None,
        {"pooling": "none", "padding_value": np.nan, "activation": "leaky_relu", "d_qk": 2},
    ),
    "early_stopping": (
        ResidualTransformerRegressor, "windows", "y", None,
        {"early_stopping": "last", "validation_fraction": 0.25, "max_iter": 25, "n_heads": 3},
    ),
    "no_residual_full_diagnostics": (
        ResidualTransformerRegressor, "windows", "y", None,
        {"residual_beta": 0.0, "diagnostics": "full", "learning_rate": 0.02, "momentum": 0.0},
    ),
    "binary": (
        ResidualTransformerClassifier, "windows", "labels", None, {"class_weight": "balanced"},
    ),
    "classes": (
        ResidualTransformerClassifier, "ragged", "classes", "weight",
        {"n_layers": 2, "pooling": "mean", "activation": "identity"},
    ),
    "classes_squared_error": (
        ResidualTransformerClassifier, "windows", "classes", None,
        {"loss": "squared_error", "pooling": "flatten", "standardize": False},
    ),
}  # fmt: skip


def record(name):
    """Run and return what is kept: predictions, curves and diagnostics, as plain numbers."""
    make, X, y, weight, parameters = RUNS[name]
    stated = {} if name.endswith("defaults") else STATED
    samples = data()
    estimator = make(**(stated | parameters))
    estimator.fit(samples[X], samples[y], None if weight is None else samples[weight])
    predict = estimator.predict_proba if is_classifier(estimator) else estimator.predict
    output = np.asarray(predict(samples[X]))
    diagnostics = {
        key: value
        for key, value in estimator.convergence_diagnostics_.to_dict().items()
        if value is None or (isinstance(value, int | float) and not isinstance(value, bool))
    }
    return {
        "predictions": [None if np.isnan(v) else v for v in output.ravel().tolist()],
        "loss_curve": estimator.loss_curve_,
        "validation_curve": estimator.validation_curve_,
        "loss": estimator.loss_,
        "learning_rate": estimator.learning_rate_,
        "diagnostics": diagnostics,
    }
