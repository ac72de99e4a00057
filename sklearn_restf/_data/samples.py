"""Samples that belong together: tokens, targets, weights; and how they are split."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from sklearn_restf._data.arrays import RawTokens
from sklearn_restf._data.tokens import TokenLayout, as_layout


@dataclass(frozen=True)
class Samples:
    """Validated samples. `y` has one entry per sample, or per token.

    Per token that is (n, T[, k]) for samples of equal length and (sum t_i[, k]) for ragged
    ones, in step with ``tokens.values``.
    """

    tokens: RawTokens
    y: np.ndarray
    weight: np.ndarray
    per_token: bool = False

    def take(self, rows: np.ndarray) -> Samples:
        """Return the given samples."""
        y = self.y
        if self.per_token and self.tokens.lengths is not None:
            y = RawTokens(y, self.tokens.lengths).take(rows).values
        else:
            y = y[rows]
        return replace(self, tokens=self.tokens.take(rows), y=y, weight=self.weight[rows])

    def without_zero_weights(self) -> Samples:
        """Drop samples of weight zero, as if they had never been there."""
        return self.take(np.flatnonzero(self.weight)) if (self.weight == 0).any() else self

    def in_layout(self, layout: TokenLayout) -> Samples:
        """Bring list or 3-D samples into the form of a layout, targets in step."""
        tokens, y = as_layout(layout, self.tokens), self.y
        if self.per_token and tokens is not self.tokens:
            ragged = tokens.lengths is not None
            y = (
                y.reshape(-1, *y.shape[2:])
                if ragged
                else y.reshape(len(tokens.values), -1, *y.shape[1:])
            )
        return replace(self, tokens=tokens, y=y)
