"""Arguments of functions are refused in words that name them, however they are passed."""

import inspect

import numpy as np
import pytest

from sklearn_restf._utils.validation import NONE, check_arguments, integer, one_of


@check_arguments(size=[integer(1)], kind=[NONE, one_of("wide")])
def build(size, kind=3, *rest):
    """Build."""
    return size, kind, rest


@pytest.mark.parametrize("call", [lambda: build(0), lambda: build(size=0), lambda: build(0, None)])
def test_an_argument_is_checked_however_it_is_passed(call):
    with pytest.raises(ValueError, match=r"'size' parameter of build must be an int >= 1. Got 0"):
        call()
    with pytest.raises(TypeError, match="'kind' parameter of build must be None or 'wide'"):
        build(1, "narrow")


def test_a_checked_function_stays_what_it_was():
    assert build(2, None, 5) == (2, None, (5,))
    assert build(np.int64(2)) == (2, 3, ())  # what stands in for a missing argument is no input
    assert build.__doc__ == "Build."
    assert list(inspect.signature(build).parameters) == ["size", "kind", "rest"]
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'size'"):
        build()
