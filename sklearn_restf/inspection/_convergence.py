"""The loss of a fit, its measured rate, and what was predicted."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from sklearn_restf._diagnostics.convergence_diagnostics import ConvergenceDiagnostics
from sklearn_restf._utils.validation import check_parameters, integer, sequence_of
from sklearn_restf.inspection._display_arguments import DIAGNOSTICS, number, numbers
from sklearn_restf.inspection._drawing import (
    GREEN,
    ORANGE,
    VERMILLION,
    finite,
    format_rate,
    log_scale,
    positive,
    single_axes,
)
from sklearn_restf.inspection._fitted_inside import unwrap


class ConvergenceDisplay:
    """Training loss by iteration on a log scale, with its measured and predicted rates.

    It is recommended to use :meth:`from_estimator` or :meth:`from_diagnostics`. All parameters
    are stored as attributes.

    Parameters
    ----------
    loss : array-like of shape (n_iter + 1,)
        Training objective (loss plus penalty) before every iteration, and at the end.
    validation_loss : array-like of shape (n_iter,), default=None
        Loss on the validation samples after every iteration.
    rate : float, default=nan
        Measured contraction factor of the excess loss per iteration.
    rate_r2 : float, default=nan
        R^2 of its fit.
    rate_window : tuple of int, default=(0, 0)
        First and last iteration it was measured on.
    predicted_rate : float, default=nan
        Contraction factor that the convergence theorem guarantees.
    predicted_curve : array-like, default=()
        Objective predicted by the model linearised at the initial parameters.
    forecast : array-like, default=()
        Objective predicted for the iterations after the last.
    floor : float, default=nan
        Loss that cannot be passed as long as all tokens of a sample look alike.
    name : str, default=None
        What was trained; the title.

    Attributes
    ----------
    ax_ : matplotlib Axes
        The axes with the curves.
    figure_ : matplotlib Figure
        Its figure.
    line_ : matplotlib Line2D
        The training objective.
    rate_line_, predicted_rate_line_, predicted_line_, forecast_line_, validation_line_, \
floor_line_ : matplotlib Line2D or None
        The other curves; None for those that are not drawn.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn_restf import ResidualTransformerRegressor
    >>> from sklearn_restf.inspection import ConvergenceDisplay
    >>> X = np.random.default_rng(0).normal(size=(40, 6))
    >>> model = ResidualTransformerRegressor(max_iter=50, tol=None, random_state=0)
    >>> display = ConvergenceDisplay.from_estimator(model.fit(X, X[:, 0]))
    >>> display.ax_.get_yscale()
    'log'
    """

    def __init__(
        self,
        loss: ArrayLike,
        *,
        validation_loss: ArrayLike | None = None,
        rate: float = math.nan,
        rate_r2: float = math.nan,
        rate_window: tuple[int, int] = (0, 0),
        predicted_rate: float = math.nan,
        predicted_curve: ArrayLike = (),
        forecast: ArrayLike = (),
        floor: float = math.nan,
        name: str | None = None,
    ) -> None:
        self.loss = numbers(loss, "loss")
        self.validation_loss = (
            None if validation_loss is None else numbers(validation_loss, "validation_loss")
        )
        self.rate = number(rate, "rate")
        self.rate_r2 = number(rate_r2, "rate_r2")
        iteration = integer(0, max(0, len(self.loss) - 1))
        words = f"two iterations of the {len(self.loss)} losses"
        check_parameters(
            type(self).__name__,
            {"rate_window": rate_window},
            {"rate_window": [sequence_of(iteration, words, length=2)]},
        )
        self.rate_window = (int(rate_window[0]), int(rate_window[1]))
        self.predicted_rate = number(predicted_rate, "predicted_rate")
        self.predicted_curve = numbers(predicted_curve, "predicted_curve")
        self.forecast = numbers(forecast, "forecast")
        self.floor = number(floor, "floor")
        self.name = name

    @classmethod
    def from_estimator(
        cls, estimator: Any, *, ax: Any = None, name: str | None = None, **kwargs: Any
    ) -> ConvergenceDisplay:
        """Draw the convergence of a fitted estimator.

        Parameters
        ----------
        estimator : estimator
            A fitted estimator of this package, or a pipeline or search that holds one.
        ax : matplotlib Axes, default=None
            Axes to draw on; None makes a figure.
        name : str, default=None
            What was trained; the title.
        **kwargs : dict
            Passed to :meth:`plot`.

        Returns
        -------
        display : ConvergenceDisplay
            The display.
        """
        model, _ = unwrap(estimator)
        diagnostics = model.convergence_diagnostics_
        validation = model.validation_curve_[-model.n_iter_ :] if model.n_iter_ else []
        display = cls._of(diagnostics, name, validation_loss=validation or None)
        return display.plot(ax, **kwargs)

    @classmethod
    def from_diagnostics(
        cls,
        diagnostics: ConvergenceDiagnostics,
        *,
        ax: Any = None,
        name: str | None = None,
        **kwargs: Any,
    ) -> ConvergenceDisplay:
        """Draw the convergence that diagnostics tell of.

        Parameters
        ----------
        diagnostics : ConvergenceDiagnostics
            Of a fit, or of :func:`~sklearn_restf.diagnose` with ``full=True``, which predicts.
        ax : matplotlib Axes, default=None
            Axes to draw on; None makes a figure.
        name : str, default=None
            What was trained; the title.
        **kwargs : dict
            Passed to :meth:`plot`.

        Returns
        -------
        display : ConvergenceDisplay
            The display.
        """
        check_parameters(cls.__name__, {"diagnostics": diagnostics}, {"diagnostics": [DIAGNOSTICS]})
        return cls._of(diagnostics, name).plot(ax, **kwargs)

    @classmethod
    def _of(
        cls, diagnostics: ConvergenceDiagnostics, name: str | None, **more: Any
    ) -> ConvergenceDisplay:
        return cls(
            diagnostics.loss,
            rate=diagnostics.rate,
            rate_r2=diagnostics.rate_r2,
            rate_window=diagnostics.rate_window,
            predicted_rate=diagnostics.predicted_rate,
            predicted_curve=diagnostics.predicted_curve,
            forecast=diagnostics.forecast,
            floor=diagnostics.collapse_floor,
            name=name,
            **more,
        )

    @np.errstate(over="ignore", invalid="ignore")  # what is not finite is not drawn
    def plot(
        self,
        ax: Any = None,
        *,
        name: str | None = None,
        show_rate: bool = True,
        show_prediction: bool = True,
        **kwargs: Any,
    ) -> ConvergenceDisplay:
        """Draw the curves.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            Axes to draw on; None makes a figure. Several displays can share one.
        name : str, default=None
            Title; None takes that of the display.
        show_rate : bool, default=True
            Whether to draw the exponential with the measured rate over its window. Its height and
            its asymptote are fitted to the loss, for the drawing only.
        show_prediction : bool, default=True
            Whether to draw what was predicted: the theorem's guarantee, the linearised model, the
            forecast.
        **kwargs : dict
            Passed to matplotlib's ``plot`` for the loss, such as ``color`` and ``label``.

        Returns
        -------
        display : ConvergenceDisplay
            The display itself.
        """
        ax = single_axes(self, ax, figsize=(6.4, 4.2))
        self.ax_, self.figure_ = ax, ax.figure
        n_iter = max(0, len(self.loss) - 1)
        iterations = np.arange(len(self.loss))
        options = {"label": "training objective", "linewidth": 2, **kwargs}
        (self.line_,) = ax.plot(iterations, positive(self.loss), **options)
        if len(self.loss) == 1:
            self.line_.set_marker("o")
        self.validation_line_ = self.rate_line_ = self.predicted_rate_line_ = None
        self.predicted_line_ = self.forecast_line_ = self.floor_line_ = None
        if self.validation_loss is not None:
            self.validation_line_ = self._draw(
                np.arange(1, len(self.validation_loss) + 1),
                self.validation_loss,
                label="validation loss",
                color=ORANGE,
            )
        if show_rate and finite(self.rate):
            steps, curve = self._exponential()
            label = f"measured rate {format_rate(self.rate)}"
            if finite(self.rate_r2):
                label += f" ($R^2$ = {self.rate_r2:.2f})"
            self.rate_line_ = self._draw(
                steps, curve, label=label, color="black", linestyle=(0, (4, 2))
            )
        if show_prediction:
            self._plot_predictions(n_iter)
        if np.isfinite(positive(np.array(self.floor))):
            self.floor_line_ = ax.axhline(
                self.floor, color="0.5", linewidth=1, label="floor for equal tokens"
            )
        log_scale(ax)
        ax.set(xlabel="iteration", ylabel="loss")
        title = self.name if name is None else name
        if title:
            ax.set_title(title)
        ax.legend(frameon=False)
        return self

    def _plot_predictions(self, n_iter: int) -> None:
        if finite(self.predicted_rate) and len(self.loss):
            steps = np.arange(n_iter + 1)
            self.predicted_rate_line_ = self._draw(
                steps,
                self.loss[0] * max(self.predicted_rate, 0.0) ** steps,
                label=f"guaranteed rate {format_rate(self.predicted_rate)}",
                color=VERMILLION,
                linestyle="-.",
            )
        if len(self.predicted_curve):
            self.predicted_line_ = self._draw(
                np.arange(len(self.predicted_curve)),
                self.predicted_curve,
                label="linearised at the start",
                color=GREEN,
                linestyle="--",
            )
        if len(self.forecast):
            self.forecast_line_ = self._draw(
                n_iter + np.arange(len(self.forecast)),
                self.forecast,
                label="forecast",
                color=GREEN,
                linestyle=":",
            )

    def _draw(self, x: np.ndarray, y: np.ndarray, **options: Any) -> Any:
        (line,) = self.ax_.plot(x, positive(y), **{"linewidth": 1.5, **options})
        return line

    def _exponential(self) -> tuple[np.ndarray, np.ndarray]:
        """Return ``a + b rate^t`` over the window, fitted to the loss in relative terms."""
        start, end = self.rate_window
        steps = np.arange(start, end + 1)
        loss = self.loss[start : end + 1]
        basis = np.column_stack([np.ones(len(steps)), self.rate ** (steps - start)])
        scale = np.where(loss > 0, loss, 1.0)
        rows, target = basis / scale[:, None], loss / scale
        known = np.isfinite(target) & np.isfinite(rows).all(axis=1)
        try:
            coefficients, *_ = np.linalg.lstsq(rows[known], target[known], rcond=None)
        except np.linalg.LinAlgError:  # at the edge of range: nothing to draw
            return steps[:0], loss[:0]
        return steps, basis @ coefficients
