"""Validation of sentences, and their hashed n-grams."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy import sparse
from sklearn.feature_extraction import FeatureHasher

from sklearn_restf._data.arrays import validating

_BEFORE_FIRST = "<s>"


@validating("X")
def check_texts(X: Any, owner: str) -> list[str]:
    """Validate sentences: strings in an iterable, a series, or an array or frame of one column."""
    if isinstance(X, (str, bytes)):
        raise ValueError(
            f"{owner} expects an iterable of sentences, got a single string: pass [text]."
        )
    if sparse.issparse(X) or not isinstance(X, Iterable):
        raise TypeError(f"{owner} expects an iterable of sentences, got {type(X).__name__}.")
    shape = getattr(X, "shape", None)
    if shape is not None and len(shape) == 2:
        if shape[1] != 1:
            raise ValueError(
                f"{owner} expects one column of sentences, got shape {tuple(shape)}: choose one, "
                "for instance with a ColumnTransformer."
            )
        X = (X.to_numpy() if hasattr(X, "to_numpy") else np.asarray(X))[:, 0]
    texts = list(X)
    if not texts:
        raise ValueError(f"{owner} got no sentences (0 samples): at least one is required.")
    for i, text in enumerate(texts):
        if isinstance(text, str):
            continue
        if text is None or text is pd.NA or (isinstance(text, float) and np.isnan(text)):
            raise ValueError(f"{owner}: the sentence in row {i} is missing; fill it, e.g. with ''.")
        raise TypeError(
            f"{owner} expects strings, but row {i} is of type {type(text).__name__}: {text!r:.60}"
        )
    return [str(text) for text in texts]


def tokenize(
    texts: Sequence[str], pattern: str, lowercase: bool, max_tokens: int | None
) -> list[list[str]]:
    """Split sentences into tokens by a regular expression, at most `max_tokens` of each.

    There is at least one token each: the empty string where there is none.
    """
    find = re.compile(pattern).findall
    documents = (find(text.lower() if lowercase else text)[:max_tokens] for text in texts)
    return [tokens or [""] for tokens in documents]


@dataclass(frozen=True)
class HashedView:
    """One kind of hashed features of every token of a batch.

    Attributes
    ----------
    table : csr_matrix of shape (n_distinct, n_features)
        Signed hashed features of each distinct item: each is hashed once, however often it occurs.
    item : ndarray of int of shape (n_tokens,)
        Row of the table that belongs to each token, sentence after sentence.
    offsets : ndarray of int of shape (n_sentences + 1,)
        Where each sentence's tokens begin and end.
    """

    table: sparse.csr_matrix
    item: np.ndarray
    offsets: np.ndarray

    def sentence_means(self) -> sparse.csr_matrix:
        """Mean feature vector of each sentence's tokens, shape (n_sentences, n_features)."""
        lengths = np.diff(self.offsets)
        share = sparse.csr_matrix(
            (np.repeat(1.0 / lengths, lengths), self.item, self.offsets),
            shape=(len(lengths), self.table.shape[0]),
        )
        means = (share @ self.table).tocsr()
        means.eliminate_zeros()
        return means


def hash_views(
    documents: Sequence[Sequence[str]],
    word_ngrams: int,
    char_ngrams: tuple[int, int] | None,
    n_features: int,
) -> dict[str, HashedView]:
    """Hash the n-grams of words that end at each token, and those of characters within it.

    Every document has a token at least. The views are called "word", "word2", ... up to
    `word_ngrams` successive tokens, and "char" (from the smallest to the largest number of
    characters), and have a hash table of `n_features` each.
    """
    offsets = np.concatenate([[0], np.cumsum([len(tokens) for tokens in documents])])
    views = {}
    for n in range(1, word_ngrams + 1):
        name = "word" if n == 1 else f"word{n}"
        grams: Iterable[str]
        if n == 1:
            grams = (token for tokens in documents for token in tokens)
        else:
            grams = (
                " ".join(padded[i : i + n])
                for tokens in documents
                for padded in [[_BEFORE_FIRST] * (n - 1) + list(tokens)]
                for i in range(len(tokens))
            )
        items, distinct = _distinct(grams)
        # The empty token stands for an empty sentence and has no features.
        features = [[gram] if gram.rsplit(" ", 1)[-1] else [] for gram in distinct]
        views[name] = HashedView(_hash(features, n_features), items, offsets)
        if n == 1:
            words, word_items = distinct, items
    if char_ngrams is not None:
        features = [_char_ngrams(word, *char_ngrams) for word in words]
        views["char"] = HashedView(_hash(features, n_features), word_items, offsets)
    return views


def _distinct(items: Iterable[str]) -> tuple[np.ndarray, list[str]]:
    """Return the number of each item, and the distinct items in order of appearance."""
    numbers: dict[str, int] = {}
    indices = np.fromiter((numbers.setdefault(x, len(numbers)) for x in items), dtype=np.int64)
    return indices, list(numbers)


def _char_ngrams(word: str, smallest: int, largest: int) -> list[str]:
    """Character n-grams of a word between blanks, the whole word if it is shorter than all."""
    if not word:
        return []
    text = f" {word} "
    return [
        text[i : i + n] for n in range(smallest, largest + 1) for i in range(len(text) - n + 1)
    ] or [text]


def _hash(features: list[list[str]], n_features: int) -> sparse.csr_matrix:
    """Signed hashed features, one row for each list."""
    hasher = FeatureHasher(n_features, input_type="string", dtype=np.float64)
    # As the hasher itself encodes them, but for halves of characters, which it refuses.
    encoded = [[gram.encode("utf-8", "surrogatepass") for gram in grams] for grams in features]
    return hasher.transform(encoded).tocsr()
