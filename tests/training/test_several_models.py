"""Models trained side by side are the models trained one by one."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_iris
from sklearn.model_selection import KFold, StratifiedKFold

import sklearn_restf._training.batched_descent as batched_descent
import sklearn_restf._training.step_rule as step_rule
import sklearn_restf._training.stopping as stopping_rule
import sklearn_restf.model_selection._sweep as sweep
from sklearn_restf import (
    THEOREM_SETTINGS,
    ResidualTransformerClassifier,
    ResidualTransformerClassifierCV,
    ResidualTransformerRegressor,
    ResidualTransformerRegressorCV,
)
from sklearn_restf._model import binary_log_loss, build_module, matmul, multinomial_log_loss
from sklearn_restf._training import TrainingSettings
from sklearn_restf.exceptions import DivergenceError

BETAS = [0.0, 0.4, 1.0]
RNG = np.random.default_rng(0)
WINDOWS = RNG.normal(size=(45, 6, 4))
Y = WINDOWS[:, -1, 0] + 0.5 * WINDOWS[:, 1, 1] * WINDOWS[:, 2, 2]
SERIES = [RNG.normal(size=(t, 3)) for t in RNG.integers(2, 9, size=40)]
SERIES_Y = np.array([2 * s[-1, 0] + s[:, 1].mean() for s in SERIES])
MANY_SERIES = SERIES * 4  # enough for several buckets of equal length
IRIS, SPECIES = load_iris(return_X_y=True)
WEIGHT = RNG.integers(0, 4, size=150).astype(float)

REGRESSION = {
    "windows": (WINDOWS, Y, {}),
    "adaptive to the end": (WINDOWS, Y, {"max_iter": 120, "tol": None}),
    "stops by tol": (WINDOWS, Y, {"max_iter": 300, "tol": 1e-2}),
    "table": (WINDOWS.reshape(45, -1), Y, {}),
    "table of one token": (WINDOWS.reshape(45, -1), Y, {"n_tokens": 1}),
    "wide table": (WINDOWS.reshape(45, -1).repeat(2, axis=1), Y, {}),
    "table, mean": (IRIS, IRIS[:, 0] ** 2, {"pooling": "mean"}),
    "2-D windows": (WINDOWS.reshape(45, -1), Y, {"token_dim": 4}),
    "mean": (WINDOWS, Y, {"pooling": "mean"}),
    "last": (WINDOWS, Y, {"pooling": "last"}),
    "last, several heads": (WINDOWS, Y, {"pooling": "last", "n_heads": 2}),
    "last, LayerNorm": (WINDOWS, Y, {"pooling": "last", "layer_norm": True}),
    "heads": (WINDOWS, Y, {"n_heads": 2}),
    "GPT-2's block": (WINDOWS, Y, {"n_layers": 2, "n_heads": 2, "layer_norm": True}),
    "LayerNorm, causal": (WINDOWS, Y, {"layer_norm": True, "causal": True}),
    "causal": (WINDOWS, Y, {"causal": True}),
    "causal, short": (WINDOWS[:, :3], Y, {"causal": True}),
    "two layers": (WINDOWS, Y, {"n_layers": 2, "pooling": "mean"}),
    "embedded, sinusoidal": (WINDOWS, Y, {"d_model": 6, "positional_encoding": "sinusoidal"}),
    "learned positions": (WINDOWS, Y, {"positional_encoding": "learned", "pooling": "mean"}),
    "narrow queries": (WINDOWS, Y, {"d_qk": 1}),
    "gelu": (WINDOWS, Y, {"activation": "gelu"}),
    "tanh": (WINDOWS, Y, {"activation": "tanh", "pooling": "mean"}),
    "tanh, flatten": (WINDOWS, Y, {"activation": "tanh"}),
    "linear": (WINDOWS, Y, {"activation": "identity"}),
    "linear, several outputs": (WINDOWS, WINDOWS[:, 0, :3], {"activation": "identity"}),
    "linear, mean": (WINDOWS, Y, {"activation": "identity", "pooling": "mean"}),
    "own gamma": (WINDOWS, Y, {"ffn_residual_beta": 0.7}),
    "xavier": (WINDOWS, Y, {"init": "xavier", "init_scale": 0.5}),
    "several outputs": (WINDOWS, WINDOWS[:, 0, :3], {}),
    "more outputs than widths": (WINDOWS, WINDOWS.reshape(45, -1), {"d_ff": 2}),
    "no penalty, no momentum": (WINDOWS, Y, {"alpha": 0.0, "momentum": 0.0}),
    "constant rate": (WINDOWS, Y, {"learning_rate": 0.05, "momentum": 0.5}),
    "theory": (WINDOWS, Y, {"learning_rate": "theory", "momentum": 0.0}),
    "early stopping": (WINDOWS, Y, {"early_stopping": True, "max_iter": 100}),
    "early stopping, last": (WINDOWS, Y, {"early_stopping": "last", "learning_rate": 0.05}),
    "theorem": (WINDOWS, WINDOWS[:, :, 0], {**THEOREM_SETTINGS, "pooling": "none"}),
    "per token": (WINDOWS, WINDOWS[:, :, :2], {"pooling": "none"}),
    "per token, ragged": (SERIES, [s[:, 0] for s in SERIES], {"pooling": "none"}),
    "ragged": (SERIES, SERIES_Y, {}),
    "ragged, last": (SERIES, SERIES_Y, {"pooling": "last"}),
    "ragged, causal, heads": (SERIES, SERIES_Y, {"causal": True, "n_heads": 3}),
    "ragged, learned": (SERIES, SERIES_Y, {"positional_encoding": "learned"}),
    "ragged, buckets": (MANY_SERIES, np.tile(SERIES_Y, 4), {"pooling": "mean"}),
    "constant target": (WINDOWS, np.ones(45), {}),
}
CLASSIFICATION = {
    "iris": (IRIS, SPECIES, {}),
    "two classes": (IRIS[:100], SPECIES[:100], {}),
    "squared error": (IRIS, SPECIES, {"loss": "squared_error"}),
    "strings, balanced": (IRIS[:120], np.array(list("abc"))[SPECIES[:120]], {
        "class_weight": "balanced"
    }),
    "early stopping": (IRIS, SPECIES, {"early_stopping": True, "max_iter": 100}),
}  # fmt: skip
CASES = [("regressor", name) for name in REGRESSION]
CASES += [("classifier", name) for name in CLASSIFICATION]


def trained(kind, name, size, sample_weight=None, **more):
    """Return the outcomes' estimators, by residual_beta and fold, trained in groups of `size`."""
    X, y, options = (REGRESSION if kind == "regressor" else CLASSIFICATION)[name]
    options = {"max_iter": 30, "random_state": 0, "diagnostics": False} | options | more
    classes = (
        (ResidualTransformerRegressorCV, KFold)
        if kind == "regressor"
        else (ResidualTransformerClassifierCV, StratifiedKFold)
    )
    fitted = {}
    conclude = sweep.conclude

    def remember(outcome, estimator, fit, held, scorer):
        result = conclude(outcome, estimator, fit, held, scorer)
        fitted[estimator.residual_beta, len(fitted)] = estimator
        return result

    model = classes[0](BETAS, cv=classes[1](3, shuffle=True, random_state=1), refit=False)
    model.set_params(**options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sweep, "conclude", remember)
        patch.setattr(sweep, "models_side_by_side", lambda *arguments: size)
        model.fit(X, y, sample_weight=sample_weight)
    return model, list(fitted.values())


def assert_same(one, other):
    """Compare the models of two sweeps: history, weights, scores."""
    (cv_a, models_a), (cv_b, models_b) = one, other
    assert len(models_a) == len(models_b)
    for a, b in zip(models_a, models_b, strict=True):
        assert a.residual_beta == b.residual_beta
        assert (a.stop_reason_, a.n_iter_) == (b.stop_reason_, b.n_iter_)
        np.testing.assert_allclose(a.loss_curve_, b.loss_curve_, rtol=1e-6, atol=1e-12)
        np.testing.assert_allclose(a.validation_curve_, b.validation_curve_, rtol=1e-6)
        np.testing.assert_allclose(a.learning_rate_, b.learning_rate_, rtol=1e-6)
        assert (a.best_iteration_, a.dtype_, a.n_tokens_) == (
            b.best_iteration_,
            b.dtype_,
            b.n_tokens_,
        )
        for name, value in a._fitted.state.items():
            np.testing.assert_allclose(value, b._fitted.state[name], rtol=1e-4, atol=1e-6)
    for split in range(3):
        name = f"split{split}_test_score"
        np.testing.assert_allclose(cv_a.cv_results_[name], cv_b.cv_results_[name], atol=1e-4)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize(("kind", "name"), CASES)
def test_side_by_side_follows_the_trajectories_of_single_fits(kind, name):
    assert_same(trained(kind, name, 9), trained(kind, name, 1))


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("options", [
    {"max_iter": 3000, "tol": 1e-3},
    {"max_iter": 200, "tol": 1e-2, "early_stopping": True},
    {"max_iter": batched_descent.TRIALS, "tol": None},
    {"max_iter": 1},
    {"max_iter": 7, "n_iter_no_change": 8},
    {"tol": 0.9, "n_iter_no_change": 1},
    {"learning_rate": 0.05, "momentum": 0.5, "max_iter": 40, "early_stopping": "last"},
], ids=str)  # fmt: skip
def test_trials_run_ahead_end_where_those_that_are_read_end(options, monkeypatch):
    expected = trained("regressor", "windows", 9, **options)
    monkeypatch.setattr(batched_descent, "DEVICES", ("cuda", "cpu"))
    assert_same(trained("regressor", "windows", 9, **options), expected)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize(("kind", "name"), [("regressor", "table"), ("classifier", "iris")])
def test_weights_count_side_by_side(kind, name):
    n = 45 if kind == "regressor" else 150
    batched = trained(kind, name, 9, WEIGHT[:n])
    assert_same(batched, trained(kind, name, 1, WEIGHT[:n]))
    unweighted, _ = trained(kind, name, 9)
    a, b = (cv.cv_results_["mean_test_score"] for cv in (batched[0], unweighted))
    assert not np.allclose(a, b, atol=1e-6)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("size", [2, 4, 5])
def test_groups_of_any_size_give_the_same_models(size):
    assert_same(trained("regressor", "windows", size), trained("regressor", "windows", 9))


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_single_precision_agrees_as_far_as_it_goes():
    batched = trained("regressor", "windows", 9, dtype="float32", max_iter=10)
    single = trained("regressor", "windows", 1, dtype="float32", max_iter=10)
    for a, b in zip(batched[1], single[1], strict=True):
        assert a.dtype_ == "float32"
        assert a._fitted.state["readout"].dtype == np.float32
        np.testing.assert_allclose(a.loss_curve_, b.loss_curve_, rtol=1e-3)


def test_late_differences_in_single_precision_are_those_of_the_last_bit():
    """Training amplifies rounding, whoever rounds."""

    def scores(size, X):
        options = {"max_iter": 150, "tol": None, "dtype": "float32"}
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(REGRESSION, "windows", (X, Y, {}))
            cv = trained("regressor", "windows", size, **options)[0]
        return np.stack([cv.cv_results_[f"split{i}_test_score"] for i in range(3)])

    X = WINDOWS.astype(np.float32)
    signs = np.random.default_rng(0).choice([-1, 1], (6, *X.shape))
    directions = np.float32(np.inf) * signs.astype(np.float32)
    single = scores(1, X)
    of_last_bits = [np.abs(scores(1, np.nextafter(X, d)) - single).max() for d in directions]
    assert np.abs(scores(9, X) - single).max() <= 10 * max(of_last_bits) + 1e-5


def test_each_model_ends_by_itself():
    _, fits = trained("regressor", "windows", 9, max_iter=3000, tol=1e-3)
    lengths = {fit.n_iter_ for fit in fits}
    assert len(lengths) > 1
    assert {fit.stop_reason_ for fit in fits} == {"tol"}


def test_models_that_stall_leave_the_others_to_go_on(monkeypatch):
    monkeypatch.setattr(step_rule, "SMALLEST_RATE", 0.2)
    one_by_one = trained("regressor", "windows", 1, max_iter=60, tol=None)
    reasons = {model.stop_reason_ for model in one_by_one[1]}
    assert reasons == {"stalled", "max_iter"}
    assert_same(one_by_one, trained("regressor", "windows", 9, max_iter=60, tol=None))


def test_products_by_torch_give_the_same_models(monkeypatch):
    by_numpy = trained("classifier", "iris", 5, tol=None)
    monkeypatch.setattr(matmul, "_numpy_serves", lambda a: False)
    assert_same(by_numpy, trained("classifier", "iris", 5, tol=None))


def test_folds_without_some_class_are_trained_apart():
    """The shape of their models differs."""
    X, y = IRIS, SPECIES
    sorted_folds = KFold(3)  # iris is sorted by class
    model = ResidualTransformerClassifierCV([0.0, 1.0], cv=sorted_folds, max_iter=5, tol=None)
    model.set_params(random_state=0).fit(X, y)
    assert model.cv_results_["mean_test_score"].tolist() == [0.0, 0.0]
    uneven = [(np.r_[0:90], np.r_[90:100]), (np.r_[0:150:2], np.r_[1:150:2])]
    model.set_params(cv=uneven).fit(X, y)
    assert (model.cv_results_["split1_test_score"] > 0.3).all()


def test_a_diverging_model_scores_nan_and_the_others_go_on():
    model = ResidualTransformerRegressorCV(
        [0.0, 50.0], cv=2, learning_rate=0.02, max_iter=40, tol=None, random_state=0, refit=False
    )
    with pytest.warns(match="2 of 4 cross-validation fits .* failed"):
        model.fit(WINDOWS, Y)
    assert np.isfinite(model.cv_results_["mean_test_score"]).tolist() == [True, False]
    assert model.residual_beta_ == 0.0
    assert model.cv_results_["rank_test_score"].tolist() == [1, 2]
    assert model.cv_diagnostics_[1] == [None, None]
    with pytest.raises(DivergenceError, match="All 4"):
        clone(model).set_params(learning_rate=1e9).fit(WINDOWS, Y)


def test_large_problems_and_callbacks_are_trained_one_by_one(monkeypatch):
    sizes = []
    decide = sweep.models_side_by_side

    def spy(*arguments):
        sizes.append(decide(*arguments))
        return sizes[-1]

    monkeypatch.setattr(sweep, "models_side_by_side", spy)
    brief = {"max_iter": 2, "tol": None, "diagnostics": False, "cv": 2}
    model = ResidualTransformerRegressorCV([1.0], **brief)
    model.fit(WINDOWS, Y)
    large = RNG.normal(size=(1200, 20, 16))
    model.fit(large, large[:, 0, 0])
    clone(model).set_params(chunk_size=10).fit(WINDOWS, Y)
    assert sizes[0] > 1
    assert sizes[1:] == [1, 1]


def test_memory_bounds_the_groups(monkeypatch):
    seen = []
    side_by_side = sweep.fit_side_by_side

    def spy(plain, data, tasks):
        seen.append(len(tasks))
        return side_by_side(plain, data, tasks)

    monkeypatch.setattr(sweep, "fit_side_by_side", spy)
    model = ResidualTransformerRegressorCV(BETAS, cv=3, max_iter=2, tol=None, diagnostics=False)
    model.fit(WINDOWS, Y)
    assert sorted(seen) in ([9], [4, 5])
    groups = len(seen)
    monkeypatch.setattr(sweep, "GROUP_BYTES", {"cpu": sweep.GROUP_BYTES["cpu"] // 500})
    model.fit(WINDOWS, Y)
    assert sum(seen[groups:]) == 9
    assert len(seen) > groups + 2


@pytest.mark.parametrize("room", [0, 2, 4])
def test_groups_are_halved_when_the_device_has_too_little_memory(monkeypatch, room):
    expected = trained("regressor", "windows", 9, tol=None)
    train = sweep.train

    def train_a_few(group):
        if len(group) > room:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        train(group)

    monkeypatch.setattr(sweep, "train", train_a_few)
    assert_same(expected, trained("regressor", "windows", 9, tol=None))


def test_no_gradient_state_of_the_user_matters():
    expected, _ = trained("regressor", "windows", 9, tol=None)
    for setting in (torch.no_grad, torch.inference_mode):
        for name in ("windows", "heads"):
            with setting():
                model, _ = trained("regressor", name, 9, tol=None)
            assert name != "windows" or model.best_score_ == expected.best_score_


def test_plain_estimators_are_the_ones_swept():
    assert ResidualTransformerRegressorCV._plain is ResidualTransformerRegressor
    assert ResidualTransformerClassifierCV._plain is ResidualTransformerClassifier


class Quadratic:
    """Objectives ``a theta^2 / 2`` of one parameter each."""

    def __init__(self, curvature):
        self.curvature = torch.tensor(curvature, dtype=torch.float64)
        self.theta = torch.ones((len(curvature), 1), dtype=torch.float64)
        self.gradient = torch.zeros_like(self.theta)
        self.views = self

    def state(self, theta):
        return {"theta": theta.numpy().copy()}

    def evaluate(self, read):
        return read(0.5 * self.curvature * self.theta[:, 0] ** 2)

    def differentiate(self):
        torch.mul(self.curvature[:, None], self.theta, out=self.gradient)


def alone(a, rule, settings):
    """Return losses, rates and reason of one of them, in plain numbers."""
    theta, losses, rates = 1.0, [0.5 * a], []
    if not np.isfinite(a):
        return losses, rates, "diverged"
    stopping = stopping_rule.StoppingRule(
        settings, validated=False, first=losses[0], criterion=losses[0]
    )
    reason = ""
    while not reason:
        verdict = "again"
        while verdict == "again":
            candidate = theta - rule.rate * a * theta
            verdict = rule.judge(losses[-1], 0.5 * a * candidate**2)
        if verdict == "stalled":
            return losses, rates, verdict
        theta = candidate
        losses.append(0.5 * a * theta**2)
        rates.append(rule.last_rate)
        reason = stopping.after(losses[-1], abs(a * theta), losses[-1])
    return losses, rates, reason


@pytest.mark.parametrize("rate", ["adaptive", 0.5, 3.0])
def test_divergence_overflow_and_stationary_points(rate):
    """At curvature 2 a step of 1/2 ends at the minimum; 1e3 diverges; inf never begins."""
    settings = TrainingSettings(
        loss=None, learning_rate=rate, momentum=0.0, alpha=0.0, max_iter=50, tol=1e-12,
        n_iter_no_change=3,
    )  # fmt: skip
    curvature = [1.0, 2.0, 1e3, np.inf, np.nan, 0.0]
    first = 0.5 if rate == "adaptive" else rate
    rules = [step_rule.StepRule.of(settings, first) for _ in curvature]
    results = batched_descent.BatchedDescent(Quadratic(curvature), rules, settings).run()
    for a, rule, result in zip(curvature, rules, results, strict=True):
        losses, rates, reason = alone(a, rule, settings)
        assert result.stop_reason == reason
        np.testing.assert_allclose(result.losses, losses, rtol=1e-12)
        np.testing.assert_allclose(result.learning_rates, rates, rtol=1e-12)
    assert {"diverged", "stationary"} <= {result.stop_reason for result in results}


# --- the objective, one vector of parameters a model ---------------------------------------------

TOLERANCE = {"float64": 1e-12, "float32": 2e-6}  # of the norm of every model's gradient


class Caught(Exception):
    """Carries the objective out of a search."""


def catch(objective, *_):
    raise Caught(objective)


def objective_of(kind, name, monkeypatch, **parameters):
    """Return the objective of a group of models, at other points than the initial ones."""
    monkeypatch.setattr(sweep, "BatchedDescent", catch)
    with pytest.raises(Caught) as caught:
        trained(kind, name, 5, **parameters)
    (objective,) = caught.value.args
    noise = np.random.default_rng(0).standard_normal(objective.theta.shape)
    objective.theta.add_(0.1 * torch.from_numpy(noise).to(objective.theta))
    return objective


def one_by_one(objective):
    """Return value and gradient of the readable module of each model, by autograd."""
    (batch,) = objective.batches
    values, gradients = [], []
    for i, theta in enumerate(objective.theta):
        beta, gamma = (float(strength[i]) for strength in objective.strengths)
        config = replace(objective.config, residual_beta=beta, ffn_residual_beta=gamma)
        module = build_module(config, objective.views.state(theta), dtype=theta.dtype)
        mask = None if batch.mask is None else batch.mask[i]
        value = objective.loss(module(batch.x[i], mask), batch.y[i], batch.weight[i], mask)
        flat = torch.cat([p.reshape(-1) for p in module.parameters()])
        value = value + 0.5 * (objective.decay * flat * flat).sum()
        pieces = torch.autograd.grad(
            value, list(module.parameters()), allow_unused=True, materialize_grads=True
        )
        values.append(value.detach())
        gradients.append(torch.cat([piece.reshape(-1) for piece in pieces]))
    return torch.stack(values), torch.stack(gradients)


def assert_equal_by_model(found, expected, dtype):
    error = (found - expected).norm(dim=1) / expected.norm(dim=1)
    assert float(error.max()) < TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize(("kind", "name"), [c for c in CASES if c[1] != "constant target"])
def test_value_and_gradient(kind, name, dtype, monkeypatch):
    objective = objective_of(kind, name, monkeypatch, dtype=dtype)
    value, gradient = one_by_one(objective)
    found = objective.evaluate(lambda tensor: tensor)
    torch.testing.assert_close(found, value, rtol=TOLERANCE[dtype], atol=0.0)
    objective.differentiate()
    assert_equal_by_model(objective.gradient, gradient, dtype)


@pytest.mark.parametrize("name", ["windows", "table", "mean", "last", "ragged", "per token"])
def test_products_by_torch(name, monkeypatch):
    monkeypatch.setattr(matmul, "_numpy_serves", lambda a: False)
    objective = objective_of("regressor", name, monkeypatch)
    objective.evaluate(lambda tensor: tensor)
    objective.differentiate()
    assert_equal_by_model(objective.gradient, one_by_one(objective)[1], "float64")


@pytest.mark.parametrize("size", [1, 3])
def test_logits_of_any_size(size):
    """The log-loss and its derivative where exponentials over- and underflow."""
    generator = torch.Generator().manual_seed(0)
    logits = 1e3 * torch.randn(2, 5, size, generator=generator, dtype=torch.float64)
    classes = torch.randint(size, (2, 5), generator=generator)
    y = torch.nn.functional.one_hot(classes, size).double()
    if size == 1:
        y = 2.0 * torch.randint(2, (2, 5, 1), generator=generator).double() - 1.0
    weight = torch.rand(2, 5, generator=generator, dtype=torch.float64)
    loss = binary_log_loss if size == 1 else multinomial_log_loss
    value, slope = loss.value_and_slope(logits, y, weight)
    for model in range(2):
        leaf = logits[model].clone().requires_grad_()
        if size == 1:
            terms = torch.nn.functional.softplus(-y[model] * leaf)[:, 0]
        else:
            terms = torch.logsumexp(leaf, 1) - (leaf * y[model]).sum(1)
        expected = terms @ weight[model]
        torch.testing.assert_close(value[model], expected.detach(), rtol=1e-12, atol=1e-12)
        (gradient,) = torch.autograd.grad(expected, leaf)
        torch.testing.assert_close(slope[model], gradient, rtol=1e-12, atol=1e-12)
