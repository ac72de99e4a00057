"""The derivatives of predictions in the parameters, as products with vectors."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn


class LinearizedBatch:
    """Predictions of some samples, and products with their Jacobian J in the parameters.

    Parameters
    ----------
    module : Module
        The model.
    x, mask : Tensor
        What it is called with.
    """

    def __init__(self, module: nn.Module, x: Tensor, mask: Tensor | None) -> None:
        self.parameters = list(module.parameters())
        self.output: Tensor = module(x, mask)
        # J^T u as a function of the dummy u: its derivative in u is the product with J
        self._dummy = torch.zeros_like(self.output, requires_grad=True)
        self._pulled = torch.autograd.grad(
            self.output, self.parameters, self._dummy, create_graph=True, allow_unused=True
        )

    def push(self, direction: Tensor) -> Tensor:
        """Return J times a vector of parameters, in the shape of the predictions."""
        pieces = torch.split(direction, [p.numel() for p in self.parameters])
        pairs = [
            (part, piece.view_as(part))
            for part, piece in zip(self._pulled, pieces, strict=True)
            if part is not None and part.requires_grad
        ]
        parts, along = zip(*pairs, strict=True)
        return torch.autograd.grad(parts, self._dummy, along, retain_graph=True)[0]

    def pull(self, cotangent: Tensor) -> Tensor:
        """Return the transpose of J times an array like the predictions, as one flat vector."""
        found = torch.autograd.grad(
            self.output, self.parameters, cotangent, retain_graph=True, allow_unused=True
        )
        pieces = [
            torch.zeros_like(parameter) if part is None else part
            for part, parameter in zip(found, self.parameters, strict=True)
        ]
        return torch.cat([piece.detach().reshape(-1) for piece in pieces])

    def gauss_newton_product(self, direction: Tensor, curve: Callable[[Tensor], Tensor]) -> Tensor:
        """Return ``J^T C J`` times a vector of parameters; `curve` is the product with C."""
        return self.pull(curve(self.push(direction)))


def output_weights(output: Tensor, weight: Tensor, mask: Tensor | None) -> Tensor:
    """Return the weight of each sample for each of its outputs, zero at padding."""
    weights = weight.view(-1, *[1] * (output.ndim - 1)).expand_as(output)
    return weights if mask is None or output.ndim < 3 else weights * mask[:, :, None]
