"""The Stanford Sentiment Treebank with two classes (SST-2)."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.utils import Bunch

from sklearn_restf._utils.validation import check_arguments, instance_of, one_of
from sklearn_restf.datasets._dataset_arguments import ENCODING
from sklearn_restf.datasets._download import RemoteArchive, fetch_archive, read_description

_TARGET_NAMES = ["negative", "positive"]
_UNLABELLED = -1
_STEMS = {"train": "train", "validation": "dev", "dev": "dev", "test": "test"}
_SUBSET = one_of(*_STEMS)
# What a line is made of: by the header of GLUE's files, and where there is none.
_LAYOUTS: dict[tuple[str, ...], tuple[str, str]] = {
    ("sentence", "label"): (
        r"(?P<sentence>.+)\t[^\S\t]*(?P<label>[01])",
        "a sentence, a tab and a label 0 or 1",
    ),
    ("index", "sentence"): (r"\d+\t(?P<sentence>.+)", "an index, a tab and a sentence"),
}
_TEXT_LAYOUT = (
    r"(?P<label>[01])\s+(?P<sentence>\S.*)",
    "a label 0 or 1, a space and a sentence (GLUE files start with the header sentence<TAB>label)",
)

_ARCHIVE = RemoteArchive(
    folder="sst2",
    filename="SST-2.zip",
    urls=(
        "https://dl.fbaipublicfiles.com/glue/data/SST-2.zip",
        "https://bj.bcebos.com/dataset/glue/SST.zip",
    ),
    members={"train": "train.tsv", "validation": "dev.tsv", "test": "test.tsv"},
    n_rows={"train": 67_349, "validation": 872, "test": 1_821},
    digest="md5:9f81648d4199384278b86e315dac217c",
)


@check_arguments(subset=[_SUBSET])
def fetch_sst2(
    *,
    subset: str = "train",
    data_home: str | os.PathLike[str] | None = None,
    download_if_missing: bool = True,
    as_frame: bool = False,
    return_X_y: bool = False,
    url: str | None = None,
    mirrors: Sequence[str] = (),
    checks: Mapping[str, Any] | None = None,
    progressbar: bool = False,
    n_retries: int = 3,
    delay: float = 1.0,
    timeout: float = 30.0,
) -> Bunch | tuple[list[str], np.ndarray] | tuple[pd.Series, pd.Series]:
    """Load the SST-2 sentences of the GLUE benchmark, downloading them if necessary.

    ==============   ==================================================
    Classes          2 (0 negative, 1 positive)
    Samples          67,349 train, 872 validation, 1,821 test
    Data             English sentences and phrases of movie reviews
    Download         the archive ``SST-2.zip``, about 7 MB
    ==============   ==================================================

    Parameters
    ----------
    subset : {"train", "validation", "test"}, default="train"
        Which part; ``"dev"`` is another name of ``"validation"``. The labels of the test
        part were never published: its target is -1 throughout.
    data_home : path-like, default=None
        Folder of the cache; by default :func:`sklearn.datasets.get_data_home`, that is
        ``~/scikit_learn_data`` or the environment variable ``SCIKIT_LEARN_DATA``.
    download_if_missing : bool, default=True
        If False, raise an OSError when no sound copy is in the cache.
    as_frame : bool, default=False
        Return pandas objects; a list of strings and a NumPy array otherwise.
    return_X_y : bool, default=False
        Return ``(data, target)`` instead of a Bunch.
    url : str, default=None
        Address to download from instead of the published ones.
    mirrors : sequence of str, default=()
        Further addresses, tried in order when the ones before fail.
    checks : mapping, default=None
        Replaces what the archive is checked against: ``"size"`` (bytes), ``"digest"``
        (``"algorithm:hexdigest"``), ``"n_rows"`` (mapping of subset to sentences). None as
        a value turns that check off.
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

        data : list of str or Series of shape (n_samples,)
            The sentences, without surrounding white space.
        target : ndarray or Series of shape (n_samples,)
            The classes, int64.
        frame : DataFrame of shape (n_samples, 2)
            Columns ``"sentence"`` and ``"label"``; None if not `as_frame`.
        target_names : list of str
            ``["negative", "positive"]``.
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
    ValueError
        If `subset` is unknown.

    See Also
    --------
    load_sst2 : Files that are already on disk.

    Examples
    --------
    >>> from sklearn_restf.datasets import fetch_sst2
    >>> sentences, classes = fetch_sst2(subset="validation", return_X_y=True)  # doctest: +SKIP
    """
    stem = _STEMS[subset]
    path, members = fetch_archive(
        _ARCHIVE.adapted(url, mirrors, checks),
        data_home=data_home,
        download_if_missing=download_if_missing,
        progressbar=progressbar,
        n_retries=n_retries,
        delay=delay,
        timeout=timeout,
    )
    name = f"{stem}.tsv"
    sentences, labels = _parse(members[name], f"{path}:{name}", "utf-8")
    return _as_asked(sentences, labels, path, as_frame, return_X_y)


@check_arguments(
    path=[instance_of(str, os.PathLike, words="a path")], subset=[_SUBSET], encoding=[ENCODING]
)
def load_sst2(
    path: str | os.PathLike[str],
    *,
    subset: str = "train",
    encoding: str = "utf-8",
    as_frame: bool = False,
    return_X_y: bool = False,
) -> Bunch | tuple[list[str], np.ndarray] | tuple[pd.Series, pd.Series]:
    r"""Load SST-2 sentences from a file in either of the two public layouts.

    The layouts are told apart by the first line: text lines with the label first
    (``0 one long string of cliches .``), and GLUE's tab-separated files with the header
    ``sentence<TAB>label``, or ``index<TAB>sentence`` for the unlabelled test part.

    Parameters
    ----------
    path : path-like
        A file, or a folder that holds ``train``, ``dev`` and ``test`` with the ending
        ``.tsv`` or ``.txt``.
    subset : {"train", "validation", "test"}, default="train"
        Which file of a folder; not used when `path` is a file. ``"dev"`` is another name of
        ``"validation"``.
    encoding : str, default="utf-8"
        Encoding of the file.
    as_frame : bool, default=False
        Return pandas objects; a list of strings and a NumPy array otherwise.
    return_X_y : bool, default=False
        Return ``(data, target)`` instead of a Bunch.

    Returns
    -------
    data : :class:`~sklearn.utils.Bunch`
        Dictionary-like object, with these attributes:

        With `data`, `target`, `frame`, `target_names`, `filename` and `DESCR` as in
        :func:`fetch_sst2`. Where the file has no labels the target is -1.
    (data, target) : tuple if `return_X_y`
        The two of the Bunch.

    Raises
    ------
    OSError
        If there is no such file; the message says what to put where.
    ValueError
        If a line cannot be read; the message names it.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from sklearn_restf.datasets import load_sst2
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder) / "train.txt"
    ...     _ = path.write_text("1 a gem of a film .\n0 it never ends .\n")
    ...     sentences, classes = load_sst2(path, return_X_y=True)
    >>> sentences
    ['a gem of a film .', 'it never ends .']
    >>> classes
    array([1, 0])
    """
    path = Path(path)
    stem = _STEMS[subset]
    if path.is_dir():
        found = [file for file in (path / f"{stem}.tsv", path / f"{stem}.txt") if file.is_file()]
        if len(found) > 1:
            raise ValueError(f"{path} holds both {stem}.tsv and {stem}.txt; name the file itself.")
        if not found:
            raise FileNotFoundError(
                f"{path} holds neither {stem}.tsv nor {stem}.txt. Put the file there, or get "
                "it with fetch_sst2."
            )
        path = found[0]
    elif not path.is_file():
        raise FileNotFoundError(
            f"There is no file {path}. Put a file of SST-2 there (label-first text lines or a "
            "GLUE .tsv file), or get the data with fetch_sst2."
        )
    sentences, labels = _parse(path.read_bytes(), str(path), encoding)
    return _as_asked(sentences, labels, path, as_frame, return_X_y)


def _parse(content: bytes, name: str, encoding: str) -> tuple[list[str], np.ndarray]:
    try:
        text = content.decode(encoding).removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        number = content.count(b"\n", 0, error.start) + 1
        raise ValueError(
            f"{name}, line {number}: the bytes are not {encoding}. Pass the file's encoding, "
            "for instance encoding='latin-1'."
        ) from error
    # Not splitlines(): that would also split at rare characters inside a sentence.
    lines = [(number, line.strip()) for number, line in enumerate(text.split("\n"), start=1)]
    lines = [(number, line) for number, line in lines if line]
    if not lines:
        raise ValueError(f"{name} is empty.")
    header = tuple(field.strip().lower() for field in lines[0][1].split("\t"))
    pattern, expected = _LAYOUTS.get(header, _TEXT_LAYOUT)
    sentences, labels = [], []
    for number, line in lines[header in _LAYOUTS :]:
        match = re.fullmatch(pattern, line, flags=re.DOTALL)
        if match is None or not match["sentence"].strip():
            raise ValueError(f"{name}, line {number}: expected {expected}, got {line[:60]!r}.")
        sentences.append(match["sentence"].strip())
        labels.append(int(match.groupdict().get("label", _UNLABELLED)))
    return sentences, np.array(labels, np.int64)


def _as_asked(
    sentences: list[str], labels: np.ndarray, path: Path, as_frame: bool, return_X_y: bool
) -> Any:
    data: Any = sentences
    target: Any = labels
    frame = None
    if as_frame:
        frame = pd.DataFrame({"sentence": sentences, "label": labels})
        data, target = frame["sentence"], frame["label"]
    if return_X_y:
        return data, target
    return Bunch(
        data=data,
        target=target,
        frame=frame,
        target_names=list(_TARGET_NAMES),
        filename=str(path),
        DESCR=read_description("sst2.rst"),
    )
