"""A thin layer over ``onnx.helper``: operators as function calls that return names."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

OPSET = 17  # the first with LayerNormalization; newer runtimes read it all the same
IR_VERSION = 8  # the one that came with it


def require_onnx() -> Any:
    """Import onnx, or say how to get it."""
    try:
        return import_module("onnx")
    except ImportError as error:
        raise ImportError(
            "to_onnx needs the onnx package: pip install 'sklearn-restf[onnx]'."
        ) from error


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
        self.inputs = [self._value("X", shape, dtype)]
        self.outputs: list[Any] = []

    def add_output(
        self, name: str, source: str, shape: tuple[int, ...], dtype: DTypeLike | None = None
    ) -> None:
        """Give a result its public name."""
        self.nodes.append(self.onnx.helper.make_node("Identity", [source], [name]))
        self.outputs.append(self._value(name, shape, dtype or self.dtype))

    def add(self, operator: str, *inputs: str | ArrayLike, **attributes: Any) -> str:
        """Append an operator and return the name of its result; numbers become constants."""
        result = f"{operator.lower()}_{len(self.nodes)}"
        names = [value if isinstance(value, str) else self.constant(value) for value in inputs]
        self.nodes.append(self.onnx.helper.make_node(operator, names, [result], **attributes))
        return result

    def cast(self, source: str, dtype: DTypeLike) -> str:
        """Return `source` in another type."""
        return self.add("Cast", source, to=self._type(dtype))

    def constant(self, value: ArrayLike, dtype: DTypeLike | None = None, name: str = "") -> str:
        """Store an array and return its name; whole numbers are axes, shapes or positions."""
        name = name or f"constant_{len(self.constants)}"
        if dtype is None:
            dtype = np.int64 if np.asarray(value).dtype.kind == "i" else self.dtype
        array = np.asarray(value, dtype=dtype)
        self.constants.append(self.onnx.numpy_helper.from_array(array, name))
        return name

    def reshape(self, source: str, *shape: int) -> str:
        """Return `source` with every sample in another shape."""
        return self.add("Reshape", source, [0, *shape])  # 0: as many as before

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

    def _value(self, name: str, shape: tuple[int, ...], dtype: DTypeLike) -> Any:
        return self.onnx.helper.make_tensor_value_info(
            name, self._type(dtype), ["n_samples", *shape]
        )

    def _type(self, dtype: DTypeLike) -> int:
        return int(self.onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))
