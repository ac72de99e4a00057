"""Models load with other versions of scikit-learn and of this package, or say why not."""

import json
import os
import pickle
import pickletools
import re
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from sklearn_restf import ResidualTransformerClassifier, ResidualTransformerRegressor
from sklearn_restf._estimator import fitted_model
from tests.conftest import REPOSITORY
from tests.persistence_models import MODELS, SMALL, TABLE, load, read
from tests.tools import run_python

FIXTURES = REPOSITORY / "tests" / "fixtures" / "persistence"
RELEASES = sorted(path.name for path in FIXTURES.iterdir())
#: Other versions of scikit-learn, as ``make test-sklearn-matrix`` installs them.
VERSIONS = sorted(path.parent.name for path in (REPOSITORY / ".sklearn").glob("*/sklearn"))


# --- releases -------------------------------------------------------------------------------


@pytest.mark.sklearn_contract
@pytest.mark.parametrize("release", RELEASES)
def test_models_of_every_release_load(release):
    pytest.importorskip("skops")
    assert read(FIXTURES / release) == 3 * len(MODELS)


@pytest.mark.parametrize("release", RELEASES)
def test_what_is_kept_of_a_release_is_small(release):
    sizes = {path.name: path.stat().st_size for path in (FIXTURES / release).iterdir()}
    assert max(sizes.values()) < 40_000, sizes


# --- scikit-learn ---------------------------------------------------------------------------


def run(version, *arguments):
    """Write or read models with a version of scikit-learn (None: the installed one)."""
    folders = [str(REPOSITORY)]
    if version:
        folders.insert(0, str(REPOSITORY / ".sklearn" / version))
    path = os.pathsep.join(folders)
    return run_python("-m", "tests.persistence_models", *arguments, PYTHONPATH=path)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(not VERSIONS, reason="no other scikit-learn; make test-sklearn-matrix has some")
def test_every_scikit_learn_reads_what_the_others_write(tmp_path):
    pytest.importorskip("skops")
    folders = {version or "installed": tmp_path / str(version) for version in [None, *VERSIONS]}
    for version, folder in zip([None, *VERSIONS], folders.values(), strict=True):
        run(version, "write", folder)
        kept = json.loads((folder / "expected.json").read_text(encoding="utf-8"))
        assert version in (None, kept["sklearn"])
    for version in [None, *VERSIONS]:
        counts = json.loads(run(version, "read", *folders.values()))
        assert counts == [3 * len(MODELS)] * len(folders)


# --- formats --------------------------------------------------------------------------------


@pytest.fixture
def model():
    return ResidualTransformerRegressor(**SMALL).fit(TABLE, TABLE[:, 0])


def stored(model, **changes):
    """Return a model as a file of another format would have it."""
    model._fitted = replace(model._fitted, **changes)
    return pickle.dumps(model)


def test_a_newer_format_is_refused(model, tmp_path):
    words = r"newer sklearn-restf \(its format is 7, known here up to 1\)\. Update sklearn-restf"
    with pytest.raises(ValueError, match=words):
        pickle.loads(stored(model, format_version=7))
    skops_io = pytest.importorskip("skops.io")
    content = skops_io.dumps(model)
    with pytest.raises(ValueError, match=words):
        skops_io.loads(content, trusted=skops_io.get_untrusted_types(data=content))


def test_older_formats_are_brought_up_to_date(model, monkeypatch):
    """Step by step: each knows the next."""
    expected = model.predict(TABLE)
    content = pickle.dumps(model)

    def rename(state):
        assert state["format_version"] == 1
        return state | {"rate": state.pop("learning_rate")}

    def rename_back(state):
        assert state["format_version"] == 2
        return state | {"learning_rate": state.pop("rate")}

    monkeypatch.setattr(fitted_model, "FORMAT_VERSION", 3)
    monkeypatch.setattr(fitted_model, "MIGRATIONS", {1: rename, 2: rename_back})
    loaded = pickle.loads(content)
    assert loaded._fitted.format_version == 3
    assert_array_equal(loaded.predict(TABLE), expected)


def test_there_is_a_way_from_every_older_format():
    assert sorted(fitted_model.MIGRATIONS) == list(range(1, fitted_model.FORMAT_VERSION))


@pytest.mark.parametrize("make", [ResidualTransformerRegressor, ResidualTransformerClassifier])
def test_parameters_that_came_later_have_their_defaults(make):
    model = make(**SMALL, alpha=0.5).fit(TABLE, TABLE[:, 0] > 0)
    expected = model.predict(TABLE)
    del model.layer_norm, model.diagnostics_samples  # as if the release had not known them
    loaded = pickle.loads(pickle.dumps(model))
    assert loaded.get_params() == make(**SMALL, alpha=0.5).get_params()
    assert_array_equal(loaded.predict(TABLE), expected)


# --- nothing runs ---------------------------------------------------------------------------


class Bomb:
    """Makes a folder when it is unpickled."""

    def __init__(self, folder):
        self.folder = folder

    def __reduce__(self):
        return os.mkdir, (str(self.folder),)


@pytest.mark.parametrize("where", ["parameter", "state"])
def test_skops_runs_nothing_that_was_hidden_in_a_model(model, where, tmp_path):
    skops_io = pytest.importorskip("skops.io")
    trusted = skops_io.get_untrusted_types(data=skops_io.dumps(model))
    if where == "parameter":
        model.callbacks = Bomb(tmp_path / "made")
    else:
        model._fitted.state["readout"] = Bomb(tmp_path / "made")
    try:
        content = skops_io.dumps(model)
        with pytest.raises(skops_io.exceptions.UntrustedTypesFoundException):
            skops_io.loads(content, trusted=trusted)
    except (TypeError, AttributeError, skops_io.exceptions.UnsupportedTypeException):
        pass  # not even written
    assert not (tmp_path / "made").exists()


def test_what_skops_is_to_trust_is_plain_data():
    """The types to trust hold numbers and words: none runs anything when it is made."""
    skops_io = pytest.importorskip("skops.io")
    for name in MODELS:
        types = skops_io.get_untrusted_types(file=FIXTURES / RELEASES[-1] / f"{name}.skops")
        classes = {name.rpartition(".")[2] for name in types}
        assert classes <= {
            "ResidualTransformerRegressor",
            "ResidualTransformerClassifier",
            "ConvergenceDiagnostics",
            "FittedModel",
            "ModuleConfig",
            "TokenLayout",
            "TargetScaling",
        }, classes


@pytest.mark.parametrize("name", MODELS)
def test_saved_models_name_lasting_paths_only(name):
    """Of packages, not of files: those may move."""
    estimator, X, y = MODELS[name]
    content = pickle.dumps(estimator.fit(X, y), protocol=4)
    strings = [arg for _, arg, _ in pickletools.genops(content) if isinstance(arg, str)]
    modules = {text for text in strings if re.fullmatch(r"sklearn_restf[\w.]*", text)}
    assert modules <= {
        "sklearn_restf",
        "sklearn_restf._data",
        "sklearn_restf._estimator",
        "sklearn_restf._model",
    }


def test_loading_makes_no_noise():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for path in sorted(Path(FIXTURES / RELEASES[-1]).glob("*.pickle")):
            assert np.isfinite(load(path).loss_)


@pytest.mark.parametrize("state", [{}, {"format_version": "1"}, {"format_version": -1}], ids=str)
def test_what_is_no_model_is_refused_when_loaded(state):
    with pytest.raises(ValueError, match="no model of sklearn-restf"):
        fitted_model.FittedModel.__new__(fitted_model.FittedModel).__setstate__(state)
