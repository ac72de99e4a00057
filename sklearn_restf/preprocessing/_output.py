"""Output containers for transformers whose output is 2-D in some uses only."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from sklearn import get_config

_CONTAINERS = ("default", "pandas", "polars")


class TokenOutputMixin:
    """Mixin giving ``set_output`` to transformers that may return 3-D or ragged tokens.

    scikit-learn's automatic wrapping assumes 2-D output and fails on anything else. Here a 2-D
    output becomes the requested container and a 3-D array or a list of arrays is returned as it is,
    so that a global ``transform_output="pandas"`` does not break a Pipeline of token input.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Switch scikit-learn's automatic wrapping off."""
        super().__init_subclass__(auto_wrap_output_keys=None, **kwargs)  # type: ignore[call-arg]

    def set_output(self, *, transform: str | None = None) -> Any:
        """Choose the container of 2-D output.

        Parameters
        ----------
        transform : {"default", "pandas", "polars"} or None, default=None
            Container of the 2-D output of ``transform`` and ``fit_transform``: a NumPy array, or
            a DataFrame of the named library. None leaves the present choice. Token output
            (3-D arrays, lists of arrays) has no such container and is never wrapped.

        Returns
        -------
        self : object
            The transformer itself.

        Raises
        ------
        ValueError
            If ``transform`` is not one of the names above.
        """
        if transform is None:
            return self
        if transform not in _CONTAINERS:
            raise ValueError(f"transform must be one of {_CONTAINERS} or None, got {transform!r}.")
        self._output_container = transform
        return self

    def __sklearn_clone__(self) -> Any:
        """Clone the parameters and keep the chosen container, as scikit-learn's own do."""
        cloned = super().__sklearn_clone__()  # type: ignore[misc]
        if hasattr(self, "_output_container"):
            cloned._output_container = self._output_container
        return cloned

    def _contain(self, output: np.ndarray, original: Any, names: Iterable[str]) -> Any:
        """Put 2-D output into the chosen container, with the index of a pandas input."""
        container = getattr(self, "_output_container", None) or get_config()["transform_output"]
        if container == "default":
            return output
        names = [str(name) for name in names]
        if container == "pandas":
            import pandas as pd

            index = original.index if isinstance(original, (pd.DataFrame, pd.Series)) else None
            return pd.DataFrame(output, index=index, columns=names)
        import polars as pl

        return pl.DataFrame(output, schema=names, orient="row")


class SentenceInputMixin:
    """Mixin for transformers that turn sentences into tokens."""

    def __sklearn_tags__(self) -> Any:
        """Declare what input is accepted."""
        tags = super().__sklearn_tags__()  # type: ignore[misc]
        tags.input_tags.string = True
        tags.input_tags.one_d_array = True
        tags.input_tags.two_d_array = False
        tags.transformer_tags.preserves_dtype = []
        return tags
