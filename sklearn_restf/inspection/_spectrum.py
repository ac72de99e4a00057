"""Singular values of what the attention puts out, with and without residual connection."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.utils import check_random_state
from torch import Tensor

from sklearn_restf._diagnostics.convergence_diagnostics import ConvergenceDiagnostics
from sklearn_restf._diagnostics.singular_values import singular_values
from sklearn_restf._estimator.base import ResidualTransformerBase
from sklearn_restf._model import NumpyState, build_module, initial_state
from sklearn_restf._utils.device import cpu_by_default
from sklearn_restf._utils.validation import NONE, check_parameters, integer, sequence_of
from sklearn_restf.inspection._display_arguments import (
    DIAGNOSTICS,
    as_list,
    numbers,
)
from sklearn_restf.inspection._drawing import BLUE, VERMILLION, log_scale, panel_axes, positive
from sklearn_restf.inspection._fitted_inside import token_batch, unwrap

CURVES = {
    # attribute: label, colour, line style
    "Z_start": ("Z, before training", BLUE, "--"),
    "Z_end": ("Z, after training", BLUE, "-"),
    "attention_start": ("Attn(X), before training", VERMILLION, "--"),
    "attention_end": ("Attn(X), after training", VERMILLION, "-"),
}


class SpectrumDisplay:
    r"""Singular values of :math:`Z = \beta X + \mathrm{Attn}(X)` and of :math:`\mathrm{Attn}(X)`.

    One panel for each layer; a line is the median over the samples, a band their range. A
    steep fall is rank collapse: gradient descent is slow in the directions of small singular
    values. It is recommended to use :meth:`from_estimator` or :meth:`from_diagnostics`. All
    parameters are stored as attributes.

    Parameters
    ----------
    Z_start, Z_end : array-like of shape (n_layers, n_samples, n_values), default=None
        Singular values of Z before and after training, in falling order; NaN where a
        shorter sample has fewer.
    attention_start, attention_end : array-like of the same shape, default=None
        The same of the attention output alone.
    layers : sequence of int, default=None
        Number of each layer, counted from 1; None: 1, 2, ...

    Attributes
    ----------
    axes_ : ndarray of matplotlib Axes
        One for each layer.
    ax_ : matplotlib Axes
        The first of them.
    figure_ : matplotlib Figure
        Their figure.
    lines_ : list of dict of str to matplotlib Line2D
        For each layer the medians, by the name of the parameter.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn_restf import ResidualTransformerRegressor
    >>> from sklearn_restf.inspection import SpectrumDisplay
    >>> X = np.random.default_rng(0).normal(size=(40, 5, 4))
    >>> model = ResidualTransformerRegressor(max_iter=20, tol=None, random_state=0)
    >>> display = SpectrumDisplay.from_estimator(model.fit(X, X[:, 0, 0]), X)
    >>> display.Z_end.shape
    (1, 40, 4)
    """

    def __init__(
        self,
        *,
        Z_start: ArrayLike | None = None,
        Z_end: ArrayLike | None = None,
        attention_start: ArrayLike | None = None,
        attention_end: ArrayLike | None = None,
        layers: Sequence[int] | None = None,
    ) -> None:
        self.Z_start = as_spectra(Z_start, "Z_start")
        self.Z_end = as_spectra(Z_end, "Z_end")
        self.attention_start = as_spectra(attention_start, "attention_start")
        self.attention_end = as_spectra(attention_end, "attention_end")
        counts = {name: len(values) for name, values in self._spectra().items()}
        if len(set(counts.values())) != 1 or not any(counts.values()):
            raise ValueError(
                f"{', '.join(CURVES)}: at least one is needed, and all of as many layers; got "
                f"{counts}."
            )
        n_layers = next(iter(counts.values()))
        self.layers = list(range(1, n_layers + 1)) if layers is None else as_list(layers, "layers")
        if len(self.layers) != n_layers:
            raise ValueError(f"layers must number the {n_layers} layer(s), got {self.layers}.")

    @classmethod
    @cpu_by_default()
    def from_estimator(
        cls,
        estimator: Any,
        X: Any = None,
        *,
        layers: Sequence[int] | None = None,
        n_samples: int = 64,
        ax: Any = None,
        **kwargs: Any,
    ) -> SpectrumDisplay:
        """Draw the spectra of a fitted estimator.

        Parameters
        ----------
        estimator : estimator
            A fitted estimator of this package, or a pipeline or search that holds one.
        X : array-like, default=None
            Samples to look at, in the form that `estimator` takes. None takes what the fit
            recorded: Z of the last layer on training samples. What was before training can be
            computed for other samples only if ``random_state`` is a number.
        layers : sequence of int, default=None
            Layers to draw, counted from 1; None draws all.
        n_samples : int, default=64
            How many samples at most, evenly spaced.
        ax : matplotlib Axes or array of them, default=None
            One for each layer; None makes a figure.
        **kwargs : dict
            Passed to :meth:`plot`.

        Returns
        -------
        display : SpectrumDisplay
            The display.

        Raises
        ------
        ValueError
            If the estimator has no such layer, or recorded nothing and X is not given.
        """
        model, X = unwrap(estimator, X)
        n_layers = model._fitted.config.n_layers
        numbers_of_layers = sequence_of(integer(1, n_layers), f"numbers from 1 to {n_layers}")
        check_parameters(
            cls.__name__,
            {"n_samples": n_samples, "layers": layers},
            {"n_samples": [integer(1)], "layers": [NONE, numbers_of_layers]},
        )
        if X is None:
            if layers is not None:
                raise ValueError("The fit records the last layer only: pass X to choose `layers`.")
            return cls.from_diagnostics(model.convergence_diagnostics_, ax=ax, **kwargs)
        chosen = list(map(int, range(1, n_layers + 1) if layers is None else layers))
        tokens = model._read_as_fitted(X)
        rows = np.linspace(0, tokens.n_samples - 1, min(n_samples, tokens.n_samples)).astype(int)
        x, mask = token_batch(model, tokens, rows)
        spectra = {}
        for moment, state in (
            ("start", state_before_training(model)),
            ("end", model._fitted.state),
        ):
            if state is not None:
                found = layer_spectra(model, state, x, mask, chosen)
                spectra[f"Z_{moment}"], spectra[f"attention_{moment}"] = found
        return cls(**spectra, layers=chosen).plot(ax, **kwargs)

    @classmethod
    def from_diagnostics(
        cls, diagnostics: ConvergenceDiagnostics, *, ax: Any = None, **kwargs: Any
    ) -> SpectrumDisplay:
        """Draw the spectra that diagnostics recorded: of Z in the last layer.

        Parameters
        ----------
        diagnostics : ConvergenceDiagnostics
            Of a fit, or of :func:`~sklearn_restf.diagnose`.
        ax : matplotlib Axes, default=None
            Axes to draw on; None makes a figure.
        **kwargs : dict
            Passed to :meth:`plot`.

        Returns
        -------
        display : SpectrumDisplay
            The display.

        Raises
        ------
        ValueError
            If nothing was recorded (``diagnostics=False``).
        """
        check_parameters(cls.__name__, {"diagnostics": diagnostics}, {"diagnostics": [DIAGNOSTICS]})
        recorded = {
            "Z_start": diagnostics.singular_values_start,
            "Z_end": diagnostics.singular_values_end,
        }
        recorded = {name: values[None] for name, values in recorded.items() if values.size}
        if not recorded:
            raise ValueError(
                "No singular values were recorded: fit with diagnostics=True, or pass X to "
                "SpectrumDisplay.from_estimator."
            )
        n_layers = max(1, len(diagnostics.sigma_min_per_sample))
        return cls(**recorded, layers=[n_layers]).plot(ax, **kwargs)

    def plot(self, ax: Any = None, *, show_range: bool = True, **kwargs: Any) -> SpectrumDisplay:
        """Draw the spectra.

        Parameters
        ----------
        ax : matplotlib Axes or array of them, default=None
            One for each layer; None makes a figure.
        show_range : bool, default=True
            Whether to shade the range over the samples: that after training, if there is one.
        **kwargs : dict
            Passed to matplotlib's ``plot`` for every line.

        Returns
        -------
        display : SpectrumDisplay
            The display itself.
        """
        self.axes_ = panel_axes(self, ax, len(self.layers), panel_size=(4.6, 3.8))
        self.ax_ = self.axes_[0]
        self.figure_ = self.ax_.figure
        self.lines_ = [
            self._plot_layer(panel, i, show_range, kwargs) for i, panel in enumerate(self.axes_)
        ]
        if ax is None:
            for panel in self.axes_[1:]:
                panel.sharey(self.ax_)
                panel.label_outer()
        self.ax_.legend(frameon=False)
        return self

    def _plot_layer(
        self, ax: Any, i: int, show_range: bool, options: dict[str, Any]
    ) -> dict[str, Any]:
        lines = {}
        n_values = 1
        # one band each, or they cover each other
        ranged = {name.partition("_")[0]: name for name in self._spectra()}.values()
        for name, spectra in self._spectra().items():
            label, color, style = CURVES[name]
            # below rounding a singular value is zero, which a log scale cannot show
            values = positive(np.where(spectra[i] > rounding(spectra[i]), spectra[i], np.nan))
            shown = ~np.isnan(values).all(axis=0)
            values, index = values[:, shown], 1 + np.flatnonzero(shown)
            n_values = max(n_values, spectra.shape[2])
            (lines[name],) = ax.plot(
                index,
                np.nanmedian(values, axis=0) if len(index) else [],
                **{
                    "label": label,
                    "color": color,
                    "linestyle": style,
                    "marker": "o",
                    "markersize": 4,
                    "markerfacecolor": color if style == "-" else "white",
                    **options,
                },
            )
            if show_range and name in ranged and len(values) > 1 and len(index):
                low, high = np.nanmin(values, axis=0), np.nanmax(values, axis=0)
                ax.fill_between(index, low, high, color=color, alpha=0.12, linewidth=0)
        log_scale(ax)
        ax.set(xlabel="index", ylabel="singular value", title=f"layer {self.layers[i]}")
        if n_values <= 12:
            ax.set_xticks(range(1, n_values + 1))
        return lines

    def _spectra(self) -> dict[str, np.ndarray]:
        every = {name: getattr(self, name) for name in CURVES}
        return {name: values for name, values in every.items() if values is not None}


def as_spectra(values: ArrayLike | None, name: str) -> np.ndarray | None:
    """Return an array (n_layers, n_samples, n_values), or None."""
    return None if values is None else numbers(values, name, 3)


def rounding(spectra: np.ndarray) -> float:
    """Return the size below which singular values in float64 are rounding errors."""
    largest = np.nanmax(spectra, initial=0.0)
    return float(np.finfo(np.float64).eps * spectra.shape[-1] * largest)


def state_before_training(model: ResidualTransformerBase) -> NumpyState | None:
    """Draw the initial weights once more; None where they cannot be known."""
    if not isinstance(model.random_state, Integral):
        return None
    generator = check_random_state(model.random_state)
    generator.randint(np.iinfo(np.int32).max)  # fit spends the first number on the split
    return initial_state(
        model._fitted.config, generator, init=model.init, init_scale=model.init_scale
    )


def layer_spectra(
    model: ResidualTransformerBase,
    state: NumpyState,
    x: Tensor,
    mask: Tensor | None,
    layers: Sequence[int],
) -> tuple[np.ndarray, np.ndarray]:
    """Return the singular values of Z and of the attention output, by layer and sample."""
    with torch.no_grad():
        outputs = build_module(model._fitted.config, state).layers(x, mask)
    chosen = [outputs[layer - 1] for layer in layers]
    return (
        np.stack([sample_spectra(output.Z, mask) for output in chosen]),
        np.stack([sample_spectra(output.attention_output, mask) for output in chosen]),
    )


def sample_spectra(matrices: Tensor, mask: Tensor | None) -> np.ndarray:
    """Return the singular values of every sample, of real tokens only, NaN-padded."""
    if mask is None:
        return singular_values(matrices.numpy())
    spectra = np.full((len(matrices), min(matrices.shape[1:])), np.nan)
    for row, matrix, length in zip(spectra, matrices.numpy(), mask.sum(1).tolist(), strict=True):
        values = singular_values(matrix[:length])
        row[: len(values)] = values
    return spectra
