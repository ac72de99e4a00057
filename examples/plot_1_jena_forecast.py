"""
Forecasting the temperature in Jena
===================================

From the last 24 hours of a weather station's readings, what will the temperature be at this hour
tomorrow? A day ahead is a hard case: the daily cycle is back where it was, so *the temperature of
now* is a strong forecast, and one year of data holds few independent days. This example compares
that forecast (persistence) with a linear model, a multilayer perceptron, gradient boosting and a
residual Transformer, all on the same windows, and shows what can be had and what cannot.

It runs on ``jena_2020.csv.gz``, a file of the weather station in Jena, where that is found in the
folder ``SKLEARN_RESTF_DATA``; otherwise on a generated series.
"""

# %%
# From a file to windows
# ----------------------
# ``load_mpi_roof`` reads the station's files as they are, repairs stamps and sentinels, and says
# what it repaired. One reading an hour is kept; a missing one is replaced by the last before it.
# ``make_windows`` cuts the series into windows and targets, without a copy.

import os
import warnings
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import Ridge
from sklearn.neural_network import MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from sklearn_restf import ResidualTransformerRegressor
from sklearn_restf.datasets import load_mpi_roof, make_climate_series
from sklearn_restf.preprocessing import make_windows

TARGET = "T (degC)"
WINDOW, HORIZON, STRIDE = 24, 24, 3


def load_hourly():
    """Return one reading an hour."""
    for folder in (os.environ.get("SKLEARN_RESTF_DATA", ""), "../shared/data", "../../shared/data"):
        path = Path(folder) / "jena_2020.csv.gz"
        if path.is_file():
            station = load_mpi_roof(path)
            print(station.report)
            return station.frame.ffill().iloc[::6]
    print("No jena_2020.csv.gz found: using a generated series.")
    return make_climate_series(366 * 24, freq="1h", random_state=0)


hourly = load_hourly()
X, y, made_at = make_windows(hourly, TARGET, WINDOW, HORIZON, STRIDE)
X = X.astype("float32")  # the Transformer then trains in single precision
now = X[:, -1, hourly.columns.get_loc(TARGET)].astype(float)
print(f"{len(X)} windows of {WINDOW} hours and {X.shape[2]} channels")

# %%
# Train on the past
# -----------------
# The first 70 % of the year is for training. The last windows before the cut are left out: when
# the first test forecast is made, their targets still lie in the future. All models standardise
# with statistics of the training block.

cut = int(0.7 * len(X))
train = slice(0, cut - HORIZON // STRIDE)
test = slice(cut, None)
print(f"training until {made_at[train][-1]}, test from {made_at[test][0]}")

# %%
# Level or change
# ---------------
# A model may predict the temperature itself, or its *change* from now. The two differ in what a
# penalty pulls towards: the mean temperature of the training months, or persistence. The test
# block lies in another season, so the second is the better habit; each model is shown both ways.


def flat(windows):
    """Return windows as rows of a table, for the models that want that."""
    return windows.reshape(len(windows), -1)


models = {
    "Ridge": make_pipeline(StandardScaler(), Ridge(1e3)),
    "gradient boosting": HistGradientBoostingRegressor(max_iter=50, random_state=0),
    "MLP": make_pipeline(
        StandardScaler(),
        MLPRegressor(hidden_layer_sizes=(64,), early_stopping=True, random_state=0),
    ),
    "residual Transformer, defaults": ResidualTransformerRegressor(random_state=0),
    "residual Transformer, strong penalty": ResidualTransformerRegressor(
        layer_norm=True,
        d_model=16,
        d_ff=32,
        init_scale=0.3,
        alpha=0.1,
        max_iter=100,
        tol=None,
        random_state=0,
    ),
}

forecasts = {"persistence": now[test]}
rows = [{"model": "persistence", "level": np.nan, "change": np.abs(now - y)[test].mean()}]
for name, model in models.items():
    features = X if "Transformer" in name else flat(X)
    row = {"model": name}
    for kind, base in {"level": np.zeros_like(now), "change": now}.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # the MLP's
            model.fit(features[train], (y - base)[train])
        forecasts[name] = model.predict(features[test]) + base[test]
        row[kind] = np.abs(forecasts[name] - y[test]).mean()
    rows.append(row)

errors = pd.DataFrame(rows).set_index("model")
print("\nMean absolute error in degrees, 24 hours ahead")
print(errors.to_string(float_format=lambda value: f"{value:.2f}", na_rep=""))

# %%
# A fortnight of forecasts
# ------------------------

figure, (ax, dots) = plt.subplots(1, 2, figsize=(13, 4), width_ratios=[3, 2], layout="constrained")
days = slice(0, 14 * 24 // STRIDE)
stamps = made_at[test][days] + pd.Timedelta(hours=HORIZON)
ax.plot(stamps, y[test][days], "k", label="measured")
for name in ("persistence", "Ridge", "residual Transformer, strong penalty"):
    ax.plot(stamps, forecasts[name][days], alpha=0.8, label=name)
ax.set(ylabel="temperature in °C", title="forecasts made 24 hours before")
ax.tick_params(axis="x", rotation=30)
ax.legend(fontsize="small")
for kind, color in {"level": "0.6", "change": "C0"}.items():
    dots.plot(errors[kind], errors.index, "o", color=color, label=f"predicting the {kind}")
dots.axvline(errors.loc["persistence", "change"], color="k", linestyle=":")
dots.invert_yaxis()
dots.set(xlabel="mean absolute error in °C", title="test block")
dots.legend(fontsize="small")
plt.show()

# %%
# What to take from it
# --------------------
# A day ahead no model here is better than persistence by more than chance: one station's single
# year does not teach the weather of tomorrow, and a flexible model does worse than none. Predicting
# the change instead of the level lowers the error of nearly every model. The Transformer that
# predicts the change under a strong penalty comes closest to persistence; its residual connections
# give it a direct path from the window to the forecast, and the penalty leaves little else. Six
# hours ahead is another matter, since then the window tells what the next hours of the daily cycle
# bring: ``benchmarks/bench_jena.py`` has the errors from 1 to 24 hours, with the spread over seeds.
