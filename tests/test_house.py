"""The packages stand one upon another: imports go downwards only."""

import ast
from collections import Counter

import pytest

from tests.conftest import PACKAGES, REPOSITORY

PACKAGE = REPOSITORY / "sklearn_restf"
FILES = sorted(PACKAGE.rglob("*.py"))
TESTS = sorted((REPOSITORY / "tests").rglob("test_*.py"))


def parts(path):
    return path.relative_to(PACKAGE).with_suffix("").parts


def floor(name):
    """Return the height of a package or module of the root, counted from the roof."""
    return PACKAGES.index(name) if name in PACKAGES else -1


def imported(path, package=PACKAGE.name):
    """Return the dotted names within a package that a file imports, wherever it does."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
    split = [name.split(".") for name in names]
    return [rest for first, *rest in split if first == package and rest]


def test_the_root_holds_public_names_and_six_packages():
    private = [path.name for path in PACKAGE.iterdir() if path.name.startswith("_")]
    private = [name for name in private if name not in ("__init__.py", "__pycache__")]
    assert sorted(private) == sorted(PACKAGES[:-1])


@pytest.mark.parametrize("path", FILES, ids=lambda path: "/".join(parts(path)))
def test_imports_go_downwards(path):
    here = floor(parts(path)[0]) if parts(path) != ("__init__",) else -2
    upwards = [".".join(name) for name in imported(path) if floor(name[0]) < here]
    assert not upwards


def test_every_stem_and_class_has_one_meaning():
    stems = Counter(parts(path)[-1].lstrip("_") for path in FILES if path.stem != "__init__")
    classes = Counter(
        node.name
        for path in FILES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
    )
    assert not {name for name, count in (stems | classes).items() if count > 1}


@pytest.mark.parametrize("path", FILES, ids=lambda path: "/".join(parts(path)))
def test_every_module_says_what_it_holds(path):
    assert len(ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))).splitlines()[0]) > 20


def test_package_imports_nothing_private_from_scikit_learn_case_d3():
    private = []
    for file in sorted((REPOSITORY / "sklearn_restf").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("sklearn."):
                names = [*node.module.split("."), *(alias.name for alias in node.names)]
            elif isinstance(node, ast.Import):
                names = [
                    part
                    for alias in node.names
                    if alias.name.startswith("sklearn.")
                    for part in alias.name.split(".")
                ]
            else:
                continue
            private += [f"{file.name}: {name}" for name in names if name.startswith("_")]
    assert private == []


def test_tests_import_no_other_tests():
    found = {part for path in TESTS for name in imported(path, "tests") for part in name}
    assert not {part for part in found if part.startswith("test_")}


def test_tests_stand_in_folders_as_the_packages():
    folders = {path.name for path in (REPOSITORY / "tests").iterdir() if path.is_dir()}
    public = {path.parent.name for path in PACKAGE.glob("[a-z]*/__init__.py")}
    assert folders >= public | {name.strip("_") for name in PACKAGES[:-1]}
