"""Samples spread over the ranks of a process group: what they have in common, and all of them."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import torch
from sklearn.utils.class_weight import compute_class_weight
from torch import Tensor

from sklearn_restf._batches import Batches
from sklearn_restf._collective import Collective
from sklearn_restf._input import RawTokens
from sklearn_restf._module import ModuleConfig
from sklearn_restf._samples import Samples
from sklearn_restf._state import FittedModel

# every rank may have its own
OWN = ("device", "verbose", "callbacks", "random_state", "chunk_size")
# labels that sort together
LABEL_KINDS = dict.fromkeys("iuf", "numbers") | dict.fromkeys("UO", "strings")
POOL_BYTES = 2**30  # tokens of all ranks that diagnostics="full" brings together
# what it computes from them
FULL_FIELDS = (
    "jacobian_norm",
    "kernel_min",
    "predicted_curve",
    "predicted_horizon",
    "local_rate",
    "forecast",
)


def call_facts(estimator: Any, previous: FittedModel | None, validated: bool) -> dict[str, Any]:
    """Return what must be the same in the call of fit on every rank."""
    facts: dict[str, Any] = {"the estimator": type(estimator).__name__}
    parameters = estimator.get_params(deep=False)
    facts |= {name: value for name, value in parameters.items() if name not in OWN}
    if not isinstance(estimator.random_state, np.random.RandomState):
        facts["random_state"] = estimator.random_state
    facts["whether X_val is given"] = validated
    facts["the model to go on from"] = None if previous is None else digest(previous)
    return facts


def sample_facts(estimator: Any, samples: Samples) -> dict[str, Any]:
    """Return what must be the same of the samples of every rank."""
    tokens = samples.tokens
    ragged = tokens.lengths is not None
    form = "samples of unequal length" if ragged else f"{tokens.values.ndim}-D"
    per_token = samples.per_token and not ragged
    return {
        "the form of X": form,
        "the number of features of X": estimator.n_features_in_,
        "the names of the features of X": list(getattr(estimator, "feature_names_in_", [])),
        "the shape of a sample of X": tokens.values.shape[1:],
        "the shape of a target of y": samples.y.shape[2 if per_token else 1 :],
    }


def common_random_state(
    random_state: np.random.RandomState, estimator: Any, group: Collective
) -> np.random.RandomState:
    """Return a generator in the state of that of rank 0."""
    if group.size == 1:
        return random_state
    given = isinstance(estimator.random_state, np.random.RandomState)
    if estimator.random_state is None:  # NumPy's own, which other fits of this process draw from
        seed = group.first(int(random_state.randint(np.iinfo(np.int32).max)))
        return np.random.RandomState(seed)
    if given:
        random_state.set_state(group.first(random_state.get_state()))
    return random_state


def common_labels(y: np.ndarray, group: Collective) -> np.ndarray:
    """Return the sorted labels that occur on any rank."""
    group.agree({"the kind of labels in y": LABEL_KINDS.get(y.dtype.kind, y.dtype.name)})
    return np.unique(np.concatenate(group.gather(np.unique(y))))


def class_weights(
    class_weight: dict[Any, float] | str, y: np.ndarray, group: Collective
) -> dict[Any, float]:
    """Return the weight of each of the labels of `y`, given what all ranks have."""
    labels = common_labels(y, group)
    if class_weight == "balanced":
        counts = group.total(np.array([(y == label).sum() for label in labels]))
        values = counts.sum() / (len(labels) * counts)
    else:
        values = compute_class_weight(class_weight, classes=labels, y=labels)
    return {
        label: value
        for label, value in zip(labels.tolist(), values.tolist(), strict=True)
        if (y == label).any()
    }


def digest(model: FittedModel) -> str:
    """Return a short name of the weights of a model."""
    content = hashlib.sha256()
    for name, value in sorted(model.state.items()):
        content.update(name.encode())
        content.update(np.ascontiguousarray(value).tobytes())
    return content.hexdigest()[:12]


def join(parts: list[tuple[Tensor, Tensor | None]]) -> tuple[Tensor, Tensor | None]:
    """Concatenate batches of tokens (n, T, W) and their masks along the samples."""
    if len(parts) == 1:
        return parts[0]
    longest = max(x.shape[1] for x, _ in parts)
    tokens = parts[0][0].new_zeros(sum(len(x) for x, _ in parts), longest, parts[0][0].shape[2])
    mask = torch.zeros(tokens.shape[:2], dtype=torch.bool)
    start = 0
    for x, real in parts:
        tokens[start : start + len(x), : x.shape[1]] = x
        mask[start : start + len(x), : x.shape[1]] = True if real is None else real
        start += len(x)
    return tokens, None if mask.all() else mask


def pool_ranks(
    batches: Batches, config: ModuleConfig, group: Collective
) -> tuple[Batches | None, str]:
    """Return the samples of all ranks on every one, or why they are too many for that."""
    size = group.total(batches.tokens.values.nbytes)
    if size > POOL_BYTES:
        return None, f"computed for up to 1 GiB of X on several ranks; it has {size / 2**30:.3g}"
    tokens = batches.tokens
    own = np.asarray(tokens.values), tokens.lengths, batches.y, batches.weight
    values, lengths, y, weight = zip(*group.gather(own), strict=True)
    pooled = Batches(
        RawTokens(np.concatenate(values), None if lengths[0] is None else np.concatenate(lengths)),
        batches.layout,
        np.concatenate(y),
        np.concatenate(weight),
        config=config,
        chunk_size=None,
        dtype=batches.dtype,
        device=batches.device,
        total_weight=1.0,
    )
    return pooled, ""
