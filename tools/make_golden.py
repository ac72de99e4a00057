"""Write the results that ``tests/test_golden.py`` compares with, into ``tests/golden``.

To be run only when results are meant to change: ``python tools/make_golden.py [NAME ...]``.
"""

import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.golden_runs import FOLDER, RUNS, record


def main() -> None:
    """Record the named runs, all of them by default."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(RUNS)}")
    names = parser.parse_args().names or list(RUNS)
    if unknown := set(names) - RUNS.keys():
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    for name in names:
        text = json.dumps(record(name), indent=1) + "\n"
        (FOLDER / f"{name}.json").write_text(text, encoding="utf-8")
        print(FOLDER / f"{name}.json")


if __name__ == "__main__":
    main()
