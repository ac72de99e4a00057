"""Fits that are interrupted, killed and resumed lose nothing."""

import json
import os
import pickle
import signal

import numpy as np
import pytest
import torch
from numpy.testing import assert_array_equal
from sklearn.exceptions import ConvergenceWarning
from skorch import NeuralNetRegressor
from skorch.callbacks import Callback, Checkpoint, LoadInitState

from sklearn_restf import ResidualTransformerClassifier, ResidualTransformerRegressor
from sklearn_restf._diagnostics import diagnose
from sklearn_restf._training import Best
from sklearn_restf._training import checkpoint as checkpoint_module
from sklearn_restf._training import training_state as state_module
from sklearn_restf.callbacks import TrainingCheckpoint
from tests.builders import FEW_STEPS, ROW_LABELS, ROWS
from tests.tools import run_python

RNG = np.random.default_rng(0)
X = RNG.standard_normal((30, 4, 3))
Y = X[:, 0, 0] + X[:, 1, 1] ** 2
SHORT = {"max_iter": 20, "tol": None, "d_ff": 6, "device": "cpu", "random_state": 0}


def regressor(*callbacks, **parameters):
    return ResidualTransformerRegressor(**SHORT | {"callbacks": [*callbacks]} | parameters)


def assert_same_fit(a, b):
    assert a.loss_curve_ == b.loss_curve_
    assert a.validation_curve_ == b.validation_curve_
    for name in ("n_iter_", "loss_", "best_loss_", "best_iteration_", "learning_rate_"):
        assert getattr(a, name) == getattr(b, name), name
    assert_array_equal(a.predict(X), b.predict(X))


@pytest.fixture
def file(tmp_path):
    return tmp_path / "state" / "fit.checkpoint"


# --- kill -9 --------------------------------------------------------------------------------


needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="kills children made by fork")


@needs_fork
@pytest.mark.parametrize(
    "kills",
    [5, pytest.param(50, marks=[pytest.mark.slow, pytest.mark.timeout(600)])],
)
def test_killed_fits_end_as_undisturbed_ones(kills, tmp_path):
    found = json.loads(run_python("tests/killing.py", kills, kills, tmp_path))
    assert found["kills"] == kills
    assert found["with a checkpoint"] > 0
    assert found["ended as undisturbed"] >= 4  # each run ends at least once
    assert found["ended otherwise"] == 0


# --- SIGINT ---------------------------------------------------------------------------------


@pytest.fixture
def interruptible():
    """Let SIGINT interrupt, also where the tests run in the background of a shell."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
@pytest.mark.parametrize("times", [4, pytest.param(50, marks=pytest.mark.slow)])
def test_an_interrupt_by_signal_keeps_the_best(times):
    for outcome in json.loads(run_python("tests/interrupting.py", times, 0)):
        assert outcome["stop_reason"] == "interrupted"
        assert outcome["warnings"] == ["ConvergenceWarning"]
        assert outcome["iterations"] > 0
        assert outcome["lengths agree"]
        assert outcome["best"]
        assert outcome["same as that many iterations"]


@pytest.mark.parametrize("held_out", [False, True])
@pytest.mark.parametrize("moment", ["before", "after"])
def test_an_iteration_whose_weights_were_not_looked_at_does_not_count(
    monkeypatch, held_out, moment
):
    """Interrupted between recording a loss and keeping its weights."""
    offer = Best.offer

    def interrupted(self, value, iteration):
        if iteration == 9 and moment == "before":
            raise KeyboardInterrupt
        improved = offer(self, value, iteration)
        if iteration == 9:
            raise KeyboardInterrupt
        return improved

    monkeypatch.setattr(Best, "offer", interrupted)
    model = regressor(callbacks=None, early_stopping=held_out)
    with pytest.warns(ConvergenceWarning, match="was interrupted"):
        model.fit(X, Y)
    assert model.n_iter_ == len(model.loss_curve_) == (8 if moment == "before" else 9)
    curve = model.validation_curve_ if held_out else model.loss_curve_
    assert model.best_iteration_ == 1 + np.argmin(curve)


def test_the_best_is_exchanged_as_a_whole():
    """Whatever was kept before an interrupt within `offer` stays what it was."""
    current = torch.tensor([1.0])
    best = Best(current)
    best.offer(3.0, 1)
    before = best.kept

    current.fill_(2.0)
    best._spare = None  # copying into it fails half way
    with pytest.raises(AttributeError):
        best.offer(2.0, 2)
    assert best.kept is before
    assert best.theta.item() == 1.0


class CtrlC(Callback):
    """The user interrupts while a callback is at work."""

    def __init__(self, event):
        self.event = event

    def on_epoch_end(self, net, **kwargs):
        if self.event == "epoch" and len(net.history) == 7:
            signal.raise_signal(signal.SIGINT)

    def on_train_end(self, net, **kwargs):
        if self.event == "end":
            signal.raise_signal(signal.SIGINT)


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("event", ["epoch", "end"])
@pytest.mark.parametrize("options", [{}, {"learning_rate": 0.3, "momentum": 0.95}], ids=str)
def test_an_interrupt_within_a_callback_keeps_the_best(event, options):
    """It is not mistaken for the callback's own wish to stop."""
    model = regressor(CtrlC(event), **options)
    with pytest.warns(ConvergenceWarning, match="was interrupted"):
        model.fit(X, Y)
    assert model.stop_reason_ == "interrupted"
    assert model.n_iter_ == (7 if event == "epoch" else 20)
    assert model.loss_ == model.best_loss_
    shorter = regressor(**options, max_iter=max(model.best_iteration_, 1)).fit(X, Y)
    if model.best_iteration_:
        assert_array_equal(model.predict(X), shorter.predict(X))


def test_an_interrupted_diagnosis_costs_no_fit(monkeypatch):
    def interrupt(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(diagnose, "predicted", interrupt)
    model = regressor()
    with pytest.warns(ConvergenceWarning, match="interrupted while its convergence was diagnosed"):
        model.fit(X, Y)
    monkeypatch.undo()
    assert_same_fit(model, regressor().fit(X, Y))
    diagnostics = model.convergence_diagnostics_
    assert diagnostics.reasons["sigma_min"] == "interrupted"
    assert np.isnan(diagnostics.sigma_min)
    assert isinstance(diagnostics.summary(), str)


# --- going on -------------------------------------------------------------------------------


@pytest.mark.parametrize("every", [1, 7, 10, 1000])
def test_a_fit_goes_on_from_its_file(file, every):
    checkpoint = TrainingCheckpoint(file, every=every)
    regressor(checkpoint, max_iter=12).fit(X, Y)
    resumed = regressor(checkpoint).fit(X, Y)
    assert resumed.callbacks_[-1].resumed_from_ == 12 - 12 % every
    assert_same_fit(resumed, regressor().fit(X, Y))


def test_it_changes_nothing(file):
    assert_same_fit(regressor(TrainingCheckpoint(file)).fit(X, Y), regressor().fit(X, Y))


def test_a_finished_fit_is_read_back(file):
    options = {"tol": 1e-2, "n_iter_no_change": 2, "max_iter": 500}
    checkpoint = TrainingCheckpoint(file, every=1)
    first = regressor(checkpoint, **options).fit(X, Y)
    again = regressor(checkpoint, **options).fit(X, Y)
    assert first.n_iter_ < 500
    assert again.stop_reason_ == first.stop_reason_ == "tol"
    assert_same_fit(again, first)


def test_other_stopping_rules_go_on(file):
    checkpoint = TrainingCheckpoint(file, every=1)
    regressor(checkpoint, tol=1e-1, n_iter_no_change=2, max_iter=500).fit(X, Y)
    longer = regressor(checkpoint, max_iter=40).fit(X, Y)
    assert_same_fit(longer, regressor(max_iter=40).fit(X, Y))


class Note(Callback):
    """Records numbers of NumPy and torch, and something that JSON has no word for."""

    def on_epoch_end(self, net, **kwargs):
        net.history.record("numpy", np.float32(0.1))
        net.history.record("torch", torch.tensor(3))
        net.history.record("object", {1, 2})

    def on_train_end(self, net, **kwargs):
        self.history_ = [dict(row) for row in net.history]


def test_the_history_goes_on(file):
    callbacks = [TrainingCheckpoint(file, every=5), Note()]  # saved last, wherever it stands
    regressor(*callbacks, max_iter=10).fit(X, Y)
    resumed = regressor(*callbacks).fit(X, Y)
    history = resumed.callbacks_[0].history_
    assert [row["epoch"] for row in history] == list(range(1, 21))
    assert [row["train_loss"] for row in history] == resumed.loss_curve_
    assert history[9]["numpy"] == np.float32(0.1)
    assert history[9]["torch"] == 3


def test_a_fit_that_diverges_diverges_again(file):
    from sklearn_restf.exceptions import DivergenceError

    messages = []
    for _ in range(2):
        with pytest.raises(DivergenceError) as caught:
            regressor(TrainingCheckpoint(file, every=2), learning_rate=0.9, momentum=0.99).fit(
                X * 10, Y
            )
        messages.append(str(caught.value))
    assert file.exists()
    assert messages[0] == messages[1]


def test_warm_start_goes_on_too(file):
    models = [regressor(warm_start=True).fit(X, Y) for _ in range(2)]
    expected = models[0].fit(X, Y)
    model = models[1].set_params(callbacks=[TrainingCheckpoint(file)], max_iter=10)
    stored = pickle.dumps(model)
    model.fit(X, Y)
    resumed = pickle.loads(stored).set_params(max_iter=20).fit(X, Y)
    assert resumed.callbacks_[0].resumed_from_ == 10
    assert_same_fit(resumed, expected)


@pytest.mark.parametrize("learning_rate", ["adaptive", "theory", 0.02])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_skorchs_own_checkpoint_goes_on(tmp_path, learning_rate, momentum):
    options = {"learning_rate": learning_rate, "momentum": momentum}
    whole = regressor(**options).fit(X, Y)
    saved = Checkpoint(monitor=None, dirname=str(tmp_path), f_criterion=None)
    regressor(saved, max_iter=12, **options).fit(X, Y)
    resumed = regressor(LoadInitState(saved), max_iter=8, **options).fit(X, Y)
    assert resumed.loss_curve_ == whole.loss_curve_[12:]
    assert resumed.learning_rate_ == whole.learning_rate_
    assert_array_equal(resumed.predict(X), whole.predict(X))


# --- what is refused ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"residual_beta": 0.5}, r"residual_beta \(1.0 there, 0.5 here\)"),
        ({"d_ff": 7}, r"d_ff \(6 there, 7 here\)"),
        ({"alpha": 0.5}, "alpha"),
        ({"momentum": 0.5}, "momentum"),
        ({"learning_rate": 0.01}, r"learning_rate \('adaptive' there, 0.01 here\)"),
        ({"random_state": 1}, "random_state or init"),
        ({"init_scale": 0.5}, "random_state or init"),
        ({"dtype": "float32"}, "dtype"),
        ({"standardize": False}, "standardize"),
        ({"early_stopping": True}, "early_stopping"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_another_model_is_refused(file, change, named):
    checkpoint = TrainingCheckpoint(file)
    regressor(checkpoint).fit(X, Y)
    with pytest.raises(ValueError, match=rf"belongs to another fit.*{named}.*Delete the file"):
        regressor(checkpoint, **change).fit(X, Y)


@pytest.mark.parametrize("name", ["X", "y", "sample_weight", "X_val", "y_val", "sample_weight_val"])
def test_other_samples_are_refused(file, name):
    samples = {"X": X, "y": Y, "sample_weight": np.ones(30)}
    samples |= {f"{key}_val": value[:9].copy() for key, value in samples.items()}
    regressor(TrainingCheckpoint(file)).fit(**samples)
    changed = samples[name].copy()
    changed[3] *= 1.01
    with pytest.raises(ValueError, match=rf"belongs to another fit.*{name}\b"):
        regressor(TrainingCheckpoint(file)).fit(**samples | {name: changed})
    regressor(TrainingCheckpoint(file)).fit(**samples)


def test_ragged_samples_are_told_apart(file):
    ragged = [x[: 1 + i % 4] for i, x in enumerate(X)]
    options = {"pooling": "mean"}
    regressor(TrainingCheckpoint(file), **options).fit(ragged, Y)
    regressor(TrainingCheckpoint(file), **options).fit(ragged, Y)
    ragged[0], ragged[1] = ragged[1], ragged[0]
    with pytest.raises(ValueError, match="another fit, which differs in X"):
        regressor(TrainingCheckpoint(file), **options).fit(ragged, Y)


def test_fewer_iterations_than_were_made_are_refused(file):
    regressor(TrainingCheckpoint(file)).fit(X, Y)
    with pytest.raises(ValueError, match="of iteration 20, beyond max_iter=5"):
        regressor(TrainingCheckpoint(file), max_iter=5).fit(X, Y)


def test_a_random_seed_is_refused_at_once(file):
    with pytest.raises(ValueError, match="needs random_state"):
        regressor(("saved", TrainingCheckpoint(file)), random_state=None).fit(X, Y)


@pytest.mark.parametrize("every", [0, -1, 1.5, None, True])
def test_every_must_be_a_number_of_iterations(file, every):
    with pytest.raises(ValueError, match=r"every of TrainingCheckpoint .* got every="):
        regressor(TrainingCheckpoint(file, every=every)).fit(X, Y)


def test_other_nets_are_refused(file):
    net = NeuralNetRegressor(
        torch.nn.Linear, module__in_features=2, module__out_features=1, verbose=0,
        callbacks=[TrainingCheckpoint(file)],
    )  # fmt: skip
    with pytest.raises(TypeError, match=r"use skorch\.callbacks\.Checkpoint"):
        net.fit(np.zeros((4, 2), "f4"), np.zeros((4, 1), "f4"))


def test_a_newer_format_is_refused(file, monkeypatch):
    monkeypatch.setattr(state_module, "FORMAT_VERSION", 99)
    regressor(TrainingCheckpoint(file)).fit(X, Y)
    monkeypatch.undo()
    with pytest.raises(ValueError, match=r"newer sklearn-restf \(its format is 99, known here"):
        regressor(TrainingCheckpoint(file)).fit(X, Y)


class Bomb:
    """Makes a folder when it is unpickled."""

    def __init__(self, folder):
        self.folder = folder

    def __reduce__(self):
        return os.mkdir, (str(self.folder),)


@pytest.mark.parametrize("kind", ["empty", "cut off", "no checkpoint", "code"])
def test_other_files_are_refused_and_run_no_code(file, kind, tmp_path):
    regressor(TrainingCheckpoint(file)).fit(X, Y)
    whole = file.read_bytes()
    if kind == "no checkpoint":
        torch.save({"a": torch.ones(2)}, file)
    elif kind == "code":
        torch.save(Bomb(tmp_path / "made"), file)
    else:
        file.write_bytes(whole[: 0 if kind == "empty" else len(whole) // 2])
    with pytest.raises(ValueError, match="no checkpoint of this package, or is damaged"):
        regressor(TrainingCheckpoint(file)).fit(X, Y)
    assert not (tmp_path / "made").exists()
    file.write_bytes(whole)
    regressor(TrainingCheckpoint(file)).fit(X, Y)


# --- whole files ----------------------------------------------------------------------------


def test_a_full_disk_costs_no_training(file, monkeypatch):
    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint_module, "write_whole", fail)
    with pytest.warns(UserWarning, match=r"could not be written.*No space left") as caught:
        model = regressor(TrainingCheckpoint(file, every=1)).fit(X, Y)
    assert len(caught) == 1
    assert_same_fit(model, regressor().fit(X, Y))


def test_a_classifier_goes_on(file):
    labels = np.where(Y > 0, "yes", "no")
    options = SHORT | {"callbacks": [TrainingCheckpoint(file)]}
    ResidualTransformerClassifier(**options | {"max_iter": 10}).fit(X, labels)
    resumed = ResidualTransformerClassifier(**options).fit(X, labels)
    plain = ResidualTransformerClassifier(**SHORT).fit(X, labels)
    assert_array_equal(resumed.predict_proba(X), plain.predict_proba(X))


def test_a_damaged_checkpoint_is_refused_though_torch_reads_it(tmp_path):
    path = tmp_path / "fit.checkpoint"
    model = ResidualTransformerRegressor(**FEW_STEPS, callbacks=[TrainingCheckpoint(path, every=1)])
    weights = model.fit(ROWS, ROW_LABELS)._fitted.state["readout"]
    content = bytearray(path.read_bytes())
    at = content.index(weights.tobytes())
    content[at] ^= 1
    path.write_bytes(content)
    assert torch.load(path, weights_only=True)
    with pytest.raises(ValueError, match=r"fit\.checkpoint is no checkpoint .* checksum"):
        model.fit(ROWS, ROW_LABELS)


@pytest.mark.parametrize("path", [None, 3, "."], ids=str)
def test_a_checkpoint_needs_the_path_of_a_file(path):
    model = ResidualTransformerRegressor(**FEW_STEPS, callbacks=[TrainingCheckpoint(path)])
    with pytest.raises(ValueError, match="path of TrainingCheckpoint"):
        model.fit(ROWS, ROW_LABELS)
