"""What estimators of labels have in common: encode labels, and decode predictions."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import log_expit, log_softmax
from sklearn.base import ClassifierMixin
from sklearn.utils import column_or_1d
from sklearn.utils.multiclass import check_classification_targets

from sklearn_restf._data.arrays import RawTokens, as_numpy, validating
from sklearn_restf._data.targets import check_length, common_labels, weighted_by_class
from sklearn_restf._estimator.base import ResidualTransformerBase
from sklearn_restf._estimator.parameter_constraints import PARAMETER_CONSTRAINTS
from sklearn_restf._model import Loss, binary_log_loss, multinomial_log_loss, squared_error
from sklearn_restf._utils.process_group import total
from sklearn_restf._utils.validation import Constraint, one_of, real

WEIGHT = real(0.0)


def is_class_weight(value: Any) -> bool:
    """Tell whether `value` is a dict of finite weights >= 0."""
    return isinstance(value, dict) and all(WEIGHT.holds(weight) for weight in value.values())


class ClassificationBase(ClassifierMixin, ResidualTransformerBase):
    """Targets that are labels: reading, encoding, predicting."""

    _parameter_constraints = PARAMETER_CONSTRAINTS | {
        "pooling": [one_of("auto", "mean", "last", "flatten")],
        "loss": [one_of("log_loss", "squared_error")],
        "class_weight": [
            one_of(None, "balanced"),
            Constraint(is_class_weight, "a dict of finite weights >= 0 by class"),
        ],
    }

    def predict(self, X: ArrayLike) -> np.ndarray:
        """Predict class labels.

        Parameters
        ----------
        X : array-like or list of arrays
            Samples, in a form fit would take.

        Returns
        -------
        y : ndarray of shape (n_samples,)
            The most probable label of each sample.

        Raises
        ------
        NotFittedError
            Before fit; for a ``...CV`` estimator also after ``refit=False``.
        ValueError
            If X has other features than in fit, or NaN or infinity.
        """
        raw, _ = self._predict_raw(X)
        if raw.shape[1] == 1:
            positive = (raw[:, 0] > 0) & (len(self.classes_) == 2)
            return self.classes_[positive.astype(int)]
        return self.classes_[raw.argmax(axis=1)]

    def decision_function(self, X: ArrayLike) -> np.ndarray:
        """Return the confidence scores: the logits, or their difference for two classes.

        Parameters
        ----------
        X : array-like or list of arrays
            Samples, in a form fit would take.

        Returns
        -------
        scores : ndarray of shape (n_samples,) for two classes, else (n_samples, n_classes)
            Positive means ``classes_[1]`` for two classes.
        """
        raw, _ = self._predict_raw(X)
        if raw.shape[1] == 1:
            return raw[:, 0]
        return raw[:, 1] - raw[:, 0] if len(self.classes_) == 2 else raw

    def predict_proba(self, X: ArrayLike) -> np.ndarray:
        """Return class probabilities.

        Parameters
        ----------
        X : array-like or list of arrays
            Samples, in a form fit would take.

        Returns
        -------
        probabilities : ndarray of shape (n_samples, n_classes)
            In the order of ``classes_``. With ``loss="squared_error"`` the outputs clipped to
            [0, 1] and normalised.
        """
        raw, _ = self._predict_raw(X)
        if len(self.classes_) == 1:
            return np.ones((len(raw), 1))
        return self._fitted_loss().probabilities(raw)

    def predict_log_proba(self, X: ArrayLike) -> np.ndarray:
        """Return the logarithm of class probabilities.

        Parameters
        ----------
        X : array-like or list of arrays
            Samples, in a form fit would take.

        Returns
        -------
        log_probabilities : ndarray of shape (n_samples, n_classes)
            Computed from the logits, so that small probabilities do not become -inf.
        """
        raw, _ = self._predict_raw(X)
        if len(self.classes_) == 1:
            return np.zeros((len(raw), 1))
        loss = self._fitted_loss()
        if loss is squared_error:
            with np.errstate(divide="ignore"):
                return np.log(loss.probabilities(raw))
        if loss is binary_log_loss:
            return np.column_stack([log_expit(-raw[:, 0]), log_expit(raw[:, 0])])
        return log_softmax(raw, axis=1)

    def _read_targets(self, y: Any, tokens: RawTokens, input_name: str) -> np.ndarray:
        name = type(self).__name__
        if y is None:
            raise ValueError(
                f"This {name} estimator requires y to be passed, but the target y is None."
            )
        with validating(input_name):
            return self._read_labels(y, tokens, input_name)

    def _read_labels(self, y: Any, tokens: RawTokens, input_name: str) -> np.ndarray:
        name = type(self).__name__
        y = as_numpy(y)
        shape = np.asarray(y).shape
        if len(shape) == 2 and shape[1] > 1:
            raise ValueError(
                f"{input_name} has shape {shape}: {name} takes one label per sample, neither "
                "multilabel nor multioutput targets. See sklearn.multioutput."
            )
        y = column_or_1d(y, warn=True)  # which refuses sparse labels
        assert_finite_labels(y, input_name)
        check_classification_targets(y)
        check_length(y, tokens, input_name)
        return y

    def _stratify(self, y: np.ndarray) -> np.ndarray:
        return y

    def _class_weight(self, y: np.ndarray, weight: np.ndarray) -> np.ndarray:
        if self.class_weight is None:
            return weight
        weight = weighted_by_class(weight, y, self.class_weight)
        if not weight.any():
            raise ValueError(
                f"class_weight={self.class_weight!r} leaves no sample a weight above zero."
            )
        return weight

    def _placeholder_targets(self, tokens: RawTokens) -> np.ndarray:
        known = getattr(self, "classes_", np.zeros(1, dtype=int))  # of a fitted one
        return np.repeat(known[:1], tokens.n_samples)

    def _learn_targets(self, y: np.ndarray, tokens: RawTokens, weight: np.ndarray) -> None:
        self.classes_ = common_labels(y)
        self.n_outputs_ = 1

    def _encode_targets(
        self, y: np.ndarray, tokens: RawTokens, input_name: str = "y"
    ) -> np.ndarray:
        try:
            index = np.searchsorted(self.classes_, y)
            known = self.classes_[np.minimum(index, len(self.classes_) - 1)] == y
        except TypeError:  # labels of another kind, which do not compare
            known = np.zeros(len(y), dtype=bool)
        if not known.all():
            raise ValueError(
                f"{input_name} contains class labels that are not in classes_ = {self.classes_}: "
                f"{np.unique(y[~known])[:10]}."
            )
        if self._loss_function() is binary_log_loss:
            return np.where(index == 1, 1.0, -1.0)[:, None]
        return np.eye(len(self.classes_))[index]

    def _initial_bias(self, encoded: np.ndarray, weight: np.ndarray) -> np.ndarray:
        """Start from the class frequencies."""
        weights = total(weight.sum())
        if self.loss == "squared_error":
            return total(weight @ encoded) / weights
        binary = self._loss_function() is binary_log_loss
        shares = weight @ (np.hstack([encoded < 0, encoded > 0]) if binary else encoded)
        shares = total(shares)
        # a class of next to no weight has a share that is zero but for rounding
        logs = np.log(np.maximum(shares / weights, np.finfo(np.float64).tiny))
        return logs[1:] - logs[:1] if binary else logs

    def _class_indices(self, y: np.ndarray) -> np.ndarray:
        return np.searchsorted(self.classes_, y)

    def _loss_function(self) -> Loss:
        return self._loss_named(self.loss)

    def _fitted_loss(self) -> Loss:
        return self._loss_named(self._fitted.loss)

    def _loss_named(self, name: str) -> Loss:
        if name == "squared_error":
            return squared_error
        return binary_log_loss if len(self.classes_) == 2 else multinomial_log_loss


def assert_finite_labels(y: Any, input_name: str) -> None:
    """Raise when labels contain NaN, None or infinity."""
    values = np.asarray(y)
    if values.dtype == object:
        missing = any(is_missing(value) for value in values.ravel())
    else:
        missing = bool((values != values).any())  # NaN and NaT
    if missing:
        raise ValueError(f"Input {input_name} contains NaN.")
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        raise ValueError(f"Input {input_name} contains infinity.")


def is_missing(label: Any) -> bool:
    """Tell whether a label is None, NaN, NaT or NA."""
    try:
        return label is None or bool(label != label)
    except TypeError:  # whether pandas' NA differs from itself is NA
        return True
