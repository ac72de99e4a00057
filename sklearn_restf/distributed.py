"""Training one model in several processes, on one machine or many.

Within an initialised ``torch.distributed`` process group, as ``torchrun`` starts it, ``fit``
takes the samples that it is given on each rank for a part of the data, and every rank ends
with the model that one process would have trained on all of it. Nothing but a sum of the size
of the model goes over the network in each iteration.

The functions here cut the data into parts, and exempt a fit from this rule.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from torch import distributed

from sklearn_restf._utils.process_group import chosen

__all__ = ["process_group", "rows_of_rank", "single_process"]


def rows_of_rank(n_samples: int, rank: int | None = None, size: int | None = None) -> slice:
    """Return which samples of a data set this process trains on.

    Parameters
    ----------
    n_samples : int
        Number of samples of the whole data set.
    rank, size : int, default=None
        Number of this process, and how many there are. By default those of the
        ``torch.distributed`` process group; without one there is one process.

    Returns
    -------
    rows : slice
        Neighbouring rows, of which every rank has as many as the others or one more.

    Raises
    ------
    ValueError
        If there are fewer samples than processes, or no such rank.

    Examples
    --------
    >>> from sklearn_restf.distributed import rows_of_rank
    >>> [rows_of_rank(10, rank, size=3) for rank in range(3)]
    [slice(0, 4, None), slice(4, 7, None), slice(7, 10, None)]
    >>> rows_of_rank(10)
    slice(0, 10, None)
    """
    grouped = distributed.is_available() and distributed.is_initialized()
    if rank is None:
        rank = distributed.get_rank() if grouped else 0
    if size is None:
        size = distributed.get_world_size() if grouped else 1
    if not 0 <= rank < size:
        raise ValueError(f"rank={rank} is not one of size={size} processes.")
    if n_samples < size:
        raise ValueError(
            f"n_samples={n_samples} is less than one sample for each of {size} processes: start "
            "fewer."
        )
    base, more = divmod(n_samples, size)
    start = rank * base + min(rank, more)
    return slice(start, start + base + (rank < more))


def single_process() -> AbstractContextManager[None]:
    """Train models of this process alone, whatever process group there is.

    For what is not done by all ranks together: a search over parameters on rank 0, or a model
    of its own on every rank.

    Returns
    -------
    manager : context manager
        To call ``fit`` in.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn_restf import ResidualTransformerRegressor
    >>> from sklearn_restf.distributed import single_process
    >>> X = np.random.default_rng(0).normal(size=(40, 4))
    >>> with single_process():
    ...     model = ResidualTransformerRegressor(max_iter=20, tol=None).fit(X, X[:, 0])
    >>> model.n_iter_
    20
    """
    return process_group(None)


def process_group(group: Any) -> AbstractContextManager[None]:
    """Train with the ranks of one process group, instead of all of them.

    Parameters
    ----------
    group : torch.distributed.ProcessGroup or None
        As made by ``torch.distributed.new_group``; this process must belong to it. None is
        :func:`single_process`.

    Returns
    -------
    manager : context manager
        To call ``fit`` in.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn_restf import ResidualTransformerRegressor
    >>> from sklearn_restf.distributed import process_group
    >>> X = np.random.default_rng(0).normal(size=(40, 4))
    >>> with process_group(None):  # this process alone
    ...     model = ResidualTransformerRegressor(max_iter=20, tol=None).fit(X, X[:, 0])

    Two models at once on four ranks::

        groups = [torch.distributed.new_group([0, 1]), torch.distributed.new_group([2, 3])]
        with process_group(groups[torch.distributed.get_rank() // 2]):
            model.fit(X, y)
    """
    return _choose(group)


@contextmanager
def _choose(group: Any) -> Iterator[None]:
    chosen.append(group)
    try:
        yield
    finally:
        chosen.pop()
