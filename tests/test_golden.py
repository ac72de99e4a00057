"""Results in float64 are what they were: compared with files that only a named command writes.

After a change that is meant to change results: ``python tools/make_golden.py``, and say so in
the change log.
"""

import json

import numpy as np
import pytest
from numpy.testing import assert_allclose

from tests.golden_runs import FOLDER, RUNS, record

#: Relative to each number; the absolute part is for what is zero but for rounding.
TOLERANCE = {"rtol": 1e-10, "atol": 1e-12}
#: Fits to differences of losses, in which rounding of the losses is magnified.
MAGNIFIED = {"rate": 1e-7, "rate_r2": 1e-7}
REMEDY = "if results were meant to change: python tools/make_golden.py"


def numbers(value):
    """Return numbers as an array; None, the NaN of JSON, as NaN."""
    return np.array(value, dtype=float)


@pytest.mark.parametrize("name", RUNS)
def test_results_are_what_they_were(name):
    kept = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    found = record(name)
    assert found.keys() == kept.keys()
    assert found["diagnostics"].keys() == kept["diagnostics"].keys(), REMEDY
    for key, value in kept.pop("diagnostics").items():
        message = f"{name}: diagnostics.{key}; {REMEDY}"
        tolerance = TOLERANCE | ({"rtol": MAGNIFIED[key]} if key in MAGNIFIED else {})
        assert_allclose(
            numbers(found["diagnostics"][key]), numbers(value), **tolerance, err_msg=message
        )
    for key, value in kept.items():
        message = f"{name}: {key}; {REMEDY}"
        assert_allclose(numbers(found[key]), numbers(value), **TOLERANCE, err_msg=message)


def test_every_file_has_its_run():
    assert {path.stem for path in FOLDER.glob("*.json")} == set(RUNS)
