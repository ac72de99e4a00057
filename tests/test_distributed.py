"""Training one model in several processes."""

import json
import os
import pickle
import re
import subprocess
import sys

import numpy as np
import pytest
import torch.distributed as dist
from numpy.testing import assert_allclose, assert_array_equal

from sklearn_restf._utils.process_group import available_group
from sklearn_restf.distributed import rows_of_rank
from tests import distributed_cases as cases
from tests.conftest import REPOSITORY
from tests.tools import run_python

# generous, for a machine that is busy: what hangs is ended by the ranks' own timeout
pytestmark = pytest.mark.timeout(240)


def spawn(size, folder):
    """Run the cases in so many processes; a rank that hangs fails here."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPOSITORY)}
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.distributed_worker", str(rank), str(size), str(folder)],
            env=environment,
            cwd=REPOSITORY,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]
    try:
        errors = [process.communicate(timeout=200)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    files = [folder / f"rank{rank}.pickle" for rank in range(size)]
    assert all(file.exists() for file in files), "\n".join(errors)
    return [pickle.loads(file.read_bytes()) for file in files]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    found = {}

    def of(size):
        if size not in found:
            found[size] = spawn(size, tmp_path_factory.mktemp(f"ranks{size}"))
        return found[size]

    return of


def assert_same_on_all_ranks(models):
    first = models[0]
    for model in models:
        assert not isinstance(model, tuple), model
        for name, value in first._fitted.state.items():
            assert_array_equal(model._fitted.state[name], value)
        for name in ("loss_curve_", "validation_curve_", "n_iter_", "learning_rate_", "loss_"):
            assert getattr(model, name) == getattr(first, name), name
        assert model.stop_reason_ == first.stop_reason_
        assert_equal_diagnostics(model, first, 0)
        layout = model._fitted.layout
        if layout.mean is not None:
            assert_array_equal(layout.mean, first._fitted.layout.mean)
            assert_array_equal(layout.scale, first._fitted.layout.scale)


def assert_equal_diagnostics(model, other, tolerance):
    found, expected = (m.convergence_diagnostics_.to_dict() for m in (model, other))
    assert found["reasons"] == expected["reasons"]
    for name, value in expected.items():
        if isinstance(value, dict):
            parts = [(found[name][key], part) for key, part in value.items()]
        else:
            parts = [(found[name], value)]
        for left, right in parts:
            if not isinstance(right, str | dict | bool | type(None)):
                left, right = np.array(left, object), np.array(right, object)
                if tolerance == 0:
                    assert str(left) == str(right), name
                elif right.size and not isinstance(right.ravel()[0], str):
                    left, right = left.astype(float), right.astype(float)
                    scale = np.nanmax(np.abs(right), initial=1e-6)
                    assert_allclose(left, right, rtol=0, atol=100 * tolerance * scale, err_msg=name)


@pytest.mark.parametrize(
    ("size", "name"),
    [(2, name) for name in cases.SAME]
    + [pytest.param(3, name, marks=pytest.mark.slow) for name in cases.ALSO_THREE],
)
def test_the_model_of_several_ranks_is_that_of_one_process(results, size, name):
    case = cases.SAME[name]
    models = [rank[name] for rank in results(size)]
    assert_same_on_all_ranks(models)
    whole, model = case.fit(), models[0]
    tolerance = {"rtol": case.tolerance, "atol": case.tolerance}
    assert model.n_iter_ == whole.n_iter_
    assert model.stop_reason_ == whole.stop_reason_
    assert model.dtype_ == whole.dtype_
    assert_allclose(model.loss_curve_, whole.loss_curve_, **tolerance)
    assert_allclose(model.validation_curve_, whole.validation_curve_, **tolerance)
    for key, value in whole._fitted.state.items():
        assert_allclose(model._fitted.state[key], value, err_msg=key, **tolerance)
    if hasattr(whole, "classes_"):
        assert_array_equal(model.classes_, whole.classes_)
    predictions = [np.concatenate([*map(np.atleast_1d, m.predict(case.X))]) for m in (model, whole)]
    if predictions[1].dtype.kind == "f":
        assert_allclose(*predictions, **tolerance)
    else:
        assert_array_equal(*predictions)
    assert_equal_diagnostics(model, whole, case.tolerance)


@pytest.mark.parametrize("name", cases.EQUAL)
def test_all_ranks_have_the_same_model(results, name):
    models = [rank[name] for rank in results(2)]
    assert_same_on_all_ranks(models)
    assert models[0].loss_ < models[0].loss_curve_[0]


def test_early_stopping_ends_on_all_ranks_at_once(results):
    models = [rank["held-out fraction"] for rank in results(2)]
    assert models[0].stop_reason_ == "early_stopping"
    assert models[0].n_iter_ < 300


@pytest.mark.parametrize("name", cases.FAIL)
def test_no_rank_waits_for_one_that_fails(results, name):
    _, own, others = cases.FAIL[name]
    for (kind, words), (found, message) in zip(
        (others, own), (rank[name] for rank in results(2)), strict=True
    ):
        assert found == kind, message
        assert words in message


@pytest.mark.parametrize(("what", "exchange"), cases.DISTURBED)
def test_a_rank_may_fail_at_any_time(results, what, exchange):
    ranks = [rank[what.__name__, exchange] for rank in results(2)]
    if isinstance(ranks[0], list):  # an interrupt in training keeps what was reached
        assert what is cases.interrupt
        assert ranks[0] == ranks[1]
        return
    own = ranks.pop(cases.disturbed_rank(exchange))
    expected = "OSError" if what is cases.fail else "KeyboardInterrupt"
    assert own[0] == expected
    # in training all ranks are interrupted alike
    assert ranks[0][0] in ("RankError", "KeyboardInterrupt" if what is cases.interrupt else "")


@pytest.mark.parametrize("name", cases.END)
def test_all_ranks_end_when_one_wants_to(results, name):
    _, reason = cases.END[name]
    models = [rank[name] for rank in results(2)]
    assert_same_on_all_ranks(models)
    assert models[0].stop_reason_ == reason
    assert 3 <= models[0].n_iter_ <= 4
    whole = cases.SAME["table"].fit()
    assert_allclose(models[0].loss_curve_, whole.loss_curve_[: models[0].n_iter_], rtol=1e-9)
    warned = any("interrupted" in message for message in models[0].warned)
    assert warned == (reason == "interrupted")


def test_all_ranks_go_on_from_the_checkpoint_of_rank_0(results):
    models = [rank["resumed"] for rank in results(2)]
    assert_same_on_all_ranks(models)
    whole = cases.SAME["table"].fit()
    assert models[0].n_iter_ == 20
    assert_allclose(models[1].loss_curve_, whole.loss_curve_, rtol=1e-9)


def test_a_rank_that_dies_ends_the_fit(results):
    kind, message = results(2)[0]["death"]
    assert kind == "RankError"
    assert "Rank 0 lost contact to the others" in message


def test_a_fit_of_one_process_within_a_group(results):
    model, whole = results(2)[0]["alone"], cases.SAME["table"].fit()
    assert model.loss_curve_ == whole.loss_curve_


@pytest.mark.slow
def test_a_group_of_some_of_the_ranks(results):
    models, whole = [rank["pair"] for rank in results(3)], cases.SAME["classes"].fit()
    for model in models:
        assert_allclose(model.loss_curve_, whole.loss_curve_, rtol=1e-9)


def test_a_batched_search_is_for_one_process(results):
    for rank in results(2):
        kind, message = rank["search"]
        assert kind == "RuntimeError"
        assert "single_process()" in message


@pytest.mark.slow
def test_the_example_prints_the_same_in_one_process_and_in_two():
    script = "examples/distributed_fit.py"
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    alone, together = run_python(script), run_python(*torchrun, script)
    assert "rank 0 trained on rows 0 to 2499" in alone
    for rank, rows in enumerate(("0 to 1249", "1250 to 2499")):
        assert f"rank {rank} trained on rows {rows}" in together
    last = [
        [line for line in text.splitlines() if line.startswith(("loss 0", "R^2"))]
        for text in (alone, together)
    ]
    assert last[0] == last[1]
    assert len(last[0]) == 2


def test_a_group_of_one_is_one_process(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        assert rows_of_rank(10) == slice(0, 10)
        assert available_group() is None
    finally:
        dist.destroy_process_group()


def test_figures_of_the_scaling_plan_are_those_recorded():
    recorded = REPOSITORY / "benchmarks" / "results" / "distributed.json"
    results = json.loads(recorded.read_text(encoding="utf-8"))["results"]
    page = REPOSITORY / "docs" / "user_guide" / "several_machines.md"
    rows = re.findall(r"^\| .*%; .*$", page.read_text(encoding="utf-8"), re.MULTILINE)
    plan = results["plan"]
    assert len(rows) == len(results["costs"])
    for row, name in zip(rows, results["costs"], strict=True):
        figures = [*plan["10 Gbit/s"][name].values(), plan["1 Gbit/s"][name]["64"]]
        assert row.strip("| ").split(" | ")[1:] == [
            f"{found['efficiency_1e6']:.0%}; {found['samples_for_90_percent']:,}"
            for found in figures
        ]


@pytest.mark.parametrize(("n_samples", "size"), [(10, 3), (3, 3), (1000, 7)])
def test_rows_of_all_ranks_are_all_rows(n_samples, size):
    rows = [np.arange(n_samples)[rows_of_rank(n_samples, rank, size)] for rank in range(size)]
    assert_array_equal(np.concatenate(rows), np.arange(n_samples))
    counts = [len(part) for part in rows]
    assert max(counts) - min(counts) <= 1


def test_rows_of_rank_refuses_what_cannot_be():
    with pytest.raises(ValueError, match="rank=3 is not one of size=3"):
        rows_of_rank(10, 3, 3)
    with pytest.raises(ValueError, match="n_samples=2 is less than one sample for each of 3"):
        rows_of_rank(2, 0, 3)
