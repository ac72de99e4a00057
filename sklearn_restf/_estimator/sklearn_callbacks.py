"""scikit-learn's own callback protocol (``set_callbacks``), where this scikit-learn has it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sklearn_restf._utils.process_group import alone

try:
    from sklearn.callback import CallbackSupportMixin, with_callbacks
except ImportError:  # scikit-learn < 1.9

    class CallbackSupportMixin:  # type: ignore[no-redef]
        """Nothing to support."""

    def with_callbacks(method: Callable[..., Any]) -> Callable[..., Any]:
        """Return the method unchanged."""
        return method


class FitContext:
    """The fit task and its iterations, reported to scikit-learn's callbacks.

    Parameters
    ----------
    estimator : estimator
        The estimator being fitted.
    X, y : object
        As passed to fit.
    max_iter : int
        Number of iterations announced.
    attributes_of : callable
        Returns the fitted attributes for the net's current weights.
    """

    def __init__(
        self,
        estimator: Any,
        X: Any,
        y: Any,
        max_iter: int,
        attributes_of: Callable[[Any], dict[str, Any]],
    ) -> None:
        self.estimator, self.X, self.y = estimator, X, y
        self.attributes_of = attributes_of
        self.context = estimator._init_callback_context(max_subtasks=max_iter)
        self.context.call_on_fit_task_begin(estimator=estimator, X=X, y=y)

    def begin(self, iteration: int) -> None:
        """Report the start of an iteration."""
        with alone():
            self.task = self.context.subcontext(task_name="iteration")
            self.task.call_on_fit_task_begin(estimator=self.estimator, X=self.X, y=self.y)

    def end(self, iteration: int, net: Any) -> bool:
        """Report the end of an iteration; return whether to stop."""
        with alone():
            return bool(
                self.task.call_on_fit_task_end(
                    estimator=self.estimator,
                    X=self.X,
                    y=self.y,
                    reconstruction_attributes=lambda: self.attributes_of(net),
                )
            )

    def close(self, attributes: dict[str, Any]) -> None:
        """Report the end of fit."""
        self.context.call_on_fit_task_end(
            estimator=self.estimator,
            X=self.X,
            y=self.y,
            reconstruction_attributes=lambda: attributes,
        )
