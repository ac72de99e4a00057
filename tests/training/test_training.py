"""Training as a user of the estimators sees it: step rules, stopping, what is left behind."""

import copy
import io
import logging
import os
import pickle
import signal
import sys
import warnings

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.metrics import log_loss
from sklearn.utils.validation import check_is_fitted
from skorch.callbacks import Callback
from torch.utils._python_dispatch import TorchDispatchMode

from sklearn_restf.exceptions import DivergenceError
from tests.builders import (
    SERIES,
    SERIES_YR,
    X2D,
    X3D,
    YC,
    YR,
    Recorder,
    both,
    make_classifier,
    make_regressor,
)
from tests.tools import objective, outputs, penalty, run_python

STANDARD_Y = (YR - YR.mean()) / YR.std()


def recorded(estimator, *arguments, **options):
    """Fit with a recorder; return the fitted estimator and the recorder."""
    estimator.set_params(callbacks=[Recorder()]).fit(*arguments, **options)
    return estimator, estimator.callbacks_[0]


# --- step rules ------------------------------------------------------------------------------


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("alpha", [0.0, 0.1])
@pytest.mark.parametrize("chunk_size", [None, 7])
def test_constant_rate_is_gradient_descent_on_all_samples(momentum, alpha, chunk_size):
    """The very iterates of torch's own SGD, fed with all samples at once."""
    estimator, recorder = recorded(
        make_regressor(
            learning_rate=0.01,
            momentum=momentum,
            alpha=alpha,
            standardize=False,
            chunk_size=chunk_size,
        ),
        X3D,
        STANDARD_Y,
    )
    module = estimator.module_
    module.load_state_dict(recorder.weights_[0])
    named = list(module.named_parameters())
    weights = [p for name, p in named if not name.endswith("_bias")]
    biases = [p for name, p in named if name.endswith("_bias")]
    groups = [{"params": weights, "weight_decay": alpha}, {"params": biases}]
    optimizer = torch.optim.SGD(groups, lr=0.01, momentum=momentum)
    x, y = torch.from_numpy(X3D), torch.from_numpy(STANDARD_Y)
    losses = []
    for _ in range(21):
        optimizer.zero_grad()
        loss = 0.5 * ((module(x)[:, 0] - y) ** 2).mean()
        squares = sum(float((w.detach() ** 2).sum()) for w in weights)
        losses.append(float(loss.detach()) + 0.5 * alpha * squares)
        loss.backward()
        optimizer.step()
    np.testing.assert_allclose(estimator.loss_curve_, losses[1:], rtol=1e-9)
    assert recorder.rates_ == [0.01] * 20
    assert estimator.learning_rate_ == 0.01


def test_theory_rate_is_one_over_the_squared_norm_of_the_jacobian():
    estimator, recorder = recorded(
        make_regressor(
            learning_rate="theory",
            momentum=0.0,
            alpha=0.0,
            standardize=False,
            d_ff=4,
            diagnostics="full",
        ),
        X3D[:, :4],
        STANDARD_Y,
    )
    module = estimator.module_
    start = recorder.weights_[0]

    def predictions(weights):
        return torch.func.functional_call(module, weights, torch.from_numpy(X3D[:, :4]))[:, 0]

    jacobian = torch.func.jacrev(predictions)(start)
    matrix = torch.cat([block.reshape(64, -1) for block in jacobian.values()], dim=1)
    norm = float(torch.linalg.matrix_norm(matrix, 2)) ** 2 / 64  # of the mean loss
    assert recorder.rates_[0] == pytest.approx(1 / norm, rel=0.02)
    assert estimator.convergence_diagnostics_.jacobian_norm == pytest.approx(norm, rel=0.02)
    assert set(recorder.rates_) == {recorder.rates_[0]}  # no step had to be shortened
    assert (np.diff(estimator.loss_curve_) < 0).all()


@both
@pytest.mark.parametrize("learning_rate", ["adaptive", "theory"])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_automatic_rates_never_increase_the_loss(make, y, learning_rate, momentum, dtype):
    estimator, recorder = recorded(
        make(learning_rate=learning_rate, momentum=momentum, dtype=dtype, max_iter=60), X2D, y
    )
    losses = np.array(estimator.loss_curve_)
    assert (np.diff(losses) <= 0).all()
    assert losses[-1] < 0.9 * losses[0]
    growth = np.diff(np.log(recorder.rates_))
    assert (growth <= (1e-9 if learning_rate == "theory" else np.log(1.1) + 1e-9)).all()


@both
def test_no_rate_at_all_is_needed_for_bad_starts(make, y):
    """Weights far too large: the first steps are cut down until the loss falls."""
    estimator = make(init_scale=20.0, max_iter=50).fit(X2D, y)
    assert np.isfinite(estimator.loss_curve_).all()
    assert estimator.loss_ < estimator.loss_curve_[0]


# --- what a fit leaves behind ----------------------------------------------------------------

_SETTINGS = [
    {},
    {"learning_rate": 0.02},
    {"learning_rate": "theory", "momentum": 0.0},
    {"alpha": 0.0, "tol": 1e-2, "max_iter": 100},
    {"chunk_size": 10, "n_layers": 2, "n_heads": 2, "layer_norm": True},
    {"positional_encoding": "learned", "alpha": 0.3},
    {"dtype": "float32"},
    {"max_iter": 1},
]


@both
@pytest.mark.parametrize("parameters", _SETTINGS, ids=str)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_loss_attributes_fit_together_and_match_the_predictions(make, y, parameters):
    estimator = make(**parameters).fit(X2D, y)
    assert type(estimator.loss_curve_) is list
    assert {type(loss) for loss in estimator.loss_curve_} == {float}
    assert len(estimator.loss_curve_) == estimator.n_iter_ >= 1
    assert type(estimator.n_iter_) is int
    assert estimator.loss_ == estimator.loss_curve_[-1]
    assert estimator.best_loss_ <= min(estimator.loss_curve_)
    assert estimator.validation_curve_ == []
    diagnostics = estimator.convergence_diagnostics_
    np.testing.assert_array_equal(diagnostics.loss[1:], estimator.loss_curve_)
    precise = estimator.dtype_ == "float64"
    assert estimator.loss_ == pytest.approx(
        objective(estimator, X2D, y), rel=1e-9 if precise else 1e-4
    )
    assert type(estimator.learning_rate_) is float
    assert estimator.learning_rate_ > 0
    assert estimator.net_.history[:, "train_loss"] == estimator.loss_curve_
    assert estimator.device_ == "cpu"


def test_loss_of_several_outputs_is_their_sum():
    Y = np.c_[YR, 100 * YR**2 + 7]
    estimator = make_regressor().fit(X2D, Y)
    assert estimator.loss_ == pytest.approx(objective(estimator, X2D, Y), rel=1e-9)


# --- stopping --------------------------------------------------------------------------------


@pytest.mark.parametrize("tol", [1e-3, 3e-2])
@pytest.mark.parametrize("patience", [3, 10])
def test_training_stops_as_soon_as_the_improvement_is_below_tol(tol, patience):
    estimator = make_regressor(tol=tol, n_iter_no_change=patience, max_iter=2000).fit(X2D, YR)
    assert estimator.stop_reason_ == "tol"
    losses = estimator.convergence_diagnostics_.loss

    def improvement(n_iter):
        before = losses[: n_iter + 1 - patience].min()
        return (before - losses[n_iter + 1 - patience : n_iter + 1].min()) / before

    assert improvement(estimator.n_iter_) <= tol
    assert all(improvement(n) > tol for n in range(patience, estimator.n_iter_))


@both
def test_zero_tol_trains_while_there_is_any_improvement(make, y):
    estimator = make(tol=0.0, max_iter=150)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        estimator.fit(X2D, y)
    assert estimator.n_iter_ == 150
    assert estimator.stop_reason_ == "max_iter"


@pytest.mark.parametrize("tol", [None, 1e-4])
@pytest.mark.parametrize("max_iter", [1, 5])
def test_nothing_to_learn_still_counts_iterations(tol, max_iter):
    """Constant X and y without penalty: the gradient is zero from the start."""
    estimator = make_regressor(alpha=0.0, tol=tol, max_iter=max_iter)
    estimator.fit(np.ones((10, 3)), np.ones(10))
    assert 1 <= estimator.n_iter_ == len(estimator.loss_curve_)
    if tol is None:
        assert estimator.n_iter_ == max_iter
    np.testing.assert_array_equal(estimator.predict(np.ones((2, 3))), 1.0)


@both
def test_training_that_ran_out_of_iterations_warns_once(make, y):
    with pytest.warns(ConvergenceWarning, match=r"max_iter=5\b.*Raise max_iter") as caught:
        make(tol=1e-4, max_iter=5).fit(X2D, y)
    assert len(caught) == 1
    assert caught[0].filename == __file__


# --- early stopping --------------------------------------------------------------------------


@both
@pytest.mark.parametrize("early_stopping", [True, "last", "given"])
def test_early_stopping_keeps_the_weights_of_the_lowest_validation_loss(make, y, early_stopping):
    train, held_out = slice(0, 44), slice(44, 64)
    options = {"max_iter": 400, "tol": 1e-4, "alpha": 1e-3, "validation_fraction": 0.3}
    if early_stopping == "given":
        estimator, recorder = recorded(
            make(**options), X2D[train], y[train], X_val=X2D[held_out], y_val=y[held_out]
        )
    else:
        estimator, recorder = recorded(make(early_stopping=early_stopping, **options), X2D, y)
    curve = estimator.validation_curve_
    assert {type(loss) for loss in curve} == {float}
    assert len(curve) == estimator.n_iter_ < 400
    assert estimator.stop_reason_ == "early_stopping"
    assert recorder.sizes_ == [44, 20]
    best = estimator.best_iteration_
    assert curve[best - 1] == min(curve)
    for name, weight in estimator.module_.state_dict().items():
        assert torch.equal(weight, recorder.weights_[best][name])
    assert estimator.loss_ == estimator.loss_curve_[best - 1]
    if early_stopping == "given" and make is make_regressor:  # the penalty is no validation loss
        error = (estimator.predict(X2D[held_out]) - y[held_out]) / y[train].std()
        assert min(curve) == pytest.approx(0.5 * np.mean(error**2), rel=1e-9)


@pytest.mark.parametrize(("n", "fraction", "sizes"), [(64, 0.1, [57, 7]), (40, 0.25, [30, 10])])
@pytest.mark.parametrize("early_stopping", [True, "last"])
def test_size_of_the_validation_set(n, fraction, sizes, early_stopping):
    _, recorder = recorded(
        make_regressor(early_stopping=early_stopping, validation_fraction=fraction, max_iter=2),
        X2D[:n],
        YR[:n],
    )
    assert recorder.sizes_ == sizes
    if early_stopping == "last":
        expected = (YR[n - sizes[1] : n] - YR[: sizes[0]].mean()) / YR[: sizes[0]].std()
        np.testing.assert_allclose(recorder.targets_[1][:, 0], expected, rtol=1e-9)


def test_random_validation_set_is_stratified_and_differs_by_seed():
    y = np.where(np.arange(64) % 4 == 0, "rare", "common")
    estimator = make_classifier(early_stopping=True, validation_fraction=0.25, max_iter=2)
    _, recorder = recorded(estimator, X2D, y)
    assert int((recorder.targets_[1] > 0).sum()) == 4
    regressor = make_regressor(early_stopping=True, validation_fraction=0.25, max_iter=2)
    targets = [
        recorded(clone(regressor).set_params(random_state=seed), X2D, YR)[1].targets_[1]
        for seed in (0, 0, 1)
    ]
    assert torch.equal(targets[0], targets[1])
    assert not torch.equal(targets[0], targets[2])


@both
def test_weights_of_the_validation_samples_count(make, y):
    train, held_out = slice(0, 44), slice(44, 64)
    weight = np.arange(20) % 3

    def curve(rows, w=None):
        X_val, y_val = X2D[held_out][rows], y[held_out][rows]
        estimator = make(max_iter=10)
        estimator.fit(X2D[train], y[train], X_val=X_val, y_val=y_val, sample_weight_val=w)
        return estimator.validation_curve_

    weighted = curve(np.arange(20), weight)
    np.testing.assert_allclose(weighted, curve(np.repeat(np.arange(20), weight)), rtol=1e-9)
    np.testing.assert_allclose(weighted, curve(np.arange(20), 1e5 * weight), rtol=1e-9)
    assert not np.allclose(weighted, curve(np.arange(20)))


def test_weights_of_a_validation_set_that_is_not_there_are_refused():
    with pytest.raises(ValueError, match="sample_weight_val"):
        make_regressor().fit(X2D, YR, sample_weight_val=np.ones(64))


# --- interruption ----------------------------------------------------------------------------


class InterruptAt(TorchDispatchMode):
    """Ctrl-C at the n-th tensor operation."""

    def __init__(self, n):
        super().__init__()
        self.left = n

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt
        return func(*args, **(kwargs or {}))


def _operations(estimator, y):
    counter = InterruptAt(-1)
    with counter:
        estimator.fit(X2D, y)
    return -1 - counter.left


@both
@pytest.mark.parametrize(
    "parameters",
    [{}, {"learning_rate": 0.02}, {"early_stopping": True}, {"chunk_size": 20}],
    ids=str,
)
def test_interrupt_at_any_moment_keeps_the_best_so_far_or_nothing(make, y, parameters):
    options = {"max_iter": 4, "diagnostics": False, **parameters}
    n_operations = _operations(make(**options), y)
    outcomes = set()
    for moment in np.unique(np.linspace(1, n_operations, 40).astype(int)):
        estimator = make(**options)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                with InterruptAt(moment):
                    estimator.fit(X2D, y)
            except KeyboardInterrupt:
                with pytest.raises(NotFittedError):
                    check_is_fitted(estimator)
                outcomes.add("nothing")
                continue
        assert [w.category for w in caught] == [ConvergenceWarning]
        assert "interrupted" in str(caught[0].message)
        assert estimator.stop_reason_ == "interrupted"
        assert len(estimator.loss_curve_) == estimator.n_iter_ <= 4
        if not estimator.early_stopping:
            assert estimator.loss_ <= estimator.convergence_diagnostics_.loss[-2:].max()
            assert estimator.loss_ == pytest.approx(objective(estimator, X2D, y), rel=1e-9)
        outcomes.add("kept")
    assert "kept" in outcomes


def test_real_ctrl_c_keeps_the_model():
    """A signal, as the terminal sends it."""

    class CtrlC(Callback):
        def on_train_begin(self, net, **kwargs):
            signal.setitimer(signal.ITIMER_REAL, 0.3)

    def interrupt(number, frame):
        raise KeyboardInterrupt

    estimator = make_regressor(max_iter=10**6, callbacks=[("ctrl-c", CtrlC)])
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            estimator.fit(X2D, YR)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert 0 < estimator.n_iter_ < 10**6
    assert estimator.stop_reason_ in ("interrupted", "callback")
    assert estimator.score(X2D, YR) > 0


# --- divergence ------------------------------------------------------------------------------


@both
def test_divergence_leaves_the_best_model_in_the_exception(make, y):
    estimator = make(learning_rate=30.0, momentum=0.0, max_iter=100, alpha=1.0)
    with pytest.raises(DivergenceError, match=r"iteration \d+.*30\.0.*adaptive") as diverged:
        estimator.fit(X2D, y)
    with pytest.raises(NotFittedError):
        estimator.predict(X2D)
    rescued = diverged.value.estimator
    assert type(rescued) is type(estimator)
    assert rescued.get_params() == estimator.get_params()
    assert np.isfinite(outputs(rescued, X2D)).all()
    assert rescued.stop_reason_ == "diverged"
    assert rescued.loss_ == rescued.best_loss_ == pytest.approx(objective(rescued, X2D, y))
    loaded = pickle.loads(pickle.dumps(diverged.value))
    assert str(loaded) == str(diverged.value)
    np.testing.assert_array_equal(outputs(loaded.estimator, X2D), outputs(rescued, X2D))


# --- chunks and precision --------------------------------------------------------------------


@pytest.mark.parametrize("chunk_size", [1, 5, 12, 100])
@pytest.mark.parametrize(
    "parameters",
    [
        {"pooling": "mean"},
        {"pooling": "last", "learning_rate": "theory", "momentum": 0.0},
        {"early_stopping": "last", "validation_fraction": 0.25},
        {"learning_rate": 0.02, "layer_norm": True},
    ],
    ids=str,
)
def test_chunks_of_unequal_series_change_nothing(chunk_size, parameters):
    weight = np.arange(12) % 3 + 0.5
    fits = [
        make_regressor(chunk_size=size, max_iter=8, **parameters).fit(SERIES, SERIES_YR, weight)
        for size in (None, chunk_size)
    ]
    np.testing.assert_allclose(fits[1].loss_curve_, fits[0].loss_curve_, rtol=1e-9)
    np.testing.assert_allclose(fits[1].validation_curve_, fits[0].validation_curve_, rtol=1e-9)
    np.testing.assert_allclose(fits[1].predict(SERIES), fits[0].predict(SERIES), rtol=1e-7)


@both
def test_single_precision_is_close_to_double(make, y):
    single, double = (make(dtype=dtype).fit(X2D, y) for dtype in ("float32", "float64"))
    assert (single.dtype_, double.dtype_) == ("float32", "float64")
    assert {p.dtype for p in single.module_.parameters()} == {torch.float32}
    np.testing.assert_allclose(single.loss_curve_, double.loss_curve_, rtol=1e-3)
    np.testing.assert_allclose(outputs(single, X2D), outputs(double, X2D), rtol=0.02, atol=0.02)
    assert outputs(single, X2D.astype("float32")).dtype == np.float64


# --- output and side effects -----------------------------------------------------------------


@both
@pytest.mark.parametrize("max_iter", [1, 30, 200])
def test_verbose_prints_some_plain_lines(make, y, max_iter, capsys):
    make(verbose=1, max_iter=max_iter).fit(X2D, y)
    printed = capsys.readouterr()
    lines = printed.out.splitlines()
    assert printed.err == ""
    assert 1 <= len(lines) <= 35
    name = type(make()).__name__
    assert all(name in line and "loss" in line and f"/{max_iter}" in line for line in lines)
    assert f" {max_iter}/{max_iter}" in lines[-1]


def test_verbose_draws_a_bar_on_a_terminal(monkeypatch, capsys):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    make_regressor(verbose=1).fit(X2D, YR)
    assert "20/20" in terminal.getvalue()
    assert capsys.readouterr().out == ""


@both
def test_fit_and_predict_leave_the_process_as_it_was(make, y, random_state_unchanged):
    def state():
        return (
            list(warnings.filters),
            dict(os.environ),
            list(logging.getLogger().handlers),
            signal.getsignal(signal.SIGINT),
            torch.get_num_threads(),
            torch.get_num_interop_threads(),
            torch.are_deterministic_algorithms_enabled(),
            torch.backends.mkldnn.enabled,
            torch.is_inference_mode_enabled(),
            np.get_printoptions(),
            sys.getrecursionlimit(),
        )

    before = state()
    estimator = make(early_stopping=True, verbose=0, diagnostics="full").fit(X2D, y)
    outputs(estimator, X2D)
    repr(estimator.convergence_diagnostics_)
    assert state() == before


@both
def test_nothing_the_user_passes_is_changed(make, y):
    callback = Recorder()
    weight = np.arange(64) % 4 * 1.0
    given = [X2D, y, weight, X3D[:20].reshape(20, -1), y[:20], weight[:20] + 1]
    passed = copy.deepcopy(given)
    parameters = {"callbacks": [callback], "random_state": 0}
    if make is make_classifier:
        parameters["class_weight"] = {"neg": 2.0, "pos": 1.0}
    expected = copy.deepcopy(parameters.get("class_weight"))
    X, y_, w, X_val, y_val, w_val = passed
    estimator = make(**parameters)
    estimator.fit(X, y_, w, X_val=X_val, y_val=y_val, sample_weight_val=w_val)
    outputs(estimator, X)
    for one, other in zip(given, passed, strict=True):
        np.testing.assert_array_equal(one, other)
    assert parameters.get("class_weight") == expected
    assert estimator.callbacks is parameters["callbacks"]
    assert estimator.callbacks == [callback]
    assert vars(callback) == {}


@pytest.mark.slow
def test_importing_the_package_stays_light():
    heavy = ("matplotlib", "polars", "transformers", "tqdm.notebook", "pooch", "dask")
    code = f"import sys, sklearn_restf; print([m for m in {heavy!r} if m in sys.modules])"
    assert run_python("-c", code).strip() == "[]"


def test_classifier_objective_counts_class_weights():
    estimator = make_classifier(class_weight={"neg": 3.0, "pos": 1.0}).fit(X2D, YC)
    weight = np.where(YC == "neg", 3.0, 1.0)
    mean_loss = log_loss(YC, estimator.predict_proba(X2D), sample_weight=weight)
    assert estimator.loss_ == pytest.approx(mean_loss + penalty(estimator), rel=1e-9)
