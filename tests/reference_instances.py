"""Random instances of the theory's model, for tests of the theory and of the diagnostics."""

import numpy as np
from hypothesis import strategies as st

from tests.reference.theory import NAMES, Model

ACTIVATIONS = ("relu", "gelu", "tanh", "identity")
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
def instances(draw, activations=ACTIVATIONS, **fixed):
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
