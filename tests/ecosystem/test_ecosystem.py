"""The estimators inside other libraries: each test is what a user of that library would write."""

import io

import numpy as np
import pandas as pd
import pytest
from sklearn.compose import make_column_transformer
from sklearn.datasets import load_iris
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from sklearn_restf import ResidualTransformerClassifier, ResidualTransformerRegressor

pytestmark = [
    pytest.mark.ecosystem,
    pytest.mark.filterwarnings("default"),  # what the others deprecate is not ours to mend
]


def needs(module):
    return pytest.importorskip(module, reason=f"{module} is not installed")


def classifier(**parameters):
    return ResidualTransformerClassifier(max_iter=30, tol=None, random_state=0, **parameters)


def regressor(**parameters):
    return ResidualTransformerRegressor(max_iter=30, tol=None, random_state=0, **parameters)


@pytest.fixture(scope="module")
def iris():
    return load_iris(return_X_y=True, as_frame=True)


@pytest.fixture(scope="module")
def employees():
    random = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "hired": pd.date_range("2020-01-01", periods=90, freq="D"),
            "department": random.choice(["police", "fire", "library"], 90),
            "hours": random.normal(40, 5, 90),
        }
    )
    return frame, frame["hours"] * 20 + 100 * (frame["department"] == "fire")


def daily_series():
    days = pd.date_range("2024-01-01", periods=120, freq="D")
    values = np.sin(np.arange(120) * 2 * np.pi / 7) + 0.01 * np.arange(120)
    return pd.Series(values, index=days, name="y")


def test_pipeline_and_column_transformer(employees):
    frame, salary = employees
    columns = make_column_transformer(
        (OneHotEncoder(sparse_output=False), ["department"]), (StandardScaler(), ["hours"])
    )
    model = make_pipeline(columns, regressor())
    search = GridSearchCV(
        model, {"residualtransformerregressor__residual_beta": [0.5, 1.0]}, cv=3
    ).fit(frame, salary)
    assert search.score(frame, salary) > 0.9


def test_skrub_table_vectorizer(employees):
    skrub = needs("skrub")
    frame, salary = employees
    model = make_pipeline(skrub.TableVectorizer(), StandardScaler(), regressor())
    assert model.fit(frame, salary).score(frame, salary) > 0.8


def test_polars_frame(iris):
    polars = needs("polars")
    X, y = iris
    frame = polars.DataFrame({name: X[name].to_numpy() for name in X})
    model = classifier().fit(frame, y)
    assert model.feature_names_in_.tolist() == list(X.columns)
    np.testing.assert_array_equal(model.predict(frame), classifier().fit(X, y).predict(X))


def test_imbalanced_learn_pipeline(iris):
    needs("imblearn")
    from imblearn.over_sampling import RandomOverSampler
    from imblearn.pipeline import make_pipeline as make_resampling_pipeline

    X, y = iris[0][:110], iris[1][:110]
    model = make_resampling_pipeline(RandomOverSampler(random_state=0), classifier()).fit(X, y)
    assert model.score(X, y) > 0.9


def test_optuna_study(iris):
    optuna = needs("optuna")
    optuna.logging.set_verbosity(optuna.logging.WARNING)

    def objective(trial):
        model = classifier(residual_beta=trial.suggest_float("residual_beta", 0.0, 1.5))
        return cross_val_score(model, *iris, cv=2).mean()

    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.RandomSampler(seed=0))
    study.optimize(objective, n_trials=3)
    assert study.best_value > 0.8


def test_sktime_reduction_forecaster():
    needs("sktime")
    from sktime.forecasting.compose import make_reduction

    series = daily_series()
    forecaster = make_reduction(regressor(), window_length=14, strategy="recursive")
    forecast = forecaster.fit(series[:-7]).predict(fh=range(1, 8))
    assert np.abs(forecast.to_numpy().ravel() - series[-7:].to_numpy()).mean() < 0.3


def test_skforecast_recursive_forecaster():
    needs("skforecast")
    from skforecast.recursive import ForecasterRecursive

    series = daily_series()
    forecaster = ForecasterRecursive(regressor(), lags=14)
    forecaster.fit(y=series[:-7])
    forecast = forecaster.predict(steps=7)
    assert np.abs(forecast.to_numpy() - series[-7:].to_numpy()).mean() < 0.3


def test_mlflow_records_diagnostics(iris, tmp_path, monkeypatch):
    mlflow = needs("mlflow")
    monkeypatch.chdir(tmp_path)  # artifacts go to the working folder
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path / 'runs.db'}")
    with mlflow.start_run() as run:
        model = classifier().fit(*iris)
        mlflow.log_params(model.get_params())
        mlflow.log_metric("rate", model.convergence_diagnostics_.rate)
        mlflow.log_dict(model.convergence_diagnostics_.to_dict(), "diagnostics.json")
    recorded = mlflow.get_run(run.info.run_id).data
    assert recorded.params["residual_beta"] == "1.0"
    assert recorded.metrics["rate"] == pytest.approx(model.convergence_diagnostics_.rate)


def test_mlflow_autolog(iris, tmp_path, monkeypatch):
    mlflow = needs("mlflow")
    monkeypatch.chdir(tmp_path)  # artifacts go to the working folder
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path / 'runs.db'}")
    mlflow.sklearn.autolog(log_models=False, log_datasets=False, silent=True)
    try:
        with mlflow.start_run() as run:
            make_pipeline(StandardScaler(), classifier()).fit(*iris)
    finally:
        mlflow.sklearn.autolog(disable=True)
    metrics = mlflow.get_run(run.info.run_id).data.metrics
    assert metrics["training_accuracy_score"] > 0.9


def test_skops_file(iris):
    skops_io = needs("skops.io")
    model = classifier().fit(*iris)
    content = skops_io.dumps(model)
    unknown = skops_io.get_untrusted_types(data=content)
    loaded = skops_io.load(io.BytesIO(content), trusted=unknown)
    np.testing.assert_array_equal(loaded.predict_proba(iris[0]), model.predict_proba(iris[0]))


def test_dask_backend_of_joblib(iris):
    distributed = needs("distributed")
    import joblib

    with distributed.Client(
        n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None
    ):
        search = GridSearchCV(classifier(), {"residual_beta": [0.0, 1.0]}, cv=2, n_jobs=2)
        with joblib.parallel_backend("dask"):
            search.fit(*iris)
    alone = GridSearchCV(classifier(), {"residual_beta": [0.0, 1.0]}, cv=2).fit(*iris)
    np.testing.assert_allclose(
        search.cv_results_["mean_test_score"], alone.cv_results_["mean_test_score"]
    )
