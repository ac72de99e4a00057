"""What estimators of numbers have in common: standardise y, and undo it in prediction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import RegressorMixin
from sklearn.metrics import r2_score
from sklearn.utils import Tags

from sklearn_restf._data.arrays import RawTokens
from sklearn_restf._data.targets import read_sample_weight, read_y_numeric
from sklearn_restf._data.tokens import weighted_moments
from sklearn_restf._estimator.base import ResidualTransformerBase
from sklearn_restf._model import Loss, squared_error


class RegressionBase(RegressorMixin, ResidualTransformerBase):
    """Targets that are numbers: reading, standardising, predicting, scoring."""

    def predict(self, X: ArrayLike) -> np.ndarray | list[np.ndarray]:
        """Predict targets.

        Parameters
        ----------
        X : array-like or list of arrays
            Samples, in a form fit would take.

        Returns
        -------
        y : ndarray of shape (n_samples,) or (n_samples, n_outputs)
            Predictions, float64. With ``pooling="none"`` one per token: (n_samples, n_tokens),
            NaN at padding, or a list of arrays for a list X.

        Raises
        ------
        NotFittedError
            Before fit; for a ``...CV`` estimator also after ``refit=False``.
        ValueError
            If X has other features than in fit, or NaN or infinity.
        """
        raw, tokens = self._predict_raw(X)
        y = self._target.decode(raw)
        if self._fitted.config.pooling != "none":
            return y
        return per_token_like(X, y, tokens)

    def score(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """Return the coefficient of determination R^2 of the predictions.

        Parameters
        ----------
        X : array-like or list of arrays
            Samples.
        y : array-like
            True targets.
        sample_weight : array-like of shape (n_samples,), default=None
            Sample weights.

        Returns
        -------
        score : float
            R^2; with ``pooling="none"`` over all real tokens.
        """
        if self.pooling != "none":
            return super().score(X, y, sample_weight)
        raw, tokens = self._predict_raw(X)
        true = self._columns(self._read_targets(y, tokens, "y"), tokens)
        predicted = self._target.mean + self._target.scale * raw
        weight = read_sample_weight(sample_weight, tokens.n_samples, self)
        counts = tokens.lengths if tokens.lengths is not None else tokens.values.shape[1]
        return float(
            r2_score(
                true.reshape(-1, true.shape[-1]),
                predicted.reshape(-1, true.shape[-1]),
                sample_weight=np.repeat(weight, counts),
            )
        )

    def _read_targets(self, y: Any, tokens: RawTokens, input_name: str) -> np.ndarray:
        per_token = self.pooling == "none"
        if per_token and tokens.lengths is None and tokens.values.ndim == 2:
            raise ValueError(
                "pooling='none' predicts one target per token and needs sequences: 3-D X, a list "
                "of arrays, or 2-D windows with token_dim."
            )
        return read_y_numeric(y, tokens, self, per_token=per_token, input_name=input_name)

    def _columns(self, y: np.ndarray, tokens: RawTokens) -> np.ndarray:
        """Return y with an output axis."""
        return y[..., None] if self._is_single(y, tokens) else y

    def _is_single(self, y: np.ndarray, tokens: RawTokens) -> bool:
        token_axis = self.pooling == "none" and tokens.lengths is None
        return y.ndim == 1 + token_axis

    def _placeholder_targets(self, tokens: RawTokens) -> np.ndarray:
        if self.pooling != "none":
            return np.zeros(tokens.n_samples)
        return np.zeros(tokens.values.shape[: 2 if tokens.lengths is None else 1])

    def _learn_targets(self, y: np.ndarray, tokens: RawTokens, weight: np.ndarray) -> None:
        mean, scale = self._target_moments(y, tokens, weight)
        self._target = TargetScaling(mean, scale, self._is_single(y, tokens))
        self.n_outputs_ = len(mean)

    def _target_moments(
        self, y: np.ndarray, tokens: RawTokens, weight: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return mean and standard deviation of each output (0 where constant)."""
        if self.pooling == "none" and tokens.lengths is not None:
            weight = np.repeat(weight, tokens.lengths)
        return weighted_moments(RawTokens(self._columns(y, tokens)), weight, "y")[:2]

    def _refuse_other_targets(self, y: np.ndarray, tokens: RawTokens, weight: np.ndarray) -> None:
        constant = self._target.scale == 0
        if not self.warm_start or not constant.any():  # diagnose comes here as well
            return
        _, scale = self._target_moments(y, tokens, weight)
        if len(scale) == self.n_outputs_ and scale[constant].any():
            raise ValueError(
                "warm_start=True cannot go on: y was constant in the fit before, and predictions "
                "are in its units. Fit a clone, or set warm_start=False."
            )

    def _encode_targets(
        self, y: np.ndarray, tokens: RawTokens, input_name: str = "y"
    ) -> np.ndarray:
        columns = self._columns(y, tokens)
        if columns.shape[-1] != self.n_outputs_:
            raise ValueError(
                f"{input_name} has {columns.shape[-1]} output(s), but {self.n_outputs_} were "
                "fitted."
            )
        encoded = self._target.encode(columns)
        if not np.isfinite(encoded).all():
            raise ValueError(
                f"{input_name} is so far from the targets of most weight that it overflows in "
                "units of their spread. Check the units of y and the weights."
            )
        return encoded

    def _loss_function(self) -> Loss:
        return squared_error

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        tags.target_tags.single_output = True
        return tags


@dataclass(frozen=True)
class TargetScaling:
    """Centre and scale of each output; a constant output has scale 0."""

    __module__ = "sklearn_restf._estimator"  # lasting: saved models name it

    mean: np.ndarray
    scale: np.ndarray
    is_1d: bool

    def encode(self, y: np.ndarray) -> np.ndarray:
        """Return standardised targets."""
        with np.errstate(over="ignore"):
            return (y - self.mean) / np.where(self.scale > 0, self.scale, 1.0)

    def decode(self, raw: np.ndarray) -> np.ndarray:
        """Return predictions in the units of y: exactly the mean where y was constant."""
        with np.errstate(over="ignore"):
            y = self.mean + self.scale * raw
        if not np.isfinite(y).all():
            raise ValueError("Predictions overflow float64 in the units of y. Rescale y, then fit.")
        return y[..., 0] if self.is_1d else y


def per_token_like(X: Any, y: np.ndarray, tokens: RawTokens) -> np.ndarray | list[np.ndarray]:
    """Bring per-token predictions into the form of X: list for list, padded for padded."""
    if tokens.lengths is None:
        return list(y) if isinstance(X, list | tuple) else y
    if isinstance(X, list | tuple) or np.ndim(X) != 3:
        return np.split(y, np.cumsum(tokens.lengths)[:-1])
    padded = np.full((*np.shape(X)[:2], *y.shape[1:]), np.nan)
    padded[tokens.real if tokens.real is not None else np.ones(padded.shape[:2], bool)] = y
    return padded
