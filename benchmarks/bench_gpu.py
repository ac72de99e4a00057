"""The estimators on a GPU: are they right, how fast beside peers, and the batched sweep.

    python benchmarks/bench_gpu.py > gpu.json           under 8 minutes
    python benchmarks/bench_gpu.py --device cpu --quick the same script without a GPU, a minute

Prints one JSON object to standard output, and progress to standard error. Needs torch, numpy,
pandas, scikit-learn and skorch; the package itself is taken from the checkout.

* checks  fits on the device next to fits on the CPU, both in double precision (and the float32
          ones next to float32), and fits whose iteration is captured as a CUDA graph next to
          fits that read every loss: largest relative differences, and what was allowed.
* peers   seconds per full-batch iteration of the contenders of ``bench_peers.py``, and of the
          estimator without graph ("ours, step by step"): the slope between a short and a long
          run, wall time with the device waited for, contenders taking turns. Ratios are of
          medians, the fastest peer to ours. ``torch.compile`` comes last, as long as time is left.
* sweep   25 models (5 residual strengths, 5 folds) side by side, next to ``GridSearchCV``.
* matmul  the same fit with float32 products in full and in TensorFloat-32 precision.
"""

import argparse
import json
import os
import sys
import time
import traceback
import warnings
from contextlib import contextmanager
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the checkout, installed or not
# each process of a grid search uses one core; to be set before torch loads
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("PYTHONWARNINGS", "ignore")

import numpy as np
import torch
from _peers import CONTENDERS, WORKLOADS, Ours, Workload
from _report import environment
from sklearn.datasets import load_iris
from sklearn.model_selection import GridSearchCV

from sklearn_restf import (
    ResidualTransformerClassifier,
    ResidualTransformerClassifierCV,
    ResidualTransformerRegressor,
    ResidualTransformerRegressorCV,
)
from sklearn_restf._training import batched_descent, cuda_graph

# dtype, iterations, largest relative difference allowed
DOUBLE, SINGLE = ("float64", 40, 1e-6), ("float32", 10, 1e-3)
BETAS = (0.0, 0.25, 0.5, 0.75, 1.0)
LARGE = [
    Workload("windows 20000 x 24 x 21, mean", 20000, 24, 21, 64, "mean"),
    Workload("windows 2000 x 64 x 128, mean", 2000, 64, 128, 512, "mean"),
]
STEP_BY_STEP = "ours, step by step"


def say(*words):
    print(*words, file=sys.stderr, flush=True)


@contextmanager
def reading_every_step():
    """Switch the running ahead of trials off."""
    devices, batched_descent.DEVICES = batched_descent.DEVICES, ()
    try:
        yield
    finally:
        batched_descent.DEVICES = devices


class Captures:
    """Count the CUDA graphs that were captured, and the attempts that failed."""

    def __init__(self):
        self.capture, self.done, self.failed = cuda_graph.capture, 0, 0
        cuda_graph.capture = self

    def __call__(self, *arguments):
        """Capture, and count."""
        graph = self.capture(*arguments)
        self.done += graph is not None
        self.failed += graph is None
        return graph


class StepByStep(Ours):
    """The estimator, reading every loss."""

    def fit(self, X, y, n_iter, **options):
        """Train, waiting for the device after every step."""
        with reading_every_step():
            return super().fit(X, y, n_iter, **options)


# --- checks ---------------------------------------------------------------------------


def problems():
    """Return (estimator class, X, y, options) by name."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((120, 8, 6))
    y = X[:, -1, 0] + 0.5 * X[:, 1, 1] * X[:, 2, 2]
    series = [rng.standard_normal((t, 6)) for t in rng.integers(1, 12, 300)]
    level = np.array([x[-1, 0] + x[:, 1].mean() for x in series])
    flowers, species = load_iris(return_X_y=True)
    regressor, classifier = ResidualTransformerRegressor, ResidualTransformerClassifier
    deep = {"n_layers": 2, "n_heads": 2, "layer_norm": True, "causal": True}
    sinusoidal = {"n_layers": 2, "positional_encoding": "sinusoidal"}
    return {
        "closed form, flatten": (regressor, X, y, {}),
        "closed form, mean": (regressor, X, y, {"pooling": "mean"}),
        "closed form, last": (regressor, X, y, {"pooling": "last"}),
        "closed form, gelu": (regressor, X, y, {"activation": "gelu"}),
        "autograd, GPT-2's block": (regressor, X, y, deep),
        "autograd, sinusoidal": (regressor, X, y, sinusoidal),
        "ragged, mean": (regressor, series, level, {}),
        "ragged, last": (regressor, series, level, {"pooling": "last"}),
        "ragged, two layers": (regressor, series, level, {"n_layers": 2}),
        "classes": (classifier, flowers, species, {}),
        "two classes": (classifier, flowers[:100], species[:100], {}),
        "constant rate": (regressor, X, y, {"learning_rate": 0.02, "momentum": 0.5}),
        "theory": (regressor, X, y, {"learning_rate": "theory", "momentum": 0.0}),
        "chunks": (regressor, X, y, {"chunk_size": 50}),
        "early stopping": (regressor, X, y, {"early_stopping": "last"}),
        "stops by tol": (regressor, X, y, {"tol": 1e-2, "max_iter": 200}),
    }


def difference(one, other, X):
    """Return the largest relative difference of losses and outputs; None for other decisions."""
    if (one.stop_reason_, one.n_iter_) != (other.stop_reason_, other.n_iter_):
        return None
    outputs = [getattr(e, "predict_proba", e.predict)(X) for e in (one, other)]
    pairs = [(one.loss_curve_, other.loss_curve_), outputs]
    return max(float(np.max(np.abs(np.subtract(a, b)) / np.abs(b).max())) for a, b in pairs)


def check(device, precisions):
    """Compare fits on the device with fits on the CPU, and graphs with the ordinary loop."""
    records = []
    for name, (estimator, X, y, options) in problems().items():
        for dtype, n_iter, limit in precisions:
            common = {"max_iter": n_iter, "tol": None, "random_state": 0, "dtype": dtype}
            common |= {"diagnostics": False} | options
            if dtype == "float32":  # rounding decides about late steps, and when to stop
                common |= {"max_iter": n_iter, "tol": None}

            def fit(where, estimator=estimator, X=X, y=y, common=common):
                return estimator(**common, device=where).fit(X, y)

            here, reference = fit(device), fit("cpu")
            with reading_every_step():
                stepwise = fit(device)
            for kind, other in (("cpu", reference), ("step by step", stepwise)):
                value = difference(here, other, X)
                record = {"name": name, "dtype": dtype, "against": kind, "difference": value}
                ok = value is not None and value <= limit
                records.append(record | {"limit": limit, "ok": ok})
    failed = [record for record in records if not record["ok"]]
    say(f"{len(records)} checks, {len(failed)} failed")
    return {"all_ok": not failed, "failed": failed, "checks": records}


# --- peers ----------------------------------------------------------------------------


def seconds(call, device):
    """Return the wall seconds of a call, the device waited for."""
    synchronize(device)
    start = time.perf_counter()
    call()
    synchronize(device)
    return time.perf_counter() - start


def synchronize(device):
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def slope(fit, n_iter, device):
    """Return the seconds per iteration, between a run of few and one of many."""
    few = max(1, n_iter // 10)
    return (seconds(lambda: fit(n_iter + few), device) - seconds(lambda: fit(few), device)) / n_iter


def choose_n_iter(fit, device, target):
    """Return how many iterations take about so many seconds; warms up."""
    seconds(lambda: fit(3), device)
    return int(np.clip(target / max(slope(fit, 20, device), 1e-6), 20, 3000))


def measure(workload, contenders, device, repeats, target):
    """Return the seconds per iteration of every contender, and the memory of the device."""
    X, y = workload.data()
    rows, counts, memory = {name: [] for name in contenders}, {}, {}
    for name, contender in contenders.items():
        fit = partial(contender.fit, X, y)
        counts[name] = choose_n_iter(fit, device, target)
        if device.startswith("cuda"):
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            fit(3)
            memory[name] = torch.cuda.max_memory_allocated()
    for _ in range(repeats):
        for name, contender in contenders.items():
            rows[name].append(slope(partial(contender.fit, X, y), counts[name], device))
    record = {"iterations": counts, "seconds": rows, "peak_bytes": memory}
    record["median_s"] = {name: float(np.median(values)) for name, values in rows.items()}
    return record


def conclude(record):
    """Add the ratio of the fastest peer to ours."""
    medians = record["median_s"]
    peers = {name: s for name, s in medians.items() if not name.startswith("ours")}
    best = min(peers, key=peers.get)
    record |= {"best_peer": best, "ratio": peers[best] / medians["ours"]}
    if STEP_BY_STEP in medians:
        record["ratio_step_by_step"] = medians[STEP_BY_STEP] / medians["ours"]
    return record


def peers(options, workloads, time_left):
    """Measure all contenders but the compiled one on every workload."""
    results = {}
    classes = {name: c for name, c in CONTENDERS.items() if name != "compile"}
    classes[STEP_BY_STEP] = StepByStep
    for workload in workloads:
        if time_left() < 0:
            results[workload.name] = {"left_out": "no time left"}
            continue
        contenders = {name: c(workload, options.device) for name, c in classes.items()}
        repeats, target = (2, 0.05) if options.quick else (5, 0.25)
        record = measure(workload, contenders, options.device, repeats, target)
        results[workload.name] = conclude(record)
        ms = ", ".join(f"{name} {1e3 * s:.3f}" for name, s in record["median_s"].items())
        say(f"{workload.name}: {ms} ms; {record['best_peer']} / ours {record['ratio']:.2f}")
    return results


def compiled(options, results, workloads, time_left):
    """Add the compiled contender where time is left; its compilation is not counted."""
    for workload in workloads:
        record = results.get(workload.name, {})
        if "median_s" not in record or time_left() < 60:
            record["compile"] = "no time left"
            continue
        contenders = {"compile": CONTENDERS["compile"](workload, options.device)}
        try:
            found = measure(workload, contenders, options.device, 3, 0.25)
        except Exception as error:  # no compiler here
            record["compile"] = str(error)[:300]
            continue
        record["seconds"] |= found["seconds"]
        record["median_s"] |= found["median_s"]
        conclude(record)
        say(f"{workload.name}: compile {1e3 * found['median_s']['compile']:.3f} ms")


# --- the sweep ------------------------------------------------------------------------


def sweep(options, time_left):
    """Time 25 models side by side, and one by one."""
    rng = np.random.default_rng(0)
    windows = {"tiny 100 x 8 x 8": (100, 8, 8), "windows 2000 x 24 x 21": (2000, 24, 21)}
    data = {"iris": (load_iris(return_X_y=True), True)}
    for name, shape in windows.items():
        X = rng.standard_normal(shape)
        data[name] = ((X, X[:, -1, 0] + 0.5 * X[:, 1, 1] * X[:, 2, 2]), False)
    if options.quick:
        del data["windows 2000 x 24 x 21"]
    results = {}
    for name, ((X, y), classes) in data.items():
        if time_left() < 0:
            results[name] = {"left_out": "no time left"}
            continue
        plain = ResidualTransformerClassifier if classes else ResidualTransformerRegressor
        batched = ResidualTransformerClassifierCV if classes else ResidualTransformerRegressorCV
        common = {"random_state": 0, "max_iter": 20 if options.quick else 200, "tol": None}
        grid = {"residual_beta": list(BETAS)}
        searches = {"batched": batched(BETAS, cv=5, refit=False, **common, device=options.device)}
        for n_jobs in (1,) if options.quick else (1, 2):
            estimator = plain(**common, device=options.device)
            key = f"grid, n_jobs={n_jobs}"
            searches[key] = GridSearchCV(estimator, grid, cv=5, refit=False, n_jobs=n_jobs)
        runs = {key: [] for key in searches}
        for _ in range(2 if options.quick else 3):  # the first is a warm-up
            for key, search in searches.items():
                runs[key].append(seconds(partial(search.fit, X, y), options.device))
        best = {key: min(values[1:]) for key, values in runs.items()}
        scores = [
            np.column_stack([s.cv_results_[f"split{i}_test_score"] for i in range(5)])
            for s in (searches["batched"], searches["grid, n_jobs=1"])
        ]
        ratios = {key: best[key] / best["batched"] for key in searches if key != "batched"}
        spread = float(np.abs(scores[0] - scores[1]).max())
        results[name] = {"seconds": runs, "ratios": ratios, "largest_score_difference": spread}
        say(f"sweep, {name}: {best} s; {ratios}; scores differ by {spread:.1e}")
    return results


def matmul(options):
    """Fit in full float32 and in TensorFloat-32."""
    workload = WORKLOADS[1] if options.quick else LARGE[1]
    X, y = workload.data()
    before, results = torch.get_float32_matmul_precision(), {}
    for precision in ("highest", "high"):
        torch.set_float32_matmul_precision(precision)
        ours = Ours(workload, options.device)
        fit = partial(ours.fit, X, y, learning_rate="adaptive", momentum=0.9)
        loss = fit(20 if options.quick else 200)
        per_iteration = slope(fit, 20 if options.quick else 100, options.device)
        results[precision] = {"loss": loss, "seconds": per_iteration}
    torch.set_float32_matmul_precision(before)
    say("matmul", results)
    return {workload.name: results}


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--quick", action="store_true", help="small workloads, few repeats")
    parser.add_argument("--minutes", type=float, default=6.5, help="parts begun later are left out")
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # runs this short do not converge
    torch.set_num_threads(1)
    start = time.perf_counter()

    def time_left():
        return 60 * options.minutes - (time.perf_counter() - start)

    record = {"environment": environment(), "settings": vars(options)}
    captures = Captures()
    workloads = WORKLOADS[:2] if options.quick else WORKLOADS + LARGE
    parts = {
        "checks": lambda: check(options.device, [DOUBLE] if options.quick else [DOUBLE, SINGLE]),
        "sweep": lambda: sweep(options, time_left),
        "matmul": lambda: matmul(options),
        "peers": lambda: peers(options, workloads, time_left),
    }
    for name, part in parts.items():
        begun = time.perf_counter()
        try:
            record[name] = part()
        except Exception:  # the other parts are worth having
            record[name] = {"error": traceback.format_exc()}
            say(record[name]["error"])
        record.setdefault("seconds", {})[name] = time.perf_counter() - begun
    if not options.quick:
        compiled(options, record["peers"], workloads, time_left)
    record["graphs"] = {"captured": captures.done, "failed": captures.failed}
    record["total_seconds"] = time.perf_counter() - start
    print(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
