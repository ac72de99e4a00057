r"""
Quickstart: what residual connections do to convergence
========================================================

A residual Transformer mixes its tokens by attention and adds back ``residual_beta`` times what
came in:

.. math:: Z = \beta F + A F W_V, \qquad F' = \gamma Z + \phi(Z W_1) W_2.

The rows of :math:`F` are the tokens of one sample, :math:`A` holds the attention weights, the
:math:`W` are learned, :math:`\phi` is the activation, :math:`\beta` is ``residual_beta`` and
:math:`\gamma` is ``ffn_residual_beta``, by default the same. Attention alone pulls the tokens
towards their average: without the residual connection (:math:`\beta = 0`) the smallest singular
value of :math:`Z` is close to zero, and gradient descent converges slowly in the directions that
were lost. Here the same network is trained for
five values of :math:`\beta` by full-batch gradient descent; its convergence diagnostics are
printed and drawn, and cross-validation says which :math:`\beta` predicts best.

The data come with scikit-learn. With ``--data FILE``, or the environment variable
``SKLEARN_RESTF_JENA``, the example runs on a file of the Jena weather station instead.
"""

# %%
# Two data sets, two ways to tokens
# ---------------------------------
# An image of a handwritten digit is read as four tokens of 16 pixels, two rows each. In the
# diabetes table each of the ten features becomes a token. Both models are ordinary scikit-learn
# estimators: they stand in pipelines and grid searches like any other.
#
# ``momentum=0`` and ``alpha=0`` make every iteration a plain gradient step on the loss alone, as in
# the convergence theorem. The defaults, with momentum and a penalty, get further in as many
# iterations and predict better.

import argparse
import os
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from sklearn.base import clone
from sklearn.datasets import load_diabetes, load_digits
from sklearn.model_selection import GridSearchCV, TimeSeriesSplit
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from sklearn_restf import ResidualTransformerClassifier, ResidualTransformerRegressor

BETAS = [0.0, 0.25, 0.5, 0.75, 1.0]


def digits():
    """Return images of eight rows of eight pixels, as (n_samples, 64)."""
    X, y = load_digits(return_X_y=True)
    model = ResidualTransformerClassifier(token_dim=16, momentum=0.0, alpha=0.0, random_state=0)
    return X[:600], y[:600], make_pipeline(model), 3


def diabetes():
    """Return a table of ten features, as (n_samples, 10)."""
    X, y = load_diabetes(return_X_y=True)
    model = ResidualTransformerRegressor(
        n_tokens=10, pooling="flatten", momentum=0.0, alpha=0.0, random_state=0
    )
    return X, y, make_pipeline(StandardScaler(), model), 3


# %%
# The weather of Jena, where a file of it is at hand: from the last 24 hours of all the station's
# channels, the temperature six hours ahead. Here the tokens are the hours.


def jena(path):
    """Return windows of hourly means, as (n_samples, 24, n_channels)."""
    from sklearn_restf.datasets import load_mpi_roof
    from sklearn_restf.preprocessing import make_windows

    hourly = load_mpi_roof(path).frame.resample("1h").mean()
    X, y, _ = make_windows(hourly, "T (degC)", window=24, horizon=6, stride=24)
    model = ResidualTransformerRegressor(momentum=0.0, alpha=0.0, max_iter=100, random_state=0)
    return X, y, make_pipeline(model), TimeSeriesSplit(3, gap=1)


parser = argparse.ArgumentParser()
parser.add_argument("--data", default=os.environ.get("SKLEARN_RESTF_JENA"))
parser.add_argument("--output", type=Path, default=Path("demo"), help="folder for the picture")
arguments = parser.parse_args()

if arguments.data:
    problems = {"Jena, temperature in six hours": jena(arguments.data)}
else:
    problems = {"digits": digits(), "diabetes": diabetes()}

# %%
# Train for every residual strength
# ---------------------------------
# ``GridSearchCV`` scores each :math:`\beta` on held-out folds. To see how each converges, every
# model is also fitted to all the data; the diagnostics are there after each fit.


def sweep(X, y, pipeline, cv):
    """Return the table of diagnostics and scores, and the fitted model for each beta."""
    step = pipeline.steps[-1][0]
    search = GridSearchCV(
        pipeline, {f"{step}__residual_beta": BETAS}, cv=cv, refit=False, n_jobs=2
    ).fit(X, y)
    models, rows = {}, []
    for beta, score in zip(BETAS, search.cv_results_["mean_test_score"], strict=True):
        fitted = clone(pipeline).set_params(**{f"{step}__residual_beta": beta}).fit(X, y)
        models[beta] = fitted[-1]
        diagnostics = models[beta].convergence_diagnostics_
        rows.append(
            {
                "beta": beta,
                "sigma_min(Z)": diagnostics.sigma_min,
                "||Z||": diagnostics.norm,
                "ratio": diagnostics.condition_ratio,
                "rate": diagnostics.rate,
                "train loss": models[beta].loss_curve_[-1],
                "CV score": score,
            }
        )
    return pd.DataFrame(rows).set_index("beta"), models


results = {}
for name, problem in problems.items():
    table, models = sweep(*problem)
    results[name] = models
    print(f"\n{name}: {len(problem[0])} samples, {models[1.0].n_iter_} iterations")
    print(table.to_string(float_format=lambda value: f"{value:.4g}"))
    print(f"best in cross-validation: beta = {table['CV score'].idxmax():g}")

# %%
# ``sigma_min(Z)`` and ``||Z||`` are the smallest and the largest singular value of the attention
# layer's output before training, ``ratio`` their squared quotient, which governs the speed of
# convergence in the theorem; ``rate`` is the measured factor by which the loss approaches its
# limit, per iteration (smaller is faster). ``train loss`` is the last training loss, ``CV score``
# the mean score on held-out folds: accuracy for the digits, R^2 for the diabetes data.
#
# The diagnostics also judge in words, here the last model's:

print("\n" + models[1.0].convergence_diagnostics_.summary())

# %%
# Loss curves and spectra
# -----------------------
# Left, the training loss. Right, the singular values of :math:`Z`, the median over the samples:
# before training (dashed) and after it (solid).


def draw(axes, name, models):
    """Draw the loss curves and the spectra of one data set."""
    loss_axes, spectrum_axes = axes
    for beta, model in models.items():
        color = plt.colormaps["viridis"](0.9 * beta)
        loss_axes.semilogy(model.loss_curve_, color=color, label=f"$\\beta$ = {beta:g}")
        diagnostics = model.convergence_diagnostics_
        for values, style in [
            (diagnostics.singular_values_start, "--"),
            (diagnostics.singular_values_end, "-"),
        ]:
            spectrum = np.median(values, axis=0)
            spectrum_axes.semilogy(np.arange(1, len(spectrum) + 1), spectrum, style, color=color)
    loss_axes.set(title=name, xlabel="iteration", ylabel="training loss")
    loss_axes.legend()
    spectrum_axes.set(
        title="spectrum of Z: start (dashed), end (solid)",
        xlabel="index of the singular value",
        ylabel="singular value",
    )
    spectrum_axes.xaxis.get_major_locator().set_params(integer=True)


figure, axes = plt.subplots(
    len(results), 2, figsize=(11, 4 * len(results)), squeeze=False, layout="constrained"
)
for row, (name, models) in zip(axes, results.items(), strict=True):
    draw(row, name, models)
arguments.output.mkdir(parents=True, exist_ok=True)
figure.savefig(arguments.output / "quickstart.png", dpi=120)
print(f"\npicture: {arguments.output / 'quickstart.png'}")

# %%
# What it shows
# -------------
# On the digits, the larger :math:`\beta`, the larger the smallest singular value, the faster the
# loss falls and the better, from 0.5 on, the prediction. On the diabetes data ``sigma_min(Z)``
# grows as well and the first steps are faster, but noise in the target limits how far any model
# gets: the training loss ends lowest for a small :math:`\beta`, and the scores in cross-validation
# differ less between the values of :math:`\beta` than between the folds. So a residual connection
# can speed training up a great deal, and whether it helps the prediction is for cross-validation to
# say.
