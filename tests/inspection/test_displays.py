"""What all displays share: conventions, estimators inside others, pickling, refusals."""

import pickle

import numpy as np
import pytest
from sklearn.compose import TransformedTargetRegressor
from sklearn.ensemble import BaggingRegressor
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import Ridge
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from sklearn_restf import ResidualTransformerRegressor
from sklearn_restf.inspection import (
    AttentionDisplay,
    BetaSweepDisplay,
    ConvergenceDisplay,
    SpectrumDisplay,
)
from tests.inspection.conftest import FAST


@pytest.mark.parametrize("around", ["pipeline", "search", "target", "nested", "frozen"])
def test_estimators_inside_others(table, around):
    inner = ResidualTransformerRegressor(n_tokens=5, **FAST)
    outer = {
        "pipeline": make_pipeline(StandardScaler(), inner),
        "search": GridSearchCV(inner, {"d_ff": [8]}, cv=2),
        "target": TransformedTargetRegressor(inner, transformer=StandardScaler()),
        "nested": GridSearchCV(
            make_pipeline(StandardScaler(), inner),
            {"residualtransformerregressor__d_ff": [8]},
            cv=2,
        ),
        "frozen": FrozenEstimator(make_pipeline(StandardScaler(), inner).fit(*table)),
    }[around].fit(*table)
    X, _ = table
    assert len(ConvergenceDisplay.from_estimator(outer).loss) == 31
    assert SpectrumDisplay.from_estimator(outer, X).Z_end.shape == (1, 60, 5)
    assert AttentionDisplay.from_estimator(outer, X).attention.shape == (5, 5)


def test_displays_can_be_pickled(table, search):
    """Drawn or not: to be kept with a run, say."""
    X, y = table
    model = ResidualTransformerRegressor(max_iter=2, tol=None, random_state=0).fit(X, y)
    for display in (
        ConvergenceDisplay.from_estimator(model),  # whose axis spans few decades
        SpectrumDisplay.from_estimator(model, X),
        AttentionDisplay.from_estimator(model, X),
        BetaSweepDisplay.from_search(search),
    ):
        loaded = pickle.loads(pickle.dumps(display))
        assert vars(loaded).keys() == vars(display).keys()


def test_pipeline_passes_transformed_samples(table):
    """Samples come to the model as the steps before it leave them."""
    X, y = table
    pipeline = make_pipeline(StandardScaler(), ResidualTransformerRegressor(**FAST)).fit(X, y)
    scaled = pipeline[:-1].transform(X)
    np.testing.assert_array_equal(
        AttentionDisplay.from_estimator(pipeline, X).attention,
        AttentionDisplay.from_estimator(pipeline[-1], scaled).attention,
    )


def test_unusable_estimators(table):
    X, y = table
    with pytest.raises(NotFittedError):
        ConvergenceDisplay.from_estimator(ResidualTransformerRegressor())
    with pytest.raises(NotFittedError):
        ConvergenceDisplay.from_estimator(make_pipeline(ResidualTransformerRegressor()))
    with pytest.raises(TypeError, match=r"Expected a fitted .*; got Ridge\."):
        SpectrumDisplay.from_estimator(Ridge().fit(X, y), X)
    several = BaggingRegressor(ResidualTransformerRegressor(**FAST), n_estimators=2).fit(X, y)
    with pytest.raises(TypeError, match=r"Expected a fitted .*; got BaggingRegressor\."):
        ConvergenceDisplay.from_estimator(several)


plt = pytest.importorskip("matplotlib.pyplot", reason="the extra plot is not installed")

DISPLAYS = [
    ConvergenceDisplay([2.0, 1.0]),
    SpectrumDisplay(Z_end=np.ones((1, 1, 2))),
    AttentionDisplay(np.eye(2)),
    BetaSweepDisplay([0, 1], rates=[[0.5], [0.6]]),
]


@pytest.mark.parametrize("display", DISPLAYS, ids=lambda display: type(display).__name__)
def test_conventions(display):
    assert not hasattr(display, "ax_")
    assert display.plot() is display
    assert display.figure_ is display.ax_.figure
    _, ax = plt.subplots()
    assert display.plot(ax=ax).ax_ is ax
    del display.ax_, display.figure_
    display.__dict__.pop("axes_", None)


@pytest.mark.parametrize("display", DISPLAYS, ids=lambda display: type(display).__name__)
def test_missing_matplotlib_is_named(display, without):
    without("matplotlib.pyplot")
    with pytest.raises(ImportError, match=r"plot needs matplotlib.*'sklearn-restf\[plot\]'"):
        display.plot()


def test_drawing_touches_no_global_state(fitted, table, random_state_unchanged):
    before = dict(plt.rcParams)
    ConvergenceDisplay.from_estimator(fitted)
    SpectrumDisplay.from_estimator(fitted, table[0])
    AttentionDisplay.from_estimator(fitted, table[0])
    BetaSweepDisplay.from_estimators([fitted])
    assert dict(plt.rcParams) == before


@pytest.mark.parametrize(
    ("make", "arguments", "name"),
    [(ConvergenceDisplay, {"loss": [[1.0]]}, "loss"), (SpectrumDisplay, {}, "Z_start"),
     (ConvergenceDisplay, {"loss": [1.0], "rate_window": (0, 9)}, "rate_window"),
     (AttentionDisplay, {"attention": np.zeros((0, 0))}, "attention"),
     (SpectrumDisplay, {"Z_end": np.ones((2, 1, 1)), "Z_start": np.ones((1, 1, 1))}, "Z_end"),
     (BetaSweepDisplay, {"betas": 3.0}, "betas")],
)  # fmt: skip
def test_what_no_display_can_draw_is_named(make, arguments, name):
    with pytest.raises(ValueError, match=rf"\b{name}\b"):
        make(**arguments)
