"""From what users pass as X to validated arrays; targets and weights are in ``_targets``.

Nothing is cast here beyond what scikit-learn's own validation does, inputs are never
written to, and large memory maps are read in slices.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy import sparse
from sklearn.base import BaseEstimator
from sklearn.utils import assert_all_finite, check_array
from sklearn.utils.validation import validate_data

from sklearn_restf._data.memory_maps import release, select_rows

SLICE_BYTES = 2**24  # how much of a large array is looked at (or cast) at a time


@dataclass(frozen=True)
class RawTokens:
    """Validated input, still in the user's dtype and memory.

    `values` is (n, p) for tables, (n, T, c) for sequences of equal length, and
    (sum of lengths, c) for ragged samples, whose lengths are then in `lengths`.
    """

    values: np.ndarray  # or SelectedRows of one
    lengths: np.ndarray | None = None
    real: np.ndarray | None = None  # which tokens (n, T) of padded input are real

    @property
    def n_samples(self) -> int:
        """Number of samples."""
        return len(self.values) if self.lengths is None else len(self.lengths)

    @property
    def offsets(self) -> np.ndarray:
        """First token of every ragged sample in `values`."""
        assert self.lengths is not None
        return np.concatenate([[0], np.cumsum(self.lengths)[:-1]])

    def take(self, rows: np.ndarray) -> RawTokens:
        """Return the given samples; a block of them is a view (of a memory map, say)."""
        if self.lengths is None:
            return RawTokens(select_rows(self.values, as_slice(rows)))
        spans = [
            np.arange(o, o + t) for o, t in zip(self.offsets[rows], self.lengths[rows], strict=True)
        ]
        return RawTokens(self.values[np.concatenate(spans)], self.lengths[rows])

    def slices(self) -> Iterator[slice]:
        """Cut the first axis of `values` into pieces of about SLICE_BYTES in float64."""
        rows = max(1, SLICE_BYTES // (8 * max(1, int(np.prod(self.values.shape[1:])))))
        for start in range(0, len(self.values), rows):
            yield slice(start, min(start + rows, len(self.values)))
            release(self.values)


def as_slice(rows: np.ndarray) -> slice | np.ndarray:
    """Return ascending rows without a gap as a slice, others as they are."""
    if len(rows) and rows[-1] - rows[0] + 1 == len(rows) and (np.diff(rows) == 1).all():
        return slice(int(rows[0]), int(rows[-1]) + 1)
    return rows


def token_index(offsets: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return the positions in packed values of the tokens of the given samples."""
    within = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    return np.repeat(offsets, lengths) + within


@contextmanager
def validating(input_name: str) -> Iterator[None]:
    """Let scikit-learn's validation name the argument it is about, and bear huge numbers.

    Its sum over all numbers, a quick test for NaN, is infinity minus infinity for some.
    """
    try:
        with np.errstate(invalid="ignore"):
            yield
    except (ValueError, TypeError) as error:
        if re.search(rf"\b{input_name}\b", str(error)):
            raise
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"{input_name}: {error}") from error


def read_X(
    estimator: BaseEstimator,
    X: Any,
    *,
    reset: bool,
    token_dim: int | None,
    padding_value: float | None,
    input_name: str = "X",
    allow_nan: bool = False,
) -> RawTokens:
    """Validate X in any of the accepted forms; set (or check) the scikit-learn attributes."""
    with validating(input_name):
        return _read_X(estimator, X, reset, token_dim, padding_value, allow_nan)


def _read_X(
    estimator: BaseEstimator,
    X: Any,
    reset: bool,
    token_dim: int | None,
    padding_value: float | None,
    allow_nan: bool,
) -> RawTokens:
    name = type(estimator).__name__
    X = as_numpy(X)
    if is_ragged(X):
        tokens = pack(X, name, allow_nan)
        check_token_dim(tokens, token_dim)
        if reset:
            estimator.n_features_in_ = tokens.values.shape[-1]
        return tokens
    ndim = number_of_dimensions(X)
    if ndim > 3:
        raise ValueError(
            f"X has {ndim} dimensions; {name} takes 2-D (n_samples, n_features), 3-D "
            "(n_samples, n_tokens, features) or a list of (n_tokens_i, features) arrays."
        )
    options = {"dtype": "numeric", "ensure_all_finite": False}
    if type(X) is np.ndarray and ndim == 3 and X.dtype.kind == "f" and X.size:
        pass  # as it should be: the general check takes longer than predicting a few samples
    elif ndim == 3:
        X = check_array(X, allow_nd=True, input_name="X", estimator=estimator, **options)
    elif not reset and token_dim is not None and fitted_on_other_form(estimator, X):
        X = check_array(X, input_name="X", estimator=estimator, **options)
    else:
        X = validate_data(estimator, X, reset=reset, **options)
    if X.dtype.kind not in "biuf":
        raise ValueError(f"X has dtype {X.dtype}; {name} takes numbers. Encode X as numbers first.")
    if 0 in X.shape[1:]:
        raise ValueError(f"Found array with shape {X.shape}: no tokens or no features. {name}")
    if X.ndim == 2 and token_dim is not None:
        if X.shape[1] % token_dim:
            raise ValueError(
                f"X has {X.shape[1]} columns, which is not divisible by token_dim={token_dim}: "
                "2-D windows need n_tokens * token_dim columns."
            )
        X = X.reshape(len(X), -1, token_dim)
    tokens = RawTokens(X)
    check_token_dim(tokens, token_dim)
    if X.ndim == 3 and padding_value is not None:
        tokens = drop_padding(X, padding_value)
    if reset and ndim == 3:  # scikit-learn's attribute, for input it has no rule for
        estimator.n_features_in_ = X.shape[2]
    for piece in tokens.slices():
        assert_all_finite(
            tokens.values[piece], input_name="X", estimator_name=name, allow_nan=allow_nan
        )
    return tokens


def check_token_dim(tokens: RawTokens, token_dim: int | None) -> None:
    """Raise unless sequences have tokens of the width asked for."""
    width = tokens.values.shape[-1]
    if token_dim not in (None, width):
        raise ValueError(f"X has {width} features per token, but token_dim={token_dim}.")


def as_numpy(tensor: Any) -> Any:
    """Return a tensor as an array, all else as it is; NumPy has no bfloat16."""
    if not isinstance(tensor, torch.Tensor):
        return tensor
    try:
        return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy(force=True)
    except RuntimeError as error:  # nested tensors, and those without values
        raise TypeError(f"a tensor that NumPy cannot hold: {error}") from error


def number_of_dimensions(X: Any) -> int:
    """Return the dimensions of X, without converting frames and sparse matrices."""
    if sparse.issparse(X) or hasattr(X, "columns"):
        return 2
    if hasattr(X, "shape"):
        return len(X.shape)
    try:
        return np.asarray(X).ndim
    except ValueError as error:
        raise ValueError(
            "X is a list of unequal parts that are not all 2-D arrays. For samples of unequal "
            "length, pass a list of (n_tokens_i, features) arrays."
        ) from error


def fitted_on_other_form(estimator: BaseEstimator, X: Any) -> bool:
    """Tell whether 2-D windows come to an estimator fitted on their 3-D form."""
    return getattr(estimator, "n_features_in_", None) == estimator.get_params()["token_dim"]


def is_ragged(X: Any) -> bool:
    """Tell whether X is a sequence of 2-D arrays, one a sample."""
    if isinstance(X, np.ndarray):
        if X.dtype != object or X.ndim != 1:
            return False
    elif not isinstance(X, list | tuple):
        return False
    return len(X) > 0 and all(len(getattr(sample, "shape", ())) == 2 for sample in X)


def pack(X: Sequence[Any], name: str, allow_nan: bool = False) -> RawTokens:
    """Concatenate the samples of a list along the token axis."""
    samples = []
    for i, sample in enumerate(X):
        try:
            sample = check_array(
                as_numpy(sample),
                dtype="numeric",
                ensure_all_finite="allow-nan" if allow_nan else True,
                ensure_min_samples=0,
                input_name=f"X[{i}]",
                estimator=name,
            )
        except ValueError as error:
            raise ValueError(f"Sample {i} of X is not usable: {error}") from error
        if sample.dtype.kind not in "biuf":
            raise ValueError(f"Sample {i} of X has dtype {sample.dtype}; {name} takes numbers.")
        samples.append(sample)
    widths = [sample.shape[1] for sample in samples]
    if len(set(widths)) > 1:
        other = next(i for i, width in enumerate(widths) if width != widths[0])
        raise ValueError(
            "The samples of X have different numbers of features per token: "
            f"{sorted(set(widths))}, sample {other} for instance another than sample 0. Each must "
            "be (n_tokens_i, features) with the same number of features."
        )
    lengths = np.array([len(sample) for sample in samples])
    refuse_empty(lengths)
    return RawTokens(np.concatenate(samples), lengths)


def real_token_mask(X: np.ndarray, padding_value: float | None) -> np.ndarray:
    """Tell which tokens (n, T) are real: at least one feature is not `padding_value`."""
    if padding_value is None:
        return np.ones(X.shape[:2], dtype=bool)
    if np.isnan(padding_value):
        return ~np.isnan(X).all(axis=2)
    value = np.float64(padding_value)
    if X.dtype.kind == "f":  # 0.1 in a float32 array is the float32 next to 0.1
        with np.errstate(over="ignore"):
            value = value.astype(X.dtype)
    return (value != X).any(axis=2)


def drop_padding(X: np.ndarray, padding_value: float) -> RawTokens:
    """Keep the real tokens."""
    real = real_token_mask(X, padding_value)
    lengths = real.sum(axis=1)
    refuse_empty(lengths)
    return RawTokens(X[real], lengths, real)


def refuse_empty(lengths: np.ndarray) -> None:
    """Raise for samples without a single real token."""
    empty = np.flatnonzero(lengths == 0)
    if len(empty):
        rows = ", ".join(map(str, empty[:10])) + (", ..." if len(empty) > 10 else "")
        raise ValueError(
            f"X has {len(empty)} sample(s) without a real token, in row(s) {rows}: drop them, or "
            "check padding_value."
        )
