"""Runs recorded by mlflow."""

import pytest
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from sklearn_restf import ResidualTransformerClassifier

mlflow = pytest.importorskip("mlflow")

FEW = {"max_iter": 30, "tol": None, "random_state": 0}


def test_mlflow_records_diagnostics(iris, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # artifacts go to the working folder
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path / 'runs.db'}")
    with mlflow.start_run() as run:
        model = ResidualTransformerClassifier(**FEW).fit(*iris)
        mlflow.log_params(model.get_params())
        mlflow.log_metric("rate", model.convergence_diagnostics_.rate)
        mlflow.log_dict(model.convergence_diagnostics_.to_dict(), "diagnostics.json")
    recorded = mlflow.get_run(run.info.run_id).data
    assert recorded.params["residual_beta"] == "1.0"
    assert recorded.metrics["rate"] == pytest.approx(model.convergence_diagnostics_.rate)


def test_mlflow_autolog(iris, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # artifacts go to the working folder
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path / 'runs.db'}")
    mlflow.sklearn.autolog(log_models=False, log_datasets=False, silent=True)
    try:
        with mlflow.start_run() as run:
            make_pipeline(StandardScaler(), ResidualTransformerClassifier(**FEW)).fit(*iris)
    finally:
        mlflow.sklearn.autolog(disable=True)
    metrics = mlflow.get_run(run.info.run_id).data.metrics
    assert metrics["training_accuracy_score"] > 0.9
