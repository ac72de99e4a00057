"""Looking at an estimator builds nothing, and loads nothing."""

import subprocess
import sys

import pytest

from tests.builders import X2D, YR, make_regressor

PROGRAM = """
import inspect, rlcompleter, sys
import numpy as np
import torch
from sklearn_restf import {name}
X = np.random.default_rng(0).normal(size=(40, 4))
model = {name}(max_iter=3, tol=None, random_state=0).fit(X, X[:, 0] > 0)
loaded = set(sys.modules)
torch.nn.Module.__init__ = None  # neither a module nor a net can be built
dir(model)
[getattr(model, name) for name in dir(model)]
inspect.getmembers(model)
rlcompleter.Completer({{"model": model}}).attr_matches("model.")
repr(model), model._repr_mimebundle_(), model._repr_html_()
print(*[name for name in set(sys.modules) - loaded if name.partition(".")[0] == "torch"])
"""


@pytest.mark.parametrize(
    "name", ["ResidualTransformerClassifier", "ResidualTransformerRegressorCV"]
)
def test_a_look_at_a_fitted_estimator_builds_and_loads_nothing(name):
    command = [sys.executable, "-W", "error", "-c", PROGRAM.format(name=name)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == ""


def test_views_are_there_once_fitted():
    model = make_regressor(max_iter=2)
    for name in ("module_", "net_", "callbacks_"):
        assert not hasattr(model, name)
    assert "callbacks_" not in dir(model)
    model.fit(X2D, YR)
    for name in ("module_", "net_", "callbacks_"):
        assert hasattr(model, name)
    assert {"callbacks_", "loss_curve_", "predict", "fit"} <= set(dir(model))
