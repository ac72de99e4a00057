"""Samples in a memory map larger than the memory training may use."""

import json
import sys

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from sklearn_restf import ResidualTransformerRegressor
from sklearn_restf._data.memory_maps import SelectedRows
from tests.tools import run_python

SHAPE = (24, 21)
MODEL = {"pooling": "last", "max_iter": 3, "tol": None, "random_state": 0}
MEGABYTE = 2**20
FILE_BYTES, ALLOWED = 600 * MEGABYTE, 300 * MEGABYTE

# In a process of its own: the peak of the test process's memory is that of an earlier test.
TRAIN_AND_PREDICT = """
import json, sys
from pathlib import Path
import numpy as np
import sklearn_restf._data.batches
from sklearn_restf import ResidualTransformerRegressor

sklearn_restf._data.batches.CACHE_BYTES = 0  # as for a file larger than the cache of cast tokens

def resident(name):
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return 1024 * int(fields[name].split()[0])

path, shape, model, stopping = sys.argv[1], *map(json.loads, sys.argv[2:])
X = np.memmap(path, dtype=np.float32, mode="r", shape=tuple(shape))
y = np.arange(len(X)) % 7.0
warm_up = ResidualTransformerRegressor(**model).fit(np.array(X[:50]), y[:50])
before = resident("VmRSS")
chunked = ResidualTransformerRegressor(**model, chunk_size=2000, early_stopping=stopping)
chunked.fit(X, y).predict(X)
print(json.dumps(resident("VmHWM") - before))
"""


@pytest.fixture
def windows(tmp_path):
    """A file of windows, mapped read-only."""
    X = np.random.default_rng(0).standard_normal((3000, *SHAPE), dtype=np.float32)
    path = tmp_path / "X.float32"
    X.tofile(path)
    return np.memmap(path, dtype=np.float32, mode="r", shape=X.shape), X


@pytest.mark.parametrize("pooling", ["last", "mean", "flatten"])
def test_memory_map_in_chunks_trains_as_the_array_does(windows, pooling, monkeypatch):
    mapped, X = windows
    y = X[:, -1, 0] + X[:, 0, 1]
    settings = MODEL | {"pooling": pooling}
    expected = ResidualTransformerRegressor(**settings).fit(X, y)
    monkeypatch.setattr("sklearn_restf._data.batches.CACHE_BYTES", 0)  # read at every iteration
    model = ResidualTransformerRegressor(**settings, chunk_size=512).fit(mapped, y)
    assert_allclose(model.loss_curve_, expected.loss_curve_, rtol=1e-5)
    assert_allclose(model.predict(mapped), expected.predict(X), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("chunk_size", [None, 512])
def test_a_selection_of_rows_is_read_when_asked_for(windows, monkeypatch, chunk_size):
    mapped, X = windows
    weight = np.ones(len(X))
    weight[::7] = 0.0  # these samples are dropped: one more selection
    settings = MODEL | {"early_stopping": True, "chunk_size": chunk_size}
    fits = []
    for data, large in ((X, 2**40), (mapped, 0)):
        monkeypatch.setattr("sklearn_restf._data.memory_maps.LARGE_BYTES", large)
        monkeypatch.setattr("sklearn_restf._data.batches.CACHE_BYTES", 0)
        fits.append(ResidualTransformerRegressor(**settings).fit(data, X[:, -1, 0], weight))
    assert fits[0].validation_curve_ == fits[1].validation_curve_
    assert fits[0].loss_curve_ == fits[1].loss_curve_
    assert (fits[0].predict(X[:9]) == fits[1].predict(X[:9])).all()


def test_selected_rows_are_those_of_the_array():
    values = np.arange(40.0).reshape(10, 2, 2)
    first = np.array([9, 3, 4, 0, 7])
    lazy = SelectedRows(values, first)
    assert (lazy.shape, lazy.ndim, lazy.dtype, len(lazy)) == ((5, 2, 2), 3, values.dtype, 5)
    assert (lazy.size, lazy.nbytes) == (20, 160)
    for key in (slice(1, 3), np.array([4, 0])):
        assert_array_equal(lazy[key], values[first][key])
    assert_array_equal(np.asarray(lazy), values[first])
    assert np.asarray(lazy, dtype=np.float32).dtype == np.float32


def test_copy_on_write_changes_survive_training(windows):
    """Giving back the pages of such a map would undo the changes."""
    path, X = windows[0].filename, windows[1]
    mapped = np.memmap(path, dtype=np.float32, mode="c", shape=X.shape)
    mapped[:5] = 7.0
    model = ResidualTransformerRegressor(**MODEL, chunk_size=512).fit(mapped, X[:, -1, 0])
    model.predict(mapped)
    assert (mapped[:5] == 7.0).all()


def test_writable_map_is_unchanged_by_training(windows):
    path, X = windows[0].filename, windows[1]
    mapped = np.memmap(path, dtype=np.float32, mode="r+", shape=X.shape)
    mapped[:5] = 7.0  # not flushed
    ResidualTransformerRegressor(**MODEL, chunk_size=512).fit(mapped, X[:, -1, 0])
    assert (mapped[:5] == 7.0).all()
    assert (np.fromfile(path, np.float32, count=5) == 7.0).all()


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("early_stopping", [False, "last", True])
@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak memory from /proc")
def test_file_larger_than_the_memory_it_may_take(tmp_path, early_stopping):
    """Mapped pages that were read count too."""
    row = 4 * int(np.prod(SHAPE))
    shape = [FILE_BYTES // row, *SHAPE]
    path = tmp_path / "X.float32"
    block = np.random.default_rng(0).standard_normal((2000, *SHAPE), dtype=np.float32)
    with path.open("wb") as file:  # the rest is a hole, which takes no room on the disk
        block.tofile(file)
        file.truncate(shape[0] * row)
    arguments = [json.dumps(value) for value in (shape, MODEL, early_stopping)]
    printed = run_python("-c", TRAIN_AND_PREDICT, path, *arguments)
    assert json.loads(printed) < ALLOWED < FILE_BYTES
