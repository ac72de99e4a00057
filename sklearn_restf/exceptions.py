"""Errors and warnings raised by the package."""

from typing import Any

__all__ = ["DivergenceError", "RankCollapseWarning", "RankError"]


class DivergenceError(ValueError):
    """Raised by ``fit`` when a constant learning rate makes the loss diverge.

    Nothing is lost: the best parameters found before the divergence are kept in
    :attr:`estimator`.

    Parameters
    ----------
    *args : object
        The message, as of every exception.
    estimator : estimator, default=None
        See the attribute.

    Attributes
    ----------
    estimator : estimator or None
        A fitted copy of the estimator that holds the parameters of the lowest
        training loss reached before the divergence.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn_restf import ResidualTransformerRegressor
    >>> from sklearn_restf.exceptions import DivergenceError
    >>> X = np.random.default_rng(0).normal(size=(20, 4))
    >>> model = ResidualTransformerRegressor(learning_rate=1e6, momentum=0.0)
    >>> try:
    ...     model.fit(X, X[:, 0])
    ... except DivergenceError as error:
    ...     rescued = error.estimator
    >>> rescued.predict(X).shape
    (20,)
    """

    def __init__(self, *args: Any, estimator: Any = None) -> None:
        super().__init__(*args)
        self.estimator = estimator


class RankCollapseWarning(UserWarning):
    """Warns that the attention output Z is numerically rank-deficient.

    Softmax attention averages tokens, and without a residual connection the tokens of
    a sample can become indistinguishable: the smallest singular value of
    ``Z = residual_beta * F + A F W_V`` falls to rounding error and gradient descent
    stalls. Issued at most once per fit, and only when a larger ``residual_beta`` would
    help.

    Examples
    --------
    >>> import warnings
    >>> from sklearn_restf.exceptions import RankCollapseWarning
    >>> warnings.simplefilter("ignore", RankCollapseWarning)
    """


class RankError(RuntimeError):
    """Raised by ``fit`` on the ranks of a process group when another of them fails.

    The rank that failed raises its own error; the others raise this one, which quotes it, and
    none waits for ever. See :mod:`sklearn_restf.distributed`.

    Parameters
    ----------
    *args : object
        The message, as of every exception.
    rank : int, default=0
        See the attribute.

    Attributes
    ----------
    rank : int
        The rank that failed.

    Examples
    --------
    >>> from sklearn_restf.exceptions import RankError
    >>> error = RankError("Rank 1 could not go on: ValueError: Input X contains NaN.", rank=1)
    >>> error.rank
    1
    """

    def __init__(self, *args: Any, rank: int = 0) -> None:
        super().__init__(*args)
        self.rank = rank
