"""ConvergenceMonitor in this package's estimators and in any other skorch net."""

import copy
import pickle

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from sklearn.base import clone
from skorch import NeuralNetRegressor
from torch import nn

from sklearn_restf import ResidualTransformerClassifier, ResidualTransformerRegressor
from sklearn_restf.callbacks import ConvergenceMonitor
from tests.builders import FEW_STEPS, ROW_LABELS, ROWS

RNG = np.random.default_rng(0)
X = RNG.normal(size=(50, 6, 8)).astype("float32")
Y = X[:, -1, 0].astype("float64")
SERIES = [RNG.normal(size=(t, 4)) for t in (3, 6, 5, 2)]


class Attentive(nn.Module):
    """Self-attention with a residual connection, and a linear readout of the mean."""

    def __init__(self, batch_first=True, dropout=0.0):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=batch_first, dropout=dropout)
        self.readout = nn.Linear(8, 1)

    def forward(self, X):
        if not self.attention.batch_first:
            X = X.transpose(0, 1)
        Z = X + self.attention(X, X, X)[0]
        return self.readout(Z.mean(1 if self.attention.batch_first else 0))


def train(monitor, module=Attentive, **parameters):
    torch.manual_seed(0)
    options = {"max_epochs": 6, "lr": 0.1, "batch_size": -1, "train_split": None, "verbose": 0}
    net = NeuralNetRegressor(module, callbacks=[("monitor", monitor)], **(options | parameters))
    net.fit(X, Y[:, None].astype("float32"))
    return net, dict(net.callbacks_)["monitor"]


def watch(monitor, X=X, y=Y, make=ResidualTransformerRegressor, **parameters):
    options = {"random_state": 0, "max_iter": 20, "tol": None, "callbacks": [monitor]}
    fitted = make(**(options | parameters)).fit(X, y)
    return fitted, fitted.callbacks_[0]


# --- this package's estimators ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("X", "y", "parameters"),
    [
        (X, Y, {}),
        (X.astype("float64"), Y, {"n_layers": 2, "pooling": "last"}),
        (X.reshape(50, -1), Y, {"chunk_size": 20}),
        (SERIES, np.arange(4.0), {}),
    ],
    ids=["windows", "layers", "chunks", "series"],
)
def test_it_records_what_the_diagnostics_say(X, y, parameters):
    fitted, monitor = watch(ConvergenceMonitor(every=5), X, y, **parameters)
    expected = fitted.convergence_diagnostics_
    frame = monitor.to_frame()
    assert frame.index.tolist() == [0, 5, 10, 15, 20]
    tolerance = 1e-4 if fitted.dtype_ == "float32" else 1e-9
    for name in ("sigma_min", "norm", "condition_ratio", "rank1_residual", "effective_rank"):
        assert frame[name].iloc[0] == pytest.approx(getattr(expected, name), rel=tolerance)
        assert frame[name].iloc[-1] == pytest.approx(
            getattr(expected, f"final_{name}"), rel=tolerance
        )
    assert_allclose(monitor.loss_, expected.loss[1:])
    assert_allclose(monitor.gradient_norm_, expected.gradient_norm[1:], rtol=1e-6)
    assert_allclose(monitor.local_pl_, expected.local_pl[1:], rtol=1e-6)


def test_watching_does_not_change_the_fit():
    watched, _ = watch(ConvergenceMonitor(every=1))
    plain = ResidualTransformerRegressor(random_state=0, max_iter=20, tol=None).fit(X, Y)
    assert_allclose(watched.predict(X), plain.predict(X), rtol=1e-6)
    assert watched.callbacks[0] is not watched.callbacks_[0]
    assert not hasattr(watched.callbacks[0], "epochs_")


def test_in_the_classifier_and_through_clone():
    fitted, _ = watch(ConvergenceMonitor(every=10), X, Y > 0, ResidualTransformerClassifier)
    again = clone(fitted).fit(X, Y > 0)
    assert again.callbacks_[0].epochs_ == [0, 10, 20]
    assert again.callbacks_[0].spectra_ == fitted.callbacks_[0].spectra_


def test_another_layer_can_be_named():
    _, first = watch(ConvergenceMonitor("blocks.0"), n_layers=2)
    fitted, last = watch(ConvergenceMonitor(), n_layers=2)
    frame = fitted.convergence_diagnostics_.to_frame()
    assert first.spectra_["norm"][0] == pytest.approx(frame["norm"].iloc[0], rel=1e-4)
    assert last.spectra_["norm"][0] == pytest.approx(frame["norm"].iloc[1], rel=1e-4)


def test_fitting_again_starts_anew():
    monitor = ConvergenceMonitor()
    watch(monitor)
    _, second = watch(monitor)
    assert second.epochs_ == [0, 10, 20]


def test_it_survives_pickle():
    _, monitor = watch(ConvergenceMonitor())
    copy = pickle.loads(pickle.dumps(monitor))
    assert copy.to_frame().equals(monitor.to_frame())
    assert copy.diagnostics_.summary() == monitor.diagnostics_.summary()


# --- any skorch net -----------------------------------------------------------------------------


def test_the_spectrum_of_a_foreign_attention_layer():
    net, monitor = train(ConvergenceMonitor("attention", residual_beta=1.0, every=3))
    assert monitor.epochs_ == [0, 3, 6]
    rows = torch.from_numpy(X)
    with torch.no_grad():
        Z = (rows + net.module_.attention(rows, rows, rows)[0]).numpy()
    values = np.linalg.svd(Z, compute_uv=False)
    assert monitor.spectra_["sigma_min"][-1] == pytest.approx(values[:, -1].min(), rel=1e-3)
    assert monitor.spectra_["norm"][-1] == pytest.approx(values[:, 0].max(), rel=1e-5)
    assert net.history[-1, "sigma_min"] == monitor.spectra_["sigma_min"][-1]


def test_loss_gradient_and_local_pl_of_a_foreign_net():
    net, monitor = train(ConvergenceMonitor("attention"), max_epochs=1)
    torch.manual_seed(0)
    module = Attentive()
    loss = nn.MSELoss()(module(torch.from_numpy(X)), torch.from_numpy(Y[:, None]).float())
    loss.backward()
    norm = np.sqrt(sum(float(p.grad.square().sum()) for p in module.parameters()))
    assert monitor.loss_ == pytest.approx([float(loss.detach())], rel=1e-5)
    assert monitor.gradient_norm_ == pytest.approx([norm], rel=1e-5)
    assert monitor.local_pl_ == pytest.approx([norm**2 / (2 * float(loss.detach()))], rel=1e-4)
    assert net.history[-1, "gradient_norm"] == monitor.gradient_norm_[0]


@pytest.mark.parametrize("options", [{"batch_size": 16}, {"batch_size": 16, "train_split": None}])
def test_with_mini_batches(options):
    _, monitor = train(ConvergenceMonitor("attention", every=2), **options)
    assert monitor.epochs_ == [0, 2, 4, 6]
    assert np.isfinite(monitor.gradient_norm_).all()


def test_tokens_first():
    _, usual = train(ConvergenceMonitor("attention", residual_beta=1.0))
    _, first = train(
        ConvergenceMonitor("attention", residual_beta=1.0, batch_first=False),
        module__batch_first=False,
    )
    assert first.singular_values_[0].shape == usual.singular_values_[0].shape
    assert_allclose(first.singular_values_[0], usual.singular_values_[0], rtol=1e-4)


def test_dropout_is_off_while_measuring_and_on_again_afterwards():
    net, monitor = train(ConvergenceMonitor("attention", every=1), module__dropout=0.5, lr=0.0)
    assert_allclose(monitor.spectra_["norm"], monitor.spectra_["norm"][0])
    assert not net.module_.attention._forward_hooks


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.readout = nn.Linear(8, 1)

    def forward(self, X):
        return self.readout(self.layer(X).mean(1))


@pytest.mark.parametrize("name", ["layer", "layer.self_attn"])
def test_an_encoder_layer(name):
    _, monitor = train(ConvergenceMonitor(name, every=3), module=Encoder)
    assert monitor.epochs_ == [0, 3, 6]


def test_diagnostics_of_a_foreign_net():
    _, monitor = train(ConvergenceMonitor("attention", residual_beta=1.0), max_epochs=30)
    found = monitor.diagnostics_
    assert found.residual_beta == 1.0
    assert len(found.loss) == found.n_iter == 30
    assert 0 < found.rate < 1
    assert found.sigma_min == monitor.spectra_["sigma_min"][0]
    assert "Training ended after 30 iterations." in found.summary()
    assert len(found.to_frame()) == 1


def test_a_module_that_is_not_called_is_named():
    class Unused(Attentive):
        def __init__(self):
            super().__init__()
            self.spare = nn.Linear(8, 8)

    _, monitor = train(ConvergenceMonitor("spare"), module=Unused)
    assert "does not call 'spare'" in monitor.reason_
    assert monitor.epochs_ == []
    assert np.isnan(monitor.diagnostics_.sigma_min)
    assert len(monitor.loss_) == 6


@pytest.mark.parametrize(
    ("monitor", "words"),
    [
        (ConvergenceMonitor("attn"), "'attention'"),
        (ConvergenceMonitor(), "Name the one"),
        (ConvergenceMonitor("readout"), r"returned \(50, 1\)"),
        (ConvergenceMonitor("attention", every=0), "'every' parameter"),
    ],
)
def test_bad_use_is_refused(monitor, words):
    with pytest.raises(ValueError, match=words):
        train(monitor)


@pytest.mark.parametrize("parameters", [{"every": "3"}, {"n_samples": 1.5}, {"batch_first": "no"},
                                        {"residual_beta": np.nan}, {"module": ["a"]}])  # fmt: skip
def test_unusable_parameters_of_the_monitor_are_named(parameters):
    model = ResidualTransformerRegressor(**FEW_STEPS, callbacks=[ConvergenceMonitor(**parameters)])
    with pytest.raises(ValueError, match=f"{next(iter(parameters))!r} parameter"):
        model.fit(ROWS, ROW_LABELS)


class Layer(nn.Module):
    """A Transformer layer of torch, read out by a linear map."""

    def __init__(self, norm_first=False, batch_first=True, dropout=0.0):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(
            4, 2, 8, dropout=dropout, norm_first=norm_first, batch_first=batch_first
        )
        self.batch_first = batch_first
        self.readout = nn.Linear(4, 1)

    def forward(self, X):
        tokens = X if self.batch_first else X.transpose(0, 1)
        F = self.layer(tokens)
        return self.readout((F if self.batch_first else F.transpose(0, 1)).mean(1))


def watched(module, monitor, seed=0):
    """Train a net of torch's for some epochs, and return it."""
    torch.manual_seed(seed)
    net = NeuralNetRegressor(
        module, max_epochs=3, lr=0.01, batch_size=8, train_split=None, verbose=0,
        iterator_train__shuffle=True, callbacks=[monitor] if monitor else None,
    )  # fmt: skip
    X = np.random.default_rng(0).standard_normal((24, 5, 4)).astype("float32")
    return net.fit(X, X[:, 0, :1]), torch.from_numpy(X)


def test_watching_changes_nothing():
    """Dropout and shuffling draw the same numbers with and without."""
    torch.manual_seed(1)
    module = Layer(dropout=0.5)
    monitor = ConvergenceMonitor("layer.self_attn", residual_beta=1.0, every=1)
    results = [watched(copy.deepcopy(module), m)[0] for m in (None, monitor)]
    for a, b in zip(*(net.module_.parameters() for net in results), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("norm_first", [True, False])
def test_the_residual_stream_of_torchs_layers(norm_first, batch_first):
    """Z = input of the layer + attention, whatever comes first."""
    monitor = ConvergenceMonitor("layer.self_attn", residual_beta=1.0, every=1, n_samples=24)
    net, X = watched(Layer(norm_first, batch_first), monitor)
    layer = net.module_.layer
    stream = X if batch_first else X.transpose(0, 1)
    with torch.no_grad():
        normal = layer.norm1(stream) if norm_first else stream
        Z = stream + layer.self_attn(normal, normal, normal)[0]
    expected = torch.linalg.svdvals(Z if batch_first else Z.transpose(0, 1)).numpy()
    found = net.callbacks_[-2 if net.callbacks_[-1][1] is not monitor else -1][1]
    np.testing.assert_allclose(
        np.sort(found.singular_values_[-1], 1), np.sort(expected, 1), rtol=1e-4, atol=1e-5
    )
