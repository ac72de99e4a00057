"""The benchmark for GPUs runs where nothing optional is installed."""

import json
import os
import subprocess
import sys

import pytest

from tests.conftest import REPOSITORY

# everything that a machine with torch, numpy, pandas, scikit-learn and skorch may lack
RUN_WITHOUT_EXTRAS = """
import runpy, sys
from importlib.machinery import PathFinder

MISSING = {
    "dask", "distributed", "hypothesis", "latex2mathml", "matplotlib", "mypy", "myst_parser",
    "numpydoc", "onnx", "onnxruntime", "polars", "pooch", "pytest", "safetensors", "skops",
    "sphinx", "transformers", "xdist",
}

class Installed(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name.partition(".")[0] not in MISSING:
            return super().find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = Installed
sys.argv = sys.argv[1:]
sys.path.insert(0, sys.argv[0].rpartition("/")[0])
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def run(script, *options):
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-c", RUN_WITHOUT_EXTRAS, str(script), *options],
        cwd=REPOSITORY.parent,
        env={**environment, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_it_runs_with_the_required_packages_only():
    script = REPOSITORY / "benchmarks" / "bench_gpu.py"
    if not script.exists():
        pytest.skip("the benchmarks are not part of this installation")
    record = run(script, "--device", "cpu", "--quick")
    errors = [
        part["error"] for part in record.values() if isinstance(part, dict) and "error" in part
    ]
    assert not errors, errors[0]
    assert record["checks"]["all_ok"], record["checks"]["failed"]
    assert {check["against"] for check in record["checks"]["checks"]} == {"cpu", "step by step"}
    for name, row in record["peers"].items():
        assert row["median_s"]["ours"] > 0, name
        assert row["ratio"] > 0, name
    for name, row in record["sweep"].items():
        assert row["largest_score_difference"] < 1e-6, name
    assert record["matmul"]
