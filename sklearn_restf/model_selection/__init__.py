"""Estimators that choose ``residual_beta`` by cross-validation, in the manner of RidgeCV."""

from sklearn_restf.model_selection._cv_estimators import (
    ResidualTransformerClassifierCV,
    ResidualTransformerRegressorCV,
)

__all__ = ["ResidualTransformerClassifierCV", "ResidualTransformerRegressorCV"]
