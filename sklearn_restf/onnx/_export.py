"""Fitted estimators as ONNX graphs, for serving without Python, torch or scikit-learn.

The graph is written operator by operator from the equations of
:mod:`sklearn_restf._model.module`: it takes what ``predict`` takes and contains the
standardisation, the model, and the way back to targets, labels and probabilities.
"""

from __future__ import annotations

import json
import os
from typing import Any

import numpy as np
from sklearn.base import is_classifier
from sklearn.utils.validation import check_is_fitted

from sklearn_restf._data.tokens import TokenLayout
from sklearn_restf._estimator.base import ResidualTransformerBase
from sklearn_restf.onnx._graph_builder import GraphBuilder, Value, require_onnx
from sklearn_restf.onnx._model_graph import write_model

__all__ = ["to_onnx"]


def to_onnx(
    estimator: Any, path: str | os.PathLike[str] | None = None, *, dtype: str = "float64"
) -> Any:
    """Convert a fitted estimator to an ONNX model.

    Parameters
    ----------
    estimator : ResidualTransformerRegressor or ResidualTransformerClassifier
        A fitted estimator for tables or for samples of equal length.
    path : str or path-like, default=None
        File to write the model to, conventionally ``*.onnx``; None writes nothing.
    dtype : {"float64", "float32"}, default="float64"
        Of the input, of the computation, and of predictions and probabilities. "float64"
        gives what the estimator gives; "float32" halves the size, is faster, and differs by
        about 1e-6 of the scale of the outputs. In either case X is standardised in float64.

    Returns
    -------
    model : onnx.ModelProto
        The model (opset 17, IR version 8). Its input is named ``X``, with any number of
        samples and otherwise the shape that `estimator` was fitted on. A regressor has one
        output, ``variable``, a classifier two: ``label`` and ``probabilities``, as scikit-learn's
        other converters name them.

    Raises
    ------
    ImportError
        If onnx is not installed.
    NotFittedError
        If `estimator` is not fitted.
    TypeError
        If `estimator` is not one of this package: convert the steps of a pipeline one by one.
    ValueError
        If `estimator` was fitted on samples of unequal lengths, if ONNX cannot hold its
        labels, or for an unknown `dtype`.

    Notes
    -----
    ONNX does not check its input: where ``predict`` raises for NaN, the model returns NaN.

    With ``activation="gelu"`` the error function is evaluated in float32, because onnxruntime
    has no other; predictions then agree to about 1e-7.

    Examples
    --------
    >>> import numpy as np
    >>> from onnxruntime import InferenceSession
    >>> from sklearn_restf import ResidualTransformerRegressor
    >>> from sklearn_restf.onnx import to_onnx
    >>> X = np.random.default_rng(0).normal(size=(30, 4))
    >>> regressor = ResidualTransformerRegressor(max_iter=5, tol=None, random_state=0)
    >>> model = to_onnx(regressor.fit(X, X[:, 0]))
    >>> session = InferenceSession(model.SerializeToString())
    >>> (predictions,) = session.run(["variable"], {"X": X})
    >>> bool(np.allclose(predictions, regressor.predict(X)))
    True
    """
    onnx = require_onnx()
    if not isinstance(estimator, ResidualTransformerBase):
        raise TypeError(
            "to_onnx takes a fitted ResidualTransformerRegressor or ResidualTransformerClassifier; "
            f"got {type(estimator).__name__}. Of a pipeline pass the last step, pipeline[-1]; of a "
            "search pass best_estimator_."
        )
    check_is_fitted(estimator)
    if dtype not in ("float64", "float32"):
        raise ValueError(f"dtype must be 'float64' or 'float32', got {dtype!r}.")
    fitted = estimator._fitted
    if fitted.layout.kind == "ragged":
        raise ValueError(
            f"This {type(estimator).__name__} was fitted on samples of unequal lengths, for which "
            "there is no ONNX form. Fit on a 3-D array (n_samples, n_tokens, features)."
        )
    graph = GraphBuilder(onnx, np.dtype(dtype), input_shape(estimator, fitted.layout))
    raw = write_model(graph, fitted)
    if is_classifier(estimator):
        write_classes(graph, estimator, raw)
    else:
        write_targets(graph, estimator, raw)
    metadata = {"estimator": type(estimator).__name__}
    if hasattr(estimator, "feature_names_in_"):
        metadata["feature_names_in"] = json.dumps(list(map(str, estimator.feature_names_in_)))
    model = graph.finish(type(estimator).__name__, metadata)
    if path is not None:
        onnx.save(model, os.fspath(path))
    return model


def input_shape(estimator: ResidualTransformerBase, layout: TokenLayout) -> tuple[int, ...]:
    """Return the shape of one sample: that of a row of X as it was seen in fit."""
    if layout.kind == "table":
        return (layout.n_features,)
    assert layout.n_tokens is not None
    width = layout.n_tokens * layout.n_features
    # with token_dim, 2-D windows are as good; n_features_in_ tells which form fit saw
    if estimator.token_dim is not None and estimator.n_features_in_ == width:
        return (width,)
    return (layout.n_tokens, layout.n_features)


def write_targets(graph: GraphBuilder, estimator: ResidualTransformerBase, raw: Value) -> None:
    """Bring the model's outputs into the units of y."""
    target, config = estimator._target, estimator._fitted.config
    scale, mean = (graph.constant(each, np.float64) for each in (target.scale, target.mean))
    y = raw.cast(np.float64) * scale + mean
    shape: list[int] = [] if config.pooling != "none" else [config.n_tokens or 0]
    if target.is_1d:
        y = y.apply("Squeeze", [-1])
    else:
        shape.append(config.n_outputs)
    graph.add_output("variable", y.cast(graph.dtype), tuple(shape))


def write_classes(graph: GraphBuilder, estimator: Any, raw: Value) -> None:
    """Turn the model's outputs into labels and probabilities, as ``predict_proba`` does."""
    classes = classes_for_onnx(estimator.classes_)
    loss, n_classes = estimator._fitted.loss, len(classes)
    if loss == "log_loss" and n_classes == 2:  # one output: how much speaks for the second
        raw = (-raw).apply("Concat", raw, axis=1)
        probabilities = raw.apply("Sigmoid")
    elif loss == "log_loss":
        probabilities = raw.apply("Softmax", axis=1)
    elif n_classes == 2:
        probabilities = binary_scores(raw)
    else:
        probabilities = normalised_scores(raw, n_classes)
    index = raw.apply("ArgMax", axis=1, keepdims=0)
    label = graph.constant(classes, classes.dtype).apply("Gather", index, axis=0)
    graph.add_output("label", label, (), classes.dtype)
    graph.add_output("probabilities", probabilities, (n_classes,))


def normalised_scores(raw: Value, n_classes: int) -> Value:
    """Clip squared-error outputs to [0, 1] and normalise; uniform where none is positive."""
    clipped = raw.apply("Clip", 0.0, 1.0)
    total = clipped.apply("ReduceSum", [1], keepdims=1)
    some = total > 0.0
    return some.apply("Where", clipped / some.apply("Where", total, 1.0), 1.0 / n_classes)


def binary_scores(raw: Value) -> Value:
    """Turn the difference of two squared-error outputs into probabilities."""
    difference = raw @ np.array([[-1.0], [1.0]])
    positive = (0.5 * (difference + 1.0)).apply("Clip", 0.0, 1.0)
    return (1.0 - positive).apply("Concat", positive, axis=1)


def classes_for_onnx(classes: np.ndarray) -> np.ndarray:
    """Return the labels in a type that ONNX has: integers, floats, booleans or strings."""
    kind = classes.dtype.kind
    if kind in "iu" and classes[-1] <= np.iinfo(np.int64).max:
        return classes.astype(np.int64)
    if kind == "f":
        return classes.astype(np.float64)
    if kind == "b":
        return classes
    if kind in "UT" or (kind == "O" and all(isinstance(label, str) for label in classes)):
        return classes.astype(object)
    raise ValueError(
        f"ONNX cannot hold labels such as {classes[-1]!r}: fit on integers below 2**63, floats, "
        "booleans or strings."
    )
