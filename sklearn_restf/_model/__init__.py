"""The residual Transformer: equations, cheapest forward pass, gradient, losses, initial weights."""

from sklearn_restf._model.module import ModuleConfig

__all__ = ["ModuleConfig"]
