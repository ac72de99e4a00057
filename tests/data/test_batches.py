"""Chunks, buckets, targets and memory estimates of the samples."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from sklearn_restf import ResidualTransformerRegressor
from sklearn_restf._data import batches as batches_module
from sklearn_restf._data.arrays import RawTokens
from sklearn_restf._data.batches import (
    Batches,
    activation_bytes,
    check_memory,
    groups_of_equal_length,
    row_sets,
    work_per_pass,
)
from tests.builders import (
    FEW_STEPS,
    ROW_LABELS,
    ROWS,
    X3D,
    both,
    make_config,
    make_regressor,
    raw_tokens_and_layout,
)
from tests.tools import ExtraMemory, linux_only, outputs

CPU = torch.device("cpu")


def make_batches(config, tokens, layout, y, weight=None, chunk_size=None, dtype=torch.float64):
    weight = np.ones(tokens.n_samples) if weight is None else weight
    return Batches(
        tokens, layout, y, weight, config=config, chunk_size=chunk_size, dtype=dtype, device=CPU
    )


def samples(n_samples=7, lengths=None, seed=0, **options):
    rng = np.random.default_rng(seed)
    config = make_config(lengths is not None, **options)
    tokens, layout = raw_tokens_and_layout(config, rng, n_samples, lengths)
    return config, tokens, layout, rng.standard_normal((tokens.n_samples, 2))


def all_rows(sets, n_samples):
    return np.concatenate([np.arange(n_samples)[rows] for rows in sets])


@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=300),
    st.one_of(st.none(), st.integers(1, 50)),
    st.booleans(),
)
def test_every_sample_is_in_exactly_one_chunk(lengths, chunk_size, ragged):
    lengths = np.array(lengths)
    if ragged:
        tokens = RawTokens(np.zeros((lengths.sum(), 1)), lengths)
    else:
        tokens = RawTokens(np.zeros((len(lengths), 2, 1)))
    sets = row_sets(tokens, chunk_size)
    assert_array_equal(np.sort(all_rows(sets, len(lengths))), np.arange(len(lengths)))
    if chunk_size is not None:
        assert max(len(np.arange(len(lengths))[rows]) for rows in sets) <= chunk_size


def test_one_chunk_by_default():
    assert row_sets(RawTokens(np.zeros((10, 2, 1))), None) == [slice(0, 10)]
    assert len(row_sets(RawTokens(np.zeros((6, 1)), np.array([1, 2, 3])), None)) == 1


def test_ragged_samples_are_grouped_by_length_so_that_little_is_padded():
    lengths = np.random.default_rng(0).integers(1, 100, 1000)
    sets = groups_of_equal_length(lengths, make_config(ragged=True, d_model=32, d_ff=64), 4e6)
    padded = sum(len(rows) * lengths[rows].max() for rows in sets)
    assert padded < 1.1 * lengths.sum() < 0.7 * len(lengths) * lengths.max()
    for before, after in itertools.pairwise(sets):
        assert lengths[before].max() < lengths[after].min()


def cost_of_groups(groups, config, work_of_calls):
    """Add up what groups of lengths cost, by the definition."""
    per_token = 4 * config.d_model + 2 * config.d_ff
    extra = config.token_width * (config.embedding != "none")
    total = 0.0
    for group in groups:
        T = max(group)
        total += len(group) * T * (config.n_layers * (per_token + 2 * T) + extra) * config.d_model
        total += work_of_calls
    return total


@given(st.lists(st.integers(1, 9), min_size=1, max_size=40), st.floats(1, 1e5))
def test_no_other_grouping_costs_less(lengths, work_of_calls):
    lengths, config = np.array(lengths), make_config(ragged=True, pooling="mean")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batches_module, "TOKENS_OF_CALLS", 0)
        found = groups_of_equal_length(lengths, config, work_of_calls)
    assert_array_equal(np.sort(all_rows(found, len(lengths))), np.arange(len(lengths)))
    distinct = np.unique(lengths)
    best = np.inf
    for cuts in itertools.product([False, True], repeat=len(distinct) - 1):
        label = np.concatenate([[0], np.cumsum(cuts)])[np.searchsorted(distinct, lengths)]
        groups = [lengths[label == i] for i in np.unique(label)]
        best = min(best, cost_of_groups(groups, config, work_of_calls))
    found_cost = cost_of_groups([lengths[rows] for rows in found], config, work_of_calls)
    assert found_cost == pytest.approx(best, rel=1e-12)


def test_many_lengths_are_grouped_in_time():
    lengths = np.random.default_rng(0).integers(1, 200_000, 5000)
    sets = groups_of_equal_length(lengths, make_config(ragged=True), 4e6)
    assert_array_equal(np.sort(np.concatenate(sets)), np.arange(5000))
    assert len(sets) <= batches_module.MAX_LENGTHS


@pytest.mark.parametrize("chunk_size", [None, 3])
def test_batches_hold_tokens_targets_and_weights_of_their_rows(chunk_size):
    config, tokens, layout, y = samples()
    weight = np.arange(1.0, 8.0)
    batches = make_batches(config, tokens, layout, y, weight, chunk_size)
    assert len(batches) == 7
    assert len(batches.row_sets) == (1 if chunk_size is None else 3)
    for batch in batches:
        assert_array_equal(batch.x, tokens.values[batch.rows])
        assert_array_equal(batch.y, y[batch.rows])
        assert_allclose(batch.weight, weight[batch.rows] / 28)
        assert batch.mask is None
        assert batch.x.dtype == batch.y.dtype == batch.weight.dtype == torch.float64
    assert_allclose(sum(float(batch.weight.sum()) for batch in batches), 1)


@pytest.mark.parametrize("chunk_size", [None, 1, 2])
def test_ragged_batches(chunk_size):
    lengths = np.array([2, 3, 1, 3])
    config, tokens, layout, y = samples(lengths=lengths)
    batches = make_batches(config, tokens, layout, y, chunk_size=chunk_size)
    for batch in batches:
        for i, row in enumerate(np.arange(len(batches))[batch.rows]):
            start, length = tokens.offsets[row], lengths[row]
            assert_array_equal(batch.x[i, :length], tokens.values[start : start + length])
            assert not batch.x[i, length:].any()
            real = length if batch.mask is None else int(batch.mask[i].sum())
            assert real == length
            assert_array_equal(batch.y[i], y[row])


@pytest.mark.parametrize("lengths", [[2, 3, 1], [2, 2, 2], [1, 1, 1], [3]])
def test_targets_per_token_of_ragged_samples_are_padded(lengths):
    lengths = np.array(lengths)
    config, tokens, layout, _ = samples(lengths=lengths, pooling="none")
    y = np.random.default_rng(1).standard_normal((lengths.sum(), 2))
    batches = make_batches(config, tokens, layout, y)
    (batch,) = batches
    assert batch.y.shape == (len(lengths), lengths.max(), 2)
    for i, row in enumerate(np.arange(len(batches))[batch.rows]):
        start, length = tokens.offsets[row], lengths[row]
        assert_array_equal(batch.y[i, :length], y[start : start + length])
        assert not batch.y[i, length:].any()


def test_a_single_cast_to_the_training_dtype():
    config, tokens, layout, y = samples()
    (batch,) = make_batches(config, tokens, layout, y, dtype=torch.float32)
    assert batch.x.dtype == batch.y.dtype == batch.weight.dtype == torch.float32
    assert_array_equal(batch.x, tokens.values.astype(np.float32))


def test_batches_are_kept_when_they_fit_and_rebuilt_when_not(monkeypatch):
    config, tokens, layout, y = samples()
    kept = make_batches(config, tokens, layout, y, chunk_size=2)
    assert [a is b for a, b in zip(kept, kept, strict=True)] == [True] * 4
    monkeypatch.setattr(batches_module, "CACHE_BYTES", 0)
    rebuilt = make_batches(config, tokens, layout, y, chunk_size=2)
    assert [a is b for a, b in zip(rebuilt, rebuilt, strict=True)] == [False] * 4
    for left, right in zip(kept, rebuilt, strict=True):
        assert torch.equal(left.x, right.x)


def test_chunks_are_chosen_when_the_graph_would_be_too_large(monkeypatch):
    config, tokens, layout, y = samples(n_samples=50)
    assert make_batches(config, tokens, layout, y).keeps_graph
    assert not make_batches(config, tokens, layout, y, chunk_size=100).keeps_graph
    per_sample = activation_bytes(config, 3, 8)
    monkeypatch.setattr(batches_module, "GRAPH_BYTES", 50 * per_sample - 1)
    monkeypatch.setattr(batches_module, "CHUNK_BYTES", 10 * per_sample)
    batches = make_batches(config, tokens, layout, y)
    assert not batches.keeps_graph
    assert [len(batch.x) for batch in batches] == [10] * 5
    monkeypatch.setattr(batches_module, "CHUNK_BYTES", 1)
    assert len(make_batches(config, tokens, layout, y).row_sets) == 50


def test_inputs_are_not_written_to_and_may_be_read_only():
    config, tokens, layout, y = samples()
    weight = np.ones(7)
    for array in (tokens.values, weight):
        array.flags.writeable = False
    (batch,) = make_batches(config, tokens, layout, y, weight)
    batch.x.fill_(0)
    batch.weight.fill_(0)
    assert tokens.values.all()
    assert weight.all()


def test_a_sample_too_long_for_the_memory_is_refused_with_figures():
    with pytest.raises(MemoryError, match=r"n_samples=3 of 123456 tokens of width 7.*GiB"):
        check_memory(2**60, 3, 123456, 7, CPU)
    check_memory(2**10, 3, 10, 7, CPU)


def test_memory_of_attention_is_quadratic_in_the_number_of_tokens():
    config = make_config(d_model=2, d_ff=1, d_qk=1)
    large, huge = activation_bytes(config, 10_000, 8), activation_bytes(config, 20_000, 8)
    assert huge > 3.9 * large
    assert activation_bytes(config, 100, 4) * 2 == activation_bytes(config, 100, 8)


def test_a_gpu_lends_a_quarter_of_its_free_memory(monkeypatch):
    """Chunks of the size that suits a CPU would leave most of it idle."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (80, 100))
    assert batches_module.spare_bytes(torch.device("cuda")) == 20
    assert batches_module.spare_bytes(torch.device("cpu")) == 0


@linux_only
def test_fit_in_chunks_keeps_memory_within_the_chunk_case_d11():
    """The attention weights of all samples would take 92 MB, several times over."""
    X = np.random.default_rng(0).normal(size=(20_000, 24, 3))
    y = X[:, -1, 0]
    with ExtraMemory() as extra:
        make_regressor(max_iter=1, chunk_size=250, diagnostics=False).fit(X, y)
    assert extra.peak < 100e6


@both
@pytest.mark.parametrize("chunk_size", [1, 7, 64, 1000])
def test_gradient_summed_over_chunks_is_the_full_gradient_case_d11(make, y, chunk_size):
    weights = np.random.default_rng(2).uniform(0.5, 2.0, size=64)
    whole = make().fit(X3D, y, sample_weight=weights)
    chunked = make(chunk_size=chunk_size).fit(X3D, y, sample_weight=weights)
    np.testing.assert_allclose(chunked.loss_curve_, whole.loss_curve_, rtol=1e-9)
    np.testing.assert_allclose(outputs(chunked, X3D), outputs(whole, X3D), rtol=1e-7, atol=1e-9)


def test_fit_that_cannot_fit_in_memory_says_so_before_starting_case_d11():
    """The attention weights of one sample alone would take 1.3 TB."""
    X = np.random.default_rng(0).normal(size=(4, 400_000, 1)).astype("float32")
    with pytest.raises((MemoryError, ValueError)) as caught:
        make_regressor(pooling="mean", max_iter=1, diagnostics=False).fit(X, np.arange(4.0))
    message = str(caught.value)
    assert "4" in message
    assert "400000" in message.replace("_", "").replace(",", "")
    assert any(unit in message for unit in ("bytes", "GB", "GiB", "TB", "TiB"))
    assert "chunk_size" in message or "shorter" in message


def test_sizes_beyond_memory():
    with pytest.raises(MemoryError, match="d_ff"):
        ResidualTransformerRegressor(**FEW_STEPS | {"d_ff": 2**62}).fit(ROWS, ROW_LABELS)


def test_work_grows_with_samples_layers_and_widths():
    x = RawTokens(np.zeros((10, 3, 4)))
    base = work_per_pass(make_config(), x)
    assert work_per_pass(make_config(), RawTokens(np.zeros((20, 3, 4)))) == 2 * base
    assert work_per_pass(make_config(n_layers=3), x) == 3 * base
    assert work_per_pass(make_config(d_ff=500), x) > 10 * base
    ragged = RawTokens(np.zeros((30, 4)), np.full(10, 3))
    assert work_per_pass(make_config(ragged=True), ragged) == base
    table = make_config(embedding="grouped", token_width=2, n_features=5)
    assert work_per_pass(table, RawTokens(np.zeros((10, 5)))) == base
