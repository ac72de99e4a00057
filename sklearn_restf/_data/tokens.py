"""From validated arrays to tokens: grouping, standardisation, padding and masks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from sklearn_restf._data.arrays import RawTokens, token_index
from sklearn_restf._data.memory_maps import release
from sklearn_restf._utils.process_group import gather, total


@dataclass(frozen=True)
class TokenLayout:
    """How samples become tokens; fixed at fit.

    `kind` is "table" (2-D, groups of adjacent features), "windows" (n_tokens of equal
    width) or "ragged". `mean` and `scale` hold one number per channel: per feature of a
    table, per token feature otherwise; None without standardisation.
    """

    __module__ = "sklearn_restf._data"  # lasting: saved models name it

    kind: str
    n_features: int  # columns of a table; features per token otherwise
    n_tokens: int | None  # None when ragged
    max_tokens: int  # longest training sample
    mean: np.ndarray | None = None
    scale: np.ndarray | None = None

    @property
    def token_width(self) -> int:
        """Numbers per token: the widest group of a table, or the features of a token."""
        if self.kind == "table":
            assert self.n_tokens is not None
            return -(-self.n_features // self.n_tokens)
        return self.n_features

    def group_columns(self) -> np.ndarray:
        """Return the columns of each group, (n_tokens, token_width), `n_features` as filler."""
        assert self.n_tokens is not None
        columns = np.full((self.n_tokens, self.token_width), self.n_features)
        groups = np.array_split(np.arange(self.n_features), self.n_tokens)
        for row, group in zip(columns, groups, strict=True):
            row[: len(group)] = group
        return columns

    def standardise(self, values: np.ndarray) -> np.ndarray:
        """Return float64 values, centred and scaled per channel (always a new array)."""
        values = values.astype(np.float64, order="C")
        if self.mean is not None:
            with np.errstate(over="ignore"):  # what infinity leads to is refused where it shows
                values -= self.mean
                values /= self.scale
        return values

    def batch(
        self, tokens: RawTokens, rows: slice | np.ndarray, dtype: torch.dtype, device: torch.device
    ) -> tuple[Tensor, Tensor | None]:
        """Return tokens (n, T, W) of the given samples and, if ragged, their mask (n, T)."""
        if self.kind == "ragged":
            return self._ragged_batch(tokens, rows, dtype, device)
        x = self.standardise(tokens.values[rows])
        release(tokens.values)
        if self.kind == "table":
            columns = self.group_columns()
            if (columns == self.n_features).any():
                x = np.concatenate([x, np.zeros((len(x), 1))], axis=1)[:, columns.ravel()]
            x = x.reshape(len(x), *columns.shape)
        return torch.from_numpy(np.ascontiguousarray(x)).to(dtype).to(device), None

    def _ragged_batch(
        self, tokens: RawTokens, rows: slice | np.ndarray, dtype: torch.dtype, device: torch.device
    ) -> tuple[Tensor, Tensor | None]:
        assert tokens.lengths is not None
        lengths, offsets = tokens.lengths[rows], tokens.offsets[rows]
        mask = np.arange(lengths.max()) < lengths[:, None]
        x = np.zeros((*mask.shape, self.n_features))
        index = token_index(offsets, lengths)
        x[mask] = self.standardise(tokens.values[index])
        return (
            torch.from_numpy(x).to(dtype).to(device),
            None if mask.all() else torch.from_numpy(mask).to(device),
        )


def plan_layout(
    tokens: RawTokens,
    *,
    n_tokens: int | str,
    standardize: bool,
    weight: np.ndarray,
) -> TokenLayout:
    """Decide how the training samples (those of all ranks) become tokens."""
    values = tokens.values
    if tokens.lengths is not None:
        longest = max(gather(int(tokens.lengths.max())))
        layout = TokenLayout("ragged", values.shape[1], None, longest)
        channel_weight = np.repeat(weight, tokens.lengths)
    elif values.ndim == 3:
        layout = TokenLayout("windows", values.shape[2], values.shape[1], values.shape[1])
        channel_weight = weight
    else:
        p = values.shape[1]
        groups = min(p, 4) if n_tokens == "auto" else int(n_tokens)
        if groups > p:
            raise ValueError(
                f"n_tokens={groups} is more than the {p} feature(s) of X: a table is cut into "
                "groups of at least one feature."
            )
        layout = TokenLayout("table", p, groups, groups)
        channel_weight = weight
    if not standardize:
        return layout
    mean, scale, _ = weighted_moments(tokens, channel_weight)
    # constant channels are centred, and left unscaled
    return replace(layout, mean=mean, scale=np.where(scale > 0, scale, 1.0))


def weighted_moments(
    tokens: RawTokens, weight: np.ndarray, name: str = "X"
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return mean, standard deviation (0 where constant) and total weight per channel.

    `weight` has one entry per sample, or per token (n, T); packed tokens have one each. NaN is a
    missing value. Read slice by slice, in float64, scaled by the largest deviation first so that
    neither 1e-300 nor 1e300 is lost in the square. The moments are those of the samples of all
    ranks.
    """
    values = tokens.values
    repeats = values.shape[1] if values.ndim == 3 and weight.ndim == 1 else 1

    def pieces() -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Yield tokens (m, c), which of their values are missing, and their weights (m,)."""
        for piece in tokens.slices():
            w = np.repeat(weight[piece].ravel(), repeats)  # tokens of a sample share its weight
            x = values[piece].astype(np.float64, order="C").reshape(len(w), -1)
            if not w.all():
                x, w = x[w > 0], w[w > 0]
            yield x, np.isnan(x), w

    everything = total(weight.sum() * repeats)
    mean, seen, low, high = (
        np.full(values.shape[-1], start) for start in (0.0, 0.0, np.inf, -np.inf)
    )
    for x, missing, w in pieces():
        low = np.fmin(low, np.fmin.reduce(x, axis=0, initial=np.inf))
        high = np.fmax(high, np.fmax.reduce(x, axis=0, initial=-np.inf))
        seen += w @ ~missing if missing.any() else w.sum()
        x[missing] = 0.0
        mean += (w / everything) @ x
    seen = total(seen)
    known = seen > 0
    share = np.where(known, seen / everything, 1.0)
    low = np.where(known, np.minimum.reduce(gather(low)), 0.0)
    high = np.where(known, np.maximum.reduce(gather(high)), 0.0)
    mean = np.clip(total(mean) / share, low, high)  # outside the range is rounding
    with np.errstate(over="ignore"):
        spread = np.maximum(high - mean, mean - low)
    if not np.isfinite(spread).all():
        raise ValueError(
            f"{name} contains values too large to be standardised: the spread of channel "
            f"{int(np.flatnonzero(~np.isfinite(spread))[0])} overflows float64. Rescale {name}."
        )
    safe_spread = np.where(spread > 0, spread, 1.0)
    variance = 0.0
    for x, missing, w in pieces():
        x -= mean
        x /= safe_spread
        x[missing] = 0.0
        variance = variance + (w / everything) @ np.square(x, out=x)
    scale = safe_spread * np.sqrt(total(variance) / share)
    # a channel whose variation is rounding of its mean is constant
    constant = (spread == 0) | (scale <= 10 * np.finfo(np.float64).eps * np.abs(mean))
    return mean, np.where(constant, 0.0, scale), seen


def check_compatible(layout: TokenLayout, tokens: RawTokens, name: str, *, fixed: bool) -> None:
    """Raise unless the samples fit what the estimator was fitted on.

    `fixed`: the model has weights per token position, so longer samples have none.
    """
    values, lengths = tokens.values, tokens.lengths
    if layout.kind == "table" and (lengths is not None or values.ndim != 2):
        raise ValueError(
            f"{name} was fitted on a 2-D table; X must be 2-D too. Set token_dim if the rows of "
            "the table are windows."
        )
    if layout.kind != "table" and lengths is None and values.ndim == 2:
        raise ValueError(
            f"{name} was fitted on sequences of {layout.n_features} features per token; got 2-D X. "
            "Pass 3-D X, or set token_dim to read 2-D rows as windows."
        )
    if values.shape[-1] != layout.n_features:
        raise ValueError(
            f"X has {values.shape[-1]} features per token, but {name} is expecting "
            f"{layout.n_features} features per token as input."
        )
    if layout.kind == "windows":
        counts = np.unique(lengths) if lengths is not None else np.array([values.shape[1]])
        if (counts != layout.n_tokens).any():
            raise ValueError(
                f"X has samples of {counts[counts != layout.n_tokens][0]} tokens, but {name} was "
                f"fitted on samples of {layout.n_tokens} tokens. Fit on a list of arrays to "
                "predict other lengths."
            )
    elif layout.kind == "ragged" and fixed:
        longest = int(lengths.max()) if lengths is not None else values.shape[1]
        if longest > layout.max_tokens:
            raise ValueError(
                f"X has a sample of {longest} tokens, but positional_encoding='learned' knows "
                f"{layout.max_tokens} positions, the longest sample seen in fit."
            )


def as_layout(layout: TokenLayout, tokens: RawTokens) -> RawTokens:
    """Bring compatible samples into the form of the layout (list or 3-D array)."""
    if layout.kind == "ragged" and tokens.lengths is None:
        n, T, c = tokens.values.shape
        return RawTokens(np.reshape(tokens.values, (n * T, c)), np.full(n, T))
    if layout.kind == "windows" and tokens.lengths is not None:
        n = len(tokens.lengths)
        return RawTokens(np.reshape(tokens.values, (n, -1, tokens.values.shape[1])))
    return tokens
