"""From validated arrays to tokens: groups, moments, masks, and every form of input."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from sklearn_restf._data import arrays as arrays_module
from sklearn_restf._data.arrays import RawTokens
from sklearn_restf._data.tokens import (
    TokenLayout,
    as_layout,
    check_compatible,
    plan_layout,
    weighted_moments,
)
from tests.reference.equations import group_features

CPU = torch.device("cpu")


def plan(tokens, n_tokens="auto", standardize=False, weight=None):
    weight = np.ones(tokens.n_samples) if weight is None else weight
    return plan_layout(tokens, n_tokens=n_tokens, standardize=standardize, weight=weight)


def batch_of(layout, tokens, rows=slice(None), dtype=torch.float64):
    x, mask = layout.batch(tokens, rows, dtype, CPU)
    return x.numpy(), mask if mask is None else mask.numpy()


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


# --- layouts ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n_features", "n_tokens", "expected"),
    [(3, "auto", 3), (4, "auto", 4), (9, "auto", 4), (100, "auto", 4), (9, 1, 1), (9, 9, 9)],
)
def test_a_table_becomes_groups_of_adjacent_features(n_features, n_tokens, expected):
    layout = plan(RawTokens(normal(5, n_features)), n_tokens)
    assert (layout.kind, layout.n_tokens, layout.max_tokens) == ("table", expected, expected)
    assert layout.token_width == -(-n_features // expected)


@given(st.integers(1, 20), st.data())
def test_groups_are_those_of_array_split(n_features, data):
    n_tokens = data.draw(st.integers(1, n_features))
    tokens = RawTokens(normal(4, n_features))
    layout = plan(tokens, n_tokens)
    x, mask = batch_of(layout, tokens)
    assert mask is None
    assert_array_equal(x, group_features(tokens.values, n_tokens))
    columns = layout.group_columns()
    assert_array_equal(columns[columns < n_features], np.arange(n_features))


def test_more_groups_than_features_are_refused():
    with pytest.raises(ValueError, match=r"n_tokens=4 is more than the 3 feature\(s\) of X"):
        plan(RawTokens(normal(5, 3)), 4)


def test_sequences_keep_their_tokens():
    tokens = RawTokens(normal(5, 3, 2))
    layout = plan(tokens, n_tokens=7)  # a matter of tables
    assert (layout.kind, layout.n_tokens, layout.n_features) == ("windows", 3, 2)
    x, mask = batch_of(layout, tokens)
    assert mask is None
    assert_array_equal(x, tokens.values)
    assert_array_equal(batch_of(layout, tokens, np.array([4, 0]))[0], tokens.values[[4, 0]])


def test_ragged_samples_are_padded_on_the_right_with_a_mask():
    lengths = np.array([1, 3, 2])
    tokens = RawTokens(normal(6, 2), lengths)
    layout = plan(tokens)
    assert (layout.kind, layout.n_tokens, layout.max_tokens) == ("ragged", None, 3)
    x, mask = batch_of(layout, tokens)
    assert_array_equal(mask, [[1, 0, 0], [1, 1, 1], [1, 1, 0]])
    assert_array_equal(x[mask], tokens.values)
    assert not x[~mask].any()
    x, mask = batch_of(layout, tokens, np.array([2, 0]))
    assert_array_equal(mask, [[1, 1], [1, 0]])  # no longer than these samples need
    assert_array_equal(x[0], tokens.values[4:6])
    assert batch_of(layout, tokens, np.array([1]))[1] is None


def test_padding_stays_zero_when_channels_are_centred():
    tokens = RawTokens(5 + normal(6, 2), np.array([1, 3, 2]))
    x, mask = batch_of(plan(tokens, standardize=True), tokens)
    assert not x[~mask].any()
    assert_allclose(x[mask].mean(axis=0), 0, atol=1e-14)


@pytest.mark.parametrize("shape", [(7, 5), (7, 3, 2)])
def test_standardised_channels(shape):
    tokens = RawTokens(100 + 3 * normal(*shape))
    layout = plan(tokens, n_tokens=1, standardize=True)
    x, _ = batch_of(layout, tokens)
    flat = x.reshape(-1, shape[-1])
    assert_allclose(flat.mean(axis=0), 0, atol=1e-12)
    assert_allclose(flat.std(axis=0), 1, rtol=1e-12)


def test_fillers_of_narrow_groups_stay_zero_when_features_are_centred():
    tokens = RawTokens(7 + normal(9, 5))
    x, _ = batch_of(plan(tokens, n_tokens=3, standardize=True), tokens)
    assert x.shape == (9, 3, 2)
    assert not x[:, 2, 1].any()


@pytest.mark.parametrize("dtype", [np.float32, np.int16, np.uint8, bool, ">f8", np.float16])
def test_values_of_any_dtype_are_cast_once_and_not_written_to(dtype):
    values = (normal(6, 4) > 0).astype(dtype)
    values.flags.writeable = False
    tokens = RawTokens(values)
    for standardize in (False, True):
        x, _ = batch_of(plan(tokens, standardize=standardize), tokens, dtype=torch.float32)
        assert x.dtype == np.float32
        x[:] = 3
    assert set(np.unique(values)) == {0, 1}


# --- moments ------------------------------------------------------------------------------------


@settings(max_examples=50)
@given(st.integers(0, 10**6), st.sampled_from([(8, 3), (8, 1), (5, 4, 2)]))
def test_weighted_moments_are_those_of_numpy(seed, shape):
    rng = np.random.default_rng(seed)
    values, weight = rng.standard_normal(shape) * 5 + 2, rng.uniform(0, 3, shape[0])
    mean, scale, _ = weighted_moments(RawTokens(values), weight)
    rows = values.reshape(-1, shape[-1])
    row_weight = np.repeat(weight, len(rows) // len(values))
    expected = np.average(rows, axis=0, weights=row_weight)
    assert_allclose(mean, expected, rtol=1e-11, atol=1e-13)
    variance = np.average((rows - expected) ** 2, axis=0, weights=row_weight)
    assert_allclose(scale, np.sqrt(variance), rtol=1e-11)


def test_missing_values_and_tokens_of_no_weight_do_not_count():
    rng = np.random.default_rng(0)
    values, weight = rng.normal(size=(9, 4, 3)) + 1e8, rng.integers(0, 3, size=(9, 4))
    values[weight == 0] = 1e300  # nor do they set the unit
    values[2:, :, 1] = np.nan
    values[:, :, 2] = np.nan
    mean, scale, seen = weighted_moments(RawTokens(values), weight.astype(float))
    for channel in (0, 1):
        counted = np.repeat(values[..., channel].ravel(), weight.ravel())
        counted = counted[~np.isnan(counted)]
        assert seen[channel] == len(counted)
        np.testing.assert_allclose(mean[channel], counted.mean(), rtol=1e-15)
        np.testing.assert_allclose(scale[channel], counted.std(), rtol=1e-7)
    assert (mean[2], scale[2], seen[2]) == (0, 0, 0)


def test_moments_of_ragged_samples_are_over_tokens():
    lengths = np.array([1, 3])
    values = normal(4, 2)
    weight = np.array([5.0, 1.0])
    layout = plan(RawTokens(values, lengths), standardize=True, weight=weight)
    token_weight = [5, 1, 1, 1]
    mean = np.average(values, axis=0, weights=token_weight)
    assert_allclose(layout.mean, mean, rtol=1e-12)
    variance = np.average((values - mean) ** 2, axis=0, weights=token_weight)
    assert_allclose(layout.scale, np.sqrt(variance), rtol=1e-12)


@pytest.mark.parametrize("shape", [(50, 3), (50, 4, 3)])
def test_moments_do_not_depend_on_the_size_of_the_slices(shape, monkeypatch):
    tokens, weight = RawTokens(normal(*shape)), np.arange(1.0, 51.0)
    whole = weighted_moments(tokens, weight)
    monkeypatch.setattr(arrays_module, "SLICE_BYTES", 100)
    assert len(list(tokens.slices())) > 10
    for left, right in zip(weighted_moments(tokens, weight), whole, strict=True):
        assert_allclose(left, right, rtol=1e-12)


@pytest.mark.parametrize("magnitude", [1e-300, 1e-160, 1e160, 1e300])
def test_moments_of_extreme_magnitudes(magnitude):
    values = normal(20, 3)
    mean, scale, _ = weighted_moments(RawTokens(magnitude * values), np.ones(20))
    assert_allclose(mean / magnitude, values.mean(axis=0), rtol=1e-12)
    assert_allclose(scale / magnitude, values.std(axis=0), rtol=1e-12)
    tokens = RawTokens(magnitude * values)
    x, _ = batch_of(plan(tokens, n_tokens=1, standardize=True), tokens)
    assert_allclose(x[:, 0].std(axis=0), 1, rtol=1e-12)


def test_a_large_offset_costs_no_more_digits_than_it_must():
    values = normal(50, 2)
    _, scale, _ = weighted_moments(RawTokens(values + 1e8), np.ones(50))
    assert_allclose(scale, values.std(axis=0), rtol=1e-7)


@pytest.mark.parametrize("constant", [0.0, 0.1, -3.0, 1e300, 1e-300, 1 / 3])
def test_constant_channels_are_centred_and_not_scaled(constant):
    values = normal(31, 2)
    values[:, 1] = constant
    tokens = RawTokens(values)
    layout = plan(tokens, n_tokens=1, standardize=True, weight=np.linspace(0.1, 1, 31))
    assert layout.scale[1] == 1
    x, _ = batch_of(layout, tokens)
    assert not x[:, 0, 1].any()
    assert np.isfinite(x).all()


def test_a_channel_that_varies_by_rounding_alone_is_constant():
    """0.1 + 0.2 is not 0.3: two spellings of one number are not a signal to be blown up."""
    values = normal(30, 2)
    values[:, 1] = np.where(np.arange(30) % 2, 0.3, 0.1 + 0.2)
    layout = plan(RawTokens(values), n_tokens=1, standardize=True)
    assert layout.scale[1] == 1
    assert layout.scale[0] < 2


def test_a_spread_that_overflows_is_refused_with_the_channel():
    values = np.zeros((4, 3))
    values[:, 1] = [1.7e308, 1.7e308, 1.7e308, -1.7e308]
    with pytest.raises(ValueError, match=r"X .*channel 1 overflows float64. Rescale X"):
        plan(RawTokens(values), standardize=True)


def test_without_standardisation_values_are_left_alone():
    tokens = RawTokens(100 + normal(5, 3))
    layout = plan(tokens)
    assert layout.mean is None
    assert_array_equal(batch_of(layout, tokens)[0][:, :, 0], tokens.values)


# --- samples at prediction ----------------------------------------------------------------------

TABLE = TokenLayout("table", 5, 3, 3)
WINDOWS = TokenLayout("windows", 2, 3, 3)
RAGGED = TokenLayout("ragged", 2, None, 3)


@pytest.mark.parametrize(
    ("layout", "tokens", "words"),
    [
        (TABLE, RawTokens(np.ones((4, 3, 2))), "Model was fitted on a 2-D table"),
        (TABLE, RawTokens(np.ones((4, 5)), np.array([2, 2])), "fitted on a 2-D table"),
        (TABLE, RawTokens(np.ones((4, 6))), "X has 6 features.*expecting 5 features"),
        (WINDOWS, RawTokens(np.ones((4, 6))), "2 features per token; got 2-D X.*token_dim"),
        (WINDOWS, RawTokens(np.ones((4, 3, 1))), "X has 1 features.*Model is expecting 2"),
        (WINDOWS, RawTokens(np.ones((4, 5, 2))), "samples of 5 tokens.*samples of 3 tokens"),
        (WINDOWS, RawTokens(np.ones((5, 2)), np.array([3, 2])), "2 tokens.*of 3 tokens"),
        (RAGGED, RawTokens(np.ones((5, 3)), np.array([3, 2])), "has 3 features.*expecting 2"),
        (RAGGED, RawTokens(np.ones((4, 6))), "got 2-D X"),
    ],
)
def test_samples_of_another_form_are_refused_with_both_numbers(layout, tokens, words):
    with pytest.raises(ValueError, match=words):
        check_compatible(layout, tokens, "Model", fixed=False)


def test_longer_samples_than_seen_are_a_matter_of_learned_positions():
    for tokens in (RawTokens(np.ones((5, 2)), np.array([5])), RawTokens(np.ones((1, 5, 2)))):
        check_compatible(RAGGED, tokens, "Model", fixed=False)
        with pytest.raises(ValueError, match=r"5 tokens, but positional_encoding.*3 positions"):
            check_compatible(RAGGED, tokens, "Model", fixed=True)


def test_lists_and_arrays_are_brought_into_the_form_of_the_fit():
    x = normal(4, 3, 2)
    array, packed = RawTokens(x), RawTokens(x.reshape(12, 2), np.full(4, 3))
    assert_array_equal(as_layout(WINDOWS, packed).values, x)
    assert_array_equal(as_layout(RAGGED, array).values, packed.values)
    assert_array_equal(as_layout(RAGGED, array).lengths, packed.lengths)
    assert as_layout(WINDOWS, array) is array
    assert as_layout(RAGGED, packed) is packed


def test_standardising_overflows_in_silence():
    layout = TokenLayout("table", 1, 1, 1, np.array([-1e308]), np.array([1e-300]))
    assert np.isinf(layout.standardise(np.array([[1.7e308]])))
