"""Scores, spectra and curves over the residual strength."""

import numpy as np
import pandas as pd
import pytest
from sklearn.experimental import enable_halving_search_cv  # noqa: F401
from sklearn.model_selection import GridSearchCV, HalvingGridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from sklearn_restf import ResidualTransformerClassifier, ResidualTransformerRegressor
from sklearn_restf.inspection import BetaSweepDisplay, ConvergenceDisplay, SpectrumDisplay
from sklearn_restf.model_selection import (
    ResidualTransformerClassifierCV,
    ResidualTransformerRegressorCV,
)
from tests.inspection.conftest import BETAS, FAST, labels


def errorbars(ax):
    """Return the (x, y) of the points, in order."""
    return sorted(tuple(container[0].get_xydata()[0]) for container in ax.containers)


def test_scores_of_a_search(search):
    display = BetaSweepDisplay.from_search(search, panels=["score"])
    np.testing.assert_array_equal(display.betas, BETAS)
    mean = search.cv_results_["mean_test_score"][[1, 2, 0]]
    assert [len(scores) for scores in display.scores] == [3, 3, 3]
    np.testing.assert_allclose(errorbars(display.ax_), np.column_stack([BETAS, mean]))
    assert display.ax_.get_ylabel().startswith("$R^2$")
    assert [tick.get_text() for tick in display.ax_.get_xticklabels()] == ["0", "0.5", "1"]


def test_search_keeps_the_curve_of_its_best_model_only(search):
    display = BetaSweepDisplay.from_search(search)
    assert display.panels_ == ["loss", "score"]
    best = BETAS.index(search.best_params_["residual_beta"])
    assert [len(curves) for curves in display.loss_curves] == [int(i == best) for i in range(3)]
    np.testing.assert_array_equal(
        display.loss_curves[best][0], search.best_estimator_.convergence_diagnostics_.loss
    )


def test_search_with_samples_shows_the_curve_of_every_beta(search, table):
    display = BetaSweepDisplay.from_search(search, *table)
    assert display.panels_ == ["loss", "rate", "score"]
    for beta, curves, rates, line in zip(
        BETAS, display.loss_curves, display.rates, display.ax_.lines, strict=True
    ):
        model = ResidualTransformerRegressor(beta, **FAST).fit(*table)
        np.testing.assert_array_equal(curves[0], model.convergence_diagnostics_.loss)
        np.testing.assert_array_equal(rates, [model.convergence_diagnostics_.rate])
        np.testing.assert_array_equal(line.get_ydata(), curves[0])
    assert labels(display.ax_) == [r"$\beta$ = 0", r"$\beta$ = 0.5", r"$\beta$ = 1"]


def test_search_over_more_than_beta_shows_the_best_of_the_others(table):
    X, y = table
    pipeline = make_pipeline(StandardScaler(), ResidualTransformerRegressor(**FAST))
    grid = {
        "residualtransformerregressor__residual_beta": [0.0, 1.0],
        "residualtransformerregressor__ffn_residual_beta": [0.1, 0.9],
        "residualtransformerregressor__max_iter": [2, 30],
    }
    search = GridSearchCV(pipeline, grid, cv=2, scoring="neg_mean_absolute_error").fit(X, y)
    display = BetaSweepDisplay.from_search(search, X, y)
    results = pd.DataFrame(search.cv_results_)
    best = results.groupby("param_residualtransformerregressor__residual_beta")["mean_test_score"]
    np.testing.assert_allclose([scores.mean() for scores in display.scores], best.max())
    assert [len(curves[0]) for curves in display.loss_curves] == [31, 31]
    assert display.axes_[-1].get_ylabel().startswith("neg mean absolute error")


def test_searches_of_other_kinds(table):
    X, y = table
    model, grid = ResidualTransformerRegressor(**FAST), {"residual_beta": [0.0, 0.5, 1.0]}
    several = GridSearchCV(
        model, grid, cv=2, scoring=["r2", "neg_mean_squared_error"], refit="r2"
    ).fit(X, y)
    display = BetaSweepDisplay.from_search(several)
    assert display.score_name == "r2"
    np.testing.assert_allclose(
        [scores.mean() for scores in display.scores], several.cv_results_["mean_test_r2"]
    )
    halving = HalvingGridSearchCV(
        model, grid, cv=2, factor=2, min_resources=20, random_state=0
    ).fit(X, y)
    display = BetaSweepDisplay.from_search(halving)
    best = BETAS.index(halving.best_params_["residual_beta"])
    assert display.scores[best].mean() == pytest.approx(halving.best_score_)
    classes = GridSearchCV(ResidualTransformerClassifier(**FAST), grid, cv=2).fit(X, y > 1)
    assert BetaSweepDisplay.from_search(classes).score_name == "accuracy"
    unfitted = GridSearchCV(model, grid, cv=2, refit=False).fit(X, y)
    assert BetaSweepDisplay.from_search(unfitted).panels_ == ["score"]
    for grids in ([grid, {"d_ff": [4]}], [{"d_ff": [4]}, grid]):
        among_others = GridSearchCV(model, grids, cv=2).fit(X, y)
        assert list(BetaSweepDisplay.from_search(among_others).betas) == BETAS


@pytest.mark.parametrize("kind", [ResidualTransformerRegressorCV, ResidualTransformerClassifierCV])
def test_cross_validated_estimators_show_every_fold(table, kind):
    X, y = table
    y = y > 1 if kind is ResidualTransformerClassifierCV else y
    model = kind([1.0, 0.0, 0.5], cv=3, **FAST).fit(X, y)
    display = BetaSweepDisplay.from_search(model)
    assert display.panels_ == ["loss", "rate", "score"]
    order = [1, 2, 0]
    for i, j in enumerate(order):
        for curve, seen in zip(display.loss_curves[i], model.cv_diagnostics_[j], strict=True):
            np.testing.assert_array_equal(curve, seen.loss)
    np.testing.assert_allclose(
        [scores.mean() for scores in display.scores], model.cv_results_["mean_test_score"][order]
    )
    assert len(ConvergenceDisplay.from_estimator(model).loss) == 31
    spectra = SpectrumDisplay.from_estimator(model, X)
    np.testing.assert_allclose(
        spectra.Z_start[0], model.convergence_diagnostics_.singular_values_start, atol=1e-12
    )


def test_estimators_of_equal_beta_are_summarised(table):
    X, y = table
    models = [
        ResidualTransformerRegressor(beta, max_iter=10 + seed, tol=None, random_state=seed)
        for beta in BETAS[::-1]
        for seed in range(3)
    ]
    models = [model.fit(X, y) for model in models]
    display = BetaSweepDisplay.from_estimators(
        models, X, y, panels=["loss", "rate", "ratio", "score"]
    )
    np.testing.assert_array_equal(display.betas, BETAS)
    first = models[6:]  # beta = 0
    curves = [model.convergence_diagnostics_.loss[:11] for model in first]
    np.testing.assert_array_equal(display.axes_[0].lines[0].get_ydata(), np.median(curves, axis=0))
    ratio = np.median([model.convergence_diagnostics_.condition_ratio for model in first])
    assert errorbars(display.axes_[2])[0][1] == ratio
    score = np.mean([model.score(X, y) for model in first])
    assert errorbars(display.axes_[3])[0][1] == pytest.approx(score)
    assert display.axes_[2].get_yscale() == "log"


plt = pytest.importorskip("matplotlib.pyplot", reason="the extra plot is not installed")


def test_mapping_of_estimators_and_given_axes(table):
    models = {beta: ResidualTransformerRegressor(beta, **FAST).fit(*table) for beta in BETAS}
    figure, axes = plt.subplots(1, 2)
    display = BetaSweepDisplay.from_estimators(models, ax=axes)
    assert display.panels_ == ["loss", "rate"]
    assert display.figure_ is figure
    assert list(display.axes_) == list(axes)
    np.testing.assert_array_equal(
        np.concatenate(display.rates),
        [model.convergence_diagnostics_.rate for model in models.values()],
    )


def test_unusable_arguments_of_the_sweep(search, table, fitted):
    X, y = table
    with pytest.raises(TypeError, match=r"got ResidualTransformerRegressor.*from_estimators"):
        BetaSweepDisplay.from_search(fitted)
    other = GridSearchCV(ResidualTransformerRegressor(**FAST), {"d_ff": [4, 8]}, cv=2).fit(X, y)
    with pytest.raises(ValueError, match="not over residual_beta; its parameters are 'd_ff'"):
        BetaSweepDisplay.from_search(other)
    with pytest.raises(ValueError, match="Pass both X and y"):
        BetaSweepDisplay.from_search(search, X)
    with pytest.raises(ValueError, match="Pass both X and y"):
        BetaSweepDisplay.from_estimators([fitted], X)
    with pytest.raises(ValueError, match="estimators is empty"):
        BetaSweepDisplay.from_estimators([])
    with pytest.raises(ValueError, match="panels must be among"):
        BetaSweepDisplay.from_search(search, panels=["speed"])
    with pytest.raises(ValueError, match=r"draws 2 panel\(s\).*got 1"):
        BetaSweepDisplay.from_search(search, ax=plt.subplots()[1])
    with pytest.raises(ValueError, match="There are 2 betas; rates has 1"):
        BetaSweepDisplay([0, 1], rates=[[0.5]])
