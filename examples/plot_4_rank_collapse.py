r"""
Rank collapse, and what prevents it
===================================

Softmax attention replaces every token by a weighted average of all of them. If the weights are
nearly equal, all tokens come out nearly the same: the matrix of outputs
:math:`\mathrm{Attn}(X) = A X W_V` is then close to rank one, and its smallest singular values
nearly vanish. Gradient descent is slow in exactly those directions. The residual connection adds
the tokens back, :math:`Z = \beta X + \mathrm{Attn}(X)`, and with them their rank.

Here the width :math:`d_{qk}` of queries and keys grows. With Xavier's initial weights, whose
variance is :math:`2 / (D + d_{qk})`, wider queries and keys bring *smaller* attention logits,
more equal attention weights, and rank collapse. Nothing is trained at first:
:func:`~sklearn_restf.diagnose` looks at the initial weights of an estimator that was never fitted.
"""

# %%
# Tokens of a chosen spectrum
# ---------------------------
# ``make_token_regression`` draws sequences whose singular values are given: here 8 tokens of
# width 16, the smallest singular value a fifth of the largest. So whatever collapses below is the
# attention's doing, not the data's.

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from sklearn_restf import THEOREM_SETTINGS, ResidualTransformerRegressor, diagnose
from sklearn_restf.datasets import make_token_regression

X, _ = make_token_regression(64, n_tokens=8, n_features=16, singular_values=0.2, random_state=0)
values = np.linalg.svd(X[0], compute_uv=False)
print("singular values of every sample:", values.round(2))

# %%
# Wider queries and keys
# ----------------------
# For each width, the smallest singular value of the attention output and of :math:`Z` over all
# samples, and how far each is from rank one (relative to its size). Medians over five seeds.

WIDTHS = [4, 16, 64, 256, 1024, 4096]
BETAS = [0.25, 0.5, 1.0]


def examine(d_qk, beta, init, seed):
    """Return the spectral diagnostics of initial weights."""
    model = ResidualTransformerRegressor(
        residual_beta=beta, d_qk=d_qk, init=init, standardize=False, random_state=seed
    )
    return diagnose(model, X)


def sweep(init):
    """Return one row for each width, medians over the seeds."""
    rows = []
    for d_qk in WIDTHS:
        row = {"d_qk": d_qk}
        for beta in BETAS:
            seen = [examine(d_qk, beta, init, seed) for seed in range(5)]
            row["sigma_min Attn(X)"] = np.median([d.attention_sigma_min for d in seen])
            row["rank-1 residual Attn(X)"] = np.median([d.attention_rank1_residual for d in seen])
            row[f"sigma_min Z, beta={beta:g}"] = np.median([d.sigma_min for d in seen])
            row[f"rank-1 residual Z, beta={beta:g}"] = np.median([d.rank1_residual for d in seen])
        rows.append(row)
    return pd.DataFrame(rows).set_index("d_qk")


tables = {init: sweep(init) for init in ("xavier", "gaussian")}
for init, table in tables.items():
    print(f"\ninit={init!r}")
    print(table.filter(like="sigma_min").to_string(float_format=lambda value: f"{value:.2g}"))

# %%
# Left: with Xavier weights the smallest singular value of the attention output falls, for large
# :math:`d_{qk}`, about like :math:`1 / d_{qk}`, while that of :math:`Z` settles at a level that
# :math:`\beta` sets. Middle: the attention output approaches rank one; :math:`Z` keeps its
# distance. Right: with weights whose variance goes with :math:`1 / D` and not with the width
# (``init="gaussian"``, the default) the logits keep their size, and nothing collapses. So the
# collapse is a matter of initial weights as well; the residual connection makes it harmless.


def draw(ax, table, quantity, title):
    """Draw the attention output (dashed) and Z for each beta."""
    ax.loglog(table.index, table[f"{quantity} Attn(X)"], "k--", label="Attn(X)")
    for beta in BETAS:
        color = plt.colormaps["viridis"](0.9 * beta)
        ax.loglog(
            table.index,
            table[f"{quantity} Z, beta={beta:g}"],
            color=color,
            label=rf"Z, $\beta$ = {beta:g}",
        )
    ax.set(title=title, xlabel=r"width $d_{qk}$ of queries and keys")


figure, axes = plt.subplots(1, 3, figsize=(13, 4), layout="constrained")
draw(axes[0], tables["xavier"], "sigma_min", "smallest singular value, Xavier")
draw(axes[1], tables["xavier"], "rank-1 residual", "distance from rank one, Xavier")
draw(axes[2], tables["gaussian"], "sigma_min", "smallest singular value, Gaussian")
axes[2].sharey(axes[0])
axes[0].legend()
plt.show()

# %%
# What it means for training
# --------------------------
# One target for every token (``pooling="none"``), as in the theorem: now the model must tell the
# tokens of a sample apart. Plain gradient descent from the same weights for every :math:`\beta`,
# each with the step :math:`1 / \|J\|^2` that its own curvature at the start allows (:math:`J` is
# the Jacobian of the predictions in the weights).

d_qk = 1024
X, y = make_token_regression(
    64, n_tokens=8, n_features=16, singular_values=0.2, target="token", random_state=0
)
figure, ax = plt.subplots(figsize=(6, 4), layout="constrained")
for beta in [0.0, *BETAS]:
    model = ResidualTransformerRegressor(
        residual_beta=beta,
        **THEOREM_SETTINGS,
        pooling="none",
        d_qk=d_qk,
        init="xavier",
        max_iter=300,
        random_state=0,
    ).fit(X, y)
    color = plt.colormaps["viridis"](0.9 * beta)
    ax.semilogy(model.loss_curve_, color=color, label=rf"$\beta$ = {beta:g}")
    print(f"beta = {beta:4g}: loss {model.loss_curve_[-1]:.4f}")
ax.set(xlabel="iteration", ylabel="training loss", title=f"Xavier weights, $d_{{qk}}$ = {d_qk}")
ax.legend()
plt.show()

# %%
# Without the residual connection the loss falls slowly, because the tokens of a sample can hardly
# be told apart. Any of the three values of :math:`\beta` removes that obstacle. Which of them is
# fastest is another question: a larger :math:`\beta` also raises the curvature, and with it
# shortens the step that is allowed; here a value below 1 is best.
