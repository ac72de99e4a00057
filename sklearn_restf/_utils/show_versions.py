"""What a report of a bug needs to say of the machine and of what is installed."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

import sklearn
import torch

#: Beside those that scikit-learn names.
PACKAGES = (
    *("sklearn-restf", "torch", "skorch", "tqdm", "safetensors", "transformers"),
    *("dask", "distributed", "pooch", "onnx", "onnxruntime", "skops"),
)


def show_versions() -> None:
    """Print versions of Python, the system and the dependencies, threads, BLAS and devices.

    A report of a bug should hold what it prints. Nothing optional is imported, and CUDA is not
    initialised.

    See Also
    --------
    sklearn.show_versions : What is printed first: system, scikit-learn and NumPy, BLAS.

    Examples
    --------
    >>> from sklearn_restf import show_versions
    >>> show_versions()
    System:
        python: 3...
    sklearn-restf and what it uses:
        sklearn-restf: ...
    torch:
        threads: ...
    """
    sklearn.show_versions()
    print("\nsklearn-restf and what it uses:")
    for name in PACKAGES:
        print(f"{name:>15}: {_installed(name)}")
    print("\ntorch:")
    for what, found in _torch_information().items():
        print(f"{what:>15}: {found}")


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _torch_information() -> dict[str, object]:
    return {
        "threads": torch.get_num_threads(),
        "CPU capability": torch.backends.cpu.get_cpu_capability(),
        "MKL": torch.backends.mkl.is_available(),
        "CUDA": torch.version.cuda,
        "CUDA devices": torch.cuda.device_count(),  # counted without initialising CUDA
        "MPS": torch.backends.mps.is_available(),
    }
