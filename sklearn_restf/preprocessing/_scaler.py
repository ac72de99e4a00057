"""Standardisation per channel, the same for every token of a sequence."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils import check_array
from sklearn.utils.validation import check_is_fitted, validate_data

from sklearn_restf._data.arrays import real_token_mask, validating
from sklearn_restf._estimator.parameter_constraints import PARAMETER_CONSTRAINTS
from sklearn_restf._utils.validation import check_parameters
from sklearn_restf.preprocessing._moments import check_weights, moments
from sklearn_restf.preprocessing._output import TokenOutputMixin, check_input_names
from sklearn_restf.preprocessing._sequences import (
    check_sequences,
    is_ragged,
    to_numpy,
)
from sklearn_restf.preprocessing._series import check_flags

# Values converted to float64 at a time: bounds the memory taken beside the input and the output,
# which matters because windows are often views many times larger than the memory behind them.
_CHUNK_VALUES = 2**20


class TokenStandardScaler(TokenOutputMixin, TransformerMixin, BaseEstimator):
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
        values, form, n_features, names = self._check(X, fit=True)
        weights = check_weights(sample_weight, len(values))
        n_channels = values[0].shape[-1] if form == "ragged" else values.shape[-1]
        # Relative weights, so that rescaling all of them cannot change what counts as constant.
        unit = weights.max()
        total, mean, largest, variance = moments(
            self._chunks(values, form), weights / unit, n_channels, self._padding(form)
        )
        # Rounding alone gives a constant channel a tiny variance; dividing by it would blow up.
        eps = np.finfo(np.float64).eps
        with np.errstate(over="ignore", under="ignore"):
            relative_mean = np.abs(mean) / np.where(largest > 0, largest, 1.0)
            constant = variance <= total * eps * variance + (total * relative_mean * eps) ** 2
            scale = largest * np.sqrt(variance)
            self.var_ = scale**2
            self.n_tokens_seen_ = total * unit
        self.mean_ = mean
        self.scale_ = np.where(constant | (scale == 0), 1.0, scale)
        self._form = form
        self.n_features_in_ = n_features
        if names is not None:
            self.feature_names_in_ = names
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

    def get_feature_names_out(self, input_features: ArrayLike | None = None) -> np.ndarray:
        """Return the names of the output columns (2-D input) or channels (3-D and ragged input).

        Parameters
        ----------
        input_features : array-like of str of shape (`n_features_in_`,), default=None
            Names of the input; by default ``feature_names_in_``, or else ``x0, x1, ...``.

        Returns
        -------
        names : ndarray of str of shape (`n_features_in_`,)
            The input's names.

        Raises
        ------
        ValueError
            If ``input_features`` has another length or differs from ``feature_names_in_``.
        """
        check_is_fitted(self, "scale_")
        return check_input_names(self, input_features)

    def __sklearn_tags__(self) -> Any:
        """Declare what input is accepted."""
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        tags.input_tags.allow_nan = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags

    def _check(self, X: Any, fit: bool) -> tuple[Any, str, int, np.ndarray | None]:
        """Validate; return tokens ``(n, T, c)`` or a list, the form, width and column names."""
        width = self.token_dim
        if width is not None and (
            isinstance(width, bool) or not isinstance(width, (int, np.integer)) or width < 1
        ):
            raise ValueError(f"token_dim must be a positive integer or None, got {width!r}.")
        check_flags(type(self).__name__, with_mean=self.with_mean, with_std=self.with_std)
        check_parameters(
            type(self).__name__,
            {"padding_value": self.padding_value},
            {"padding_value": PARAMETER_CONSTRAINTS["padding_value"]},
        )
        with validating("X"):
            return self._read(X, fit, width)

    def _read(
        self, X: Any, fit: bool, width: int | None
    ) -> tuple[Any, str, int, np.ndarray | None]:
        """Validate X; see `_check`."""
        channels = None if fit else len(self.scale_)
        if fit and width is not None:
            channels = width
        ragged = is_ragged(X)
        X = X if ragged else to_numpy(X)
        is_3d = not ragged and (getattr(X, "ndim", None) == 3 or _nested_depth(X) == 3)
        if (ragged or is_3d) and not fit and self._form == "2d" and width is None:
            raise ValueError(
                f"X holds tokens, but {type(self).__name__} was fitted on a 2-D table without "
                "token_dim. Set token_dim to use both forms."
            )
        if ragged:
            sequences = check_sequences(X, channels, type(self).__name__)
            return sequences, "ragged", sequences[0].shape[1], None
        options = {"dtype": [np.float64, np.float32], "ensure_all_finite": "allow-nan"}
        if is_3d:
            values = check_array(X, allow_nd=True, estimator=self, input_name="X", **options)
            if channels is not None and values.shape[2] != channels:
                raise ValueError(
                    f"X has {values.shape[2]} channels per token (shape {values.shape}), but "
                    f"{type(self).__name__} is expecting {channels}."
                )
            return values, "3d", values.shape[2], None
        if not fit and self._form != "2d":
            if width is None:
                raise ValueError(
                    f"X is 2-D, but {type(self).__name__} was fitted on tokens of {channels} "
                    "channels (3-D or ragged). Set token_dim to pass flattened windows."
                )
            values, names = check_array(X, estimator=self, input_name="X", **options), None
        else:
            # A scratch estimator keeps a failing fit from leaving fitted attributes behind.
            checker = TokenStandardScaler() if fit else self
            values = validate_data(checker, X, reset=fit, **options)
            names = getattr(checker, "feature_names_in_", None)
        n_columns = values.shape[1]
        width = n_columns if width is None else width
        if n_columns % width:
            raise ValueError(
                f"X has {n_columns} columns, which is no multiple of token_dim={width}: flattened "
                "windows hold T tokens of token_dim values each."
            )
        return values.reshape(len(values), -1, width), "2d", n_columns, names

    def _apply(self, X: Any, function: Any, contain: bool = True) -> Any:
        """Validate, map chunk by chunk and restore the form."""
        check_is_fitted(self, "scale_")
        values, form, *_ = self._check(X, fit=False)
        if form == "ragged":
            return [_mapped(function, sequence) for sequence in values]
        output = np.empty(values.shape, dtype=values.dtype)
        for rows, chunk in self._chunks(values, form):
            real = real_token_mask(chunk, self._padding(form))
            output[rows] = np.where(real[..., None], _mapped(function, chunk), chunk)
        if form == "2d":
            output = output.reshape(len(output), -1)
        if not contain or output.ndim != 2:
            return output
        names = list(self.get_feature_names_out())
        if len(names) != output.shape[1]:  # fitted on tokens, given flattened windows
            names = [f"x{i}" for i in range(output.shape[1])]
        return self._contain(output, X, names)

    def _padding(self, form: str) -> float | None:
        """Return the padding value where there may be padding: in windows, flattened or not."""
        windows = form == "3d" or (form == "2d" and self.token_dim is not None)
        return self.padding_value if windows else None

    def _scale(self, values: np.ndarray) -> np.ndarray:
        """Centre and scale in float64."""
        result = values - self.mean_ if self.with_mean else values.astype(np.float64)
        return result / self.scale_ if self.with_std else result

    def _unscale(self, values: np.ndarray) -> np.ndarray:
        """Undo `_scale`."""
        result = values * self.scale_ if self.with_std else values.astype(np.float64)
        return result + self.mean_ if self.with_mean else result

    @staticmethod
    def _chunks(values: Any, form: str) -> Iterator[tuple[slice, np.ndarray]]:
        """Rows and their tokens, of bounded size; ragged sequences one by one."""
        if form == "ragged":
            for i, sequence in enumerate(values):
                yield slice(i, i + 1), sequence[None]
            return
        step = max(1, _CHUNK_VALUES // max(1, values.shape[1] * values.shape[2]))
        for start in range(0, len(values), step):
            yield slice(start, start + step), values[start : start + step]


def _mapped(function: Any, values: np.ndarray) -> np.ndarray:
    """Map values; those that overflow are refused, as an infinite value of X is."""
    with np.errstate(over="ignore"):
        mapped = function(values).astype(values.dtype, copy=False)
    if np.isinf(mapped).any():
        raise ValueError(
            "X is so far from the training samples that its values overflow. Check its units."
        )
    return mapped


def _nested_depth(X: Any) -> int:
    """Depth of nested lists."""
    depth = 0
    while isinstance(X, (list, tuple)) and len(X):
        X, depth = X[0], depth + 1
    return depth + np.ndim(X) if depth else 0
