"""The samples as gradient descent sees them: all of them, in one or several chunks.

Chunks change memory and speed, never the result: losses and gradients are summed over
chunks before a step is taken. Ragged samples are grouped by length, so that little time
goes into padding.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sklearn_restf._data.arrays import RawTokens, token_index
from sklearn_restf._data.tokens import TokenLayout

GRAPH_BYTES = 2**30  # activations kept for one backward pass before chunks are used
CHUNK_BYTES = 2**27  # activations of one chunk when memory asks for chunks
CACHE_BYTES = 2**30  # cast and standardised tokens kept between iterations
# What one more group of samples costs: its calls, as long as so many multiply-adds take, and
# passes over all weights and gradients, as long as so many tokens take (both measured)
WORK_OF_CALLS = {"cpu": 4e6, "cuda": 4e8}
TOKENS_OF_CALLS = 64
MAX_LENGTHS = 512  # lengths told apart when samples are grouped


@dataclass(frozen=True)
class Batch:
    """Some samples, on the device: tokens, mask, targets, weights, and which rows they are."""

    x: Tensor
    mask: Tensor | None
    y: Tensor
    weight: Tensor
    rows: slice | np.ndarray


class Batches:
    """Iterate over all samples in chunks, cached when they fit.

    Parameters
    ----------
    tokens : RawTokens
        All samples.
    layout : TokenLayout
        How they become tokens.
    y : ndarray of shape (n, C), or per token as in :class:`RawTokens`
        Encoded targets.
    weight : ndarray of shape (n,)
        Sample weights; normalised here to sum to one.
    config : ModuleConfig
        For the memory estimate.
    chunk_size : int or None
        Samples per chunk; None chooses.
    dtype, device : torch.dtype, torch.device
        Of the batches.
    labels : ndarray of shape (n,), optional
        Class indices, for callbacks that score.
    total_weight : float, optional
        What the weights are divided by, when other processes hold further samples.
    may_cache : bool, default=True
        Whether cast tokens may be kept between iterations.
    """

    def __init__(
        self,
        tokens: RawTokens,
        layout: TokenLayout,
        y: np.ndarray,
        weight: np.ndarray,
        *,
        config: Any,
        chunk_size: int | None,
        dtype: torch.dtype,
        device: torch.device,
        labels: np.ndarray | None = None,
        total_weight: float | None = None,
        may_cache: bool = True,
    ) -> None:
        self.tokens, self.layout, self.y = tokens, layout, y
        self.weight = weight / (weight.sum() if total_weight is None else total_weight)
        self.dtype, self.device = dtype, device
        self.labels = labels
        self.per_token = config.pooling == "none"
        itemsize = torch.finfo(dtype).bits // 8
        longest = layout.max_tokens if tokens.lengths is None else int(tokens.lengths.max())
        per_sample = activation_bytes(config, longest, itemsize)
        check_memory(per_sample, tokens.n_samples, longest, config.d_model, device)
        total = per_sample * tokens.n_samples
        # one backward pass over the kept graph is cheapest; chunks repeat no work but keep
        # no graph, so that memory is bounded
        self.keeps_graph = chunk_size is None and total <= max(GRAPH_BYTES, spare_bytes(device))
        if chunk_size is None and not self.keeps_graph:
            chunk_size = max(1, int(CHUNK_BYTES // per_sample))
        if chunk_size is None and tokens.lengths is not None:
            work = WORK_OF_CALLS.get(device.type, WORK_OF_CALLS["cpu"])
            self.row_sets = groups_of_equal_length(tokens.lengths, config, work)
        else:
            self.row_sets = row_sets(tokens, chunk_size)
        cached = tokens.values.size * itemsize <= max(CACHE_BYTES, spare_bytes(device))
        self._cache: list[Batch] | None = None
        if cached and may_cache:
            with contextlib.suppress(torch.cuda.OutOfMemoryError):
                self._cache = [self._batch(rows) for rows in self.row_sets]

    def __len__(self) -> int:
        return self.tokens.n_samples

    @property
    def is_cached(self) -> bool:
        """Whether the same tensors are seen in every iteration."""
        return self._cache is not None

    def halve(self) -> None:
        """Cut the samples into chunks of half the size, since memory did not suffice."""
        self._cache, self.keeps_graph = None, False  # as little memory as possible
        sizes = [len(np.arange(len(self))[rows]) for rows in self.row_sets]
        if max(sizes) == 1:
            raise MemoryError(
                f"Not even one sample at a time fits into the memory of {self.device}. Use shorter "
                "samples (attention is quadratic in the number of tokens), a smaller d_model or "
                "d_ff, or device='cpu'."
            )
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        self.row_sets = row_sets(self.tokens, -(-max(sizes) // 2))

    def __iter__(self) -> Iterator[Batch]:
        if self._cache is not None:
            return iter(self._cache)
        return (self._batch(rows) for rows in self.row_sets)

    def _batch(self, rows: slice | np.ndarray) -> Batch:
        x, mask = self.layout.batch(self.tokens, rows, self.dtype, self.device)
        y = select_targets(self.y, self.tokens, rows, per_token=self.per_token)

        def tensor(values: np.ndarray) -> Tensor:
            return torch.from_numpy(np.ascontiguousarray(values)).to(self.dtype).to(self.device)

        return Batch(x, mask, tensor(y), tensor(self.weight[rows]), rows)


def with_less_memory(batches: Batches, call: Callable[[], Any]) -> Any:
    """Call; where the device's memory does not suffice, again and with smaller chunks."""
    while True:
        with contextlib.suppress(torch.cuda.OutOfMemoryError):
            return call()
        batches.halve()


def activation_bytes(config: Any, T: int, itemsize: int) -> int:
    """Estimate the bytes autograd keeps per sample: about what one forward pass writes."""
    per_layer = T * (6 * config.d_model + 2 * config.n_heads * config.d_qk + 2 * config.d_ff)
    per_layer += 3 * config.n_heads * T * T
    return itemsize * (config.n_layers * per_layer + T * config.token_width)


def spare_bytes(device: torch.device) -> int:
    """Return how much of a GPU's free memory one purpose may take: others train there as well.

    Where it turns out to be too much, chunks are made smaller.
    """
    return torch.cuda.mem_get_info(device)[0] // 4 if device.type == "cuda" else 0


def work_per_pass(config: Any, tokens: RawTokens) -> float:
    """Estimate the multiply-adds of one forward pass over all samples."""
    n_tokens = len(tokens.values) * (tokens.values.shape[1] if tokens.values.ndim == 3 else 1)
    if config.embedding == "grouped":
        n_tokens = len(tokens.values) * (config.n_tokens or 1)
    T = config.max_tokens
    per_token = config.d_model * (4 * config.d_model + 2 * T + 2 * config.d_ff)
    return float(n_tokens) * config.n_layers * per_token


def check_memory(per_sample: int, n: int, T: int, d: int, device: torch.device) -> None:
    """Raise before training when not even one sample at a time fits into memory."""
    if device.type == "cuda":
        total = torch.cuda.mem_get_info(device)[1]
    elif hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    else:
        return
    if per_sample > total:
        raise MemoryError(
            f"Training on n_samples={n} of {T} tokens of width {d} needs about "
            f"{per_sample / 2**30:.3g} GiB for one sample alone (attention is quadratic in the "
            f"number of tokens), and {device} has {total / 2**30:.3g} GiB. Use shorter samples; "
            "chunk_size cannot go below one sample."
        )


def groups_of_equal_length(
    lengths: np.ndarray, config: Any, work_of_calls: float
) -> list[slice | np.ndarray]:
    """Group samples by length, such that padding and the calls for every group cost least.

    Exactly so, by dynamic programming over the lengths that occur: a group holds all samples of
    neighbouring lengths, and costs the work on as many tokens as its longest sample has.
    """
    grain = -(-int(lengths.max()) // MAX_LENGTHS)
    distinct, counts = np.unique(-(-lengths // grain) * grain, return_counts=True)
    last = config.pooling == "last"  # the last layer computes one token then
    per_token = (config.n_layers - last) * (4 * config.d_model + 2 * config.d_ff + 2 * distinct)
    per_token += 2 * last + config.token_width * (config.embedding != "none")
    work = distinct * per_token * config.d_model  # of one sample
    work_of_calls += TOKENS_OF_CALLS * float(per_token[0]) * config.d_model
    ends = np.concatenate([[0], np.cumsum(counts)])
    cost, start = np.zeros(len(ends)), np.zeros(len(ends), dtype=int)
    for j in range(1, len(ends)):
        candidates = cost[:j] + work_of_calls + float(work[j - 1]) * (ends[j] - ends[:j])
        start[j] = candidates.argmin()
        cost[j] = candidates[start[j]]
    order, j = np.argsort(lengths, kind="stable"), len(ends) - 1
    pieces: list[slice | np.ndarray] = []
    while j > 0:
        pieces.append(order[ends[start[j]] : ends[j]])
        j = start[j]
    return pieces[::-1] if len(pieces) > 1 else [slice(0, len(lengths))]


def row_sets(tokens: RawTokens, chunk_size: int | None) -> list[slice | np.ndarray]:
    """Cut the samples into chunks; ragged ones sorted by length where there are several."""
    n = tokens.n_samples
    size = min(chunk_size or n, n)
    if tokens.lengths is None or size == n:
        return [slice(start, min(start + size, n)) for start in range(0, n, size)]
    order = np.argsort(tokens.lengths, kind="stable")
    return list(np.array_split(order, -(-n // size)))


def select_targets(
    y: np.ndarray, tokens: RawTokens, rows: slice | np.ndarray, *, per_token: bool
) -> np.ndarray:
    """Return the targets of some samples; packed per-token targets become padded ones."""
    if tokens.lengths is None or not per_token:
        return y[rows]
    lengths, offsets = tokens.lengths[rows], tokens.offsets[rows]
    padded = np.zeros((len(lengths), lengths.max(), y.shape[1]))
    index = token_index(offsets, lengths)
    padded[np.arange(lengths.max()) < lengths[:, None]] = y[index]
    return padded
