"""A fit that is interrupted keeps the best so far, or nothing."""

import signal
import warnings

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.utils.validation import check_is_fitted
from skorch.callbacks import Callback
from torch.utils._python_dispatch import TorchDispatchMode

from tests.builders import X2D, YR, both, make_regressor
from tests.tools import objective


class InterruptAt(TorchDispatchMode):
    """Ctrl-C at the n-th tensor operation."""

    def __init__(self, n):
        super().__init__()
        self.left = n

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt
        return func(*args, **(kwargs or {}))


def _operations(estimator, y):
    counter = InterruptAt(-1)
    with counter:
        estimator.fit(X2D, y)
    return -1 - counter.left


@both
@pytest.mark.parametrize(
    "parameters",
    [{}, {"learning_rate": 0.02}, {"early_stopping": True}, {"chunk_size": 20}],
    ids=str,
)
def test_interrupt_at_any_moment_keeps_the_best_so_far_or_nothing(make, y, parameters):
    options = {"max_iter": 4, "diagnostics": False, **parameters}
    n_operations = _operations(make(**options), y)
    outcomes = set()
    for moment in np.unique(np.linspace(1, n_operations, 40).astype(int)):
        estimator = make(**options)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                with InterruptAt(moment):
                    estimator.fit(X2D, y)
            except KeyboardInterrupt:
                with pytest.raises(NotFittedError):
                    check_is_fitted(estimator)
                outcomes.add("nothing")
                continue
        assert [w.category for w in caught] == [ConvergenceWarning]
        assert "interrupted" in str(caught[0].message)
        assert estimator.stop_reason_ == "interrupted"
        assert len(estimator.loss_curve_) == estimator.n_iter_ <= 4
        if not estimator.early_stopping:
            assert estimator.loss_ <= estimator.convergence_diagnostics_.loss[-2:].max()
            assert estimator.loss_ == pytest.approx(objective(estimator, X2D, y), rel=1e-9)
        outcomes.add("kept")
    assert "kept" in outcomes


def test_real_ctrl_c_keeps_the_model():
    """A signal, as the terminal sends it."""

    class CtrlC(Callback):
        def on_train_begin(self, net, **kwargs):
            signal.setitimer(signal.ITIMER_REAL, 0.3)

    def interrupt(number, frame):
        raise KeyboardInterrupt

    estimator = make_regressor(max_iter=10**6, callbacks=[("ctrl-c", CtrlC)])
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            estimator.fit(X2D, YR)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert 0 < estimator.n_iter_ < 10**6
    assert estimator.stop_reason_ in ("interrupted", "callback")
    assert estimator.score(X2D, YR) > 0
