"""What skorch's callbacks get to see of a run of full-batch gradient descent."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from skorch.dataset import Dataset

from sklearn_restf._data.batches import Batches

if TYPE_CHECKING:
    from sklearn_restf._training.net import FullBatchNet
    from sklearn_restf._training.training_result import TrainingResult


class StoppedByCallback(Exception):
    """A callback asked to stop."""


class Observers:
    """Tells skorch's callbacks what happens; without callbacks nobody pays for it."""

    def __init__(self, net: FullBatchNet) -> None:
        assert net.train is not None
        self.net, self.train, self.valid = net, net.train, net.valid
        self.datasets = {
            "dataset_train": as_dataset(self.train),
            "dataset_valid": None if self.valid is None else as_dataset(self.valid),
        }
        dataset = self.datasets["dataset_train"]
        self.batch = (dataset.X, dataset.y)

    def train_begin(self) -> None:
        """Before the initial point is visited."""
        self.net.notify("on_train_begin", X=self.batch[0], y=self.batch[1])

    def gradient_computed(self) -> None:
        """After each gradient; callbacks may change it in place."""
        self.net.notify(
            "on_grad_computed",
            named_parameters=list(self.net.get_all_learnable_params()),
            batch=self.batch,
            training=True,
        )
        self.net.objective_.zero_frozen()

    def iteration_begin(self) -> None:
        """Before a step."""
        self.net.notify("on_epoch_begin", **self.datasets)
        self.net.notify("on_batch_begin", batch=self.batch, training=True)
        self.net.objective_.zero_frozen(self.net.optimizer_.velocity)

    def iteration_end(self, result: TrainingResult, improved: bool) -> None:
        """After a step, its gradient and its validation."""
        net, history = self.net, self.net.history
        history.record("learning_rate", result.learning_rates[-1])
        history.record("gradient_norm", result.gradient_norms[-1])
        self.gradient_computed()
        self._batch_end("train", self.batch, self.train, result.losses[-1])
        if self.valid is not None:
            dataset = self.datasets["dataset_valid"]
            batch = (dataset.X, dataset.y)
            net.notify("on_batch_begin", batch=batch, training=False)
            self._batch_end("valid", batch, self.valid, result.validation_losses[-1])
        history.record(f"{'train' if self.valid is None else 'valid'}_loss_best", improved)
        net.notify("on_epoch_end", **self.datasets)

    def _batch_end(self, kind: str, batch: Any, batches: Batches, loss: float) -> None:
        history = self.net.history
        history.record_batch(f"{kind}_loss", loss)
        history.record_batch(f"{kind}_batch_size", len(batches))
        self.net.notify(
            "on_batch_end",
            batch=batch,
            training=kind == "train",
            loss=torch.tensor(loss, dtype=torch.float64),
            y_pred=self.net.predict_batches(batches),
        )
        history.record(f"{kind}_loss", loss)
        history.record(f"{kind}_batch_count", 1)

    def train_end(self) -> None:
        """At the end, with the weights that are kept."""
        with contextlib.suppress(StoppedByCallback):  # training has ended already
            self.net.notify("on_train_end", X=self.batch[0], y=self.batch[1])


def as_dataset(batches: Batches) -> Dataset:
    """Wrap the samples for skorch's callbacks, in their order: ``X`` goes to the module."""
    y = batches.labels
    if y is None:
        y = torch.from_numpy(batches.y).to(batches.dtype)
    if len(batches.row_sets) > 1:
        dataset = Dataset(np.arange(len(batches)), y, length=len(batches))
        dataset.X = batches  # no single tensor; the net knows how to predict for this
        return dataset
    batch = next(iter(batches))
    X = {"x": batch.x} if batch.mask is None else {"x": batch.x, "mask": batch.mask}
    return Dataset(X, y, length=len(batches))
