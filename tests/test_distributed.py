"""Training one model in several processes."""

import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from sklearn_restf.distributed import rows_of_rank
from tests import distributed_cases as cases

ROOT = Path(__file__).resolve().parent.parent


def spawn(size, folder):
    """Run the cases in so many processes; a rank that hangs fails here."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.distributed_worker", str(rank), str(size), str(folder)],
            env=environment,
            cwd=ROOT,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]
    try:
        errors = [process.communicate(timeout=100)[1] for process in processes]
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
    [(2, name) for name in cases.SAME] + [(3, name) for name in cases.ALSO_THREE],
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


def test_a_rank_that_dies_ends_the_fit(results):
    kind, message = results(2)[0]["death"]
    assert kind == "RankError"
    assert "Rank 0 lost contact to the others" in message


def test_a_fit_of_one_process_within_a_group(results):
    model, whole = results(2)[0]["alone"], cases.SAME["table"].fit()
    assert model.loss_curve_ == whole.loss_curve_


def test_a_group_of_some_of_the_ranks(results):
    models, whole = [rank["pair"] for rank in results(3)], cases.SAME["classes"].fit()
    for model in models:
        assert_allclose(model.loss_curve_, whole.loss_curve_, rtol=1e-9)


def test_a_batched_search_is_for_one_process(results):
    for rank in results(2):
        kind, message = rank["search"]
        assert kind == "RuntimeError"
        assert "single_process()" in message


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
