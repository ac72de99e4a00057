"""What arguments that several data sets share may be."""

from __future__ import annotations

import datetime
from typing import Any

import pandas as pd

from sklearn_restf._utils.validation import Constraint


def is_interval(value: Any) -> bool:
    """Tell whether this is a fixed, positive interval of time, or the name of one."""
    try:
        return isinstance(value, str | datetime.timedelta) and pd.Timedelta(value) > pd.Timedelta(0)
    except ValueError:
        return False


def is_encoding(value: Any) -> bool:
    """Tell whether this is the name of an encoding of text, as base64 is none."""
    try:
        b"  ".decode(value)  # of nothing at all Python does not look the encoding up
    except UnicodeDecodeError:
        pass
    except (LookupError, TypeError, ValueError):
        return False
    return True


INTERVAL = Constraint(is_interval, "a fixed, positive interval such as '10min'")
ENCODING = Constraint(is_encoding, "the name of an encoding of text such as 'utf-8'")
