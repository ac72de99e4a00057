"""Fits that must come out the same in one process and in several, and ways to fail."""

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from skorch.callbacks import Callback

from sklearn_restf import (
    THEOREM_SETTINGS,
    ResidualTransformerClassifier,
    ResidualTransformerRegressor,
    diagnose,
)
from sklearn_restf.distributed import single_process

N = 60


def random():
    return np.random.default_rng(0)


def table(n_features=7):
    return random().normal(size=(N, n_features)) * np.linspace(1, 100, n_features) + 3


def numbers(X):
    flat = X.reshape(len(X), -1)
    return 5 + np.tanh(flat[:, 0]) + flat[:, 1] / flat[:, 1].std()


def windows():
    return np.cumsum(random().normal(size=(N, 6, 3)), axis=1)


def sentences():
    generator = random()
    # the longest are on the last rank
    return [generator.normal(size=(1 + i // 8 + generator.integers(3), 4)) for i in range(N)]


def means(samples):
    return np.array([np.tanh(x).mean() for x in samples])


def labels(names=("ant", "bee", "cicada")):
    """Return labels of which the first occurs on the last rank only."""
    y = np.array([names[1 + i % (len(names) - 1)] for i in range(N)], dtype=object)
    y[50:56] = names[0]
    return y.astype(str) if isinstance(names[0], str) else y.astype(type(names[0]))


def two_labels():
    return np.where(np.arange(N) % 3 == 0, 1, -1)


def weights():
    """Return weights, some zero, whose largest differ between ranks."""
    return np.where(np.arange(N) % 7 == 0, 0.0, 1 + np.arange(N) ** 2 / 100)


def regressor(**parameters):
    defaults = {"max_iter": 20, "tol": None, "random_state": 0}
    return ResidualTransformerRegressor(**defaults | parameters)


def classifier(**parameters):
    defaults = {"max_iter": 20, "tol": None, "random_state": 0}
    return ResidualTransformerClassifier(**defaults | parameters)


def boundaries(size):
    """Return where the shards of very unequal sizes begin and end."""
    return {2: [0, 18, N], 3: [0, 9, 41, N]}[size]


def shard(values, rank, size):
    start, stop = boundaries(size)[rank : rank + 2]
    # validation samples are fewer
    return None if values is None else values[start * len(values) // N : stop * len(values) // N]


@dataclass(frozen=True)
class Case:
    """A fit: `prepare` may change the arguments of one rank, `again` fits a second time."""

    estimator: Callable[[], Any]
    X: Any
    y: Any
    more: dict[str, Any] = field(default_factory=dict)
    prepare: Callable[[int, Any, dict[str, Any]], None] = lambda rank, estimator, arguments: None
    tolerance: float = 1e-9
    again: bool = False

    def fit(self, rank=0, size=1):
        estimator = self.estimator()
        arguments = {"X": self.X, "y": self.y, **self.more}
        if size > 1:
            arguments = {name: shard(value, rank, size) for name, value in arguments.items()}
            self.prepare(rank, estimator, arguments)
        estimator.fit(**arguments)
        return estimator.fit(**arguments) if self.again else estimator


def chunks_on_one(rank, estimator, arguments):
    estimator.chunk_size = 5 if rank else None


def single_on_one(rank, estimator, arguments):
    if rank == 0:
        arguments["X"] = arguments["X"].astype(np.float32)


def no_weights_on_one(rank, estimator, arguments):
    if rank == 0:
        assert (arguments["sample_weight"] == 1).all()
        arguments["sample_weight"] = None


X, W, S = table(), windows(), sentences()
VALIDATION = {
    "X_val": X[::4] + 0.1,
    "y_val": numbers(X)[::4] + 0.5,
    "sample_weight_val": weights()[1::4],
}

# the model of one process on all samples
SAME = {
    "table": Case(regressor, X, numbers(X)),
    "single precision": Case(
        regressor, X.astype(np.float32), numbers(X).astype(np.float32), tolerance=2e-6
    ),
    "double precision on one rank": Case(
        regressor, X.astype(np.float32).astype(float), numbers(X), prepare=single_on_one
    ),
    "several outputs": Case(regressor, X, np.column_stack([numbers(X), X[:, 2]])),
    "sample weights": Case(regressor, X, numbers(X), {"sample_weight": weights()}),
    "no sample weights on one rank": Case(
        regressor,
        X,
        numbers(X),
        {"sample_weight": np.where(np.arange(N) < 18, 1.0, 3.0)},
        prepare=no_weights_on_one,
    ),
    "GPT-2 blocks": Case(
        lambda: regressor(
            n_layers=2,
            n_heads=2,
            layer_norm=True,
            causal=True,
            activation="gelu",
            positional_encoding="learned",
        ),
        X,
        numbers(X),
    ),
    "theory rate": Case(
        lambda: regressor(learning_rate="theory", momentum=0.0, n_layers=2), X, numbers(X)
    ),
    "theorem": Case(
        lambda: regressor(**THEOREM_SETTINGS | {"dtype": "float64"}, d_ff=200, pooling="last"),
        W / 10,
        numbers(W),
    ),
    "last token": Case(lambda: regressor(pooling="last"), W, numbers(W)),
    "unequal lengths": Case(regressor, S, means(S)),
    "unequal lengths, learned positions": Case(
        lambda: regressor(positional_encoding="learned", chunk_size=7), S, means(S)
    ),
    "per token": Case(lambda: regressor(pooling="none"), W, np.tanh(W).sum(axis=2)),
    "per token, unequal lengths": Case(
        lambda: regressor(pooling="none"), S, [np.tanh(x).sum(axis=1) for x in S]
    ),
    "chunks on one rank": Case(regressor, W, numbers(W), prepare=chunks_on_one),
    "validation samples": Case(
        lambda: regressor(max_iter=400, n_iter_no_change=5, tol=1e-3), X, numbers(X), VALIDATION
    ),
    "until nothing improves": Case(lambda: regressor(max_iter=800, tol=1e-2), X, numbers(X)),
    "all diagnostics": Case(lambda: regressor(diagnostics="full"), X, numbers(X), tolerance=1e-7),
    "all diagnostics, unequal lengths": Case(
        lambda: regressor(diagnostics="full", pooling="none"),
        S[::3],
        [np.tanh(x).sum(axis=1) for x in S[::3]],
        tolerance=1e-7,
    ),
    "no diagnostics": Case(lambda: regressor(diagnostics=False), X, numbers(X)),
    "few diagnostics": Case(lambda: regressor(diagnostics_samples=5), S, means(S)),
    "no standardisation": Case(lambda: regressor(standardize=False), W, numbers(W)),
    "constant target": Case(regressor, X, np.full(N, 3.0)),
    "warm start": Case(lambda: regressor(warm_start=True), X, numbers(X), again=True),
    "a callback of its own on one rank": Case(
        regressor, X, numbers(X), prepare=lambda *call: do(fit_another)(*call)
    ),
    "a generator": Case(
        lambda: regressor(random_state=np.random.RandomState(3)), X, numbers(X), again=True
    ),
    "classes": Case(classifier, X, labels()),
    "two classes": Case(lambda: classifier(n_layers=2), X, two_labels()),
    "class on one rank": Case(classifier, X, labels((3, 5))),
    "classes, squared error": Case(lambda: classifier(loss="squared_error"), X, labels()),
    "balanced classes": Case(lambda: classifier(class_weight="balanced"), X, labels()),
    "weighted classes": Case(
        lambda: classifier(class_weight={"ant": 9.0, "bee": 0.5}),
        X,
        labels(),
        {"sample_weight": weights()},
    ),
    "one class": Case(classifier, X, np.full(N, "only")),
}

# what three ranks are asked as well
ALSO_THREE = (
    "table",
    "unequal lengths",
    "sample weights",
    "weighted classes",
    "validation samples",
)

# the same model on all ranks, but that of one process is another one
EQUAL = {
    "no seed": Case(lambda: regressor(random_state=None), X, numbers(X)),
    "held-out fraction": Case(
        lambda: classifier(early_stopping=True, max_iter=300, tol=1e-3, validation_fraction=0.3),
        X,
        np.where(X[:, 1] > X[:, 1].mean(), "high", "low"),
    ),
    "held-out end": Case(
        lambda: regressor(early_stopping="last", max_iter=300, tol=1e-3, validation_fraction=0.3),
        X,
        numbers(X),
    ),
}


class Do(Callback):
    """Does something at the third iteration."""

    def __init__(self, what):
        self.what = what

    def on_epoch_end(self, net, **kwargs):
        if len(net.history) == 3:
            self.what()


def fail():
    raise OSError("the disk is full")


def stop():
    raise KeyboardInterrupt


def fit_another():
    with single_process():
        model = regressor(max_iter=2).fit(X, numbers(X))
    model.score(X, numbers(X), sample_weight=weights())
    diagnose(model, X, numbers(X))


def interrupt():
    os.kill(os.getpid(), signal.SIGINT)


def on_last(change):
    """Return a `prepare` that changes the arguments of rank 1 only."""

    def prepare(rank, estimator, arguments):
        if rank == 1:
            change(estimator, arguments)

    return prepare


def with_nan(estimator, arguments):
    arguments["X"] = arguments["X"].copy()
    arguments["X"][3, 2] = np.nan


def fewer_features(estimator, arguments):
    arguments["X"] = arguments["X"][:, :5]


def no_samples(estimator, arguments):
    arguments["X"], arguments["y"] = arguments["X"][:0], arguments["y"][:0]


def no_validation(estimator, arguments):
    for name in VALIDATION:
        arguments[name] = None


def other_beta(estimator, arguments):
    estimator.residual_beta = 0.5


def other_labels(estimator, arguments):
    arguments["y"] = np.arange(len(arguments["y"])) % 2 == 0


def do(what):
    return on_last(lambda estimator, arguments: estimator.set_params(callbacks=[Do(what)]))


# {name: (case, error on rank 1, error on rank 0, words of both, words of rank 0)}
FAIL = {
    "NaN": (
        Case(regressor, X, numbers(X), prepare=on_last(with_nan)),
        ("ValueError", "Input X contains NaN"),
        ("RankError", "Rank 1 could not go on: ValueError: Input X contains NaN"),
    ),
    "no samples": (
        Case(regressor, X, numbers(X), prepare=on_last(no_samples)),
        ("ValueError", "Found array with 0 sample"),
        ("RankError", "Rank 1 could not go on: ValueError: X: Found array with 0 sample"),
    ),
    "number of features": (
        Case(regressor, X, numbers(X), prepare=on_last(fewer_features)),
        ("ValueError", "the number of features of X: rank 0 has 7, rank 1 has 5"),
        ("ValueError", "the number of features of X: rank 0 has 7, rank 1 has 5"),
    ),
    "parameters": (
        Case(regressor, X, numbers(X), prepare=on_last(other_beta)),
        ("ValueError", "disagree on residual_beta: rank 0 has 1.0, rank 1 has 0.5"),
        ("ValueError", "disagree on residual_beta: rank 0 has 1.0, rank 1 has 0.5"),
    ),
    "validation on one rank": (
        Case(regressor, X, numbers(X), VALIDATION, prepare=on_last(no_validation)),
        ("ValueError", "disagree on whether X_val is given"),
        ("ValueError", "disagree on whether X_val is given"),
    ),
    "kinds of labels": (
        Case(classifier, X, labels(), prepare=on_last(other_labels)),
        ("ValueError", "the kind of labels in y: rank 0 has 'strings', rank 1 has 'bool'"),
        ("ValueError", "the kind of labels in y: rank 0 has 'strings', rank 1 has 'bool'"),
    ),
    "label that no training sample has": (
        Case(
            classifier,
            X,
            labels(),
            {"X_val": X, "y_val": labels()},
            prepare=on_last(lambda e, arguments: arguments.update(y_val=labels(("x", "y")))),
        ),
        ("ValueError", "y_val"),
        ("RankError", "Rank 1 could not go on: ValueError"),
    ),
    "error in training": (
        Case(regressor, X, numbers(X), prepare=do(fail)),
        ("OSError", "the disk is full"),
        ("RankError", "Rank 1 could not go on: OSError: the disk is full"),
    ),
    "divergence": (
        Case(lambda: regressor(learning_rate=1e4, momentum=0.0), X, numbers(X)),
        ("DivergenceError", "diverged at iteration"),
        ("DivergenceError", "diverged at iteration"),
    ),
}

# something happens before so many exchanges of a short fit, which has 47
DISTURBED = [(fail, n) for n in range(1, 48, 3)] + [(interrupt, n) for n in range(2, 47, 4)]


def disturbed_rank(exchange):
    return exchange // 4 % 2


# training ends at the fourth iteration or before, with the same model on all ranks
END = {
    "callback": (Case(regressor, X, numbers(X), prepare=do(stop)), "callback"),
    "interrupt": (Case(regressor, X, numbers(X), prepare=do(interrupt)), "interrupted"),
}
