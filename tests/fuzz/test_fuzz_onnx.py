"""The ONNX graph of any estimator answers as the estimator does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sklearn_restf import ResidualTransformerClassifier, ResidualTransformerRegressor
from sklearn_restf.onnx import to_onnx
from tests.fuzz.calls import called
from tests.fuzz.data import draw_labels, rarely
from tests.fuzz.judge import ALLOWED_WARNINGS, NAMES, expect, outcomes
from tests.fuzz.length import N_CASES, SLOW_TO_DRAW, search_at_length

pytest.importorskip("onnx", reason="the extra onnx is not installed")
runtime = pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")

OPTIONS = {
    "residual_beta": [1.0, 0.0, 0.5],
    "ffn_residual_beta": [None, 0.0, 0.3],
    "n_layers": [1, 2, 3],
    "n_heads": [1, 2],
    "d_model": [None, 2, 4],
    "d_qk": [None, 1, 3],
    "activation": ["relu", "gelu", "gelu_tanh", "tanh", "leaky_relu", "identity"],
    "layer_norm": [False, True],
    "causal": [False, True],
    "pooling": ["auto", "mean", "last", "flatten", "none"],
    "positional_encoding": [None, "sinusoidal", "learned"],
    "n_tokens": ["auto", 1, 2],
    "standardize": [True, False],
    "dtype": ["float32", "float64"],
    "alpha": [5e-3, 0.0],
}
# how far apart answers may be, in units of their spread: LayerNorm of tokens that hardly differ
# magnifies the rounding of float32
CLOSE = {"float64": 1e-5, "float32": 5e-3}


@dataclass
class Export:
    """An estimator, samples of the fit and others, and a precision."""

    estimator: Any
    X: np.ndarray
    y: Any
    X_new: np.ndarray
    dtype: str


@st.composite
def exports(draw):
    """Draw an :class:`Export`."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    form = draw(st.sampled_from(["table", "windows", "flat"]))
    n, c, T = draw(st.integers(2, 12)), draw(st.integers(1, 4)), draw(st.integers(1, 4))
    names = draw(st.lists(st.sampled_from(sorted(OPTIONS)), max_size=7, unique=True))
    parameters = {name: draw(st.sampled_from(OPTIONS[name])) for name in names}
    shape = (c,) if form == "table" else (T, c)
    samples = rng.standard_normal((n + 5, *shape))
    if parameters.get("standardize", True):  # in units that every channel may have
        samples = samples * 10.0 ** rng.integers(-6, 7, c) + rng.choice([0.0, 0.0, 1e3], c)
    if form == "flat":
        parameters["token_dim"] = c
        samples = samples.reshape(n + 5, -1)
    if rarely(draw, 3):
        y = draw_labels(draw, rng, n)
        parameters["loss"] = draw(st.sampled_from(["log_loss", "squared_error"]))
        parameters.pop("pooling", None)
        make = ResidualTransformerClassifier
    else:
        per_token = parameters.get("pooling") == "none"
        tail = (T,) if per_token else ()
        tail += draw(st.sampled_from([(), (1,), (2,)]))
        y = 10.0 ** rng.integers(-6, 7) * rng.standard_normal((n, *tail))
        make = ResidualTransformerRegressor
    estimator = make(**{"d_ff": 4, "max_iter": 3, "tol": None, "random_state": 0} | parameters)
    dtype = draw(st.sampled_from(["float64", "float32"]))
    samples = samples.astype(dtype)  # what the graph is given, so that the input is no difference
    return Export(estimator, samples[:n], y, samples[n:], dtype)


def answers(model, X):
    """Run a graph: its outputs by name."""
    options = runtime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = runtime.InferenceSession(model.SerializeToString(), options)
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, {"X": X}), strict=True))


def judge_onnx(case):
    """Export, and compare the answers to samples of the fit and to others."""
    outcomes["cases"] += 1
    estimator, dtype = case.estimator, case.dtype
    fitted = called("fit", lambda: estimator.fit(case.X, case.y), names=NAMES, draws=True,
                    warns=ALLOWED_WARNINGS)  # fmt: skip
    if fitted is None:
        return
    model = called("to_onnx", lambda: to_onnx(estimator, dtype=dtype), names=["labels"])
    if model is None:
        return
    regressor = isinstance(estimator, ResidualTransformerRegressor)
    for X in (case.X, case.X_new, case.X_new[:1]):
        found = answers(model, X)
        if regressor:
            expected = estimator.predict(X)
            spread = max(np.abs(np.ravel(case.y) - np.mean(case.y)).max(), np.abs(expected).max())
            compare(found["variable"], expected, CLOSE[dtype] * spread, dtype)
            continue
        expected = estimator.predict_proba(X)
        compare(found["probabilities"], expected, CLOSE[dtype], dtype)
        # where two classes are as likely, rounding decides
        ranked = np.sort(expected, axis=1)
        clear = np.ones(len(X), bool)
        if expected.shape[1] > 1:
            clear = ranked[:, -1] - ranked[:, -2] > 2 * CLOSE[dtype]
        same = found["label"][clear] == estimator.predict(X)[clear]
        expect(np.all(same), "another label")


def compare(found, expected, atol, dtype):
    """Raise unless an answer is of the right shape and precision, and close."""
    expect(found.dtype == dtype, f"answers of {found.dtype}")
    expect(found.shape == expected.shape, f"answers of shape {found.shape}")
    np.testing.assert_allclose(found, expected, rtol=0, atol=atol)


@settings(max_examples=50, suppress_health_check=SLOW_TO_DRAW)
@given(exports())
def test_the_graph_answers_as_the_estimator(case):
    judge_onnx(case)


@pytest.mark.fuzz
@pytest.mark.timeout(0)
def test_graphs_at_length(capsys):
    search_at_length(capsys, judge_onnx, exports(), N_CASES // 8)
