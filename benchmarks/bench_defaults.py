"""Untuned defaults next to scikit-learn's, on ten small data sets.

Every contender stands behind a StandardScaler and is scored (R^2 or accuracy) by 5-fold
cross-validation with two different splits; all contenders see the same folds. Fits use one thread.

    python benchmarks/bench_defaults.py                       the recorded figures
    python benchmarks/bench_defaults.py --quick               one split of three folds
    python benchmarks/bench_defaults.py --only digits --contenders ours --set alpha=0.03

Only a full run writes ``benchmarks/results/defaults.json``; other runs write where ``--output``
says, or nowhere.
"""

import argparse
import ast
import os
import time

# Fit times are of one thread: said before the numerical libraries load.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["MKL_NUM_THREADS"] = "1"
os.environ["OPENBLAS_NUM_THREADS"] = "1"
# The peers' warnings about max_iter, in worker processes too.
os.environ.setdefault("PYTHONWARNINGS", "ignore")

import warnings

import numpy as np
from _report import save_results
from sklearn.compose import TransformedTargetRegressor
from sklearn.datasets import (
    load_breast_cancer,
    load_diabetes,
    load_digits,
    load_iris,
    load_wine,
    make_classification,
    make_friedman1,
    make_friedman2,
    make_friedman3,
    make_moons,
)
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import RepeatedKFold, RepeatedStratifiedKFold, cross_validate
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from sklearn_restf import ResidualTransformerClassifier, ResidualTransformerRegressor

OURS = "ours"
MLP = "MLP"
MLP_SCALED = "MLP, y scaled"

REGRESSION = {
    "diabetes": lambda: load_diabetes(return_X_y=True),
    "friedman1": lambda: make_friedman1(n_samples=500, noise=0.0, random_state=0),
    "friedman2": lambda: make_friedman2(n_samples=500, noise=50.0, random_state=0),
    "friedman3": lambda: make_friedman3(n_samples=500, noise=0.1, random_state=0),
}
CLASSIFICATION = {
    "iris": lambda: load_iris(return_X_y=True),
    "wine": lambda: load_wine(return_X_y=True),
    "breast_cancer": lambda: load_breast_cancer(return_X_y=True),
    "digits": lambda: load_digits(return_X_y=True),
    "moons": lambda: make_moons(n_samples=500, noise=0.3, random_state=0),
    "make_classification": lambda: make_classification(
        n_samples=500, n_features=20, n_informative=8, n_classes=3, random_state=0
    ),
}
DATA_SETS = REGRESSION | CLASSIFICATION


def contenders(data_set, overrides):
    """Return the contenders for one data set, by name, each with its own fixed seed."""
    if data_set in REGRESSION:
        mlp = MLPRegressor(random_state=0)
        models = {
            OURS: ResidualTransformerRegressor(random_state=0, **overrides),
            MLP: mlp,
            MLP_SCALED: TransformedTargetRegressor(mlp, transformer=StandardScaler()),
            "linear": Ridge(),
            "boosting": HistGradientBoostingRegressor(random_state=0),
        }
    else:
        models = {
            OURS: ResidualTransformerClassifier(random_state=0, **overrides),
            MLP: MLPClassifier(random_state=0),
            "linear": LogisticRegression(max_iter=1000),
            "boosting": HistGradientBoostingClassifier(random_state=0),
        }
    return {name: make_pipeline(StandardScaler(), model) for name, model in models.items()}


def rival(scores):
    """Name the contender to reach: the MLP with scaled targets, where targets can be scaled."""
    return MLP_SCALED if MLP_SCALED in scores else MLP


def measure(data_set, *, folds, repeats, overrides, chosen=None, jobs=1):
    """Cross-validate the contenders on one data set.

    Parameters
    ----------
    data_set : str
        A key of ``DATA_SETS``.
    folds, repeats : int
        Folds of one split, and number of splits.
    overrides : dict
        Constructor parameters that replace our estimators' defaults.
    chosen : list of str, default=None
        Contenders to run; all of them by default.
    jobs : int, default=1
        Folds fitted at the same time.

    Returns
    -------
    dict
        For each contender the score and fit seconds of each fold, their means and spreads.
    """
    X, y = DATA_SETS[data_set]()
    splitter = RepeatedKFold if data_set in REGRESSION else RepeatedStratifiedKFold
    cv = splitter(n_splits=folds, n_repeats=repeats, random_state=0)
    results = {}
    for name, model in contenders(data_set, overrides).items():
        if chosen and name not in chosen:
            continue
        run = cross_validate(model, X, y, cv=cv, n_jobs=jobs, error_score="raise")
        results[name] = {
            "score_mean": float(np.mean(run["test_score"])),
            "score_std": float(np.std(run["test_score"])),
            "fit_seconds_mean": float(np.mean(run["fit_time"])),
            "fit_seconds_max": float(np.max(run["fit_time"])),
            "scores": [round(float(score), 5) for score in run["test_score"]],
            "fit_seconds": [round(float(seconds), 4) for seconds in run["fit_time"]],
        }
    if OURS in results and rival(results) in results:
        difference = np.subtract(results[OURS]["scores"], results[rival(results)]["scores"])
        results[OURS]["ahead_of"] = rival(results)
        results[OURS]["ahead_mean"] = float(difference.mean())
        results[OURS]["ahead_std"] = float(difference.std())
    return results


def print_header(names):
    print(f"{'':20s}" + "".join(f"{name:>17s}" for name in names) + f"{'ahead':>17s}{'s/fit':>8s}")


def print_row(data_set, results, names):
    cells = []
    for name in names:
        if name in results:
            cells.append(f"{results[name]['score_mean']:8.3f} ± {results[name]['score_std']:.3f}")
        else:
            cells.append("")
    ours = results.get(OURS, {})
    ahead = f"{ours['ahead_mean']:+.3f} ± {ours['ahead_std']:.3f}" if "ahead_mean" in ours else ""
    seconds = f"{ours['fit_seconds_mean']:.2f}" if ours else ""
    row = f"{data_set:20s}" + "".join(f"{cell:>17s}" for cell in cells)
    print(row + f"{ahead:>17s}{seconds:>8s}", flush=True)


def summarize(all_results):
    """Count where our mean score is at or above the rival's, and find the slowest fit."""
    ours = {name: results[OURS] for name, results in all_results.items() if OURS in results}
    ahead = {name: result["ahead_mean"] for name, result in ours.items() if "ahead_mean" in result}
    # Equal scores may differ by rounding.
    behind = [name for name, mean in ahead.items() if mean < -1e-9]
    return {
        "at_or_above_mlp": len(ahead) - len(behind),
        "compared": len(ahead),
        "behind_on": behind,
        "slowest_fit_seconds": max(
            (result["fit_seconds_max"] for result in ours.values()), default=0.0
        ),
    }


def parse_override(text):
    """Read ``key=value``; a value that is no Python literal is a string."""
    key, separator, value = text.partition("=")
    if not separator:
        raise argparse.ArgumentTypeError(f"expected key=value, got {text!r}")
    try:
        return key, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return key, value


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="one split of three folds")
    parser.add_argument("--only", nargs="+", choices=DATA_SETS, metavar="DATA_SET")
    parser.add_argument("--contenders", nargs="+", help="run these contenders only")
    parser.add_argument(
        "--set",
        dest="overrides",
        nargs="+",
        action="extend",
        default=[],
        type=parse_override,
        metavar="KEY=VALUE",
        help="parameters of our estimators",
    )
    parser.add_argument("--jobs", type=int, default=1, help="folds fitted at the same time")
    parser.add_argument("--output", help="file for the results (JSON)")
    return parser.parse_args()


def main():
    arguments = parse_arguments()
    warnings.simplefilter("ignore")
    folds, repeats = (3, 1) if arguments.quick else (5, 2)
    overrides = dict(arguments.overrides)
    started = time.perf_counter()

    names = list(contenders("diabetes", {}))
    print_header(names)
    all_results = {}
    for data_set in arguments.only or DATA_SETS:
        all_results[data_set] = measure(
            data_set,
            folds=folds,
            repeats=repeats,
            overrides=overrides,
            chosen=arguments.contenders,
            jobs=arguments.jobs,
        )
        print_row(data_set, all_results[data_set], names)

    summary = summarize(all_results)
    print(
        f"at or above the MLP on {summary['at_or_above_mlp']} of {summary['compared']} "
        f"(behind on: {', '.join(summary['behind_on']) or 'none'}); "
        f"slowest fit {summary['slowest_fit_seconds']:.2f} s; "
        f"whole run {time.perf_counter() - started:.0f} s"
    )

    full = not (arguments.quick or arguments.only or arguments.contenders or overrides)
    output = arguments.output or ("defaults.json" if full else None)
    if output:
        settings = {
            "folds": folds,
            "repeats": repeats,
            "jobs": arguments.jobs,
            "overrides": overrides,
            "scores": "R^2 for regression, accuracy for classification; spread: std over folds",
        }
        results = {"data_sets": all_results, "summary": summary}
        print("written:", save_results(output, results, settings=settings))


if __name__ == "__main__":
    main()
