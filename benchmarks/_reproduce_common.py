"""What the reproductions share: where the data are, tables, intervals, saving."""

import os
import time
from pathlib import Path

import numpy as np
from _report import RESULTS, save_results

REPOSITORY = Path(__file__).resolve().parent.parent
VARIABLE = "SKLEARN_RESTF_DATA"
JENA_FILES = ("jena_2020.csv.gz", "jena_2020.csv", "jena_climate_2009_2016.csv")


class DataMissing(Exception):
    """A reproduction's data are not there; the message says what to put where."""


def data_folder(argument):
    """Return the folder named by --data or the environment variable, or the default one."""
    named = argument or os.environ.get(VARIABLE)
    return Path(named) if named else REPOSITORY.parent / "shared" / "data"


def jena_file(argument):
    """Return the station's file in the folder, or the file itself if --data names one."""
    folder = data_folder(argument)
    if folder.is_file():
        return folder
    for name in JENA_FILES:
        if (folder / name).is_file():
            return folder / name
    raise DataMissing(
        f"no Jena file ({', '.join(JENA_FILES)}) in {folder}; name its folder with --data or "
        f"{VARIABLE}"
    )


def sst2_folder(argument):
    """Return the folder of SST-2's train, dev and test files."""
    folder = data_folder(argument)
    for candidate in (folder, folder / "sst2"):
        if any((candidate / f"train.{ending}").is_file() for ending in ("txt", "tsv")):
            return candidate
    raise DataMissing(
        f"no SST-2 file (sst2/train.txt or .tsv) in {folder}; name its folder with --data or "
        f"{VARIABLE}"
    )


def hourly_series(path):
    """Return the hourly standardised series (n, 21), and which column is the temperature."""
    from sklearn_restf.datasets import load_mpi_roof

    frame = load_mpi_roof(path).frame
    step = frame.index[1] - frame.index[0]
    hourly = frame.iloc[:: max(1, round(3600 / step.total_seconds()))]
    hourly = hourly.interpolate(limit_direction="both")
    values = hourly.to_numpy()
    scale = values.std(0)
    values = (values - values.mean(0)) / np.where(scale > 0, scale, 1.0)
    return values, list(frame.columns).index("T (degC)")


def jena_windows(path, n, T, *, ahead=6, unit_rows=False, per_token=False):
    """Return n windows of T hourly rows, even over the series, and the temperature to come.

    The targets are (n,), or (n, T) with one after every row; standardised.
    """
    values, temperature = hourly_series(path)
    starts = np.linspace(0, len(values) - T - ahead - 1, n).astype(int)
    rows = starts[:, None] + np.arange(T)
    x, y = values[rows], values[rows + ahead, temperature]
    if unit_rows:
        x = x / np.linalg.norm(x, axis=2, keepdims=True)
    y = y if per_token else y[:, -1]
    return x, (y - y.mean()) / y.std()


def wilson_interval(successes, trials, z=1.96):
    """Return the 95 % interval of a share."""
    if trials == 0:
        return [0.0, 1.0]
    share, spread = successes / trials, z * z / trials
    centre = (share + spread / 2) / (1 + spread)
    half = z / (1 + spread) * np.sqrt(share * (1 - share) / trials + spread / (4 * trials))
    return [float(max(0.0, centre - half)), float(min(1.0, centre + half))]


def print_table(title, header, rows):
    """Print rows of strings and numbers under a title."""
    cells = [[_cell(value) for value in row] for row in rows]
    widths = [max(len(line[i]) for line in [header, *cells]) for i in range(len(header))]
    print(f"\n{title}")
    for line in [header, *cells]:
        pairs = zip(line, widths, strict=True)
        print("  " + "  ".join(cell.rjust(width) for cell, width in pairs))


def _cell(value):
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def finish(name, results, settings, figure, started, arguments):
    """Write the JSON and the figure; a quick run leaves the recorded ones alone."""
    quick = arguments.quick
    stem = f"reproduce_{name}_quick" if quick else f"reproduce_{name}"
    folder = Path(arguments.output or RESULTS)
    settings = settings | {"quick": quick, "seconds": round(time.perf_counter() - started, 1)}
    path = save_results(folder / f"{stem}.json", results, settings=settings)
    picture = folder / f"{stem}.png"
    figure.savefig(picture, dpi=110, bbox_inches="tight")
    print(f"\n{settings['seconds']} s; written: {path.name}, {picture.name} in {folder}")


def plain(value):
    """Turn arrays and NumPy numbers into lists and numbers, infinities into None."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, float) and not np.isfinite(value):
        return None
    return value


def compact(results, n_points=50):
    """Thin and round the curves of a result for its JSON file (keys that start with "curves")."""
    if not isinstance(results, dict):
        return results
    thinned = {}
    for key, value in results.items():
        if not str(key).startswith("curves"):
            thinned[key] = compact(value, n_points)
        elif isinstance(value, dict):
            thinned[key] = {name: _thin(curve, n_points) for name, curve in value.items()}
        else:
            thinned[key] = _thin(value, n_points)
    return thinned


def _thin(curves, n_points):
    curves = np.asarray(curves, dtype=float)
    picked = np.linspace(0, curves.shape[-1] - 1, min(n_points, curves.shape[-1])).round()
    curves = curves[..., picked.astype(int)]
    return np.vectorize(lambda value: float(f"{value:.4g}"))(curves)
