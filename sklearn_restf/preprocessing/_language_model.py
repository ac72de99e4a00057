"""A pretrained language model of the Hugging Face library, loaded safely and quietly."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sklearn_restf._utils.device import resolve_device


@contextlib.contextmanager
def _without_progress_bar(logging: Any) -> Iterator[None]:
    """Keep the library from drawing on the terminal, and leave its setting as it was."""
    enabled = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if enabled:
            logging.enable_progress_bar()


class LanguageModel:
    """A tokenizer and a model in evaluation mode on a device.

    Parameters
    ----------
    name : str or path-like
        Folder of the model, or its name on the hub.
    revision : str or None
        Branch, tag or commit on the hub.
    local_files_only : bool
        Never ask the hub.
    device : str
        Torch device, or "auto".

    Attributes
    ----------
    hash : str
        SHA-256 of configuration, weights and vocabulary.

    Raises
    ------
    ImportError
        If transformers is not installed.
    OSError
        If the model cannot be loaded.
    """

    def __init__(
        self, name: str | os.PathLike, revision: str | None, local_files_only: bool, device: str
    ):
        try:
            import transformers
        except ImportError as error:
            raise ImportError(
                "TextTokenEmbedder needs the extra 'text': pip install \"sklearn-restf[text]\"."
            ) from error
        source = os.fspath(name)
        if os.path.sep in source and not Path(source).is_dir() and Path(source).is_absolute():
            raise OSError(f"There is no folder {source!r}.")
        options = {"revision": revision or "main", "local_files_only": local_files_only}
        try:
            self.tokenizer = transformers.AutoTokenizer.from_pretrained(source, **options)
            with _without_progress_bar(transformers.utils.logging):
                self.model = transformers.AutoModel.from_pretrained(
                    source, use_safetensors=True, **options
                )
        except OSError as error:
            raise OSError(
                f"The model {source!r} could not be loaded. It must be a folder with config.json, "
                "a tokenizer and model.safetensors, or a name on the hub that is reachable or "
                f"downloaded already. {error}"
            ) from error
        if device == "auto" and torch.backends.mps.is_available():
            device = "mps"  # training, which wants float64, leaves it aside
        self.device = resolve_device(device)
        self.model = self.model.to(device=self.device, dtype=torch.float32).eval()
        if self.tokenizer.pad_token is None:
            # Which token fills the padding is of no matter: it is masked.
            self.tokenizer.pad_token = self.tokenizer.eos_token or self.tokenizer.unk_token
        self.tokenizer.padding_side = "right"
        self.hash = self._digest()

    def _digest(self) -> str:
        """Hash configuration, vocabulary and weights: the content, wherever it came from."""
        digest = hashlib.sha256(self.model.config.to_json_string(use_diff=True).encode())
        digest.update(repr(sorted(self.tokenizer.get_vocab().items())).encode())
        for key, tensor in self.model.state_dict().items():
            digest.update(f"{key} {tuple(tensor.shape)}".encode())
            digest.update(np.ascontiguousarray(tensor.detach().cpu().numpy()).data)
        return digest.hexdigest()

    def width(self, layer: int | str) -> int:
        """Return the number of channels of a hidden state, or of the static embeddings."""
        if layer == "embeddings":
            return int(self.model.get_input_embeddings().weight.shape[1])
        n_states = self.model.config.num_hidden_layers + 1
        if not -n_states <= layer < n_states:
            raise ValueError(f"layer={layer}: the model has the hidden states 0 to {n_states - 1}.")
        return int(self.model.config.hidden_size)

    def features(
        self, texts: list[str], layer: int | str, max_length: int | None, special_tokens: bool
    ) -> list[np.ndarray]:
        """Compute the features of the tokens of each text as one batch.

        They are float32 arrays (t_i, width) of at least one row, read-only. `max_length` counts
        tokens; `special_tokens` keeps the features of those that the model adds.
        """
        limit = self.tokenizer.model_max_length
        positions = getattr(self.model.config, "max_position_embeddings", None)
        # A tokenizer that knows no limit says 10**30; the position table then sets it.
        limit = min(x for x in (limit, positions, max_length) if x is not None)
        encoded = self.tokenizer(
            texts,
            padding=True,
            truncation=True,
            max_length=limit,
            return_tensors="pt",
            return_special_tokens_mask=True,
        )
        special = encoded.pop("special_tokens_mask").bool()
        mask = encoded["attention_mask"].bool()
        keep = mask if special_tokens else mask & ~special
        width = self.width(layer)
        if not mask.any():
            return [np.zeros((1, width), dtype=np.float32) for _ in texts]
        encoded = {key: value.to(self.device) for key, value in encoded.items()}
        with torch.inference_mode():
            if layer == "embeddings":
                states = self.model.get_input_embeddings()(encoded["input_ids"])
            else:
                states = self.model(**encoded, output_hidden_states=True).hidden_states[layer]
        values = states.float().cpu().numpy()
        arrays = []
        for row, real in zip(values, keep.numpy(), strict=True):
            array = row[real] if real.any() else np.zeros((1, width), dtype=np.float32)
            # Cached arrays are shared: nobody may change them by accident.
            array.flags.writeable = False
            arrays.append(array)
        return arrays
