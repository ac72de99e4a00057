"""What a search over ``residual_beta`` found, one entry for each beta."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
from sklearn.base import clone, is_classifier

from sklearn_restf._diagnostics.convergence_diagnostics import ConvergenceDiagnostics
from sklearn_restf.inspection._fitted_inside import unwrap


@dataclass(frozen=True)
class SweepResult:
    """Scores by beta, and which candidate of the search was best for each."""

    betas: list[float]
    scores: list[np.ndarray]
    score_name: str = "score"
    candidates: list[int] = field(default_factory=list)

    def recorded(self, search: Any, X: Any, y: Any) -> list[list[ConvergenceDiagnostics]]:
        """Return what fits of each beta recorded.

        The CV estimators of this package keep that of every fold. Other searches keep one
        fitted model; with samples, one is fitted for each other beta.
        """
        if (X is None) != (y is None):
            raise ValueError("Pass both X and y, or neither.")
        by_fold = getattr(search, "cv_diagnostics_", None)
        if by_fold is not None:  # None for a fold that diverged
            return [[seen for seen in by_fold[i] if seen is not None] for i in self.candidates]
        models = []
        for i in self.candidates:
            if i == getattr(search, "best_index_", -1) and hasattr(search, "best_estimator_"):
                models.append([search.best_estimator_])
            elif X is not None:
                parameters = clone_values(search.cv_results_["params"][i])
                models.append([clone(search.estimator).set_params(**parameters).fit(X, y)])
            else:
                models.append([])
        return [[diagnostics_of(model) for model in group] for group in models]


def diagnostics_of(estimator: Any) -> ConvergenceDiagnostics:
    """Return the diagnostics of the residual Transformer inside."""
    model, _ = unwrap(estimator)
    return model.convergence_diagnostics_


def read_search(search: Any) -> SweepResult:
    """Read ``cv_results_``: for each beta the scores of its best candidate on every fold."""
    results = getattr(search, "cv_results_", None)
    if results is None:
        raise TypeError(
            "from_search takes a fitted GridSearchCV, or another search with cv_results_; got "
            f"{type(search).__name__}. For fitted models there is from_estimators."
        )
    candidates = results["params"]
    key = next((name for params in candidates for name in params if is_beta(name)), None)
    if key is None:
        raise ValueError(
            "The search was not over residual_beta; its parameters are "
            f"{', '.join(map(repr, dict.fromkeys(chain(*candidates))))}."
        )
    metric = search.refit if getattr(search, "multimetric_", False) else "score"
    if f"mean_test_{metric}" not in results:
        raise ValueError("A search with several metrics needs refit='<metric>' to name one.")
    mean = np.asarray(results[f"mean_test_{metric}"], dtype=np.float64)
    resources = np.asarray(results.get("iter", np.zeros(len(mean))))  # of a halving search
    chosen: dict[float, int] = {}
    for i, candidate in enumerate(candidates):
        if key not in candidate:  # of another grid in the list
            continue
        beta = float(candidate[key])
        rank = (resources[i], np.nan_to_num(mean[i], nan=-np.inf))
        j = chosen.get(beta)
        if j is None or rank > (resources[j], np.nan_to_num(mean[j], nan=-np.inf)):
            chosen[beta] = i
    betas = sorted(chosen)
    folds = sorted(
        name for name in results if name.startswith("split") and name.endswith(f"_test_{metric}")
    )
    columns = [results[name] for name in folds] or [mean]
    scores = [np.array([column[chosen[beta]] for column in columns]) for beta in betas]
    return SweepResult(
        betas,
        scores,
        score_name=score_name(
            getattr(search, "estimator", search),
            metric if metric != "score" else getattr(search, "scoring", None),
        ),
        candidates=[chosen[beta] for beta in betas],
    )


def is_beta(parameter: str) -> bool:
    """Tell whether a parameter is residual_beta, of an estimator or of a step of a pipeline."""
    return parameter.rpartition("__")[2] == "residual_beta"


def score_name(estimator: Any, scoring: Any = None) -> str:
    """Name a score; without `scoring` that of the estimator's own ``score``."""
    if isinstance(scoring, str):
        return scoring.replace("_", " ")
    if scoring is not None:
        return "score"
    return "accuracy" if is_classifier(estimator) else "$R^2$"


def clone_values(parameters: dict[str, Any]) -> dict[str, Any]:
    """Return parameters whose estimators, if any, are copies, as in the search."""
    return {name: clone(value, safe=False) for name, value in parameters.items()}
