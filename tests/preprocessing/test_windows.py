"""Windows of a series: no leak, no gap, no missing value, no needless copy."""

import pickle

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.linear_model import Ridge
from sklearn.model_selection import TimeSeriesSplit, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import estimator_checks_generator

from sklearn_restf.preprocessing import SlidingWindows, TokenStandardScaler, make_windows
from tests.builders import ROWS


def oracle(values, target, stamps, window, horizons, stride, sampling, step):
    """Windows by plain loops: X, y and the row of each window's last token."""
    X, y, last_rows = [], [], []
    n = len(values)
    for start in range(0, n, stride):
        rows = [start + j * sampling for j in range(window)]
        targets = [rows[-1] + h for h in horizons]
        if max(targets) >= n:
            break
        through = range(start, max(targets))
        if any(stamps[t + 1] - stamps[t] != step for t in through):
            continue
        if np.isnan(values[rows]).any() or np.isnan(target[targets]).any():
            continue
        X.append(values[rows])
        y.append(target[targets].ravel())
        last_rows.append(rows[-1])
    return np.array(X), np.array(y), np.array(last_rows)


@given(st.data())
def test_equals_a_slow_oracle(data):
    n = data.draw(st.integers(8, 40))
    # The value tells where and when it was, so that any shift or leak shows.
    values = np.arange(n)[:, None] * 10.0 + np.arange(3)
    for row, column in data.draw(
        st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, 2)), max_size=3)
    ):
        values[row, column] = np.nan
    jumps = np.ones(n, dtype=int)
    for row in data.draw(st.lists(st.integers(1, n - 1), max_size=2)):
        jumps[row] = data.draw(st.integers(2, 5))
    stamps = np.cumsum(jumps)
    window = data.draw(st.integers(1, 4))
    sampling = data.draw(st.integers(1, 3))
    stride = data.draw(st.integers(1, 3))
    horizons = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3, unique=True))
    targets = data.draw(st.sampled_from([["b"], ["a", "c"]]))
    frame = pd.DataFrame(
        values, columns=list("abc"), index=pd.Timestamp("2024-01-01") + stamps * pd.Timedelta("1h")
    )
    expected = oracle(
        values, frame[targets].to_numpy(), stamps, window, horizons, stride, sampling, step=1
    )
    if not len(expected[0]):
        with pytest.raises(ValueError, match="window"):
            make_windows(frame, targets, window, horizons, stride, sampling)
        return
    X, y, index = make_windows(frame, targets, window, horizons, stride, sampling)
    np.testing.assert_array_equal(X, expected[0])
    np.testing.assert_array_equal(y, expected[1])
    assert index.equals(frame.index[expected[2]])
    # By construction: what is predicted comes after everything that is seen.
    seen_until = np.nanmax(X.reshape(len(X), -1), axis=1) // 10
    assert (y.min(axis=1) // 10 > seen_until).all()


@pytest.fixture
def series():
    index = pd.date_range("2024-01-01", periods=50, freq="10min")
    values = np.random.default_rng(0).normal(size=(50, 2))
    return pd.DataFrame(values, columns=["T", "p"], index=index)


def test_windows_are_views_of_the_input():
    values = np.random.default_rng(0).normal(size=(1000, 3))
    for options in ({}, {"stride": 3}, {"sampling": 2}, {"stride": 2, "sampling": 6}):
        X, _, _ = make_windows(values, 0, 24, 6, **options)
        assert np.shares_memory(X, values)
        assert not X.flags.writeable
    values = values.astype(np.float32)
    X, y, _ = make_windows(values, 0, 24, 6)
    assert X.dtype == y.dtype == np.float32
    assert np.shares_memory(X, values)
    # Incomplete windows at the ends leave the rest a view.
    values[:5] = np.nan
    X, _, index = make_windows(values, 0, 24, 6)
    assert np.shares_memory(X, values)
    assert index[0] == 5 + 23


def test_shapes_of_targets_and_horizons(series):
    assert make_windows(series, "T", 3, 2).y.shape == (46,)
    assert make_windows(series, ["T"], 3, 2).y.shape == (46, 1)
    assert make_windows(series, "T", 3, [1, 2, 6]).y.shape == (42, 3)
    windows = make_windows(series, ["T", "p"], 3, [1, 6])
    last = series.index.get_indexer(windows.index)
    expected = np.hstack([series.to_numpy()[last + 1], series.to_numpy()[last + 6]])
    np.testing.assert_array_equal(windows.y, expected)


def test_features_choose_the_columns(series):
    windows = make_windows(series, "T", 3, 1, features=["p"])
    np.testing.assert_array_equal(windows.X[0, :, 0], series["p"][:3])
    with pytest.raises(ValueError, match=r"no column .*'q'"):
        make_windows(series, "q", 3, 1)
    with pytest.raises(ValueError, match="no column"):
        make_windows(series.to_numpy(), 2, 3, 1)


def test_a_missing_stamp_is_a_gap_and_can_be_ignored(series):
    cut = series.drop(series.index[20])
    windows = make_windows(cut, "T", 4, 2)
    spans = pd.Timedelta("30min"), pd.Timedelta("20min")
    gap = series.index[20]
    assert not ((windows.index - spans[0] < gap) & (windows.index + spans[1] >= gap)).any()
    assert len(make_windows(cut, "T", 4, 2, drop_gaps=False).X) == 49 - 4 - 2 + 1
    cut.iloc[10] = np.nan
    kept = make_windows(cut, "T", 4, 2, drop_gaps=False)
    assert np.isnan(kept.X).any()
    assert np.isnan(kept.y).any()


def test_calendar_spacing_is_no_gap():
    for freq in ("MS", "ME", "QS", "YS", "B", "h"):
        frame = pd.DataFrame(
            {"a": np.arange(30.0)}, pd.date_range("2020-01-31", periods=30, freq=freq)
        )
        assert len(make_windows(frame, "a", 3, 1).X) == 27, freq
    months = pd.DataFrame(
        {"a": np.arange(30.0)}, pd.date_range("2020-01-01", periods=30, freq="MS")
    )
    months.index.freq = None
    assert len(make_windows(months, "a", 3, 1).X) == 27
    assert len(make_windows(months.drop(months.index[10]), "a", 3, 1).X) < 26


def test_daylight_saving_time_is_no_gap():
    index = pd.date_range("2024-03-30", periods=72, freq="h", tz="Europe/Berlin")
    frame = pd.DataFrame({"a": np.arange(72.0)}, index=pd.DatetimeIndex(list(index)))
    assert len(make_windows(frame, "a", 5, 1).X) == 72 - 5


def test_polars_and_arrays_agree_with_pandas(series):
    cut = series.drop(series.index[[20, 33]])
    expected = make_windows(cut, "T", 4, 2)
    table = pl.DataFrame(
        {"time": cut.index.to_numpy(), "T": cut["T"].to_numpy(), "p": cut["p"].to_numpy()}
    )
    for windows in (
        make_windows(table, "T", 4, 2),
        make_windows(table, "T", 4, 2, time="time"),
        make_windows(cut.reset_index(names="time"), "T", 4, 2, time="time"),
        make_windows(cut.to_numpy(), 0, 4, 2, time=cut.index),
    ):
        np.testing.assert_array_equal(windows.X, expected.X)
        np.testing.assert_array_equal(windows.y, expected.y)
        np.testing.assert_array_equal(windows.index.to_numpy(), expected.index.to_numpy())


def test_nullable_and_integer_columns(series):
    frame = series.assign(k=pd.array([1] * 49 + [pd.NA], dtype="Int64"), b=True)
    X, _, _ = make_windows(frame, "T", 3, 1)
    assert X.dtype == np.float64
    # The last row, of which one feature is missing, is still the target of the last window.
    assert len(X) == 50 - 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: f.iloc[::-1], "increasing order"),
        (lambda f: pd.concat([f, f.iloc[-1:]]), "repeated"),
        (lambda f: f.set_axis([pd.NaT, *f.index[1:]]), "missing"),
        (lambda f: f.iloc[:4], "No window fits"),
        (lambda f: f * np.nan, "holds a NaN"),
        (lambda f: f["T"].to_numpy(), "2-D"),
    ],
)
def test_bad_series_are_named(series, change, message):
    with pytest.raises(ValueError, match=message):
        make_windows(change(series), "T", 4, 2)


def test_bad_parameters_are_named(series):
    for name in ("window", "horizon", "stride", "sampling"):
        for value in (0, 1.5, True, "3", None):
            options = {"window": 3, "horizon": 1, name: value}
            with pytest.raises(ValueError, match=f"'{name}' parameter of make_windows must be an "):
                make_windows(series, "T", **options)
    for horizon in ([], [1, 0], [1.0], np.array([[1]]), "12"):
        with pytest.raises(ValueError, match="or a sequence of them"):
            make_windows(series, "T", 3, horizon)
    with pytest.raises(TypeError, match=r"\['name'\] are not numeric"):
        make_windows(series.assign(name="x"), "T", 3, 1)
    from scipy.sparse import csr_matrix

    with pytest.raises(TypeError, match=r"[Ss]parse"):
        make_windows(csr_matrix(series.to_numpy()), 0, 3, 1)


@pytest.mark.parametrize("convert", [torch.Tensor.bfloat16, torch.Tensor.requires_grad_])
def test_series_may_be_tensors(convert):
    values = np.arange(12.0).reshape(6, 2)
    series = convert(torch.from_numpy(values))
    expected = SlidingWindows(3).fit_transform(values)
    np.testing.assert_array_equal(SlidingWindows(3).fit_transform(series), expected)
    np.testing.assert_array_equal(make_windows(series, 0, 3, 1).X, expected[2:-1])
    for integer in (np.uint8(3), np.int64(3)):
        assert make_windows(values, 0, integer, np.uint8(1)).X.shape == (3, 3, 2)


def test_statistics_of_the_training_block_alone():
    # A level that jumps at the end: a scaler that saw the future would show it.
    values = np.r_[np.zeros(80), np.full(40, 1e3)][:, None] + np.random.default_rng(0).normal(
        size=(120, 1)
    )
    X, y, _ = make_windows(values, 0, 8, 4)
    train = np.arange(60)
    scaler = make_pipeline(TokenStandardScaler(), Ridge()).fit(X[train].reshape(60, -1), y[train])[
        0
    ]
    assert abs(scaler.mean_).max() < 1
    scores = cross_val_score(
        make_pipeline(TokenStandardScaler(token_dim=1), Ridge()),
        X.reshape(len(X), -1),
        y,
        cv=TimeSeriesSplit(n_splits=3, gap=4),
    )
    assert np.isfinite(scores).all()


def test_the_jena_station(real_data):
    file = real_data / "jena_2020.csv.gz"
    if not file.exists():
        pytest.skip(f"no {file.name} in the folder of real data")
    frame = pd.read_csv(file, encoding="latin-1", index_col=0, parse_dates=True)
    frame = frame[~frame.index.duplicated()]
    X, y, index = make_windows(frame, "T (degC)", 24, 36, stride=12, sampling=6)
    assert X.shape[1:] == (24, frame.shape[1])
    assert not np.isnan(X).any()
    temperature = frame["T (degC)"]
    np.testing.assert_array_equal(y, temperature[index + pd.Timedelta("6h")])
    np.testing.assert_array_equal(X[:, 0, 1], temperature[index - pd.Timedelta("23h")])


IN_ORDER = {
    "check_methods_sample_order_invariance": "a window is made of the rows before its own",
    "check_methods_subset_invariance": "a window is made of the rows before its own",
}


CHECKS = [
    pair
    for flatten in (False, True)
    for pair in estimator_checks_generator(
        SlidingWindows(window=3, flatten=flatten), expected_failed_checks=IN_ORDER, mark="xfail"
    )
]


@pytest.mark.parametrize(("estimator", "check"), CHECKS)
def test_sliding_windows_follow_the_contract(estimator, check):
    check(estimator)


def test_sliding_windows_end_with_their_row():
    X = np.random.default_rng(0).normal(size=(30, 2))
    windows = SlidingWindows(window=4, sampling=2).fit_transform(X)
    assert windows.shape == (30, 4, 2)
    for row in range(30):
        rows = np.maximum(row - np.array([6, 4, 2, 0]), 0)
        np.testing.assert_array_equal(windows[row], X[rows])
    padded = SlidingWindows(window=4, padding="nan").fit_transform(X)
    assert np.isnan(padded[0, :3]).all()
    np.testing.assert_array_equal(padded[3:], SlidingWindows(window=4).fit_transform(X)[3:])


def test_sliding_windows_stop_at_a_gap(series):
    cut = series.drop(series.index[20:25])
    for padding in ("edge", "nan"):
        model = SlidingWindows(window=4, padding=padding).fit(cut)
        whole = model.transform(cut)
        parts = np.concatenate([model.transform(cut.iloc[:20]), model.transform(cut.iloc[20:])])
        np.testing.assert_array_equal(whole, parts)


def test_sliding_windows_as_columns(series):
    model = SlidingWindows(window=2, flatten=True).set_output(transform="pandas")
    for other in (model, clone(model), pickle.loads(pickle.dumps(model))):
        frame = other.fit_transform(series)
        assert list(frame.columns) == ["T_lag1", "p_lag1", "T_lag0", "p_lag0"]
        pd.testing.assert_series_equal(
            frame["T_lag0"], series["T"], check_names=False, check_freq=False
        )
    with pytest.raises(ValueError, match="padding"):
        SlidingWindows(padding="zero").fit(series)


def test_gaps_between_stamps_of_any_unit():
    stamps = np.array([1.0, 2.0, 3.0, 8.0, 9.0, 10.0])
    for unit in (1e-9, 1.0, 1e9):
        windows = make_windows(ROWS, 0, window=2, horizon=1, time=unit * stamps)
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
    arguments = {"frame": pd.DataFrame(ROWS, columns=list("abcd")), "target": "a"} | {name: value}
    with pytest.raises(ValueError, match=rf"\b{name}\b"):
        make_windows(**arguments, window=1, horizon=1)


def test_a_target_of_several_columns_of_one_name_is_refused():
    frame = pd.DataFrame(ROWS, columns=list("abbd"))
    with pytest.raises(ValueError, match="target: the series has several columns of one name"):
        make_windows(frame, "b", window=1, horizon=1)
