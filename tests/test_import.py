"""Importing the package is quick, quiet, and loads nothing optional."""

import json
import os
import subprocess
import sys

import pytest

from tests.conftest import REPOSITORY

OPTIONAL = ["matplotlib", "transformers", "dask", "distributed", "pooch", "polars", "onnx"]

# every public module that a user may import before deciding what to install
MODULES = [
    "sklearn_restf",
    "sklearn_restf.callbacks",
    "sklearn_restf.datasets",
    "sklearn_restf.exceptions",
    "sklearn_restf.inspection",
    "sklearn_restf.onnx",
    "sklearn_restf.preprocessing",
]


def run_python(code, *options):
    """Run code in a fresh process and return what it printed."""
    run = subprocess.run(
        [sys.executable, *options, "-c", code],
        cwd=REPOSITORY,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert run.stderr == ""
    return run.stdout


@pytest.fixture(scope="module")
def imported():
    """What every import loads, warns of and changes, watched in one fresh process."""
    return json.loads(run_python(WATCH.format(modules=MODULES, optional=OPTIONAL)))


WATCH = """
import json, os, random, sys, warnings
import numpy, pandas, scipy, skorch, sklearn.model_selection, torch  # what they do is theirs

def state():
    return {{
        "threads": torch.get_num_threads(),
        "dtype": str(torch.get_default_dtype()),
        "gradients": torch.is_grad_enabled(),
        "torch generator": torch.random.get_rng_state().tolist(),
        "NumPy generator": numpy.random.get_state()[1].tolist(),
        "Python generator": random.getstate(),
        "NumPy errors": numpy.geterr(),
        "scikit-learn configuration": sklearn.get_config(),
        "folder": os.getcwd(),
        "environment": dict(os.environ),
        "path": sys.path[:],
    }}

found = {{"optional": {{}}, "changed": {{}}}}
for module in {modules}:
    before = state()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        __import__(module)
    after = state()
    found["optional"][module] = [name for name in {optional} if name in sys.modules]
    found["changed"][module] = [name for name in before if after[name] != before[name]]
print(json.dumps(found))
"""


@pytest.mark.parametrize("module", MODULES)
def test_import_loads_nothing_optional(imported, module):
    assert imported["optional"][module] == []


@pytest.mark.parametrize("module", MODULES)
def test_import_leaves_global_state_alone(imported, module):
    assert imported["changed"][module] == []


def test_import_alone_loads_nothing_optional():
    """As a user does it, with nothing imported before."""
    loaded = run_python("import sys, sklearn_restf; print(*sys.modules)").split()
    assert not set(loaded) & set(OPTIONAL)


@pytest.mark.slow
def test_warnings_as_errors_from_the_first_line():
    """Python's own option; what the dependencies warn of is excepted only if they do alone."""
    try:
        run_python("import pandas, skorch, sklearn.utils, torch", "-W", "error")
    except AssertionError as error:
        pytest.skip(f"a dependency warns when imported: {str(error)[:200]}")
    assert run_python("import sklearn_restf", "-W", "error") == ""


@pytest.mark.slow
def test_import_is_quick():
    """2.5 s, three times that allowed; of the processor, since the machine may be busy."""
    code = "import time, sklearn_restf; print(time.process_time())"
    assert any(float(run_python(code)) < 7.5 for _ in range(3))


@pytest.mark.slow
def test_import_adds_little_to_its_dependencies():
    """Measured in one process, where it does not matter how busy the machine is otherwise."""
    code = (
        "import time\n"
        "start = time.process_time()\n"
        "import numpy, pandas, skorch, sklearn.model_selection, torch\n"
        "middle = time.process_time()\n"
        "import sklearn_restf\n"
        "print((time.process_time() - middle) / (middle - start))\n"
    )
    assert any(float(run_python(code)) < 0.5 for _ in range(3))


def test_a_first_fit_does_not_load_the_compiler():
    """It takes about a second, in every process that fits."""
    printed = run_python(
        "import sys; import numpy as np; from sklearn_restf import ResidualTransformerRegressor\n"
        "X = np.random.default_rng(0).normal(size=(20, 3))\n"
        "model = ResidualTransformerRegressor(max_iter=5, tol=None).fit(X, X[:, 0])\n"
        "model.predict(X); print('torch._dynamo' in sys.modules)"
    )
    assert printed.strip() == "False"


def test_import_is_free_of_warnings_case_d3():
    run_python("import sklearn_restf", "-W", "error")
