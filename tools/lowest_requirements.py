"""Print the lower bounds of pyproject.toml as exact versions, one a line, for pip."""

import re
import tomllib
from pathlib import Path

PYPROJECT = Path(__file__).resolve().parent.parent / "pyproject.toml"


def lowest_requirements(pyproject: str) -> list[str]:
    """Turn each dependency ``name>=version`` into ``name==version``.

    Parameters
    ----------
    pyproject : str
        Text of a ``pyproject.toml``.

    Returns
    -------
    list of str
        One exact requirement for each dependency.

    Raises
    ------
    ValueError
        If a dependency has no plain lower bound.
    """
    pins = []
    for dependency in tomllib.loads(pyproject)["project"]["dependencies"]:
        match = re.fullmatch(r"([\w.-]+)>=([\w.]+)", dependency)
        if match is None:
            raise ValueError(f"dependency {dependency!r} is not of the form 'name>=version'")
        pins.append("==".join(match.groups()))
    return pins


if __name__ == "__main__":
    print("\n".join(lowest_requirements(PYPROJECT.read_text(encoding="utf-8"))))
