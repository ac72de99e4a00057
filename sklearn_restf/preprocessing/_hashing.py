"""Token features of sentences from hashed n-grams: no pretrained model, no download."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from numbers import Real
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.decomposition import TruncatedSVD
from sklearn.linear_model import Ridge
from sklearn.utils.validation import check_is_fitted

from sklearn_restf._utils.validation import (
    BOOL,
    NONE,
    RANDOM_STATE,
    Constraint,
    check_parameters,
    integer,
    one_of,
    real,
    sequence_of,
)
from sklearn_restf.preprocessing._cross_fitting import cross_fitting_splits, encode_target
from sklearn_restf.preprocessing._output import SentenceInputMixin, TokenOutputMixin
from sklearn_restf.preprocessing._sentences import HashedView, check_texts, hash_views, tokenize

_TOKEN_PATTERN = r"'?\w+(?:['’-]\w+)*|[^\w\s]+"
# Sentences whose tokens are held at once by `transform`.
_CHUNK_SENTENCES = 4096


def _is_pattern(value: Any) -> bool:
    """Tell whether a value is a regular expression without groups, which would be the tokens."""
    try:
        return isinstance(value, str) and re.compile(value).groups == 0
    except re.error:
        return False


def _is_range(value: Any) -> bool:
    """Tell whether these are a smallest and a largest positive integer."""
    return sequence_of(integer(1), "", length=2).holds(value) and value[0] <= value[1]


def _may_be_splitter(value: Any) -> bool:
    """Tell whether a value is no number of folds; whether it can split is seen in use."""
    return not isinstance(value, Real)


CONSTRAINTS = {
    "n_components": [integer(0)],
    "n_features": [integer(1)],
    "word_ngrams": [integer(1)],
    "char_ngrams": [NONE, Constraint(_is_range, "two ints (smallest, largest), 1 <= smallest")],
    "alpha": [real(0, low_open=True)],
    "cv": [integer(2), Constraint(_may_be_splitter, "a cross-validation splitter")],
    "target_type": [one_of("auto", "classification", "regression")],
    "max_tokens": [NONE, integer(1)],
    "lowercase": [BOOL],
    "token_pattern": [Constraint(_is_pattern, "a regular expression without capturing groups")],
    "random_state": [RANDOM_STATE],
}


class HashedTokenEmbedder(TokenOutputMixin, SentenceInputMixin, TransformerMixin, BaseEstimator):
    """Turn sentences into token features learned from the training sentences and labels.

    Each token is described by the hashed n-grams of words that end at it and of characters within
    it, weighted by inverse document frequency. Two linear maps, fitted on the mean of each
    sentence's tokens, bring them down to a few channels: ridge regression on the target gives one
    *score* per kind of n-gram and class, a truncated SVD gives *latent* channels (latent semantic
    analysis). A token never seen before is described by its characters.

    Parameters
    ----------
    n_components : int, default=32
        Number of latent channels; 0 for none. Fewer are used if the sentences span fewer
        dimensions.
    n_features : int, default=2**18
        Size of the hash table of each kind of n-gram. Too small a one lets different n-grams
        share an entry.
    word_ngrams : int, default=2
        Largest number of successive tokens taken together.
    char_ngrams : (int, int) or None, default=(3, 5)
        Smallest and largest number of characters taken together within a token; None for none.
    alpha : float, default=1.0
        Strength of the ridge penalty, for features scaled so that the mean over sentences of
        their squared norm is one. Raise it for few sentences.
    cv : int or cross-validation splitter, default=5
        Folds of the cross-fitting in ``fit_transform``. With an int the folds are shuffled, and
        stratified for classes.
    target_type : {"auto", "classification", "regression"}, default="auto"
        Meaning of ``y``; "auto" infers it from the values.
    max_tokens : int or None, default=None
        Keep only the first ``max_tokens`` tokens of a sentence.
    lowercase : bool, default=True
        Lower-case the sentences first.
    token_pattern : str, default=words with inner hyphens and apostrophes, or runs of punctuation
        Regular expression of one token, without capturing groups.
    random_state : int, RandomState instance or None, default=None
        Source of the shuffled folds and of the SVD.

    Attributes
    ----------
    target_type_ : {"classification", "regression"} or None
        Meaning of ``y``; None if fitted without ``y``.
    classes_ : ndarray of shape (n_classes,) or None
        The classes; None unless ``y`` holds classes.
    view_names_ : list of str
        Kinds of n-grams, in the order of the scores: ``"word"``, ``"word2"``, ..., ``"char"``.

    See Also
    --------
    TextTokenEmbedder : Token features of a pretrained language model.

    Notes
    -----
    As with :class:`~sklearn.preprocessing.TargetEncoder`, ``fit(X, y).transform(X)`` is not
    ``fit_transform(X, y)``: the latter computes each sentence's scores by a regression that did
    not see its label. What follows in a Pipeline is trained on these honest scores; scores from
    the very labels to be learned would look far better in training than on new sentences. For the
    same reason a fitted Pipeline's accuracy on its own training sentences says nothing.

    A sentence without a token (an empty string) becomes one token of zeros.

    Examples
    --------
    >>> from sklearn_restf.preprocessing import HashedTokenEmbedder
    >>> sentences = ["a fine film", "fine acting", "a dull film", "so dull"]
    >>> embedder = HashedTokenEmbedder(n_components=2, cv=2, random_state=0)
    >>> tokens = embedder.fit_transform(sentences, ["good", "good", "bad", "bad"])
    >>> [t.shape for t in tokens]
    [(3, 5), (2, 5), (3, 5), (2, 5)]
    >>> embedder.get_feature_names_out().tolist()
    ['score_word', 'score_word2', 'score_char', 'latent0', 'latent1']
    """

    __module__ = "sklearn_restf.preprocessing"  # lasting: saved models name it

    def __init__(
        self,
        n_components: int = 32,
        *,
        n_features: int = 2**18,
        word_ngrams: int = 2,
        char_ngrams: tuple[int, int] | None = (3, 5),
        alpha: float = 1.0,
        cv: Any = 5,
        target_type: str = "auto",
        max_tokens: int | None = None,
        lowercase: bool = True,
        token_pattern: str = _TOKEN_PATTERN,
        random_state: Any = None,
    ):
        self.n_components = n_components
        self.n_features = n_features
        self.word_ngrams = word_ngrams
        self.char_ngrams = char_ngrams
        self.alpha = alpha
        self.cv = cv
        self.target_type = target_type
        self.max_tokens = max_tokens
        self.lowercase = lowercase
        self.token_pattern = token_pattern
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None) -> HashedTokenEmbedder:
        """Learn the maps from n-grams to channels.

        Parameters
        ----------
        X : iterable of n str
            The sentences.
        y : array-like of shape (n,) or (n, n_outputs), default=None
            Classes or numbers to be predicted. None: latent channels only.

        Returns
        -------
        self : HashedTokenEmbedder
            The fitted transformer.

        Raises
        ------
        TypeError
            If an element of ``X`` is not a string.
        ValueError
            If a parameter or ``y`` is invalid, or there would be no channel at all.
        """
        self._fit(X, y)
        return self

    def fit_transform(self, X: Any, y: Any = None) -> list[np.ndarray]:
        """Fit, and return the training tokens with cross-fitted scores.

        Parameters
        ----------
        X : iterable of n str
            The sentences.
        y : array-like of shape (n,) or (n, n_outputs), default=None
            Classes or numbers to be predicted. None: latent channels only.

        Returns
        -------
        tokens : list of n ndarrays of float32 of shape (t_i, c)
            Channels of each token, in the order of ``get_feature_names_out``.
        """
        views, means, target = self._fit(X, y)
        if target is None:
            return self._tokens(views, None)
        scores = np.empty((len(self.view_names_), len(views["word"].item), target.shape[1]))
        times_scored = np.zeros(len(target), dtype=int)
        sentence = np.repeat(np.arange(len(target)), np.diff(views["word"].offsets))
        splits = cross_fitting_splits(self.cv, y, self.target_type_, len(target), self.random_state)
        for train, test in splits:
            times_scored[test] += 1
            rows = np.isin(sentence, test)
            coefs = self._regress(means[train], target[train])
            scores[:, rows] = np.stack(self._scores(views, coefs))[:, rows]
        if (times_scored != 1).any():
            raise ValueError("cv must put each sentence into exactly one test fold.")
        return self._tokens(views, list(scores))

    def transform(self, X: Any) -> list[np.ndarray]:
        """Return the channels of each token.

        Parameters
        ----------
        X : iterable of n str
            The sentences.

        Returns
        -------
        tokens : list of n ndarrays of float32 of shape (t_i, c)
            Channels of each token, in the order of ``get_feature_names_out``.
        """
        check_is_fitted(self, "view_names_")
        texts = check_texts(X, type(self).__name__)
        tokens = []
        for start in range(0, len(texts), _CHUNK_SENTENCES):
            views = self._views(texts[start : start + _CHUNK_SENTENCES])
            scores = None if self._coefs is None else self._scores(views, self._coefs)
            tokens += self._tokens(views, scores)
        return tokens

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """Return the names of the channels.

        Parameters
        ----------
        input_features : None
            Ignored.

        Returns
        -------
        names : ndarray of str of shape (c,)
            ``score_<view>`` (with ``_<class or output>`` where there are several) and
            ``latent<i>``.
        """
        check_is_fitted(self, "view_names_")
        names = [f"score_{view}{suffix}" for view in self.view_names_ for suffix in self._suffixes]
        latent = self._latent["word"].shape[1]
        return np.array(names + [f"latent{i}" for i in range(latent)], dtype=object)

    def _fit(
        self, X: Any, y: Any
    ) -> tuple[dict[str, HashedView], sparse.csr_matrix, np.ndarray | None]:
        """Fit; return the hashed tokens, sentence means and encoded target."""
        self._check_parameters(has_target=y is not None)
        texts = check_texts(X, type(self).__name__)
        target, target_type, classes, suffixes = encode_target(y, len(texts), self.target_type)
        views = self._views(texts)
        columns, weights, means = {}, {}, {}
        for name, view in views.items():
            mean = view.sentence_means()
            frequency = np.bincount(mean.indices, minlength=self.n_features)
            columns[name] = np.flatnonzero(frequency)
            idf = np.log((1 + len(texts)) / (1 + frequency[columns[name]])) + 1
            mean = mean[:, columns[name]].multiply(idf).tocsr()
            # Every view gets the same mean square, so that `alpha` weighs them alike.
            scale = np.sqrt(len(texts) / max(mean.power(2).sum(), 1e-300) / len(views))
            weights[name], means[name] = idf * scale, mean * scale
        latent = self._analyse(views, means)
        if target is None and not latent["word"].shape[1]:
            raise ValueError(
                "X has too few n-grams in common for a latent channel, and without y there is no "
                "other: pass more sentences, or y."
            )
        stacked = sparse.hstack(list(means.values())).tocsr()
        self._columns, self._weights, self._latent = columns, weights, latent
        self.view_names_ = list(views)
        self._suffixes = suffixes
        self._coefs = None if target is None else self._regress(stacked, target)
        self.target_type_, self.classes_ = target_type, classes
        return views, stacked, target

    def _check_parameters(self, has_target: bool) -> None:
        """Validate the parameters."""
        check_parameters(type(self).__name__, vars(self), CONSTRAINTS)
        if self.n_components == 0 and not has_target:
            raise ValueError(
                "Without y there are only latent channels: n_components must be at least 1."
            )

    def _views(self, texts: Sequence[str]) -> dict[str, HashedView]:
        """Hashed n-grams of each token."""
        documents = tokenize(texts, self.token_pattern, self.lowercase, self.max_tokens)
        return hash_views(documents, self.word_ngrams, self.char_ngrams, self.n_features)

    def _analyse(
        self, views: Iterable[str], means: dict[str, sparse.csr_matrix]
    ) -> dict[str, np.ndarray]:
        """Latent map of words and characters; features of one sentence alone say nothing here."""
        names = [name for name in views if name in ("word", "char")]
        common = {n: np.bincount(means[n].indices, minlength=means[n].shape[1]) > 1 for n in names}
        table = sparse.hstack([means[n][:, common[n]] for n in names]).tocsr()
        latent = {n: np.zeros((means[n].shape[1], 0), np.float32) for n in names}
        n_components = min(self.n_components, min(table.shape) - 1)
        if n_components < 1:
            return latent
        # shares of no variance at all, which nobody looks at
        with np.errstate(divide="ignore", invalid="ignore"):
            svd = TruncatedSVD(n_components, random_state=self.random_state).fit(table)
        start = 0
        for n in names:
            stop = start + common[n].sum()
            latent[n] = np.zeros((means[n].shape[1], n_components), np.float32)
            latent[n][common[n]] = svd.components_[:, start:stop].T
            start = stop
        return latent

    def _regress(self, means: sparse.csr_matrix, target: np.ndarray) -> list[np.ndarray]:
        """Ridge coefficients, one array of shape (n_columns, n_outputs) for each view."""
        if not means.shape[1]:  # empty sentences only
            return [np.zeros((0, target.shape[1]))] * len(self._columns)
        # in units of about one, or the solver's squares overflow; powers of two change no digit
        unit = np.frexp(np.abs(target).max(axis=0))[1]
        ridge = Ridge(alpha=self.alpha, solver="sparse_cg")
        with np.errstate(all="ignore"):
            ridge.fit(means, np.ldexp(target, -unit))
        if not np.isfinite(ridge.coef_).all():
            raise ValueError(
                f"alpha={self.alpha!r} is too small for the regression on these sentences."
            )
        coef = np.ldexp(np.atleast_2d(ridge.coef_), unit[:, None])
        stops = np.cumsum([len(columns) for columns in self._columns.values()])[:-1]
        return np.split(coef.T, stops)

    def _scores(self, views: dict[str, HashedView], coefs: list[np.ndarray]) -> list[np.ndarray]:
        """Scores of every token, one array of shape (n_tokens, n_outputs) for each view."""
        return [
            self._project(view, name, c)
            for (name, view), c in zip(views.items(), coefs, strict=True)
        ]

    def _project(self, view: HashedView, name: str, linear: np.ndarray) -> np.ndarray:
        """Apply a linear map of a view's weighted features to every token."""
        table = view.table[:, self._columns[name]]
        return (table @ (self._weights[name][:, None] * linear))[view.item]

    def _tokens(
        self, views: dict[str, HashedView], scores: list[np.ndarray] | None
    ) -> list[np.ndarray]:
        """Scores and latent channels side by side, cut into sentences."""
        latent = sum(self._project(views[name], name, m) for name, m in self._latent.items())
        with np.errstate(over="ignore"):
            channels = np.concatenate([*(scores or []), latent], axis=1).astype(np.float32)
        if not np.isfinite(channels).all():
            raise ValueError("The scores, in the units of y, overflow float32: rescale y.")
        return np.split(channels, views["word"].offsets[1:-1])
