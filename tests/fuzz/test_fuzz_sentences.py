"""Sentences become finite tokens of the right width, or the argument that is wrong is named."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.model_selection import KFold

from sklearn_restf.preprocessing import HashedTokenEmbedder, TextTokenEmbedder
from tests.fuzz.calls import NO_COUNT, NO_FLAG, called, spoil
from tests.fuzz.data import draw_labels, draw_numbers, rarely
from tests.fuzz.judge import expect, outcomes
from tests.fuzz.length import N_CASES, SLOW_TO_DRAW, search_at_length

VALID = {
    "n_components": [0, 1, 3, 50],
    "n_features": [1, 7, 64, 2**18],
    "word_ngrams": [1, 2, 4],
    "char_ngrams": [None, (1, 1), (3, 5), (40, 50), [2, 3]],
    "alpha": [1.0, 1e-300, 1e300, 1],
    "cv": [2, 5, 1000, KFold(2), np.int64(3)],
    "max_tokens": [None, 1, 3],
    "lowercase": [True, False],
    "token_pattern": [r"\w+", r"\S", "x", ""],
    "random_state": [0, None, 7],
}
NO_TEXTS = [None, 3.0, "text", b"text", [], ["a", None], ["a", 3], ["a", np.nan], [["a", "b"]] * 2,
            np.zeros((2, 2)), ["a", b"b"], object(), ["a", pd.NA],
            pd.DataFrame({"a": ["x"], "b": ["y"]})]  # fmt: skip
INVALID = {
    "n_components": [-1, 1.5, "3", None, True],
    "n_features": NO_COUNT,
    "word_ngrams": NO_COUNT,
    "char_ngrams": [(3,), (5, 3), (0, 2), 3, "35", (1.0, 2), (1, 2, 3), ()],
    "alpha": [0.0, -1.0, np.nan, np.inf, "1", None, True],
    "cv": [0, 1, -3, 2.5, "5", True],
    "target_type": ["classes", None, 3],
    "max_tokens": [value for value in NO_COUNT if value is not None],
    "lowercase": NO_FLAG,
    "token_pattern": ["(", None, 3, r"(\w)(\w)", "[", b"x"],
    "random_state": [-1, "seed", 1.5, 2**32],
    "X": NO_TEXTS,
    "y": [3.0, "a", [1.0], [], [0, 1] * 50, object(), {}],
}
INVALID_MODEL = {
    "batch_size": NO_COUNT,
    "max_length": [value for value in NO_COUNT if value is not None],
    "layer": [None, 1.5, "first", True, [1]],
    "special_tokens": NO_FLAG,
    "local_files_only": NO_FLAG,
    "X": NO_TEXTS,
}


@dataclass
class Embedding:
    """Sentences, targets and parameters."""

    X: Any
    y: Any
    texts: list[str]
    X_new: list[str]
    parameters: dict[str, Any]
    spoilt: set[str] = field(default_factory=set)


WORDS = [
    "good",
    "Bad",
    "ünï",
    "日本",
    "don't",
    "-",
    "...",
    "",
    "\ud800",
    "a" * 300,
    "x\x00y",
    "😀",
    "1.5",
]
sentences = st.one_of(
    st.lists(st.sampled_from(WORDS), max_size=6).map(" ".join), st.text(max_size=20)
)


def draw_texts(draw, texts):
    """Return sentences as a user may have them."""
    kind = draw(st.sampled_from(["list", "tuple", "array", "series", "column", "generator"]))
    if kind == "tuple":
        return tuple(texts)
    if kind == "array":
        return np.array(texts, dtype=object)
    if kind == "series":
        return pd.Series(texts, index=range(5, 5 + len(texts)), dtype=object)
    if kind == "column":
        return pd.DataFrame({"text": pd.Series(texts, dtype=object)})
    return texts


@st.composite
def embeddings(draw):
    """Draw an :class:`Embedding`."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    texts = draw(st.lists(sentences, min_size=1, max_size=12))
    names = draw(st.lists(st.sampled_from(sorted(VALID)), max_size=6, unique=True))
    parameters = {"n_features": 64, "random_state": 0}
    parameters |= {name: draw(st.sampled_from(VALID[name])) for name in names}
    y = None
    if rarely(draw, 2):
        y = draw_labels(draw, rng, len(texts))
    elif rarely(draw, 2):
        shape = (len(texts), draw(st.integers(1, 2)))
        y = draw_numbers(draw, rng, shape, ["f8", "f4"])
        parameters["target_type"] = "regression"
    both = {"X": draw_texts(draw, texts), "y": y, **parameters}
    spoilt = spoil(draw, INVALID, both)
    if "cv" in spoilt and y is None:
        spoilt = set()
        both["cv"] = 2
    spoilt |= {"y"} if "cv" in spoilt else set()  # there may be too few to be cut into folds
    X, y = both.pop("X"), both.pop("y")
    X_new = draw(st.lists(sentences, min_size=1, max_size=4))
    return Embedding(X, y, texts, X_new, both, spoilt)


def judge_sentences(case):
    """Embed training sentences and others."""
    outcomes["cases"] += 1
    embedder = HashedTokenEmbedder(**case.parameters)
    names = {"X", "y", *INVALID}
    tokens = called("fit_transform", lambda: embedder.fit_transform(case.X, case.y), names=names,
                    spoilt=case.spoilt, clashes=case.parameters, inputs=[case.X, case.y],
                    draws=case.parameters["random_state"] is None)  # fmt: skip
    if tokens is None:
        return
    check_tokens(embedder, case.texts, tokens)
    new = called("transform", lambda: embedder.transform(case.X_new), names=names)
    if new is not None:  # the scores of other sentences may overflow
        check_tokens(embedder, case.X_new, new)
    if case.y is None:
        again = embedder.transform(case.texts)
        for one, other in zip(tokens, again, strict=True):
            np.testing.assert_allclose(one, other, atol=1e-5)


def check_tokens(embedder, texts, tokens):
    """Check the form of the tokens."""
    width = len(embedder.get_feature_names_out())
    expect(width >= 1 and len(tokens) == len(texts), f"{len(tokens)} samples of {width} channels")
    for sample in tokens:
        expect(sample.ndim == 2 and sample.shape[1] == width, f"tokens of shape {sample.shape}")
        expect(len(sample) >= 1 and sample.dtype == np.float32, "at least one token, of float32")
        expect(np.isfinite(sample).all(), "tokens not finite")


@st.composite
def model_uses(draw):
    """Draw arguments of TextTokenEmbedder, one of them spoilt: no model is needed to say so."""
    arguments = {"X": ["a"]}
    name = draw(st.sampled_from(sorted(INVALID_MODEL)))
    arguments[name] = draw(st.sampled_from(INVALID_MODEL[name]))
    return arguments, {name}


@settings(max_examples=80, suppress_health_check=SLOW_TO_DRAW)
@given(embeddings())
def test_embedded_or_refused(case):
    judge_sentences(case)


@settings(max_examples=60, suppress_health_check=SLOW_TO_DRAW)
@given(model_uses())
def test_unusable_arguments_are_named_before_a_model_is_loaded(use):
    arguments, spoilt = use
    parameters = {name: value for name, value in arguments.items() if name != "X"}
    embedder = TextTokenEmbedder("/no/such/folder/with/a/model", **parameters)
    called("fit", lambda: embedder.fit(arguments["X"]), names=spoilt, spoilt=spoilt)


@pytest.mark.fuzz
@pytest.mark.timeout(0)
def test_sentences_at_length(capsys):
    search_at_length(capsys, judge_sentences, embeddings(), N_CASES // 4)
