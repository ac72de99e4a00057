"""What every optimisation is worth by itself: the same training with and without it.

Each is switched off by putting the plain way in its place, everything else unchanged; both ways
take turns in one process, on one thread. The ratio is that of the medians of processor time per
iteration (for the batched sweep, of a whole fit): 1.3 means that training takes 1.3 times as long
without. An optimisation that is not worth 1.1 on any workload has to go.

    python benchmarks/bench_tricks.py                  the recorded figures, about 6 minutes
    python benchmarks/bench_tricks.py --only softmax   some of them

Only a full run writes ``benchmarks/results/tricks.json``; other runs write where ``--output``
says, or nowhere.
"""

import argparse
import os
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from unittest import mock

os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"

import numpy as np
import torch
from _peers import WORKLOADS, Ours, Workload
from _report import save_results
from _timing import choose_n_iter, slope, timed
from bench_sweep import DATA_SETS, PARAMETERS, contenders

from sklearn_restf._data import batches
from sklearn_restf._model import forward as forward_module
from sklearn_restf._model import gradient as gradient_module
from sklearn_restf._model import matmul, pool
from sklearn_restf._training import objective
from sklearn_restf.model_selection import _sweep

REPEATS, SECONDS = 7, 0.3
plain_forward = forward_module.forward

# --- the plain ways -------------------------------------------------------------------


def pool_last_of_all(config, weights, x, mask=None, **strengths):
    """Compute every token of the last layer, then pool."""
    whole = replace(config, pooling="none", n_outputs=config.d_model)
    identity = torch.eye(config.d_model, dtype=x.dtype), torch.zeros(config.d_model, dtype=x.dtype)
    tokens = weights | dict(zip(("readout", "readout_bias"), identity, strict=True))
    F = plain_forward(whole, tokens, x, mask, **strengths)
    return pool(F, mask, config.pooling) @ weights["readout"] + weights["readout_bias"]


def torch_softmax(S, out):
    return torch.softmax(S, dim=-1, out=out)


def masked_slope(G_H, H, _threshold, grad_input):
    """Differentiate relu by a comparison and a product."""
    return torch.mul(G_H, (H > 0).to(H.dtype), out=grad_input)


def new_buffer(layer, _name, *shape):
    return layer.x.new_empty(shape)


def one_group(lengths, _config, _work):
    return [np.argsort(lengths, kind="stable")]


def never(*_arguments):
    return False


# --- what is measured -----------------------------------------------------------------


@dataclass(frozen=True)
class Trick:
    """An optimisation: what stands in for it, and the workloads it is meant for."""

    name: str
    off: tuple
    workloads: tuple
    common: tuple = ()  # replaced in both runs
    dtypes: tuple = ("float32",)


def of(owner, name, value):
    return partial(mock.patch.object, owner, name, value)


AUTOGRAD = (of(objective, "has_closed_form", never),)
MORE = [
    Workload("small table 442 x 4", 442, 4, 16, 64, "flatten", kind="table"),
]
WINDOWS = "windows 2000 x 24 x 21, "
BOTH = ("float32", "float64")
TRICKS = [
    Trick(
        "the gradient in closed form",
        AUTOGRAD,
        ("tiny", "table", WINDOWS + "last", WINDOWS + "mean", WINDOWS + "flatten"),
    ),
    Trick(
        "the last layer computes only what is pooled",
        (of(objective, "forward", pool_last_of_all),),
        (WINDOWS + "last", WINDOWS + "mean"),
        common=AUTOGRAD,
    ),
    Trick(
        "W_2 absorbed into the readout",
        (of(forward_module, "absorb_readout", never), of(gradient_module, "absorb_readout", never)),
        (WINDOWS + "flatten",),
    ),
    Trick(
        "the key matrix absorbed",
        (of(forward_module, "absorb_key", never),),
        ("table", WINDOWS + "mean"),
        common=AUTOGRAD,
    ),
    Trick(
        "softmax in passes over the whole array",
        (of(gradient_module, "row_softmax", torch_softmax),),
        ("tiny", "table", WINDOWS + "mean"),
        dtypes=BOTH,
    ),
    Trick(
        "relu differentiated in one pass",
        (of(gradient_module, "relu_backward", masked_slope),),
        ("tiny", WINDOWS + "mean", WINDOWS + "flatten"),
    ),
    Trick(
        "large products by oneDNN",
        (of(matmul, "_one_dnn", lambda: None),),
        (WINDOWS + "mean", "ragged"),
    ),
    Trick(
        "products by NumPy",
        (of(matmul, "_numpy_serves", never),),
        ("tiny", "small table", "table", WINDOWS + "mean"),
        dtypes=BOTH,
    ),
    Trick(
        "intermediate results written over those of the last iteration",
        (of(gradient_module.ClosedForm, "buffer", new_buffer),),
        ("tiny", "table", WINDOWS + "mean", WINDOWS + "flatten"),
    ),
    Trick(
        "ragged samples grouped by length",
        (of(batches, "groups_of_equal_length", one_group),),
        ("ragged",),
    ),
]
SWEEP = [
    Trick(
        "models side by side",
        (of(_sweep, "models_side_by_side", lambda *_: 1),),
        ("windows", "iris", "wine"),
    ),
]


def both_ways(trick, measure):
    """Return the samples of `measure` with and without, taken in turns."""
    samples = {"with": [], "without": []}
    for i in range(REPEATS):
        for way in ("with", "without") if i % 2 else ("without", "with"):
            with ExitStack() as stack:
                for replaced in trick.common + (trick.off if way == "without" else ()):
                    stack.enter_context(replaced())
                samples[way].append(measure())
    ratios = np.array(samples["without"]) / np.array(samples["with"])
    return {
        "with_s": float(np.median(samples["with"])),
        "without_s": float(np.median(samples["without"])),
        "ratio": float(np.median(samples["without"]) / np.median(samples["with"])),
        "ratio_min": float(ratios.min()),
        "ratio_max": float(ratios.max()),
    }


def training(trick, workload_name, dtype):
    """Measure one iteration of the estimator."""
    (workload,) = (w for w in WORKLOADS + MORE if w.name.startswith(workload_name))
    X, y = workload.data()
    contender = Ours(workload)
    fit = partial(contender.fit, X, y, dtype=dtype)
    n_iter = choose_n_iter(fit, SECONDS, 3)
    return both_ways(trick, lambda: slope(fit, n_iter)[0])


def sweep(trick, data_set):
    """Measure a whole batched search."""
    X, y = DATA_SETS[data_set]()
    search = contenders(data_set, 1, **PARAMETERS[data_set] | {"max_iter": 100})["batched"]
    return both_ways(trick, lambda: timed(lambda: search.fit(X, y))[0])


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="", help="optimisations whose name contains this")
    parser.add_argument("--output", help="where to write the JSON")
    options = parser.parse_args()
    torch.set_num_threads(1)
    runs = [(t, w, d, training) for t in TRICKS for w in t.workloads for d in t.dtypes]
    runs += [(t, w, "float64", lambda t, w, _: sweep(t, w)) for t in SWEEP for w in t.workloads]
    results = {}
    for trick, workload, dtype, measure in runs:
        if options.only not in trick.name:
            continue
        row = measure(trick, workload, dtype)
        results.setdefault(trick.name, {})[f"{workload}, {dtype}"] = row
        print(
            f"{trick.name:62}{workload:32}{dtype:9}{row['ratio']:6.2f} "
            f"({row['ratio_min']:.2f}..{row['ratio_max']:.2f})",
            flush=True,
        )
    if options.output or not options.only:
        print("Wrote", save_results(options.output or "tricks.json", results))


if __name__ == "__main__":
    main()
