"""Interrupts fits by the signal of Ctrl+C at random moments, and says what they keep.

    python tests/interrupting.py TIMES SEED

Prints a list of outcomes as JSON.
"""

import json
import os
import random
import signal
import sys
import threading
import warnings

import numpy as np

from sklearn_restf import ResidualTransformerRegressor

RNG = np.random.default_rng(0)
X = RNG.standard_normal((200, 6, 4))
Y = X[:, 0, 0] + X[:, 1, 1] ** 2
ENDLESS = {"max_iter": 10**6, "tol": None, "random_state": 0, "device": "cpu"}


def interrupted(held_out, moment):
    """Fit, interrupted after so many seconds; return what happened."""
    model = ResidualTransformerRegressor(**ENDLESS, early_stopping=held_out)
    timer = threading.Timer(moment, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(X, Y)
    timer.join()
    curve = model.validation_curve_ if held_out else model.loss_curve_
    best = model.best_iteration_
    same = True
    if best and not held_out:  # held out, a fit of so many iterations could keep earlier ones
        shorter = ResidualTransformerRegressor(**ENDLESS | {"max_iter": best}).fit(X, Y)
        same = bool(np.array_equal(shorter.predict(X), model.predict(X)))
    return {
        "stop_reason": model.stop_reason_,
        "warnings": sorted({w.category.__name__ for w in caught}),
        "iterations": model.n_iter_,
        "lengths agree": len(model.loss_curve_) == model.n_iter_,
        "best": best == (1 + int(np.argmin(curve)) if curve else 0),
        "same as that many iterations": same,
    }


def main(times, seed):
    """Interrupt so often."""
    chance = random.Random(seed)
    # torch loads parts of itself late: an interrupt there ends a fit that had not begun
    ResidualTransformerRegressor(**ENDLESS | {"max_iter": 1}).fit(X, Y)
    print(json.dumps([interrupted(i % 2 == 1, chance.uniform(0.1, 0.4)) for i in range(times)]))


if __name__ == "__main__":
    # ignored where the tests run in the background of a shell
    signal.signal(signal.SIGINT, signal.default_int_handler)
    main(int(sys.argv[1]), int(sys.argv[2]))
