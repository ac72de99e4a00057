"""Fits and predicts for long in one process, and watches what it holds.

    python tests/soak.py FITS PREDICTS

Prints as JSON the slopes of the resident memory, in bytes a call over the second half, by a
robust line (Theil and Sen), and the numbers of open files and threads before and after.
"""

import gc
import json
import os
import sys
import threading
import warnings
from pathlib import Path

import numpy as np
from scipy.stats import theilslopes

from sklearn_restf import ResidualTransformerClassifier, ResidualTransformerRegressor

#: Largest slopes of memory, in bytes a fit and a prediction; what a fit here holds is over 10 kB.
LIMITS = (2_000, 50)
RNG = np.random.default_rng(0)
X = RNG.standard_normal((60, 5, 4))
Y = X[:, 0, 0] + X[:, 1, 1] ** 2
SHORT = {"max_iter": 5, "tol": None, "d_ff": 8, "device": "cpu", "random_state": 0}

#: different ways through the code, taken in turn
MODELS = [
    ResidualTransformerRegressor(**SHORT),
    ResidualTransformerRegressor(**SHORT, n_layers=2, pooling="mean", chunk_size=7),
    ResidualTransformerClassifier(**SHORT, early_stopping=True, dtype="float32"),
    ResidualTransformerRegressor(**SHORT, diagnostics="full", layer_norm=True, warm_start=True),
]
RAGGED = [x[: 1 + i % 5] for i, x in enumerate(X)]


def fit(i):
    """Fit one of the models."""
    model = MODELS[i % len(MODELS)]
    y = np.where(Y > 0, "a", "b") if hasattr(model, "predict_proba") else Y
    # samples of its own, as in service: nothing to be found again in a cache
    model.fit(RAGGED if i % len(MODELS) == 1 else X + 0.01 * i, y)


def predict(i):
    """Predict with one of the models, for a varying number of samples."""
    some = slice(0, 1 + i % len(X))
    MODELS[i % len(MODELS)].predict(RAGGED[some] if i % len(MODELS) == 1 else X[some])


def resident():
    """Return the bytes of resident memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def held():
    """Return the numbers of open files and of threads."""
    return {
        "files": len(os.listdir("/proc/self/fd")),
        "threads": len(os.listdir("/proc/self/task")),
        "Python threads": threading.active_count(),
    }


def watch(call, times):
    """Call so often; return slope of memory over the second half, and its growth."""
    # collecting garbage before each look takes longer than many a call
    sizes, every = [], max(1, times // (100 if times >= 200 else 15))
    for i in range(times):
        call(i)
        if i % every == 0:
            gc.collect()
            sizes.append(resident())
    half = sizes[len(sizes) // 2 :]
    slope = theilslopes(half, np.arange(len(half)) * every)[0]
    return {"bytes a call": float(slope), "growth in the second half": half[-1] - half[0]}


def main(fits, predicts):
    """Watch fits, then predictions."""
    warnings.simplefilter("ignore")
    for i in range(2 * len(MODELS)):
        fit(i)
        predict(i)
    before = held()
    found = {"fit": watch(fit, fits), "predict": watch(predict, predicts)}
    print(json.dumps({**found, "before": before, "after": held()}))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
