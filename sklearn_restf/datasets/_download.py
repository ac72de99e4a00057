"""Zip archives from the network: checked, whole, retried, never unpacked to disk."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import os
import re
import time
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path, PurePosixPath
from typing import Any

from sklearn.datasets import get_data_home

from sklearn_restf._utils.files import remove_leftovers, write_whole

# Far above any member used here (43 MB), far below what would exhaust a machine.
_LARGEST_MEMBER = 2**30
_BROKEN_ZIP = (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, NotImplementedError)


class UnsoundArchive(OSError):
    """An archive is not what it should be; the message is the end of a sentence about it."""


@dataclasses.dataclass(frozen=True)
class RemoteArchive:
    """A zip archive on the network and what is known of its content.

    Parameters
    ----------
    folder, filename : str
        Where the archive lies below the data home.
    urls : tuple of str
        Addresses, tried in this order.
    members : mapping of str to str
        File names that the archive must hold, by the names that users have for them.
    n_rows : mapping of str to int or None
        Number of data rows (lines after the header) of each, by the same names; None where
        any number will do.
    size : int or None
        Size of the archive in bytes.
    digest : str or None
        Checksum as ``"algorithm:hexdigest"``.
    """

    folder: str
    filename: str
    urls: tuple[str, ...]
    members: Mapping[str, str]
    n_rows: Mapping[str, int | None]
    size: int | None = None
    digest: str | None = None

    def adapted(
        self, url: str | None, mirrors: Sequence[str], checks: Mapping[str, Any] | None
    ) -> RemoteArchive:
        """Return the archive as the caller's `url`, `mirrors` and `checks` describe it."""
        if isinstance(mirrors, str):
            raise TypeError(f"mirrors must be a list of addresses, got the string {mirrors!r}.")
        urls = (*self.urls, *mirrors) if url is None else (url, *mirrors)
        known = {"size": self.size, "digest": self.digest, "n_rows": self.n_rows}
        changes = known | dict(checks or {})
        n_rows = changes["n_rows"]
        if not isinstance(n_rows, Mapping):
            n_rows = dict.fromkeys(self.n_rows, n_rows)
        _check_keys("checks", changes, known)
        _check_keys("checks['n_rows']", n_rows, self.n_rows)
        changes |= {"urls": tuple(dict.fromkeys(urls)), "n_rows": {**self.n_rows, **n_rows}}
        return dataclasses.replace(self, **changes)

    def read(self, content: bytes) -> dict[str, bytes]:
        """Return the members of a copy by file name; raise UnsoundArchive unless it is sound."""
        if self.size is not None and len(content) != self.size:
            raise UnsoundArchive(f"has {len(content):,} bytes instead of {self.size:,}")
        if self.digest is not None:
            algorithm, _, expected = self.digest.rpartition(":")
            found = hashlib.new(algorithm or "sha256", content).hexdigest()
            if found != expected.lower():
                raise UnsoundArchive(f"has the checksum {found} instead of {expected}")
        try:
            with zipfile.ZipFile(io.BytesIO(content)) as bundle:
                _check_names(bundle)
                return {
                    member: _read_member(bundle, member, self.n_rows[name])
                    for name, member in self.members.items()
                }
        except _BROKEN_ZIP as error:
            raise UnsoundArchive(f"is not a sound zip archive ({error})") from error


def _check_keys(name: str, given: Mapping[str, Any], known: Mapping[str, Any]) -> None:
    unknown = [key for key in given if key not in known]
    if unknown:
        raise ValueError(f"{name} has the unknown keys {unknown}; known: {list(known)}.")


def _check_names(bundle: zipfile.ZipFile) -> None:
    for name in bundle.namelist():
        # Nothing is ever unpacked, but an archive with such names is not the published one.
        if re.match(r"[\\/]|[A-Za-z]:", name) or ".." in re.split(r"[\\/]", name):
            raise UnsoundArchive(f"holds a file with the unsafe name {name!r}")


def _read_member(bundle: zipfile.ZipFile, name: str, n_rows: int | None) -> bytes:
    """Return the content of the member called `name` that is nearest to the archive's root."""
    paths = [
        (len(parts), info.filename, info)
        for info in bundle.infolist()
        if (parts := PurePosixPath(info.filename).parts) and parts[-1] == name
    ]
    if not paths:
        raise UnsoundArchive(f"does not hold {name}")
    member = min(paths)[-1]
    if member.file_size > _LARGEST_MEMBER:
        raise UnsoundArchive(f"holds {name} with an implausible {member.file_size:,} bytes")
    content = bundle.read(member)  # verifies the CRC, too
    found = sum(1 for line in io.BytesIO(content) if line.strip()) - 1
    if n_rows is not None and found != n_rows:
        raise UnsoundArchive(f"holds {name} with {found:,} rows instead of {n_rows:,}")
    return content


def read_description(name: str) -> str:
    """Return the description file `name` of this package."""
    return (files("sklearn_restf.datasets") / "descr" / name).read_text(encoding="utf-8")


def fetch_archive(
    archive: RemoteArchive,
    *,
    data_home: str | os.PathLike[str] | None,
    download_if_missing: bool,
    progressbar: bool,
    n_retries: int,
    delay: float,
    timeout: float,
) -> tuple[Path, dict[str, bytes]]:
    """Return where a sound copy of `archive` lies, downloaded if need be, and its members."""
    if n_retries < 0:
        raise ValueError(f"n_retries must be at least 0, got {n_retries}.")
    home = None if data_home is None else os.fspath(data_home)
    path = Path(get_data_home(home)) / archive.folder / archive.filename
    try:
        return path, archive.read(path.read_bytes())
    except FileNotFoundError:
        problem = "is not there"
    except UnsoundArchive as error:
        problem = str(error)
    size = "" if archive.size is None else f"{archive.size:,} bytes, "
    where_from = f"{size}published at {archive.urls[0]}"
    if not download_if_missing:
        raise OSError(
            f"{path} {problem}, and download_if_missing is False. Put the file "
            f"{archive.filename} there ({where_from}), or allow the download."
        )
    downloader = _http_downloader(progressbar, timeout)
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(path)
    failures = []
    for url in archive.urls:
        try:
            content, members = _download(url, archive, downloader, n_retries, delay)
        except OSError as error:
            is_here = isinstance(error, UnsoundArchive)
            subject = "the downloaded file" if is_here else f"{type(error).__name__}:"
            failures.append(f"  {url}: {subject} {error}")
        else:
            _put_in_place(path, content)
            return path, members
    raise OSError(
        f"{path} {problem}, and {archive.filename} could not be downloaded:\n"
        + "\n".join(failures)
        + f"\nPut the file at {path} by hand ({where_from}), or name another "
        "address with mirrors=[...]. Proxies are taken from the environment variables "
        "HTTP_PROXY and HTTPS_PROXY."
    )


def _http_downloader(progressbar: bool, timeout: float) -> Any:
    try:
        import pooch
    except ImportError as error:
        raise ImportError(
            "Downloading data sets needs pooch: pip install 'sklearn-restf[datasets]'."
        ) from error
    try:
        return pooch.HTTPDownloader(progressbar=progressbar, chunk_size=2**16, timeout=timeout)
    except ValueError as error:
        raise ImportError("progressbar=True needs tqdm: pip install tqdm.") from error


def _download(
    url: str, archive: RemoteArchive, downloader: Any, n_retries: int, delay: float
) -> tuple[bytes, dict[str, bytes]]:
    """Return a sound copy and its members; raise the OSError of the last attempt."""
    while True:
        stream = io.BytesIO()
        try:
            downloader(url, stream, None)
            return stream.getvalue(), archive.read(stream.getvalue())
        except OSError as error:
            status = getattr(getattr(error, "response", None), "status_code", 500)
            is_refused = status < 500 and status not in (408, 429)
            # requests marks malformed addresses as ValueErrors: no retry helps those.
            if n_retries == 0 or is_refused or isinstance(error, ValueError):
                raise
        n_retries -= 1
        time.sleep(delay)


def _put_in_place(path: Path, content: bytes) -> None:
    try:
        write_whole(path, content)
    except PermissionError:
        # Windows refuses while another process reads the copy it has just put there.
        if not path.exists() or path.read_bytes() != content:
            raise
