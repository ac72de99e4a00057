"""Diagnostics in a notebook: a small table and a sparkline of the loss."""

from __future__ import annotations

import html
import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from sklearn_restf._diagnostics.convergence_diagnostics import ConvergenceDiagnostics

WIDTH, HEIGHT, MARGIN = 240, 48, 3  # of the sparkline, in pixels
NUMBER = 'style="text-align:right"'
WORDS = 'style="text-align:left"'

# quantities of Z: label, name of the field
SPECTRAL_ROWS = (
    ("σ<sub>min</sub>(Z)", "sigma_min"),
    ("‖Z‖", "norm"),
    ("σ<sub>min</sub>² / ‖Z‖²", "condition_ratio"),
    ("rank-1 residual", "rank1_residual"),
    ("effective rank", "effective_rank"),
)


def diagnostics_html(diagnostics: ConvergenceDiagnostics) -> str:
    """Return the HTML that notebooks show for diagnostics: static, without scripts."""
    rows = [
        table_row(label, getattr(diagnostics, name), getattr(diagnostics, f"final_{name}"))
        for label, name in SPECTRAL_ROWS
    ]
    if len(diagnostics.loss):
        rows.append(table_row("loss", diagnostics.loss[0], diagnostics.loss[-1]))
    head = f"<tr><td></td><th {NUMBER}>start</th><th {NUMBER}>end</th></tr>"
    parts = [
        "<div>",
        f"<table><thead>{head}</thead><tbody>{''.join(rows)}</tbody></table>",
        sparkline(diagnostics.loss),
        f"<table><tbody>{''.join(rate_rows(diagnostics))}</tbody></table>",
        f'<p style="max-width:60em">{html.escape(diagnostics.advice)}</p>',
        "</div>",
    ]
    return "".join(parts)


def table_row(label: str, *values: float) -> str:
    """Return a row of numbers."""
    cells = "".join(f"<td {NUMBER}>{number(value)}</td>" for value in values)
    return f"<tr><th {WORDS}>{label}</th>{cells}</tr>"


def rate_rows(diagnostics: ConvergenceDiagnostics) -> list[str]:
    """Return the rows of the rates, each with a remark, and how training ended."""
    start, end = diagnostics.rate_window
    measured = f"R² {diagnostics.rate_r2:.3f}, iterations {start} to {end}"
    rates = [
        ("measured rate", "rate", measured),
        ("predicted rate", "predicted_rate", "guaranteed by the theorem"),
    ]
    if len(diagnostics.predicted_curve):
        rates.append(("rate, linearised", "local_rate", ""))
    rows = []
    for label, name, remark in rates:
        value = getattr(diagnostics, name)
        if math.isnan(value):
            remark = diagnostics.reasons.get(name, "")
        rows.append(remark_row(label, number(value), remark))
    if len(diagnostics.loss):
        rows.append(remark_row("iterations", str(diagnostics.n_iter), diagnostics.stop_reason))
    return rows


def remark_row(label: str, value: str, remark: str) -> str:
    """Return a row of one number and words."""
    return (
        f"<tr><th {WORDS}>{label}</th><td {NUMBER}>{value}</td>"
        f"<td {WORDS}>{html.escape(remark)}</td></tr>"
    )


def number(value: float) -> str:
    """Return a number in four digits, a dash for NaN."""
    return "–" if math.isnan(value) else f"{value:.4g}"


def sparkline(loss: np.ndarray) -> str:
    """Return a picture of the loss on a log scale as inline SVG; nothing below two points."""
    shown = np.flatnonzero(np.isfinite(loss) & (loss > 0))
    if len(shown) < 2:
        return ""
    # a point for every pixel is all that can be seen
    shown = shown[np.unique(np.linspace(0, len(shown) - 1, WIDTH).astype(int))]
    heights = np.log(loss[shown])
    span = float(np.ptp(heights)) or 1.0
    x = MARGIN + (WIDTH - 2 * MARGIN) * shown / (len(loss) - 1)
    y = MARGIN + (HEIGHT - 2 * MARGIN) * (heights.max() - heights) / span
    points = " ".join(f"{px:.1f},{py:.1f}" for px, py in zip(x, y, strict=True))
    title = (
        f"loss on a log scale, from {number(float(loss[shown[0]]))} to "
        f"{number(float(loss[shown[-1]]))} in {len(loss) - 1} iterations"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" '
        f'viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{title}"><title>{title}</title>'
        f'<polyline points="{points}" fill="none" stroke="#0072B2" stroke-width="1.5" '
        'stroke-linejoin="round"/></svg>'
    )
