"""Fixtures and settings shared by all tests."""

import importlib.metadata
import os
import random
import sys
from pathlib import Path

# Workers that each start one thread per core slow each other down. To be set before torch loads.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# Drawings go to files only, whatever the machine's display.
os.environ.setdefault("MPLBACKEND", "agg")

import hypothesis
import numpy as np
import pytest
import sklearn
import torch

# Reproducible, and never failed by a slow machine; the randomised search has a profile of its own.
hypothesis.settings.register_profile("default", deadline=None, derandomize=True)
hypothesis.settings.load_profile("default")

REPOSITORY = Path(__file__).resolve().parent.parent
#: The private parts, from the roof to the ground; what is public stands above, but for the last.
PACKAGES = ["_estimator", "_diagnostics", "_training", "_model", "_data", "_utils", "exceptions"]


def pytest_report_header():
    packages = ("numpy", "scipy", "pandas", "scikit-learn", "skorch", "torch")
    # scikit-learn may be another than the installed one, put first on the path.
    versions = {name: importlib.metadata.version(name) for name in packages}
    versions["scikit-learn"] = sklearn.__version__
    return "versions: " + ", ".join(f"{name} {version}" for name, version in versions.items())


def pytest_runtest_setup(item):
    if item.get_closest_marker("gpu") and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")


def _global_state():
    """What no fit, prediction or test may leave changed."""
    return {
        "torch threads": torch.get_num_threads(),
        "torch default dtype": torch.get_default_dtype(),
        "torch gradients enabled": torch.is_grad_enabled(),
        "working folder": Path.cwd(),
        "scikit-learn configuration": sklearn.get_config(),
        "NumPy error handling": np.geterr(),
    }


def _restore_global_state(state):
    torch.set_num_threads(state["torch threads"])
    torch.set_default_dtype(state["torch default dtype"])
    torch.set_grad_enabled(state["torch gradients enabled"])
    os.chdir(state["working folder"])
    sklearn.set_config(**state["scikit-learn configuration"])
    np.seterr(**state["NumPy error handling"])


@pytest.fixture
def set_torch_threads():
    """Set the number of torch's threads; what it was comes back after the test."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.fixture
def without(monkeypatch):
    """Hide a package during the test, as if it were not installed."""
    return lambda name: monkeypatch.setitem(sys.modules, name, None)


@pytest.fixture(autouse=True)
def global_state_unchanged():
    """Fail a test that leaves global state changed, and put the state back for the next test."""
    before = _global_state()
    generators = random.getstate(), np.random.get_state(), torch.random.get_rng_state()
    yield
    after = _global_state()
    _restore_global_state(before)
    # Tests may seed the global generators to draw their data: restored without complaint.
    random.setstate(generators[0])
    np.random.set_state(generators[1])
    torch.random.set_rng_state(generators[2])
    changed = {name: (before[name], after[name]) for name in before if before[name] != after[name]}
    assert not changed, f"global state left changed (before, after): {changed}"


@pytest.fixture
def random_state_unchanged():
    """Fail a test during which a global random generator was drawn from or seeded."""
    before = np.random.get_state(), torch.random.get_rng_state()
    yield
    np.testing.assert_equal(np.random.get_state(), before[0], "NumPy's global generator was used")
    assert torch.equal(torch.random.get_rng_state(), before[1]), "torch's global generator was used"


@pytest.fixture(scope="session")
def real_data():
    """Folder of the real data sets; tests that need it are skipped where there is none."""
    folder = Path(os.environ.get("SKLEARN_RESTF_DATA", REPOSITORY.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"no real data in {folder}; name their folder in SKLEARN_RESTF_DATA")
    return folder
