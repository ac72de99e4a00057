"""Warnings that point at the user's line."""

from __future__ import annotations

import sys
import warnings

INNER = ("sklearn_restf", "sklearn", "joblib", "contextlib", "numpy")


def warn(message: str, category: type[Warning]) -> None:
    """Warn on behalf of the first caller outside this package and what stands between."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None:
        if frame.f_globals.get("__name__", "").partition(".")[0] not in INNER:
            break
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)
