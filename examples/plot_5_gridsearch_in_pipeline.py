"""
Grid search in a Pipeline
=========================

The residual strength is a parameter like any other. Here ``GridSearchCV`` chooses it together with
the penalty, inside a ``Pipeline`` with a scaler, and with folds that respect time: every model is
judged on weeks that lie after those it was trained on.

It runs on ``jena_2020.csv.gz``, a file of the weather station in Jena, where that is found in the
folder ``SKLEARN_RESTF_DATA``; otherwise on a generated series.
"""

# %%
# Windows as rows of a table
# --------------------------
# Windows are three-dimensional, and most of scikit-learn wants two dimensions. So each window of
# 12 hours becomes one row, hour after hour. With ``token_dim`` the scaler and the model read such
# a row as tokens again: the scaler learns one mean and scale for each *channel*, not for each
# column.

import os
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, TimeSeriesSplit
from sklearn.pipeline import Pipeline

from sklearn_restf import ResidualTransformerRegressor
from sklearn_restf.datasets import load_mpi_roof, make_climate_series
from sklearn_restf.preprocessing import TokenStandardScaler, make_windows

TARGET = "T (degC)"
CHANNELS = ["p (mbar)", "T (degC)", "Tdew (degC)", "rh (%)", "VPdef (mbar)", "wv (m/s)"]
HORIZON, STRIDE = 6, 6


def load_hourly():
    """Return one reading an hour of a few channels."""
    for folder in (os.environ.get("SKLEARN_RESTF_DATA", ""), "../shared/data", "../../shared/data"):
        path = Path(folder) / "jena_2020.csv.gz"
        if path.is_file():
            return load_mpi_roof(path).frame[CHANNELS].ffill().iloc[::6]
    print("No jena_2020.csv.gz found: using a generated series.")
    return make_climate_series(366 * 24, freq="1h", random_state=0)[CHANNELS]


windows, y, made_at = make_windows(load_hourly(), TARGET, window=12, horizon=HORIZON, stride=STRIDE)
X = windows.reshape(len(windows), -1).astype("float32")
cut = int(0.7 * len(X))
X_train, y_train = X[: cut - HORIZON // STRIDE], y[: cut - HORIZON // STRIDE]
X_test, y_test = X[cut:], y[cut:]
print(f"{len(X_train)} training and {len(X_test)} test windows of {X.shape[1]} columns")

# %%
# The search
# ----------
# ``gap`` keeps a window away from the fold border whose target is not known yet when the next
# fold begins. ``n_jobs`` works as ever; each fit then uses one thread.

pipeline = Pipeline(
    [
        ("scale", TokenStandardScaler(token_dim=len(CHANNELS))),
        (
            "model",
            ResidualTransformerRegressor(
                token_dim=len(CHANNELS), init_scale=0.5, max_iter=60, tol=None, random_state=0
            ),
        ),
    ]
)
betas = [0.25, 0.5, 1.0, 1.5]
alphas = [1e-3, 1e-2, 1e-1, 1.0]
search = GridSearchCV(
    pipeline,
    {"model__residual_beta": betas, "model__alpha": alphas},
    cv=TimeSeriesSplit(3, gap=HORIZON // STRIDE),
    scoring="neg_mean_absolute_error",
    n_jobs=2,
).fit(X_train, y_train)

print("best parameters:", search.best_params_)
print(f"error in cross-validation: {-search.best_score_:.2f} degrees")
print(f"error on the test block:   {-search.score(X_test, y_test):.2f} degrees")
now = windows[cut:, -1, CHANNELS.index(TARGET)]
print(f"error of persistence:      {np.abs(now - y_test).mean():.2f} degrees")

# %%
# What the grid looks like
# ------------------------
# The error in cross-validation, and the condition of :math:`Z` that the diagnostics report, which
# is there after every fit.

errors = -search.cv_results_["mean_test_score"].reshape(len(alphas), len(betas))
figure, (ax, spectrum) = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
image = ax.imshow(errors, cmap="viridis_r", origin="lower")
ax.set(
    xticks=range(len(betas)),
    xticklabels=betas,
    yticks=range(len(alphas)),
    yticklabels=alphas,
    xlabel="residual_beta",
    ylabel="alpha",
    title="mean absolute error in °C, cross-validation",
)
for (row, column), value in np.ndenumerate(errors):
    color = "black" if value < (errors.min() + errors.max()) / 2 else "white"
    ax.text(column, row, f"{value:.2f}", ha="center", va="center", color=color)
figure.colorbar(image, ax=ax)

for beta in betas:
    fitted = clone(search.best_estimator_).set_params(model__residual_beta=beta)
    fitted.fit(X_train, y_train)
    diagnostics = fitted[-1].convergence_diagnostics_
    median = np.median(diagnostics.singular_values_start, axis=0)
    spectrum.semilogy(np.arange(1, len(median) + 1), median, "o-", label=rf"$\beta$ = {beta:g}")
spectrum.set(title="spectrum of Z before training", xlabel="index", ylabel="singular value")
spectrum.legend()
plt.show()

# %%
# Left: the two parameters act together. The stronger the penalty, the more of a residual connection
# it takes: with :math:`\beta = 0.25` and ``alpha=1`` the forecast is useless, while with
# :math:`\beta` of 1 or more the penalty matters little up to 0.1. A search over one of them at a
# time could miss that. Right: the smallest singular values rise with :math:`\beta`, but the best
# score need not be at the largest. The chosen model beats persistence on the test block, which
# the search never saw.
