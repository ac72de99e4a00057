"""What all displays share: matplotlib on demand, axes, colours and number formats."""

from __future__ import annotations

import math
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np

# Okabe and Ito's colours, told apart with any colour vision
BLUE, VERMILLION, GREEN, ORANGE = "#0072B2", "#D55E00", "#009E73", "#E69F00"
# what a log scale can show: its margins, a twentieth of the decades shown, must be in float64 too
SMALLEST, LARGEST = 1e-270, 1e270


def require_pyplot(display: Any) -> Any:
    """Import pyplot, or say how to get it."""
    try:
        return import_module("matplotlib.pyplot")
    except ImportError as error:
        raise ImportError(
            f"{type(display).__name__}.plot needs matplotlib: pip install 'sklearn-restf[plot]'."
        ) from error


def single_axes(display: Any, ax: Any, **figure_options: Any) -> Any:
    """Return `ax`, or the axes of a new figure."""
    pyplot = require_pyplot(display)
    check_axes(ax)
    if ax is None:
        _, ax = pyplot.subplots(layout="constrained", **figure_options)
    return ax


def panel_axes(
    display: Any, ax: Any, n_panels: int, *, panel_size: tuple[float, float], max_columns: int = 4
) -> np.ndarray:
    """Return one axes for each panel: those given, or those of a new figure."""
    pyplot = require_pyplot(display)
    check_axes(ax)
    if ax is None:
        n_columns = min(n_panels, max_columns)
        n_rows = -(-n_panels // n_columns)
        figure, axes = pyplot.subplots(
            n_rows,
            n_columns,
            figsize=(panel_size[0] * n_columns, panel_size[1] * n_rows),
            layout="constrained",
            squeeze=False,
        )
        axes = axes.ravel()
        for unused in axes[n_panels:]:
            figure.delaxes(unused)
        return axes[:n_panels]
    axes = np.array(ax, dtype=object).ravel()
    if len(axes) != n_panels:
        raise ValueError(
            f"{type(display).__name__}.plot draws {n_panels} panel(s) and needs as many axes in "
            f"`ax`; got {len(axes)}."
        )
    return axes


def check_axes(ax: Any) -> None:
    """Raise for anything but axes, several of them, or None."""
    for one in [] if ax is None else np.array(ax, dtype=object).ravel():
        if not hasattr(one, "get_yscale"):
            raise TypeError(f"ax must be matplotlib axes, got {type(one).__name__}.")


def log_scale(ax: Any) -> None:
    """Make the vertical axis logarithmic, with plain numbers where it spans few decades."""
    ax.set_yscale("log")
    low, high = ax.get_ylim()
    if high > 50 * low:
        return
    ticker = import_module("matplotlib.ticker")
    between = (2, 3, 5) if high > 5 * low else (1.5, 2, 3, 4, 5, 6, 7, 8, 9)
    ax.yaxis.set_minor_locator(ticker.LogLocator(subs=between))
    for set_formatter in (ax.yaxis.set_major_formatter, ax.yaxis.set_minor_formatter):
        set_formatter(ticker.StrMethodFormatter("{x:g}"))


def beta_colors(betas: Sequence[float] | np.ndarray) -> list[Any]:
    """Return one colour for each value, dark to light; the lightest are left out."""
    colormap = import_module("matplotlib").colormaps["viridis"]
    return [colormap(0.88 * i / max(1, len(betas) - 1)) for i in range(len(betas))]


def format_rate(rate: float) -> str:
    """Write a rate with two digits of its distance from 1."""
    distance = abs(1.0 - rate)
    if not math.isfinite(rate) or distance == 0 or distance > 1e6:
        return f"{rate:g}"
    decimals = min(12, max(3, 1 - math.floor(math.log10(distance))))
    return f"{rate:.{decimals}f}"


def finite(*values: float) -> bool:
    """Tell whether all values are numbers."""
    return all(math.isfinite(value) for value in values)


def positive(values: np.ndarray) -> np.ndarray:
    """Return the values that a log scale can show with a margin, NaN for the others."""
    return np.where((values >= SMALLEST) & (values <= LARGEST), values, np.nan)
