"""The regressor and the classifier: reading, fitting, predicting, storing."""
