"""A history of each row of a series."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, OneToOneFeatureMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from sklearn_restf._data.arrays import as_numpy, validating
from sklearn_restf._utils.validation import BOOL, check_parameters, integer, one_of
from sklearn_restf.preprocessing._output import TokenOutputMixin
from sklearn_restf.preprocessing._series import frame_stamps, segments
from sklearn_restf.preprocessing._windows import gather

CONSTRAINTS = {
    "window": [integer(1)],
    "sampling": [integer(1)],
    "padding": [one_of("edge", "nan")],
    "flatten": [BOOL],
}


class SlidingWindows(TokenOutputMixin, OneToOneFeatureMixin, TransformerMixin, BaseEstimator):
    """Turn each row of a series into the window of rows that ends with it.

    The number of samples stays what it was, so this fits into a Pipeline: ``y[i]`` belongs to row
    ``i`` and is, in forecasting, already what comes later. Where windows may be dropped or set
    apart, and for the whole of a long series, use :func:`make_windows` before the Pipeline.

    Parameters
    ----------
    window : int, default=24
        Number of rows (tokens) in a window.
    sampling : int, default=1
        Rows between the successive rows of a window.
    padding : {"edge", "nan"}, default="edge"
        What stands in for rows before the first one: the first row repeated, or NaN (which the
        estimators skip when their ``padding_value`` is NaN).
    flatten : bool, default=False
        Return 2-D ``(n, window * c)``, token after token, instead of 3-D ``(n, window, c)``.

    Attributes
    ----------
    n_features_in_ : int
        Number of columns ``c``.
    feature_names_in_ : ndarray of shape (c,)
        Column names, when fitted on a frame with string column names.

    See Also
    --------
    make_windows : Windows with their targets, without padding.

    Notes
    -----
    Nothing is learned and nothing is remembered: the first ``window - 1`` rows of *each* call see
    a padded history, also those of a test block that continues the training block. In a pandas
    frame with an index of dates a window never reaches back across a gap in time: the first row
    after the gap is treated like the first row of all. NaN pass through.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn_restf.preprocessing import SlidingWindows
    >>> SlidingWindows(window=3).fit_transform(np.arange(4.0)[:, None])[:, :, 0]
    array([[0., 0., 0.],
           [0., 0., 1.],
           [0., 1., 2.],
           [1., 2., 3.]])
    """

    __module__ = "sklearn_restf.preprocessing"  # lasting: saved models name it

    def __init__(
        self,
        window: int = 24,
        *,
        sampling: int = 1,
        padding: str = "edge",
        flatten: bool = False,
    ):
        self.window = window
        self.sampling = sampling
        self.padding = padding
        self.flatten = flatten

    def fit(self, X: Any, y: Any = None) -> SlidingWindows:
        """Check the parameters and remember the columns.

        Parameters
        ----------
        X : array-like of shape (n, c)
            The series, oldest row first.
        y : None
            Ignored.

        Returns
        -------
        self : SlidingWindows
            The fitted transformer.

        Raises
        ------
        ValueError
            If a parameter is not among its allowed values.
        """
        check_parameters(type(self).__name__, vars(self), CONSTRAINTS)
        with validating("X"):
            validate_data(self, as_numpy(X), **self._checks())
        return self

    def transform(self, X: Any) -> Any:
        """Return the window that ends with each row.

        Parameters
        ----------
        X : array-like of shape (n, c)
            The series, oldest row first.

        Returns
        -------
        windows : ndarray of shape (n, window, c) or (n, window * c), or DataFrame
            3-D windows may be a read-only view. With ``flatten=True`` the container is that of
            ``set_output``.
        """
        check_is_fitted(self, "n_features_in_")
        with validating("X"):
            values = validate_data(self, as_numpy(X), reset=False, **self._checks())
            stamps = frame_stamps(X)
        n_rows, n_columns = values.shape
        reach = (self.window - 1) * self.sampling
        segment = None if stamps is None else segments(stamps)
        if segment is None or segment[-1] == segment[0]:
            fill = values[:1] if self.padding == "edge" else np.full_like(values[:1], np.nan)
            padded = np.concatenate([np.repeat(fill, reach, axis=0), values])
            windows = gather(padded, np.arange(n_rows), reach + 1, self.sampling)
        else:
            rows = np.arange(n_rows)[:, None] + np.arange(-reach, 1, self.sampling)
            first = np.searchsorted(segment, segment)[:, None]
            windows = values[np.maximum(rows, first)]
            if self.padding == "nan":
                windows[rows < first] = np.nan
        if not self.flatten:
            return windows
        flat = windows.reshape(n_rows, self.window * n_columns)
        return self._contain(flat, X, self.get_feature_names_out())

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """Return the names of the channels or, with ``flatten=True``, of the columns.

        Parameters
        ----------
        input_features : array-like of str of shape (c,), default=None
            Names of the columns; by default ``feature_names_in_``, or else ``x0, x1, ...``.

        Returns
        -------
        names : ndarray of str
            The ``c`` names; with ``flatten=True`` ``window * c`` names such as ``x0_lag2`` (two
            rows before the window's last).

        Raises
        ------
        ValueError
            If ``input_features`` has another length or differs from ``feature_names_in_``.
        """
        names = super().get_feature_names_out(input_features)
        if not self.flatten:
            return names
        lags = range((self.window - 1) * self.sampling, -1, -self.sampling)
        return np.array([f"{name}_lag{lag}" for lag in lags for name in names], dtype=object)

    def __sklearn_tags__(self) -> Any:
        """Declare what input is accepted."""
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags

    @staticmethod
    def _checks() -> dict[str, Any]:
        """Options of the input validation."""
        return {"dtype": [np.float64, np.float32], "ensure_all_finite": "allow-nan"}
