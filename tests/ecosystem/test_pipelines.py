"""Pipeline, ColumnTransformer and a search over both."""

from sklearn.compose import make_column_transformer
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from sklearn_restf import ResidualTransformerRegressor

FEW = {"max_iter": 30, "tol": None, "random_state": 0}


def test_pipeline_and_column_transformer(employees):
    frame, salary = employees
    columns = make_column_transformer(
        (OneHotEncoder(sparse_output=False), ["department"]), (StandardScaler(), ["hours"])
    )
    model = make_pipeline(columns, ResidualTransformerRegressor(**FEW))
    search = GridSearchCV(
        model, {"residualtransformerregressor__residual_beta": [0.5, 1.0]}, cv=3
    ).fit(frame, salary)
    assert search.score(frame, salary) > 0.9
