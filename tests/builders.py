"""Small data, estimators, modules and models of the theory, shared by the tests."""

import copy
import warnings

import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from sklearn.datasets import load_iris
from skorch.callbacks import Callback

from sklearn_restf import ResidualTransformerClassifier, ResidualTransformerRegressor
from sklearn_restf._data.arrays import RawTokens
from sklearn_restf._data.batches import Batches
from sklearn_restf._data.tokens import TokenLayout
from sklearn_restf._model import ACTIVATIONS as ACTIVATIONS
from sklearn_restf._model import ModuleConfig, build_module, initial_state, squared_error
from sklearn_restf._training import TRIALS, Objective
from sklearn_restf.exceptions import DivergenceError
from tests.reference.theory import NAMES, Model

# --- data and estimators ---------------------------------------------------------------------

_rng = np.random.default_rng(0)
#: (n, T, c) windows, their flat form, a regression target and string labels.
X3 = _rng.normal(size=(64, 24, 3)).astype("float32")
X2 = X3.reshape(64, -1)
YR = (2 * X3[:, -1, 0] + X3[:, :, 1].mean(1)).astype("float64")
YC = np.where(YR > 0, "pos", "neg")
#: The same windows in double precision, for comparisons tighter than float32 allows.
X3D = X3.astype("float64")
X2D = X2.astype("float64")
#: Six columns, for frames.
X6 = X2D[:, :6].copy()
#: Twelve series of 5 to 16 steps.
SERIES = [_rng.normal(size=(t, 3)) for t in range(5, 17)]
SERIES_YR = np.array([2 * s[-1, 0] + s[:, 1].mean() for s in SERIES])
SERIES_YC = np.where(np.arange(12) % 2 == 0, "neg", "pos")

#: Six rows of four numbers, their labels, and parameters for three iterations.
ROWS = np.random.default_rng(0).standard_normal((6, 4))
ROW_LABELS = np.array([0, 1, 0, 1, 0, 1])
FEW_STEPS = {"max_iter": 3, "tol": None, "d_ff": 4, "random_state": 0}

SMALL = {
    "max_iter": 20,
    "d_ff": 8,
    "tol": None,
    "diagnostics_samples": 8,
    "device": "cpu",
    "random_state": 0,
}


def make_regressor(**parameters):
    """Return a regressor small enough for a test; ``parameters`` override."""
    return ResidualTransformerRegressor(**{**SMALL, **parameters})


def make_classifier(**parameters):
    """Return a classifier small enough for a test; ``parameters`` override."""
    return ResidualTransformerClassifier(**{**SMALL, **parameters})


both = pytest.mark.parametrize(
    ("make", "y"),
    [(make_regressor, YR), (make_classifier, YC)],
    ids=["regressor", "classifier"],
)
both_estimators = pytest.mark.parametrize(
    "estimator",
    [ResidualTransformerRegressor(**FEW_STEPS), ResidualTransformerClassifier(**FEW_STEPS)],
    ids=["regressor", "classifier"],
)
both_makers = pytest.mark.parametrize(
    "make", [make_regressor, make_classifier], ids=["regressor", "classifier"]
)
both_on_series = pytest.mark.parametrize(
    ("make", "y"),
    [(make_regressor, SERIES_YR), (make_classifier, SERIES_YC)],
    ids=["regressor", "classifier"],
)


def pad(series, length, value):
    """Return the series as one (n, length, c) array, filled up on the right with ``value``."""
    padded = np.full((len(series), length, series[0].shape[1]), value, dtype="float64")
    for row, steps in zip(padded, series, strict=True):
        row[: len(steps)] = steps
    return padded


def spoiled(X, value, index=3):
    """Return a copy in which one number is ``value``."""
    X = X.copy()
    X.reshape(-1)[index] = value
    return X


class CountingCallback(Callback):
    """A callback that counts what it saw, as skorch's own do: in attributes ending in "_"."""

    def initialize(self):
        self.epochs_ = []

    def on_epoch_end(self, net, **kwargs):
        self.epochs_.append(len(net.history))


class Recorder(Callback):
    """Keeps the weights and the rates of every iteration, and what was trained on."""

    def initialize(self):
        self.weights_, self.rates_, self.sizes_, self.targets_ = [], [], [], []

    def on_train_begin(self, net, **kwargs):
        self.weights_.append(copy.deepcopy(net.module_.state_dict()))

    def on_epoch_begin(self, net, dataset_train=None, dataset_valid=None, **kwargs):
        held_out = dataset_valid is not None
        self.sizes_ = [len(dataset_train), len(dataset_valid) if held_out else 0]
        self.targets_ = [dataset_train.y, dataset_valid.y if held_out else None]

    def on_epoch_end(self, net, **kwargs):
        self.weights_.append(copy.deepcopy(net.module_.state_dict()))
        self.rates_.append(net.history[-1, "learning_rate"])


def recorded(estimator, *arguments, **options):
    """Fit with a recorder; return the fitted estimator and the recorder."""
    estimator.set_params(callbacks=[Recorder()]).fit(*arguments, **options)
    return estimator, estimator.callbacks_[0]


class LockCallback(Callback):
    """A callback with a parameter that can neither be pickled nor deep-copied."""

    def __init__(self, lock):
        self.lock = lock

    def on_epoch_end(self, net, **kwargs):
        with self.lock:
            pass


# --- modules and their tokens, and the same thing as arguments for the oracle -----------------

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


def make_module(config, state, **options):
    """A module with the given weights."""
    return build_module(config, state, **options)


def random_module(config, rng, **options):
    return make_module(config, random_state_of(config, rng), **options)


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


def random_parameters(
    rng, width, *, n_layers=1, n_heads=1, d_qk=3, d_ff=5, n_outputs=2, layer_norm=False
):
    """Gaussian parameters of every shape the model has, without an embedding."""
    shapes = {"readout": (width, n_outputs), "readout_bias": (n_outputs,)}
    for layer in range(n_layers):
        matrices = {
            "query": (width, n_heads * d_qk),
            "key": (width, n_heads * d_qk),
            "value": (width, width),
            "ffn_in": (width, d_ff),
            "ffn_out": (d_ff, width),
        }
        if n_heads > 1 or layer_norm:
            matrices["output"] = (width, width)
        for name, shape in matrices.items():
            shapes[f"blocks.{layer}.{name}"] = shape
            if layer_norm:
                shapes[f"blocks.{layer}.{name}_bias"] = shape[1:]
        if layer_norm:
            for name in ("norm1_weight", "norm1_bias", "norm2_weight", "norm2_bias"):
                shapes[f"blocks.{layer}.{name}"] = (width,)
    return {name: 0.6 * rng.standard_normal(shape) for name, shape in shapes.items()}


# --- random instances of the theory's model --------------------------------------------------

THEORY_ACTIVATIONS = ("relu", "gelu", "tanh", "identity")
SEEDS = st.integers(0, 2**32 - 1)


def make_model(
    seed,
    n=2,
    n_tokens=3,
    d=4,
    d_qk=2,
    d_ff=5,
    k=2,
    beta=1.0,
    gamma=1.0,
    activation="relu",
    scale=0.7,
):
    rng = np.random.default_rng(seed)
    shapes = {
        "query": (d, d_qk),
        "key": (d, d_qk),
        "value": (d, d),
        "ffn_in": (d, d_ff),
        "ffn_out": (d_ff, d),
        "readout": (d, k),
    }
    weights = {name: scale * rng.standard_normal(shape) for name, shape in shapes.items()}
    x = rng.standard_normal((n, n_tokens, d))
    return Model(weights, x, beta, gamma, activation), rng.standard_normal((n, n_tokens, k))


@st.composite
def instances(draw, activations=THEORY_ACTIVATIONS, **fixed):
    """Models on both sides of the conditions N <= d, N <= d_ff, N k <= d_ff and k <= d."""
    n, n_tokens, k = (draw(st.integers(1, upper)) for upper in (3, 3, 2))
    n_rows = n * n_tokens
    options = {
        "n": n,
        "n_tokens": n_tokens,
        "k": k,
        "d": max(1, n_rows + draw(st.integers(-2, 3))),
        "d_qk": draw(st.integers(1, 3)),
        "d_ff": max(1, draw(st.sampled_from([n_rows, n_rows * k, 2 * n_rows * k])) - 1)
        + draw(st.integers(0, 2)),
        "beta": draw(st.sampled_from([0.0, 0.25, 1.0, 2.0])),
        "gamma": draw(st.sampled_from([0.0, 0.5, 1.0])),
        "activation": draw(st.sampled_from(activations)),
        "scale": draw(st.sampled_from([0.3, 0.7, 1.5])),
    }
    return make_model(draw(SEEDS), **(options | fixed))


def assert_at_most(lower, upper, scale=0.0):
    """``lower <= upper`` up to rounding at the size of ``scale``."""
    assert lower <= upper + 1e-9 * (abs(upper) + scale)


def flat(weights):
    return np.concatenate([weights[name].ravel() for name in NAMES])


# --- training problems ----------------------------------------------------------------------


CPU = torch.device("cpu")


def make_objective(
    config,
    state,
    tokens,
    layout,
    y,
    weight=None,
    *,
    loss=squared_error,
    alpha=0.0,
    chunk_size=None,
    dtype=torch.float64,
):
    weight = np.ones(tokens.n_samples) if weight is None else weight
    batches = Batches(
        tokens, layout, y, weight, config=config, chunk_size=chunk_size, dtype=dtype, device=CPU
    )
    return Objective(build_module(config, state, dtype=dtype), batches, loss, alpha)


def random_problem(seed=0, n_samples=7, lengths=None, **options):
    """Config, state, tokens, layout, targets and weights of one random regression."""
    rng = np.random.default_rng(seed)
    config = make_config(lengths is not None, **options)
    tokens, layout = raw_tokens_and_layout(config, rng, n_samples, lengths)
    shape = (tokens.n_samples,)
    if config.pooling == "none":
        shape = tokens.values.shape[:-1]
    y = rng.standard_normal((*shape, config.n_outputs))
    weight = rng.uniform(0.1, 2.0, tokens.n_samples)
    return config, random_state_of(config, rng), tokens, layout, y, weight


# --- whole fits, to be compared with each other ---------------------------------------------

_RNG = np.random.default_rng(0)
DESCENT_X = _RNG.standard_normal((40, 5, 4))
DESCENT_Y = DESCENT_X[:, -1, 0] + 0.5 * DESCENT_X[:, 1, 1] * DESCENT_X[:, 2, 2]
DESCENT_SERIES = [_RNG.standard_normal((t, 3)) for t in _RNG.integers(1, 9, size=150)]
DESCENT_SERIES_Y = np.array([s[-1, 0] + s[:, 1].mean() for s in DESCENT_SERIES])
DESCENT_IRIS = load_iris(return_X_y=True)

MODELS = {
    "closed form": {},
    "mean": {"pooling": "mean"},
    "last": {"pooling": "last"},
    "tanh, learned positions": {"activation": "tanh", "positional_encoding": "learned"},
    "gelu, sinusoidal": {"activation": "gelu", "positional_encoding": "sinusoidal", "d_model": 6},
    "autograd": {"n_layers": 2, "n_heads": 2, "layer_norm": True, "causal": True},
    "autograd, sinusoidal": {"n_layers": 2, "pooling": "mean", "positional_encoding": "sinusoidal"},
    "no penalty": {"alpha": 0.0},
    "single precision": {"dtype": "float32"},
}
RULES = {
    "adaptive": {},
    "adaptive, no momentum": {"momentum": 0.0},
    "many rejections": {"learning_rate": "adaptive", "max_iter": 150},
    "stops by tol": {"max_iter": 400, "tol": 1e-2},
    "stops by tol at once": {"tol": 0.9, "n_iter_no_change": 1},
    "validation": {"early_stopping": "last", "max_iter": 100, "tol": 1e-2},
    "validation to the end": {"early_stopping": True},
    "validation, constant rate": {"early_stopping": "last", "learning_rate": 0.03},
    "validation, many rejections": {"early_stopping": "last", "max_iter": 150},
    "ends with a batch": {"max_iter": TRIALS},
    "one iteration": {"max_iter": 1},
    "theory": {"learning_rate": "theory", "momentum": 0.0},
    "constant": {"learning_rate": 0.03, "momentum": 0.5},
    "constant, rising and falling": {"learning_rate": 0.3, "momentum": 0.9, "max_iter": 20},
}


def fitted(estimator, X, y, **data):
    """Fit; a run that diverges gives what it leaves behind."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return estimator.fit(X, y, **data)
        except DivergenceError as error:
            return error.estimator


def assert_same_fit(a, b, rtol=0.0):
    """Compare everything that training leaves behind."""
    close = {"rtol": rtol, "atol": rtol}
    assert (a.stop_reason_, a.n_iter_) == (b.stop_reason_, b.n_iter_)
    assert a.best_iteration_ == b.best_iteration_
    np.testing.assert_allclose(a.loss_curve_, b.loss_curve_, **close)
    np.testing.assert_allclose(a.loss_, b.loss_, **close)
    np.testing.assert_allclose(a.validation_curve_, b.validation_curve_, **close)
    np.testing.assert_allclose(a.learning_rate_, b.learning_rate_, **close)
    for name in ("gradient_norm", "learning_rate"):
        one, other = (getattr(e.convergence_diagnostics_, name, 0.0) for e in (a, b))
        np.testing.assert_allclose(one, other, **close)
    for name, value in a._fitted.state.items():
        np.testing.assert_allclose(value, b._fitted.state[name], err_msg=name, **close)
    if a._fitted.velocity is None or b._fitted.velocity is None:
        assert a._fitted.velocity is b._fitted.velocity
    else:
        np.testing.assert_allclose(a._fitted.velocity, b._fitted.velocity, **close)
