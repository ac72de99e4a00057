"""Faults that the randomised search found around the estimators, each by its smallest call."""

import bz2
import copy
import io
import json
import pickle

import numpy as np
import pandas as pd
import pytest
import torch
from numpy.testing import assert_allclose

from sklearn_restf import ResidualTransformerClassifier, ResidualTransformerRegressor, diagnose
from sklearn_restf._estimator.fitted_model import FittedModel
from sklearn_restf.callbacks import ConvergenceMonitor, TrainingCheckpoint
from sklearn_restf.datasets import (
    load_mpi_roof,
    make_climate_series,
    make_token_classification,
    make_token_regression,
)
from sklearn_restf.inspection import (
    AttentionDisplay,
    BetaSweepDisplay,
    ConvergenceDisplay,
    SpectrumDisplay,
)
from sklearn_restf.preprocessing import HashedTokenEmbedder, TokenStandardScaler, make_windows
from sklearn_restf.pretrained import gpt2_parameters
from tests.test_fuzz_found import LABELS, SHORT, X


def test_a_copy_or_a_pickle_leaves_the_callbacks_of_the_fit_alone():
    model = ResidualTransformerRegressor(**SHORT, callbacks=[ConvergenceMonitor()])
    monitor = model.fit(X, LABELS).callbacks_[0]
    pickle.dumps(model)
    copy.copy(model)
    diagnose(model, X)
    assert model.callbacks_ == [monitor]


def test_a_damaged_checkpoint_is_refused_though_torch_reads_it(tmp_path):
    path = tmp_path / "fit.checkpoint"
    model = ResidualTransformerRegressor(**SHORT, callbacks=[TrainingCheckpoint(path, every=1)])
    weights = model.fit(X, LABELS)._fitted.state["readout"]
    content = bytearray(path.read_bytes())
    at = content.index(weights.tobytes())
    content[at] ^= 1
    path.write_bytes(content)
    assert torch.load(path, weights_only=True)
    with pytest.raises(ValueError, match=r"fit\.checkpoint is no checkpoint .* checksum"):
        model.fit(X, LABELS)


@pytest.mark.parametrize("path", [None, 3, "."], ids=str)
def test_a_checkpoint_needs_the_path_of_a_file(path):
    model = ResidualTransformerRegressor(**SHORT, callbacks=[TrainingCheckpoint(path)])
    with pytest.raises(ValueError, match="path of TrainingCheckpoint"):
        model.fit(X, LABELS)


@pytest.mark.parametrize(
    ("name", "value"), [("n_layer", 10**9), ("n_head", "2"), ("n_embd", None), ("n_inner", -1)]
)
def test_odd_sizes_of_pretrained_models_are_named(tmp_path, name, value):
    config = {"model_type": "gpt2", name: value}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=f"config.json has {name}="):
        gpt2_parameters(tmp_path)


@pytest.mark.parametrize("state", [{}, {"format_version": "1"}, {"format_version": -1}], ids=str)
def test_what_is_no_model_is_refused_when_loaded(state):
    with pytest.raises(ValueError, match="no model of sklearn-restf"):
        FittedModel.__new__(FittedModel).__setstate__(state)


@pytest.mark.parametrize("labels", [["a", "b"] * 3, [1, 2] * 3], ids=["words", "not from zero"])
def test_a_fitted_classifier_is_diagnosed_without_targets(labels):
    model = ResidualTransformerClassifier(**SHORT).fit(X, labels)
    assert diagnose(model, X).sigma_min >= 0


@pytest.mark.parametrize(
    ("name", "value"),
    [("n_samples", 0), ("full", "yes"), ("X", X), ("X", X[None] * np.nan), ("mask", np.ones(3))],
)
def test_unusable_arguments_of_a_diagnosis_are_named(name, value):
    windows = X.reshape(6, 2, 2)
    module = ResidualTransformerRegressor(**SHORT).fit(windows, LABELS).module_
    with pytest.raises(ValueError, match=rf"\b{name}\b"):
        diagnose(module, **{"X": windows, name: value})


def test_a_module_is_diagnosed_on_arrays_torch_cannot_wrap():
    windows = X.reshape(6, 2, 2)
    module = ResidualTransformerRegressor(**SHORT).fit(windows, LABELS).module_
    readonly = windows[::-1]
    readonly.flags.writeable = False
    assert diagnose(module, readonly).sigma_min == diagnose(module, windows).sigma_min


@pytest.mark.parametrize("parameters", [{"every": "3"}, {"n_samples": 1.5}, {"batch_first": "no"},
                                        {"residual_beta": np.nan}, {"module": ["a"]}])  # fmt: skip
def test_unusable_parameters_of_the_monitor_are_named(parameters):
    model = ResidualTransformerRegressor(**SHORT, callbacks=[ConvergenceMonitor(**parameters)])
    with pytest.raises(ValueError, match=f"{next(iter(parameters))!r} parameter"):
        model.fit(X, LABELS)


def test_gaps_between_stamps_of_any_unit():
    stamps = np.array([1.0, 2.0, 3.0, 8.0, 9.0, 10.0])
    for unit in (1e-9, 1.0, 1e9):
        windows = make_windows(X, 0, window=2, horizon=1, time=unit * stamps)
        assert windows.index.tolist() == [unit * 2.0, unit * 9.0]


def test_the_most_frequent_step_in_floating_point_is_counted_up_to_rounding():
    stamps = 0.1 * np.array([1, 2, 3, 4, 5, 6, 56, 57, 58, 108, 158])  # steps of 5.0 are all equal
    frame = np.arange(11.0)[:, None]
    windows = make_windows(frame, 0, window=1, horizon=1, time=stamps)
    assert windows.y.tolist() == [1, 2, 3, 4, 5, 7, 8]


@pytest.mark.parametrize(
    ("name", "value"),
    [("drop_gaps", "no"), ("target", "z"), ("features", []), ("features", ["z"]), ("time", ["x"])],
)
def test_unusable_arguments_of_windows_are_named(name, value):
    arguments = {"frame": pd.DataFrame(X, columns=list("abcd")), "target": "a"} | {name: value}
    with pytest.raises(ValueError, match=rf"\b{name}\b"):
        make_windows(**arguments, window=1, horizon=1)


def test_a_target_of_several_columns_of_one_name_is_refused():
    frame = pd.DataFrame(X, columns=list("abbd"))
    with pytest.raises(ValueError, match="target: the series has several columns of one name"):
        make_windows(frame, "b", window=1, horizon=1)


@pytest.mark.parametrize("unit", [1e-300, 1e-160, 1e160, 1e300])
def test_tokens_of_any_magnitude_are_standardised(unit):
    scaled = TokenStandardScaler().fit_transform(unit * X)
    assert_allclose(scaled, TokenStandardScaler().fit_transform(X))


def test_tokens_whose_spread_overflows_are_refused():
    with pytest.raises(ValueError, match="X contains values too large"):
        TokenStandardScaler().fit([[1.7e308], [-1.7e308], [-1.7e308]])
    with pytest.raises(ValueError, match="X is so far from the training samples"):
        TokenStandardScaler().fit(1e-300 * X).transform(1e300 * X)


def test_a_padding_value_beyond_float32():
    scaler = TokenStandardScaler(padding_value=1e300)
    assert np.isfinite(scaler.fit_transform(X.reshape(6, 2, 2).astype("f4"))).all()


def test_sentences_of_no_word_at_all():
    with pytest.raises(ValueError, match="X has too few n-grams"):
        HashedTokenEmbedder().fit(["", ""])
    tokens = HashedTokenEmbedder().fit_transform(["", "", ""], [0, 1, 0])
    assert all(np.isfinite(sample).all() for sample in tokens)


def test_halves_of_characters_are_hashed():
    texts = ["good \ud800", "bad", "good"]
    assert len(HashedTokenEmbedder(1).fit_transform(texts, [1, 0, 1])[0]) == 2


@pytest.mark.parametrize("pattern", ["(", r"(\w)(\w)", None])
def test_unusable_patterns_of_tokens_are_named(pattern):
    with pytest.raises(ValueError, match="'token_pattern' parameter"):
        HashedTokenEmbedder(token_pattern=pattern).fit(["a", "b"], [0, 1])


@pytest.mark.parametrize("unit", [1e-300, 1e30])
def test_scores_are_in_the_units_of_any_target(unit):
    texts, y = ["a b", "b c", "c", "d a"], np.arange(4.0)
    one = HashedTokenEmbedder(0, target_type="regression", cv=2, random_state=0)
    expected = np.concatenate(one.fit_transform(texts, y))
    found = np.concatenate(one.fit_transform(texts, unit * y).copy())
    assert_allclose(found, (unit * expected.astype("f8")).astype("f4"), rtol=1e-5)
    with pytest.raises(ValueError, match="rescale y"):
        one.fit_transform(texts, 1e300 * y)


@pytest.mark.parametrize(
    ("name", "value"),
    [("encoding", "nope"), ("encoding", "base64"), ("delimiter", ",,"), ("missing_codes", 3),
     ("freq", 5)],
)  # fmt: skip
def test_unusable_arguments_of_a_station_file_are_named(name, value):
    text = b"Date Time,T\n01.01.2009 00:10:00,-8.02\n"
    with pytest.raises((ValueError, TypeError), match=name):
        load_mpi_roof(io.BytesIO(text), **{name: value})


def test_a_packed_file_cut_short_is_named():
    file = io.BytesIO(bz2.compress(b"Date Time,T\n01.01.2009 00:10:00,-8.02\n")[:-6])
    file.name = "roof.csv.bz2"
    with pytest.raises(ValueError, match=r"roof\.csv\.bz2 is compressed and damaged"):
        load_mpi_roof(file)


@pytest.mark.parametrize(
    ("make", "name", "value"),
    [(make_token_regression, "random_state", -1), (make_token_regression, "noise", np.inf),
     (make_token_regression, "singular_values", "1"), (make_token_classification, "flip_y", "1"),
     (make_token_classification, "n_samples", "3"), (make_climate_series, "freq", "often"),
     (make_climate_series, "freq", 5), (make_climate_series, "start", "0001-01-01")],
)  # fmt: skip
def test_unusable_arguments_of_generators_are_named(make, name, value):
    with pytest.raises((ValueError, TypeError), match=name):
        make(**{name: value})


@pytest.mark.parametrize(
    "loss", [[3e299, 2.0, 1e-300], [3.0, np.inf, 1.0], [1e308, 1e-308, 0.0]], ids=str
)
@pytest.mark.parametrize("rate", [0.5, 1e300, 0.0])
def test_losses_and_rates_at_the_edge_of_range_are_drawn(loss, rate):
    pyplot = pytest.importorskip("matplotlib.pyplot", reason="the extra plot is not installed")
    display = ConvergenceDisplay(loss, rate=rate, rate_window=(0, 2), predicted_rate=rate)
    display.plot().figure_.draw_without_rendering()
    pyplot.close("all")


@pytest.mark.parametrize(
    ("make", "arguments", "name"),
    [(ConvergenceDisplay, {"loss": [[1.0]]}, "loss"), (SpectrumDisplay, {}, "Z_start"),
     (ConvergenceDisplay, {"loss": [1.0], "rate_window": (0, 9)}, "rate_window"),
     (AttentionDisplay, {"attention": np.zeros((0, 0))}, "attention"),
     (SpectrumDisplay, {"Z_end": np.ones((2, 1, 1)), "Z_start": np.ones((1, 1, 1))}, "Z_end"),
     (BetaSweepDisplay, {"betas": 3.0}, "betas")],
)  # fmt: skip
def test_what_no_display_can_draw_is_named(make, arguments, name):
    with pytest.raises(ValueError, match=rf"\b{name}\b"):
        make(**arguments)


@pytest.mark.parametrize(
    ("name", "value"), [("sample", 1.5), ("layer", "a"), ("head", [0]), ("ax", 3)]
)
def test_unusable_places_and_axes_are_named(name, value):
    pytest.importorskip("matplotlib", reason="the extra plot is not installed")
    windows = X.reshape(6, 2, 2)
    model = ResidualTransformerRegressor(**SHORT).fit(windows, LABELS)
    with pytest.raises(TypeError, match=rf"\b{name}\b"):
        AttentionDisplay.from_estimator(model, windows, **{name: value})
