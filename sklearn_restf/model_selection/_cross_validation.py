"""Cross-validation over residual_beta: what both ``...CV`` estimators share."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from sklearn.base import clone, is_classifier
from sklearn.exceptions import DataConversionWarning, NotFittedError
from sklearn.metrics import check_scoring
from sklearn.model_selection import check_cv

from sklearn_restf._data.arrays import RawTokens
from sklearn_restf._data.samples import Samples
from sklearn_restf._data.targets import read_sample_weight
from sklearn_restf._estimator.base import ResidualTransformerBase
from sklearn_restf._utils.process_group import available_group
from sklearn_restf._utils.validation import BOOL, Constraint, is_bool, one_of
from sklearn_restf._utils.warnings import Log, recording, warn
from sklearn_restf.model_selection._folds import Fold, SweepData
from sklearn_restf.model_selection._results import results_table, tell
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

    _plain: type[ResidualTransformerBase]
    warm_start = False  # no parameter here: every fit starts afresh

    @property
    def residual_beta(self) -> float:
        """The residual_beta of the model: the one chosen in fit."""
        if "residual_beta_" not in vars(self):
            raise NotFittedError(
                f"{type(self).__name__} has no residual_beta before fit, which chooses it from "
                "residual_betas."
            )
        return self.residual_beta_

    def _sweep(self, X: Any, y: Any, sample_weight: Any, groups: Any) -> None:
        """Cross-validate, choose, refit."""
        if available_group() is not None:
            raise RuntimeError(
                f"{type(self).__name__} searches in one process, and this one belongs to a "
                "torch.distributed process group. Search on one rank, within "
                "sklearn_restf.distributed.single_process(), then fit "
                f"{self._plain.__name__} on all ranks; or search by joblib, on dask."
            )
        self._check_parameters()
        tokens = self._read_X(X, reset=True)
        weight = read_sample_weight(sample_weight, tokens.n_samples, self)
        targets = self._read_targets(y, tokens, "y")
        per_token = self.pooling == "none"
        data = SweepData(
            X,
            y if per_token else targets,
            Samples(tokens, targets, weight, per_token),
            weighted=sample_weight is not None,
            attributes={name: vars(self)[name] for name in READ if name in vars(self)},
        )
        plain = self._plain_estimator()
        betas = [float(beta) for beta in self.residual_betas]
        folds = self._folds(data, groups)
        scorer = check_scoring(plain, scoring=self.scoring)
        others: Log = []  # what joblib has to say, for one
        with recording(others):
            outcomes = run_sweep(plain, betas, data, folds, scorer, n_jobs=self.n_jobs)
        for category, message in others:
            warn(message, category)
        tell(type(self).__name__, outcomes)

        self.cv_results_ = results_table(betas, outcomes)
        self.cv_diagnostics_ = [[outcome.diagnostics for outcome in row] for row in outcomes]
        self.n_splits_ = len(folds)
        self.best_index_ = self._choose(len(betas))
        self.best_score_ = float(self.cv_results_["mean_test_score"][self.best_index_])
        self.residual_beta_ = betas[self.best_index_]
        if self.refit:
            with warnings.catch_warnings():
                # said when y was read above
                warnings.simplefilter("ignore", DataConversionWarning)
                self._fit(X, y, sample_weight)

    def _plain_estimator(self) -> ResidualTransformerBase:
        """Return the plain estimator with these parameters, ready to be fitted on folds."""
        own = self.get_params(deep=False)
        names = [name for name in self._plain().get_params(deep=False) if name in own]
        plain = clone(self._plain(**{name: own[name] for name in names}))
        return plain.set_params(verbose=0)

    def _folds(self, data: SweepData, groups: Any) -> list[Fold]:
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


def is_sequence_of_samples(X: Any) -> bool:
    """Tell whether X holds its samples one by one, or is a tensor: splitters want neither."""
    return isinstance(X, list | tuple | torch.Tensor)
