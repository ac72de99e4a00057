"""A thin layer over ``onnx.helper``: graphs written as arithmetic."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin
from numpy.typing import ArrayLike, DTypeLike

OPSET = 17  # the first with LayerNormalization; newer runtimes read it all the same
IR_VERSION = 8  # the one that came with it
_OPERATORS = {
    np.add: "Add",
    np.subtract: "Sub",
    np.multiply: "Mul",
    np.divide: "Div",
    np.matmul: "MatMul",
    np.negative: "Neg",
    np.greater: "Greater",
}


def require_onnx() -> Any:
    """Import onnx, or say how to get it."""
    try:
        return import_module("onnx")
    except ImportError as error:
        raise ImportError(
            "to_onnx needs the onnx package: pip install 'sklearn-restf[onnx]'."
        ) from error


class Value(NDArrayOperatorsMixin):
    """A result in a graph; arithmetic on it appends operators to the graph."""

    def __init__(self, graph: GraphBuilder, name: str) -> None:
        self.graph = graph
        self.name = name

    def __array_ufunc__(self, function: np.ufunc, method: str, *inputs: Any) -> Value:
        """Append the operator that NumPy's function stands for."""
        return self.graph.add(_OPERATORS[function], *inputs)

    def apply(self, operator: str, *inputs: Value | ArrayLike, **attributes: Any) -> Value:
        """Append any other operator, of which this is the first input."""
        return self.graph.add(operator, self, *inputs, **attributes)

    def cast(self, dtype: DTypeLike) -> Value:
        """Return the value in another type."""
        return self.apply("Cast", to=self.graph.type_of(dtype))

    def reshape(self, *shape: int) -> Value:
        """Return the value with every sample in another shape."""
        return self.apply("Reshape", [0, *shape])  # 0: as many as before

    def transpose(self, *axes: int) -> Value:
        """Return the value with its axes in another order."""
        return self.apply("Transpose", perm=axes)


class GraphBuilder:
    """Collects the operators and constants of one graph, whose input is called ``X``.

    Parameters
    ----------
    onnx : module
        The onnx package.
    dtype : dtype
        Of the input, and of constants unless stated otherwise.
    shape : tuple of int
        Of one sample; there may be any number of them.
    """

    def __init__(self, onnx: Any, dtype: np.dtype, shape: tuple[int, ...]) -> None:
        self.onnx = onnx
        self.dtype = dtype
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.input = Value(self, "X")
        self.inputs = [self._declare("X", shape, dtype)]
        self.outputs: list[Any] = []

    def add_output(
        self, name: str, value: Value, shape: tuple[int, ...], dtype: DTypeLike | None = None
    ) -> None:
        """Give a result its public name."""
        self.nodes.append(self.onnx.helper.make_node("Identity", [value.name], [name]))
        self.outputs.append(self._declare(name, shape, dtype or self.dtype))

    def add(self, operator: str, *inputs: Value | ArrayLike, **attributes: Any) -> Value:
        """Append an operator and return its result; numbers become constants."""
        result = f"{operator.lower()}_{len(self.nodes)}"
        values = [value if isinstance(value, Value) else self.constant(value) for value in inputs]
        names = [value.name for value in values]
        self.nodes.append(self.onnx.helper.make_node(operator, names, [result], **attributes))
        return Value(self, result)

    def constant(self, number: ArrayLike, dtype: DTypeLike | None = None, name: str = "") -> Value:
        """Store an array; whole numbers are axes, shapes or positions."""
        name = name or f"constant_{len(self.constants)}"
        if dtype is None:
            dtype = np.int64 if np.asarray(number).dtype.kind == "i" else self.dtype
        array = np.asarray(number, dtype=dtype)
        self.constants.append(self.onnx.numpy_helper.from_array(array, name))
        return Value(self, name)

    def type_of(self, dtype: DTypeLike) -> int:
        """Return the number by which ONNX knows a type."""
        return int(self.onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))

    def finish(self, name: str, metadata: dict[str, str]) -> Any:
        """Return the checked model."""
        from sklearn_restf import __version__

        helper = self.onnx.helper
        model = helper.make_model(
            helper.make_graph(self.nodes, name, self.inputs, self.outputs, self.constants),
            opset_imports=[helper.make_opsetid("", OPSET)],
            ir_version=IR_VERSION,
            producer_name="sklearn-restf",
            producer_version=__version__,
        )
        helper.set_model_props(model, metadata)
        self.onnx.checker.check_model(model, full_check=True)
        return model

    def _declare(self, name: str, shape: tuple[int, ...], dtype: DTypeLike) -> Any:
        shape_of_all = ["n_samples", *shape]
        return self.onnx.helper.make_tensor_value_info(name, self.type_of(dtype), shape_of_all)
