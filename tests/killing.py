"""Kills fits at random moments, lets them go on, and compares with one that nobody disturbed.

Run as a program: it forks, which only a process with one thread should do.

    python tests/killing.py KILLS SEED FOLDER
"""

import json
import os
import random
import signal
import sys
import time
import warnings
from pathlib import Path

import numpy as np
from skorch.callbacks import EpochScoring

from sklearn_restf import ResidualTransformerClassifier, ResidualTransformerRegressor
from sklearn_restf.callbacks import TrainingCheckpoint

RNG = np.random.default_rng(0)
X = RNG.standard_normal((40, 4, 3))
Y = X[:, 0, 0] + X[:, 1, 1] ** 2
LABELS = np.digitize(Y, [0.0, 1.0])
COMMON = {"d_ff": 8, "max_iter": 60, "device": "cpu", "dtype": "float64", "random_state": 0}

#: name: (class, targets, parameters, iterations between savings)
RUNS = {
    "momentum": (ResidualTransformerRegressor, Y, {"tol": None}, 1),
    "early stopping": (
        ResidualTransformerRegressor,
        Y,
        {"early_stopping": True, "validation_fraction": 0.3, "tol": 1e-5, "n_iter_no_change": 5},
        3,
    ),
    "constant rate": (
        ResidualTransformerRegressor,
        Y,
        {"learning_rate": 0.01, "momentum": 0.5, "tol": None, "n_layers": 2, "pooling": "mean"},
        7,
    ),
    "classes in chunks": (
        ResidualTransformerClassifier,
        LABELS,
        {"chunk_size": 11, "tol": None, "callbacks": [EpochScoring("accuracy", name="score")]},
        2,
    ),
}


def fit(name, file=None):
    """Return what a fit ends with, as bytes; `file` is the checkpoint."""
    make, y, parameters, every = RUNS[name]
    callbacks = [*parameters.get("callbacks", [])]
    if file is not None:
        callbacks.append(TrainingCheckpoint(file, every=every))
    estimator = make(**COMMON | parameters | {"callbacks": callbacks or None})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        estimator.fit(X, y)
    fitted = estimator._fitted
    return json.dumps(
        {
            "weights": {key: value.tobytes().hex() for key, value in fitted.state.items()},
            "loss_curve_": estimator.loss_curve_,
            "validation_curve_": estimator.validation_curve_,
            "n_iter_": estimator.n_iter_,
            "best_iteration_": estimator.best_iteration_,
            "loss_": estimator.loss_,
            "learning_rate_": estimator.learning_rate_,
            "stop_reason_": estimator.stop_reason_,
            "predictions": estimator.predict(X).tolist(),
            "rates": json.dumps(estimator.convergence_diagnostics_.to_dict(), default=str),
        }
    ).encode()


def killed(name, file, result, moment):
    """Fit in a child and kill it after `moment` seconds; return whether it died of that."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            result.write_bytes(fit(name, file))
            code = 0
        finally:
            os._exit(code)
    time.sleep(moment)
    os.kill(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    if not os.WIFSIGNALED(status) and os.waitstatus_to_exitcode(status):
        raise SystemExit(f"{name}: the fit failed after going on")
    return os.WIFSIGNALED(status)


def main(kills, seed, folder):
    """Kill so often, over all the runs in turn; print what happened as JSON."""
    chance = random.Random(seed)
    found = {"kills": 0, "ended as undisturbed": 0, "ended otherwise": 0, "with a checkpoint": 0,
             "while writing": 0}  # fmt: skip
    undisturbed = {}
    for name in RUNS:
        start = time.perf_counter()
        undisturbed[name] = fit(name, folder / "unused")
        seconds = time.perf_counter() - start
        (folder / "unused").unlink()
        if undisturbed[name] != fit(name):
            raise SystemExit(f"{name}: a checkpoint changes the fit")
        share = -(-kills // len(RUNS))
        file, result = folder / "checkpoint", folder / "result"
        before = found["kills"]
        while found["kills"] - before < share and found["kills"] < kills:
            if killed(name, file, result, chance.uniform(0, 0.6 * seconds)):
                found["kills"] += 1
                found["with a checkpoint"] += file.exists()
                parts = [*folder.glob(".*.part")]
                found["while writing"] += len(parts) > 0
                for part in parts:
                    part.unlink()
                continue
            judge(name, result, undisturbed, found)
            file.unlink()
        result.write_bytes(fit(name, file))  # goes on once more, to its end
        judge(name, result, undisturbed, found)
        file.unlink()
    print(json.dumps(found))


def judge(name, result, undisturbed, found):
    """Compare a fit that ended with the one that nobody disturbed."""
    same = result.read_bytes() == undisturbed[name]
    found["ended as undisturbed" if same else "ended otherwise"] += 1
    if not same:
        a, b = json.loads(result.read_bytes()), json.loads(undisturbed[name])
        print(name, [key for key in a if a[key] != b[key]], file=sys.stderr)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
