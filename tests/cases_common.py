"""Data, small estimators and tools shared by the tests of users' cases."""

from __future__ import annotations

import contextlib
import gc
import os
import pickletools
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.base import is_classifier
from skorch.callbacks import Callback

from sklearn_restf import ResidualTransformerClassifier, ResidualTransformerRegressor

ROOT = Path(__file__).resolve().parents[1]

_rng = np.random.default_rng(0)
#: (n, T, c) windows, their flat form, a regression target and string labels.
X3 = _rng.normal(size=(64, 24, 3)).astype("float32")
X2 = X3.reshape(64, -1)
YR = (2 * X3[:, -1, 0] + X3[:, :, 1].mean(1)).astype("float64")
YC = np.where(YR > 0, "pos", "neg")
#: The same windows in double precision, for comparisons tighter than float32 allows.
X3D = X3.astype("float64")
X2D = X2.astype("float64")
#: Twelve series of 5 to 16 steps.
SERIES = [_rng.normal(size=(t, 3)) for t in range(5, 17)]
SERIES_YR = np.array([2 * s[-1, 0] + s[:, 1].mean() for s in SERIES])
SERIES_YC = np.where(np.arange(12) % 2 == 0, "neg", "pos")

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
both_makers = pytest.mark.parametrize(
    "make", [make_regressor, make_classifier], ids=["regressor", "classifier"]
)
both_on_series = pytest.mark.parametrize(
    ("make", "y"),
    [(make_regressor, SERIES_YR), (make_classifier, SERIES_YC)],
    ids=["regressor", "classifier"],
)

gpu = pytest.mark.gpu
linux_only = pytest.mark.skipif(
    not Path("/proc/self/statm").exists(), reason="reads the resident memory from /proc"
)


def outputs(estimator, X):
    """Return the continuous outputs: probabilities of a classifier, else predictions."""
    if is_classifier(estimator):
        return estimator.predict_proba(X)
    return estimator.predict(X)


def refusal(call, *arguments, **options):
    """Return the text of the ValueError that a call raises, or "" when it succeeds."""
    try:
        call(*arguments, **options)
    except ValueError as error:
        return str(error)
    return ""


def fitted_names(estimator):
    """Return the names set on the instance that scikit-learn takes for fitted state."""
    return sorted(
        name for name in vars(estimator) if name.endswith("_") and not name.startswith("_")
    )


def pad(series, length, value):
    """Return the series as one (n, length, c) array, filled up on the right with ``value``."""
    padded = np.full((len(series), length, series[0].shape[1]), value, dtype="float64")
    for row, steps in zip(padded, series, strict=True):
        row[: len(steps)] = steps
    return padded


@contextlib.contextmanager
def recorded_warnings():
    """Collect every warning of the block instead of raising it."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield caught


def live_tensors():
    """Return how many torch tensors the process holds."""
    gc.collect()
    return sum(issubclass(type(obj), torch.Tensor) for obj in gc.get_objects())


def _resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class ExtraMemory:
    """Context manager; afterwards ``peak`` is the largest growth of resident memory in bytes."""

    def __enter__(self):
        gc.collect()
        self.peak = 0
        self._start = _resident_bytes()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def _watch(self):
        while not self._stop.is_set():
            self.peak = max(self.peak, _resident_bytes() - self._start)
            time.sleep(0.002)

    def __exit__(self, *exc_info):
        self._stop.set()
        self._thread.join()
        self.peak = max(self.peak, _resident_bytes() - self._start)


def torch_objects(root):
    """Return the paths below ``root`` at which an object defined by torch is stored."""
    found, seen, todo = [], set(), [("state", root)]
    while todo:
        path, obj = todo.pop()
        if id(obj) in seen:
            continue
        seen.add(id(obj))
        if type(obj).__module__.split(".")[0] == "torch":
            found.append(f"{path}: {type(obj).__name__}")
        elif isinstance(obj, dict):
            todo += [(f"{path}[{key!r}]", value) for key, value in obj.items()]
        elif isinstance(obj, list | tuple | set | frozenset):
            todo += [(f"{path}[{i}]", value) for i, value in enumerate(obj)]
        elif isinstance(obj, np.ndarray) and obj.dtype == object:
            todo += [(f"{path}[{i}]", value) for i, value in enumerate(obj.ravel())]
        elif hasattr(obj, "__dict__") and not isinstance(obj, type):
            todo += [(f"{path}.{name}", value) for name, value in vars(obj).items()]
    return found


def pickled_modules(blob):
    """Return the top-level packages whose classes or functions a pickle needs to be loaded."""
    strings, packages = [], set()
    for opcode, argument, _ in pickletools.genops(blob):
        if opcode.name == "GLOBAL":
            packages.add(argument.split(" ")[0].split(".")[0])
        elif opcode.name in {"SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"}:
            strings.append(argument)
    # A STACK_GLOBAL takes its module from the strings before it, possibly through the memo.
    return packages | {s.split(".")[0] for s in strings if s.split(".")[0] == "torch"}


def run_python(code, *arguments, options=(), environment=None, timeout=120):
    """Run code in a fresh interpreter from the repository root; return its standard output."""
    completed = subprocess.run(
        [sys.executable, *options, "-c", code, *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, **(environment or {})},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert completed.returncode == 0, completed.stderr
    return completed.stdout


class CountingCallback(Callback):
    """A callback that counts what it saw, as skorch's own do: in attributes ending in "_"."""

    def initialize(self):
        self.epochs_ = []

    def on_epoch_end(self, net, **kwargs):
        self.epochs_.append(len(net.history))


class LockCallback(Callback):
    """A callback with a parameter that can neither be pickled nor deep-copied."""

    def __init__(self, lock):
        self.lock = lock

    def on_epoch_end(self, net, **kwargs):
        with self.lock:
            pass
