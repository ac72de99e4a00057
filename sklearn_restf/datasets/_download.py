"""Zip archives from the network: checked, atomic, retried, never unpacked to disk."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import re
import secrets
import time
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path, PurePosixPath
from typing import Any

from sklearn.datasets import get_data_home

# Far above any member used here (43 MB), far below what would exhaust a machine.
_LARGEST_MEMBER = 2**30
_STALE_SECONDS = 24 * 3600
_BROKEN_ZIP = (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, NotImplementedError)


@dataclasses.dataclass(frozen=True)
class RemoteArchive:
    """A zip archive on the network and what is known of its content.

    Parameters
    ----------
    folder, filename : str
        Where the archive lies below the data home.
    urls : tuple of str
        Addresses, tried in this order.
    members : mapping of str to int or None
        File names the archive must hold and the number of data rows (lines after the
        header) of each; None where any number will do.
    size : int or None
        Size of the archive in bytes.
    digest : str or None
        Checksum as ``"algorithm:hexdigest"``.
    """

    folder: str
    filename: str
    urls: tuple[str, ...]
    members: Mapping[str, int | None]
    size: int | None = None
    digest: str | None = None

    def adapted(
        self,
        url: str | None,
        mirrors: Sequence[str],
        checks: Mapping[str, Any] | None,
        row_names: Mapping[str, str],
    ) -> RemoteArchive:
        """Return the archive as the caller's `url`, `mirrors` and `checks` describe it.

        `row_names` maps the keys that ``checks["n_rows"]`` may have to member names; with
        one member ``n_rows`` may be a number.
        """
        if isinstance(mirrors, str):
            raise TypeError(f"mirrors must be a list of addresses, got the string {mirrors!r}.")
        urls = (*self.urls, *mirrors) if url is None else (url, *mirrors)
        changes: dict[str, Any] = {"urls": tuple(dict.fromkeys(urls))}
        for key, value in (checks or {}).items():
            if key in ("size", "digest"):
                changes[key] = value
            elif key == "n_rows":
                if not isinstance(value, Mapping):
                    value = dict.fromkeys(row_names, value)
                unknown = sorted(set(value) - set(row_names))
                if unknown:
                    raise ValueError(
                        f"checks['n_rows'] has unknown keys {unknown}; known: {sorted(row_names)}."
                    )
                rows = {row_names[name]: n_rows for name, n_rows in value.items()}
                changes["members"] = {**self.members, **rows}
            else:
                raise ValueError(
                    f"checks has the unknown key {key!r}; known: 'size', 'digest', 'n_rows'."
                )
        return dataclasses.replace(self, **changes)


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
) -> Path:
    """Return the path of a whole, checked copy of `archive`, downloading it if need be."""
    if n_retries < 0:
        raise ValueError(f"n_retries must be at least 0, got {n_retries}.")
    home = None if data_home is None else os.fspath(data_home)
    path = Path(get_data_home(home)) / archive.folder / archive.filename
    problem = find_problem(path, archive) if path.exists() else "is not there"
    if problem is None:
        return path
    if not download_if_missing:
        raise OSError(
            f"{path} {problem}, and download_if_missing is False. Put the file "
            f"{archive.filename} there ({_where_from(archive)}), or allow the download."
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    _remove_stale_parts(path)
    failures: list[str] = []
    for url in archive.urls:
        for attempt in range(n_retries + 1):
            if attempt:
                time.sleep(delay)
            failure, worth_retrying = _download_once(url, path, archive, progressbar, timeout)
            if failure is None:
                return path
            if not worth_retrying:
                break
        failures.append(f"  {url}: {failure}")
    raise OSError(
        f"{path} {problem}, and {archive.filename} could not be downloaded:\n"
        + "\n".join(failures)
        + f"\nPut the file at {path} by hand ({_where_from(archive)}), or name another "
        "address with mirrors=[...]. Proxies are taken from the environment variables "
        "HTTP_PROXY and HTTPS_PROXY."
    )


def _where_from(archive: RemoteArchive) -> str:
    size = "" if archive.size is None else f"{archive.size:,} bytes, "
    return f"{size}published at {archive.urls[0]}"


def _download_once(
    url: str, path: Path, archive: RemoteArchive, progressbar: bool, timeout: float
) -> tuple[str | None, bool]:
    """Try one download; return what went wrong (None: nothing) and whether to try again."""
    downloader = _http_downloader(progressbar, timeout)
    from requests.exceptions import HTTPError, RequestException

    # A name of its own for each attempt: two processes never write into one file, and the
    # archive appears under its final name only when whole.
    part = path.with_name(f"{path.name}.{os.getpid()}-{secrets.token_hex(4)}.part")
    try:
        with part.open("xb") as stream:
            downloader(url, stream, None)
        problem = find_problem(part, archive)
        if problem is not None:
            return f"the downloaded file {problem}", True
        _put_in_place(part, path, archive)
    except HTTPError as error:
        status = 0 if error.response is None else error.response.status_code
        return f"{error}", status >= 500 or status in (408, 429)
    except RequestException as error:
        # requests marks malformed addresses as ValueErrors: no retry helps those.
        return f"{type(error).__name__}: {error}", not isinstance(error, ValueError)
    finally:
        part.unlink(missing_ok=True)
    return None, False


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


def _put_in_place(part: Path, path: Path, archive: RemoteArchive) -> None:
    try:
        part.replace(path)
    except PermissionError:
        # Windows refuses while another process reads the copy it has just put there.
        if not path.exists() or find_problem(path, archive) is not None:
            raise


def _remove_stale_parts(path: Path) -> None:
    """Remove what killed processes left behind, sparing downloads that may be under way."""
    for part in path.parent.glob(f"{path.name}.*.part"):
        try:
            if time.time() - part.stat().st_mtime > _STALE_SECONDS:
                part.unlink()
        except OSError:  # another process was quicker
            continue


def find_problem(path: Path, archive: RemoteArchive) -> str | None:
    """Say what is wrong with the file at `path`, as the end of a sentence; None: nothing."""
    size = path.stat().st_size
    if archive.size is not None and size != archive.size:
        return f"has {size:,} bytes instead of {archive.size:,}"
    if archive.digest is not None:
        algorithm, _, expected = archive.digest.rpartition(":")
        with path.open("rb") as stream:
            found = hashlib.file_digest(stream, algorithm or "sha256").hexdigest()
        if found != expected.lower():
            return f"has the checksum {found} instead of {expected}"
    try:
        with zipfile.ZipFile(path) as bundle:
            return _find_content_problem(bundle, archive)
    except _BROKEN_ZIP as error:
        return f"is not a sound zip archive ({error})"


def _find_content_problem(bundle: zipfile.ZipFile, archive: RemoteArchive) -> str | None:
    for name in bundle.namelist():
        # Nothing is ever unpacked, but an archive with such names is not the published one.
        if re.match(r"[\\/]|[A-Za-z]:", name) or ".." in re.split(r"[\\/]", name):
            return f"holds a file with the unsafe name {name!r}"
    for name, n_rows in archive.members.items():
        member = _find_member(bundle, name)
        if member is None:
            return f"does not hold {name}"
        if member.file_size > _LARGEST_MEMBER:
            return f"holds {name} with an implausible {member.file_size:,} bytes"
        with bundle.open(member) as lines:  # reading to the end verifies the CRC too
            found = sum(1 for line in lines if line.strip()) - 1
        if n_rows is not None and found != n_rows:
            return f"holds {name} with {found:,} rows instead of {n_rows:,}"
    return None


def _find_member(bundle: zipfile.ZipFile, name: str) -> zipfile.ZipInfo | None:
    """Return the member called `name` nearest to the archive's root."""
    paths = [
        (len(parts), info.filename, info)
        for info in bundle.infolist()
        if (parts := PurePosixPath(info.filename).parts) and parts[-1] == name
    ]
    return min(paths)[-1] if paths else None


def read_member(path: Path, name: str) -> bytes:
    """Return the content of the member called `name` of the zip archive at `path`."""
    with zipfile.ZipFile(path) as bundle:
        member = _find_member(bundle, name)
        if member is None:
            raise OSError(f"{path} does not hold {name}.")
        return bundle.read(member)
