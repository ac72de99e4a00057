"""Forecasting by the reduction of sktime."""

import numpy as np
import pytest

from sklearn_restf import ResidualTransformerRegressor

pytest.importorskip("sktime")

FEW = {"max_iter": 30, "tol": None, "random_state": 0}


def test_sktime_reduction_forecaster(daily_series):
    from sktime.forecasting.compose import make_reduction

    forecaster = make_reduction(
        ResidualTransformerRegressor(**FEW), window_length=14, strategy="recursive"
    )
    forecast = forecaster.fit(daily_series[:-7]).predict(fh=range(1, 8))
    assert np.abs(forecast.to_numpy().ravel() - daily_series[-7:].to_numpy()).mean() < 0.3
