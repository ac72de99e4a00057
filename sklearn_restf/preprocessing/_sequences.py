"""What counts as a ragged batch, and its validation."""

from __future__ import annotations

from typing import Any

import numpy as np


def to_numpy(X: Any) -> Any:
    """Torch tensors as NumPy arrays; everything else as it is."""
    if type(X).__module__.partition(".")[0] == "torch":
        return X.detach().cpu().numpy()
    return X


def is_ragged(X: Any) -> bool:
    """Whether X is a list, tuple or 1-D object array of 2-D arrays or tensors."""
    if not isinstance(X, (list, tuple)) and not (
        isinstance(X, np.ndarray) and X.dtype == object and X.ndim == 1
    ):
        return False
    # Nested lists are left to NumPy: they are a 2-D or 3-D array written out.
    return any(getattr(x, "ndim", None) == 2 for x in X)


def check_sequences(X: Any, n_channels: int | None, owner: str) -> list[np.ndarray]:
    """Validate a ragged batch.

    Parameters
    ----------
    X : list, tuple or object array of n arrays of shape (t_i, c)
        The sequences.
    n_channels : int or None
        The width that each must have; None: that of the first.
    owner : str
        Name of the estimator, for messages.

    Returns
    -------
    sequences : list of ndarray of shape (t_i, c)
        float32 as they are, everything else as float64.

    Raises
    ------
    ValueError
        If an element is not a numeric 2-D array, or has another width, or infinite values; the
        message names the rows.
    """
    sequences = []
    for i, element in enumerate(X):
        element = to_numpy(element)
        try:
            array = np.asarray(element)
            if np.iscomplexobj(array):
                raise ValueError("complex numbers are not supported.")
            if array.dtype != np.float32:
                array = array.astype(np.float64)
        except (TypeError, ValueError) as error:
            raise ValueError(f"X[{i}] cannot be read as an array of numbers: {error}") from error
        if array.ndim != 2:
            raise ValueError(
                f"X[{i}] has {array.ndim} dimensions: each sequence must be of shape (t_i, c)."
            )
        if np.isinf(array).any():
            raise ValueError(f"Input X contains infinity: see the sequence X[{i}].")
        sequences.append(array)
    expected = sequences[0].shape[1] if n_channels is None else n_channels
    wrong = [i for i, array in enumerate(sequences) if array.shape[1] != expected]
    if wrong:
        raise ValueError(
            f"{owner} is expecting {expected} channels per token, but the sequences "
            f"{wrong[:10]}{' ...' if len(wrong) > 10 else ''} have "
            f"{sorted({sequences[i].shape[1] for i in wrong})}."
        )
    if expected == 0:
        raise ValueError("X has sequences of 0 channels: at least one is required.")
    return sequences
