"""Singular values and the ratio of smallest to largest, as drawn."""

import numpy as np
import pytest

from sklearn_restf import ResidualTransformerRegressor, diagnose
from sklearn_restf.inspection import SpectrumDisplay
from tests.inspection.conftest import FAST, labels


@pytest.mark.parametrize("kind", ["table", "windows", "ragged"])
def test_spectra_agree_with_the_diagnostics(request, kind):
    """The weights before training, drawn again, are those that fit started from."""
    X, y = request.getfixturevalue(kind)
    model = ResidualTransformerRegressor(n_layers=2, diagnostics="full", **FAST).fit(X, y)
    diagnostics = model.convergence_diagnostics_
    display = SpectrumDisplay.from_estimator(model, X)
    np.testing.assert_allclose(display.Z_start[-1], diagnostics.singular_values_start, atol=1e-12)
    np.testing.assert_allclose(display.Z_end[-1], diagnostics.singular_values_end, atol=1e-12)
    np.testing.assert_allclose(display.Z_start[..., 0], diagnostics.norm_per_sample, atol=1e-12)
    smallest = np.nanmin(display.attention_end, axis=2).min(axis=1)
    np.testing.assert_allclose(
        smallest, diagnostics.layers["final_attention_sigma_min"], atol=1e-12
    )
    assert [ax.get_title() for ax in display.axes_] == ["layer 1", "layer 2"]


def test_spectrum_lines_are_medians(windows):
    X, y = windows
    model = ResidualTransformerRegressor(n_layers=3, **FAST).fit(X, y)
    display = SpectrumDisplay.from_estimator(model, X, layers=[3, 1], n_samples=7)
    assert display.layers == [3, 1]
    assert display.Z_end.shape == (2, 7, 4)
    for i in range(2):
        for name, line in display.lines_[i].items():
            np.testing.assert_array_equal(line.get_xdata(), [1, 2, 3, 4])
            np.testing.assert_array_equal(
                line.get_ydata(), np.median(getattr(display, name)[i], axis=0)
            )
    assert labels(display.ax_) == [
        "Z, before training",
        "Z, after training",
        "Attn(X), before training",
        "Attn(X), after training",
    ]


def test_recorded_spectrum(windows):
    X, y = windows
    model = ResidualTransformerRegressor(n_layers=2, diagnostics_samples=9, **FAST).fit(X, y)
    display = SpectrumDisplay.from_estimator(model)
    assert display.layers == [2]
    assert display.Z_start.shape == display.Z_end.shape == (1, 9, 4)
    assert display.attention_start is None
    only_start = SpectrumDisplay.from_diagnostics(diagnose(ResidualTransformerRegressor(), X))
    assert only_start.Z_end is None


def test_spectrum_before_training_is_left_out_where_unknown(windows):
    model = ResidualTransformerRegressor(**{**FAST, "random_state": None}).fit(*windows)
    display = SpectrumDisplay.from_estimator(model, windows[0])
    assert display.Z_start is display.attention_start is None
    assert display.Z_end is not None


def test_exactly_collapsed_spectrum_can_be_drawn():
    """Rounding errors of an exact zero do not stretch the axis."""
    values = np.array([[[3.0, 1.0, 1e-17, 0.0]]])
    display = SpectrumDisplay(Z_end=values).plot()
    np.testing.assert_array_equal(display.lines_[0]["Z_end"].get_ydata(), [3.0, 1.0])
    SpectrumDisplay(Z_end=np.zeros((1, 2, 3))).plot().figure_.canvas.draw()


plt = pytest.importorskip("matplotlib.pyplot", reason="the extra plot is not installed")


def test_unusable_arguments_of_the_spectrum(windows):
    X, y = windows
    model = ResidualTransformerRegressor(diagnostics=False, n_layers=2, **FAST).fit(X, y)
    with pytest.raises(ValueError, match="No singular values were recorded"):
        SpectrumDisplay.from_estimator(model)
    with pytest.raises(ValueError, match=r"'layers' parameter .* numbers from 1 to 2. Got \[0\]"):
        SpectrumDisplay.from_estimator(model, X, layers=[0])
    with pytest.raises(ValueError, match="pass X to choose `layers`"):
        SpectrumDisplay.from_estimator(model, layers=[1])
    with pytest.raises(ValueError, match="fitted on samples of 6 tokens"):
        SpectrumDisplay.from_estimator(model, X[:, :3])
    with pytest.raises(ValueError, match=r"draws 2 panel\(s\).*got 1"):
        SpectrumDisplay.from_estimator(model, X, ax=plt.subplots()[1])
    with pytest.raises(ValueError, match=r"Z_end must have 3 dimension\(s\)"):
        SpectrumDisplay(Z_end=np.ones((3, 2)))
