"""Training curves with measured, guaranteed and predicted rates."""

import math

import numpy as np
import pytest

from sklearn_restf import (
    THEOREM_SETTINGS,
    ConvergenceDiagnostics,
    ResidualTransformerRegressor,
    diagnose,
)
from sklearn_restf.inspection import ConvergenceDisplay
from tests.inspection.conftest import FAST, labels


def test_convergence_of_an_estimator(fitted):
    display = ConvergenceDisplay.from_estimator(fitted, name="a table")
    diagnostics = fitted.convergence_diagnostics_
    np.testing.assert_array_equal(display.loss, diagnostics.loss)
    np.testing.assert_array_equal(display.line_.get_xdata(), np.arange(31))
    np.testing.assert_array_equal(display.line_.get_ydata(), diagnostics.loss)
    assert display.ax_.get_yscale() == "log"
    assert display.ax_.get_xlabel() == "iteration"
    assert display.ax_.get_title() == "a table"
    assert display.figure_ is display.ax_.figure
    assert display.predicted_rate_line_ is None  # momentum: the theorem says nothing


def test_measured_rate_is_drawn_over_its_window():
    loss = 2.0 + 3.0 * 0.9 ** np.arange(60)
    display = ConvergenceDisplay(loss, rate=0.9, rate_r2=1.0, rate_window=(20, 50)).plot()
    np.testing.assert_array_equal(display.rate_line_.get_xdata(), np.arange(20, 51))
    np.testing.assert_allclose(display.rate_line_.get_ydata(), loss[20:51])
    assert "measured rate 0.900 ($R^2$ = 1.00)" in labels(display.ax_)


def test_measured_rate_of_a_fit_follows_its_loss(fitted):
    display = ConvergenceDisplay.from_estimator(fitted)
    start, end = fitted.convergence_diagnostics_.rate_window
    assert math.isfinite(display.rate)
    np.testing.assert_allclose(
        display.rate_line_.get_ydata(), display.loss[start : end + 1], rtol=0.1
    )


def test_guarantee_starts_at_the_first_loss_and_falls_at_its_rate(windows):
    X, _ = windows
    model = ResidualTransformerRegressor(
        **{**THEOREM_SETTINGS, "max_iter": 20}, pooling="none", d_ff=64, random_state=0
    ).fit(X[:4], X[:4, :, 0])
    diagnostics = model.convergence_diagnostics_
    display = ConvergenceDisplay.from_diagnostics(diagnostics)
    line = display.predicted_rate_line_.get_ydata()
    assert line[0] == diagnostics.loss[0]
    np.testing.assert_allclose(line[1:] / line[:-1], diagnostics.predicted_rate)
    assert (line >= diagnostics.loss - 1e-12).all()  # a guarantee
    [written] = [text for text in labels(display.ax_) if text.startswith("guaranteed rate ")]
    written = float(written.removeprefix("guaranteed rate "))
    np.testing.assert_allclose(1 - written, 1 - diagnostics.predicted_rate, rtol=0.05)
    np.testing.assert_allclose(display.floor_line_.get_ydata(), diagnostics.collapse_floor)


def test_linearised_prediction_and_forecast(table):
    model = ResidualTransformerRegressor(diagnostics="full", **FAST).fit(*table)
    diagnostics = model.convergence_diagnostics_
    display = ConvergenceDisplay.from_estimator(model)
    np.testing.assert_array_equal(display.predicted_line_.get_ydata(), diagnostics.predicted_curve)
    np.testing.assert_array_equal(display.forecast_line_.get_xdata(), 30 + np.arange(31))
    np.testing.assert_array_equal(display.forecast_line_.get_ydata(), diagnostics.forecast)
    bare = display.plot(show_rate=False, show_prediction=False)
    assert bare.rate_line_ is bare.predicted_line_ is bare.forecast_line_ is None


def test_prediction_without_a_fit(table):
    found = diagnose(ResidualTransformerRegressor(**FAST), *table, full=True)
    display = ConvergenceDisplay.from_diagnostics(found)
    assert len(display.predicted_line_.get_ydata()) == 31
    assert len(display.line_.get_ydata()) == 0


def test_validation_loss_belongs_to_the_iterations_of_the_last_fit(table):
    model = ResidualTransformerRegressor(early_stopping=True, warm_start=True, **FAST)
    model.fit(*table).fit(*table)
    display = ConvergenceDisplay.from_estimator(model)
    line = display.validation_line_
    np.testing.assert_array_equal(line.get_xdata(), np.arange(1, model.n_iter_ + 1))
    np.testing.assert_array_equal(line.get_ydata(), model.validation_curve_[-model.n_iter_ :])


@pytest.mark.parametrize(
    "loss", [[], [1.0], [1.0, math.nan, 0.1], [1.0, 0.0], [math.inf, 1.0]], ids=str
)
def test_short_and_broken_histories(loss):
    diagnostics = ConvergenceDiagnostics(loss=np.array(loss, dtype=float))
    display = ConvergenceDisplay.from_diagnostics(diagnostics)
    display.figure_.canvas.draw()
    drawn = display.line_.get_ydata()
    assert len(drawn) == len(loss)
    assert not np.isinf(drawn).any()


plt = pytest.importorskip("matplotlib.pyplot", reason="the extra plot is not installed")


def test_several_displays_on_one_axes(fitted, table):
    other = ResidualTransformerRegressor(0.5, **FAST).fit(*table)
    _, ax = plt.subplots()
    for model, label in ((fitted, "1"), (other, "0.5")):
        ConvergenceDisplay.from_estimator(model, ax=ax, show_rate=False, label=label)
    assert labels(ax) == ["1", "0.5"]
    colors = [line.get_color() for line in ax.lines]
    assert len(set(colors)) == 2


@pytest.mark.parametrize(
    ("rate", "text"),
    [(0.9, "0.900"), (0.5, "0.500"), (0.98765, "0.988"), (0.999876, "0.99988"), (1.0, "1")],
)
def test_rates_are_written_with_two_digits_of_their_distance_from_one(rate, text):
    display = ConvergenceDisplay([1.0, 0.5], predicted_rate=rate).plot()
    assert f"guaranteed rate {text}" in labels(display.ax_)


@pytest.mark.parametrize(
    "loss", [[3e299, 2.0, 1e-300], [3.0, np.inf, 1.0], [1e308, 1e-308, 0.0]], ids=str
)
@pytest.mark.parametrize("rate", [0.5, 1e300, 0.0])
def test_losses_and_rates_at_the_edge_of_range_are_drawn(loss, rate):
    pyplot = pytest.importorskip("matplotlib.pyplot", reason="the extra plot is not installed")
    display = ConvergenceDisplay(loss, rate=rate, rate_window=(0, 2), predicted_rate=rate)
    display.plot().figure_.draw_without_rendering()
    pyplot.close("all")
