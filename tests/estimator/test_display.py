"""What is shown of an estimator is quick to make, short and free of errors."""

import time
import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from sklearn_restf.exceptions import DivergenceError
from tests.builders import SERIES, SERIES_YR, X2, X3, YC, YR, make_classifier, make_regressor


def _diverged():
    try:
        make_regressor(learning_rate=1e6).fit(X3, YR)
    except DivergenceError as error:
        return error.estimator
    raise AssertionError("did not diverge")


def _wide():
    X = np.random.default_rng(0).normal(size=(20, 3000))
    return pd.DataFrame(X, columns=[f"column number {i}" for i in range(3000)]), YR[:20]


_DISPLAYED = {
    "unfitted": make_regressor,
    "unfitted classifier": make_classifier,
    "table": lambda: make_regressor().fit(X2, YR),
    "classifier": lambda: make_classifier().fit(X2, YC),
    "series": lambda: make_regressor().fit(SERIES, SERIES_YR),
    "wide frame": lambda: make_regressor().fit(*_wide()),
    "without diagnostics": lambda: make_regressor(diagnostics=False).fit(X2, YR),
    "full diagnostics": lambda: make_regressor(diagnostics="full").fit(X2, YR),
    "constant": lambda: make_classifier().fit(X2, ["a"] * 64),
    "diverged": _diverged,
    "pipeline": lambda: make_pipeline(StandardScaler(), make_regressor()).fit(X2, YR),
}


@pytest.mark.parametrize("case", list(_DISPLAYED))
def test_display_is_quick_short_and_free_of_errors_case_h1(case):
    estimator = _DISPLAYED[case]()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        start = time.perf_counter()
        bundle = estimator._repr_mimebundle_()
        text = repr(estimator)
        elapsed = time.perf_counter() - start
    assert elapsed < 1.0
    assert len(bundle["text/html"]) < 500_000
    assert "ResidualTransformer" in text
    for dump in ("ModuleList", "ParameterDict", "tensor("):
        assert dump not in bundle["text/html"]
        assert dump not in text


@pytest.mark.parametrize("case", [c for c in _DISPLAYED if c != "pipeline"])
def test_every_public_attribute_can_be_looked_at_case_h1(case):
    """A property may be absent, but must not raise anything else."""
    estimator = _DISPLAYED[case]()
    for name in dir(estimator):
        if not name.startswith("_"):
            getattr(estimator, name, None)
    if not case.startswith("unfitted"):
        for name in ("module_", "net_", "loss_", "best_loss_", "loss_curve_", "n_iter_"):
            assert hasattr(estimator, name), name
        for name in ("validation_curve_", "learning_rate_", "device_", "convergence_diagnostics_"):
            assert hasattr(estimator, name), name
