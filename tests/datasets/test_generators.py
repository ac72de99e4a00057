import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import Ridge

from sklearn_restf.datasets import (
    make_climate_series,
    make_token_classification,
    make_token_regression,
)


def singular_values(sample):
    return np.linalg.svd(sample, compute_uv=False)


@pytest.mark.parametrize(("n_tokens", "n_features"), [(6, 4), (4, 6), (5, 5), (1, 3)])
def test_spectrum_is_exactly_the_chosen_one(n_tokens, n_features):
    chosen = np.linspace(3, 0.01, min(n_tokens, n_features))
    X, _ = make_token_regression(20, n_tokens, n_features, singular_values=chosen, random_state=0)
    assert X.shape == (20, n_tokens, n_features)
    for sample in X:
        np.testing.assert_allclose(singular_values(sample), chosen, rtol=1e-10)


def test_fewer_values_make_a_lower_rank():
    X, _ = make_token_regression(10, 8, 5, singular_values=[2, 1], random_state=0)
    assert {int(np.linalg.matrix_rank(sample)) for sample in X} == {2}


def test_ratio_of_smallest_to_largest():
    X, _ = make_token_regression(10, 8, 5, singular_values=1e-3, random_state=0)
    for sample in X:
        spectrum = singular_values(sample)
        assert spectrum[-1] / spectrum[0] == pytest.approx(1e-3)
        assert np.mean(sample**2) == pytest.approx(1.0)


def test_default_spectrum_is_flat():
    X, _ = make_token_regression(10, 8, 5, random_state=0)
    for sample in X:
        np.testing.assert_allclose(singular_values(sample), np.sqrt(8))


def test_target_shapes():
    sizes = {"n_samples": 12, "n_tokens": 5, "n_features": 3, "random_state": 0}
    assert make_token_regression(**sizes)[1].shape == (12,)
    assert make_token_regression(**sizes, n_targets=2)[1].shape == (12, 2)
    assert make_token_regression(**sizes, target="token")[1].shape == (12, 5)
    assert make_token_regression(**sizes, target="token", n_targets=2)[1].shape == (12, 5, 2)


def test_ragged_sequences():
    X, y = make_token_regression(40, (2, 7), 4, target="token", n_targets=2, random_state=0)
    assert isinstance(X, list)
    assert {len(sample) for sample in X} == set(range(2, 8))
    assert [target.shape for target in y] == [(len(sample), 2) for sample in X]


def test_targets_are_standardized_and_noise_is_added():
    _, clean = make_token_regression(2000, random_state=0)
    _, noisy = make_token_regression(2000, noise=0.5, random_state=0)
    assert clean.mean() == pytest.approx(0, abs=1e-12)
    assert clean.std() == pytest.approx(1)
    assert (noisy - clean).std() == pytest.approx(0.5, rel=0.1)


def test_targets_can_be_learned():
    X, y = make_token_regression(1000, 4, 4, random_state=0)
    X = X.reshape(1000, -1)
    assert Ridge().fit(X[:700], y[:700]).score(X[700:], y[700:]) > 0.5


def test_classes_are_balanced_and_flipped():
    X, y = make_token_classification(90, n_classes=3, random_state=0)
    _, flipped = make_token_classification(90, n_classes=3, flip_y=0.5, random_state=0)
    assert X.shape == (90, 8, 4)
    assert y.dtype == np.int64
    assert np.bincount(y).tolist() == [30, 30, 30]
    assert 0.15 < np.mean(y != flipped) < 0.55


@pytest.mark.parametrize("make", [make_token_regression, make_token_classification])
def test_random_state(make):
    state = np.random.get_state()[1].copy()
    first, second, other = (make(20, random_state=seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first[0], second[0])
    np.testing.assert_array_equal(first[1], second[1])
    assert not np.array_equal(first[0], other[0])
    np.testing.assert_array_equal(np.random.get_state()[1], state)


@pytest.mark.parametrize(
    ("parameters", "error", "message"),
    [
        ({"n_samples": 0}, ValueError, r"'n_samples' parameter.* >= 1"),
        ({"n_tokens": 0}, ValueError, r"'n_tokens' parameter.* >= 1"),
        ({"n_tokens": (5, 3)}, ValueError, "upper end"),
        ({"n_tokens": 2.5}, TypeError, "n_tokens"),
        ({"n_features": 1.5}, TypeError, r"'n_features' parameter.* an int"),
        ({"singular_values": 2.0}, ValueError, r"must lie in \(0, 1\]"),
        ({"singular_values": [1, 1, 1, 1, 1]}, ValueError, "1 to 4 entries"),
        ({"singular_values": [1, -1]}, ValueError, "not negative"),
        ({"singular_values": [1, np.nan]}, ValueError, "finite"),
        ({"target": "pair"}, ValueError, "'target' parameter"),
        ({"noise": -1}, ValueError, "'noise' parameter"),
        ({"n_targets": 0}, ValueError, r"'n_targets' parameter.* >= 1"),
    ],
)
def test_bad_parameters(parameters, error, message):
    with pytest.raises(error, match=message):
        make_token_regression(**parameters)


def test_bad_class_parameters():
    with pytest.raises(ValueError, match=r"'n_classes' parameter.* >= 2"):
        make_token_classification(n_classes=1)
    with pytest.raises(ValueError, match="less than n_classes"):
        make_token_classification(2, n_classes=3)
    with pytest.raises(ValueError, match="'flip_y' parameter"):
        make_token_classification(flip_y=2)


def test_climate_series_has_the_columns_of_the_station(real_data):
    station = pd.read_csv(real_data / "jena_2020.csv.gz", nrows=2)
    assert list(make_climate_series(3).columns) == list(station.columns[1:15])


def test_climate_formulas_hold_for_the_station(real_data):
    """The generated quantities depend on each other as the measured ones do."""
    station = pd.read_csv(real_data / "jena_2009_head.csv")
    generated = make_climate_series(2000, random_state=0)
    vapour = "6.1078 * exp(17.08085 * `{0}` / (234.175 + `{0}`)) - `{1}`"
    for frame in (station, generated):
        for celsius, pressure in (("T (degC)", "VPmax (mbar)"), ("Tdew (degC)", "VPact (mbar)")):
            error = frame.eval(vapour.format(celsius, pressure))
            assert error.abs().max() < 0.02 * frame[pressure].max()
        error = frame.eval("1000 * `VPact (mbar)` / `p (mbar)` - `H2OC (mmol/mol)`")
        assert error.abs().max() < 0.02
        kelvin = frame["T (degC)"] + 273.15
        moist = frame["p (mbar)"] - 0.378 * frame["VPact (mbar)"]
        np.testing.assert_allclose(
            1e5 * moist / (287.05 * kelvin), frame["rho (g/m**3)"], rtol=2e-3
        )


def test_climate_series_is_plausible():
    frame = make_climate_series(2 * 8784, freq="1h", random_state=0)
    assert frame.index.freq == pd.Timedelta("1h")
    assert (frame.dtypes == np.float64).all()
    assert frame.notna().all(axis=None)
    assert frame["rh (%)"].between(0, 100).all()
    assert frame["wd (deg)"].between(0, 360).all()
    assert (frame["max. wv (m/s)"] >= frame["wv (m/s)"]).all()
    temperature = frame["T (degC)"]
    monthly = temperature.groupby(frame.index.month).mean()
    assert monthly[7] > monthly[1] + 10
    hourly = temperature.groupby(frame.index.hour).mean()
    assert hourly[15] > hourly[3] + 3
    assert temperature.autocorr(1) > 0.95


def test_climate_steps_matter_little():
    """A finer series is the same weather seen more often."""
    fine = make_climate_series(6 * 24 * 300, freq="10min", random_state=0)["T (degC)"]
    coarse = make_climate_series(24 * 300, freq="1h", random_state=0)["T (degC)"]
    assert fine.iloc[::6].diff().std() == pytest.approx(coarse.diff().std(), rel=0.1)


def test_climate_gaps_and_missing_values():
    frame = make_climate_series(1000, n_gaps=3, gap_length=10, random_state=0)
    empty = frame.isna().all(axis=1)
    assert 10 <= empty.sum() <= 30
    frame = make_climate_series(1000, missing_fraction=0.1, random_state=0)
    assert frame.isna().mean(axis=None) == pytest.approx(0.1, rel=0.1)
    pd.testing.assert_frame_equal(
        frame, make_climate_series(1000, missing_fraction=0.1, random_state=0)
    )


def test_bad_climate_parameters():
    with pytest.raises(ValueError, match=r"'n_steps' parameter.* >= 1"):
        make_climate_series(0)
    with pytest.raises(ValueError, match="'missing_fraction' parameter"):
        make_climate_series(missing_fraction=1.5)
    with pytest.raises(ValueError, match=r"'gap_length' parameter.* >= 1"):
        make_climate_series(n_gaps=1, gap_length=0)


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
