"""Prediction in float64, in chunks of bounded memory."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor

from sklearn_restf._data.arrays import RawTokens
from sklearn_restf._data.batches import CHUNK_BYTES, activation_bytes, row_sets
from sklearn_restf._estimator.fitted_model import FittedModel
from sklearn_restf._model import ClosedForm, has_closed_form
from sklearn_restf._model.forward import forward

CACHE_BYTES = 2**24  # activations of one chunk on a CPU: about what its cache holds

Forward = Callable[[Tensor, Tensor | None], Tensor]


def predict_tokens(
    fitted: FittedModel, tokens: RawTokens, device: torch.device, chunk_size: int | None
) -> np.ndarray:
    """Return the module's outputs: (n, C), or per token (n, T, C) or packed (sum t_i, C).

    float64 whatever the training dtype: a row predicted alone then equals the same row in
    a batch. A chunk too large for a device's memory is halved.
    """
    config, layout = fitted.config, fitted.layout
    predict = make_forward(fitted, device)
    if chunk_size is None:
        longest = layout.max_tokens if tokens.lengths is None else int(tokens.lengths.max())
        chunk_bytes = CACHE_BYTES if device.type == "cpu" else CHUNK_BYTES
        chunk_size = max(1, chunk_bytes // activation_bytes(config, longest, 8))
    pending = row_sets(tokens, chunk_size)[::-1]
    per_token = config.pooling == "none"
    shape: tuple[int, ...] = (tokens.n_samples, config.n_outputs)
    if per_token:
        shape = (*tokens.values.shape[:-1], config.n_outputs)
    result = np.empty(shape)
    lengths = tokens.lengths
    starts = None if lengths is None else tokens.offsets
    with torch.inference_mode():
        while pending:
            rows = pending.pop()
            try:
                x, mask = layout.batch(tokens, rows, torch.float64, device)
                output = predict(x, mask).cpu().numpy()
            except torch.cuda.OutOfMemoryError as error:
                index = np.arange(tokens.n_samples)[rows]
                if len(index) == 1:
                    raise MemoryError(
                        f"Not even one sample at a time fits into the memory of {device}. Predict "
                        "for shorter samples, or fit with device='cpu'."
                    ) from error
                torch.cuda.empty_cache()
                pending += np.array_split(index, 2)[::-1]
                continue
            if per_token and lengths is not None and starts is not None:
                for i, sample in zip(np.arange(tokens.n_samples)[rows], output, strict=True):
                    result[starts[i] : starts[i] + lengths[i]] = sample[: lengths[i]]
            else:
                result[rows] = output
    return result


def make_forward(fitted: FittedModel, device: torch.device) -> Forward:
    """Return the function computed by a fitted model, in the form that takes the fewest passes."""
    # no module is built: that takes longer than predicting a few hundred samples
    weights = {
        name: torch.from_numpy(np.require(value, np.float64, "W")).to(device)
        for name, value in fitted.state.items()
    }
    if not has_closed_form(fitted.config):
        return partial(forward, fitted.config, weights)
    layer = ClosedForm(fitted.config)
    return lambda x, mask: layer.bind(x, mask).forward(weights)
