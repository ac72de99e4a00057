"""Write the models that every later release must be able to load, into ``tests/fixtures``.

To be run once for every release, by ``python tools/make_persistence.py``: the folder is named for
the version, and folders of earlier releases stay as they are.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from sklearn_restf import __version__
from tests.persistence_models import write


def main() -> None:
    """Write the folder of the present version."""
    folder = Path(__file__).resolve().parent.parent / "tests" / "fixtures" / "persistence"
    write(folder / __version__)
    print(folder / __version__)


if __name__ == "__main__":
    main()
