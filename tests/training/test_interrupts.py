"""Ctrl+C while callbacks are at work, told from their own wish to stop."""

import signal
import threading
import warnings

import pytest
from sklearn.exceptions import ConvergenceWarning
from skorch.callbacks import Callback

from tests.builders import X2D, YR, make_regressor
from tests.tools import objective


def fitted_with(*callbacks):
    return make_regressor(callbacks=list(callbacks)).fit(X2D, YR)


def interrupts(how):
    """Return a callback that does something at the fourth iteration."""

    class Interrupts(Callback):
        def on_epoch_end(self, net, **kwargs):
            if len(net.history) == 4:
                how()

    return Interrupts()


def ctrl_c():
    signal.raise_signal(signal.SIGINT)


def stop():
    raise KeyboardInterrupt


def stop_in_other_words():
    """What a callback makes of Ctrl+C is Ctrl+C."""
    try:
        ctrl_c()
    except KeyboardInterrupt:
        raise KeyboardInterrupt("as you wish") from None


@pytest.fixture(params=["python's", "one's own"])
def handler(request):
    """Return the handler of SIGINT, Python's or one that does the same."""

    def raises(number, frame):
        raise KeyboardInterrupt

    own = signal.default_int_handler if request.param == "python's" else raises
    before = signal.signal(signal.SIGINT, own)
    yield own
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(
    ("how", "reason"),
    [(ctrl_c, "interrupted"), (stop_in_other_words, "interrupted"), (stop, "callback")],
)
def test_ctrl_c_in_a_callback_is_told_from_its_wish_to_stop(handler, how, reason):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        estimator = fitted_with(interrupts(how))
    assert (estimator.stop_reason_, estimator.n_iter_) == (reason, 4)
    assert bool(caught) == (reason == "interrupted")
    assert objective(estimator, X2D, YR) == pytest.approx(min(estimator.loss_curve_), rel=1e-9)
    assert signal.getsignal(signal.SIGINT) is handler


def test_a_handler_that_goes_on_is_called_and_training_goes_on():
    heard = []
    before = signal.signal(signal.SIGINT, lambda number, frame: heard.append(number))
    try:
        estimator = fitted_with(interrupts(ctrl_c))
    finally:
        signal.signal(signal.SIGINT, before)
    assert heard == [signal.SIGINT]
    assert (estimator.stop_reason_, estimator.n_iter_) == ("max_iter", 20)


def test_the_handler_is_put_back_after_an_error(handler):
    def fail():
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fitted_with(interrupts(fail))
    assert signal.getsignal(signal.SIGINT) is handler


def test_a_callback_may_handle_ctrl_c_itself(handler):
    """For as long as training takes."""

    class Handles(Callback):
        def on_train_begin(self, net, **kwargs):
            self.heard = []
            self.before = signal.signal(signal.SIGINT, lambda *call: self.heard.append(call))

        def on_train_end(self, net, **kwargs):
            signal.signal(signal.SIGINT, self.before)
            del self.before

    handles = Handles()
    estimator = fitted_with(handles, interrupts(ctrl_c))
    assert len(estimator.callbacks_[0].heard) == 1
    assert estimator.n_iter_ == 20
    assert signal.getsignal(signal.SIGINT) is handler


def test_ctrl_c_in_a_fit_that_a_callback_makes_ends_that_one(handler):
    inner = []

    def fit():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            inner.append(fitted_with(interrupts(ctrl_c)))

    outer = fitted_with(interrupts(fit))
    assert [model.stop_reason_ for model in inner] == ["interrupted"]
    assert (outer.stop_reason_, outer.n_iter_) == ("max_iter", 20)
    assert signal.getsignal(signal.SIGINT) is handler


def test_in_another_thread_a_callback_may_stop():
    found = []
    thread = threading.Thread(target=lambda: found.append(fitted_with(interrupts(stop))))
    thread.start()
    thread.join()
    assert (found[0].stop_reason_, found[0].n_iter_) == ("callback", 4)
