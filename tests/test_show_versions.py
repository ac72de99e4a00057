"""What `show_versions` prints is enough for a report, and prints everywhere."""

import re
import tomllib
from importlib import metadata

import pytest
import torch
from packaging.requirements import Requirement

from sklearn_restf import __version__, show_versions
from tests.conftest import REPOSITORY


@pytest.fixture
def printed(capsys):
    def print_and_read():
        show_versions()
        return dict(re.findall(r"^ *([\w -]+): (.*)$", capsys.readouterr().out, re.MULTILINE))

    return print_and_read


def test_every_dependency_is_shown(printed):
    text = (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8")
    project = tomllib.loads(text)["project"]
    extras = project["optional-dependencies"]
    users = [extras[name] for name in extras.keys() - {"test", "docs", "all"}]
    names = {Requirement(line).name for line in sum(users, project["dependencies"])}
    shown = printed()
    assert names - {"scikit-learn"} < shown.keys()
    assert shown["sklearn-restf"] == __version__
    assert shown["torch"] == metadata.version("torch")
    assert shown["threads"] == str(torch.get_num_threads())


def test_missing_packages_are_none(printed, monkeypatch):
    def version(name, found=metadata.version):
        if name in ("onnx", "dask"):
            raise metadata.PackageNotFoundError(name)
        return found(name)

    monkeypatch.setattr("sklearn_restf._utils.show_versions.version", version)
    shown = printed()
    assert shown["onnx"] == shown["dask"] == "None"


def test_cuda_is_not_initialised(printed, monkeypatch):
    def initialise():
        raise AssertionError("a context on the device takes memory, and forbids to fork")

    monkeypatch.setattr(torch.cuda, "_lazy_init", initialise)
    assert int(printed()["CUDA devices"]) >= 0
