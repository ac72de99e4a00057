"""The Jena climate series 2009-2016."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from sklearn.utils import Bunch

from sklearn_restf.datasets._download import RemoteArchive, fetch_archive, read_description
from sklearn_restf.datasets._mpi_roof import clean_station_tables
from sklearn_restf.datasets._station_file import read_station_bytes

_MEMBER = "jena_climate_2009_2016.csv"
_TARGET = "T (degC)"

# No digest is published: the size, the CRC inside the zip and the row count stand in for it.
_ARCHIVE = RemoteArchive(
    folder="jena_climate",
    filename="jena_climate_2009_2016.csv.zip",
    urls=(
        "https://storage.googleapis.com/tensorflow/tf-keras-datasets/jena_climate_2009_2016.csv.zip",
        "https://s3.amazonaws.com/keras-datasets/jena_climate_2009_2016.csv.zip",
    ),
    members={_MEMBER: _MEMBER},
    n_rows={_MEMBER: 420_551},
    size=13_568_290,
)


def fetch_jena_climate(
    *,
    data_home: str | os.PathLike[str] | None = None,
    download_if_missing: bool = True,
    as_frame: bool = True,
    return_X_y: bool = False,
    url: str | None = None,
    mirrors: Sequence[str] = (),
    checks: Mapping[str, Any] | None = None,
    progressbar: bool = False,
    n_retries: int = 3,
    delay: float = 1.0,
    timeout: float = 30.0,
) -> Bunch | tuple[pd.DataFrame, pd.Series] | tuple[np.ndarray, np.ndarray]:
    """Load the Jena climate series 2009-2016, downloading it if necessary.

    ==============   ==================================================
    Rows in file     420,551 (one every 10 minutes, with gaps and repeats)
    Features         14, real
    Target           air temperature ``"T (degC)"``, real
    Download         13,568,290 bytes
    ==============   ==================================================

    The rows come on the regular 10-minute grid from 2009-01-01 00:10 to 2017-01-01 00:00
    with NaN where the station recorded nothing, cleaned by :func:`load_mpi_roof`;
    ``report.n_rows_read`` is the number of rows of the file.

    Parameters
    ----------
    data_home : path-like, default=None
        Folder of the cache; by default :func:`sklearn.datasets.get_data_home`, that is
        ``~/scikit_learn_data`` or the environment variable ``SCIKIT_LEARN_DATA``.
    download_if_missing : bool, default=True
        If False, raise an OSError when no sound copy is in the cache.
    as_frame : bool, default=True
        Return pandas objects; NumPy arrays otherwise.
    return_X_y : bool, default=False
        Return ``(data, target)`` instead of a Bunch.
    url : str, default=None
        Address to download from instead of the published ones.
    mirrors : sequence of str, default=()
        Further addresses, tried in order when the ones before fail.
    checks : mapping, default=None
        Replaces what the archive is checked against: ``"size"`` (bytes), ``"digest"``
        (``"algorithm:hexdigest"``), ``"n_rows"`` (rows of the file). None as a value turns
        that check off, for instance ``{"size": None}`` for a mirror that packed the same
        file anew.
    progressbar : bool, default=False
        Show the progress of the download; needs tqdm.
    n_retries : int, default=3
        Further attempts at each address after a failed one.
    delay : float, default=1.0
        Seconds between attempts.
    timeout : float, default=30.0
        Seconds without an answer after which an attempt has failed.

    Returns
    -------
    data : :class:`~sklearn.utils.Bunch`
        Dictionary-like object, with these attributes:

        data : DataFrame or ndarray of shape (n_rows, 14)
            The measurements, float64, NaN where there is none.
        target : Series or ndarray of shape (n_rows,)
            The column ``"T (degC)"`` of the same rows. A forecast needs it at a later row
            than the features: cut windows that end before their target.
        frame : DataFrame of shape (n_rows, 14)
            The same as `data`; None if not `as_frame`.
        time : DatetimeIndex of shape (n_rows,)
            The stamps.
        feature_names : list of str
            Names and units of the columns.
        target_names : list of str
            ``["T (degC)"]``.
        report : RepairReport
            What was repaired.
        filename : str
            The archive in the cache.
        DESCR : str
            Description with source and licence.
    (data, target) : tuple if `return_X_y`
        The two of the Bunch.

    Raises
    ------
    OSError
        If there is no sound copy in the cache and none can be had; the message says which
        file to put where.
    ImportError
        If a download is needed and pooch is not installed.

    See Also
    --------
    load_mpi_roof : Any other file of the station.

    Examples
    --------
    >>> from sklearn_restf.datasets import fetch_jena_climate
    >>> climate = fetch_jena_climate()  # doctest: +SKIP
    >>> climate.frame.shape  # doctest: +SKIP
    (420768, 14)
    >>> print(climate.report)  # doctest: +SKIP
    """
    archive = _ARCHIVE.adapted(url, mirrors, checks)
    path, members = fetch_archive(
        archive,
        data_home=data_home,
        download_if_missing=download_if_missing,
        progressbar=progressbar,
        n_retries=n_retries,
        delay=delay,
        timeout=timeout,
    )
    table = read_station_bytes(members[_MEMBER], f"{path}:{_MEMBER}")
    frame, report = clean_station_tables([table])
    if _TARGET not in frame:
        raise OSError(
            f"{path} holds {_MEMBER} without the column {_TARGET!r}; it has {list(frame)}. "
            "Remove the file and fetch it again."
        )
    target = frame[_TARGET]
    bunch = Bunch(
        data=frame if as_frame else frame.to_numpy(),
        target=target if as_frame else target.to_numpy(),
        frame=frame if as_frame else None,
        time=frame.index,
        feature_names=list(frame.columns),
        target_names=[_TARGET],
        report=report,
        filename=str(path),
        DESCR=read_description("jena_climate.rst"),
    )
    return (bunch.data, bunch.target) if return_X_y else bunch
