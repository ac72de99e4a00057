"""How the time of an iteration grows with samples, tokens, widths and layers.

One size is varied at a time; the exponent is the slope of log(seconds) over log(size), beside the
same slope of the number of multiplications. Processor time, one thread, float32, pooling "mean".

    python benchmarks/bench_scaling.py            the recorded figures
    python benchmarks/bench_scaling.py --quick    fewer sizes, once

Only a full run writes ``benchmarks/results/scaling.json``; other runs write where ``--output``
says, or nowhere.
"""

import argparse
import os
import warnings

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from _report import save_results
from _timing import choose_n_iter, slope

from sklearn_restf import ResidualTransformerRegressor

BASE = {"N": 500, "T": 16, "D": 32, "d_ff": 64, "L": 1}
SIZES = {
    "N": [125, 250, 500, 1000, 2000, 4000],
    "T": [8, 16, 32, 64, 128],
    "D": [16, 32, 64, 128, 256],
    "d_ff": [32, 64, 128, 256, 512],
    "L": [2, 3, 4, 6, 8],  # one layer has a closed-form gradient, several go through autograd
}


def multiplications(N, T, D, d_ff, L):
    """Count the multiplications of a forward pass as the estimator orders them."""
    return N * T * L * (2 * D * D + 2 * T * D + D * d_ff) + N * T * (L - 1) * D * d_ff


def seconds(sizes, repeats, target):
    """Return the processor seconds of one iteration, repeated."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((sizes["N"], sizes["T"], sizes["D"]), dtype=np.float32)
    y = X[:, -1, 0] + X[:, :, 1].mean(1)

    def fit(n_iter):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # runs this short do not converge
            ResidualTransformerRegressor(
                d_ff=sizes["d_ff"],
                n_layers=sizes["L"],
                pooling="mean",
                learning_rate=1e-3,
                momentum=0.0,
                alpha=0.0,
                tol=None,
                diagnostics=False,
                random_state=0,
                max_iter=n_iter,
            ).fit(X, y)

    n_iter = choose_n_iter(fit, target, 2)
    return [slope(fit, n_iter)[0] for _ in range(repeats)]


def exponent(sizes, values):
    """Return the slope of log(values) over log(sizes)."""
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer sizes, once")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--output", help="file for the figures")
    options = parser.parse_args()
    torch.set_num_threads(1)
    results = {}
    print(f"base {BASE}\n{'':6}{'time':>8}{'products':>10}  ms per iteration")
    for name, sizes in SIZES.items():
        sizes = sizes[1:4] if options.quick else sizes
        problems = [BASE | {name: size} for size in sizes]
        repeats, target = (1, 0.1) if options.quick else (options.repeats, 0.3)
        times = [float(np.median(seconds(problem, repeats, target))) for problem in problems]
        counts = [multiplications(**problem) for problem in problems]
        results[name] = {
            "sizes": sizes,
            "cpu_s": times,
            "exponent_time": exponent(sizes, times),
            "exponent_multiplications": exponent(sizes, counts),
        }
        ratios = f"{results[name]['exponent_time']:8.2f}{exponent(sizes, counts):10.2f}"
        figures = ", ".join(f"{s}: {1e3 * t:.2f}" for s, t in zip(sizes, times, strict=True))
        print(f"{name:6}{ratios}  {figures}", flush=True)
    output = options.output or (None if options.quick else "scaling.json")
    if output:
        print("Figures in", save_results(output, results, settings={"base": BASE}))


if __name__ == "__main__":
    main()
