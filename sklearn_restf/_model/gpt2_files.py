"""The files of a pretrained model, in a folder or on the hub: safetensors only."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
# Files that hold pickled code: never opened.
PICKLED = ("pytorch_model.bin", "pytorch_model.bin.index.json", "model.pt", "model.pth")
PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


@dataclass(frozen=True)
class ModelFiles:
    """Where the files of a model are.

    `locate` returns the path of a file of the model, or None where the model has none of
    that name; `pickled` names a file of weights that is a pickle, if there is one.
    """

    name: str
    locate: Callable[[str], str | None]
    pickled: Callable[[], str | None]

    def require(self, file: str) -> str:
        """Return the path of a file the model cannot do without."""
        path = self.locate(file)
        if path is None:
            raise FileNotFoundError(
                f"init={self.name!r}: the model has no file {file}. A GPT-2 model is a folder with "
                f"{CONFIG} and {WEIGHTS}, or the name of one on the hub."
            )
        return path

    def weights(self) -> dict[str, str] | list[str]:
        """Return the files of weights: all of one file, or a map from tensor to file."""
        single = self.locate(WEIGHTS)
        if single is not None:
            return [single]
        index = self.locate(INDEX)
        if index is not None:
            with open(index, encoding="utf-8") as stream:
                return dict(json.load(stream)["weight_map"])
        pickled = self.pickled()
        if pickled is not None:
            raise ValueError(pickle_message(self.name, pickled))
        return [self.require(WEIGHTS)]


def may_be_model(value: Any) -> bool:
    """Tell whether a value can name a model, so that a slip of the pen asks no hub."""
    if isinstance(value, os.PathLike):
        return isinstance(os.fspath(value), str)
    if not isinstance(value, str) or not value:
        return False
    return "/" in value or os.sep in value or "gpt2" in value.lower() or Path(value).is_dir()


def open_model_files(model: str | os.PathLike[str]) -> ModelFiles:
    """Return the files of the model in a folder, or of the model of that name on the hub."""
    name = os.fspath(model)
    folder = Path(name).expanduser()
    if folder.is_dir():
        return _in_folder(name, folder)
    if folder.suffix in PICKLE_SUFFIXES:
        raise ValueError(pickle_message(name, folder.name))
    if folder.is_file():
        raise ValueError(f"init={name!r} is a file: pass the folder it is in.")
    if folder.is_absolute() or name.startswith((".", "~")) or name.count("/") > 1:
        raise FileNotFoundError(f"init={name!r}: there is no such folder.")
    return _on_hub(name)


def _in_folder(name: str, folder: Path) -> ModelFiles:
    def locate(file: str) -> str | None:
        path = folder / file
        return str(path) if path.is_file() else None

    def pickled() -> str | None:
        found = sorted(p.name for p in folder.iterdir() if p.suffix in PICKLE_SUFFIXES)
        return found[0] if found else None

    return ModelFiles(name, locate, pickled)


def _on_hub(name: str) -> ModelFiles:
    try:
        import huggingface_hub
        from huggingface_hub.utils import EntryNotFoundError, HfHubHTTPError
        from huggingface_hub.utils import LocalEntryNotFoundError as NotReachable
    except ImportError as error:
        raise ImportError(
            f"init={name!r} is not a folder; to get the model of that name from the hub, the "
            "extra 'text' is needed: pip install 'sklearn-restf[text]'."
        ) from error

    def locate(file: str) -> str | None:
        try:
            return huggingface_hub.hf_hub_download(name, file)
        except NotReachable as error:  # a kind of EntryNotFoundError
            raise _unavailable(name, error) from error
        except EntryNotFoundError:
            return None
        except (HfHubHTTPError, OSError, ValueError) as error:
            raise _unavailable(name, error) from error

    def pickled() -> str | None:
        return next((f for f in PICKLED if huggingface_hub.file_exists(name, f)), None)

    return ModelFiles(name, locate, pickled)


def _unavailable(name: str, error: Exception) -> OSError:
    return OSError(
        f"init={name!r}: there is no such folder, and no model of that name could be had from the "
        f"hub. init is 'gaussian', 'xavier', the folder of a GPT-2 model, or its name. ({error})"
    )


def pickle_message(name: str, file: str) -> str:
    """Say why pickled weights are refused and what to do."""
    return (
        f"init={name!r}: the weights are there only as {file}, a pickle, which can run any code "
        "when it is opened. Only safetensors are read. If you trust the file, convert it once: "
        "transformers.GPT2Model.from_pretrained(folder).save_pretrained(new_folder)."
    )


def read_tensors(
    files: ModelFiles, names: Sequence[str], shapes: dict[str, tuple[int, ...]]
) -> dict[str, np.ndarray]:
    """Read tensors as float64, checked to be finite and of the shape given for their name's end.

    Language models have their blocks below a prefix ("transformer."), which is found by itself.
    """
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError as error:
        raise ImportError(
            f"init={files.name!r} needs safetensors, which comes with the extra 'text': "
            "pip install 'sklearn-restf[text]'."
        ) from error
    weights = files.weights()
    result: dict[str, np.ndarray] = {}
    paths = weights if isinstance(weights, list) else sorted(_shards(weights, names))
    for path in paths:
        located = path if isinstance(weights, list) else files.require(path)
        try:
            with safe_open(located, framework="pt") as tensors:
                keys = {_without_prefix(key): key for key in tensors.keys()}  # noqa: SIM118
                for name in names:
                    if name in keys:
                        result[name] = _checked(files.name, name, tensors, keys[name], shapes)
        except SafetensorError as error:
            raise OSError(f"{located} is not a sound safetensors file: {error}") from error
    missing = [name for name in names if name not in result]
    if missing:
        raise ValueError(
            f"init={files.name!r}: the weights lack {missing[0]!r}"
            + (f" and {len(missing) - 1} more tensors of GPT-2." if missing[1:] else ".")
        )
    return result


def _shards(weight_map: dict[str, str], names: Sequence[str]) -> set[str]:
    """Return the files that hold the tensors of these names."""
    wanted = set(names)
    return {file for key, file in weight_map.items() if _without_prefix(key) in wanted}


def _without_prefix(key: str) -> str:
    return key.removeprefix("transformer.")


def _checked(
    model: str, name: str, tensors: Any, key: str, shapes: dict[str, tuple[int, ...]]
) -> np.ndarray:
    """Return one tensor, or say what is wrong with it."""
    value = tensors.get_tensor(key).double().numpy()
    expected = shapes[name.split(".", 2)[2]]
    if value.shape != expected:
        raise ValueError(
            f"init={model!r}: {key} has shape {value.shape}; expected {expected} from the model's "
            "config.json."
        )
    if not np.isfinite(value).all():
        raise ValueError(f"init={model!r}: {key} holds NaN or infinite weights.")
    return value
