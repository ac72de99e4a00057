"""Files that are always whole, whatever happens while they are written."""

from __future__ import annotations

import os
import secrets
import time
from pathlib import Path

STALE_SECONDS = 3600.0


def write_whole(path: Path, content: bytes) -> None:
    """Write a file so that at any moment its old or its new content is there, as a whole.

    Written beside it, on disk before it is renamed; renaming replaces a file at once.
    """
    part = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")
    try:
        with part.open("xb") as file:  # with the permissions of any new file
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    if os.name == "posix":  # so that the new name survives a power cut, too
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def remove_leftovers(path: Path) -> None:
    """Remove what processes that were killed while writing `path` left behind.

    Only what is old: another process may be writing at this moment.
    """
    for part in path.parent.glob(f".{path.name}.*.part"):
        try:
            if time.time() - part.stat().st_mtime > STALE_SECONDS:
                part.unlink(missing_ok=True)
        except FileNotFoundError:
            continue
