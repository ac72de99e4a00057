"""What the ranks of a process group must have in common before they train one model."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from sklearn.utils.class_weight import compute_class_weight

from sklearn_restf._data.samples import Samples
from sklearn_restf._estimator.fitted_model import FittedModel
from sklearn_restf._utils.process_group import ALONE, Collective

# every rank may have its own
OWN = ("device", "verbose", "callbacks", "random_state", "chunk_size")
# labels that sort together
LABEL_KINDS = dict.fromkeys("iuf", "numbers") | dict.fromkeys("UO", "strings")


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


def weighted_by_class(
    weight: np.ndarray,
    y: np.ndarray,
    class_weight: dict[Any, float] | str,
    group: Collective = ALONE,
) -> np.ndarray:
    """Return sample weights times the weights of the classes, given what all ranks have.

    Balanced classes have equal shares of the weight, so that a sample of weight two counts as
    two samples here as well. The largest of the weights is one.
    """
    labels = common_labels(y, group)
    index = np.searchsorted(labels, y)
    if class_weight == "balanced":
        totals = group.total(np.bincount(index, weight, minlength=len(labels)))
        weight = weight / totals[index]
    else:
        weight = weight * compute_class_weight(class_weight, classes=labels, y=labels)[index]
    largest = max(group.gather(weight.max()))
    return weight / largest if largest else weight


def digest(model: FittedModel) -> str:
    """Return a short name of the weights of a model."""
    content = hashlib.sha256()
    for name, value in sorted(model.state.items()):
        content.update(name.encode())
        content.update(np.ascontiguousarray(value).tobytes())
    return content.hexdigest()[:12]
