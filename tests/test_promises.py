"""What the page "What we promise" reports is what was recorded, and within what is promised."""

import json
import re

import pytest

from tests.conftest import REPOSITORY
from tests.determinism import CHANGES
from tests.soak import LIMITS

RECORDED = json.loads(
    (REPOSITORY / "benchmarks" / "results" / "promises.json").read_text(encoding="utf-8")
)
PAGE = (REPOSITORY / "docs" / "promises.md").read_text(encoding="utf-8")
TEXT = " ".join(PAGE.split())


def test_fuzz():
    fuzz = RECORDED["fuzz"]
    assert fuzz["cases"] >= 20_000
    calls = fuzz["calls"]
    refused = {
        step: sum(n for name, n in calls.items() if re.fullmatch(rf"{step}: (?!done)\w+", name))
        for step in ("fit", "predict")
    }
    assert (
        f"had **{fuzz['cases']:,} cases and no other outcome**: "
        f"{calls['fit: done']:,} fits were made and {refused['fit']:,} refused, "
        f"{calls['predict: done']:,} predictions were made and {refused['predict']:,} refused."
    ) in TEXT


def test_kills_and_interrupts():
    kills, interrupts = RECORDED["kills"], RECORDED["interrupts"]
    assert kills["ended otherwise"] == interrupts["lost"] == 0
    assert (
        f"Fits were killed {kills['kills']} times at random moments, {kills['while writing']} of "
        "them while a checkpoint was being written, and run again: all "
        f"{kills['ended as undisturbed']} that came to their end did so as if undisturbed."
    ) in TEXT
    assert (
        f"Interrupted at {interrupts['interrupts']} random moments: "
        f"{interrupts['warnings']['ConvergenceWarning']} warnings, 0 fits"
    ) in TEXT


@pytest.mark.parametrize("change", CHANGES)
def test_determinism(change):
    entry = RECORDED["determinism"][change]
    promised = CHANGES[change][1]
    assert entry["measured"] <= entry["promised"] == promised
    words = [f"{value:.0e}" if value else "equal" for value in (promised, entry["measured"])]
    assert f"| {change} | {words[0]} | {words[1]} |" in PAGE


def test_memory():
    memory = RECORDED["memory"]
    assert memory["before"] == memory["after"]
    slopes = [memory[call]["bytes a call"] for call in ("fit", "predict")]
    assert all(slope < limit for slope, limit in zip(slopes, LIMITS, strict=True))
    assert f"bytes a call | {slopes[0]:.0f} | {slopes[1]:.0f} |" in PAGE


def test_coverage():
    coverage = RECORDED["coverage"]
    run = coverage["covered_lines"] + coverage["covered_branches"]
    there = coverage["num_statements"] + coverage["num_branches"]
    assert coverage["percent"] == round(100 * run / there, 1) >= 95
    assert (
        f"run **{coverage['percent']} %** of the package's {coverage['num_statements']:,} "
        f"statements and {coverage['num_branches']:,} branches"
    ) in TEXT
