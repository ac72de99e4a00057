"""Advice that is right: in every situation, following it makes training faster.

Both runs have the same number of iterations; "faster" is a loss at least a tenth lower.
"""

import numpy as np
import pytest
from sklearn.decomposition import PCA

from sklearn_restf import (
    ConvergenceDiagnostics,
    ResidualTransformerClassifier,
    ResidualTransformerRegressor,
)
from sklearn_restf.exceptions import DivergenceError

pytestmark = pytest.mark.filterwarnings(
    "ignore::sklearn_restf.exceptions.RankCollapseWarning",
    "ignore::sklearn.exceptions.ConvergenceWarning",
)

RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 6, 10))
Y = X[:, -1, 0] + X[:, :, 1].mean(1)
Y_TOKENS = np.tanh(X[:, :, 0] + X[:, :, 1])
TABLE = RNG.normal(size=(200, 8))

# tokens that differ by 1e-5 only, targets that depend on the position
EQUAL = np.repeat(RNG.normal(size=(40, 1, 10)), 6, axis=1) + 1e-5 * RNG.normal(size=X.shape)
Y_EQUAL = EQUAL[:, :, 0] * np.linspace(-1, 1, 6)
# channels in units that differ by up to 1e5, a target that depends on the small ones
UNITS = X * 10.0 ** np.linspace(0, -5, 10)
Y_UNITS = X[:, -1, 5:].sum(1)
# a channel that is another one but for 1e-5, and a target that depends on the difference
TWINS = X[:, :, :4].copy()
TWINS[:, :, 3] = TWINS[:, :, 0] + 1e-5 * X[:, :, 4]
Y_TWINS = X[:, -1, 4]
WHITE = PCA(whiten=True).fit_transform(TWINS.reshape(-1, 4)).reshape(TWINS.shape)
# token contents that barely show beside a common offset
OFFSET = X + 300


def fit(X, y, **parameters):
    options = {"random_state": 0, "alpha": 0.0, "max_iter": 100, "tol": None, "pooling": "last"}
    return ResidualTransformerRegressor(**(options | parameters)).fit(X, y)


# problem: what is done, the words that give the remedy, and what is changed on that advice
SITUATIONS = {
    "rank_collapse": (
        (
            X,
            Y_TOKENS,
            {"pooling": "none", "residual_beta": 0.0, "ffn_residual_beta": 1.0, "init_scale": 0.05},
        ),
        "Raise residual_beta",
        {"residual_beta": 1.0},
    ),
    "rank_collapse with depth": (
        (
            X,
            Y_TOKENS,
            {"pooling": "none", "residual_beta": 0.0, "ffn_residual_beta": 1.0, "n_layers": 6},
        ),
        "Raise residual_beta",
        {"residual_beta": 1.0},
    ),
    "equal_tokens": (
        (EQUAL, Y_EQUAL, {"pooling": "none"}),
        "positional_encoding='sinusoidal'",
        {"positional_encoding": "sinusoidal"},
    ),
    "equal_tokens by offset": (
        (OFFSET, Y, {"standardize": False}),
        "standardize=True",
        {"standardize": True},
    ),
    "vanishing_signal": (
        (X, Y, {"residual_beta": 0.0, "n_layers": 6, "init_scale": 0.3}),
        "Raise residual_beta",
        {"residual_beta": 1.0},
    ),
    "vanishing_signal, other remedy": (
        (X, Y, {"residual_beta": 0.0, "n_layers": 6, "init_scale": 0.3}),
        "layer_norm=True",
        {"layer_norm": True},
    ),
    "samples_alike": (
        (OFFSET.mean(1, keepdims=True), Y, {"standardize": False, "pooling": "mean"}),
        "standardize=True",
        {"standardize": True},
    ),
    "ill_conditioned_input": (
        (UNITS, Y_UNITS, {"standardize": False}),
        "standardize=True",
        {"standardize": True},
    ),
    "ill_conditioned_input, twins": ((TWINS, Y_TWINS, {}), "decorrelate", {"X": WHITE}),
    "step_too_small": (
        (X, Y, {"learning_rate": 1e-4, "momentum": 0.0}),
        "Raise it",
        {"learning_rate": 0.1},
    ),
    "step_too_small with momentum": (
        (X, Y, {"learning_rate": 1e-5, "momentum": 0.9}),
        "learning_rate='adaptive'",
        {"learning_rate": "adaptive"},
    ),
    "edge_of_stability": (
        (X, Y, {"learning_rate": 0.4, "momentum": 0.0, "layer_norm": True, "max_iter": 60}),
        "learning_rate='adaptive' is faster",
        {"learning_rate": "adaptive"},
    ),
    "plain_step_rule": (
        (X, Y, {"learning_rate": "theory", "momentum": 0.0, "max_iter": 40}),
        "learning_rate='adaptive' with momentum=0.9",
        {"learning_rate": "adaptive", "momentum": 0.9},
    ),
    "plain_step_rule, adaptive": (
        (X, Y_TOKENS, {"momentum": 0.0, "pooling": "none"}),
        "momentum=0.9",
        {"momentum": 0.9},
    ),
    "penalty_floor": (
        (TABLE, TABLE[:, 0], {"pooling": "mean", "alpha": 0.03, "tol": 1e-4}),
        "a lower alpha",
        {"alpha": 1e-3},
    ),
    "penalty_floor at a constant": (
        (TABLE, TABLE[:, 0], {"pooling": "mean", "alpha": 1.0, "tol": 1e-4}),
        "lower alpha",
        {"alpha": 0.0},
    ),
    "model_too_small": (
        (
            TABLE,
            np.abs(TABLE[:, 0]) + TABLE[:, 1] * TABLE[:, 2],
            {"pooling": "mean", "d_ff": 1, "d_model": 2, "n_tokens": 1, "tol": 1e-4},
        ),
        "larger d_ff",
        {"d_ff": 64},
    ),
    "max_iter": (
        (TABLE, TABLE[:, 0], {"pooling": "mean", "max_iter": 12}),
        "raise max_iter",
        {"max_iter": 100},
    ),
}


@pytest.mark.parametrize("situation", SITUATIONS)
def test_following_the_advice_lowers_the_loss(situation):
    (data, y, parameters), words, change = SITUATIONS[situation]
    slow = fit(data, y, **parameters)
    found = slow.convergence_diagnostics_
    problem = situation.split()[0].rstrip(",")
    assert found.problems[0] == problem
    assert words in found.advice
    assert words in found.summary()
    fast = fit(
        change.get("X", data), y, **(parameters | {k: v for k, v in change.items() if k != "X"})
    )
    assert fast.loss_ < 0.9 * slow.loss_
    if problem != "model_too_small":  # of which there may be several steps
        assert problem not in fast.convergence_diagnostics_.problems


def test_divergence():
    with pytest.raises(DivergenceError) as caught:
        fit(X, Y, learning_rate=10.0, momentum=0.0)
    found = caught.value.estimator.convergence_diagnostics_
    assert found.problems == ("diverged",)
    assert "lower learning_rate" in found.advice
    assert fit(X, Y, learning_rate="adaptive").loss_ < 0.1


def test_nothing_is_wrong_where_nothing_is():
    found = fit(X, Y).convergence_diagnostics_
    assert found.problems == ()
    assert "Z is well conditioned" in found.advice
    table = fit(TABLE, TABLE[:, 0], pooling="mean", n_tokens=1).convergence_diagnostics_
    assert table.problems == ()
    assert "Nothing in the spectrum of Z slows training." in table.advice


def test_the_residual_connection_is_given_its_due():
    found = fit(X, Y_TOKENS, pooling="none", init_scale=0.05).convergence_diagnostics_
    assert found.problems == ()
    assert "the residual connection is what keeps it so" in found.advice


def test_mean_pooling_does_not_mind_equal_tokens():
    """One layer, and the readout sees the mean only: rank collapse changes nothing."""
    collapsed = fit(X, Y, pooling="mean", init_scale=0.05, residual_beta=0.0)
    found = collapsed.convergence_diagnostics_
    assert found.rank1_residual < 1e-2
    assert "rank_collapse" not in found.problems


def test_a_solved_problem_has_no_causes():
    twins_but_easy = fit(TWINS, TWINS[:, -1, 1])
    assert twins_but_easy.loss_ < 1e-3
    assert twins_but_easy.convergence_diagnostics_.problems == ()


def test_default_fits_of_the_classifier_get_no_wrong_alarm():
    fitted = ResidualTransformerClassifier(random_state=0).fit(TABLE, TABLE[:, 0] > 0)
    assert set(fitted.convergence_diagnostics_.problems) <= {"penalty_floor"}


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("", "Not trained yet."),
        ("tol", "stopped improving after 7"),
        ("stalled", "No step lowered"),
        ("stationary", "gradient is zero"),
        ("interrupted", "interrupted after 7"),
        ("callback", "A callback ended training after 7"),
        ("early_stopping", "validation loss"),
        ("max_iter", "All 7 iterations"),
    ],
)
def test_every_way_to_end_is_named(reason, words):
    found = ConvergenceDiagnostics(
        stop_reason=reason, n_iter=7, loss=np.linspace(2, 1, 8), trivial_loss=1.0
    )
    assert words in found.advice


def test_forecast_is_told():
    found = fit(X, Y, learning_rate="theory", momentum=0.0, diagnostics="full", max_iter=50)
    assert "50 more iterations would bring the loss to" in found.convergence_diagnostics_.advice
