"""What cross-validation leaves behind: one outcome per fitted model, and their table."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.stats import rankdata
from sklearn.exceptions import FitFailedWarning

from sklearn_restf._diagnostics.convergence_diagnostics import ConvergenceDiagnostics
from sklearn_restf._utils.warnings import Log, recording, warn
from sklearn_restf.exceptions import DivergenceError, RankCollapseWarning
from sklearn_restf.model_selection._folds import Held

Scorer = Callable[..., float]


@dataclass
class Outcome:
    """What became of one model, of one residual_beta and one fold."""

    score: float = np.nan
    fit_time: float = 0.0
    score_time: float = 0.0
    diagnostics: ConvergenceDiagnostics | None = None
    failure: str | None = None
    warnings: Log = field(default_factory=list)


def conclude(
    outcome: Outcome, estimator: Any, fit: Callable[[], None], held: Held, scorer: Scorer
) -> Outcome:
    """Call `fit`, score the estimator on held-out samples, and fill in the outcome.

    A diverged model scores NaN, as in scikit-learn's searches: the other residual_betas may
    do better. Every other error says that the folds or the parameters cannot be used.
    """
    with recording(outcome.warnings):
        start = time.perf_counter()
        try:
            fit()
        except DivergenceError as error:
            outcome.failure = str(error)
        else:
            outcome.diagnostics = estimator.convergence_diagnostics_
        fitted = time.perf_counter()
        if outcome.failure is None:
            outcome.score = held_out_score(scorer, estimator, held)
        outcome.fit_time += fitted - start
        outcome.score_time = time.perf_counter() - fitted
    return outcome


@np.errstate(over="ignore", invalid="ignore")  # a score of huge targets may be infinite
def held_out_score(scorer: Scorer, estimator: Any, held: Held) -> float:
    """Return the score, weighted where the scorer takes weights."""
    if held.weight is not None:
        try:
            return as_number(scorer(estimator, held.X, held.y, sample_weight=held.weight))
        except TypeError as error:  # a metric without weights, say the median error
            if "sample_weight" not in str(error):
                raise
    return as_number(scorer(estimator, held.X, held.y))


def as_number(score: Any) -> float:
    """Return a score as a float."""
    if np.ndim(score) or isinstance(score, str | dict):
        raise ValueError(f"scoring must return a number; it returned {score!r}.")
    return float(score)


@np.errstate(over="ignore", invalid="ignore")
def results_table(betas: Sequence[float], outcomes: list[list[Outcome]]) -> dict[str, Any]:
    """Return ``cv_results_`` in the format of scikit-learn's GridSearchCV."""
    results: dict[str, Any] = {}
    for name in ("fit_time", "score_time"):
        times = np.array([[getattr(outcome, name) for outcome in row] for row in outcomes])
        results[f"mean_{name}"], results[f"std_{name}"] = times.mean(axis=1), times.std(axis=1)
    results["param_residual_beta"] = np.ma.MaskedArray(np.array(betas), mask=False)
    results["params"] = [{"residual_beta": beta} for beta in betas]
    scores = np.array([[outcome.score for outcome in row] for row in outcomes])
    for fold, column in enumerate(scores.T):
        results[f"split{fold}_test_score"] = column.copy()
    means = scores.mean(axis=1)
    results["mean_test_score"], results["std_test_score"] = means, scores.std(axis=1)
    # failed ones come last, together
    worst = np.nanmin(means) - 1 if not np.isnan(means).all() else 0.0
    ranks = rankdata(-np.nan_to_num(means, nan=worst), method="min")
    results["rank_test_score"] = ranks.astype(np.int32)
    return results


def warn_of_outcomes(name: str, outcomes: list[list[Outcome]]) -> None:
    """Pass on what the models had to say: one warning per kind, not one per model.

    A collapsed rank is an expected finding of a sweep down to 0; the diagnostics have it.
    """
    flat = [outcome for row in outcomes for outcome in row]
    failures = [outcome.failure for outcome in flat if outcome.failure]
    if len(failures) == len(flat):
        raise DivergenceError(f"All {len(flat)} cross-validation fits failed: {failures[0]}")
    if failures:
        warn(
            f"{len(failures)} of {len(flat)} cross-validation fits of {name} failed and score "
            f"NaN. The first says: {failures[0]}",
            FitFailedWarning,
        )
    by_category: dict[type[Warning], list[str]] = {}
    for outcome in flat:
        # of each kind the first, so that models are counted, not messages
        for category, message in dict(reversed(outcome.warnings)).items():
            by_category.setdefault(category, []).append(message)
    by_category.pop(RankCollapseWarning, None)
    for category, messages in by_category.items():
        warn(
            f"{len(messages)} of {len(flat)} cross-validation fits of {name} gave this warning; "
            f"the first one says: {messages[0]}",
            category,
        )
