"""Token features of sentences from a pretrained language model (extra: ``text``)."""

from __future__ import annotations

import hashlib
import os
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from sklearn_restf._utils.validation import BOOL, NONE, check_parameters, integer, one_of
from sklearn_restf.preprocessing._cache import FolderCache, MemoryCache
from sklearn_restf.preprocessing._language_model import LanguageModel
from sklearn_restf.preprocessing._output import SentenceInputMixin, TokenOutputMixin
from sklearn_restf.preprocessing._sentences import check_texts

# One for the process: clones in a grid search then share what they computed.
_MEMORY = MemoryCache(max_bytes=2**30)

CONSTRAINTS = {
    "layer": [one_of("embeddings"), integer()],
    "max_length": [NONE, integer(1)],
    "special_tokens": [BOOL],
    "batch_size": [integer(1)],
    "local_files_only": [BOOL],
}


class TextTokenEmbedder(
    TokenOutputMixin,
    SentenceInputMixin,
    ClassNamePrefixFeaturesOutMixin,
    TransformerMixin,
    BaseEstimator,
):
    """Turn sentences into the token features of a pretrained language model.

    The model is used as it is and never trained. Requires the extra ``text``
    (``pip install "sklearn-restf[text]"``).

    Parameters
    ----------
    model : str or path-like
        Folder of a Hugging Face model, or its name on the hub. Weights are read from safetensors
        files only, and no code of the model's own is run.
    layer : int or "embeddings", default=-1
        Which features: "embeddings" for the static embedding of each token, or the number of a
        hidden state: 0 is what enters the first layer, ``i`` the output of layer ``i``, -1 of the
        last.
    max_length : int or None, default=None
        Longest sequence in tokens, special ones included; what is longer is cut off at the end
        without a word. None: as long as the model allows.
    special_tokens : bool, default=True
        Keep the features of the special tokens ("[CLS]", "[SEP]") that the model adds. The model
        sees them in any case.
    batch_size : int, default=32
        Sentences sent through the model at once.
    device : str, default="auto"
        Torch device; "auto" for the first accelerator, or else the CPU.
    cache : "memory", path-like or None, default="memory"
        Where features are remembered, by content of model and sentence. "memory": in this process,
        up to 1 GiB, shared by all embedders. A folder: on disk, for several processes at once.
        None: nowhere.
    revision : str or None, default=None
        Branch, tag or commit on the hub.
    local_files_only : bool, default=False
        Never ask the hub, use only what is on this machine.

    Attributes
    ----------
    n_features_out_ : int
        Number of channels ``c`` of each token.
    model_hash_ : str
        SHA-256 of the model's configuration, weights and vocabulary.

    See Also
    --------
    HashedTokenEmbedder : Token features without a pretrained model.

    Notes
    -----
    ``fit`` learns nothing and ignores ``y``; it loads the model. A pickled embedder holds the
    model's name, not its weights: it loads the model again when it is first used, and raises a
    ``ValueError`` if that is not the model it was fitted with. An empty sentence without special
    tokens becomes one token of zeros. Features do not depend on which sentences share a batch,
    other than by rounding.

    Examples
    --------
    >>> from sklearn_restf.preprocessing import TextTokenEmbedder
    >>> embedder = TextTokenEmbedder("sentence-transformers/all-MiniLM-L6-v2")
    >>> tokens = embedder.fit_transform(["a fine film", "dull"])  # doctest: +SKIP
    >>> [t.shape for t in tokens]  # doctest: +SKIP
    [(5, 384), (3, 384)]
    """

    __module__ = "sklearn_restf.preprocessing"  # lasting: saved models name it

    def __init__(
        self,
        model: str | os.PathLike,
        *,
        layer: int | str = -1,
        max_length: int | None = None,
        special_tokens: bool = True,
        batch_size: int = 32,
        device: str = "auto",
        cache: str | os.PathLike | None = "memory",
        revision: str | None = None,
        local_files_only: bool = False,
    ):
        self.model = model
        self.layer = layer
        self.max_length = max_length
        self.special_tokens = special_tokens
        self.batch_size = batch_size
        self.device = device
        self.cache = cache
        self.revision = revision
        self.local_files_only = local_files_only

    def fit(self, X: Any, y: Any = None) -> TextTokenEmbedder:
        """Check the sentences and load the model.

        Parameters
        ----------
        X : iterable of n str
            The sentences.
        y : None
            Ignored.

        Returns
        -------
        self : TextTokenEmbedder
            The fitted transformer.

        Raises
        ------
        ImportError
            If the extra ``text`` is not installed.
        OSError
            If there is no such model, or it has no safetensors weights.
        TypeError
            If an element of ``X`` is not a string.
        ValueError
            If a parameter is invalid.
        """
        check_texts(X, type(self).__name__)
        check_parameters(type(self).__name__, vars(self), CONSTRAINTS)
        loaded = LanguageModel(self.model, self.revision, self.local_files_only, self.device)
        self.n_features_out_ = loaded.width(self.layer)
        self.model_hash_ = loaded.hash
        self._loaded = loaded
        return self

    def transform(self, X: Any) -> list[np.ndarray]:
        """Return the features of each token.

        Parameters
        ----------
        X : iterable of n str
            The sentences.

        Returns
        -------
        tokens : list of n ndarrays of float32 of shape (t_i, c)
            Features of each token, read-only if cached in memory.

        Raises
        ------
        TypeError
            If an element of ``X`` is not a string.
        ValueError
            If the model is no longer the one it was fitted with.
        """
        check_is_fitted(self, "model_hash_")
        texts = check_texts(X, type(self).__name__)
        keys = [self._key(text) for text in texts]
        cache = self._cache()
        known = {} if cache is None else cache.get(list(dict.fromkeys(keys)))
        missing = {key: text for key, text in zip(keys, texts, strict=True) if key not in known}
        if missing:
            # Sentences of like length share a batch, so that little padding is computed.
            order = sorted(missing, key=lambda key: len(missing[key]))
            for start in range(0, len(order), self.batch_size):
                batch = order[start : start + self.batch_size]
                arrays = self._language_model().features(
                    [missing[key] for key in batch],
                    self.layer,
                    self.max_length,
                    self.special_tokens,
                )
                computed = dict(zip(batch, arrays, strict=True))
                if cache is not None:
                    cache.put(computed)
                known.update(computed)
        return [known[key] for key in keys]

    @property
    def _n_features_out(self) -> int:
        return self.n_features_out_

    def __getstate__(self) -> dict[str, Any]:
        """Leave the model itself out of pickles and copies."""
        state = dict(super().__getstate__())
        state.pop("_loaded", None)
        return state

    def _key(self, text: str) -> str:
        """Hash of everything that the features of a sentence depend on."""
        settings = (self.model_hash_, self.layer, self.max_length, self.special_tokens, text)
        return hashlib.sha256(repr(settings).encode("utf-8", "surrogatepass")).hexdigest()

    def _cache(self) -> MemoryCache | FolderCache | None:
        """Open the cache that was asked for."""
        if self.cache is None:
            return None
        return _MEMORY if self.cache == "memory" else FolderCache(self.cache)

    def _language_model(self) -> LanguageModel:
        """Return the model, loaded again where a pickle or a copy came without it."""
        loaded = getattr(self, "_loaded", None)
        if loaded is None:
            loaded = LanguageModel(self.model, self.revision, self.local_files_only, self.device)
            if loaded.hash != self.model_hash_:
                raise ValueError(
                    f"The model {str(self.model)!r} is not the one that this "
                    f"{type(self).__name__} was fitted with: its content has changed. Fit again."
                )
            self._loaded = loaded
        return loaded
