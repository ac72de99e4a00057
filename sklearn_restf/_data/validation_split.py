"""Which samples early stopping watches."""

from __future__ import annotations

import math

import numpy as np
from sklearn.model_selection import train_test_split


def split_rows(
    n_samples: int,
    fraction: float,
    *,
    how: bool | str,
    labels: np.ndarray | None,
    seed: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows to train on and the rows to validate on.

    ``how="last"`` takes the last block (time series); True draws at random, stratified by
    `labels` where given.
    """
    n_valid = math.ceil(fraction * n_samples)
    if n_valid < 1 or n_samples - n_valid < 1:
        raise ValueError(
            f"early_stopping needs at least one sample to train on and one to validate on: with "
            f"n_samples={n_samples} and validation_fraction={fraction} there are "
            f"{n_samples - n_valid} and {n_valid}. Give more samples, or set early_stopping=False."
        )
    rows = np.arange(n_samples)
    if how == "last":
        if labels is not None:
            unseen = np.setdiff1d(labels[-n_valid:], labels[:-n_valid])
            if len(unseen):
                raise ValueError(
                    f"early_stopping='last' takes the last {n_valid} of {n_samples} samples for "
                    f"validation, and they hold classes that the others do not: {unseen[:10]}. Use "
                    "early_stopping=True, or pass X_val and y_val."
                )
        return rows[:-n_valid], rows[-n_valid:]
    if labels is not None:
        classes, counts = np.unique(labels, return_counts=True)
        smallest = min(n_valid, n_samples - n_valid)
        if counts.min() < 2 or smallest < len(classes):
            raise ValueError(
                "early_stopping draws a validation set with every class in it, and leaves every "
                f"class to train on: that needs at least 2 samples of each class and {len(classes)}"
                f" samples on each side, but the rarest class has {counts.min()} and the sides "
                f"have {n_samples - n_valid} and {n_valid}. Give more samples, change "
                "validation_fraction, pass X_val and y_val, or set early_stopping=False."
            )
    train, valid = train_test_split(rows, test_size=n_valid, random_state=seed, stratify=labels)
    return np.sort(train), np.sort(valid)
