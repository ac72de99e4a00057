"""What tests look at: outputs, messages, warnings, memory, tensors, and other interpreters."""

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
from sklearn.metrics import log_loss

from tests.conftest import REPOSITORY

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


def penalty(estimator):
    """Return the L2 penalty on the weight matrices of a fitted estimator."""
    squares = [
        float((weight.detach().double() ** 2).sum())
        for name, weight in estimator.module_.named_parameters()
        if "norm" not in name and not name.endswith("_bias") and name != "position"
    ]
    return 0.5 * estimator.alpha * sum(squares)


def objective(estimator, X, y):
    """Return the training objective at the fitted weights, from the predictions."""
    if estimator.loss == "log_loss":
        return log_loss(y, estimator.predict_proba(X)) + penalty(estimator)
    error = (estimator.predict(X) - y) / y.std(axis=0)
    return 0.5 * (error**2).reshape(len(y), -1).sum(axis=1).mean() + penalty(estimator)


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


def run_python(*arguments, quiet=False, timeout=None, **variables):
    """Run an interpreter from the repository root, with one thread; return what it printed.

    ``variables`` are those of its environment; ``quiet``: nothing may go to standard error.
    """
    path = os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")]))
    completed = subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=REPOSITORY,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path, **variables},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert completed.returncode == 0, completed.stderr
    assert not quiet or completed.stderr == ""
    return completed.stdout
