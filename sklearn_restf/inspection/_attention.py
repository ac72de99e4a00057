"""The attention weights of one sample as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike

from sklearn_restf._data.arrays import validating
from sklearn_restf._estimator.base import ResidualTransformerBase
from sklearn_restf._model import build_module
from sklearn_restf._utils.device import cpu_by_default
from sklearn_restf._utils.validation import NONE, check_parameters, integer
from sklearn_restf.inspection._display_arguments import as_list, numbers
from sklearn_restf.inspection._drawing import single_axes
from sklearn_restf.inspection._fitted_inside import estimator_inside, token_batch, unwrap

MOST_TICKS = 24  # names on an axis; of more tokens every second, third ... is named
MOST_VALUES = 8  # tokens up to which the weights are written into the cells
LONGEST_NAME = 24  # characters


class AttentionDisplay:
    """Which token attends to which: the attention weights of one sample.

    It is recommended to use :meth:`from_estimator`. All parameters are stored as attributes.

    Parameters
    ----------
    attention : array-like of shape (n_tokens, n_tokens)
        Attention weights: row t says what token t attends to, and sums to 1.
    token_names : sequence of str, default=None
        Names of the tokens; None numbers them from 1.
    name : str, default=None
        What is shown; the title.

    Attributes
    ----------
    ax_ : matplotlib Axes
        The axes with the picture.
    figure_ : matplotlib Figure
        Its figure.
    im_ : matplotlib AxesImage
        The picture.
    text_ : ndarray of shape (n_tokens, n_tokens) of matplotlib Text, or None
        The numbers in the cells.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn_restf import ResidualTransformerRegressor
    >>> from sklearn_restf.inspection import AttentionDisplay
    >>> X = np.random.default_rng(0).normal(size=(40, 5, 4))
    >>> model = ResidualTransformerRegressor(max_iter=20, tol=None, random_state=0)
    >>> display = AttentionDisplay.from_estimator(model.fit(X, X[:, 0, 0]), X, sample=3)
    >>> display.attention.sum(axis=1).round(6).tolist()
    [1.0, 1.0, 1.0, 1.0, 1.0]
    """

    def __init__(
        self,
        attention: ArrayLike,
        *,
        token_names: Sequence[str] | None = None,
        name: str | None = None,
    ) -> None:
        self.attention = numbers(attention, "attention", 2)
        if len(set(self.attention.shape)) != 1 or not self.attention.size:
            raise ValueError(
                f"attention must have shape (n_tokens, n_tokens), got {self.attention.shape}."
            )
        if not ((self.attention >= 0) & (self.attention <= 1 + 1e-6)).all():
            raise ValueError("attention must hold weights, from 0 to 1.")
        n_tokens = len(self.attention)
        names = range(1, n_tokens + 1) if token_names is None else token_names
        self.token_names = [str(token) for token in as_list(names, "token_names")]
        if len(self.token_names) != n_tokens:
            raise ValueError(
                f"The sample has {n_tokens} tokens, but token_names has {len(self.token_names)}."
            )
        self.name = name

    @classmethod
    @cpu_by_default()
    def from_estimator(
        cls,
        estimator: Any,
        X: Any,
        *,
        sample: int = 0,
        layer: int | None = None,
        head: int | None = None,
        token_names: Sequence[str] | None = None,
        ax: Any = None,
        **kwargs: Any,
    ) -> AttentionDisplay:
        """Draw the attention of a fitted estimator on one sample.

        Parameters
        ----------
        estimator : estimator
            A fitted estimator of this package, or a pipeline or search that holds one.
        X : array-like or list of arrays
            Samples in the form that `estimator` takes.
        sample : int, default=0
            Row of X.
        layer : int, default=None
            Layer, counted from 1; None takes the last.
        head : int, default=None
            Attention head, counted from 1; None averages over the heads.
        token_names : sequence of str, default=None
            Names of the sample's tokens, words for instance. None takes the names of the features
            in each group for a table, and numbers the tokens otherwise.
        ax : matplotlib Axes, default=None
            Axes to draw on; None makes a figure.
        **kwargs : dict
            Passed to :meth:`plot`.

        Returns
        -------
        display : AttentionDisplay
            The display.

        Raises
        ------
        ValueError
            If there is no such sample, layer or head, or for a wrong number of names.
        """
        model, inner_X = unwrap(estimator, X)
        config = model._fitted.config
        tokens = model._read_as_fitted(inner_X)
        check_parameters(
            cls.__name__,
            {"sample": sample, "layer": layer, "head": head},
            {
                "sample": [integer(-tokens.n_samples, tokens.n_samples - 1)],
                "layer": [NONE, integer(1, config.n_layers)],
                "head": [NONE, integer(1, config.n_heads)],
            },
        )
        layer = config.n_layers if layer is None else layer
        x, mask = token_batch(model, tokens, np.array([sample % tokens.n_samples]))
        with torch.no_grad():
            outputs = build_module(config, model._fitted.state).layers(x, mask)
        heads = outputs[layer - 1].attention[0].numpy()
        attention = heads.mean(axis=0) if head is None else heads[head - 1]
        if token_names is None:
            token_names = group_names(model, feature_names(estimator, model))
        name = described(config.n_layers, layer, config.n_heads, head)
        return cls(attention, token_names=token_names, name=name).plot(ax, **kwargs)

    def plot(
        self,
        ax: Any = None,
        *,
        name: str | None = None,
        cmap: Any = "cividis",
        include_values: bool | None = None,
        values_format: str = ".2f",
        colorbar: bool = True,
        **kwargs: Any,
    ) -> AttentionDisplay:
        """Draw the picture.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            Axes to draw on; None makes a figure.
        name : str, default=None
            Title; None takes that of the display.
        cmap : str or matplotlib Colormap, default="cividis"
            Colours.
        include_values : bool, default=None
            Whether to write the weights into the cells; None: up to 8 tokens.
        values_format : str, default=".2f"
            Format of these numbers.
        colorbar : bool, default=True
            Whether to add the scale.
        **kwargs : dict
            Passed to matplotlib's ``imshow``.

        Returns
        -------
        display : AttentionDisplay
            The display itself.
        """
        with validating("values_format"):
            format(0.5, values_format)
        n_tokens = len(self.attention)
        side = min(6.5, 3.2 + 0.16 * n_tokens)
        ax = single_axes(self, ax, figsize=(side + 1.0, side))
        self.ax_, self.figure_ = ax, ax.figure
        largest = float(self.attention.max())
        # of many tokens a few with large weights (the first ones when causal) would hide the rest
        limit = largest if n_tokens <= MOST_VALUES else float(np.quantile(self.attention, 0.98))
        options = {"vmin": 0.0, "vmax": limit or 1.0, **kwargs}
        self.im_ = ax.imshow(self.attention, cmap=cmap, **options)
        if include_values is None:
            include_values = n_tokens <= MOST_VALUES
        self.text_ = self._write_values(values_format) if include_values else None
        if colorbar:
            extend = "max" if largest > self.im_.get_clim()[1] else "neither"
            self.figure_.colorbar(self.im_, ax=ax, label="attention weight", extend=extend)
        every = -(-n_tokens // MOST_TICKS)
        ticks = np.arange(0, n_tokens, every)
        names = [shortened(self.token_names[tick]) for tick in ticks]
        upright = max(map(len, names), default=0) > 2
        ax.set_xticks(ticks, names, rotation=90 if upright else 0)
        ax.set_yticks(ticks, names)
        ax.set(xlabel="attends to token", ylabel="token")
        title = self.name if name is None else name
        if title:
            ax.set_title(title)
        return self

    def _write_values(self, values_format: str) -> np.ndarray:
        """Write the weights, dark on light cells and light on dark ones."""
        text = np.empty(self.attention.shape, dtype=object)
        for (row, column), weight in np.ndenumerate(self.attention):
            red, green, blue, _ = self.im_.cmap(self.im_.norm(weight))
            light = 0.299 * red + 0.587 * green + 0.114 * blue > 0.5
            text[row, column] = self.ax_.text(
                column,
                row,
                format(weight, values_format),
                ha="center",
                va="center",
                fontsize="small",
                color="black" if light else "white",
            )
        return text


def feature_names(estimator: Any, model: ResidualTransformerBase) -> list[str] | None:
    """Return the names of the features of a table, from the model or the steps before it."""
    if hasattr(model, "feature_names_in_"):
        return list(map(str, model.feature_names_in_))
    while (inside := estimator_inside(estimator)) is not None:
        estimator = inside
    steps = getattr(estimator, "steps", [])
    if len(steps) < 2 or not all(hasattr(step, "get_feature_names_out") for _, step in steps[:-1]):
        return None
    names = list(map(str, estimator[:-1].get_feature_names_out()))
    return names if len(names) == model.n_features_in_ else None


def group_names(model: ResidualTransformerBase, names: list[str] | None) -> list[str] | None:
    """Return a name for each token of a table: its feature, or the first and last of several."""
    layout = model._fitted.layout
    if layout.kind != "table":
        return None
    names = names or [f"x{i}" for i in range(layout.n_features)]
    groups = []
    for columns in layout.group_columns():
        group = [names[column] for column in columns if column < layout.n_features]
        joint = ", " if len(group) == 2 else " … "
        groups.append(group[0] if len(group) == 1 else f"{group[0]}{joint}{group[-1]}")
    return groups


def described(n_layers: int, layer: int, n_heads: int, head: int | None) -> str:
    """Return a title that says which layer and head, where there are several."""
    words = [f"layer {layer} of {n_layers}"] if n_layers > 1 else []
    if n_heads > 1:
        words.append(f"mean of {n_heads} heads" if head is None else f"head {head} of {n_heads}")
    return "Attention" + (": " if words else "") + ", ".join(words)


def shortened(name: str) -> str:
    """Cut a long name."""
    return name if len(name) <= LONGEST_NAME else name[: LONGEST_NAME - 1] + "…"
