"""A generated series that looks like a weather station's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from scipy.signal import lfilter
from sklearn.utils import check_random_state

from sklearn_restf._data.arrays import validating
from sklearn_restf._utils.validation import RANDOM_STATE, check_arguments, integer, real
from sklearn_restf.datasets._dataset_arguments import INTERVAL


@check_arguments(
    n_steps=[integer(1)],
    freq=[INTERVAL],
    n_gaps=[integer(0)],
    gap_length=[integer(1)],
    missing_fraction=[real(0, 1)],
    random_state=[RANDOM_STATE],
)
def make_climate_series(
    n_steps: int = 1440,
    *,
    start: str | pd.Timestamp = "2020-01-01",
    freq: str | pd.Timedelta = "10min",
    n_gaps: int = 0,
    gap_length: int = 6,
    missing_fraction: float = 0.0,
    random_state: int | np.random.RandomState | None = None,
) -> pd.DataFrame:
    """Generate a weather series with the columns of the Jena climate series.

    Temperature has a yearly and a daily cycle and weather of several days on top; humidity,
    vapour pressures, density and potential temperature follow from temperature, dew point
    and pressure by the usual formulas. Not a climate model: data for examples and tests
    that look like a station's.

    Parameters
    ----------
    n_steps : int, default=1440
        Number of rows; 1440 are ten days of ten-minute steps.
    start : str or Timestamp, default="2020-01-01"
        The first stamp.
    freq : str or Timedelta, default="10min"
        Interval between rows.
    n_gaps : int, default=0
        Number of stretches in which all columns are NaN, at random places (which may
        overlap).
    gap_length : int, default=6
        Rows of such a stretch.
    missing_fraction : float, default=0.0
        Fraction of single values that are NaN, at random places.
    random_state : int, RandomState instance or None, default=None
        Pass an int for the same data every time.

    Returns
    -------
    frame : DataFrame of shape (n_steps, 14)
        In float64, on a regular :class:`~pandas.DatetimeIndex`.

    Raises
    ------
    ValueError
        If a parameter is out of its range.

    See Also
    --------
    fetch_jena_climate : The measured series.

    Examples
    --------
    >>> from sklearn_restf.datasets import make_climate_series
    >>> frame = make_climate_series(144, random_state=0)
    >>> frame.shape
    (144, 14)
    >>> list(frame.columns[:3])
    ['p (mbar)', 'T (degC)', 'Tpot (K)']
    """
    random = check_random_state(random_state)
    step = pd.Timedelta(freq)
    with validating("start"):
        index = pd.date_range(start, periods=n_steps, freq=step, name="time", unit="ns")
    hours_per_step = step / pd.Timedelta("1h")

    def weather(hours: float) -> np.ndarray:
        return _autoregressive(n_steps, hours_per_step / hours, random)

    # -1 in the middle of January and just before sunrise, +1 half a period later.
    season = -np.cos(2 * np.pi * (index.day_of_year.to_numpy() - 15) / 365.25)
    day_hour = ((index - index.normalize()) / pd.Timedelta("1h")).to_numpy()
    daytime = -np.cos(2 * np.pi * (day_hour - 3) / 24)

    pressure = 989.0 + 8.0 * weather(60)
    temperature = 9.5 + 9.5 * season + (3.0 + 1.5 * season) * daytime
    temperature += 3.5 * weather(72) + 0.5 * weather(2)
    dew_point = temperature - 4.0 * np.exp(0.6 * weather(24)) * (1.0 + 0.6 * daytime)
    saturation, vapour = _vapour_pressure(temperature), _vapour_pressure(dew_point)
    kelvin = temperature + 273.15
    wind = 1.9 * np.exp(0.6 * weather(8))
    columns = {
        "p (mbar)": pressure,
        "T (degC)": temperature,
        "Tpot (K)": kelvin * (1000.0 / pressure) ** 0.286,
        "Tdew (degC)": dew_point,
        "rh (%)": 100.0 * vapour / saturation,
        "VPmax (mbar)": saturation,
        "VPact (mbar)": vapour,
        "VPdef (mbar)": saturation - vapour,
        "sh (g/kg)": 622.0 * vapour / (pressure - 0.378 * vapour),
        "H2OC (mmol/mol)": 1000.0 * vapour / pressure,
        "rho (g/m**3)": 1e5 * (pressure - 0.378 * vapour) / (287.05 * kelvin),
        "wv (m/s)": wind,
        "max. wv (m/s)": wind * (1.4 + 0.2 * np.abs(weather(1))),
        "wd (deg)": (200.0 + 70.0 * weather(24)) % 360.0,
    }
    values = np.column_stack(list(columns.values()))
    for first in random.randint(n_steps, size=n_gaps):
        values[first : first + gap_length] = np.nan
    values[random.uniform(size=values.shape) < missing_fraction] = np.nan
    return pd.DataFrame(values, index=index, columns=list(columns))


def _autoregressive(n_steps: int, rate: float, random: Any) -> np.ndarray:
    """Return a stationary first-order autoregressive series of standard deviation one."""
    memory = np.exp(-rate)
    shocks = random.standard_normal(n_steps)
    shocks[1:] *= np.sqrt(1.0 - memory**2)
    return lfilter([1.0], [1.0, -memory], shocks)


def _vapour_pressure(celsius: np.ndarray) -> np.ndarray:
    """Return the saturation water vapour pressure in mbar by Magnus' formula."""
    return 6.1078 * np.exp(17.08085 * celsius / (234.175 + celsius))
