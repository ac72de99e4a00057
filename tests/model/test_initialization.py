"""Initial weights, and the way between modules and arrays."""

import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.testing import assert_array_equal

from sklearn_restf._data.tokens import TokenLayout
from sklearn_restf._estimator.fitted_model import FittedModel, check_same_shapes
from sklearn_restf._model import build_module, group_widths, initial_state, is_weight, state_of
from tests.builders import make_config, random_state_of
from tests.reference.equations import is_weight_matrix

FULL = {"layer_norm": True, "positional_encoding": "learned", "n_heads": 2, "n_layers": 2}


def draw(config, seed=0, init="gaussian", init_scale=1.0):
    return initial_state(config, np.random.RandomState(seed), init=init, init_scale=init_scale)


@pytest.mark.parametrize("embedding", ["none", "shared", "grouped"])
def test_what_counts_as_a_weight_is_what_the_oracle_penalises(embedding):
    for name in draw(make_config(embedding=embedding, n_features=9, token_width=3, **FULL)):
        assert is_weight(name) == is_weight_matrix(name), name


@pytest.mark.parametrize("init_scale", [1.0, 0.3])
@pytest.mark.parametrize("init", ["gaussian", "xavier"])
def test_variances(init, init_scale):
    config = make_config(d_model=60, d_ff=90, d_qk=40, n_tokens=2, pooling="flatten")
    state = draw(config, init=init, init_scale=init_scale)
    for name, value in state.items():
        if not is_weight(name):
            assert not value.any()
            continue
        fan_in, fan_out = value.shape
        variance = 1 / fan_in if init == "gaussian" else 2 / (fan_in + fan_out)
        spread = value.std() / (init_scale * np.sqrt(variance))
        assert spread == pytest.approx(1, abs=4 / np.sqrt(2 * value.size)), name
        assert abs(value.mean()) < 4 * value.std() / np.sqrt(value.size)


def test_biases_start_at_zero_norms_at_one_positions_small():
    state = draw(make_config(embedding="shared", **FULL))
    for name, value in state.items():
        if name.endswith(("norm1_weight", "norm2_weight")):
            assert (value == 1).all(), name
        elif name == "position":
            assert 0 < np.abs(value).max() < 0.1
        elif not is_weight(name):
            assert not value.any(), name


def test_fan_in_of_a_group_is_the_width_of_a_group():
    config = make_config(embedding="grouped", token_width=50, n_features=150, d_model=64)
    weight = draw(config)["embedding_weight"]
    assert weight.shape == (3, 50, 64)
    assert weight.std() == pytest.approx(1 / np.sqrt(50), rel=0.05)


def test_fillers_of_narrow_groups_are_zero():
    config = make_config(embedding="grouped", n_tokens=3, token_width=3, n_features=7)
    assert group_widths(config) == [3, 2, 2]
    weight = draw(config)["embedding_weight"]
    assert weight[0].all()
    assert weight[1:, :2].all()
    assert not weight[1:, 2].any()


def test_the_draw_is_reproducible_and_spends_no_global_randomness(random_state_unchanged):
    first, second, other = (draw(make_config(), seed) for seed in (1, 1, 2))
    for name in first:
        assert_array_equal(first[name], second[name])
        assert first[name].dtype == np.float64
    assert (first["readout"] != other["readout"]).all()


def test_there_and_back():
    config = make_config(**FULL)
    state = random_state_of(config, np.random.default_rng(0))
    module = build_module(config, state)
    back = state_of(module)
    assert list(back) == list(state)
    for name, value in state.items():
        assert_array_equal(back[name], value)
    with torch.no_grad():
        module.readout.fill_(0)
    assert state["readout"].all()
    assert back["readout"].all()
    assert not module.training


def test_build_module_casts_and_takes_read_only_arrays():
    config = make_config()
    state = random_state_of(config, np.random.default_rng(0))
    for value in state.values():
        value.flags.writeable = False
    module = build_module(config, state, dtype=torch.float32)
    assert {p.dtype for p in module.parameters()} == {torch.float32}
    assert state_of(module)["readout"].dtype == np.float32


def test_a_fitted_model_is_plain_data():
    config = make_config()
    state = random_state_of(config, np.random.default_rng(0))
    fitted = FittedModel(config, TokenLayout("windows", 4, 3, 3), state, "squared_error", 0.1)
    back = pickle.loads(pickle.dumps(fitted))
    assert back.config == config
    assert back.layout == fitted.layout
    assert_array_equal(back.state["readout"], state["readout"])
    assert b"torch" not in pickle.dumps(fitted)


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"d_ff": 6}, "blocks.0.ffn_in"),
        ({"n_layers": 2}, "blocks.1.query"),
        ({"n_outputs": 3}, "readout"),
        ({"layer_norm": True}, "blocks.0"),
    ],
)
def test_weights_of_another_model_are_refused_by_name(changes, name):
    config = make_config()
    state = random_state_of(config, np.random.default_rng(0))
    check_same_shapes(state, config)
    with pytest.raises(ValueError, match=f"warm_start.*{name}.*shape"):
        check_same_shapes(state, replace(config, **changes))
