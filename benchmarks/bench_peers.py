"""One full-batch iteration next to what one would write by hand: seconds, memory, predictions.

Contenders, on the same raw samples, in float32, with the same number of threads:

* plain    the same equations as an ``nn.Module``, ``loss.backward()``, ``torch.optim.SGD``;
* compile  the same through ``torch.compile`` (its compilation is not counted);
* encoder  the loop around ``torch.nn.TransformerEncoderLayer``, one head: LayerNorm, biases and
           an output map in addition, so not the same function;
* skorch   ``skorch.NeuralNetRegressor(batch_size=-1)`` around the plain module;
* ours     the estimator, plain gradient descent at a constant rate.

Seconds per iteration are the slope between a run of one and a run of many iterations, so that
reading and standardising the samples does not count; that part is reported as setup. Contenders
take turns, several times; a ratio compares ours with the fastest other (by the median), in
processor time, which other jobs on the machine disturb least. Wall time is recorded beside it.

    python benchmarks/bench_peers.py                    the recorded figures
    python benchmarks/bench_peers.py --quick            small workloads, once, under a minute
    python benchmarks/bench_peers.py --only ragged --threads 2

Only a full run on one thread writes ``benchmarks/results/peers.json``; other runs write where
``--output`` says, or nowhere.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
from functools import partial

os.environ.setdefault("OMP_NUM_THREADS", "1")  # --threads overrules it

import numpy as np
import torch
from _peers import CONTENDERS, WORKLOADS, check_same_function, plain_flops
from _report import save_results
from _timing import choose_n_iter, gemm_peak, slope, timed
from bench_memory import resident_bytes

from sklearn_restf.exceptions import DivergenceError

TARGETS = {
    "tiny": 2.0,
    "table": 2.0,
    "windows 2000 x 24 x 21, last": 10.0,
    "windows": 1.5,
    "ragged": 2.0,
}
OURS = "ours"


def parse():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="small workloads, once")
    parser.add_argument("--only", default="", help="workloads whose name contains this")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.5, help="about how long one run takes")
    parser.add_argument("--contenders", nargs="+", help="some of them; ours is always there")
    parser.add_argument("--skip", nargs="*", default=[], help="parts: memory, loss, prediction")
    parser.add_argument("--output", help="file for the figures")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.quick:
        options.repeats, options.seconds = min(options.repeats, 2), 0.2
        options.skip = ["memory", "loss"]
    return options


# iterations of the fixed-rate peers in the comparison of time to a common loss
N_ITER = {"tiny": 200, "table": 200, "windows": 100, "ragged": 12}
FEWEST = 2  # iterations of one timed run, besides the first
GRID = [(rate, momentum) for rate in (0.01, 0.03, 0.1, 0.3) for momentum in (0.0, 0.9)]


def by_kind(mapping, name):
    """Look up a workload by the longest key its name starts with."""
    return mapping[max((key for key in mapping if name.startswith(key)), key=len)]


def spread(values):
    return {
        "min": float(np.min(values)),
        "median": float(np.median(values)),
        "max": float(np.max(values)),
    }


def contender_names(options):
    """Return the contenders that can run here."""
    names = list(CONTENDERS)
    if shutil.which(os.environ.get("CXX", "g++")) is None:
        print("torch.compile is left out: no C++ compiler.")
        names.remove("compile")
    if options.quick:
        names.remove("compile")  # compiles for longer than all the rest takes
    if options.contenders:
        names = [name for name in names if name in (*options.contenders, OURS)]
    return names


# --- seconds per iteration ------------------------------------------------------------


def measure_iterations(contenders, X, y, options):
    """Return per contender the samples of setup and seconds per iteration."""
    counts, rows = {}, {name: {"setup_s": [], "cpu_s": [], "wall_s": []} for name in contenders}
    for name, contender in contenders.items():
        fit = partial(contender.fit, X, y)
        counts[name] = choose_n_iter(fit, options.seconds, FEWEST)
    slow = min(counts.values()) == FEWEST
    for _ in range(min(options.repeats, 3) if slow else options.repeats):
        for name, contender in contenders.items():
            measured = slope(partial(contender.fit, X, y), counts[name])
            for key, value in zip(("cpu_s", "wall_s", "setup_s"), measured, strict=True):
                rows[name][key].append(value)
    return rows


def compare(rows):
    """Return the ratios of the fastest peer (by the median) to ours."""
    if len(rows) == 1:
        return None
    medians = {name: np.median(row["cpu_s"]) for name, row in rows.items() if name != OURS}
    best = min(medians, key=medians.get)
    result = {"best_peer": best, "ratio_of_medians": medians[best] / np.median(rows[OURS]["cpu_s"])}
    for clock in ("cpu_s", "wall_s"):
        ratios = np.array(rows[best][clock]) / np.array(rows[OURS][clock])
        result[f"ratio_{clock[:-2]}"] = spread(ratios)
    return result


# --- time to a common loss ------------------------------------------------------------


def time_to_loss(workload, contenders, X, y, rows):
    """Compare the default step rule with the peers' best constant rate and momentum.

    The grid is searched with the estimator at a constant rate, which takes the steps of
    ``torch.optim.SGD`` on the plain module, from the same initial weights as the default rule. The
    loss to reach is the lowest that any pair of the grid reaches after a fixed number of
    iterations: the peers are charged for that pair only, not for finding it.
    """
    ours, n_iter = contenders[OURS], by_kind(N_ITER, workload.name)
    losses = {}
    for rate, momentum in GRID:
        try:
            losses[rate, momentum] = ours.fit(X, y, n_iter, learning_rate=rate, momentum=momentum)
        except DivergenceError:
            continue
    if not losses:
        return None
    (rate, momentum), target = min(losses.items(), key=lambda item: item[1])
    result = {
        "target_loss": target,
        "best_rate": rate,
        "best_momentum": momentum,
        "diverged": len(GRID) - len(losses),
        "peer_iterations": n_iter,
        "peer_cpu_s": {
            name: float(np.median(row["setup_s"]) + n_iter * np.median(row["cpu_s"]))
            for name, row in rows.items()
            if name not in (OURS, "encoder")  # another function has another loss
        },
    }
    default = {"learning_rate": "adaptive", "momentum": 0.9}
    ours.fit(X, y, 2 * n_iter, **default)
    reached = np.flatnonzero(np.array(ours.model.loss_curve_) <= target)
    result["our_iterations"] = needed = int(reached[0]) + 1 if len(reached) else None
    if needed is not None:
        times = [timed(lambda: ours.fit(X, y, needed, **default))[0] for _ in range(3)]
        result["our_cpu_s"] = float(np.median(times))
        result["ratio"] = min(result["peer_cpu_s"].values()) / result["our_cpu_s"]
    return result


# --- prediction -----------------------------------------------------------------------


def measure_predictions(contenders, X, options):
    """Return samples per second of processor time, and ratios of ours to the best peer."""
    runs = {}
    for name, contender in contenders.items():
        for dtype in (torch.float32, torch.float64):
            if contender.predict(X, dtype) is not None:
                runs[name, str(dtype)[6:]] = lambda c=contender, d=dtype: c.predict(X, d)
    seconds = {key: [] for key in runs}
    for _ in range(3):
        for key, run in runs.items():
            # once untimed: modules are cast where the precision changes
            count = max(1, int(0.2 * options.seconds / max(timed(run)[0], 1e-5)))
            cpu = timed(lambda run=run, count=count: [run() for _ in range(count)])[0]
            seconds[key].append(cpu / count)
    result = {
        "samples_per_s": {
            f"{name} {dtype}": len(X) / float(np.median(values))
            for (name, dtype), values in seconds.items()
        }
    }
    mine = np.array(seconds[OURS, "float64"])
    for dtype in ("float32", "float64"):
        peers = {
            name: values for (name, d), values in seconds.items() if d == dtype and name != OURS
        }
        if peers:
            best = min(peers, key=lambda name: np.median(peers[name]))
            ratios = np.array(peers[best]) / mine
            result[f"against_{dtype}"] = {"best_peer": best, **spread(ratios)}
    return result


# --- peak memory ----------------------------------------------------------------------


def memory_child(workload_name, name):
    """Train three iterations in this process; print the growth of its peak memory."""
    (workload,) = (w for w in WORKLOADS if w.name == workload_name)
    X, y = workload.data()
    contender = CONTENDERS[name](workload)
    before = resident_bytes()[0]
    contender.fit(X, y, 3)
    print(json.dumps(resident_bytes()[1] - before))


def peak_memory(workload, name, options):
    """Return how many bytes the resident memory of a fresh process grows by in training."""
    command = [sys.executable, __file__, "--threads", str(options.threads)]
    command += ["--child", workload.name, name]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


# --- all together ---------------------------------------------------------------------


def run(workload, names, options):
    """Measure all contenders on one workload."""
    X, y = workload.data()
    contenders = {name: CONTENDERS[name](workload) for name in names}
    peak = gemm_peak()
    rows = measure_iterations(contenders, X, y, options)
    if "plain" in contenders:
        check_same_function(workload, X, contenders[OURS], contenders["plain"])
    record = {"contenders": {}, "comparison": compare(rows), "gemm_flops": peak}
    if (comparison := record["comparison"]) is not None:
        comparison["target"] = by_kind(TARGETS, workload.name)
    for name, row in rows.items():
        record["contenders"][name] = {key: spread(values) for key, values in row.items()}
        share = plain_flops(workload) / np.median(row["cpu_s"]) / peak
        record["contenders"][name]["share_of_gemm_peak"] = share
        if "memory" not in options.skip:
            record["contenders"][name]["peak_rss_growth_bytes"] = peak_memory(
                workload, name, options
            )
    print_iterations(workload, record)
    if "prediction" not in options.skip:
        record["prediction"] = measure_predictions(contenders, X, options)
        print_predictions(record["prediction"])
    if "loss" not in options.skip and "plain" in rows:
        record["time_to_loss"] = time_to_loss(workload, contenders, X, y, rows)
        if record["time_to_loss"] is not None:
            print_time_to_loss(record["time_to_loss"])
    return record


def milliseconds(row):
    return "{median:.3f} ({min:.3f}..{max:.3f})".format(**{k: 1e3 * v for k, v in row.items()})


def times(row):
    return "{median:.2f}x ({min:.2f}..{max:.2f})".format(**row)


def print_iterations(workload, record):
    gemm = record["gemm_flops"] / 1e9
    print(f"\n{workload.name}, d_ff {workload.d_ff}; matrix product {gemm:.0f} GFLOP/s")
    heads = ("CPU ms/iteration (min..max)", "wall ms", "setup ms", "of peak", "MB")
    print("  {:9}{:>34}{:>10}{:>10}{:>9}{:>7}".format("", *heads))
    for name, row in record["contenders"].items():
        memory = row.get("peak_rss_growth_bytes")
        print(
            f"  {name:9}{milliseconds(row['cpu_s']):>34}{1e3 * row['wall_s']['median']:10.3f}"
            f"{1e3 * row['setup_s']['median']:10.1f}{row['share_of_gemm_peak']:9.0%}"
            + ("" if memory is None else f"{memory / 1e6:7.0f}")
        )
    if (comparison := record["comparison"]) is not None:
        print(
            f"  {comparison['best_peer']} / ours: {comparison['ratio_of_medians']:.2f}; turn by "
            f"turn {times(comparison['ratio_cpu'])}; target {comparison['target']}x"
        )


def print_predictions(record):
    speeds = ", ".join(f"{name} {value:,.0f}" for name, value in record["samples_per_s"].items())
    print(f"  predictions per second: {speeds}")
    for dtype in ("float64", "float32"):
        if (row := record.get(f"against_{dtype}")) is not None:
            print(f"  prediction, {row['best_peer']} in {dtype} / ours in float64: {times(row)}")


def print_time_to_loss(record):
    print(
        f"  loss {record['target_loss']:.4f}: peers {record['peer_iterations']} iterations (rate "
        f"{record['best_rate']}, momentum {record['best_momentum']}), ours "
        f"{record['our_iterations']}; time ratio {record.get('ratio', float('nan')):.1f}"
    )


def main():
    options = parse()
    torch.set_num_threads(options.threads)
    sys.stdout.reconfigure(line_buffering=True)
    if options.child:
        memory_child(*options.child)
        return
    names = contender_names(options)
    workloads = [w for w in WORKLOADS if options.only in w.name]
    if options.quick and not options.only:
        workloads = [w for w in workloads if w.kind != "ragged"]
    full = not (options.quick or options.only or options.skip or options.contenders)
    output = options.output or ("peers.json" if full and options.threads == 1 else None)
    settings = {key: getattr(options, key) for key in ("threads", "repeats", "seconds", "quick")}
    results = {}
    for workload in workloads:
        results[workload.name] = run(workload, names, options)
        if output:  # after each: the whole takes a while
            path = save_results(output, results, settings=settings)
    if output:
        print("\nFigures in", path)


if __name__ == "__main__":
    main()
