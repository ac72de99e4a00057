"""The workloads and contenders of ``bench_peers.py``.

Every contender sees the same raw samples and does the same: standardise the columns, build the
model, take full-batch gradient-descent steps of a constant rate on half the mean squared error.
"""

import math
import warnings
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from sklearn_restf import ResidualTransformerRegressor

RATE = 0.01  # of the runs that are timed: small enough for every contender to go on
INIT_SCALE = 0.7


@dataclass(frozen=True)
class Workload:
    """Shapes of one problem; `lengths` is (shortest, longest) for ragged samples."""

    name: str
    n_samples: int
    n_tokens: int
    width: int  # numbers per token inside the model
    d_ff: int
    pooling: str
    kind: str = "windows"  # or "table" or "ragged"
    shortest: int = 0

    def data(self, seed=0):
        """Draw raw float32 samples and targets that a Transformer can learn."""
        rng = np.random.default_rng(seed)
        if self.kind == "table":
            X = rng.standard_normal((self.n_samples, self.n_tokens), dtype=np.float32)
            signal = np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2] + X[:, 3]
        elif self.kind == "ragged":
            lengths = rng.integers(self.shortest, self.n_tokens + 1, self.n_samples)
            lengths[:2] = self.shortest, self.n_tokens
            X = [rng.standard_normal((t, self.width), dtype=np.float32) for t in lengths]
            signal = np.array([x[:, 0].mean() + (x[:, 1] * x[:, 2]).mean() for x in X])
        else:
            shape = (self.n_samples, self.n_tokens, self.width)
            X = rng.standard_normal(shape, dtype=np.float32)
            X = 0.1 * X + np.sin(np.arange(self.n_tokens)[:, None] / 4 + X[:, :1])
            X = X.astype(np.float32)
            signal = X[:, -1, 0] + X[:, :, 1].mean(1) * X[:, -1, 2]
        signal = (signal - signal.mean()) / signal.std()
        return X, (signal + 0.1 * rng.standard_normal(self.n_samples)).astype(np.float32)


WORKLOADS = [
    Workload("tiny 100 x 8 x 8", 100, 8, 8, 32, "mean"),
    Workload("table 1000 x 10", 1000, 10, 16, 32, "mean", kind="table"),
    Workload("windows 2000 x 24 x 21, last", 2000, 24, 21, 64, "last"),
    Workload("windows 2000 x 24 x 21, mean", 2000, 24, 21, 64, "mean"),
    Workload("windows 2000 x 24 x 21, flatten", 2000, 24, 21, 64, "flatten"),
    Workload("ragged 1000 x 5..50 x 384", 1000, 50, 384, 768, "mean", kind="ragged", shortest=5),
]


def padded(X):
    """Pad a list of sequences on the right; the mask is True at real tokens."""
    lengths = np.array([len(x) for x in X])
    mask = np.arange(lengths.max()) < lengths[:, None]
    values = np.zeros((*mask.shape, X[0].shape[1]), X[0].dtype)
    values[mask] = np.concatenate(X)
    return values, mask


class Scaler:
    """Standardise the columns, as the user of a peer does by hand."""

    def __init__(self, X):
        rows = np.concatenate(X) if isinstance(X, list) else X.reshape(-1, X.shape[-1])
        self.mean, self.scale = rows.mean(0), rows.std(0)

    def tensors(self, X, dtype, device="cpu"):
        """Return tokens and mask (None without padding)."""
        mask = None
        if isinstance(X, list):
            X, mask = padded(X)
        x = torch.from_numpy((X - self.mean) / self.scale)
        if mask is not None:
            mask = torch.from_numpy(mask)
            x = x * mask[:, :, None]
        return x.to(dtype).to(device), None if mask is None else mask.to(device)


def pool(F, mask, pooling):
    """Reduce the tokens of each sample to what the readout sees."""
    if pooling == "flatten":
        return F.flatten(1)
    if pooling == "last":
        return F[:, -1]
    if mask is None:
        return F.mean(1)
    return (F * mask[:, :, None]).sum(1) / mask.sum(1, keepdim=True)


class Embedding(nn.Module):
    """One token per feature of a table, with a linear map of its own."""

    def __init__(self, n_features, width):
        super().__init__()
        self.weight = nn.Parameter(INIT_SCALE * torch.randn(n_features, width))
        self.bias = nn.Parameter(torch.zeros(n_features, width))

    def forward(self, x):
        return x[:, :, None] * self.weight + self.bias


class PlainTransformer(nn.Module):
    """The equations as one writes them down."""

    def __init__(self, workload):
        super().__init__()
        D, M = workload.width, workload.d_ff
        self.pooling = workload.pooling
        self.embedding = Embedding(workload.n_tokens, D) if workload.kind == "table" else None

        def matrix(rows, columns):
            return nn.Parameter(INIT_SCALE / math.sqrt(rows) * torch.randn(rows, columns))

        self.query, self.key, self.value = matrix(D, D), matrix(D, D), matrix(D, D)
        self.ffn_in, self.ffn_out = matrix(D, M), matrix(M, D)
        rows = D * workload.n_tokens if self.pooling == "flatten" else D
        self.readout, self.readout_bias = matrix(rows, 1), nn.Parameter(torch.zeros(1))

    def forward(self, x, mask=None):
        F = x if self.embedding is None else self.embedding(x)
        scores = (F @ self.query) @ (F @ self.key).transpose(1, 2) / math.sqrt(F.shape[2])
        if mask is not None:
            scores = scores.masked_fill(~mask[:, None, :], -torch.inf)
        Z = F + torch.softmax(scores, dim=-1) @ (F @ self.value)
        F = Z + torch.relu(Z @ self.ffn_in) @ self.ffn_out
        return (pool(F, mask, self.pooling) @ self.readout + self.readout_bias)[:, 0]


class EncoderLayer(nn.Module):
    """torch's own layer of the same widths: LayerNorm, biases and an output map in addition."""

    def __init__(self, workload):
        super().__init__()
        D = workload.width
        self.pooling = workload.pooling
        self.embedding = Embedding(workload.n_tokens, D) if workload.kind == "table" else None
        self.layer = nn.TransformerEncoderLayer(
            D, nhead=1, dim_feedforward=workload.d_ff, dropout=0.0, batch_first=True
        )
        self.readout = nn.Linear(D * workload.n_tokens if self.pooling == "flatten" else D, 1)

    def forward(self, x, mask=None):
        F = x if self.embedding is None else self.embedding(x)
        F = self.layer(F, src_key_padding_mask=None if mask is None else ~mask)
        return self.readout(pool(F, mask, self.pooling))[:, 0]


def half_squared_error(prediction, y):
    return 0.5 * (prediction - y).square().mean()


class Loop:
    """A training loop of five lines around a module."""

    module_class = PlainTransformer

    def __init__(self, workload, device="cpu"):
        self.workload, self.device = workload, device

    def build(self):
        torch.manual_seed(0)
        return self.module_class(self.workload).to(self.device)

    def fit(self, X, y, n_iter):
        """Train from raw arrays; return the loss at the last step."""
        self.scaler = Scaler(X)
        x, mask = self.scaler.tensors(X, torch.float32, self.device)
        y = torch.from_numpy((y - y.mean()) / y.std()).to(self.device)
        self.module = model = self.build()
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
        for _ in range(n_iter):
            optimizer.zero_grad()
            loss = half_squared_error(model(x, mask), y)
            loss.backward()
            optimizer.step()
        return float(loss.detach())

    def predict(self, X, dtype=torch.float32):
        """Predict all samples at once."""
        x, mask = self.scaler.tensors(X, dtype, self.device)
        module = self.module.to(dtype)
        with torch.no_grad():
            return module(x, mask).cpu().numpy()


class EncoderLoop(Loop):
    """The loop around torch's layer."""

    module_class = EncoderLayer

    def predict(self, X, dtype=torch.float32):
        self.module.eval()  # torch's layer has a faster path then
        return super().predict(X, dtype)


class CompiledLoop(Loop):
    """The loop around the compiled module; compiled once, before it is timed."""

    compiled = None
    start = None

    def __init__(self, workload, device="cpu"):
        super().__init__(workload, device)
        torch.compiler.reset()  # else the shapes of another workload count as recompilations

    def build(self):
        if self.compiled is None:
            module = super().build()
            self.start = {name: value.clone() for name, value in module.state_dict().items()}
            self.compiled = torch.compile(module, dynamic=False)
        self.compiled._orig_mod.load_state_dict(self.start)
        return self.compiled

    def predict(self, X, dtype=torch.float32):
        if dtype != torch.float32:  # would be another compilation
            return None
        return super().predict(X, dtype)


class Masked(nn.Module):
    """skorch passes the entries of a dictionary as keyword arguments."""

    def __init__(self, workload):
        super().__init__()
        self.model = PlainTransformer(workload)

    def forward(self, x, mask=None):
        return self.model(x, mask)


class Skorch:
    """skorch around the plain module, whole batches, nothing printed."""

    def __init__(self, workload, device="cpu"):
        self.workload, self.device = workload, device

    def fit(self, X, y, n_iter):
        from skorch import NeuralNetRegressor

        self.scaler = Scaler(X)
        torch.manual_seed(0)
        self.net = NeuralNetRegressor(
            Masked,
            module__workload=self.workload,
            optimizer=torch.optim.SGD,
            lr=RATE,
            max_epochs=n_iter,
            batch_size=-1,
            iterator_train__shuffle=False,
            train_split=None,
            criterion=nn.MSELoss,
            device=self.device,
            verbose=0,
        )
        self.net.fit(self._inputs(X), (y - y.mean()) / y.std())
        return self.net.history[-1, "train_loss"]

    def predict(self, X, dtype=torch.float32):
        return None if dtype != torch.float32 else self.net.predict(self._inputs(X))

    def _inputs(self, X):
        x, mask = self.scaler.tensors(X, torch.float32)
        return {"x": x} if mask is None else {"x": x, "mask": mask}


class Ours:
    """The estimator; plain gradient descent at the same rate unless told otherwise."""

    def __init__(self, workload, device="cpu"):
        self.workload, self.device = workload, device

    def estimator(self, **options):
        workload = self.workload
        shape = {"n_tokens": workload.n_tokens, "d_model": 16} if workload.kind == "table" else {}
        settings = {
            "d_ff": workload.d_ff,
            "pooling": workload.pooling,
            "alpha": 0.0,
            "tol": None,
            "diagnostics": False,
            "device": self.device,
            "random_state": 0,
        }
        return ResidualTransformerRegressor(**settings | shape | options)

    def fit(self, X, y, n_iter, **options):
        options = {"learning_rate": RATE, "momentum": 0.0} | options
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a run this short does not converge
            self.model = self.estimator(max_iter=n_iter, **options).fit(X, y)
        return self.model.loss_

    def predict(self, X, dtype=torch.float64):
        """Predict in float64, the only way there is."""
        return None if dtype != torch.float64 else self.model.predict(X)


CONTENDERS = {
    "plain": Loop,
    "compile": CompiledLoop,
    "encoder": EncoderLoop,
    "skorch": Skorch,
    "ours": Ours,
}


def check_same_function(workload, X, ours, plain):
    """Raise unless our fitted weights in the plain module give our predictions."""
    state = {
        name.replace("blocks.0.", ""): p for name, p in ours.model.module_.state_dict().items()
    }
    if workload.kind == "table":
        state["embedding.weight"] = state.pop("embedding_weight")[:, 0]
        state["embedding.bias"] = state.pop("embedding_bias")
    module = PlainTransformer(workload)
    module.load_state_dict(state)
    x, mask = plain.scaler.tensors(X, torch.float32)
    with torch.no_grad():
        theirs = module(x, mask).numpy()
    mine = ours.model.predict(X)
    mine, theirs = ((p - p.mean()) / p.std() for p in (mine, theirs))
    error = np.abs(mine - theirs).max()
    if error > 1e-3:
        raise AssertionError(f"{workload.name}: predictions differ by {error:.1e} deviations.")


def plain_flops(workload):
    """Count the floating-point operations of one iteration of the plain form, padding included.

    Products only; the backward pass of a product is two products.
    """
    T, D, M = workload.n_tokens, workload.width, workload.d_ff
    return 3 * 2 * workload.n_samples * T * (3 * D * D + 2 * T * D + 2 * D * M)
