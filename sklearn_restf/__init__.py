"""Residual Transformers as scikit-learn estimators, trained by full-batch gradient descent.

The estimators tell why they converge: see ``convergence_diagnostics_``.
"""

from sklearn_restf._diagnostics import ConvergenceDiagnostics
from sklearn_restf._fit_diagnostics import diagnose
from sklearn_restf._theorem import THEOREM_SETTINGS
from sklearn_restf.classifier import ResidualTransformerClassifier
from sklearn_restf.model_selection import (
    ResidualTransformerClassifierCV,
    ResidualTransformerRegressorCV,
)
from sklearn_restf.regressor import ResidualTransformerRegressor

__version__ = "0.1.0"

__all__ = [
    "THEOREM_SETTINGS",
    "ConvergenceDiagnostics",
    "ResidualTransformerClassifier",
    "ResidualTransformerClassifierCV",
    "ResidualTransformerRegressor",
    "ResidualTransformerRegressorCV",
    "diagnose",
]
