"""Forecasting by skforecast."""

import numpy as np
import pytest

from sklearn_restf import ResidualTransformerRegressor

pytest.importorskip("skforecast")

FEW = {"max_iter": 30, "tol": None, "random_state": 0}


def test_skforecast_recursive_forecaster(daily_series):
    from skforecast.recursive import ForecasterRecursive

    forecaster = ForecasterRecursive(ResidualTransformerRegressor(**FEW), lags=14)
    forecaster.fit(y=daily_series[:-7])
    forecast = forecaster.predict(steps=7)
    assert np.abs(forecast.to_numpy() - daily_series[-7:].to_numpy()).mean() < 0.3
