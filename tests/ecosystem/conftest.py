"""The estimators inside other libraries: each test is what a user of that library would write."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_iris


def pytest_collection_modifyitems(items):
    """Mark the tests of this folder; what other libraries deprecate is not ours to mend."""
    here = str(Path(__file__).parent)
    for item in items:
        if str(item.path).startswith(here):
            item.add_marker(pytest.mark.ecosystem)
            item.add_marker(pytest.mark.filterwarnings("default"))


@pytest.fixture(scope="session")
def iris():
    return load_iris(return_X_y=True, as_frame=True)


@pytest.fixture(scope="session")
def employees():
    """A table of dates, categories and numbers, and a salary."""
    random = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "hired": pd.date_range("2020-01-01", periods=90, freq="D"),
            "department": random.choice(["police", "fire", "library"], 90),
            "hours": random.normal(40, 5, 90),
        }
    )
    return frame, frame["hours"] * 20 + 100 * (frame["department"] == "fire")


@pytest.fixture(scope="session")
def daily_series():
    """A weekly pattern on a slow trend."""
    days = pd.date_range("2024-01-01", periods=120, freq="D")
    values = np.sin(np.arange(120) * 2 * np.pi / 7) + 0.01 * np.arange(120)
    return pd.Series(values, index=days, name="y")
