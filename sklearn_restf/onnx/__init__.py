"""Fitted estimators as ONNX graphs, for serving without Python, torch or scikit-learn."""

from sklearn_restf.onnx._export import to_onnx

__all__ = ["to_onnx"]
