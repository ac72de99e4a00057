r"""
From sentences to a deep classifier
===================================

Two questions about the SST-2 sentences, which are positive or negative statements about films:
how well does a residual Transformer classify them in a Pipeline that starts from plain strings, and
what do residual connections do when it gets deep?

It runs on the folder ``sst2`` of the folder ``SKLEARN_RESTF_DATA``, where there is one; otherwise
on sentences put together from a short list of words.
"""

# %%
# Sentences in, classes out
# -------------------------
# ``HashedTokenEmbedder`` turns a sentence into one feature vector per token, without a pretrained
# model. The sentences have unequal lengths; the classifier takes them as they come, and padding
# never shows.

import os
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

from sklearn_restf import ResidualTransformerClassifier
from sklearn_restf.datasets import load_sst2
from sklearn_restf.preprocessing import HashedTokenEmbedder

TONE = [
    ["dull", "flat", "a mess", "tiresome", "never funny", "badly acted", "hardly moving"],
    ["fine", "moving", "a gem", "witty", "never dull", "well acted", "hardly a flaw"],
]
SUBJECTS = ["the film", "this story", "the director", "its second half", "a strong cast"]


def make_sentences(n_samples, random):
    """Put sentences together from a few words."""
    classes = random.integers(2, size=n_samples)
    sentences = []
    for label in classes:
        first, second = random.choice(TONE[label], 2)
        sentences.append(f"{random.choice(SUBJECTS)} is {first} and {second}")
    return sentences, classes


def load_sentences():
    """Return training and test sentences with their classes."""
    for folder in (os.environ.get("SKLEARN_RESTF_DATA", ""), "../shared/data", "../../shared/data"):
        path = Path(folder) / "sst2"
        if path.is_dir():
            return [load_sst2(path, subset=part, return_X_y=True) for part in ("train", "test")]
    print("No folder sst2 found: using sentences put together from a few words.")
    random = np.random.default_rng(0)
    return [make_sentences(n, random) for n in (600, 300)]


(train, y_train), (test, y_test) = load_sentences()
print(f"{len(train)} training and {len(test)} test sentences, such as {train[1]!r}")

pipeline = make_pipeline(
    HashedTokenEmbedder(random_state=0),
    ResidualTransformerClassifier(max_iter=40, tol=None, dtype="float32", random_state=0),
).fit(train, y_train)
words = make_pipeline(CountVectorizer(), LogisticRegression(max_iter=1000)).fit(train, y_train)
print(f"accuracy: {pipeline.score(test, y_test):.3f}")
print(f"accuracy of logistic regression on word counts: {words.score(test, y_test):.3f}")

# %%
# The embedder has learned a score for words and pieces of words from the labels, the Transformer
# how to weigh them against each other in a sentence. (Sentences put together from a few words are
# no test: every model is right about them.) On SST-2 the token features of a small pretrained
# language model, by ``TextTokenEmbedder`` in place of ``HashedTokenEmbedder``, do about as well
# (``benchmarks/bench_sst2.py``).
#
# Depth
# -----
# Now 2, 6 and 10 layers of GPT-2's block (LayerNorm, two heads, causal attention), with and without
# residual connections. Since the point is how they train, a few hundred sentences will do.

DEPTHS = [2, 6, 10]
N_SENTENCES, N_ITER = 200, 120

embedder = pipeline[0]
order = np.random.default_rng(0).permutation(len(train))
short = [i for i in order if 4 <= len(train[i].split()) <= 16][:N_SENTENCES]
tokens = HashedTokenEmbedder(n_components=13, random_state=0).fit_transform(
    [train[i] for i in short], y_train[short]
)
models = {}
for depth in DEPTHS:
    for beta in (1.0, 0.0):
        models[depth, beta] = ResidualTransformerClassifier(
            residual_beta=beta,
            n_layers=depth,
            d_model=16,
            n_heads=2,
            layer_norm=True,
            causal=True,
            activation="gelu_tanh",
            pooling="last",
            positional_encoding="sinusoidal",
            init_scale=0.55,
            alpha=0.0,
            momentum=0.0,
            max_iter=N_ITER,
            tol=None,
            dtype="float32",
            diagnostics_samples=32,
            random_state=0,
        ).fit(tokens, y_train[short])

# %%
# With residual connections all three depths train. Without them training is slower at every depth
# and, from six layers on, stays not far below the loss of guessing, 0.69. The spectra say why:
# layer by layer the tokens lose rank when nothing brings them back. (The package says so as well,
# by a ``RankCollapseWarning``.)

rows = []
for (depth, beta), model in models.items():
    layers = model.convergence_diagnostics_.to_frame()
    rows.append(
        {
            "layers": depth,
            "residual_beta": beta,
            "loss": model.loss_curve_[-1],
            "rank-1 residual, first layer": layers["rank1_residual"].iloc[0],
            "rank-1 residual, last layer": layers["rank1_residual"].iloc[-1],
        }
    )
table = pd.DataFrame(rows).set_index(["layers", "residual_beta"])
print(table.to_string(float_format=lambda value: f"{value:.3g}"))

figure, (losses, ranks) = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
for (depth, beta), model in models.items():
    color = f"C{DEPTHS.index(depth)}"
    style = "-" if beta else "--"
    label = f"{depth} layers, {'with' if beta else 'without'} residual"
    losses.plot(model.loss_curve_, style, color=color, label=label)
    layers = model.convergence_diagnostics_.to_frame()
    ranks.semilogy(layers.index, layers["rank1_residual"], f"o{style}", color=color)
losses.set(xlabel="iteration", ylabel="training log-loss")
losses.legend(fontsize="small")
ranks.set(xlabel="layer", ylabel="distance of Z from rank one", title="before training")
plt.show()
