"""What all estimators share: parameters, reading samples, predicting, tags."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np
from sklearn.utils import Tags

from sklearn_restf._data.arrays import RawTokens, read_X
from sklearn_restf._data.samples import Samples
from sklearn_restf._data.targets import read_sample_weight
from sklearn_restf._estimator.fitted import FittedEstimator
from sklearn_restf._estimator.parameter_constraints import PARAMETER_CONSTRAINTS
from sklearn_restf._estimator.sklearn_callbacks import CallbackSupportMixin
from sklearn_restf._model import Loss
from sklearn_restf._training import TrainingSettings
from sklearn_restf._utils.validation import check_parameters, plain


class ResidualTransformerBase(CallbackSupportMixin, FittedEstimator):
    """An estimator, trained or chosen: the regressors and the classifiers."""

    _parameter_constraints = PARAMETER_CONSTRAINTS

    @abstractmethod
    def _read_targets(self, y: Any, tokens: RawTokens, input_name: str) -> np.ndarray:
        """Validate y; one entry per sample, or per token."""

    @abstractmethod
    def _loss_function(self) -> Loss:
        """Return the training loss."""

    def _check_parameters(self) -> None:
        check_parameters(
            type(self).__name__, self.get_params(deep=False), self._parameter_constraints
        )

    def _read_samples(
        self, X: Any, y: Any, sample_weight: Any, *, reset: bool, suffix: str = ""
    ) -> Samples:
        """Validate samples; `suffix` names the arguments."""
        tokens = self._read_X(X, reset=reset, input_name=f"X{suffix}")
        weight = read_sample_weight(sample_weight, tokens.n_samples, self, f"sample_weight{suffix}")
        y = self._read_targets(y, tokens, f"y{suffix}")
        return Samples(tokens, y, weight, self.pooling == "none")

    def _read_X(self, X: Any, *, reset: bool, input_name: str = "X") -> RawTokens:
        return read_X(
            self,
            X,
            reset=reset,
            token_dim=self.token_dim,
            padding_value=self.padding_value,
            input_name=input_name,
        )

    def _training_settings(self) -> TrainingSettings:
        return TrainingSettings(
            loss=self._loss_function(),
            learning_rate=plain(self.learning_rate),
            momentum=float(self.momentum),
            alpha=float(self.alpha),
            max_iter=int(self.max_iter),
            tol=plain(self.tol),
            n_iter_no_change=int(self.n_iter_no_change),
            verbose=int(self.verbose),
        )

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = True
        tags.input_tags.three_d_array = True
        tags.input_tags.allow_nan = False
        tags.target_tags.required = True
        return tags
