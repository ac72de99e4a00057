"""The regressor and the classifier: reading, fitting, predicting, storing."""

from sklearn_restf._estimator.fitted_model import FittedModel
from sklearn_restf._estimator.regression import TargetScaling
