"""Matrix products by the fastest of the libraries at hand.

``torch.mm`` calls MKL, which has slow kernels for processors that are not Intel's. There:

* oneDNN, which torch uses for its convolutions, compiles its kernels for the processor it finds.
  In float32 it takes about half the time, once a product is large enough to pay for the call. It
  has no float64.
* NumPy's OpenBLAS takes 0.4 to 0.9 of the time in float64, and for many small products in either
  precision. Its threads and those of torch would wait for each other, so that it serves where
  there is only one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

SMALL_PRODUCT = 1_000_000  # multiplications below which the call of oneDNN costs more
SMALL_REDUCTION = 4_000_000  # the same for products that sum over rows: one factor is transposed
NARROW = 64  # and that copy pays only next to a factor at least so wide


@functools.cache
def _one_dnn() -> Callable[[Tensor, Tensor], Tensor] | None:
    """Return oneDNN's ``x @ weight.T``; None where torch brings none.

    The entry is not a public one, so it is tried out: another torch may have changed it.
    """
    try:
        entry = torch.ops.mkldnn._linear_pointwise.default
        weight = torch.tensor([[1.0, 2.0], [3.0, 4.0]])

        def linear(x: Tensor, weight: Tensor) -> Tensor:
            return entry(x, weight, None, "none", [], "")

        return linear if torch.equal(linear(torch.eye(2), weight), weight.T) else None
    except (AttributeError, RuntimeError, TypeError):
        return None


def _one_dnn_for(a: Tensor) -> Callable[[Tensor, Tensor], Tensor] | None:
    serves = a.dtype == torch.float32 and a.device.type == "cpu" and torch.backends.mkldnn.enabled
    return _one_dnn() if serves else None


def _numpy_serves(a: Tensor) -> bool:
    return a.is_cpu and torch.get_num_threads() == 1


def _by_numpy(a: Tensor, b: Tensor, out: Tensor | None = None) -> Tensor:
    if out is None:
        return torch.from_numpy(np.matmul(a.numpy(), b.numpy()))
    np.matmul(a.numpy(), b.numpy(), out=out.numpy())
    return out


def silent(method: Callable[..., Any]) -> Callable[..., Any]:
    """Let NumPy's products overflow without a warning, as torch's do, within a whole pass."""

    @functools.wraps(method)
    def call(*arguments: Any) -> Any:
        with np.errstate(all="ignore"):
            return method(*arguments)

    return call


def product(a: Tensor, b: Tensor, out: Tensor | None = None) -> Tensor:
    """Return ``a @ b``, in `out` where it is given and the library can do that."""
    if a.ndim > 2:
        return products(a, b, out)
    if a.shape[1] == 1:  # an outer product is one multiplication
        return torch.mul(a, b, out=out)
    if a.shape[0] * b.numel() >= SMALL_PRODUCT and (one_dnn := _one_dnn_for(a)):
        return one_dnn(a, b.T)
    return _by_numpy(a, b, out) if _numpy_serves(a) else torch.mm(a, b, out=out)


def products(a: Tensor, b: Tensor, out: Tensor | None = None) -> Tensor:
    """Return ``a[i] @ b[i]`` for every i, in `out` where it is given."""
    if a.shape[2] == 1:
        return torch.mul(a, b, out=out)
    return _by_numpy(a, b, out) if _numpy_serves(a) else torch.bmm(a, b, out=out)


def add_product(
    c: Tensor, a: Tensor, b: Tensor, c_scale: float | Tensor = 1.0, scale: float = 1.0
) -> Tensor:
    """Return ``c_scale c + scale a b``; a tensor of scales has one for each of several products."""
    if a.ndim == 2:
        return torch.addmm(c, a, b, beta=c_scale, alpha=scale)
    if isinstance(c_scale, Tensor):
        c, c_scale = c * c_scale, 1.0
    return torch.baddbmm(c, a, b, beta=c_scale, alpha=scale)


def reduction(a: Tensor, b: Tensor) -> Tensor:
    """Return ``a^T b``, a sum over many rows, next to a narrow b."""
    return a.T @ b if a.ndim == 2 else products(a.mT, b)


def add_reduction(target: Tensor, a: Tensor, b: Tensor, scale: float | Tensor = 1.0) -> None:
    """Add ``scale a^T b``, a sum over many rows, to `target`."""
    if a.ndim > 2:
        target.add_(products(a.mT, b).mul_(scale))
        return
    m, n = target.shape
    large = a.numel() * n >= SMALL_REDUCTION and max(m, n) >= NARROW
    if large and (one_dnn := _one_dnn_for(a)):
        target.add_(one_dnn(a.T, b.T) if m <= n else one_dnn(b.T, a.T).T, alpha=scale)
    elif a.dtype == torch.float64 and _numpy_serves(a):
        target.add_(_by_numpy(a.T, b), alpha=scale)
    else:
        target.addmm_(a.T, b, alpha=scale)
