"""What every benchmark records beside its figures: versions, hardware, threads."""

import importlib.metadata
import json
import os
import platform
from datetime import UTC, datetime
from pathlib import Path

RESULTS = Path(__file__).resolve().parent / "results"
PACKAGES = (
    "sklearn-restf",
    "numpy",
    "scipy",
    "pandas",
    "scikit-learn",
    "skorch",
    "torch",
    "matplotlib",
)


def package_versions(packages=PACKAGES):
    """Return the installed version of each package, None for one that is not installed."""
    versions = {}
    for name in packages:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = None
    return versions


def _processor_name():
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _memory_gib():
    try:
        size = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None
    return round(size / 2**30, 1)


def hardware():
    """Describe the processor, the memory and the CUDA devices, and the threads torch may use."""
    import torch

    cuda = torch.cuda.is_available()
    return {
        "processor": _processor_name(),
        "cores": os.cpu_count(),
        "memory_gib": _memory_gib(),
        "system": f"{platform.system()} {platform.machine()}",
        "torch_threads": torch.get_num_threads(),
        "omp_num_threads": os.environ.get("OMP_NUM_THREADS"),
        "cuda_devices": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        if cuda
        else [],
        "cuda": torch.version.cuda if cuda else None,
    }


def environment():
    """Return versions and hardware as one JSON-able dictionary."""
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "python": platform.python_version(),
        "versions": package_versions(),
        "hardware": hardware(),
    }


def save_results(path, results, *, settings=None):
    """Write results with their settings and the environment as JSON.

    Parameters
    ----------
    path : str or pathlib.Path
        A file name, put under ``benchmarks/results`` unless it has a folder of its own.
    results : dict or list
        JSON-able figures.
    settings : dict, default=None
        JSON-able settings of the run: sizes, folds, seeds.

    Returns
    -------
    pathlib.Path
        Where the file was written.
    """
    path = Path(path)
    if path.parent == Path("."):
        path = RESULTS / path
    path.parent.mkdir(parents=True, exist_ok=True)
    record = {"environment": environment(), "settings": settings or {}, "results": results}
    path.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    return path
