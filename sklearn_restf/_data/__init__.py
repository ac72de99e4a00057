"""From what users pass to tokens on a device: arrays, targets, weights, layouts and batches."""

from sklearn_restf._data.tokens import TokenLayout
