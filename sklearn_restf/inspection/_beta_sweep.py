"""Convergence and score for several strengths of the residual connection."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from sklearn_restf._diagnostics.convergence_diagnostics import ConvergenceDiagnostics
from sklearn_restf.inspection._display_arguments import as_list, numbers
from sklearn_restf.inspection._drawing import (
    LARGEST,
    beta_colors,
    log_scale,
    panel_axes,
    positive,
)
from sklearn_restf.inspection._fitted_inside import unwrap
from sklearn_restf.inspection._search import (
    SweepResult,
    diagnostics_of,
    read_search,
    score_name,
)

PANELS = {
    # name: attribute with one row of values a beta, label of the axis
    "loss": ("loss_curves", "training objective"),
    "rate": ("rates", "measured rate per iteration\n(smaller is faster)"),
    "ratio": ("condition_ratios", r"$\sigma_{\min}^2(Z) \,/\, \|Z\|^2$ before training"),
    "score": ("scores", "score"),
}


class BetaSweepDisplay:
    """Loss curves, measured rate and score for several values of ``residual_beta``.

    It is recommended to use :meth:`from_search` or :meth:`from_estimators`. All parameters are
    stored as attributes.

    Parameters
    ----------
    betas : array-like of shape (n_betas,)
        Values of ``residual_beta``.
    loss_curves : list of lists of ndarray, default=None
        For each beta the loss curves of its fits.
    rates, condition_ratios, scores : list of array-like, default=None
        For each beta the values of its fits, or of the folds.
    score_name : str, default="score"
        What the scores are.

    Attributes
    ----------
    axes_ : ndarray of matplotlib Axes
        One for each panel.
    ax_ : matplotlib Axes
        The first of them.
    figure_ : matplotlib Figure
        Their figure.
    panels_ : list of str
        What each panel shows.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn_restf import ResidualTransformerRegressor
    >>> from sklearn_restf.inspection import BetaSweepDisplay
    >>> X = np.random.default_rng(0).normal(size=(60, 6))
    >>> models = [
    ...     ResidualTransformerRegressor(beta, max_iter=20, tol=None, random_state=0)
    ...     for beta in (0.0, 0.5, 1.0)
    ... ]
    >>> display = BetaSweepDisplay.from_estimators([model.fit(X, X[:, 0]) for model in models])
    >>> display.panels_
    ['loss', 'rate']
    """

    def __init__(
        self,
        betas: ArrayLike,
        *,
        loss_curves: Sequence[Sequence[ArrayLike]] | None = None,
        rates: Sequence[ArrayLike] | None = None,
        condition_ratios: Sequence[ArrayLike] | None = None,
        scores: Sequence[ArrayLike] | None = None,
        score_name: str = "score",
    ) -> None:
        self.betas = numbers(betas, "betas")
        n_betas = len(self.betas)
        every = [[]] * n_betas if loss_curves is None else as_list(loss_curves, "loss_curves")
        self.loss_curves = [
            [numbers(curve, "loss_curves") for curve in as_list(curves, "loss_curves")]
            for curves in every
        ]
        self.rates = as_rows(rates, n_betas, "rates")
        self.condition_ratios = as_rows(condition_ratios, n_betas, "condition_ratios")
        self.scores = as_rows(scores, n_betas, "scores")
        self.score_name = score_name
        for attribute, _ in PANELS.values():
            if len(getattr(self, attribute)) != n_betas:
                raise ValueError(
                    f"There are {n_betas} betas; {attribute} has {len(getattr(self, attribute))} "
                    "entries."
                )

    @classmethod
    def from_search(
        cls,
        search: Any,
        X: Any = None,
        y: Any = None,
        *,
        panels: Sequence[str] | None = None,
        ax: Any = None,
        **kwargs: Any,
    ) -> BetaSweepDisplay:
        """Draw the results of a search over ``residual_beta``.

        Where other parameters were searched too, each beta is shown with its best values of them.

        Parameters
        ----------
        search : GridSearchCV or the like
            A fitted search over ``residual_beta``, of an estimator of this package or of a
            pipeline that ends in one; or a fitted
            :class:`~sklearn_restf.ResidualTransformerRegressorCV` or
            :class:`~sklearn_restf.ResidualTransformerClassifierCV`, whose loss curves are those of
            the folds.
        X, y : array-like, default=None
            Training samples. Other searches than those two keep one fitted model only; with
            the samples, one is fitted for each beta, and its loss curve and rate are shown.
        panels : sequence of {"loss", "rate", "ratio", "score"}, default=None
            What to show; None: loss, rate and score, as far as known.
        ax : array of matplotlib Axes, default=None
            One for each panel; None makes a figure.
        **kwargs : dict
            Passed to :meth:`plot`.

        Returns
        -------
        display : BetaSweepDisplay
            The display.

        Raises
        ------
        TypeError
            If `search` has no ``cv_results_``.
        ValueError
            If it is no search over ``residual_beta``, or only one of X and y is given.
        """
        result = read_search(search)
        recorded = result.recorded(search, X, y)
        return cls._of(recorded, result).plot(ax, panels=panels, **kwargs)

    @classmethod
    def from_estimators(
        cls,
        estimators: Iterable[Any] | Mapping[Any, Any],
        X: Any = None,
        y: Any = None,
        *,
        panels: Sequence[str] | None = None,
        ax: Any = None,
        **kwargs: Any,
    ) -> BetaSweepDisplay:
        """Draw the convergence of fitted estimators, and their scores on given samples.

        Parameters
        ----------
        estimators : sequence of estimators, or mapping to them
            Fitted estimators of this package, or pipelines that end in one. Several of equal
            ``residual_beta``, from several seeds say, are shown as median and range.
        X, y : array-like, default=None
            Samples to score on.
        panels : sequence of {"loss", "rate", "ratio", "score"}, default=None
            What to show; None: loss, rate and score, as far as known.
        ax : array of matplotlib Axes, default=None
            One for each panel; None makes a figure.
        **kwargs : dict
            Passed to :meth:`plot`.

        Returns
        -------
        display : BetaSweepDisplay
            The display.

        Raises
        ------
        ValueError
            If there are no estimators, or only one of X and y is given.
        """
        if isinstance(estimators, Mapping):
            estimators = estimators.values()
        estimators = as_list(estimators, "estimators")
        if not estimators:
            raise ValueError("estimators is empty: pass at least one fitted estimator.")
        if (X is None) != (y is None):
            raise ValueError("Pass both X and y, or neither.")
        by_beta: dict[float, list[Any]] = {}
        for estimator in estimators:
            model, _ = unwrap(estimator)
            by_beta.setdefault(float(model._fitted.config.residual_beta), []).append(estimator)
        betas = sorted(by_beta)
        models = [by_beta[beta] for beta in betas]
        scores: list[np.ndarray] = [np.empty(0) for _ in betas]
        if X is not None:
            scores = [np.array([model.score(X, y) for model in group]) for group in models]
        recorded = [[diagnostics_of(model) for model in group] for group in models]
        result = SweepResult(betas, scores, score_name(estimators[0]))
        return cls._of(recorded, result).plot(ax, panels=panels, **kwargs)

    @classmethod
    def _of(
        cls, recorded: list[list[ConvergenceDiagnostics]], result: SweepResult
    ) -> BetaSweepDisplay:
        """Collect what fits recorded."""
        return cls(
            result.betas,
            loss_curves=[[seen.loss for seen in group] for group in recorded],
            rates=[[seen.rate for seen in group] for group in recorded],
            condition_ratios=[[seen.condition_ratio for seen in group] for group in recorded],
            scores=result.scores,
            score_name=result.score_name,
        )

    def plot(
        self, ax: Any = None, *, panels: Sequence[str] | None = None, **kwargs: Any
    ) -> BetaSweepDisplay:
        """Draw the panels.

        Parameters
        ----------
        ax : array of matplotlib Axes, default=None
            One for each panel; None makes a figure.
        panels : sequence of {"loss", "rate", "ratio", "score"}, default=None
            What to show; None: loss, rate and score, as far as known.
        **kwargs : dict
            Passed to matplotlib's ``plot`` for the loss curves.

        Returns
        -------
        display : BetaSweepDisplay
            The display itself.

        Raises
        ------
        ValueError
            For unknown panels, or a number of axes that is not the number of panels.
        """
        if panels is None:
            panels = [name for name in ("loss", "rate", "score") if self._knows(name)]
        panels = as_list(panels, "panels")
        unknown = [name for name in panels if not isinstance(name, str) or name not in PANELS]
        if unknown or not panels:
            raise ValueError(f"panels must be among {list(PANELS)}, got {list(panels)}.")
        self.panels_ = list(panels)
        self.axes_ = panel_axes(self, ax, len(self.panels_), panel_size=(4.4, 3.8))
        self.ax_ = self.axes_[0]
        self.figure_ = self.ax_.figure
        self._colors = beta_colors(self.betas)
        for panel, name in zip(self.axes_, self.panels_, strict=True):
            if name == "loss":
                self._plot_curves(panel, kwargs)
            else:
                self._plot_values(panel, name)
        return self

    def _knows(self, name: str) -> bool:
        rows = getattr(self, PANELS[name][0])
        if name == "loss":
            return any(rows)
        known = sum(bool(np.isfinite(values).any()) for values in rows)
        return known >= min(2, len(rows))  # one point of several is no curve

    def _plot_curves(self, ax: Any, options: dict[str, Any]) -> None:
        for beta, color, curves in zip(self.betas, self._colors, self.loss_curves, strict=True):
            if not curves:
                continue
            length = min(map(len, curves))  # fits may have stopped at different iterations
            stack = positive(np.array([curve[:length] for curve in curves]))
            line = {"color": color, "label": rf"$\beta$ = {beta:g}", **options}
            ax.plot(np.arange(length), np.median(stack, axis=0), **line)
            if len(stack) > 1:
                low, high = stack.min(axis=0), stack.max(axis=0)
                ax.fill_between(np.arange(length), low, high, color=color, alpha=0.15, linewidth=0)
        log_scale(ax)
        ax.set(xlabel="iteration", ylabel=PANELS["loss"][1])
        if any(self.loss_curves):
            ax.legend(frameon=False)

    def _plot_values(self, ax: Any, name: str) -> None:
        attribute, label = PANELS[name]
        rows = getattr(self, attribute)
        if name == "ratio":  # of a log scale
            rows = [positive(values) for values in rows]
        rows = [values[np.abs(values) <= LARGEST] for values in rows]
        known = [i for i, values in enumerate(rows) if len(values)]
        several = max((len(values) for values in rows), default=0) > 1
        summaries = [summary(rows[i], name) for i in known]
        ax.plot(
            self.betas[known],
            [middle for middle, _, _ in summaries],
            color="0.6",
            linewidth=1,
            zorder=1,
        )
        for i, (middle, below, above) in zip(known, summaries, strict=True):
            error = [[below], [above]] if several else None
            ax.errorbar(self.betas[i], middle, error, fmt="o", color=self._colors[i], capsize=3)
        if name == "ratio":
            log_scale(ax)
        if name == "score":
            label = self.score_name + ("\n(mean and standard deviation)" if several else "")
        elif several:
            label += "\n(median and range)"
        ax.set(xlabel=r"residual strength $\beta$", ylabel=label)
        if len(self.betas) <= 8:
            ax.set_xticks(self.betas, [f"{beta:g}" for beta in self.betas])


def summary(values: np.ndarray, name: str) -> tuple[float, float, float]:
    """Return what to draw of several values, and the lengths of the bar below and above it."""
    if name == "score":
        return float(values.mean()), float(values.std()), float(values.std())
    middle = float(np.median(values))
    return middle, middle - float(values.min()), float(values.max()) - middle


def as_rows(values: Sequence[ArrayLike] | None, n_betas: int, name: str) -> list[np.ndarray]:
    """Return one float array for each beta."""
    if values is None:
        return [np.empty(0)] * n_betas
    rows = as_list(values, name)
    return [numbers(row if np.ndim(row) else [row], name) for row in rows]
