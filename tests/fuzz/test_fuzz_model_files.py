"""Damaged model files are refused in words, and never give another model than was saved."""

from __future__ import annotations

import functools
import io
import json
import pickle
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sklearn_restf import ResidualTransformerClassifier, ResidualTransformerRegressor
from sklearn_restf.callbacks import TrainingCheckpoint
from sklearn_restf.pretrained import gpt2_parameters
from tests.fuzz.calls import called
from tests.fuzz.data import rarely
from tests.fuzz.judge import (
    ALLOWED_WARNINGS,
    NAMES,
    expect,
    global_state,
    observed,
    outcomes,
)
from tests.fuzz.length import N_CASES, SLOW_TO_DRAW, search_at_length

X = np.random.default_rng(0).standard_normal((6, 3, 4))
Y = X[:, 0, 0]
FIT = {"max_iter": 3, "tol": None, "d_ff": 4, "random_state": 0}
ODD_VALUES = [None, -1, 0, 1, 3, 4.5, "4", "gelu", [], {}, 10**9, True, float("nan"), "../x"]


def damaged(draw, content):
    """Return bytes of which some are others, missing, or in excess."""
    kind = draw(st.sampled_from(["flip", "flip", "flip", "cut", "insert", "zeros", "swap"]))
    at = draw(st.integers(0, len(content) - 1))
    if kind == "flip":
        flipped = bytearray(content)
        flipped[at] ^= 1 << draw(st.integers(0, 7))
        return bytes(flipped)
    if kind == "cut":
        return content[:at]
    piece = draw(st.binary(min_size=1, max_size=8))
    if kind == "insert":
        return content[:at] + piece + content[at:]
    if kind == "zeros":
        return content[:at] + bytes(len(content[at : at + 40])) + content[at + 40 :]
    return content[at:] + content[:at]


# --- checkpoints of training ----------------------------------------------------------------------


def trained(path, max_iter):
    """Return a regressor that saves its state to a file at every iteration."""
    checkpoint = TrainingCheckpoint(path, every=1)
    return ResidualTransformerRegressor(**FIT | {"max_iter": max_iter}, callbacks=[checkpoint])


@functools.cache
def sound_checkpoint():
    """Return a checkpoint, and what a fit that goes on from it ends with."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "fit.checkpoint"
        trained(path, 3).fit(X, Y)
        content = path.read_bytes()
        model = trained(path, 5).fit(X, Y)
    return content, model.loss_curve_, model.predict(X)


@st.composite
def checkpoints(draw):
    """Draw the bytes of a damaged checkpoint."""
    content = sound_checkpoint()[0]
    for _ in range(draw(st.integers(1, 2))):
        content = damaged(draw, content) if content else content
    return content


def judge_checkpoint(content):
    """Go on from a damaged checkpoint: as from a sound one, or not at all."""
    outcomes["cases"] += 1
    _, curve, predictions = sound_checkpoint()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "fit.checkpoint"
        path.write_bytes(content)
        model = trained(path, 5)
        fitted = called("fit", lambda: model.fit(X, Y), names=["fit.checkpoint"])
    if fitted is not None:
        expect(model.loss_curve_ == curve, "another loss curve")
        np.testing.assert_array_equal(model.predict(X), predictions)


# --- pretrained weights ---------------------------------------------------------------------------


@functools.cache
def sound_model():
    """Return config and weights of a small GPT-2."""
    save = pytest.importorskip("safetensors.torch").save
    config = {"model_type": "gpt2", "n_embd": 4, "n_head": 2, "n_layer": 1, "n_inner": 8}
    shapes = {"attn.c_attn.weight": (4, 12), "attn.c_attn.bias": (12,),
              "attn.c_proj.weight": (4, 4), "attn.c_proj.bias": (4,),
              "mlp.c_fc.weight": (4, 8), "mlp.c_fc.bias": (8,), "mlp.c_proj.weight": (8, 4),
              "mlp.c_proj.bias": (4,), "ln_1.weight": (4,), "ln_1.bias": (4,),
              "ln_2.weight": (4,), "ln_2.bias": (4,)}  # fmt: skip
    generator = torch.Generator().manual_seed(0)
    tensors = {f"h.0.{name}": torch.randn(shape, generator=generator)
               for name, shape in shapes.items()}  # fmt: skip
    return config, save(tensors)


@st.composite
def pretrained(draw):
    """Draw the files of a damaged model."""
    config, weights = sound_model()
    content = json.dumps(config).encode()
    kind = draw(st.sampled_from(["value", "config", "weights", "header"]))
    if kind == "value":
        name = draw(st.sampled_from([*config, "activation_function", "layer_norm_epsilon"]))
        content = json.dumps(config | {name: draw(st.sampled_from(ODD_VALUES))}).encode()
    elif kind == "config":
        content = damaged(draw, content)
    elif kind == "weights":
        weights = damaged(draw, weights)
    else:  # its length and the description of the tensors
        size = 8 + int.from_bytes(weights[:8], "little")
        weights = damaged(draw, weights[:size]) + weights[size:]
    return content, weights


def judge_pretrained(files):
    """Start a fit from damaged weights."""
    outcomes["cases"] += 1
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_bytes(files[0])
        (Path(folder) / "model.safetensors").write_bytes(files[1])
        words = {"config.json", "model.safetensors", "init"}
        refusals = (ValueError, TypeError, OSError)
        parameters = called("gpt2_parameters", lambda: gpt2_parameters(folder), names=words,
                            refusals=refusals)  # fmt: skip
        if parameters is None:
            return
        model = ResidualTransformerRegressor(**FIT | parameters)
        fitted = called("fit", lambda: model.fit(X, Y), names=NAMES | words, draws=True,
                        refusals=refusals, warns=ALLOWED_WARNINGS)  # fmt: skip
    if fitted is not None:
        expect(np.isfinite(model.predict(X)).all(), "predictions not finite")


# --- fitted estimators ----------------------------------------------------------------------------


@functools.cache
def sound_files():
    """Return a fitted estimator, its skops file, the types this holds, and its pickle."""
    skops_io = pytest.importorskip("skops.io")
    model = ResidualTransformerClassifier(**FIT).fit(X, Y > 0)
    content = skops_io.dumps(model)
    return model, content, skops_io.get_untrusted_types(data=content), pickle.dumps(model)


@st.composite
def saved(draw):
    """Draw the damaged bytes of a skops file, or a pickle that is cut short.

    What other damage to a pickle does is for no loader to say: it may be any program.
    """
    _, content, _, pickled = sound_files()
    if rarely(draw, 6):
        return "pickle", pickled[: draw(st.integers(0, len(pickled) - 1))]
    return "skops", damaged(draw, content)


def judge_saved(file):
    """Load a damaged file: the model that was saved, or none."""
    outcomes["cases"] += 1
    model, _, types, _ = sound_files()
    kind, content = file
    import skops.io

    def load():
        if kind == "pickle":
            return pickle.load(io.BytesIO(content))
        return skops.io.loads(content, trusted=types)

    state = global_state()
    # other libraries load, and refuse in words of their own
    loaded, error, _ = observed(kind, load, (Exception,))
    expect(state == global_state(), "global state changed")
    outcomes[f"{kind}: {type(error).__name__ if error else 'done'}"] += 1
    if error is None:
        expect(kind == "skops", "a model from a pickle cut short")
        np.testing.assert_array_equal(loaded.predict_proba(X), model.predict_proba(X))


@settings(max_examples=40, suppress_health_check=SLOW_TO_DRAW)
@given(checkpoints())
def test_damaged_checkpoints_are_refused(content):
    judge_checkpoint(content)


@settings(max_examples=60, suppress_health_check=SLOW_TO_DRAW)
@given(pretrained())
def test_damaged_pretrained_models_are_refused(files):
    judge_pretrained(files)


@settings(max_examples=40, suppress_health_check=SLOW_TO_DRAW)
@given(saved())
def test_damaged_estimators_are_refused(file):
    judge_saved(file)


@pytest.mark.fuzz
@pytest.mark.timeout(0)
@pytest.mark.parametrize(
    ("judge", "files"),
    [(judge_checkpoint, checkpoints), (judge_pretrained, pretrained), (judge_saved, saved)],
)
def test_model_files_at_length(capsys, judge, files):
    search_at_length(capsys, judge, files(), N_CASES // 8)
