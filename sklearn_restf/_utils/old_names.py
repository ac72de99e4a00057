"""Modules that saved models of earlier versions name, and where their classes are now."""

from __future__ import annotations

import sys
from importlib import import_module

OLD_MODULES = {
    "_module": "_model.module",
    "_state": "_estimator.fitted_model",
    "_tokens": "_data.tokens",
    "classifier": "_estimator.classifier",
    "regressor": "_estimator.regressor",
}


def register_old_names(package: str) -> None:
    """Let pickle and skops find the modules of earlier versions under the names of then."""
    for old, new in OLD_MODULES.items():
        sys.modules[f"{package}.{old}"] = import_module(f"{package}.{new}")
