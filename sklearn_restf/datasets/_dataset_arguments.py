"""Arguments that several data sets share, checked so that a message names them."""

from __future__ import annotations

import datetime
from typing import Any

import pandas as pd

from sklearn_restf._data.arrays import validating


def check_interval(freq: Any) -> pd.Timedelta:
    """Return a fixed, positive interval of time."""
    if not isinstance(freq, str | datetime.timedelta):
        raise TypeError(f"freq must be a fixed interval such as '10min', got {freq!r}.")
    try:
        step = pd.Timedelta(freq)
    except ValueError as error:
        raise ValueError(f"freq must be a fixed interval such as '10min', got {freq!r}.") from error
    if not step > pd.Timedelta(0):
        raise ValueError(f"freq must be positive, got {freq!r}.")
    return step


def check_encoding(encoding: Any) -> None:
    """Raise if this is no encoding of text, as base64 is none."""
    if not isinstance(encoding, str):
        raise TypeError(f"encoding must be a name such as 'utf-8', got {encoding!r}.")
    with validating("encoding"):
        try:
            b"  ".decode(encoding)  # of nothing at all Python does not look the encoding up
        except UnicodeDecodeError:
            pass
        except LookupError as error:
            raise ValueError(f"encoding={encoding!r} is unknown, or none of text.") from error
