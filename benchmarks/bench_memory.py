"""Peak memory of training on, and predicting for, a file several times larger than allowed.

A float32 memory map of 24-step windows of 21 columns (4 GB) is trained on and predicted for, each
in a process of its own, whose peak resident memory is recorded. The file is sparse: only one row
in fifty is written, so that it takes little of the disk; its other rows read as zeros, which cost
the same.

    python benchmarks/bench_memory.py             the recorded figures
    python benchmarks/bench_memory.py --quick     256 MB, in a minute

Only a full run writes ``benchmarks/results/memory.json``; other runs write where ``--output``
says, or nowhere.
"""

import argparse
import json
import os
import pickle
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

SHAPE = (24, 21)  # tokens, columns
LIMIT_GB = 1.0
ITERATIONS = 2
MODEL = {"pooling": "last", "max_iter": ITERATIONS, "tol": None, "random_state": 0}
# name -> (what the process does, with which parameters)
RUNS = {
    "fit, chunk_size=None": ("fit", {}),
    "fit, chunk_size=2000": ("fit", {"chunk_size": 2000}),
    "fit, early_stopping=True": ("fit", {"early_stopping": True}),
    "predict, chunk_size=None": ("predict", {}),
}


def resident_bytes():
    """Return the (current, peak) resident memory of this process."""
    status = Path("/proc/self/status")
    if not status.exists():
        raise SystemExit("This benchmark reads /proc/self/status and needs Linux.")
    fields = dict(line.split(":", 1) for line in status.read_text().splitlines())
    return tuple(1024 * int(fields[name].split()[0]) for name in ("VmRSS", "VmHWM"))


def samples(path):
    """Map the file; its targets are drawn."""
    n_samples = path.stat().st_size // (4 * int(np.prod(SHAPE)))
    X = np.memmap(path, dtype=np.float32, mode="r", shape=(n_samples, *SHAPE))
    return X, np.random.default_rng(1).standard_normal(n_samples)


def write_samples(path, gigabytes):
    """Write every fiftieth row, in one block; the rest of the file is a hole."""
    row = 4 * int(np.prod(SHAPE))
    n_samples = int(gigabytes * 1e9) // row
    rng = np.random.default_rng(0)
    with path.open("wb") as file:
        for _ in range(n_samples // 50 // 1000 + 1):
            file.write(rng.standard_normal((1000, *SHAPE), dtype=np.float32).tobytes())
        file.truncate(n_samples * row)


def child(task, path, model_path, parameters):
    """Fit or predict in this process; print what it took."""
    from sklearn_restf import ResidualTransformerRegressor

    X, y = samples(path)
    before, _ = resident_bytes()
    wall, cpu = time.perf_counter(), time.process_time()
    if task == "fit":
        model = ResidualTransformerRegressor(**MODEL | parameters).fit(X, y)
        result = model.loss_
    else:
        model = pickle.loads(model_path.read_bytes())
        result = float(model.set_params(**parameters).predict(X).std())
    taken = {"wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu}
    if task == "fit":
        model_path.write_bytes(pickle.dumps(model))
    print(
        json.dumps(
            {
                **taken,
                "file_bytes": path.stat().st_size,
                "n_samples": len(X),
                "rss_before_bytes": before,
                "rss_peak_bytes": resident_bytes()[1],
                "result": result,
            }
        )
    )


def measure(name, path, model_path):
    """Run one task in a process of its own."""
    task, parameters = RUNS[name]
    command = [sys.executable, __file__, "--child", task, str(path), str(model_path)]
    command += [json.dumps(parameters)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)


def print_table(results):
    print(f"{'':26}{'file GB':>9}{'peak GB':>9}{'import GB':>11}{'CPU s':>8}{'wall s':>8}")
    for name, row in results.items():
        print(
            f"{name:26}{row['file_bytes'] / 1e9:9.2f}{row['rss_peak_bytes'] / 1e9:9.2f}"
            f"{row['rss_before_bytes'] / 1e9:11.2f}{row['cpu_s']:8.1f}{row['wall_s']:8.1f}"
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a file of 256 MB")
    parser.add_argument("--gb", type=float, default=4.0, help="size of the file in 10^9 bytes")
    parser.add_argument("--folder", help="where to put the file; default: the temporary folder")
    parser.add_argument("--output", help="file for the figures")
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        task, path, model_path, parameters = options.child
        child(task, Path(path), Path(model_path), json.loads(parameters))
        return
    from _report import save_results

    gigabytes = 0.256 if options.quick else options.gb
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        path, model_path = Path(folder) / "X.float32", Path(folder) / "model.pickle"
        write_samples(path, gigabytes)
        results = {name: measure(name, path, model_path) for name in RUNS}
    print_table(results)
    losses = [row["result"] for name, row in results.items() if "fit, chunk_size" in name]
    if abs(losses[0] - losses[1]) > 1e-5 * losses[0]:
        raise SystemExit(f"The chunk size changed the result: losses {losses}.")
    worst = max(row["rss_peak_bytes"] for row in results.values())
    output = options.output or (None if options.quick or gigabytes < 4 else "memory.json")
    if output:
        settings = {"gigabytes": gigabytes, "shape": SHAPE, "model": MODEL, "limit_gb": LIMIT_GB}
        print("Figures in", save_results(output, results, settings=settings))
    if worst > LIMIT_GB * 1e9:
        raise SystemExit(f"Peak memory of {worst / 1e9:.2f} GB is above {LIMIT_GB} GB.")


if __name__ == "__main__":
    main()
