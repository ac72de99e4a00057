"""Caches of token features by content: in memory, shared by clones, and in a folder."""

from __future__ import annotations

import contextlib
import io
import os
import sqlite3
import threading
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path

import numpy as np


class MemoryCache:
    """Least recently used arrays, bounded in bytes, safe between threads.

    Parameters
    ----------
    max_bytes : int
        Bytes of array data kept at most.
    """

    def __init__(self, max_bytes: int):
        self.max_bytes = max_bytes
        self._arrays: OrderedDict[str, np.ndarray] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def get(self, keys: list[str]) -> dict[str, np.ndarray]:
        """Return the arrays known by these keys."""
        with self._lock:
            found = {key: self._arrays[key] for key in keys if key in self._arrays}
            for key in found:
                self._arrays.move_to_end(key)
        return found

    def put(self, arrays: dict[str, np.ndarray]) -> None:
        """Keep these arrays, and let the oldest go."""
        with self._lock:
            for key, array in arrays.items():
                if key in self._arrays:
                    continue
                self._arrays[key] = array
                self._bytes += array.nbytes
            while self._bytes > self.max_bytes and self._arrays:
                self._bytes -= self._arrays.popitem(last=False)[1].nbytes

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._arrays.clear()
            self._bytes = 0


class FolderCache:
    """Arrays in an SQLite file of a folder, which several processes may use at once.

    Parameters
    ----------
    folder : path-like
        Folder of the file; made if it is missing.
    """

    def __init__(self, folder: str | os.PathLike):
        self.file = Path(folder) / "token_features.sqlite"
        self.file.parent.mkdir(parents=True, exist_ok=True)

    @contextlib.contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        """Open, commit and close: a connection must not be carried into another process."""
        # Long enough for another process to finish writing a large batch.
        connection = sqlite3.connect(self.file, timeout=60)
        try:
            with connection:
                connection.execute(
                    "CREATE TABLE IF NOT EXISTS arrays (key TEXT PRIMARY KEY, data BLOB)"
                )
                yield connection
        finally:
            connection.close()

    def get(self, keys: list[str]) -> dict[str, np.ndarray]:
        """Return the arrays known by these keys."""
        found = {}
        with self._connection() as connection:
            for key in keys:
                row = connection.execute("SELECT data FROM arrays WHERE key = ?", (key,)).fetchone()
                if row is not None:
                    found[key] = np.load(io.BytesIO(row[0]), allow_pickle=False)
        return found

    def put(self, arrays: dict[str, np.ndarray]) -> None:
        """Keep these arrays."""
        with self._connection() as connection:
            connection.executemany(
                "INSERT OR IGNORE INTO arrays VALUES (?, ?)",
                ((key, _bytes_of(array)) for key, array in arrays.items()),
            )


def _bytes_of(array: np.ndarray) -> bytes:
    """Array in NumPy's own format, which holds shape and dtype."""
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return buffer.getvalue()
