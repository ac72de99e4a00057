"""The project's own files agree with each other, and what the README promises runs."""

import re
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import sklearn_restf
from tests.conftest import REPOSITORY
from tests.tools import run_python


@pytest.fixture(scope="module")
def project():
    return tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.fixture(scope="module")
def pins():
    lines = (REPOSITORY / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return dict(line.split("==") for line in lines if not line.startswith("#"))


def test_one_version_everywhere(project):
    version = project["version"]
    assert sklearn_restf.__version__ == version
    citation = (REPOSITORY / "CITATION.cff").read_text(encoding="utf-8")
    assert re.search(r"^version: (.+)$", citation, re.MULTILINE)[1] == version
    assert f"## {version}" in (REPOSITORY / "CHANGELOG.md").read_text(encoding="utf-8")


def test_pins_satisfy_the_declared_bounds(project, pins):
    declared = [*project["dependencies"]]
    for extra, requirements in project["optional-dependencies"].items():
        declared += [] if extra == "all" else requirements
    for requirement in map(Requirement, declared):
        pin = pins[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(pin), f"{requirement} is pinned to {pin}"


def test_pins_are_exact_and_of_no_special_build(pins):
    for name, version in pins.items():
        assert re.fullmatch(r"[\d.]+(post\d+)?", version), f"{name}=={version}"


def test_every_dependency_has_a_lower_bound_to_test(project):
    printed = run_python("tools/lowest_requirements.py").split()
    assert [pin.split("==")[0] for pin in printed] == [
        Requirement(dependency).name for dependency in project["dependencies"]
    ]
    assert all(re.fullmatch(r"[\w-]+==[\d.]+", pin) for pin in printed)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_quickstart_prints_the_table_and_draws(tmp_path):
    printed = run_python(
        "examples/plot_0_quickstart.py", "--output", tmp_path, SKLEARN_RESTF_JENA=""
    )
    for column in ("sigma_min(Z)", "||Z||", "ratio", "rate", "train loss", "CV score"):
        assert column in printed
    for beta in ("0.00", "0.25", "0.50", "0.75", "1.00"):
        assert re.search(rf"^{beta} ", printed, re.MULTILINE)
    assert (tmp_path / "quickstart.png").stat().st_size > 10_000


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_quickstart_runs_on_weather(tmp_path, real_data):
    printed = run_python(
        "examples/plot_0_quickstart.py",
        *("--data", real_data / "jena_2020.csv.gz", "--output", tmp_path),
    )
    assert "Jena" in printed
    assert (tmp_path / "quickstart.png").stat().st_size > 10_000


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_defaults_benchmark_runs(tmp_path):
    printed = run_python(
        "benchmarks/bench_defaults.py",
        *("--quick", "--only", "iris", "--set", "max_iter=20", "--output", tmp_path / "out.json"),
    )
    assert "iris" in printed
    assert '"scikit-learn"' in (tmp_path / "out.json").read_text(encoding="utf-8")
