"""A search by optuna."""

import pytest
from sklearn.model_selection import cross_val_score

from sklearn_restf import ResidualTransformerClassifier

optuna = pytest.importorskip("optuna")

FEW = {"max_iter": 30, "tol": None, "random_state": 0}


def test_optuna_study(iris):
    optuna.logging.set_verbosity(optuna.logging.WARNING)

    def objective(trial):
        model = ResidualTransformerClassifier(
            **FEW, residual_beta=trial.suggest_float("residual_beta", 0.0, 1.5)
        )
        return cross_val_score(model, *iris, cv=2).mean()

    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.RandomSampler(seed=0))
    study.optimize(objective, n_trials=3)
    assert study.best_value > 0.8
