"""Standardisation per channel, the same for every token of a sequence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, OneToOneFeatureMixin, TransformerMixin, clone
from sklearn.utils.validation import check_is_fitted

from sklearn_restf._data.arrays import (
    RawTokens,
    as_numpy,
    number_of_dimensions,
    read_X,
    real_token_mask,
)
from sklearn_restf._data.targets import read_sample_weight
from sklearn_restf._data.tokens import TokenLayout, check_compatible, weighted_moments
from sklearn_restf._estimator.parameter_constraints import PARAMETER_CONSTRAINTS
from sklearn_restf._utils.validation import BOOL, check_parameters
from sklearn_restf.preprocessing._output import TokenOutputMixin

CONSTRAINTS = {
    "token_dim": PARAMETER_CONSTRAINTS["token_dim"],
    "with_mean": [BOOL],
    "with_std": [BOOL],
    "padding_value": PARAMETER_CONSTRAINTS["padding_value"],
}


class TokenStandardScaler(TokenOutputMixin, OneToOneFeatureMixin, TransformerMixin, BaseEstimator):
    """Centre and scale each channel over all tokens of all samples.

    :class:`~sklearn.preprocessing.StandardScaler` treats every column of flattened windows as a
    feature of its own, so that the same sensor is scaled differently at each position of the
    window. Here one mean and one standard deviation per channel serve all positions.

    Parameters
    ----------
    token_dim : int or None, default=None
        Number of channels ``c`` of each token when windows come as 2-D ``(n, T * c)``, token after
        token. 2-D and 3-D forms are then interchangeable. None: every column of 2-D input is a
        channel, as in :class:`~sklearn.preprocessing.StandardScaler`.
    with_mean : bool, default=True
        Centre each channel.
    with_std : bool, default=True
        Scale each channel to unit standard deviation. A constant channel is only centred.
    padding_value : float or None, default=None
        A token of 3-D input, or of flattened windows, whose channels all equal this value (NaN
        allowed) is padding: it does not enter the statistics and passes through unchanged. None:
        no token is padding.

    Attributes
    ----------
    mean_ : ndarray of shape (c,)
        Mean of each channel; 0 for a channel of which nothing but NaN was seen.
    var_ : ndarray of shape (c,)
        Variance of each channel (divided by the number of tokens); 0 or infinite where the square
        of the deviations is beyond float64, which does not touch `scale_`.
    scale_ : ndarray of shape (c,)
        What each channel is divided by; 1 for a constant channel.
    n_tokens_seen_ : ndarray of shape (c,)
        Number of tokens that are not NaN in each channel; the sum of their weights when weights
        are given.
    n_features_in_ : int
        Number of columns of 2-D input, number of channels of 3-D and ragged input.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Column names, when fitted on a frame with string column names.

    See Also
    --------
    make_windows : Cut a series into the windows to be scaled.

    Notes
    -----
    NaN is a missing value: left out of the statistics, kept as NaN by ``transform``. Infinite
    values and sparse matrices are refused. The input is never modified; float32 input gives
    float32 output, anything else float64. The statistics are computed in float64.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn_restf.preprocessing import TokenStandardScaler
    >>> X = np.arange(12.0).reshape(2, 3, 2)  # 2 samples, 3 tokens, 2 channels
    >>> scaler = TokenStandardScaler().fit(X)
    >>> scaler.mean_
    array([5., 6.])
    >>> flat = TokenStandardScaler(token_dim=2).fit_transform(X.reshape(2, 6))
    >>> bool(np.allclose(flat, scaler.transform(X).reshape(2, 6)))
    True
    """

    __module__ = "sklearn_restf.preprocessing"  # lasting: saved models name it

    def __init__(
        self,
        token_dim: int | None = None,
        *,
        with_mean: bool = True,
        with_std: bool = True,
        padding_value: float | None = None,
    ):
        self.token_dim = token_dim
        self.with_mean = with_mean
        self.with_std = with_std
        self.padding_value = padding_value

    def fit(
        self, X: Any, y: Any = None, sample_weight: ArrayLike | None = None
    ) -> TokenStandardScaler:
        """Compute mean and standard deviation of each channel.

        Parameters
        ----------
        X : array-like of shape (n, p) or (n, T, c), or list of n arrays of shape (t_i, c)
            The samples.
        y : None
            Ignored.
        sample_weight : array-like of shape (n,), default=None
            Weight of each sample, given to each of its tokens. Weight 0 equals leaving the sample
            out, weight 2 equals repeating it.

        Returns
        -------
        self : TokenStandardScaler
            The fitted scaler.

        Raises
        ------
        ValueError
            If ``X`` holds infinite values, has another number of dimensions, or its columns are
            no multiple of ``token_dim``; if weights are negative, not finite or all zero.
        """
        reader = clone(self)  # a fit that fails leaves nothing behind
        tokens = self._read(X, reader, reset=True)
        weight = read_sample_weight(sample_weight, tokens.n_samples, self)
        unit = 1.0 if sample_weight is None else np.asarray(as_numpy(sample_weight)).max()
        if tokens.lengths is not None:
            weight = np.repeat(weight, tokens.lengths)
        elif tokens.values.ndim == 3 and self.padding_value is not None:
            weight = np.repeat(weight[:, None], tokens.values.shape[1], axis=1)
            for piece in tokens.slices():
                weight[piece] *= real_token_mask(tokens.values[piece], self.padding_value)
        self.mean_, scale, seen = weighted_moments(tokens, weight)
        with np.errstate(over="ignore", under="ignore"):
            self.var_ = scale**2
            self.n_tokens_seen_ = seen * unit
        self.scale_ = np.where(scale > 0, scale, 1.0)
        self._form = form_of(X, tokens)
        self.n_features_in_ = reader.n_features_in_
        if hasattr(reader, "feature_names_in_"):
            self.feature_names_in_ = reader.feature_names_in_
        elif hasattr(self, "feature_names_in_"):
            del self.feature_names_in_
        return self

    def transform(self, X: Any) -> Any:
        """Centre and scale.

        Parameters
        ----------
        X : array-like of shape (n, p) or (n, T, c), or list of n arrays of shape (t_i, c)
            The samples.

        Returns
        -------
        X_scaled : ndarray of the shape of X, DataFrame, or list of arrays
            A new array; a list for ragged input; for 2-D input the container of ``set_output``.
        """
        return self._apply(X, self._scale)

    def inverse_transform(self, X: Any) -> Any:
        """Undo ``transform``.

        Parameters
        ----------
        X : array-like of shape (n, p) or (n, T, c), or list of n arrays of shape (t_i, c)
            Scaled samples.

        Returns
        -------
        X_original : ndarray of the shape of X, or list of arrays
            In the units of the training data.
        """
        return self._apply(X, self._unscale, contain=False)

    def __sklearn_tags__(self) -> Any:
        """Declare what input is accepted."""
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        tags.input_tags.allow_nan = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags

    def _read(self, X: Any, reader: BaseEstimator, *, reset: bool) -> RawTokens:
        """Validate as the estimators do, but for NaN; padding keeps its place."""
        check_parameters(type(self).__name__, vars(self), CONSTRAINTS)
        return read_X(
            reader,
            X,
            reset=reset,
            token_dim=self.token_dim,
            padding_value=None,
            allow_nan=True,
        )

    def _apply(
        self, X: Any, function: Callable[[np.ndarray], np.ndarray], contain: bool = True
    ) -> Any:
        """Validate, map slice by slice and restore the form."""
        check_is_fitted(self, "scale_")
        # only a table has a number of columns that must stay
        on_table = self._form == "2d"
        tokens = self._read(X, self if on_table else clone(self), reset=not on_table)
        kind = "table" if on_table and self.token_dim is None else "ragged"
        layout = TokenLayout(kind, len(self.mean_), None, 0)
        check_compatible(layout, tokens, type(self).__name__, fixed=False)
        single = tokens.values.dtype == np.float32
        output: np.ndarray = np.empty(
            tokens.values.shape, dtype=np.float32 if single else np.float64
        )
        for piece in tokens.slices():
            values = tokens.values[piece]
            output[piece] = values
            real: Any = slice(None)
            if values.ndim == 3 and self.padding_value is not None:
                real = real_token_mask(values, self.padding_value)
            with np.errstate(over="ignore"):  # refused below, as an infinite value of X is
                output[piece][real] = function(values[real])
            if np.isinf(output[piece]).any():
                raise ValueError(
                    "X is so far from the training samples that its values overflow. Check its "
                    "units."
                )
        form = form_of(X, tokens)
        if form == "ragged":
            return np.split(output, tokens.offsets[1:])
        if form == "3d":
            return output
        output = output.reshape(len(output), -1)
        if not contain:
            return output
        names = list(self.get_feature_names_out())
        if len(names) != output.shape[1]:  # fitted on tokens, given flattened windows
            names = [f"x{i}" for i in range(output.shape[1])]
        return self._contain(output, X, names)

    def _scale(self, values: np.ndarray) -> np.ndarray:
        """Centre and scale in float64."""
        result = values - self.mean_ if self.with_mean else values.astype(np.float64)
        return result / self.scale_ if self.with_std else result

    def _unscale(self, values: np.ndarray) -> np.ndarray:
        """Undo `_scale`."""
        result = values * self.scale_ if self.with_std else values.astype(np.float64)
        return result + self.mean_ if self.with_mean else result


def form_of(X: Any, tokens: RawTokens) -> str:
    """Say in which form the tokens came: "2d", "3d" or "ragged"."""
    return "ragged" if tokens.lengths is not None else f"{number_of_dimensions(X)}d"
