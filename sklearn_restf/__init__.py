"""Residual Transformers as scikit-learn estimators, trained by full-batch gradient descent.

The estimators tell why they converge: see ``convergence_diagnostics_``.
"""

from sklearn_restf._diagnostics.convergence_diagnostics import ConvergenceDiagnostics
from sklearn_restf._diagnostics.diagnose import diagnose
from sklearn_restf._estimator.classifier import ResidualTransformerClassifier
from sklearn_restf._estimator.regressor import ResidualTransformerRegressor
from sklearn_restf._estimator.theorem_settings import THEOREM_SETTINGS
from sklearn_restf._utils.old_names import register_old_names
from sklearn_restf._utils.show_versions import show_versions
from sklearn_restf.model_selection import (
    ResidualTransformerClassifierCV,
    ResidualTransformerRegressorCV,
)

__version__ = "0.1.0"

__all__ = [
    "THEOREM_SETTINGS",
    "ConvergenceDiagnostics",
    "ResidualTransformerClassifier",
    "ResidualTransformerClassifierCV",
    "ResidualTransformerRegressor",
    "ResidualTransformerRegressorCV",
    "diagnose",
    "show_versions",
]

register_old_names(__name__)
