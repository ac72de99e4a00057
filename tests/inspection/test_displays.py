"""The displays hold and draw the right numbers; images are tested by their data."""

import math
import pickle
from importlib import import_module

import numpy as np
import pandas as pd
import pytest
from sklearn.compose import TransformedTargetRegressor
from sklearn.ensemble import BaggingRegressor
from sklearn.exceptions import NotFittedError
from sklearn.experimental import enable_halving_search_cv  # noqa: F401
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import Ridge
from sklearn.model_selection import GridSearchCV, HalvingGridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from sklearn_restf import (
    THEOREM_SETTINGS,
    ConvergenceDiagnostics,
    ResidualTransformerClassifier,
    ResidualTransformerRegressor,
    diagnose,
)
from sklearn_restf.inspection import (
    AttentionDisplay,
    BetaSweepDisplay,
    ConvergenceDisplay,
    SpectrumDisplay,
)
from sklearn_restf.model_selection import (
    ResidualTransformerClassifierCV,
    ResidualTransformerRegressorCV,
)
from tests.builders import FEW_STEPS, ROW_LABELS, ROWS

plt = pytest.importorskip("matplotlib.pyplot", reason="the extra plot is not installed")

FAST = {"max_iter": 30, "tol": None, "random_state": 0}
BETAS = [0.0, 0.5, 1.0]


@pytest.fixture(autouse=True)
def close_figures():
    yield
    plt.close("all")


@pytest.fixture(scope="module")
def table():
    X = np.random.default_rng(0).normal(size=(60, 5))
    return X, X[:, 0] + X[:, 1] ** 2


@pytest.fixture(scope="module")
def windows():
    X = np.random.default_rng(1).normal(size=(50, 6, 4))
    return X, X[:, 0, 0]


@pytest.fixture(scope="module")
def ragged():
    rng = np.random.default_rng(2)
    return [rng.normal(size=(2 + i % 5, 3)) for i in range(30)], rng.normal(size=30)


@pytest.fixture(scope="module")
def fitted(table):
    return ResidualTransformerRegressor(**FAST).fit(*table)


def labels(ax):
    return [text.get_text() for text in ax.get_legend().get_texts()]


# --- ConvergenceDisplay ---------------------------------------------------------------


def test_convergence_of_an_estimator(fitted):
    display = ConvergenceDisplay.from_estimator(fitted, name="a table")
    diagnostics = fitted.convergence_diagnostics_
    np.testing.assert_array_equal(display.loss, diagnostics.loss)
    np.testing.assert_array_equal(display.line_.get_xdata(), np.arange(31))
    np.testing.assert_array_equal(display.line_.get_ydata(), diagnostics.loss)
    assert display.ax_.get_yscale() == "log"
    assert display.ax_.get_xlabel() == "iteration"
    assert display.ax_.get_title() == "a table"
    assert display.figure_ is display.ax_.figure
    assert display.predicted_rate_line_ is None  # momentum: the theorem says nothing


def test_measured_rate_is_drawn_over_its_window():
    loss = 2.0 + 3.0 * 0.9 ** np.arange(60)
    display = ConvergenceDisplay(loss, rate=0.9, rate_r2=1.0, rate_window=(20, 50)).plot()
    np.testing.assert_array_equal(display.rate_line_.get_xdata(), np.arange(20, 51))
    np.testing.assert_allclose(display.rate_line_.get_ydata(), loss[20:51])
    assert "measured rate 0.900 ($R^2$ = 1.00)" in labels(display.ax_)


def test_measured_rate_of_a_fit_follows_its_loss(fitted):
    display = ConvergenceDisplay.from_estimator(fitted)
    start, end = fitted.convergence_diagnostics_.rate_window
    assert math.isfinite(display.rate)
    np.testing.assert_allclose(
        display.rate_line_.get_ydata(), display.loss[start : end + 1], rtol=0.1
    )


def test_guarantee_starts_at_the_first_loss_and_falls_at_its_rate(windows):
    X, _ = windows
    model = ResidualTransformerRegressor(
        **{**THEOREM_SETTINGS, "max_iter": 20}, pooling="none", d_ff=64, random_state=0
    ).fit(X[:4], X[:4, :, 0])
    diagnostics = model.convergence_diagnostics_
    display = ConvergenceDisplay.from_diagnostics(diagnostics)
    line = display.predicted_rate_line_.get_ydata()
    assert line[0] == diagnostics.loss[0]
    np.testing.assert_allclose(line[1:] / line[:-1], diagnostics.predicted_rate)
    assert (line >= diagnostics.loss - 1e-12).all()  # a guarantee
    [written] = [text for text in labels(display.ax_) if text.startswith("guaranteed rate ")]
    written = float(written.removeprefix("guaranteed rate "))
    np.testing.assert_allclose(1 - written, 1 - diagnostics.predicted_rate, rtol=0.05)
    np.testing.assert_allclose(display.floor_line_.get_ydata(), diagnostics.collapse_floor)


def test_linearised_prediction_and_forecast(table):
    model = ResidualTransformerRegressor(diagnostics="full", **FAST).fit(*table)
    diagnostics = model.convergence_diagnostics_
    display = ConvergenceDisplay.from_estimator(model)
    np.testing.assert_array_equal(display.predicted_line_.get_ydata(), diagnostics.predicted_curve)
    np.testing.assert_array_equal(display.forecast_line_.get_xdata(), 30 + np.arange(31))
    np.testing.assert_array_equal(display.forecast_line_.get_ydata(), diagnostics.forecast)
    bare = display.plot(show_rate=False, show_prediction=False)
    assert bare.rate_line_ is bare.predicted_line_ is bare.forecast_line_ is None


def test_prediction_without_a_fit(table):
    found = diagnose(ResidualTransformerRegressor(**FAST), *table, full=True)
    display = ConvergenceDisplay.from_diagnostics(found)
    assert len(display.predicted_line_.get_ydata()) == 31
    assert len(display.line_.get_ydata()) == 0


def test_validation_loss_belongs_to_the_iterations_of_the_last_fit(table):
    model = ResidualTransformerRegressor(early_stopping=True, warm_start=True, **FAST)
    model.fit(*table).fit(*table)
    display = ConvergenceDisplay.from_estimator(model)
    line = display.validation_line_
    np.testing.assert_array_equal(line.get_xdata(), np.arange(1, model.n_iter_ + 1))
    np.testing.assert_array_equal(line.get_ydata(), model.validation_curve_[-model.n_iter_ :])


@pytest.mark.parametrize(
    "loss", [[], [1.0], [1.0, math.nan, 0.1], [1.0, 0.0], [math.inf, 1.0]], ids=str
)
def test_short_and_broken_histories(loss):
    diagnostics = ConvergenceDiagnostics(loss=np.array(loss, dtype=float))
    display = ConvergenceDisplay.from_diagnostics(diagnostics)
    display.figure_.canvas.draw()
    drawn = display.line_.get_ydata()
    assert len(drawn) == len(loss)
    assert not np.isinf(drawn).any()


def test_several_displays_on_one_axes(fitted, table):
    other = ResidualTransformerRegressor(0.5, **FAST).fit(*table)
    _, ax = plt.subplots()
    for model, label in ((fitted, "1"), (other, "0.5")):
        ConvergenceDisplay.from_estimator(model, ax=ax, show_rate=False, label=label)
    assert labels(ax) == ["1", "0.5"]
    colors = [line.get_color() for line in ax.lines]
    assert len(set(colors)) == 2


@pytest.mark.parametrize(
    ("rate", "text"),
    [(0.9, "0.900"), (0.5, "0.500"), (0.98765, "0.988"), (0.999876, "0.99988"), (1.0, "1")],
)
def test_rates_are_written_with_two_digits_of_their_distance_from_one(rate, text):
    display = ConvergenceDisplay([1.0, 0.5], predicted_rate=rate).plot()
    assert f"guaranteed rate {text}" in labels(display.ax_)


@pytest.mark.parametrize("around", ["pipeline", "search", "target", "nested", "frozen"])
def test_estimators_inside_others(table, around):
    inner = ResidualTransformerRegressor(n_tokens=5, **FAST)
    outer = {
        "pipeline": make_pipeline(StandardScaler(), inner),
        "search": GridSearchCV(inner, {"d_ff": [8]}, cv=2),
        "target": TransformedTargetRegressor(inner, transformer=StandardScaler()),
        "nested": GridSearchCV(
            make_pipeline(StandardScaler(), inner),
            {"residualtransformerregressor__d_ff": [8]},
            cv=2,
        ),
        "frozen": FrozenEstimator(make_pipeline(StandardScaler(), inner).fit(*table)),
    }[around].fit(*table)
    X, _ = table
    assert len(ConvergenceDisplay.from_estimator(outer).loss) == 31
    assert SpectrumDisplay.from_estimator(outer, X).Z_end.shape == (1, 60, 5)
    assert AttentionDisplay.from_estimator(outer, X).attention.shape == (5, 5)


def test_displays_can_be_pickled(table, search):
    """Drawn or not: to be kept with a run, say."""
    X, y = table
    model = ResidualTransformerRegressor(max_iter=2, tol=None, random_state=0).fit(X, y)
    for display in (
        ConvergenceDisplay.from_estimator(model),  # whose axis spans few decades
        SpectrumDisplay.from_estimator(model, X),
        AttentionDisplay.from_estimator(model, X),
        BetaSweepDisplay.from_search(search),
    ):
        loaded = pickle.loads(pickle.dumps(display))
        assert vars(loaded).keys() == vars(display).keys()


def test_pipeline_passes_transformed_samples(table):
    """Samples come to the model as the steps before it leave them."""
    X, y = table
    pipeline = make_pipeline(StandardScaler(), ResidualTransformerRegressor(**FAST)).fit(X, y)
    scaled = pipeline[:-1].transform(X)
    np.testing.assert_array_equal(
        AttentionDisplay.from_estimator(pipeline, X).attention,
        AttentionDisplay.from_estimator(pipeline[-1], scaled).attention,
    )


def test_unusable_estimators(table):
    X, y = table
    with pytest.raises(NotFittedError):
        ConvergenceDisplay.from_estimator(ResidualTransformerRegressor())
    with pytest.raises(NotFittedError):
        ConvergenceDisplay.from_estimator(make_pipeline(ResidualTransformerRegressor()))
    with pytest.raises(TypeError, match=r"Expected a fitted .*; got Ridge\."):
        SpectrumDisplay.from_estimator(Ridge().fit(X, y), X)
    several = BaggingRegressor(ResidualTransformerRegressor(**FAST), n_estimators=2).fit(X, y)
    with pytest.raises(TypeError, match=r"Expected a fitted .*; got BaggingRegressor\."):
        ConvergenceDisplay.from_estimator(several)


# --- SpectrumDisplay ------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["table", "windows", "ragged"])
def test_spectra_agree_with_the_diagnostics(request, kind):
    """The weights before training, drawn again, are those that fit started from."""
    X, y = request.getfixturevalue(kind)
    model = ResidualTransformerRegressor(n_layers=2, diagnostics="full", **FAST).fit(X, y)
    diagnostics = model.convergence_diagnostics_
    display = SpectrumDisplay.from_estimator(model, X)
    np.testing.assert_allclose(display.Z_start[-1], diagnostics.singular_values_start, atol=1e-12)
    np.testing.assert_allclose(display.Z_end[-1], diagnostics.singular_values_end, atol=1e-12)
    np.testing.assert_allclose(display.Z_start[..., 0], diagnostics.norm_per_sample, atol=1e-12)
    smallest = np.nanmin(display.attention_end, axis=2).min(axis=1)
    np.testing.assert_allclose(
        smallest, diagnostics.layers["final_attention_sigma_min"], atol=1e-12
    )
    assert [ax.get_title() for ax in display.axes_] == ["layer 1", "layer 2"]


def test_spectrum_lines_are_medians(windows):
    X, y = windows
    model = ResidualTransformerRegressor(n_layers=3, **FAST).fit(X, y)
    display = SpectrumDisplay.from_estimator(model, X, layers=[3, 1], n_samples=7)
    assert display.layers == [3, 1]
    assert display.Z_end.shape == (2, 7, 4)
    for i in range(2):
        for name, line in display.lines_[i].items():
            np.testing.assert_array_equal(line.get_xdata(), [1, 2, 3, 4])
            np.testing.assert_array_equal(
                line.get_ydata(), np.median(getattr(display, name)[i], axis=0)
            )
    assert labels(display.ax_) == [
        "Z, before training",
        "Z, after training",
        "Attn(X), before training",
        "Attn(X), after training",
    ]


def test_recorded_spectrum(windows):
    X, y = windows
    model = ResidualTransformerRegressor(n_layers=2, diagnostics_samples=9, **FAST).fit(X, y)
    display = SpectrumDisplay.from_estimator(model)
    assert display.layers == [2]
    assert display.Z_start.shape == display.Z_end.shape == (1, 9, 4)
    assert display.attention_start is None
    only_start = SpectrumDisplay.from_diagnostics(diagnose(ResidualTransformerRegressor(), X))
    assert only_start.Z_end is None


def test_spectrum_before_training_is_left_out_where_unknown(windows):
    model = ResidualTransformerRegressor(**{**FAST, "random_state": None}).fit(*windows)
    display = SpectrumDisplay.from_estimator(model, windows[0])
    assert display.Z_start is display.attention_start is None
    assert display.Z_end is not None


def test_exactly_collapsed_spectrum_can_be_drawn():
    """Rounding errors of an exact zero do not stretch the axis."""
    values = np.array([[[3.0, 1.0, 1e-17, 0.0]]])
    display = SpectrumDisplay(Z_end=values).plot()
    np.testing.assert_array_equal(display.lines_[0]["Z_end"].get_ydata(), [3.0, 1.0])
    SpectrumDisplay(Z_end=np.zeros((1, 2, 3))).plot().figure_.canvas.draw()


def test_unusable_arguments_of_the_spectrum(windows):
    X, y = windows
    model = ResidualTransformerRegressor(diagnostics=False, n_layers=2, **FAST).fit(X, y)
    with pytest.raises(ValueError, match="No singular values were recorded"):
        SpectrumDisplay.from_estimator(model)
    with pytest.raises(ValueError, match=r"layers must be among 1 to 2, got \[0\]"):
        SpectrumDisplay.from_estimator(model, X, layers=[0])
    with pytest.raises(ValueError, match="pass X to choose `layers`"):
        SpectrumDisplay.from_estimator(model, layers=[1])
    with pytest.raises(ValueError, match="fitted on samples of 6 tokens"):
        SpectrumDisplay.from_estimator(model, X[:, :3])
    with pytest.raises(ValueError, match=r"draws 2 panel\(s\).*got 1"):
        SpectrumDisplay.from_estimator(model, X, ax=plt.subplots()[1])
    with pytest.raises(ValueError, match=r"Z_end must have 3 dimension\(s\)"):
        SpectrumDisplay(Z_end=np.ones((3, 2)))


# --- AttentionDisplay -----------------------------------------------------------------


def test_attention_is_that_of_the_module(windows):
    X, y = windows
    model = ResidualTransformerRegressor(n_layers=2, n_heads=2, **FAST).fit(X, y)
    x = (X - X.mean((0, 1))) / X.std((0, 1))
    module = model.module_
    torch = import_module("torch")
    with torch.no_grad():
        layers = [layer.attention.numpy() for layer in module.layers(torch.from_numpy(x))]
    shown = AttentionDisplay.from_estimator(model, X, sample=5)
    np.testing.assert_allclose(shown.attention, layers[1][5].mean(axis=0))
    assert shown.ax_.get_title() == "Attention: layer 2 of 2, mean of 2 heads"
    shown = AttentionDisplay.from_estimator(model, X, sample=-1, layer=1, head=2)
    np.testing.assert_allclose(shown.attention, layers[0][-1][1])
    np.testing.assert_array_equal(shown.im_.get_array(), shown.attention)
    assert shown.ax_.get_title() == "Attention: layer 1 of 2, head 2 of 2"
    assert [tick.get_text() for tick in shown.ax_.get_yticklabels()] == list("123456")


def test_attention_of_a_ragged_sample_has_its_own_tokens_only(ragged):
    X, y = ragged
    model = ResidualTransformerClassifier(causal=True, **FAST).fit(X, y > 0)
    display = AttentionDisplay.from_estimator(model, X, sample=3, token_names=list("abcde"))
    assert display.attention.shape == (5, 5)
    np.testing.assert_allclose(display.attention.sum(axis=1), 1.0)
    np.testing.assert_array_equal(np.triu(display.attention, k=1), 0.0)
    assert [tick.get_text() for tick in display.ax_.get_xticklabels()] == list("abcde")


@pytest.mark.parametrize(
    ("n_tokens", "names"),
    [
        (5, ["age", "height", "income", "weight", "zone"]),
        (2, ["age … income", "weight, zone"]),
        (1, ["age … zone"]),
    ],
)
def test_tokens_of_a_table_are_named_after_its_features(table, n_tokens, names):
    X, y = table
    columns = ["age", "height", "income", "weight", "zone"]
    frame = pd.DataFrame(X, columns=columns)
    model = ResidualTransformerRegressor(n_tokens=n_tokens, **FAST)
    assert AttentionDisplay.from_estimator(model.fit(frame, y), frame).token_names == names
    pipeline = make_pipeline(StandardScaler(), model).fit(frame, y)
    assert AttentionDisplay.from_estimator(pipeline, frame).token_names == names
    target = TransformedTargetRegressor(pipeline, transformer=StandardScaler()).fit(frame, y)
    assert AttentionDisplay.from_estimator(target, frame).token_names == names
    unnamed = AttentionDisplay.from_estimator(model.fit(X, y), X).token_names
    assert unnamed[0].startswith("x0")


def test_numbers_in_the_cells(fitted, table):
    display = AttentionDisplay.from_estimator(fitted, table[0])
    assert display.text_[1, 2].get_text() == f"{display.attention[1, 2]:.2f}"
    assert AttentionDisplay(np.eye(20)).plot().text_ is None
    assert AttentionDisplay(np.eye(20)).plot(include_values=True).text_.shape == (20, 20)


def test_many_tokens_with_long_names_stay_readable():
    display = AttentionDisplay(np.full((100, 100), 0.01), token_names=["x" * 50] * 100).plot()
    names = [tick.get_text() for tick in display.ax_.get_xticklabels()]
    assert len(names) <= 25
    assert max(map(len, names)) <= 24
    width, height = display.figure_.get_size_inches()
    assert max(width, height) < 10


def test_a_few_large_weights_do_not_hide_the_others():
    attention = np.tril(np.ones((40, 40)))
    attention /= attention.sum(axis=1, keepdims=True)
    display = AttentionDisplay(attention).plot()
    assert display.im_.get_clim()[1] < 0.2
    display = AttentionDisplay(attention).plot(vmax=1.0)
    assert display.im_.get_clim() == (0.0, 1.0)


def test_unusable_arguments_of_the_attention(windows):
    X, y = windows
    model = ResidualTransformerRegressor(n_layers=2, n_heads=2, **FAST).fit(X, y)
    for arguments, message in (
        ({"sample": 50}, r"X has 50 sample\(s\); there is no sample 50"),
        ({"layer": 3}, "layer must be from 1 to 2, got 3"),
        ({"head": 0}, "head must be from 1 to 2, got 0"),
        ({"token_names": ["a"]}, "The sample has 6 tokens, but token_names has 1"),
    ):
        with pytest.raises(ValueError, match=message):
            AttentionDisplay.from_estimator(model, X, **arguments)
    with pytest.raises(ValueError, match=r"must have shape \(n_tokens, n_tokens\)"):
        AttentionDisplay(np.ones((2, 3)))


# --- BetaSweepDisplay -----------------------------------------------------------------


@pytest.fixture(scope="module")
def search(table):
    return GridSearchCV(
        ResidualTransformerRegressor(**FAST), {"residual_beta": [1.0, 0.0, 0.5]}, cv=3
    ).fit(*table)


def errorbars(ax):
    """Return the (x, y) of the points, in order."""
    return sorted(tuple(container[0].get_xydata()[0]) for container in ax.containers)


def test_scores_of_a_search(search):
    display = BetaSweepDisplay.from_search(search, panels=["score"])
    np.testing.assert_array_equal(display.betas, BETAS)
    mean = search.cv_results_["mean_test_score"][[1, 2, 0]]
    assert [len(scores) for scores in display.scores] == [3, 3, 3]
    np.testing.assert_allclose(errorbars(display.ax_), np.column_stack([BETAS, mean]))
    assert display.ax_.get_ylabel().startswith("$R^2$")
    assert [tick.get_text() for tick in display.ax_.get_xticklabels()] == ["0", "0.5", "1"]


def test_search_keeps_the_curve_of_its_best_model_only(search):
    display = BetaSweepDisplay.from_search(search)
    assert display.panels_ == ["loss", "score"]
    best = BETAS.index(search.best_params_["residual_beta"])
    assert [len(curves) for curves in display.loss_curves] == [int(i == best) for i in range(3)]
    np.testing.assert_array_equal(
        display.loss_curves[best][0], search.best_estimator_.convergence_diagnostics_.loss
    )


def test_search_with_samples_shows_the_curve_of_every_beta(search, table):
    display = BetaSweepDisplay.from_search(search, *table)
    assert display.panels_ == ["loss", "rate", "score"]
    for beta, curves, rates, line in zip(
        BETAS, display.loss_curves, display.rates, display.ax_.lines, strict=True
    ):
        model = ResidualTransformerRegressor(beta, **FAST).fit(*table)
        np.testing.assert_array_equal(curves[0], model.convergence_diagnostics_.loss)
        np.testing.assert_array_equal(rates, [model.convergence_diagnostics_.rate])
        np.testing.assert_array_equal(line.get_ydata(), curves[0])
    assert labels(display.ax_) == [r"$\beta$ = 0", r"$\beta$ = 0.5", r"$\beta$ = 1"]


def test_search_over_more_than_beta_shows_the_best_of_the_others(table):
    X, y = table
    pipeline = make_pipeline(StandardScaler(), ResidualTransformerRegressor(**FAST))
    grid = {
        "residualtransformerregressor__residual_beta": [0.0, 1.0],
        "residualtransformerregressor__ffn_residual_beta": [0.1, 0.9],
        "residualtransformerregressor__max_iter": [2, 30],
    }
    search = GridSearchCV(pipeline, grid, cv=2, scoring="neg_mean_absolute_error").fit(X, y)
    display = BetaSweepDisplay.from_search(search, X, y)
    results = pd.DataFrame(search.cv_results_)
    best = results.groupby("param_residualtransformerregressor__residual_beta")["mean_test_score"]
    np.testing.assert_allclose([scores.mean() for scores in display.scores], best.max())
    assert [len(curves[0]) for curves in display.loss_curves] == [31, 31]
    assert display.axes_[-1].get_ylabel().startswith("neg mean absolute error")


def test_searches_of_other_kinds(table):
    X, y = table
    model, grid = ResidualTransformerRegressor(**FAST), {"residual_beta": [0.0, 0.5, 1.0]}
    several = GridSearchCV(
        model, grid, cv=2, scoring=["r2", "neg_mean_squared_error"], refit="r2"
    ).fit(X, y)
    display = BetaSweepDisplay.from_search(several)
    assert display.score_name == "r2"
    np.testing.assert_allclose(
        [scores.mean() for scores in display.scores], several.cv_results_["mean_test_r2"]
    )
    halving = HalvingGridSearchCV(
        model, grid, cv=2, factor=2, min_resources=20, random_state=0
    ).fit(X, y)
    display = BetaSweepDisplay.from_search(halving)
    best = BETAS.index(halving.best_params_["residual_beta"])
    assert display.scores[best].mean() == pytest.approx(halving.best_score_)
    classes = GridSearchCV(ResidualTransformerClassifier(**FAST), grid, cv=2).fit(X, y > 1)
    assert BetaSweepDisplay.from_search(classes).score_name == "accuracy"
    unfitted = GridSearchCV(model, grid, cv=2, refit=False).fit(X, y)
    assert BetaSweepDisplay.from_search(unfitted).panels_ == ["score"]
    for grids in ([grid, {"d_ff": [4]}], [{"d_ff": [4]}, grid]):
        among_others = GridSearchCV(model, grids, cv=2).fit(X, y)
        assert list(BetaSweepDisplay.from_search(among_others).betas) == BETAS


@pytest.mark.parametrize("kind", [ResidualTransformerRegressorCV, ResidualTransformerClassifierCV])
def test_cross_validated_estimators_show_every_fold(table, kind):
    X, y = table
    y = y > 1 if kind is ResidualTransformerClassifierCV else y
    model = kind([1.0, 0.0, 0.5], cv=3, **FAST).fit(X, y)
    display = BetaSweepDisplay.from_search(model)
    assert display.panels_ == ["loss", "rate", "score"]
    order = [1, 2, 0]
    for i, j in enumerate(order):
        for curve, seen in zip(display.loss_curves[i], model.cv_diagnostics_[j], strict=True):
            np.testing.assert_array_equal(curve, seen.loss)
    np.testing.assert_allclose(
        [scores.mean() for scores in display.scores], model.cv_results_["mean_test_score"][order]
    )
    assert len(ConvergenceDisplay.from_estimator(model).loss) == 31
    spectra = SpectrumDisplay.from_estimator(model, X)
    np.testing.assert_allclose(
        spectra.Z_start[0], model.convergence_diagnostics_.singular_values_start, atol=1e-12
    )


def test_estimators_of_equal_beta_are_summarised(table):
    X, y = table
    models = [
        ResidualTransformerRegressor(beta, max_iter=10 + seed, tol=None, random_state=seed)
        for beta in BETAS[::-1]
        for seed in range(3)
    ]
    models = [model.fit(X, y) for model in models]
    display = BetaSweepDisplay.from_estimators(
        models, X, y, panels=["loss", "rate", "ratio", "score"]
    )
    np.testing.assert_array_equal(display.betas, BETAS)
    first = models[6:]  # beta = 0
    curves = [model.convergence_diagnostics_.loss[:11] for model in first]
    np.testing.assert_array_equal(display.axes_[0].lines[0].get_ydata(), np.median(curves, axis=0))
    ratio = np.median([model.convergence_diagnostics_.condition_ratio for model in first])
    assert errorbars(display.axes_[2])[0][1] == ratio
    score = np.mean([model.score(X, y) for model in first])
    assert errorbars(display.axes_[3])[0][1] == pytest.approx(score)
    assert display.axes_[2].get_yscale() == "log"


def test_mapping_of_estimators_and_given_axes(table):
    models = {beta: ResidualTransformerRegressor(beta, **FAST).fit(*table) for beta in BETAS}
    figure, axes = plt.subplots(1, 2)
    display = BetaSweepDisplay.from_estimators(models, ax=axes)
    assert display.panels_ == ["loss", "rate"]
    assert display.figure_ is figure
    assert list(display.axes_) == list(axes)
    np.testing.assert_array_equal(
        np.concatenate(display.rates),
        [model.convergence_diagnostics_.rate for model in models.values()],
    )


def test_unusable_arguments_of_the_sweep(search, table, fitted):
    X, y = table
    with pytest.raises(TypeError, match=r"got ResidualTransformerRegressor.*from_estimators"):
        BetaSweepDisplay.from_search(fitted)
    other = GridSearchCV(ResidualTransformerRegressor(**FAST), {"d_ff": [4, 8]}, cv=2).fit(X, y)
    with pytest.raises(ValueError, match="not over residual_beta; its parameters are 'd_ff'"):
        BetaSweepDisplay.from_search(other)
    with pytest.raises(ValueError, match="Pass both X and y"):
        BetaSweepDisplay.from_search(search, X)
    with pytest.raises(ValueError, match="Pass both X and y"):
        BetaSweepDisplay.from_estimators([fitted], X)
    with pytest.raises(ValueError, match="estimators is empty"):
        BetaSweepDisplay.from_estimators([])
    with pytest.raises(ValueError, match="panels must be among"):
        BetaSweepDisplay.from_search(search, panels=["speed"])
    with pytest.raises(ValueError, match=r"draws 2 panel\(s\).*got 1"):
        BetaSweepDisplay.from_search(search, ax=plt.subplots()[1])
    with pytest.raises(ValueError, match="There are 2 betas; rates has 1"):
        BetaSweepDisplay([0, 1], rates=[[0.5]])


# --- all displays ---------------------------------------------------------------------


DISPLAYS = [
    ConvergenceDisplay([2.0, 1.0]),
    SpectrumDisplay(Z_end=np.ones((1, 1, 2))),
    AttentionDisplay(np.eye(2)),
    BetaSweepDisplay([0, 1], rates=[[0.5], [0.6]]),
]


@pytest.mark.parametrize("display", DISPLAYS, ids=lambda display: type(display).__name__)
def test_conventions(display):
    assert not hasattr(display, "ax_")
    assert display.plot() is display
    assert display.figure_ is display.ax_.figure
    _, ax = plt.subplots()
    assert display.plot(ax=ax).ax_ is ax
    del display.ax_, display.figure_
    display.__dict__.pop("axes_", None)


@pytest.mark.parametrize("display", DISPLAYS, ids=lambda display: type(display).__name__)
def test_missing_matplotlib_is_named(display, monkeypatch):
    def refuse(name, *arguments):
        raise ImportError(name)

    monkeypatch.setattr("sklearn_restf.inspection._drawing.import_module", refuse)
    with pytest.raises(ImportError, match=r"plot needs matplotlib.*'sklearn-restf\[plot\]'"):
        display.plot()


def test_drawing_touches_no_global_state(fitted, table, random_state_unchanged):
    before = dict(plt.rcParams)
    ConvergenceDisplay.from_estimator(fitted)
    SpectrumDisplay.from_estimator(fitted, table[0])
    AttentionDisplay.from_estimator(fitted, table[0])
    BetaSweepDisplay.from_estimators([fitted])
    assert dict(plt.rcParams) == before


@pytest.mark.parametrize(
    "loss", [[3e299, 2.0, 1e-300], [3.0, np.inf, 1.0], [1e308, 1e-308, 0.0]], ids=str
)
@pytest.mark.parametrize("rate", [0.5, 1e300, 0.0])
def test_losses_and_rates_at_the_edge_of_range_are_drawn(loss, rate):
    pyplot = pytest.importorskip("matplotlib.pyplot", reason="the extra plot is not installed")
    display = ConvergenceDisplay(loss, rate=rate, rate_window=(0, 2), predicted_rate=rate)
    display.plot().figure_.draw_without_rendering()
    pyplot.close("all")


@pytest.mark.parametrize(
    ("make", "arguments", "name"),
    [(ConvergenceDisplay, {"loss": [[1.0]]}, "loss"), (SpectrumDisplay, {}, "Z_start"),
     (ConvergenceDisplay, {"loss": [1.0], "rate_window": (0, 9)}, "rate_window"),
     (AttentionDisplay, {"attention": np.zeros((0, 0))}, "attention"),
     (SpectrumDisplay, {"Z_end": np.ones((2, 1, 1)), "Z_start": np.ones((1, 1, 1))}, "Z_end"),
     (BetaSweepDisplay, {"betas": 3.0}, "betas")],
)  # fmt: skip
def test_what_no_display_can_draw_is_named(make, arguments, name):
    with pytest.raises(ValueError, match=rf"\b{name}\b"):
        make(**arguments)


@pytest.mark.parametrize(
    ("name", "value"), [("sample", 1.5), ("layer", "a"), ("head", [0]), ("ax", 3)]
)
def test_unusable_places_and_axes_are_named(name, value):
    pytest.importorskip("matplotlib", reason="the extra plot is not installed")
    windows = ROWS.reshape(6, 2, 2)
    model = ResidualTransformerRegressor(**FEW_STEPS).fit(windows, ROW_LABELS)
    with pytest.raises(TypeError, match=rf"\b{name}\b"):
        AttentionDisplay.from_estimator(model, windows, **{name: value})
