"""One random use of an estimator: data, parameters, and faults put into them on purpose."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import strategies as st

from sklearn_restf import ResidualTransformerClassifier, ResidualTransformerRegressor
from tests.fuzz.data import (
    FLOATS,
    draw_container,
    draw_labels,
    draw_list,
    draw_numbers,
    draw_weights,
    rarely,
)

VALID = {
    "residual_beta": [1.0, 0.0, 0.5, 1, 1e-300, 1e6, 1e300],
    "ffn_residual_beta": [None, 0.0, 1.0, 2, 1e300],
    "n_layers": [1, 2, 3],
    "n_heads": [1, 2, np.int64(2)],
    "d_model": [None, 1, 2, 4, 6],
    "d_qk": [None, 1, 3],
    "d_ff": [4, 1, 7],
    "activation": ["relu", "gelu", "gelu_tanh", "tanh", "leaky_relu", "identity"],
    "layer_norm": [False, True, np.True_],
    "causal": [False, True],
    "pooling": ["auto", "mean", "last", "flatten", "none"],
    "positional_encoding": [None, "sinusoidal", "learned"],
    "n_tokens": ["auto", 1, 2, 5],
    "standardize": [True, False],
    "init": ["gaussian", "xavier"],
    "init_scale": [0.7, 1e-300, 1e-8, 10.0, 1e300],
    "learning_rate": ["adaptive", "theory", 0.01, 1.0, 1e300, 1e-300],
    "momentum": [0.9, 0.0, 0.999999],
    "alpha": [5e-3, 0.0, 1.0, 1e300, 1e-300],
    "max_iter": [3, 1, 10],
    "tol": [1e-4, None, 0.0, 1e300],
    "n_iter_no_change": [10, 1, 2],
    "early_stopping": [False, True, "last"],
    "validation_fraction": [0.1, 0.5, 0.999, 1e-9],
    "chunk_size": [None, 1, 3, 10**9],
    "diagnostics": [True, False, "full"],
    "diagnostics_samples": [64, 1, 3],
    "device": ["auto", "cpu"],
    "dtype": ["auto", "float32", "float64"],
    "warm_start": [False, True],
    "callbacks": [None, []],
    "random_state": [0, None, 2**32 - 1],
}
INVALID = {
    "residual_beta": [-1.0, np.nan, np.inf, "1", None, True],
    "ffn_residual_beta": [-1.0, np.nan, "1"],
    "n_layers": [0, -1, 1.5, "2", None, True, np.nan],
    "n_heads": [0, 2.0, None],
    "d_model": [0, -4, 1.5, "16"],
    "d_qk": [0, -1, 0.5],
    "d_ff": [0, -1, None, 2**62],
    "activation": ["sigmoid", None, 1],
    "layer_norm": [None, 1, "yes"],
    "causal": [None, 0, "no"],
    "pooling": [None, "max", 3],
    "positional_encoding": ["rotary", True],
    "n_tokens": [0, "all", None, 10**6],
    "token_dim": [0, -1, 2.5, "2"],
    "padding_value": ["nan", np.inf, True],
    "standardize": [None, 1],
    "init": [3, None, "/no/such/folder/with/a/model"],
    "init_scale": [0.0, -1.0, np.nan, "big"],
    "loss": ["hinge", None],
    "learning_rate": [0.0, -0.1, np.nan, "constant", None, True],
    "momentum": [1.0, -0.1, np.nan, None],
    "alpha": [-1e-3, np.nan, "0", None],
    "max_iter": [0, -1, 2.5, None, True],
    "tol": [-1.0, np.nan, "1e-4"],
    "n_iter_no_change": [0, None, 1.5],
    "early_stopping": [None, "first", 1],
    "validation_fraction": [0.0, 1.0, -0.1, np.nan, None],
    "chunk_size": [0, -1, 1.5],
    "diagnostics": [None, "some", 1],
    "diagnostics_samples": [0, None],
    "device": ["nowhere", None, "cuda:999", "meta"],
    "dtype": ["float16", None, np.float32],
    "warm_start": [None, "yes"],
    "callbacks": ["all", 1],
    "random_state": [-1, "seed", 2**32, 1.5],
    "verbose": [-1, None, "no"],
}


@dataclass
class Case:
    """A use of an estimator. `faults` names the arguments spoilt on purpose, by step."""

    kind: str
    form: str
    parameters: dict[str, Any]
    fit: dict[str, Any]
    X_new: Any
    n_new: int
    faults: list[tuple[str, str]] = field(default_factory=list)

    @property
    def make(self) -> type:
        """The class of the estimator."""
        regressor = self.kind == "regressor"
        return ResidualTransformerRegressor if regressor else ResidualTransformerClassifier

    def spoilt(self, step: str) -> set[str]:
        """Names of what must be refused in a step ("fit" or "predict")."""
        return {name for where, name in self.faults if where == step}


class Sampler:
    """Draws X of one form, any number of times."""

    def __init__(self, draw: Any, rng: np.random.Generator) -> None:
        self.draw, self.rng = draw, rng
        self.form = draw(st.sampled_from(["table", "windows", "flat", "padded", "ragged"]))
        self.p = draw(st.integers(1, 8))
        self.T, self.c = draw(st.integers(1, 5)), draw(st.integers(1, 4))
        self.padding_value = draw(st.sampled_from([np.nan, 0.0, -1.0, 1e300]))

    def parameters(self) -> dict[str, Any]:
        """Parameters of the estimator that say how to read X."""
        if self.form == "flat":
            return {"token_dim": self.c}
        return {"padding_value": self.padding_value} if self.form == "padded" else {}

    def lengths(self, n: int) -> np.ndarray:
        """Tokens of each sample."""
        if self.form not in ("padded", "ragged"):
            return np.full(n, self.T)
        return self.rng.integers(1, self.T + 1, size=n)

    def numbers(self, n: int) -> tuple[Any, np.ndarray]:
        """Return the plain numbers of n samples (a list when ragged), and their lengths."""
        lengths = self.lengths(n)
        if self.form == "table":
            return draw_numbers(self.draw, self.rng, (n, self.p)), lengths
        shape = (n, self.T * self.c) if self.form == "flat" else (n, self.T, self.c)
        dtypes = FLOATS if self.form == "padded" else None
        values = draw_numbers(self.draw, self.rng, shape, **({"dtypes": dtypes} if dtypes else {}))
        if self.form == "padded":
            with np.errstate(over="ignore"):
                filler = np.array(self.padding_value).astype(values.dtype)
            if np.isinf(filler):
                filler = np.array(np.nan)
                self.padding_value = np.nan
            values = values.copy()
            values[np.arange(self.T) >= lengths[:, None]] = filler
            if not np.isnan(filler):  # a real token may look like padding: say so with NaN
                lengths = (values != filler).any(axis=2).sum(axis=1)
        if self.form == "ragged":
            return [values[i, :length] for i, length in enumerate(lengths)], lengths
        return values, lengths

    def container(self, values: Any) -> Any:
        """Return the numbers as a user may have them."""
        draw = self.draw
        return draw_list(draw, values) if self.form == "ragged" else draw_container(draw, values)


def draw_targets(draw, rng, kind, lengths, per_token, n_outputs, form):
    """Return targets for samples of the given lengths, as plain numbers."""
    n = len(lengths)
    if kind == "classifier":
        return draw_labels(draw, rng, n)
    tail = () if n_outputs == 1 else (n_outputs,)
    if not per_token:
        return draw_numbers(draw, rng, (n, n_outputs)).reshape(n, *tail)
    longest = int(lengths.max(initial=1))
    y = draw_numbers(draw, rng, (n, longest, n_outputs), FLOATS).reshape(n, longest, *tail)
    return [y[i, :length] for i, length in enumerate(lengths)] if form == "ragged" else y


def draw_parameters(draw, kind):
    """Return a few valid parameters besides those that keep a fit short."""
    names = draw(st.lists(st.sampled_from(sorted(VALID)), max_size=7, unique=True))
    parameters = {"d_ff": 4, "max_iter": 3, "random_state": 0}
    parameters |= {name: draw(st.sampled_from(VALID[name])) for name in names}
    if kind == "classifier":
        if parameters.get("pooling") == "none":
            del parameters["pooling"]
        if rarely(draw, 3):
            parameters["loss"] = "squared_error"
        if rarely(draw, 5):
            parameters["class_weight"] = draw(st.sampled_from(["balanced", {0: 2.0}, {"a": 0.0}]))
    elif rarely(draw, 4):
        parameters["pooling"] = "none"
    if rarely(draw, 8):
        parameters["random_state"] = np.random.RandomState(1)
    return parameters


def draw_validation(draw, rng, sampler, kind, per_token, n_outputs, y):
    """Return X_val, y_val and sample_weight_val: those of a sample set of its own."""
    n = draw(st.integers(1, 4))
    X_val, lengths = sampler.numbers(n)
    if kind == "classifier":
        y_val = np.asarray(y)[rng.integers(len(y), size=n)]
    else:
        y_val = draw_targets(draw, rng, kind, lengths, per_token, n_outputs, sampler.form)
    return {"X_val": sampler.container(X_val), "y_val": y_val,
            "sample_weight_val": draw_weights(draw, rng, n)}  # fmt: skip


@st.composite
def cases(draw):
    """Draw a :class:`Case`."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    kind = draw(st.sampled_from(["regressor", "classifier"]))
    parameters = draw_parameters(draw, kind)
    sampler = Sampler(draw, rng)
    per_token = parameters.get("pooling") == "none"
    if per_token and sampler.form == "table":
        sampler.form = "windows"
    n = draw(st.integers(1, 12))
    n_outputs = 1 if kind == "classifier" or not rarely(draw, 3) else draw(st.integers(1, 3))
    X, lengths = sampler.numbers(n)
    y = draw_targets(draw, rng, kind, lengths, per_token, n_outputs, sampler.form)
    fit = {"X": X, "y": y, "sample_weight": draw_weights(draw, rng, n)}
    if rarely(draw, 5):
        fit |= draw_validation(draw, rng, sampler, kind, per_token, n_outputs, y)
    n_new = draw(st.integers(1, 5))
    X_new = sampler.numbers(n_new)[0]
    parameters |= sampler.parameters()
    case = Case(kind, sampler.form, parameters, fit, X_new, n_new)
    if rarely(draw, 2):
        for kinds in FAULTS:
            if rarely(draw):
                draw(st.sampled_from(kinds))(draw, rng, case)
    wrap_containers(draw, case, sampler)
    return case


def wrap_containers(draw, case, sampler):
    """Put the numbers into containers, faults and all."""
    for arguments, name in ((case.fit, "X"), (vars(case), "X_new")):
        values = arguments[name]
        if isinstance(values, list) and all(getattr(v, "ndim", 0) == 2 for v in values):
            arguments[name] = draw_list(draw, values) if values else values
        elif isinstance(values, np.ndarray) and values.dtype.kind in "biuf" and values.size:
            arguments[name] = draw_container(draw, values)
    y = case.fit["y"]
    if isinstance(y, np.ndarray) and y.dtype.kind in "biuf" and y.size and case.kind == "regressor":
        case.fit["y"] = draw_container(draw, y)


# --- faults: each spoils one argument, so that the step it is for must refuse it ------------------


def spoil_number(draw, rng, values):
    """Put NaN or infinity somewhere into numbers."""
    bad = draw(st.sampled_from([np.nan, np.inf, -np.inf]))
    if isinstance(values, list):
        values = list(values)
        i = rng.integers(len(values))
        values[i] = spoil_number(draw, rng, values[i])
        return values
    values = np.array(values, dtype="f8")
    values.flat[rng.integers(values.size)] = bad
    return values


def bad_X(draw, rng, case):
    X = spoil_number(draw, rng, case.fit["X"])
    padding = case.parameters.get("padding_value")
    if padding is not None and np.isnan(padding):  # a token of one NaN would be padding
        X[..., 0][~np.isfinite(X[..., 0]) & ~np.isnan(X[..., 0])] = np.inf
        X[np.isnan(X).any(axis=2)] = np.nan
        if not np.isinf(X).any():
            X[0, 0, 0] = np.inf
    case.fit["X"] = X
    case.faults.append(("fit", "X"))


def bad_X_new(draw, rng, case):
    X = spoil_number(draw, rng, case.X_new)
    if case.form == "padded":
        X[0, 0, 0] = np.inf
    case.X_new = X
    case.faults.append(("predict", "X"))


def bad_y(draw, rng, case):
    y = case.fit["y"]
    if case.kind == "classifier":
        y = np.array(y, dtype=object)
        y[rng.integers(len(y))] = draw(st.sampled_from([None, np.nan]))
    elif case.form == "padded" and case.parameters.get("pooling") == "none":
        y = np.full(np.shape(y), np.nan)  # a number at padding would be ignored
    else:
        y = spoil_number(draw, rng, y)
    case.fit["y"] = y
    case.faults.append(("fit", "y"))


def short_y(draw, rng, case):
    case.fit["y"] = case.fit["y"][1:] if rarely(draw, 2) else [*case.fit["y"], case.fit["y"][0]]
    case.faults.append(("fit", "y"))


def odd_y(draw, rng, case):
    n = len(case.fit["X"])
    options = [None, np.zeros((n, 2, 2, 2)), 3.0, np.full(n, 1j), np.zeros((n, 0))]
    if case.kind == "classifier":
        options += [np.linspace(0.1, 0.7, n), np.zeros((n, 2))]
        options += [] if n < 3 else [np.array([0, "a", None], dtype=object)[np.arange(n) % 3]]
    else:
        options += [np.array(["a"] * n), np.full(n, "a", dtype=object)]
    case.fit["y"] = draw(st.sampled_from(options))
    case.faults.append(("fit", "y"))


def bad_weight(draw, rng, case):
    n = len(case.fit["X"])
    one_bad = np.ones(n)
    one_bad[rng.integers(n)] = draw(st.sampled_from([np.nan, np.inf, -1.0, -1e-300]))
    options = [one_bad, np.zeros(n), np.ones(n + 1), np.ones((n, 2)), "heavy", ["a"] * n, -1.0]
    case.fit["sample_weight"] = draw(st.sampled_from([*options, 0.0, np.nan, np.full(n, 1j), {}]))
    case.faults.append(("fit", "sample_weight"))


def odd_X(draw, rng, case):
    options = [None, 3.0, "X", [], np.zeros((0, 3)), np.zeros((4, 0)), [0.0] * len(case.fit["X"]),
               np.zeros((2, 2, 2, 2)), np.full((3, 2), 1j), [["a", "b"]] * 3, object(), {"a": [1]},
               np.zeros((3, 2, 0)), [np.zeros((2, 2)), np.zeros(2)], [np.zeros((2, 2)), None],
               np.full((3, 2), "a", dtype=object), [[1.0], [1.0, 2.0]]]  # fmt: skip
    value = draw(st.sampled_from(options))
    if rarely(draw, 2):
        case.fit["X"] = value
        case.faults.append(("fit", "X"))
    else:
        case.X_new = value
        case.faults.append(("predict", "X"))


def bad_validation(draw, rng, case):
    n = len(case.fit["X"])
    good = {"X_val": case.fit["X"], "y_val": case.fit["y"], "sample_weight_val": None}
    name = draw(st.sampled_from(sorted(good)))
    if name == "sample_weight_val":
        good[name] = draw(
            st.sampled_from([-np.ones(n), np.full(n, np.nan), np.zeros(n), [1.0] * (n + 1)])
        )
    else:
        good[name] = None
    case.fit |= good
    case.faults.append(("fit", name))


def bad_parameter(draw, rng, case):
    name = draw(st.sampled_from(sorted(INVALID)))
    value = draw(st.sampled_from(INVALID[name]))
    if name == "n_tokens" and value == 10**6 and case.form != "table":
        return
    case.parameters[name] = value
    case.faults.append(("fit", name))


# at most one of each line, X last: the others look at its length
FAULTS = [
    [bad_parameter],
    [bad_validation],
    [bad_weight],
    [bad_y, short_y, odd_y],
    [bad_X, bad_X_new, odd_X],
]
