"""Random calls of functions: arguments of which some are spoilt, and what a call may end in."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from tests.fuzz.data import rarely
from tests.fuzz.judge import (
    Fault,
    check_warnings,
    fingerprint,
    global_state,
    names_in,
    observed,
    outcomes,
)

# what no positive whole number is
NO_COUNT = [0, -1, 1.5, "3", None, True, np.nan, [2]]
NO_FLAG = [None, "no", 2, 0.5]


def called(
    step,
    call,
    *,
    names,
    spoilt=(),
    clashes=(),
    inputs=(),
    draws=False,
    refusals=(ValueError, TypeError),
    warns=(),
):
    """Return the result of a call, or None if it was refused in words that name an argument.

    Parameters
    ----------
    step : str
        What the call is counted as.
    call : callable
        The call.
    names : iterable of str
        The arguments one of which a refusal must name.
    spoilt : iterable of str
        Those spoilt on purpose: the call must be refused, and name one of them.
    clashes : iterable of str
        Those that may be found to clash with others before what is spoilt is looked at.
    inputs : iterable
        What must not be written to.
    draws : bool
        Whether the call may draw from NumPy's generator.
    refusals, warns : tuple of types
        Exceptions and warnings a call may end in.
    """
    spoilt = set(spoilt)
    state, given = global_state(), fingerprint(list(inputs))
    result, error, caught = observed(step, call, refusals)
    if state[draws:] != global_state()[draws:]:
        raise Fault(f"{step}: global state changed")
    if given != fingerprint(list(inputs)):
        raise Fault(f"{step}: an input was written to")
    check_warnings(step, caught, tuple(warns))
    if error is None:
        if spoilt:
            raise Fault(f"{step}: not refused: {sorted(spoilt)}")
        outcomes[f"{step}: done"] += 1
        return result
    expected = spoilt | set(clashes) if spoilt else set(names)
    if not names_in(str(error), expected):
        raise Fault(f"{step}: does not name {sorted(expected)}: {error!r}") from error
    outcomes[f"{step}: {type(error).__name__}"] += 1
    return None


def spoil(draw, invalid, arguments):
    """Give one argument in two cases a value that must be refused; return its name, if any."""
    if not rarely(draw, 2):
        return set()
    name = draw(st.sampled_from(sorted(invalid)))
    arguments[name] = draw(st.sampled_from(invalid[name]))
    return {name}
