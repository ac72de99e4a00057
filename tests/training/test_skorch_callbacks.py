"""skorch's callbacks in the estimators: each does what its documentation says."""

import itertools
import pickle

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.metrics import accuracy_score, log_loss, r2_score
from sklearn.model_selection import GridSearchCV
from skorch.callbacks import (
    BatchScoring,
    Callback,
    Checkpoint,
    EarlyStopping,
    EpochScoring,
    EpochTimer,
    Freezer,
    GradientNormClipping,
    LRScheduler,
    PrintLog,
    ProgressBar,
    TrainEndCheckpoint,
)

from sklearn_restf import ResidualTransformerClassifier, ResidualTransformerRegressor
from sklearn_restf._data import batches
from tests.builders import (
    SERIES,
    SERIES_YR,
    X2D,
    YC,
    YR,
    Recorder,
    both,
    make_classifier,
    make_regressor,
)
from tests.tools import objective, outputs

pytestmark = pytest.mark.ecosystem
TRAIN, HELD_OUT = slice(0, 44), slice(44, 64)
VALIDATION = {"X_val": X2D[HELD_OUT], "y_val": YR[HELD_OUT]}


class HistoryKeeper(Callback):
    """Keeps what the net recorded."""

    def on_train_end(self, net, **kwargs):
        self.epochs_ = [dict(row) for row in net.history]

    def column(self, name):
        return [row[name] for row in self.epochs_]


def fitted_with(*callbacks, make=make_regressor, y=YR, fit_options=None, **parameters):
    """Fit with callbacks; return the estimator and the recorded history."""
    estimator = make(callbacks=[*callbacks, HistoryKeeper()], **parameters)
    if fit_options:
        estimator.fit(X2D[TRAIN], y[TRAIN], **fit_options)
    else:
        estimator.fit(X2D, y)
    return estimator, estimator.callbacks_[-1]


# --- scores ----------------------------------------------------------------------------------


@pytest.mark.parametrize("use_caching", [True, False])
@pytest.mark.parametrize("chunk_size", [None, 20])
def test_epoch_scoring_of_a_regressor(use_caching, chunk_size):
    """The score after each iteration: that of a fit with so many iterations."""
    scoring = EpochScoring(
        "r2", on_train=True, name="score", lower_is_better=False, use_caching=use_caching
    )
    _, history = fitted_with(scoring, chunk_size=chunk_size, max_iter=6)
    for n_iter in (1, 6):
        expected = r2_score(YR, make_regressor(max_iter=n_iter).fit(X2D, YR).predict(X2D))
        assert history.column("score")[n_iter - 1] == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("chunk_size", [None, 20])
def test_epoch_scoring_on_the_validation_samples(chunk_size):
    scoring = EpochScoring("r2", lower_is_better=False)
    estimator, history = fitted_with(scoring, fit_options=VALIDATION, chunk_size=chunk_size)
    scores = history.column("r2")
    best = estimator.best_iteration_
    assert len(scores) == 20
    assert np.argmax(scores) == best - 1
    expected = r2_score(YR[HELD_OUT], estimator.predict(X2D[HELD_OUT]))
    assert scores[best - 1] == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("work_of_calls", [1.0, 1e12])
def test_epoch_scoring_of_unequal_series(monkeypatch, work_of_calls):
    """In several groups of equal length, or in one: they are sorted by length either way."""
    monkeypatch.setitem(batches.WORK_OF_CALLS, "cpu", work_of_calls)
    scoring = EpochScoring("r2", on_train=True, lower_is_better=False)
    keeper = HistoryKeeper()
    estimator = make_regressor(callbacks=[scoring, keeper], max_iter=3)
    estimator.fit(SERIES * 15, np.tile(SERIES_YR, 15))
    expected = r2_score(SERIES_YR, estimator.predict(SERIES))
    assert estimator.callbacks_[-1].column("r2")[-1] == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("labels", ["two", "three"])
def test_epoch_scoring_of_a_classifier_by_name(labels):
    """The scorers of scikit-learn know the net's labels and probabilities."""
    y = YC if labels == "two" else np.digitize(YR, [-1, 1])
    callbacks = [
        EpochScoring("accuracy", on_train=True, lower_is_better=False),
        EpochScoring("neg_log_loss", on_train=True, lower_is_better=False),
    ]
    estimator, history = fitted_with(*callbacks, make=make_classifier, y=y)
    assert history.column("accuracy")[-1] == accuracy_score(y, estimator.predict(X2D))
    expected = -log_loss(y, estimator.predict_proba(X2D))
    assert history.column("neg_log_loss")[-1] == pytest.approx(expected, rel=1e-6)


def test_batch_scoring():
    """The only batch is all there is: the same as the score of the epoch."""
    callbacks = [
        BatchScoring("r2", on_train=True, name="batch", lower_is_better=False),
        EpochScoring("r2", on_train=True, name="epoch", lower_is_better=False),
    ]
    _, history = fitted_with(*callbacks)
    np.testing.assert_allclose(history.column("batch"), history.column("epoch"))


def test_scoring_function_of_ones_own():
    def largest_weight(net, X, y):
        return float(net.module_.readout.detach().abs().max())

    scoring = EpochScoring(largest_weight, on_train=True, name="largest")
    estimator, history = fitted_with(scoring)
    assert history.column("largest")[-1] == float(estimator.module_.readout.detach().abs().max())


# --- stopping --------------------------------------------------------------------------------


@both
def test_early_stopping_callback_ends_training_without_a_warning(make, y):
    stopper = EarlyStopping(monitor="train_loss", patience=3, threshold=0.5)
    estimator, _ = fitted_with(stopper, make=make, y=y, tol=1e-4, max_iter=500)
    assert estimator.stop_reason_ == "callback"
    assert len(estimator.loss_curve_) == estimator.n_iter_ < 50
    assert estimator.loss_ == pytest.approx(objective(estimator, X2D, y), rel=1e-9)


def test_early_stopping_callback_restores_the_best_weights_it_saw():
    """A constant rate that overshoots: the last weights are not the best."""
    options = {"learning_rate": 0.9, "momentum": 0.9, "max_iter": 3}
    plain = make_regressor(**options).fit(X2D, YR)
    assert plain.loss_ > min(plain.loss_curve_)
    callback = EarlyStopping(monitor="train_loss", patience=100, load_best=True)
    estimator, _ = fitted_with(callback, **options)
    assert objective(estimator, X2D, YR) == pytest.approx(min(plain.loss_curve_), rel=1e-9)
    assert estimator.loss_ == min(plain.loss_curve_)


def stops_in(method):
    """Return a callback that asks to stop, the way skorch's do, in the fourth iteration."""

    def stop(self, net, **kwargs):
        if len(net.history) >= 4 or method.startswith("on_train_"):
            raise KeyboardInterrupt

    return type("Stops", (Callback,), {method: stop})()


@pytest.mark.parametrize("learning_rate", ["adaptive", 0.02])
@pytest.mark.parametrize(
    "method", ["on_epoch_begin", "on_epoch_end", "on_batch_begin", "on_grad_computed"]
)
def test_stop_from_any_hook_leaves_a_consistent_model(method, learning_rate):
    estimator, _ = fitted_with(stops_in(method), learning_rate=learning_rate)
    assert estimator.stop_reason_ == "callback"
    assert len(estimator.loss_curve_) == estimator.n_iter_
    diagnostics = estimator.convergence_diagnostics_
    assert len(diagnostics.loss) == estimator.n_iter_ + 1
    assert objective(estimator, X2D, YR) == pytest.approx(diagnostics.loss[-1], rel=1e-9)


@pytest.mark.parametrize("method", ["on_train_begin", "on_train_end"])
def test_stop_outside_the_iterations_is_a_model_or_the_interrupt(method):
    """Ctrl-C there is no internal error."""
    estimator = make_regressor(callbacks=[stops_in(method)])
    try:
        estimator.fit(X2D, YR)
    except KeyboardInterrupt:
        assert not estimator.__sklearn_is_fitted__()
    else:
        assert np.isfinite(estimator.predict(X2D)).all()


def test_error_in_a_callback_comes_through_and_nothing_is_fitted():
    class Fails(Callback):
        def on_epoch_end(self, net, **kwargs):
            raise ZeroDivisionError("mine")

    estimator = make_regressor(callbacks=[("fails", Fails)])
    with pytest.raises(ZeroDivisionError, match="mine"):
        estimator.fit(X2D, YR)
    assert not estimator.__sklearn_is_fitted__()


# --- files -----------------------------------------------------------------------------------


def test_checkpoint_saves_the_best_weights(tmp_path):
    checkpoint = Checkpoint(dirname=str(tmp_path), f_history=None, f_optimizer="optimizer.pt")
    estimator, _ = fitted_with(checkpoint, fit_options=VALIDATION, max_iter=60)
    saved = torch.load(tmp_path / "params.pt", weights_only=True)
    for name, weight in estimator.module_.state_dict().items():
        assert torch.equal(saved[name], weight), name
    assert "param_groups" in torch.load(tmp_path / "optimizer.pt", weights_only=True)


def test_checkpoint_at_the_end_saves_the_fitted_weights(tmp_path):
    """Also when the last weights are not the best, and are the ones that are kept."""
    callback = TrainEndCheckpoint(dirname=str(tmp_path))
    estimator, _ = fitted_with(callback, learning_rate=0.9, momentum=0.9, max_iter=3)
    assert estimator.loss_ > min(estimator.loss_curve_)
    saved = torch.load(tmp_path / "train_end_params.pt", weights_only=True)
    for name, weight in estimator.module_.state_dict().items():
        assert torch.equal(saved[name], weight), name


def test_checkpoint_can_pickle_the_net(tmp_path):
    checkpoint = Checkpoint(
        monitor="train_loss_best", dirname=str(tmp_path), f_pickle="net.pkl", f_history=None
    )
    estimator, _ = fitted_with(checkpoint)
    net = pickle.loads((tmp_path / "net.pkl").read_bytes())
    for name, weight in estimator.module_.state_dict().items():
        assert torch.equal(net.module_.state_dict()[name], weight), name


# --- the step --------------------------------------------------------------------------------


def test_learning_rate_schedule_is_followed():
    scheduler = LRScheduler(policy="StepLR", step_size=5, gamma=0.5)
    estimator, history = fitted_with(scheduler, learning_rate=0.02, momentum=0.0, max_iter=12)
    rates = history.column("learning_rate")
    np.testing.assert_allclose(rates, [0.02] * 5 + [0.01] * 5 + [0.005] * 2)
    constant = make_regressor(learning_rate=0.02, momentum=0.0, max_iter=5).fit(X2D, YR)
    assert estimator.loss_curve_[:5] == constant.loss_curve_
    half = make_regressor(learning_rate=0.02, momentum=0.0, max_iter=7, callbacks=[scheduler]).fit(
        X2D, YR
    )
    assert estimator.loss_curve_[:7] == half.loss_curve_


def test_plateau_schedule_watches_the_loss():
    policy = {"policy": "ReduceLROnPlateau", "patience": 0, "factor": 0.1}
    scheduler = LRScheduler(monitor="train_loss", **policy)
    _, history = fitted_with(scheduler, learning_rate=0.5, momentum=0.9, max_iter=30)
    rates = history.column("learning_rate")
    assert rates[0] == 0.5
    assert rates[-1] < 0.2


@pytest.mark.parametrize("chunk_size", [None, 20])
def test_gradient_norm_clipping_bounds_every_step(chunk_size):
    recorder = Recorder()
    estimator = make_regressor(
        learning_rate=0.5,
        momentum=0.0,
        chunk_size=chunk_size,
        callbacks=[GradientNormClipping(0.01), recorder],
    ).fit(X2D, YR)
    states = estimator.callbacks_[1].weights_
    weights = [torch.cat([w.flatten() for w in state.values()]) for state in states]
    steps = [float((after - before).norm()) for before, after in itertools.pairwise(weights)]
    assert max(steps) <= 0.5 * 0.01 * (1 + 1e-4)


def test_frozen_parameters_stay_as_they_were():
    estimator = make_regressor(callbacks=[Freezer("embedding*"), Recorder()], alpha=0.1)
    estimator.fit(X2D, YR)
    start = estimator.callbacks_[1].weights_[0]
    end = estimator.module_.state_dict()
    assert torch.equal(start["embedding_weight"], end["embedding_weight"])
    assert not torch.equal(start["readout"], end["readout"])
    assert estimator.loss_ < estimator.loss_curve_[0]


# --- display ---------------------------------------------------------------------------------


def test_print_log_writes_its_table_where_it_is_told():
    lines = []
    fitted_with(EpochTimer(), PrintLog(sink=lines.append), max_iter=3)
    assert len(lines) == 5
    assert "train_loss" in lines[0]
    assert "dur" in lines[0]


def test_print_log_prints_when_the_estimator_is_verbose(capsys):
    fitted_with(PrintLog(), max_iter=3)
    assert capsys.readouterr().out == ""
    fitted_with(PrintLog(), max_iter=3, verbose=1)
    assert "train_loss" in capsys.readouterr().out


def test_progress_bar_is_drawn(capfd):
    estimator, _ = fitted_with(ProgressBar(detect_notebook=False), max_iter=3)
    assert "it/s" in capfd.readouterr().err
    assert estimator.loss_curve_ == make_regressor(max_iter=3).fit(X2D, YR).loss_curve_


# --- callbacks as parameters -----------------------------------------------------------------


def test_named_pairs_classes_and_instances():
    estimator = make_regressor(callbacks=[("timer", EpochTimer), HistoryKeeper, Recorder()])
    estimator.fit(X2D, YR)
    assert [type(c) for c in estimator.callbacks_] == [EpochTimer, HistoryKeeper, Recorder]
    assert len(estimator.callbacks_[1].column("dur")) == 20


def test_fits_do_not_share_callbacks():
    estimator = make_regressor(callbacks=[Recorder()], max_iter=3)
    first = estimator.fit(X2D, YR).callbacks_[0]
    second = clone(estimator).fit(X2D, -YR).callbacks_[0]
    assert first is not second
    assert len(first.weights_) == len(second.weights_) == 4


def test_callbacks_of_different_kinds_can_be_searched():
    grid = {"callbacks": [None, [], [EarlyStopping(monitor="train_loss", patience=2)]]}
    search = GridSearchCV(make_regressor(), grid, cv=2, error_score="raise").fit(X2D, YR)
    scores = search.cv_results_["mean_test_score"]
    assert scores[0] == scores[1]
    assert np.isfinite(scores).all()


@both
def test_passive_callbacks_change_nothing(make, y):
    with_callbacks = make(callbacks=[EpochTimer(), HistoryKeeper()], early_stopping=True)
    without = make(early_stopping=True)
    np.testing.assert_array_equal(
        outputs(with_callbacks.fit(X2D, y), X2D), outputs(without.fit(X2D, y), X2D)
    )


def test_what_callbacks_record_can_be_read_after_the_fit_case_17():
    X = np.random.default_rng(17).normal(size=(60, 4))
    scoring = EpochScoring("accuracy", on_train=True, name="train_acc")
    model = ResidualTransformerClassifier(
        max_iter=8, tol=None, random_state=0, early_stopping=True, callbacks=[scoring]
    ).fit(X, X[:, 0] > 0)
    history = pickle.loads(pickle.dumps(model)).net_.history
    accuracy = history[:, "train_acc"]
    assert len(accuracy) == 8
    assert 0.5 < accuracy[-1] <= 1.0
    np.testing.assert_allclose(history[:, "train_loss"], model.loss_curve_)
    np.testing.assert_allclose(history[:, "valid_loss"], model.validation_curve_)
    assert history[:, "epoch"] == list(range(1, 9))


def test_the_history_has_the_validation_loss_without_callbacks_too():
    X = np.random.default_rng(17).normal(size=(60, 4))
    model = ResidualTransformerRegressor(max_iter=5, tol=None, early_stopping="last")
    model.fit(X, X[:, 0])
    np.testing.assert_allclose(model.net_.history[:, "valid_loss"], model.validation_curve_)
