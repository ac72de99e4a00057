"""What training on several machines would cost: measured parts, and a model of the whole.

Measured here, one thread a process:

* processor seconds of one iteration, for the samples (per sample) and for itself (fixed);
* what taking part in a group adds to it on every rank: copies, and the exchange itself;
* the sum of a vector over two processes on this machine, by gloo.

The model: N samples on M machines take ``fixed + N / M * per_sample + exchange(M)`` an iteration,
with a ring, ``exchange(M) = 2 (M - 1) (latency + bytes / M / bandwidth)``, over an assumed network.
The efficiency is the time of one machine over M times that of M machines.

    python benchmarks/bench_distributed.py            the recorded figures
    python benchmarks/bench_distributed.py --quick    fewer, and written nowhere
    python benchmarks/bench_distributed.py --speed 16 --output FILE    for machines 16 times as fast
"""

import argparse
import datetime
import json
import math
import os
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
import torch.distributed as dist
from _report import save_results
from _timing import choose_n_iter, slope

from sklearn_restf import ResidualTransformerRegressor
from sklearn_restf._utils.process_group import HEADER
from sklearn_restf.distributed import single_process

NETWORKS = {  # assumed: bytes per second that a program gets, seconds per message
    "1 Gbit/s": (0.11e9, 100e-6),
    "10 Gbit/s": (1.1e9, 30e-6),
    "100 Gbit/s": (11e9, 5e-6),
}
MACHINES = (2, 4, 8, 16, 32, 64)
WORKLOADS = {  # samples measured with, tokens, features, parameters
    "windows, last token": (2000, 24, 21, {"pooling": "last"}),
    "windows, flatten": (2000, 24, 21, {}),
    "text, mean": (400, 32, 384, {"pooling": "mean"}),
    "two layers": (1000, 24, 21, {"n_layers": 2}),
}
LENGTHS = (1_000, 10_000, 100_000, 1_000_000)


def exchanged_bytes(n_parameters):
    """Return the bytes of what is summed over the ranks in one iteration."""
    return 8 * (HEADER + 2 + n_parameters)


def exchange_seconds(machines, n_bytes, bandwidth, latency):
    """Return the time of a ring all-reduce."""
    return 2 * (machines - 1) * (latency + n_bytes / machines / bandwidth)


def samples(n, T, D):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, T, D), dtype=np.float32)
    return X, X[:, -1, 0] + X[:, :, 1].mean(1)


def make_fit(workload, n):
    """Return a function that trains for so many iterations, and the number of parameters."""
    _, T, D, parameters = WORKLOADS[workload]
    X, y = samples(n, T, D)

    def fit(n_iter):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ResidualTransformerRegressor(
                **parameters,
                learning_rate=1e-3,
                momentum=0.0,
                tol=None,
                diagnostics=False,
                random_state=0,
                max_iter=n_iter,
            ).fit(X, y)

    return fit, sum(value.size for value in fit(1)._fitted.state.values())


def measure_compute(workload, quick):
    """Return processor seconds of an iteration: of itself, and per sample."""
    n = WORKLOADS[workload][0] // (4 if quick else 1)
    seconds = {}
    for count in (n // 8, n):
        fit, n_parameters = make_fit(workload, count)
        n_iter = choose_n_iter(fit, 0.2 if quick else 1.0, 4)
        repeats = 1 if quick else 5
        seconds[count] = float(np.median([slope(fit, n_iter)[0] for _ in range(repeats)]))
    per_sample = (seconds[n] - seconds[n // 8]) / (n - n // 8)
    return {
        "n_parameters": n_parameters,
        "bytes": exchanged_bytes(n_parameters),
        "per_sample_s": per_sample,
        "fixed_s": max(0.0, seconds[n] - n * per_sample),
    }


def run_rank(rank, folder, quick):
    """Measure, as one of two processes, sums of vectors and what a shared fit costs more."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=2,
        timeout=datetime.timedelta(minutes=2),
    )
    results = {"sum": {}, "joining": {}}
    for length in LENGTHS[: 2 if quick else None]:
        vector = torch.ones(length, dtype=torch.float64)
        walls, cpus = [], []
        for _ in range(20 if quick else 200):
            wall, cpu = time.perf_counter(), time.process_time()
            dist.all_reduce(vector)
            cpus.append(time.process_time() - cpu)
            walls.append(time.perf_counter() - wall)
        results["sum"][length] = {
            "wall_min_s": min(walls),
            "wall_median_s": float(np.median(walls)),
            "cpu_mean_s": float(np.mean(cpus)),
        }
    for workload in WORKLOADS:
        fit, _ = make_fit(workload, WORKLOADS[workload][0] // 8)
        n_iter = 5 if quick else 20 if workload.startswith("text") else 200
        added = []
        for _ in range(1 if quick else 9):  # in pairs: the load of the machine changes
            with single_process():
                alone = slope(fit, n_iter)[0]
            added.append(slope(fit, n_iter)[0] - alone)
        results["joining"][workload] = {"median_s": float(np.median(added)), "all_s": added}
    if rank == 0:
        Path(folder, "out.json").write_text(json.dumps(results))
    dist.destroy_process_group()


def measure_pair(quick):
    """Return what :func:`run_rank` measured."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, *(["--quick"] if quick else []), "--folder", folder]
        ranks = [subprocess.Popen([*command, "--rank", str(rank)]) for rank in range(2)]
        try:
            assert all(rank.wait(600) == 0 for rank in ranks)
        finally:
            for rank in ranks:
                rank.kill()
        return json.loads(Path(folder, "out.json").read_text())


def efficiency(cost, n, machines, network):
    """Return the share of M machines' time that is not lost, for `n` samples in all."""
    alone = cost["fixed_s"] + n * cost["per_sample_s"]
    together = (
        cost["fixed_s"]
        + cost["joining_s"]
        + n / machines * cost["per_sample_s"]
        + exchange_seconds(machines, cost["bytes"], *network)
    )
    return alone / machines / together


def samples_for(cost, machines, network, target=0.9):
    """Return how many samples a machine needs for an efficiency of `target`."""
    lost = cost["joining_s"] + exchange_seconds(machines, cost["bytes"], *network)
    # (fixed / M + n c) / (fixed + n c + lost) = target, for n a machine
    fixed = cost["fixed_s"]
    n = (target * (fixed + lost) - fixed / machines) / ((1 - target) * cost["per_sample_s"])
    return math.ceil(max(1.0, n))


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer figures, written nowhere")
    parser.add_argument("--output", help="file for the figures")
    parser.add_argument(
        "--speed", type=float, default=1.0, help="of a machine, next to one thread of this one"
    )
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank is not None:
        run_rank(options.rank, options.folder, options.quick)
        return
    torch.set_num_threads(1)
    costs = {name: measure_compute(name, options.quick) for name in WORKLOADS}
    pair = measure_pair(options.quick)
    print(f"{'':22}parameters   kB summed   us/sample   us fixed   us joining")
    for name, cost in costs.items():
        cost["joining_s"] = max(0.0, pair["joining"][name]["median_s"])
        print(
            f"{name:22}{cost['n_parameters']:10}{cost['bytes'] / 1e3:12.1f}"
            f"{1e6 * cost['per_sample_s']:12.2f}{1e6 * cost['fixed_s']:11.0f}"
            f"{1e6 * cost['joining_s']:13.0f}"
        )
    print("\nsum over two processes of this machine, by gloo")
    for length, seconds in pair["sum"].items():
        print(
            f"{length:>10} numbers  {1e6 * seconds['wall_min_s']:8.0f} us at best, "
            f"{1e6 * seconds['wall_median_s']:8.0f} median"
        )
    plan = {}
    for cost in costs.values():
        cost["per_sample_s"] /= options.speed
    for network, figures in NETWORKS.items():
        print(f"\n{network}: efficiency for a million samples on M machines; samples a machine")
        print(f"needs for 90 %\n{'':22}" + "".join(f"{m:>14}" for m in MACHINES))
        for name, cost in costs.items():
            rows = [
                (efficiency(cost, 10**6, m, figures), samples_for(cost, m, figures))
                for m in MACHINES
            ]
            plan.setdefault(network, {})[name] = {
                str(m): {"efficiency_1e6": e, "samples_for_90_percent": n}
                for m, (e, n) in zip(MACHINES, rows, strict=True)
            }
            print(f"{name:22}" + "".join(f"{e:6.0%} {n:>7}" for e, n in rows))
    if options.output or not options.quick:
        results = {"costs": costs, "pair": pair, "plan": plan}
        settings = {"networks": NETWORKS, "machines": MACHINES, "speed": options.speed}
        settings["load"] = os.getloadavg()
        path = options.output or "distributed.json"
        print("Figures in", save_results(path, results, settings=settings))


if __name__ == "__main__":
    main()
