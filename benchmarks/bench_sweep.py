"""Batched cross-validation over residual_beta next to GridSearchCV over the plain estimator.

Five residual strengths by five folds, same seeds, same folds, same number of jobs. The two
contenders take turns, so that a busy machine slows both; ratios are of medians over the
rounds (above 1: the batched sweep is faster). ``cold`` is the very first call, with worker
processes to start. The largest difference of the test scores stands beside the times.

    python benchmarks/bench_sweep.py                     the recorded figures, under 8 minutes
    python benchmarks/bench_sweep.py --jobs 1 --output one_job.json
    python benchmarks/bench_sweep.py --quick --only iris windows

Only a full run with two jobs writes ``benchmarks/results/sweep.json``; other runs write where
``--output`` says, or nowhere.
"""

import argparse
import os
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")  # the contenders' processes share the cores
os.environ.setdefault("PYTHONWARNINGS", "ignore")

import warnings

import numpy as np
from _report import save_results
from joblib.externals.loky import get_reusable_executor
from sklearn.base import is_classifier
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_iris, load_wine
from sklearn.model_selection import GridSearchCV

from sklearn_restf import (
    ResidualTransformerClassifier,
    ResidualTransformerClassifierCV,
    ResidualTransformerRegressor,
    ResidualTransformerRegressorCV,
)

BETAS = (0.0, 0.25, 0.5, 0.75, 1.0)


def windows(n, T, c):
    """Return random windows and a target that depends on two tokens."""
    X = np.random.default_rng(0).normal(size=(n, T, c))
    return X, X[:, -1, 0] + 0.5 * X[:, 1, 1] * X[:, 2, 2]


REGRESSION = {
    "windows": lambda: windows(100, 8, 8),
    "windows_500": lambda: windows(500, 24, 21),
    "diabetes": lambda: load_diabetes(return_X_y=True),
}
CLASSIFICATION = {
    "iris": lambda: load_iris(return_X_y=True),
    "wine": lambda: load_wine(return_X_y=True),
    "breast_cancer": lambda: load_breast_cancer(return_X_y=True),
    "digits": lambda: load_digits(return_X_y=True),
}
DATA_SETS = REGRESSION | CLASSIFICATION
# the larger ones with few iterations, so that what is done once per model shows
PARAMETERS = {name: {"max_iter": 25, "tol": None} for name in DATA_SETS}
PARAMETERS |= {"iris": {}, "windows": {}}
SECONDS = 25  # to spend on the rounds of one data set and number of jobs


def contenders(name, n_jobs, **parameters):
    """Return the batched sweep and the grid search, unfitted and without refit."""
    plain, sweep = (
        (ResidualTransformerRegressor, ResidualTransformerRegressorCV)
        if name in REGRESSION
        else (ResidualTransformerClassifier, ResidualTransformerClassifierCV)
    )
    common = {"random_state": 0, **parameters}
    return {
        "batched": sweep(BETAS, cv=5, n_jobs=n_jobs, refit=False, **common),
        "grid": GridSearchCV(
            plain(**common), {"residual_beta": BETAS}, cv=5, n_jobs=n_jobs, refit=False
        ),
    }


def timed(search, X, y):
    """Return wall and processor seconds of one fit (the latter of this process only)."""
    start = time.perf_counter(), time.process_time()
    search.fit(X, y)
    return time.perf_counter() - start[0], time.process_time() - start[1]


def test_scores(search):
    """Return the test scores, (n_candidates, n_splits)."""
    names = [f"split{i}_test_score" for i in range(5)]
    return np.column_stack([search.cv_results_[name] for name in names])


def bench(name, *, n_jobs, rounds, cold):
    """Return the figures of one data set."""
    X, y = DATA_SETS[name]()
    searches = contenders(name, n_jobs, **PARAMETERS.get(name, {}))
    assert all(is_classifier(s) == (name in CLASSIFICATION) for s in searches.values())
    figures = {"n_samples": len(X), "n_jobs": n_jobs}
    seconds = {key: [] for key in searches}
    if cold:
        for key, search in searches.items():
            get_reusable_executor().shutdown(wait=True)
            figures[f"cold_{key}_s"] = timed(search, X, y)[0]
        figures["cold_ratio"] = figures["cold_grid_s"] / figures["cold_batched_s"]
    warm = sum(timed(search, X, y)[0] for search in searches.values())
    rounds = int(np.clip(SECONDS / warm, min(3, rounds), rounds))
    figures["rounds"] = rounds
    for i in range(rounds):
        order = list(searches) if i % 2 else list(searches)[::-1]
        for key in order:
            seconds[key].append(timed(searches[key], X, y))
    for key, times in seconds.items():
        wall, processor = np.array(times).T
        figures |= {f"{key}_s": np.median(wall), f"{key}_min_s": wall.min()}
        figures[f"{key}_all_s"] = wall.tolist()
        if n_jobs == 1:
            figures[f"{key}_processor_s"] = np.median(processor)
    ratios = np.array(figures["grid_all_s"]) / np.array(figures["batched_all_s"])
    figures |= {"ratio": figures["grid_s"] / figures["batched_s"]}
    figures |= {"ratio_min": ratios.min(), "ratio_max": ratios.max()}
    if n_jobs == 1:
        figures["processor_ratio"] = figures["grid_processor_s"] / figures["batched_processor_s"]
    difference = np.abs(test_scores(searches["batched"]) - test_scores(searches["grid"])).max()
    return figures | {"largest_score_difference": difference}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="two rounds only")
    parser.add_argument("--only", nargs="+", choices=DATA_SETS, default=list(DATA_SETS))
    parser.add_argument("--jobs", type=int, nargs="+", default=[2])
    parser.add_argument("--no-cold", action="store_true", help="do not restart worker processes")
    parser.add_argument("--output", help="where to write the JSON")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    rounds, results = 2 if arguments.quick else 7, {}
    print(f"{'data':16} {'jobs':>4} {'grid s':>8} {'batched s':>9} {'ratio':>6}  min-max")
    for name in arguments.only:
        for n_jobs in arguments.jobs:
            cold = n_jobs > 1 and not arguments.no_cold
            figures = bench(name, n_jobs=n_jobs, rounds=rounds, cold=cold)
            results[f"{name}, n_jobs={n_jobs}"] = figures
            extra = f"  cold {figures['cold_ratio']:.2f}" if cold else ""
            if n_jobs == 1:
                extra = f"  processor {figures['processor_ratio']:.2f}"
            print(
                f"{name:16} {n_jobs:4} {figures['grid_s']:8.2f} {figures['batched_s']:9.2f} "
                f"{figures['ratio']:6.2f}  {figures['ratio_min']:.2f}-{figures['ratio_max']:.2f}"
                f"{extra}  scores differ by {figures['largest_score_difference']:.1e}",
                flush=True,
            )
    full = not arguments.quick and arguments.only == list(DATA_SETS) and arguments.jobs == [2]
    if arguments.output or full:
        path = save_results(arguments.output or "sweep.json", results, settings=vars(arguments))
        print(f"Wrote {path}")


if __name__ == "__main__":
    main()
