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


# returns the fitted attributes for a net's current weights
AttributesOf = Callable[[Any], dict[str, Any]]


class FitContext:
    """The fit task and its iterations, reported to scikit-learn's callbacks.

    Parameters
    ----------
    estimator : estimator
        The estimator being fitted.
    X, y : object
        As passed to fit.
    """

    def __init__(self, estimator: Any, X: Any, y: Any) -> None:
        self.task = {"estimator": estimator, "X": X, "y": y}
        with alone():
            self.fit = estimator._init_callback_context(max_subtasks=estimator.max_iter)
            self.fit.call_on_fit_task_begin(**self.task)

    @classmethod
    def of(cls, estimator: Any, X: Any, y: Any) -> FitContext | None:
        """Begin to report, if anyone listens."""
        return cls(estimator, X, y) if getattr(estimator, "_skl_callbacks", None) else None

    def hooks(
        self, attributes_of: AttributesOf
    ) -> tuple[Callable[[int], None], Callable[[int, Any], bool]]:
        """Return what to call before and after an iteration; the latter tells whether to stop."""

        def begin(number: int) -> None:
            with alone():
                self.iteration = self.fit.subcontext(task_name="iteration")
                self.iteration.call_on_fit_task_begin(**self.task)

        def end(number: int, net: Any) -> bool:
            with alone():
                return bool(
                    self.iteration.call_on_fit_task_end(
                        **self.task, reconstruction_attributes=lambda: attributes_of(net)
                    )
                )

        return begin, end

    def close(self, attributes: dict[str, Any]) -> None:
        """Report the end of fit."""
        with alone():
            self.fit.call_on_fit_task_end(**self.task, reconstruction_attributes=lambda: attributes)
