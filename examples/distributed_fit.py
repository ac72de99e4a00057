"""
Train one model in several processes
====================================

Each process holds a part of the samples, and all of them end with the model that one process
would have trained on all::

    torchrun --standalone --nproc-per-node 2 examples/distributed_fit.py

On two machines with four processes each, this on both::

    torchrun --nnodes 2 --nproc-per-node 4 --rdzv-backend c10d --rdzv-endpoint FIRST_MACHINE:29500 \
        examples/distributed_fit.py

``python examples/distributed_fit.py`` is the one process.
"""

import os
import tempfile
from datetime import timedelta
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from sklearn_restf import ResidualTransformerRegressor
from sklearn_restf.datasets import make_token_regression
from sklearn_restf.distributed import rows_of_rank


def join_the_others():
    """Join the process group if torchrun started this process; return the rank."""
    if "RANK" not in os.environ:
        return 0
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if cuda else "gloo", timeout=timedelta(minutes=5))
    return dist.get_rank()


def open_samples(folder):
    """Return memory maps of X and y: what a rank does not ask for is never read."""
    X, y = make_token_regression(3000, n_tokens=8, n_features=6, noise=0.1, random_state=0)
    np.save(folder / "X.npy", X.astype(np.float32))
    np.save(folder / "y.npy", y)
    return (np.load(folder / name, mmap_mode="r") for name in ("X.npy", "y.npy"))


def main():
    rank = join_the_others()
    with tempfile.TemporaryDirectory() as folder:
        X, y = open_samples(Path(folder))
        test = slice(2500, None)
        rows = rows_of_rank(2500)
        model = ResidualTransformerRegressor(max_iter=100, tol=None, random_state=0)
        model.fit(X[rows], y[rows])
        print(f"rank {rank} trained on rows {rows.start} to {rows.stop - 1}", flush=True)
        if rank == 0:  # every rank has the model
            print(f"loss {model.loss_:.6f} after {model.n_iter_} iterations")
            print(f"R^2 on the test set: {model.score(X[test], y[test]):.4f}")
            print(model.convergence_diagnostics_)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
