"""Transformers from raw series and sentences to the token input of the estimators."""

from sklearn_restf.preprocessing._hashing import HashedTokenEmbedder
from sklearn_restf.preprocessing._scaler import TokenStandardScaler
from sklearn_restf.preprocessing._sliding_windows import SlidingWindows
from sklearn_restf.preprocessing._text import TextTokenEmbedder
from sklearn_restf.preprocessing._windows import Windows, make_windows

__all__ = [
    "HashedTokenEmbedder",
    "SlidingWindows",
    "TextTokenEmbedder",
    "TokenStandardScaler",
    "Windows",
    "make_windows",
]
