"""From what users pass to tokens on a device: arrays, targets, weights, layouts and batches."""
