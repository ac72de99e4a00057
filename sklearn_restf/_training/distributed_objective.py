"""The training objective over samples that are spread over several processes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from sklearn_restf._data.batches import Batches
from sklearn_restf._model import Loss, ResidualTransformer
from sklearn_restf._training.objective import Objective
from sklearn_restf._utils.process_group import EVALUATE, PRODUCT, ProcessGroup, StoppedByPeer


class SharedObjective(Objective):
    """An :class:`Objective` whose samples all ranks of a group hold together.

    One exchange per evaluation carries the loss, the validation loss and the gradient. The
    gradient is computed along, in the hope that the step is accepted: most are.

    Parameters
    ----------
    module, batches, loss, alpha
        See :class:`Objective`; `batches` are this rank's samples, with weights that sum to one
        over all ranks.
    group : ProcessGroup
        The ranks.
    valid : Batches or None
        This rank's validation samples.
    """

    def __init__(
        self,
        module: ResidualTransformer,
        batches: Batches,
        loss: Loss,
        alpha: float,
        *,
        group: ProcessGroup,
        valid: Batches | None,
    ) -> None:
        super().__init__(module, batches, loss, alpha)
        self.group, self.valid = group, valid
        self.validation = math.nan  # at the last evaluated point
        self.has_begun = False
        self._total = torch.zeros_like(self.gradient)

    def begin(self) -> None:
        """Begin exchanging sums."""
        self.has_begun = True
        self.group.begin(len(self.theta), self.theta.device)

    def gauss_newton_norm(self, max_iter: int = 30, tol: float = 1e-3) -> float:
        """Return ||J||^2 of the weighted mean loss over the samples of all ranks."""
        self.begin()
        try:
            norm = super().gauss_newton_norm(max_iter, tol)
        except StoppedByPeer as stopped:  # only an interrupt can come here, and nothing to keep
            raise KeyboardInterrupt from stopped
        self.group.end()
        self.has_begun = False
        return norm

    def evaluate(self, read: Callable[[Tensor], Any] = float) -> Any:
        """Return the objective of all ranks at `theta`, with the gradient pending."""
        current = self.gradient.clone()  # a step that is refused goes back to it
        value = self._in_chunks(self._own_part)
        validation = 0.0 if self.valid is None else self.samples_loss(self.valid)
        total = self.group.sum(EVALUATE, (value, validation), self.gradient)
        self.gradient.copy_(current)
        value, self.validation = total[:2].tolist()
        self._total.copy_(total[2:])
        return value + self.penalty(read)

    def _own_part(self) -> float:
        """Return the loss of this rank's samples, their gradient in `gradient`."""
        value = self._engine.evaluate(float)
        self.gradient.zero_()
        self._engine.add_gradient()
        return value

    def differentiate(self) -> None:
        """Write the gradient at the last evaluated point into `gradient`."""
        torch.mul(self.decay, self.theta, out=self.gradient)
        self.gradient.add_(self._total)

    def gauss_newton_product(self, vector: Tensor) -> Tensor:
        """Return ``J^T W J`` times a vector of parameters, over the samples of all ranks."""
        product = super().gauss_newton_product(vector)
        return self.group.sum(PRODUCT, (0.0, 0.0), product)[2:].to(product)

    def validation_loss(self, valid: Batches) -> float:
        """Return the loss on the validation samples of all ranks, without penalty."""
        return self.validation
