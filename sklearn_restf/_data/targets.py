"""Sample weights and targets: from what users pass to validated arrays; classes."""

from __future__ import annotations

import numbers
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils import check_array
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.validation import column_or_1d

from sklearn_restf._data.arrays import (
    RawTokens,
    as_numpy,
    validating,
)
from sklearn_restf._utils.process_group import agree, gather, total

# labels that sort together
LABEL_KINDS = dict.fromkeys("iuf", "numbers") | dict.fromkeys("UO", "strings")


def read_sample_weight(
    sample_weight: Any,
    n_samples: int,
    estimator: BaseEstimator,
    input_name: str = "sample_weight",
) -> np.ndarray:
    """Return float64 weights (ones for None), checked to be usable; the largest is one."""
    if sample_weight is None:
        sample_weight = 1.0
    if isinstance(sample_weight, numbers.Real):
        sample_weight = np.full(n_samples, float(sample_weight))
    with validating(input_name):
        weight = check_array(
            as_numpy(sample_weight),
            ensure_2d=False,
            allow_nd=True,
            dtype=np.float64,
            input_name=input_name,
            estimator=estimator,
        )
    if weight.ndim != 1:
        raise ValueError(
            f"{input_name} has {weight.ndim} dimensions: Sample weights must be 1D array or scalar."
        )
    if weight.shape != (n_samples,):
        raise ValueError(
            f"{input_name}.shape == {weight.shape}, expected {(n_samples,)}: one weight per sample."
        )
    if (weight < 0).any():
        raise ValueError(f"Negative values in data passed to `{input_name}`: weights must be >= 0.")
    if not weight.any():
        raise ValueError(f"{input_name}: sample weights must not all be zero.")
    largest = max(gather(weight.max()))
    return weight / largest  # so that sums of huge or tiny weights neither over- nor underflow


def read_y_numeric(
    y: Any, tokens: RawTokens, estimator: BaseEstimator, *, per_token: bool, input_name: str = "y"
) -> np.ndarray:
    """Return float64 targets: (n,) or (n, k); per token (n, T[, k]) or packed (sum t_i[, k])."""
    if y is None:
        raise ValueError(
            f"This {type(estimator).__name__} estimator requires y to be passed, but the target y "
            "is None."
        )
    options: dict[str, Any] = {
        "ensure_2d": False,
        "dtype": np.float64,
        "input_name": input_name,
        "estimator": estimator,
    }
    with validating(input_name):
        y = as_numpy(y)
        if per_token:
            return read_y_per_token(y, tokens, options)
        y = check_array(y, **options)
        if y.ndim == 2 and y.shape[1] == 1:
            y = column_or_1d(y, warn=True)
    check_length(y, tokens, input_name)
    return y


def read_y_per_token(y: Any, tokens: RawTokens, options: dict[str, Any]) -> np.ndarray:
    """Return one target (vector) a token, real tokens only."""
    lengths = tokens.lengths
    if lengths is not None and (isinstance(y, list | tuple) or is_object_array(y)):
        pieces = [np.asarray(as_numpy(p)) for p in y]
        check_length(pieces, tokens, "y")
        for i, (piece, length) in enumerate(zip(pieces, lengths, strict=True)):
            if piece.ndim not in (1, 2) or len(piece) != length:
                raise ValueError(
                    f'pooling="none" needs one target a token: sample {i} has {length} tokens, '
                    f"but y[{i}] has shape {piece.shape}."
                )
        return check_array(np.concatenate(pieces), **options)
    options = options | {"allow_nd": True}
    if lengths is None:
        y = check_array(y, **options)
        n, T = tokens.values.shape[:2]
        if y.ndim not in (2, 3) or y.shape[:2] != (n, T):
            raise ValueError(
                f'pooling="none" needs y of shape ({n}, {T}) or ({n}, {T}, n_outputs), one target '
                f"a token; got {y.shape}."
            )
        return y
    # padded X, padded y: what stands at padded positions is ignored
    y = check_array(y, **options | {"ensure_all_finite": False})
    check_length(y, tokens, "y")
    real = tokens.real
    if real is None:  # X is a list: padded on the right
        real = np.arange(y.shape[1] if y.ndim > 1 else 0) < lengths[:, None]
    if y.ndim not in (2, 3) or y.shape[:2] != real.shape or y.shape[1] < lengths.max():
        raise ValueError(
            'pooling="none" needs one target a token: y of shape (n_samples, n_tokens'
            f"[, n_outputs]) with n_tokens >= {max(lengths.max(), real.shape[1])}; got {y.shape}."
        )
    return check_array(y[real], **options)


def is_object_array(y: Any) -> bool:
    """Tell whether y is a 1-D array of objects: what a list of arrays may be kept in."""
    return isinstance(y, np.ndarray) and y.dtype == object and y.ndim == 1


def check_length(y: Any, tokens: RawTokens, input_name: str) -> None:
    """Raise unless there is one target a sample."""
    if len(y) != tokens.n_samples:
        raise ValueError(
            "Found input variables with inconsistent numbers of samples: "
            f"{input_name.replace('y', 'X')} has {tokens.n_samples}, {input_name} has {len(y)}."
        )


def common_labels(y: np.ndarray) -> np.ndarray:
    """Return the sorted labels that occur on any rank."""
    agree({"the kind of labels in y": LABEL_KINDS.get(y.dtype.kind, y.dtype.name)})
    return np.unique(np.concatenate(gather(np.unique(y))))


def weighted_by_class(
    weight: np.ndarray, y: np.ndarray, class_weight: dict[Any, float] | str
) -> np.ndarray:
    """Return sample weights times the weights of the classes, given what all ranks have.

    Balanced classes have equal shares of the weight, so that a sample of weight two counts as
    two samples here as well. The largest of the weights is one.
    """
    labels = common_labels(y)
    index = np.searchsorted(labels, y)
    if class_weight == "balanced":
        totals = total(np.bincount(index, weight, minlength=len(labels)))
        weight = weight / totals[index]
    else:
        weight = weight * compute_class_weight(class_weight, classes=labels, y=labels)[index]
    largest = max(gather(weight.max()))
    return weight / largest if largest else weight
