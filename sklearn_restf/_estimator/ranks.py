"""What the ranks of a process group must have in common before they train one model."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from sklearn.utils import check_random_state

from sklearn_restf._data.samples import Samples
from sklearn_restf._estimator.fitted_model import FittedModel
from sklearn_restf._utils.process_group import active_group, agree, first

# every rank may have its own
OWN = ("device", "verbose", "callbacks", "random_state", "chunk_size")


def agree_on_call(estimator: Any, previous: FittedModel | None, validated: bool) -> None:
    """Raise on all ranks unless fit is called alike on each."""
    if active_group() is None:  # so that nothing is digested
        return
    facts: dict[str, Any] = {"the estimator": type(estimator).__name__}
    parameters = estimator.get_params(deep=False)
    facts |= {name: value for name, value in parameters.items() if name not in OWN}
    if not isinstance(estimator.random_state, np.random.RandomState):
        facts["random_state"] = estimator.random_state
    facts["whether X_val is given"] = validated
    facts["the model to go on from"] = None if previous is None else digest(previous)
    agree(facts)


def agree_on_samples(estimator: Any, samples: Samples) -> None:
    """Raise on all ranks unless the samples of each are of the same form."""
    tokens = samples.tokens
    ragged = tokens.lengths is not None
    per_token = samples.per_token and not ragged
    agree(
        {
            "the form of X": "samples of unequal length" if ragged else f"{tokens.values.ndim}-D",
            "the number of features of X": estimator.n_features_in_,
            "the names of the features of X": list(getattr(estimator, "feature_names_in_", [])),
            "the shape of a sample of X": tokens.values.shape[1:],
            "the shape of a target of y": samples.y.shape[2 if per_token else 1 :],
        }
    )


def common_random_state(random_state: Any) -> np.random.RandomState:
    """Return the generator that a parameter `random_state` means, in its state on rank 0."""
    generator = check_random_state(random_state)
    if active_group() is None:
        return generator
    if random_state is None:  # NumPy's own, which other fits of this process draw from
        return np.random.RandomState(first(int(generator.randint(np.iinfo(np.int32).max))))
    if isinstance(random_state, np.random.RandomState):
        generator.set_state(first(generator.get_state()))
    return generator


def digest(model: FittedModel) -> str:
    """Return a short name of the weights of a model."""
    content = hashlib.sha256()
    for name, value in sorted(model.state.items()):
        content.update(name.encode())
        content.update(np.ascontiguousarray(value).tobytes())
    return content.hexdigest()[:12]
