"""How far apart two fits of the same thing end: by threads, chunks, processes and precision."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from torch import distributed

from sklearn_restf import ResidualTransformerClassifier, ResidualTransformerRegressor
from sklearn_restf.distributed import rows_of_rank

N, T, D = 400, 8, 16
ITERATIONS = 20
RNG = np.random.default_rng(0)
WINDOWS = RNG.standard_normal((N, T, D))
RAGGED = [x[: 1 + i % T] for i, x in enumerate(WINDOWS)]
Y = WINDOWS[:, 0, 0] + 0.5 * WINDOWS[:, 0, 1] ** 2
LABELS = np.digitize(Y, [0.0, 1.0])
COMMON = {"max_iter": ITERATIONS, "tol": None, "device": "cpu", "random_state": 0, "d_ff": 64}

#: name: (class, X, y, parameters)
RUNS = {
    "one layer": (ResidualTransformerRegressor, WINDOWS, Y, {}),
    "three layers, LayerNorm": (
        ResidualTransformerRegressor,
        WINDOWS,
        Y,
        {"n_layers": 3, "layer_norm": True, "n_heads": 2, "activation": "gelu"},
    ),
    "ragged, three classes": (ResidualTransformerClassifier, RAGGED, LABELS, {"n_layers": 2}),
}


def output(name, rows=slice(None), **changes):
    """Fit on some samples and return what is predicted for all."""
    make, X, y, parameters = RUNS[name]
    estimator = make(**COMMON | parameters | changes).fit(X[rows], y[rows])
    return estimator.predict_proba(X) if hasattr(estimator, "classes_") else estimator.predict(X)


def difference(a, b):
    """Return the largest difference, in units of the spread of what is predicted."""
    return float(np.abs(a - b).max() / b.std())


def started(name, n_threads, part=()):
    """Start a process of so many threads that fits; see :func:`collect`.

    With `part`, the rank, the number of ranks and a file they share, it fits on its part.
    """
    environment = os.environ | {
        "PYTHONPATH": str(Path(__file__).resolve().parent.parent),
        "OMP_NUM_THREADS": str(n_threads),
        "MKL_NUM_THREADS": str(n_threads),
        "OMP_WAIT_POLICY": "passive",  # where other work holds the cores, waiting is slow
    }
    code = [sys.executable, "-m", "tests.determinism", name, *map(str, part)]
    return subprocess.Popen(code, env=environment, cwd=environment["PYTHONPATH"],
                            stdout=subprocess.PIPE)  # fmt: skip


def collect(process):
    """Return what the fit of a started process predicts."""
    printed, _ = process.communicate(timeout=300)
    assert process.returncode == 0
    return np.load(io.BytesIO(printed))


def on_threads(name, count):
    """Fit on so many threads."""
    return collect(started(name, count))


def at_once(name):
    """Fit in two processes at once."""
    return [collect(process) for process in [started(name, 1) for _ in range(2)]][1]


def in_parts(name, size):
    """Fit in several processes, each of which has a part of the samples."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "store"
        processes = [started(name, 1, (rank, size, file)) for rank in range(size)]
        predicted = [collect(process) for process in processes]  # all of them must end
        return predicted[0]


def join(rank, size, file):
    """Join the other processes, and return which samples are this one's."""
    distributed.init_process_group(
        "gloo", init_method=f"file://{file}", rank=int(rank), world_size=int(size)
    )
    return rows_of_rank(N)


#: what is changed: (how to fit, largest difference promised)
CHANGES = {
    "nothing": (output, 0.0),
    "another process, two at once": (at_once, 0.0),
    "2 threads": (lambda name: on_threads(name, 2), 1e-9),
    "4 threads": (lambda name: on_threads(name, 4), 1e-9),
    "chunks of 100 samples": (lambda name: output(name, chunk_size=100), 1e-9),
    "chunks of 7 samples": (lambda name: output(name, chunk_size=7), 1e-9),
    "2 processes, half the samples each": (lambda name: in_parts(name, 2), 1e-9),
    "3 processes, a third each": (lambda name: in_parts(name, 3), 1e-9),
    # a ReLU unit within rounding of its kink may switch for some sample
    "float32": (lambda name: output(name, dtype="float32"), 1e-2),
}


if __name__ == "__main__":
    from sklearn_restf._utils import threads as threads_module

    threads_module.SMALL_WORK = 0  # or the fit would take one thread, being small
    name, *part = sys.argv[1:]
    np.save(sys.stdout.buffer, output(name, join(*part) if part else slice(None)))
