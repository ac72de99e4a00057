"""Importing the package is quick, quiet, and loads nothing optional."""

import json

import pytest

from tests.tools import run_python

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


def run_quietly(code, *options):
    return run_python(*options, "-c", code, quiet=True)


@pytest.fixture(scope="module")
def imported():
    """What every import loads, warns of and changes, watched in one fresh process."""
    return json.loads(run_quietly(WATCH.format(modules=MODULES, optional=OPTIONAL)))


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
    loaded = run_quietly("import sys, sklearn_restf; print(*sys.modules)").split()
    assert not set(loaded) & {*OPTIONAL, "tqdm.notebook"}


@pytest.mark.slow
def test_import_is_quick():
    """2.5 s, three times that allowed; of the processor, since the machine may be busy."""
    code = "import time, sklearn_restf; print(time.process_time())"
    assert any(float(run_quietly(code)) < 7.5 for _ in range(3))


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
    assert any(float(run_quietly(code)) < 0.5 for _ in range(3))


def test_a_first_fit_does_not_load_the_compiler():
    """It takes about a second, in every process that fits."""
    printed = run_quietly(
        "import sys; import numpy as np; from sklearn_restf import ResidualTransformerRegressor\n"
        "X = np.random.default_rng(0).normal(size=(20, 3))\n"
        "model = ResidualTransformerRegressor(max_iter=5, tol=None).fit(X, X[:, 0])\n"
        "model.predict(X); print('torch._dynamo' in sys.modules)"
    )
    assert printed.strip() == "False"


def test_import_is_free_of_warnings_case_d3():
    assert run_quietly("import sklearn_restf", "-W", "error") == ""
