"""The reproduction of the paper's experiments: its own engine, its statistics, its commands."""

import importlib
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from tests.builders import make_config, make_module

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"


@pytest.fixture
def load(monkeypatch):
    """Import a module of the benchmarks' folder."""
    if not BENCHMARKS.is_dir():
        pytest.skip("the benchmarks are not part of this installation")
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module


@pytest.fixture
def reproduce(load, tmp_path):
    """Run the command and return what it wrote."""
    pytest.importorskip("matplotlib", reason="the figures need matplotlib")

    def run(*arguments):
        load("reproduce").main([*arguments, "--output", str(tmp_path)])
        return {path.stem: path for path in tmp_path.iterdir()}

    return run


# --- many models at once ------------------------------------------------------------------------


@pytest.mark.parametrize("pooling", ["none", "last", "mean"])
def test_stacked_models_are_the_packages(load, pooling):
    engine = load("_reproduce_engine")
    sizes = engine.Sizes(d=5, d_ff=7, d_qk=3)
    weights = engine.draw_weights(sizes, [0, 1])
    x = torch.from_numpy(np.random.default_rng(0).standard_normal((4, 6, 5)))
    beta = torch.tensor([0.0, 0.7], dtype=torch.float64)
    found = engine.predict(weights, x, beta, pooling)
    for model in range(2):
        config = make_config(
            n_tokens=6, d_model=5, n_outputs=1, d_qk=3, d_ff=7, pooling=pooling,
            residual_beta=float(beta[model]), ffn_residual_beta=1.0,
        )  # fmt: skip
        state = {f"blocks.0.{k}": v[model].numpy() for k, v in weights.items() if k != "readout"}
        state |= {"readout": weights["readout"][model].numpy(), "readout_bias": np.zeros(1)}
        module = make_module(config, state)
        with torch.no_grad():
            assert_allclose(found[model], module(x).flatten(), rtol=1e-10, atol=1e-12)
            Z = module.layers(x)[0].Z
        assert_allclose(engine.attention_output(weights, x, beta)[model], Z, atol=1e-12)


def test_stacked_training_is_gradient_descent_of_each(load):
    engine = load("_reproduce_engine")
    weights = engine.draw_weights(engine.Sizes(5, 7, 3), [0, 1, 2])
    rng = np.random.default_rng(0)
    x, y = (torch.from_numpy(rng.standard_normal(shape)) for shape in ((4, 6, 5), (4,)))
    beta, rate = torch.tensor([0.0, 0.5, 1.0]).double(), torch.tensor([0.01, 0.02, 1e6]).double()
    together = engine.train(weights, x, y, beta, rate, "last", 10)
    for model in range(2):
        one = {name: value[model : model + 1] for name, value in weights.items()}
        pick = slice(model, model + 1)
        alone = engine.train(one, x, y, beta[pick], rate[pick], "last", 10)
        assert_allclose(together[:, pick], alone)
        assert together[-1, model] < together[0, model]
    assert together[-1, 2] == np.inf  # diverged, and did no harm to the others


def test_stacked_jacobian_norms(load):
    engine = load("_reproduce_engine")
    weights = engine.draw_weights(engine.Sizes(5, 7, 3), [0, 1])
    x = torch.from_numpy(np.random.default_rng(0).standard_normal((4, 6, 5)))
    beta = torch.tensor([0.0, 1.0]).double()
    found = engine.jacobian_norms(weights, x, beta, "mean", n_iter=300)
    for model in range(2):
        leaves = {k: v[model : model + 1].clone().requires_grad_() for k, v in weights.items()}
        output = engine.predict(leaves, x, beta[model : model + 1], "mean")[0]
        rows = [
            torch.cat(
                [
                    g.flatten()
                    for g in torch.autograd.grad(o, list(leaves.values()), retain_graph=True)
                ]
            )
            for o in output
        ]
        expected = np.linalg.norm(torch.stack(rows).numpy(), 2) ** 2 / 4
        assert float(found[model]) == pytest.approx(expected, rel=1e-3)


# --- statistics and data ------------------------------------------------------------------------


def test_wilson_interval(load):
    interval = load("_reproduce_common").wilson_interval
    assert_allclose(interval(10, 10), [0.722, 1.0], atol=1e-3)
    assert_allclose(interval(5, 10), [0.237, 0.763], atol=1e-3)
    assert interval(0, 0) == [0.0, 1.0]


def test_plain_values_for_json(load):
    plain = load("_reproduce_common").plain
    value = {1: np.array([1.0, np.inf]), "a": (np.float32(2), np.nan)}
    assert plain(value) == {"1": [1.0, None], "a": [2.0, None]}


def test_windows_of_the_station(load, real_data):
    common = load("_reproduce_common")
    path = common.jena_file(str(real_data))
    x, y = common.jena_windows(path, 6, 5, unit_rows=True)
    assert x.shape == (6, 5, 21)
    assert_allclose(np.linalg.norm(x, axis=2), 1)
    assert_allclose([y.mean(), y.std()], [0, 1], atol=1e-12)
    x, y = common.jena_windows(path, 6, 9, per_token=True)
    assert y.shape == (6, 9)
    # the target after a row is the temperature six rows later
    values, column = common.hourly_series(path)
    correlation = np.corrcoef(y[:, 0], x[:, 6, column])[0, 1]
    assert correlation == pytest.approx(1)
    assert np.isfinite(values).all()


# --- the commands -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["jena-beta", "sst2-depth"])
def test_absent_data_are_named_and_skipped(reproduce, tmp_path, capsys, name):
    empty = tmp_path / "nothing"
    empty.mkdir()
    reproduce(name, "--quick", "--data", str(empty))
    printed = capsys.readouterr().out
    assert f"SKIPPED {name}" in printed
    assert "SKLEARN_RESTF_DATA" in printed
    assert str(empty) in printed


@pytest.mark.parametrize("name", ["rank-collapse", "certificate"])
def test_commands_without_data(reproduce, tmp_path, capsys, name):
    empty = tmp_path / "nothing"
    empty.mkdir()
    written = reproduce(name, "--quick", "--seeds", "2", "--data", str(empty))
    stem = f"reproduce_{name}_quick"
    record = json.loads((tmp_path / f"{stem}.json").read_text())
    assert record["settings"]["quick"] is True
    assert record["environment"]["versions"]["torch"]
    assert (tmp_path / f"{stem}.png").read_bytes().startswith(b"\x89PNG")
    assert stem in written
    assert "Jena left out" in capsys.readouterr().out


def test_the_collapse_depends_on_the_initialisation(load):
    """Fan-in weights do not collapse at any width; those of variance 1/d_qk do, like 1/d_qk."""
    collapse = load("_reproduce_collapse")
    x = np.random.default_rng(0).standard_normal((6, 8, 16))
    table = collapse.by_width(x, [256, 1024], [0, 1])
    fan_in = [row["rank1_residual"] for row in table["variance 1/d"]["beta 0"]]
    wide = [row["rank1_residual"] for row in table["variance 1/d_qk"]["beta 0"]]
    assert min(fan_in) > 0.5
    assert wide[1] < 0.1
    assert wide[1] == pytest.approx(wide[0] / 4, rel=0.2)
    kept = [row["rank1_residual"] for row in table["variance 1/d_qk"]["beta 1"]]
    assert min(kept) > 0.5


def test_the_collapse_with_depth_is_doubly_exponential(load):
    collapse = load("_reproduce_collapse")
    x = np.random.default_rng(0).standard_normal((6, 8, 16))
    depth = collapse.by_depth(x, 4, [0, 1, 2])
    logs = np.log(depth["beta 0"])
    assert logs[2] < 2.5 * logs[1] < 0
    assert depth["beta 1"][-1] > 0.1


@pytest.mark.timeout(600)
def test_larger_beta_is_ahead_on_jena(reproduce, real_data):
    """Per-token and last-token readouts, three seeds; nothing is asked of mean pooling."""
    written = reproduce("jena-beta", "--quick", "--data", str(real_data))
    results = json.loads(written["reproduce_jena-beta_quick"].with_suffix(".json").read_text())
    for name in "ABC":
        part = results["results"][name]["shared"]
        assert part["ahead_of_zero"]["1.0"][-1]["share"] == 1.0


@pytest.mark.timeout(600)
def test_deep_stacks_without_residual_connections_stall_on_sst2(reproduce, real_data):
    written = reproduce("sst2-depth", "--quick", "--data", str(real_data))
    results = json.loads(written["reproduce_sst2-depth_quick"].with_suffix(".json").read_text())
    for name, trivial in (("fan-in, squared loss", 0.5), ("fan-in, log loss", np.log(2))):
        arms = {(part["L"], part["residual"]): part for part in results["results"][name]}
        stalled, trained = (arms[10, residual] for residual in (False, True))
        assert np.median(stalled["shared step"]) > 0.9 * trivial
        assert np.median(trained["shared step"]) < 0.8 * trivial
        assert stalled["tokens start"] < 0.01 < 0.5 < trained["tokens start"]
