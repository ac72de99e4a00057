"""One rank of a process group, which runs the cases: rank, number of ranks, shared folder."""

import datetime
import os
import pickle
import signal
import sys
import warnings
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch.distributed as dist

from sklearn_restf import ResidualTransformerClassifierCV
from sklearn_restf._utils.process_group import ProcessGroup
from sklearn_restf.callbacks import TrainingCheckpoint
from sklearn_restf.distributed import process_group, single_process
from tests import distributed_cases as cases


def outcome(function):
    """Return what `function` returns, or the name and the words of its error."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            value = function()
        except BaseException as error:
            return type(error).__name__, str(error)
    value.warned = [str(warning.message) for warning in caught]
    return value


def resumed(rank, size, folder):
    """Fit, and go on from a checkpoint that only rank 0 has."""
    for max_iter in (8, 20):
        checkpoint = TrainingCheckpoint(folder / "checkpoint", every=2)
        model = cases.regressor(max_iter=max_iter, callbacks=[checkpoint] if rank == 0 else None)
        case = cases.SAME["table"]
        model.fit(cases.shard(case.X, rank, size), cases.shard(case.y, rank, size))
    return model


def disturbed(rank, exchange, what):
    """Fit, with something happening on one of two ranks before an exchange; what comes of it."""
    case = cases.Case(
        lambda: cases.regressor(max_iter=3, learning_rate="theory"),
        cases.X,
        cases.numbers(cases.X),
        cases.VALIDATION,
    )
    count = 0
    call = ProcessGroup._call

    def counted(group, function, *arguments):
        nonlocal count
        if function is not dist.broadcast_object_list:  # part of the exchange before
            count += 1
            if count == exchange and rank == cases.disturbed_rank(exchange):
                what()
        call(group, function, *arguments)

    with patch.object(ProcessGroup, "_call", counted):
        found = outcome(lambda: case.fit(rank, 2))
    return found if isinstance(found, tuple) else found.loss_curve_


def main(rank, size, folder):
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder / 'store'}",
        rank=rank,
        world_size=size,
        timeout=datetime.timedelta(seconds=60),
    )
    results = {}
    everything = cases.SAME | cases.EQUAL
    if size == 3:
        everything = {name: everything[name] for name in cases.ALSO_THREE}
    else:
        failing = {name: case for name, (case, *_) in cases.FAIL.items()}
        everything |= failing | {name: case for name, (case, _) in cases.END.items()}
    for name, case in everything.items():
        results[name] = outcome(lambda case=case: case.fit(rank, size))
    if size == 2:
        results["resumed"] = outcome(lambda: resumed(rank, size, folder))
        for what, exchange in cases.DISTURBED:
            results[what.__name__, exchange] = disturbed(rank, exchange, what)
        search = ResidualTransformerClassifierCV()
        results["search"] = outcome(lambda: search.fit(cases.X, cases.two_labels()))
        if rank == 0:
            with single_process():
                results["alone"] = outcome(cases.SAME["table"].fit)
    else:
        pair = dist.new_group([0, 2])
        with process_group(pair if rank != 1 else None):
            case = cases.SAME["classes"]
            if rank == 1:
                results["pair"] = outcome(case.fit)
            else:
                results["pair"] = outcome(lambda: case.fit(dist.get_rank(pair), 2))
    (folder / f"rank{rank}.pickle").write_bytes(pickle.dumps(results))
    if size == 2:  # rank 1 dies in the middle of a fit
        last = cases.do(lambda: os._exit(9))
        case = cases.Case(cases.regressor, cases.X, cases.numbers(cases.X), prepare=last)
        results["death"] = outcome(lambda: case.fit(rank, size))
        (folder / f"rank{rank}.pickle").write_bytes(pickle.dumps(results))
        os._exit(0)
    dist.destroy_process_group()


if __name__ == "__main__":
    # ignored where the tests run in the background of a shell
    signal.signal(signal.SIGINT, signal.default_int_handler)
    np.seterr(all="warn")
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
