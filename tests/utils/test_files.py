"""Files are written whole or not at all, and leftovers are cleared away."""

import os
import time

import pytest

from sklearn_restf._utils.files import remove_leftovers, write_whole


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    file = tmp_path / "file"
    write_whole(file, b"old")

    def fail(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(KeyboardInterrupt):
        write_whole(file, b"new")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert file.read_bytes() == b"old"


def test_old_leftovers_of_killed_processes_are_removed(tmp_path):
    file = tmp_path / "fit.checkpoint"
    old, new, other = (
        tmp_path / name for name in (".fit.checkpoint.a.part", ".fit.checkpoint.b.part", "x.part")
    )
    for path in (old, new, other):
        path.write_bytes(b"")
    long_ago = time.time() - 7200
    os.utime(old, (long_ago, long_ago))
    os.utime(other, (long_ago, long_ago))
    remove_leftovers(file)
    assert not old.exists()
    assert new.exists()
    assert other.exists()


def test_permissions_are_those_of_any_new_file(tmp_path):
    """A cache or a checkpoint can be shared as far as the user's other files can."""
    whole, plain = tmp_path / "whole", tmp_path / "plain"
    write_whole(whole, b"")
    plain.write_bytes(b"")
    assert whole.stat().st_mode == plain.stat().st_mode
