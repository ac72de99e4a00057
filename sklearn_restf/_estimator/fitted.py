"""The fitted state of an estimator: all of it or none, predictions, views, pickles, clones."""

from __future__ import annotations

import copy
import warnings
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from inspect import signature
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted
from skorch.callbacks import Callback
from skorch.history import History

from sklearn_restf._data.arrays import RawTokens
from sklearn_restf._data.batches import work_per_pass
from sklearn_restf._data.tokens import as_layout, check_compatible
from sklearn_restf._estimator.fitted_model import FittedModel
from sklearn_restf._estimator.prediction import predict_tokens
from sklearn_restf._model import ResidualTransformer, build_module
from sklearn_restf._training import FullBatchNet, TrainingSettings, gradients_enabled
from sklearn_restf._utils.device import cpu_by_default, prediction_device
from sklearn_restf._utils.threads import thread_limit

# what fit sets; all other attributes are the user's, or a subclass's
FITTED = frozenset({
    "_fitted", "_fitted_callbacks", "_target", "best_iteration_", "best_loss_", "classes_",
    "convergence_diagnostics_", "device_", "dtype_", "feature_names_in_", "learning_rate_",
    "loss_", "loss_curve_", "n_features_in_", "n_iter_", "n_outputs_", "n_tokens_",
    "stop_reason_", "validation_curve_",
})  # fmt: skip

BUILT_ON_ACCESS = ("module_", "net_")


class FittedEstimator(BaseEstimator):
    """What there is to a fitted model, beside training it."""

    _fitted: FittedModel
    callbacks: Any
    chunk_size: int | None
    device_: str
    dtype_: str
    loss_curve_: list[float]
    validation_curve_: list[float]
    _fitted_names = FITTED

    @abstractmethod
    def _read_X(self, X: Any, *, reset: bool, input_name: str = "X") -> RawTokens:
        """Validate X in any of the accepted forms."""

    @abstractmethod
    def _training_settings(self) -> TrainingSettings:
        """Return what the training loop needs to know of the parameters."""

    @contextmanager
    def _new_state(self, *, go_on: bool = False) -> Iterator[Self]:
        """Yield a copy to fit, unfitted or to `go_on` with; take over its state at the end.

        On an error nothing is taken over: the estimator stays as it was.
        """
        new = object.__new__(type(self))  # no copy.copy: a subclass may keep less in pickles
        names = self._fitted_names
        start = {k: v for k, v in vars(self).items() if go_on or k not in names}
        new.__dict__.update(start)
        with gradients_enabled(), cpu_by_default():
            yield new
        own = {k: v for k, v in vars(self).items() if k not in names}
        found = {k: v for k, v in vars(new).items() if k in names or v is not start.get(k, new)}
        self.__dict__ = own | found  # at once, whenever an interrupt comes

    def _fitted_state(self) -> dict[str, Any]:
        return {k: v for k, v in vars(self).items() if k in self._fitted_names}

    # --- predict --------------------------------------------------------------------

    def _read_as_fitted(self, X: Any) -> RawTokens:
        """Validate new samples, and bring them into the form of those of the fit."""
        fitted = self._fitted
        tokens = self._read_X(X, reset=False)
        check_compatible(
            fitted.layout,
            tokens,
            type(self).__name__,
            fixed=fitted.config.positional_encoding == "learned",
        )
        return as_layout(fitted.layout, tokens)

    @cpu_by_default()
    def _predict_raw(self, X: Any) -> tuple[np.ndarray, RawTokens]:
        """Return the module's outputs in float64, and the samples they belong to."""
        check_is_fitted(self)
        fitted, tokens = self._fitted, self._read_as_fitted(X)
        device = prediction_device(self.device_, type(self).__name__)
        with thread_limit(work_per_pass(fitted.config, tokens)):
            raw = predict_tokens(fitted, tokens, device, self.chunk_size)
        if not np.isfinite(raw).all():
            raise ValueError(
                "X is so far from the training samples that predictions overflow. Check its units."
            )
        return raw, tokens

    # --- views of the fitted model --------------------------------------------------

    @property
    @cpu_by_default()
    def module_(self) -> ResidualTransformer:
        """The fitted torch module, rebuilt from the stored weights at every access."""
        self._require_fitted("module_")
        return build_module(
            self._fitted.config, self._fitted.state, dtype=getattr(torch, self.dtype_)
        )

    @property
    @cpu_by_default()
    def net_(self) -> FullBatchNet:
        """A skorch net around :attr:`module_`, with the history of training.

        Its rows are iterations: ``train_loss``, ``valid_loss`` where there were validation
        samples, and of the last fit whatever callbacks recorded.
        """
        self._require_fitted("net_")
        net = FullBatchNet(self.module_, settings=self._training_settings()).initialize()
        curves = {"train_loss": self.loss_curve_, "valid_loss": self.validation_curve_}
        net.history = History(
            {"epoch": i + 1, "batches": [], **{k: v[i] for k, v in curves.items() if v}}
            for i in range(len(self.loss_curve_))
        )
        recorded = self._fitted.history or []
        for row, found in zip(
            net.history[len(net.history) - len(recorded) :], recorded, strict=True
        ):
            row.update(found | {"epoch": row["epoch"]})
        return net

    @property
    def callbacks_(self) -> list[Callback]:
        """The skorch callbacks as the fit used (and changed) them; not kept by pickle."""
        self._require_fitted("callbacks_")
        return getattr(self, "_fitted_callbacks", [])

    def __dir__(self) -> list[str]:
        """List what is there, without the views that looking at them would build.

        scikit-learn looks at every attribute to see whether it is there, and so do its display
        and whatever completes names.
        """
        names = [name for name in object.__dir__(self) if name not in BUILT_ON_ACCESS]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of what is deprecated
            return [name for name in names if hasattr(self, name)]

    def _require_fitted(self, name: str) -> None:
        if not self.__sklearn_is_fitted__():
            raise AttributeError(
                f"{type(self).__name__!r} object has no attribute {name!r} before fit"
            )

    def __sklearn_is_fitted__(self) -> bool:
        return "_fitted" in vars(self)

    def __sklearn_clone__(self) -> Any:
        try:
            return super().__sklearn_clone__()
        except TypeError:  # a callback that cannot be copied (it holds a lock, say) is shared
            if not self.callbacks:
                raise
            probe = copy.copy(self)
            probe.callbacks = None
            result = super(FittedEstimator, probe).__sklearn_clone__()
            result.callbacks = self.callbacks
            return result

    def __getstate__(self) -> dict[str, Any]:
        state = dict(super().__getstate__())  # a copy: what comes may be the very __dict__
        state.pop("_fitted_callbacks", None)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        # parameters that came after the file was written have their defaults
        super().__setstate__(defaults_of(type(self)) | state)


def defaults_of(estimator: type[BaseEstimator]) -> dict[str, Any]:
    """Return the default of every constructor parameter."""
    return {name: p.default for name, p in signature(estimator).parameters.items()}
