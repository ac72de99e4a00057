"""What the documentation shows runs, and what it says of the public names is complete."""

import doctest
import importlib
import inspect
import json
import re
import sys
import warnings
from pathlib import Path
from textwrap import dedent

import pytest

from tests.conftest import PACKAGES, REPOSITORY

DOCS = REPOSITORY / "docs"
PAGES = [
    *sorted(REPOSITORY.glob("*.md")),
    *sorted(
        page
        for page in DOCS.rglob("*.md")
        if not {"_build", "generated", "auto_examples"} & set(page.relative_to(DOCS).parts)
    ),
]
BLOCK = re.compile(r"^```(python|pycon)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
NUMBER = re.compile(r"(?<![\w.])[-+]?\d+\.\d*(?:e[-+]?\d+)?(?![\w.])")
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
OPTIONAL = {
    "saving_and_serving.md": ("onnxruntime", "skops"),
    "ecosystem.md": ("polars",),
}


class RoughNumbers(doctest.OutputChecker):
    """Take decimal fractions for equal within 5 %: training rounds differently elsewhere."""

    def check_output(self, want, got, optionflags):
        if super().check_output(want, got, optionflags):
            return True
        expected, found = (list(map(float, NUMBER.findall(text))) for text in (want, got))
        return found == pytest.approx(expected, rel=0.05) and super().check_output(
            NUMBER.sub("#", want), NUMBER.sub("#", got), optionflags
        )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_code_on_the_page_runs(page, tmp_path, monkeypatch):
    for package in OPTIONAL.get(page.name, ()):
        pytest.importorskip(package)
    pytest.importorskip("matplotlib").use("agg")
    monkeypatch.chdir(tmp_path)
    text = page.read_text(encoding="utf-8")
    namespace = {"__name__": "__main__"}
    parser = doctest.DocTestParser()
    runner = doctest.DocTestRunner(RoughNumbers(), verbose=False, optionflags=FLAGS)
    for block in BLOCK.finditer(text):
        line = text.count("\n", 0, block.start()) + 1
        if block[1] == "python":
            # blank lines, so that a traceback names the line of the page
            exec(compile("\n" * line + block[2], str(page), "exec"), namespace)
        else:
            test = parser.get_doctest(block[2], {}, page.name, str(page), line)
            test.globs = namespace
            report: list[str] = []
            runner.run(test, out=report.append, clear_globs=False)
            assert not runner.failures, "".join(report)
    close_figures()


def test_readme_shows_what_its_code_prints(capsys):
    readme = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    code, shown = re.search(
        r"```python\n(.*?)```\n\nprints\n\n(.*?)\n(?=\S)", readme, re.DOTALL
    ).groups()
    exec(code, {})
    printed = capsys.readouterr().out
    assert RoughNumbers().check_output(dedent(shown), printed, FLAGS), printed


def close_figures():
    pyplot = sys.modules.get("matplotlib.pyplot")
    if pyplot:
        pyplot.close("all")


def test_code_is_marked_as_such():
    """A block in another language, or in none, would not be tested."""
    for page in PAGES:
        fences = re.findall(r"^```(\S*)", page.read_text(encoding="utf-8"), re.MULTILINE)
        opened = fences[::2]
        allowed = {"python", "pycon"}
        unknown = [name for name in opened if name not in allowed and not name.startswith("{")]
        assert not unknown, f"{page.name}: {unknown}"


def test_figures_of_the_readme_are_those_recorded():
    results = recorded("reproduce_jena-beta")
    readme = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| [\w ,]+ \(([A-D])\) \| (.*) \|$", readme, re.MULTILINE)
    assert len(rows) == len(results)
    for problem, cells in rows:
        found = results[problem]
        columns = [found["betas"].index(beta) for beta in (0.0, 0.5, 1.0)]
        steps = found["shared"]["loss"], found["own best step"]["loss"]
        expected = [f"{losses[column][-1]:.2g}" for losses in steps for column in columns]
        assert cells.split(" | ") == expected


def recorded(name):
    """Return the results of a benchmark."""
    path = REPOSITORY / "benchmarks" / "results" / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8"))["results"]


def table_rows(page):
    """Return the cells of every table row of a page, by the first of them; bold is left out."""
    lines = (DOCS / page).read_text(encoding="utf-8").replace("*", "").splitlines()
    rows = [line.strip("| ").split(" | ") for line in lines if line.startswith("| ")]
    return {row[0].replace("`", ""): row[1:] for row in rows}


def short(value):
    return f"{value:.3f}".removeprefix("0")


def test_figures_of_the_tables_are_those_recorded():
    rows = table_rows("user_guide/tables.md")
    for name, found in recorded("defaults")["data_sets"].items():
        mlp = "MLP, y scaled" if "MLP, y scaled" in found else "MLP"
        scores = [short(found[who]["score_mean"]) for who in ("ours", mlp, "linear", "boosting")]
        assert rows[name] == [*scores, f"{found['ours']['fit_seconds_mean']:.2f}"]


def test_figures_of_the_forecasts_are_those_recorded():
    rows = table_rows("user_guide/windows.md")
    results = recorded("jena")
    names = {
        "Ridge, penalty and change or level chosen in training": "ridge, chosen",
        "the same, best on test": "ridge, best on test",
        "HistGradientBoostingRegressor on the change": "boosting",
        "MLPRegressor, y scaled": "MLP",
        "ours, defaults, on the level": "ours, defaults",
        "ours, chosen in training": "ours, chosen",
    }
    hours = rows["hours ahead"]
    assert rows["persistence"] == [short(results[f"{h} h"]["persistence"]) for h in hours]
    for row, name in names.items():
        assert rows[row] == [short(results[f"{h} h"][name]["mean"]) for h in hours]
    six = results["6 h"]
    readme = " ".join((REPOSITORY / "README.md").read_text(encoding="utf-8").split())
    assert (
        f"persistence {six['persistence']:.2f}, MLP {six['MLP']['mean']:.2f}, "
        f"ours untuned {six['ours, defaults']['mean']:.2f}, "
        f"Ridge {six['ridge, chosen']['mean']:.2f}, "
        f"ours chosen in training {six['ours, chosen']['mean']:.2f}, "
        f"gradient boosting {six['boosting']['mean']:.2f}"
    ) in readme


def test_figures_of_the_sentences_are_those_recorded():
    rows = table_rows("user_guide/text.md")
    found = recorded("sst2")
    names = {
        "bag of words, logistic regression": "bag of words + logistic regression",
        "tf-idf of bigrams, logistic regression": "tf-idf of bigrams + logistic regression",
        "HashedTokenEmbedder, ours": "ours, hashed tokens",
        "mean of MiniLM's token features, logistic regression": (
            "mean of MiniLM's tokens + logistic regression"
        ),
        "MiniLM's token features, ours": "ours, MiniLM",
    }
    for row, name in names.items():
        value = found[name]["mean"] if isinstance(found[name], dict) else found[name]
        assert rows[row] == [short(value)]


def test_links_between_pages_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            path = (page.parent / target).resolve()
            if "auto_examples" in path.parts:  # written by the build from the script of that name
                path = REPOSITORY / "examples" / Path(path.name).with_suffix(".py")
                path = path.parent if path.name == "index.py" else path
            assert path.exists(), f"{page.name} links to {target}"


def test_files_that_are_named_are_there():
    for page in (REPOSITORY / "CONTRIBUTING.md", DOCS / "how_it_is_built.md"):
        named = re.findall(
            r"`((?:sklearn_restf|tests|benchmarks|tools|\.github)/[\w./]+)`",
            page.read_text(encoding="utf-8"),
        )
        missing = [path for path in named if not (REPOSITORY / path).exists()]
        assert named
        assert not missing, f"{page.name} names {missing}"


# --- the reference -------------------------------------------------------------------------


def documented_names():
    """Return the names that the reference lists, fully qualified."""
    names, module = [], ""
    for line in (DOCS / "api.md").read_text(encoding="utf-8").splitlines():
        if line.startswith(".. currentmodule:: "):
            module = line.removeprefix(".. currentmodule:: ").strip()
        elif re.fullmatch(r"   [\w.]+", line):
            names.append(f"{module}.{line.strip()}")
    return names


def resolve(name):
    """Return the object of a dotted name."""
    parts = name.split(".")
    for n in range(len(parts) - 1, 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:n]))
        except ModuleNotFoundError:
            continue
        for part in parts[n:]:
            found = getattr(found, part)
        return found
    raise AssertionError(name)


def test_reference_lists_every_public_name():
    documented = {id(resolve(name)) for name in documented_names()}
    missing = []
    for module_name in (
        "sklearn_restf",
        *(f"sklearn_restf.{part}" for part in ("inspection", "preprocessing", "datasets")),
        *(f"sklearn_restf.{part}" for part in ("callbacks", "exceptions", "onnx")),
    ):
        module = importlib.import_module(module_name)
        missing += [
            f"{module_name}.{name}"
            for name in module.__all__
            if callable(getattr(module, name)) and id(getattr(module, name)) not in documented
        ]
    assert not missing


# What is not asked for, and why.
EVERYWHERE = {
    "ES01": "the summary may say it all",
    "RT02": "scikit-learn's habit of naming what is returned",
    "PR08": "a description may begin with the name of a package",
}
OF_METHODS = {
    "EX01": "the example of the class shows the methods",
    "SA01": "the methods of a class are listed together",
}
OF_RECORDS = {"PR01": "the fields are described as attributes"}
OF_SEARCHES = {"PR03": "shared parameters are described in groups"}


def methods_of(name):
    """Return the public methods and properties of a class that this package defines."""
    cls = resolve(name)
    for attribute in dir(cls):
        member = inspect.getattr_static(cls, attribute)
        function = getattr(member, "__func__", getattr(member, "fget", member))
        function = inspect.unwrap(function) if callable(function) else function
        if attribute.startswith("_") or not inspect.isfunction(function):
            continue
        if not function.__module__.startswith("sklearn_restf"):
            continue
        if attribute.startswith("on_"):  # skorch calls these, and its manual describes them
            continue
        yield f"{name}.{attribute}"


def complaints(name, excused):
    """Return what numpydoc finds wrong with a docstring."""
    validate = pytest.importorskip("numpydoc.validate", reason="the extra `docs` is not installed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        errors = validate.validate(name)["errors"]
    return [f"{name}: {code} {words}" for code, words in errors if code not in excused]


@pytest.mark.parametrize("name", documented_names())
def test_docstrings_are_complete(name):
    excused = {*EVERYWHERE, "SA01"}
    found = resolve(name)
    is_record = hasattr(found, "__dataclass_fields__") or hasattr(found, "_fields")
    excused |= set(OF_RECORDS) if is_record else set()
    excused |= set(OF_SEARCHES) if name.endswith("CV") else set()
    wrong = complaints(name, excused)
    if inspect.isclass(found):
        for method in methods_of(name):
            wrong += complaints(method, {*EVERYWHERE, *OF_METHODS})
    assert not wrong, "\n".join(wrong)


# --- the picture of the parts --------------------------------------------------------------


@pytest.fixture
def architecture(monkeypatch):
    monkeypatch.syspath_prepend(DOCS / "_extensions")
    return importlib.import_module("architecture")


def test_picture_shows_the_packages_one_upon_another(architecture):
    _, edges = architecture.read_rooms(architecture.read_imports())
    levels = architecture.levels_of(edges)
    floors = [levels[name] for name in PACKAGES]
    assert floors == sorted(floors, reverse=True)


def test_picture_shows_every_module(architecture):
    picture = architecture.draw()
    for module in architecture.read_imports():
        assert module.removesuffix(".__init__").split(".")[-1].lstrip("_") in picture


def test_tests_named_on_the_pages_exist():
    named = {
        path
        for page in DOCS.rglob("*.md")
        for path in re.findall(r"`(tests/[\w/.]+)`", page.read_text(encoding="utf-8"))
    }
    assert len(named) > 5
    assert not [path for path in named if not (REPOSITORY / path).exists()]
