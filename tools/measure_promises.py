"""Measure what the page "What we promise" reports, into ``benchmarks/results/promises.json``.

    python tools/measure_promises.py [fuzz] [kills] [interrupts] [determinism] [memory] [coverage]

All parts take some forty minutes on one core; parts that are not named keep their figures.
"""

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
RESULTS = ROOT / "benchmarks" / "results" / "promises.json"
ENVIRONMENT = os.environ | {
    "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"
}  # fmt: skip


def run(*command: object) -> str:
    """Run a Python program of this repository; return what it printed."""
    code = [sys.executable, *map(str, command)]
    done = subprocess.run(code, env=ENVIRONMENT, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(f"{command}: {done.stdout}")
    return done.stdout


def fuzz() -> dict[str, object]:
    """Random cases, none of which ended otherwise than it may."""
    printed = run("-m", "pytest", "-q", "-m", "fuzz", "tests/fuzz")
    return read_fuzz(printed)


def read_fuzz(printed: str) -> dict[str, object]:
    """Read what the randomised search printed, of fits, of searches and of other areas."""
    found: dict[str, object] = {}
    pattern = r"(judge\w*), seed (\d+): (\d+) cases; .*\n((?: +\d+  .+\n)+)"
    for name, seed, cases, lines in re.findall(pattern, printed):
        calls = {what: int(n) for n, what in re.findall(r"^ +(\d+)  (.+)$", lines, re.M)}
        entry = {"seed": int(seed), "cases": int(cases), "calls": calls}
        if name == "judge":
            found |= entry
        elif name == "judge_search":
            found["searches"] = entry
        else:
            found.setdefault("areas", {})[name.removeprefix("judge_")] = entry
    return found


def kills(times: int = 50) -> dict[str, object]:
    """Fits killed at random moments that went on."""
    with tempfile.TemporaryDirectory() as folder:
        return json.loads(run("tests/killing.py", times, 50, folder))


def interrupts(times: int = 50) -> dict[str, object]:
    """Fits interrupted by a signal at random moments."""
    outcomes = json.loads(run("tests/interrupting.py", times, 1))
    lost = [o for o in outcomes if o["stop_reason"] != "interrupted" or not o["best"]
            or not o["lengths agree"] or not o["same as that many iterations"]]  # fmt: skip
    warned = Counter(name for o in outcomes for name in o["warnings"])
    return {"interrupts": times, "lost": len(lost), "warnings": dict(warned)}


def determinism() -> dict[str, object]:
    """Largest differences by what was changed, in units of the spread of the predictions."""
    from tests.determinism import CHANGES, RUNS, difference, output

    found = {}
    for name in RUNS:
        expected = output(name)
        for change, (how, promised) in CHANGES.items():
            entry = found.setdefault(change, {"promised": promised, "measured": 0.0})
            entry["measured"] = max(entry["measured"], difference(how(name), expected))
    return found


def memory() -> dict[str, object]:
    """Slopes of memory, open files and threads over many calls in one process."""
    return {"fits": 200, "predicts": 10_000, **json.loads(run("tests/soak.py", 200, 10_000))}


def coverage() -> dict[str, object]:
    """Lines and branches of the package that the quick tests run; coverage slows them down."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "coverage.json"
        run(
            *("-m", "pytest", "-q", "-n", os.cpu_count(), "--timeout", 600),
            *("-m", "not slow and not fuzz", "--cov", f"--cov-report=json:{report}"),
        )
        totals = json.loads(report.read_text(encoding="utf-8"))["totals"]
    names = ("num_statements", "covered_lines", "num_branches", "covered_branches")
    percent = round(totals["percent_covered"], 1)
    return {"percent": percent} | {name: totals[name] for name in names}


PARTS = {part.__name__: part for part in (fuzz, kills, interrupts, determinism, memory, coverage)}


def main() -> None:
    """Measure the named parts, all of them by default."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}")
    names = parser.parse_args().parts or list(PARTS)
    if unknown := set(names) - PARTS.keys():
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    os.environ.update(ENVIRONMENT)
    found = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    for name in names:
        found[name] = PARTS[name]()
        print(name, json.dumps(found[name]))
    import torch

    found["environment"] = {
        "python": platform.python_version(), "torch": torch.__version__,
        "machine": platform.machine(), "system": platform.system(),
    }  # fmt: skip
    RESULTS.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
