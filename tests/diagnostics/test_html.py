"""What notebooks show: the diagram of an estimator, and the diagnostics."""

import math
import re
import warnings
from xml.etree import ElementTree

import numpy as np
import pytest
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from sklearn_restf import (
    ConvergenceDiagnostics,
    ResidualTransformerClassifier,
    ResidualTransformerRegressor,
    diagnose,
)
from sklearn_restf.exceptions import DivergenceError

FAST = {"max_iter": 20, "tol": None, "random_state": 0}


@pytest.fixture
def samples():
    X = np.random.default_rng(0).normal(size=(40, 6))
    return X, X[:, 0]


def parsed(diagnostics):
    """Parse the HTML, which is well-formed XML too, so nothing in it is unescaped."""
    html = diagnostics._repr_html_()
    assert len(html.encode()) < 50_000
    assert "<script" not in html
    return ElementTree.fromstring(html)


def words(tree):
    return " ".join("".join(tree.itertext()).split())


def row(tree, label):
    """Return the cells of the row with the given label."""
    for candidate in tree.iter("tr"):
        cells = ["".join(cell.itertext()) for cell in candidate]
        if cells[0] == label:
            return cells[1:]
    raise AssertionError(f"no row {label!r}")


def polyline(tree):
    """Return the points of the sparkline, or None."""
    line = tree.find(".//{http://www.w3.org/2000/svg}polyline")
    if line is None:
        return None
    return np.array([point.split(",") for point in line.get("points").split()], dtype=float)


def test_diagnostics_of_a_fit(samples):
    model = ResidualTransformerRegressor(**FAST).fit(*samples)
    diagnostics = model.convergence_diagnostics_
    tree = parsed(diagnostics)
    assert row(tree, "σmin(Z)") == [
        f"{diagnostics.sigma_min:.4g}",
        f"{diagnostics.final_sigma_min:.4g}",
    ]
    assert row(tree, "loss") == [f"{diagnostics.loss[0]:.4g}", f"{diagnostics.loss[-1]:.4g}"]
    assert row(tree, "measured rate")[0] == f"{diagnostics.rate:.4g}"
    assert row(tree, "predicted rate") == ["–", diagnostics.reasons["predicted_rate"]]
    assert row(tree, "iterations") == ["20", "max_iter"]
    assert diagnostics.advice.split()[0] in words(tree)
    points = polyline(tree)
    assert len(points) == 21
    # a falling loss is a falling line: the vertical axis of a picture points down
    assert points[0, 1] < points[-1, 1]


def test_sparkline_is_logarithmic_and_inside_its_frame():
    tree = parsed(ConvergenceDiagnostics(loss=0.5 ** np.arange(30), n_iter=29))
    x, y = polyline(tree).T
    np.testing.assert_allclose(np.diff(x), np.diff(x)[0], atol=0.11)
    np.testing.assert_allclose(np.diff(y), np.diff(y)[0], atol=0.11)
    svg = tree.find("{http://www.w3.org/2000/svg}svg")
    assert 0 < x.min() < x.max() < float(svg.get("width"))
    assert 0 < y.min() < y.max() < float(svg.get("height"))


def test_long_histories_stay_small():
    loss = np.geomspace(1.0, 1e-9, 200_000)
    tree = parsed(ConvergenceDiagnostics(loss=loss, n_iter=len(loss) - 1))
    points = polyline(tree)
    assert len(points) <= 240
    assert "from 1 to 1e-09 in 199999 iterations" in words(tree)


@pytest.mark.parametrize(
    "loss",
    [
        [],
        [1.0],
        [math.nan],
        [math.nan, math.nan],
        [0.0, 0.0],
        [1.0, 0.0],
        [1.0, math.inf],
        [-1, -2],
    ],
    ids=str,
)
def test_nothing_to_draw(loss):
    assert polyline(parsed(ConvergenceDiagnostics(loss=np.array(loss, dtype=float)))) is None


@pytest.mark.parametrize(
    "loss",
    [[1.0, 1.0], [1.0, math.nan, 0.5], [1.0, math.inf, 1e300, 0.0], [5e-324, 1.7e308]],
    ids=str,
)
def test_short_and_broken_histories(loss):
    points = polyline(parsed(ConvergenceDiagnostics(loss=np.array(loss), n_iter=len(loss) - 1)))
    assert len(points) == 2
    assert np.isfinite(points).all()


def test_nothing_known():
    tree = parsed(ConvergenceDiagnostics())
    assert row(tree, "σmin(Z)") == ["–", "–"]
    assert "Not trained yet." in words(tree)


def test_words_are_escaped():
    hostile = '<img src=x onerror="alert(1)"> & co'
    diagnostics = ConvergenceDiagnostics(
        loss=np.array([1.0, 0.5]),
        n_iter=1,
        stop_reason=hostile,
        reasons={"rate": hostile, "predicted_rate": hostile},
    )
    tree = parsed(diagnostics)
    assert tree.find(".//img") is None
    assert row(tree, "measured rate") == ["–", hostile]
    assert row(tree, "iterations") == ["1", hostile]


def test_diagnostics_without_a_run(samples):
    X, y = samples
    tree = parsed(diagnose(ResidualTransformerRegressor(**FAST), X, y))
    assert polyline(tree) is None
    assert row(tree, "‖Z‖")[1] == "–"


@pytest.mark.parametrize("diagnostics", [True, False, "full"])
def test_every_kind_of_diagnostics(samples, diagnostics):
    model = ResidualTransformerRegressor(diagnostics=diagnostics, **FAST).fit(*samples)
    assert polyline(parsed(model.convergence_diagnostics_)) is not None


def diagram(estimator):
    """Return the words of scikit-learn's diagram, drawn without a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        html = estimator._repr_html_()
        bundle = estimator._repr_mimebundle_()
    assert "text/html" in bundle
    return re.sub(r"<[^>]+>", "", html.partition("</style>")[2])


@pytest.mark.parametrize("diagnostics", [True, False, "full"])
@pytest.mark.parametrize("kind", [ResidualTransformerRegressor, ResidualTransformerClassifier])
def test_diagram_of_an_estimator(samples, kind, diagnostics):
    X, y = samples
    model = kind(diagnostics=diagnostics, **FAST)
    assert "Not fitted" in diagram(model)
    model.fit(X, y > 0 if kind is ResidualTransformerClassifier else y)
    assert "Not fitted" not in diagram(model)
    assert kind.__name__ in diagram(model)


def test_diagram_in_a_pipeline_and_a_search(samples):
    pipeline = make_pipeline(StandardScaler(), ResidualTransformerRegressor(**FAST))
    assert "ResidualTransformerRegressor" in diagram(pipeline)
    assert "ResidualTransformerRegressor" in diagram(pipeline.fit(*samples))
    search = GridSearchCV(
        ResidualTransformerRegressor(**FAST), {"residual_beta": [0.5, 1.0]}, cv=2
    ).fit(*samples)
    assert "ResidualTransformerRegressor" in diagram(search)


def test_diagram_of_sequences():
    X = [np.random.default_rng(i).normal(size=(3 + i % 3, 2)) for i in range(20)]
    model = ResidualTransformerClassifier(**FAST).fit(X, ["a", "b"] * 10)
    assert "Not fitted" not in diagram(model)


def test_diagram_and_diagnostics_after_divergence(samples):
    model = ResidualTransformerRegressor(learning_rate=1e6, max_iter=20)
    with pytest.raises(DivergenceError) as raised:
        model.fit(*samples)
    assert "Not fitted" in diagram(model)
    assert "Not fitted" not in diagram(raised.value.estimator)
    tree = parsed(raised.value.estimator.convergence_diagnostics_)
    assert "diverged" in words(tree)
