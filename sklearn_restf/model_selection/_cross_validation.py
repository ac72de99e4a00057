"""Cross-validation over residual_beta: what both ``...CV`` estimators share."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from sklearn.base import clone, is_classifier
from sklearn.exceptions import NotFittedError
from sklearn.metrics import check_scoring
from sklearn.model_selection import check_cv

from sklearn_restf._data.arrays import RawTokens
from sklearn_restf._data.batches import Batches
from sklearn_restf._estimator.base import ResidualTransformerBase
from sklearn_restf._estimator.fit import TrainableBase
from sklearn_restf._estimator.fitted import FITTED
from sklearn_restf._estimator.outcome import report
from sklearn_restf._estimator.sklearn_callbacks import FitContext
from sklearn_restf._model import Loss, ResidualTransformer
from sklearn_restf._training import TrainingResult
from sklearn_restf._utils.process_group import available_group
from sklearn_restf._utils.validation import BOOL, Constraint, is_bool, one_of
from sklearn_restf._utils.warnings import Log, recording, warn
from sklearn_restf.model_selection._folds import Fold, SweepData
from sklearn_restf.model_selection._results import Outcome, results_table, warn_of_outcomes
from sklearn_restf.model_selection._sweep import run_sweep


def is_betas(value: Any) -> bool:
    """Tell whether `value` is a non-empty sequence of finite numbers >= 0."""
    if isinstance(value, str) or np.ndim(value) != 1 or not np.size(value):
        return False
    values = np.asarray(value)
    return values.dtype.kind in "iuf" and bool((np.isfinite(values) & (values >= 0)).all())


def is_n_jobs(value: Any) -> bool:
    """Tell whether `value` is a number of jobs."""
    return isinstance(value, int | np.integer) and not is_bool(value) and value != 0


READ = ("n_features_in_", "feature_names_in_")

CALLABLE = Constraint(callable, "a callable")
SWEEP_CONSTRAINTS: dict[str, list[Constraint]] = {
    "residual_betas": [Constraint(is_betas, "a non-empty list of finite floats >= 0")],
    "scoring": [one_of(None), Constraint(lambda v: isinstance(v, str), "a str"), CALLABLE],
    "refit": [BOOL, CALLABLE],
    "n_jobs": [one_of(None), Constraint(is_n_jobs, "an int other than 0")],
}


def sweep_constraints(plain: dict[str, list[Constraint]]) -> dict[str, list[Constraint]]:
    """Return the constraints of a ``...CV`` estimator, given those of the plain one."""
    own = ("residual_beta", "warm_start")  # parameters of the plain estimators only
    return {k: v for k, v in plain.items() if k not in own} | SWEEP_CONSTRAINTS


class BetaSweepMixin(ResidualTransformerBase):
    """Choose residual_beta by cross-validation, then fit on all samples."""

    _plain: type[TrainableBase]
    _fitted_names = FITTED | {
        "best_index_", "best_score_", "cv_diagnostics_", "cv_results_", "n_splits_",
        "residual_beta_",
    }  # fmt: skip

    def _search(self, X: Any, y: Any, sample_weight: Any, groups: Any) -> None:
        """Read, split, sweep, choose, refit."""
        refuse_process_group(type(self).__name__, self._plain.__name__)
        with self._new_state() as new:
            new._check_parameters()
            data = new._read_data(X, y, sample_weight)
            folds = new._split_into_folds(data, groups)
            new._store_outcomes(new._sweep(data, folds), folds)
            if new.refit:
                result = new._refit(data, FitContext.of(self, X, y))
                report(new, result)

    def _read_data(self, X: Any, y: Any, sample_weight: Any) -> SweepData:
        """Read the samples, for the search and for the model."""
        samples = self._read_samples(X, y, sample_weight, reset=True)
        return SweepData(
            X,
            y if samples.per_token else samples.y,
            samples,
            weighted=sample_weight is not None,
            attributes={name: vars(self)[name] for name in READ if name in vars(self)},
        )

    def _sweep(self, data: SweepData, folds: list[Fold]) -> list[list[Outcome]]:
        """Train and score a model for every residual_beta and fold, and say what they had to."""
        plain = clone(self._plain_estimator()).set_params(verbose=0)
        scorer = check_scoring(plain, scoring=self.scoring)
        others: Log = []  # what joblib has to say, for one
        with recording(others):
            outcomes = run_sweep(plain, self._betas(), data, folds, scorer, n_jobs=self.n_jobs)
        data.posed.__dict__.clear()  # what the last fold has on the device
        for category, message in others:
            warn(message, category)
        warn_of_outcomes(type(self).__name__, outcomes)
        return outcomes

    def _store_outcomes(self, outcomes: list[list[Outcome]], folds: list[Fold]) -> None:
        """Set the fitted attributes of the search."""
        self.cv_results_ = results_table(self._betas(), outcomes)
        self.cv_diagnostics_ = [[outcome.diagnostics for outcome in row] for row in outcomes]
        self.n_splits_ = len(folds)
        self.best_index_ = self._choose(len(outcomes))
        self.best_score_ = float(self.cv_results_["mean_test_score"][self.best_index_])
        self.residual_beta_ = self._betas()[self.best_index_]

    def _refit(self, data: SweepData, context: FitContext | None) -> TrainingResult:
        """Train the plain estimator with the chosen residual_beta, and store its state here."""
        plain = self._chosen()
        result = plain._fit_samples(plain._with_class_weights(data.samples), None, context)
        self.__dict__.update(plain._fitted_state())
        return result

    def _betas(self) -> list[float]:
        return [float(beta) for beta in self.residual_betas]

    def _plain_estimator(self, **parameters: Any) -> TrainableBase:
        """Return the plain estimator with these parameters."""
        own = self.get_params(deep=False)
        names = [name for name in self._plain().get_params(deep=False) if name in own]
        return self._plain(**{name: own[name] for name in names} | parameters)

    def _chosen(self) -> TrainableBase:
        """Return the plain estimator with the chosen residual_beta, fitted as far as this one."""
        plain = self._plain_estimator(residual_beta=self.residual_beta_)
        fitted = self._fitted_state().items()
        plain.__dict__.update({k: v for k, v in fitted if k in plain._fitted_names})
        return plain

    def _prepare_diagnosis(self, X: Any, y: Any) -> tuple[ResidualTransformer, Batches, Loss]:
        """Return a float64 module (fitted or initial), the samples and the loss, for diagnose."""
        if "residual_beta_" not in vars(self):
            raise NotFittedError(
                f"{type(self).__name__} has no residual_beta before fit, which chooses it from "
                "residual_betas."
            )
        return self._chosen()._prepare_diagnosis(X, y)

    def _split_into_folds(self, data: SweepData, groups: Any) -> list[Fold]:
        """Split the samples."""
        n, y = data.samples.tokens.n_samples, data.y
        rows = np.empty((n, 0)) if is_sequence_of_samples(data.X) else data.X
        if data.samples.per_token:
            y = None  # one target a token says nothing about how to split samples
        cv = check_cv(5 if self.cv is None else self.cv, y, classifier=is_classifier(self))
        folds = [Fold.of(train, test) for train, test in cv.split(rows, y, groups)]
        if not folds:
            raise ValueError(f"cv={self.cv!r} yields no split: at least one is needed.")
        for i, fold in enumerate(folds):
            for part, index in (("training", fold.train), ("test", fold.test)):
                if not len(index) or not data.samples.weight[index].any():
                    raise ValueError(
                        f"The {part} part of split {i} of cv has no sample of positive weight. "
                        "Choose other splits."
                    )
        return folds

    def _choose(self, n_candidates: int) -> int:
        """Return the index of the best residual_beta."""
        if not callable(self.refit):
            return int(self.cv_results_["rank_test_score"].argmin())
        index = self.refit(self.cv_results_)
        if not isinstance(index, int | np.integer) or not 0 <= index < n_candidates:
            raise ValueError(
                f"refit, a callable, must return an index in [0, {n_candidates - 1}] into the "
                f"residual_betas; it returned {index!r}."
            )
        return int(index)

    def _predict_raw(self, X: Any) -> tuple[np.ndarray, RawTokens]:
        if "cv_results_" in vars(self) and "_fitted" not in vars(self):
            raise NotFittedError(
                f"{type(self).__name__} was fitted with refit=False: it has chosen residual_beta "
                "and trained no model with it. Fit with refit=True to predict."
            )
        return super()._predict_raw(X)


def refuse_process_group(name: str, plain: str) -> None:
    """Raise where fit would share its samples: a search is for one process."""
    if available_group() is not None:
        raise RuntimeError(
            f"{name} searches in one process, and this one belongs to a torch.distributed process "
            "group. Search on one rank, within sklearn_restf.distributed.single_process(), then "
            f"fit {plain} on all ranks; or search by joblib, on dask."
        )


def is_sequence_of_samples(X: Any) -> bool:
    """Tell whether X holds its samples one by one, or is a tensor: splitters want neither."""
    return isinstance(X, list | tuple | torch.Tensor)
