"""Token sequences of a chosen spectrum."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from sklearn.preprocessing import scale
from sklearn.utils import check_random_state

from sklearn_restf._data.arrays import validating
from sklearn_restf._utils.validation import (
    RANDOM_STATE,
    check_arguments,
    integer,
    one_of,
    real,
    sequence_of,
)

_TOKENS = {
    "n_samples": [integer(1)],
    "n_tokens": [integer(1), sequence_of(integer(1), "a pair of such, the lower one first", 2)],
    "n_features": [integer(1)],
    "random_state": [RANDOM_STATE],
}

_TEACHER_WIDTH = 8


@check_arguments(
    **_TOKENS,
    n_targets=[integer(1)],
    target=[one_of("sequence", "token")],
    noise=[real(0)],
)
def make_token_regression(
    n_samples: int = 100,
    n_tokens: int | tuple[int, int] = 8,
    n_features: int = 4,
    *,
    singular_values: float | Sequence[float] | None = None,
    n_targets: int = 1,
    target: str = "sequence",
    noise: float = 0.0,
    random_state: int | np.random.RandomState | None = None,
) -> tuple[Any, Any]:
    r"""Generate token sequences whose singular values are chosen, with real targets.

    Each sample is :math:`X_p = U_p\,\mathrm{diag}(s)\,V_p^\top` with random orthonormal
    :math:`U_p` and :math:`V_p`, so that its singular values are exactly `singular_values`.
    The targets are a smooth function of each token, averaged over the tokens of a sample
    unless there is one for every token.

    Parameters
    ----------
    n_samples : int, default=100
        Number of sequences.
    n_tokens : int or tuple of two int, default=8
        Tokens per sequence; a pair ``(low, high)`` draws a length for each sequence, both
        ends included.
    n_features : int, default=4
        Width of a token.
    singular_values : float or sequence of float, default=None
        The singular values of every sample, in any order, at most ``min(n_tokens,
        n_features)`` of them; those not given are zero, so three values make rank 3. A
        number in (0, 1] is the ratio of the smallest to the largest, with a geometric
        sequence in between. None: all equal. In the last two cases the entries of a sample
        have mean square one.
    n_targets : int, default=1
        Targets of a sequence (or token).
    target : {"sequence", "token"}, default="sequence"
        Whether each sequence or each token has targets.
    noise : float, default=0.0
        Standard deviation of Gaussian noise on the targets, which have standard deviation
        one without it.
    random_state : int, RandomState instance or None, default=None
        Pass an int for the same data every time.

    Returns
    -------
    X : ndarray of shape (n_samples, n_tokens, n_features) or list of ndarray
        The sequences; a list of arrays of shape (length, n_features) if the lengths differ.
    y : ndarray or list of ndarray
        Of shape (n_samples,) or (n_samples, n_targets) with ``target="sequence"``; for
        ``"token"`` of shape (n_samples, n_tokens) or (n_samples, n_tokens, n_targets), a
        list of such arrays if `X` is one.

    Raises
    ------
    ValueError
        If a parameter is out of its range.

    See Also
    --------
    make_token_classification : The same with classes.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn_restf.datasets import make_token_regression
    >>> X, y = make_token_regression(50, 6, 4, singular_values=[3, 2, 1, 0.1], random_state=0)
    >>> X.shape, y.shape
    ((50, 6, 4), (50,))
    >>> np.linalg.svd(X[7], compute_uv=False).round(6)
    array([3. , 2. , 1. , 0.1])
    """
    random = check_random_state(random_state)
    samples = _draw_tokens(n_samples, n_tokens, n_features, singular_values, random)
    scores = _teacher_scores(samples, n_targets, random)
    lengths = [len(sample) for sample in samples]
    flat = np.concatenate(scores) if target == "token" else np.stack([s.mean(0) for s in scores])
    flat = scale(flat) + noise * random.standard_normal(flat.shape)
    flat = flat[:, 0] if n_targets == 1 else flat
    is_ragged = np.ndim(n_tokens) > 0
    X = samples if is_ragged else np.stack(samples)
    if target == "sequence":
        return X, flat
    y = np.split(flat, np.cumsum(lengths)[:-1])
    return X, (y if is_ragged else np.stack(y))


@check_arguments(**_TOKENS, n_classes=[integer(2)], flip_y=[real(0, 1)])
def make_token_classification(
    n_samples: int = 100,
    n_tokens: int | tuple[int, int] = 8,
    n_features: int = 4,
    *,
    n_classes: int = 2,
    singular_values: float | Sequence[float] | None = None,
    flip_y: float = 0.0,
    random_state: int | np.random.RandomState | None = None,
) -> tuple[Any, np.ndarray]:
    """Generate token sequences whose singular values are chosen, with classes.

    The classes are equally large ranges of the target of :func:`make_token_regression`.

    Parameters
    ----------
    n_samples : int, default=100
        Number of sequences.
    n_tokens : int or tuple of two int, default=8
        Tokens per sequence; a pair ``(low, high)`` draws a length for each sequence, both
        ends included.
    n_features : int, default=4
        Width of a token.
    n_classes : int, default=2
        Number of classes.
    singular_values : float or sequence of float, default=None
        As in :func:`make_token_regression`.
    flip_y : float, default=0.0
        Fraction of the samples whose class is drawn at random.
    random_state : int, RandomState instance or None, default=None
        Pass an int for the same data every time.

    Returns
    -------
    X : ndarray of shape (n_samples, n_tokens, n_features) or list of ndarray
        The sequences; a list of arrays of shape (length, n_features) if the lengths differ.
    y : ndarray of shape (n_samples,)
        The classes, ``0`` to ``n_classes - 1``, int64.

    Raises
    ------
    ValueError
        If a parameter is out of its range.

    See Also
    --------
    make_token_regression : The same with real targets.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn_restf.datasets import make_token_classification
    >>> X, y = make_token_classification(60, (3, 9), 4, n_classes=3, random_state=0)
    >>> len(X), X[0].shape[1], np.bincount(y)
    (60, 4, array([20, 20, 20]))
    """
    if n_samples < n_classes:
        raise ValueError(f"n_samples={n_samples} is less than n_classes={n_classes}.")
    random = check_random_state(random_state)
    X, score = make_token_regression(
        n_samples, n_tokens, n_features, singular_values=singular_values, random_state=random
    )
    rank = np.argsort(np.argsort(score))
    y = (rank * n_classes // n_samples).astype(np.int64)
    flipped = random.uniform(size=n_samples) < flip_y
    y[flipped] = random.randint(n_classes, size=int(flipped.sum()))
    return X, y


def _draw_tokens(
    n_samples: int, n_tokens: Any, n_features: int, singular_values: Any, random: Any
) -> list[np.ndarray]:
    low, high = n_tokens if np.ndim(n_tokens) else (n_tokens, n_tokens)
    if low > high:
        raise ValueError(f"n_tokens: the upper end is below the lower one in {n_tokens!r}.")
    lengths = random.randint(low, high + 1, size=n_samples)
    samples = []
    for length in lengths:
        with validating("singular_values"):
            spectrum = _spectrum(singular_values, int(length), n_features)
        left = _orthonormal(int(length), len(spectrum), random)
        right = _orthonormal(n_features, len(spectrum), random)
        samples.append((left * spectrum) @ right.T)
    return samples


def _spectrum(singular_values: Any, n_tokens: int, n_features: int) -> np.ndarray:
    n_values = min(n_tokens, n_features)
    if singular_values is None:
        singular_values = 1.0
    if np.ndim(singular_values) == 0:
        if not 0 < singular_values <= 1:
            raise ValueError(
                "singular_values as a number is the ratio of the smallest to the largest and "
                f"must lie in (0, 1], got {singular_values!r}."
            )
        spectrum = np.geomspace(1.0, singular_values, n_values)
        return spectrum * np.sqrt(n_tokens * n_features / np.sum(spectrum**2))
    spectrum = np.asarray(singular_values, dtype=np.float64)
    if spectrum.ndim != 1 or not 1 <= spectrum.size <= n_values:
        raise ValueError(
            f"singular_values must have 1 to {n_values} entries (the smaller of {n_tokens} "
            f"tokens and {n_features} features), got the shape {spectrum.shape}."
        )
    if not np.all(np.isfinite(spectrum) & (spectrum >= 0)):
        raise ValueError(f"singular_values must be finite and not negative, got {spectrum}.")
    return spectrum


def _orthonormal(n_rows: int, n_columns: int, random: Any) -> np.ndarray:
    """Draw a matrix with orthonormal columns, uniformly."""
    q, r = np.linalg.qr(random.standard_normal((n_rows, n_columns)))
    # The signs LAPACK chooses are not uniform; these are.
    return q * np.where(np.diag(r) < 0, -1.0, 1.0)


def _teacher_scores(samples: list[np.ndarray], n_targets: int, random: Any) -> list[np.ndarray]:
    n_features = samples[0].shape[1]
    inner = random.standard_normal((n_features, _TEACHER_WIDTH)) / np.sqrt(n_features)
    shift = random.standard_normal(_TEACHER_WIDTH)
    outer = random.standard_normal((_TEACHER_WIDTH, n_targets))
    return [np.tanh(sample @ inner + shift) @ outer for sample in samples]
