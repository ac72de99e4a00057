"""The theorem's bound against measured rates: valid always, and how tight."""

import time

import numpy as np
from _reproduce_common import DataMissing, finish, jena_file, jena_windows, plain, print_table

from sklearn_restf import THEOREM_SETTINGS, ResidualTransformerRegressor, diagnose
from sklearn_restf._diagnostics.convergence_rate import measure_rate

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


def run(arguments):
    """Fit, compare, print and save."""
    started, quick = time.perf_counter(), arguments.quick
    n_instances = arguments.seeds or (24 if quick else 100)
    n_iter = 200 if quick else 1000
    groups = {"Gaussian": [instance(seed) for seed in range(n_instances)]}
    try:
        path = jena_file(arguments.data)
        groups["Jena"] = [jena_instance(path, seed) for seed in range(n_instances)]
    except DataMissing as missing:
        print(f"Jena left out: {missing}")
    runs = {}
    for name, instances in groups.items():
        runs[name] = [compare(x, y, options, n_iter) for x, y, options in instances]
        report(name, runs[name])
    estimator = rate_estimator(quick)
    report_estimator(estimator)
    settings = {
        "instances": n_instances, "n_iter": n_iter, "step": "constant, 1/2 / ||J||^2",
        "setting": "THEOREM_SETTINGS, pooling none or last, float64",
        "shapes": "n in 2-4, T in 2-4, d 21 (Jena) or N to N+4, d_ff 2N to 4N, beta in 0-1",
    }  # fmt: skip
    results = plain({"runs": runs, "rate estimator": estimator})
    finish("certificate", results, settings, draw(runs), started, arguments)


def shape(rng):
    """Draw sizes that fulfil the certificate's dimension conditions."""
    n, T = int(rng.integers(2, 5)), int(rng.integers(2, 5))
    pooling = str(rng.choice(["none", "last"]))
    N = n * T
    options = {
        "pooling": pooling,
        "d_ff": int(rng.integers(2 * N, 4 * N)),
        "residual_beta": float(rng.choice([0.0, 0.25, 0.5, 0.75, 1.0])),
        "ffn_residual_beta": 1.0,
        "activation": str(rng.choice(["relu", "gelu", "tanh"])),
        "random_state": int(rng.integers(2**31)),
    }
    return n, T, options


def instance(seed):
    """Return a random problem."""
    rng = np.random.default_rng([seed, 0])
    n, T, options = shape(rng)
    d = n * T + int(rng.integers(0, 5))
    x = rng.standard_normal((n, T, d))
    y = rng.standard_normal((n, T) if options["pooling"] == "none" else n)
    return x, y, options


def jena_instance(path, seed, cache={}):  # noqa: B006
    """Return a problem of Jena windows: unit rows, standardised temperature to come."""
    rng = np.random.default_rng([seed, 1])
    n, T, options = shape(rng)
    per_token = options["pooling"] == "none"
    key = (n, T, per_token)
    if key not in cache:
        cache[key] = jena_windows(path, n, T, unit_rows=True, per_token=per_token)
    return *cache[key], options


def compare(x, y, options, n_iter):
    """Train one instance by half the theorem's step and return predictions and measurements."""
    settings = {**THEOREM_SETTINGS, **options, "max_iter": n_iter}
    estimator = ResidualTransformerRegressor(**settings)
    before = diagnose(estimator, x, y)
    estimator.set_params(learning_rate=0.5 / before.jacobian_norm, diagnostics="full")
    found = estimator.fit(x, y).convergence_diagnostics_
    local = max(1, min(found.predicted_horizon, n_iter))
    followed = -np.log(found.predicted_curve[local] / found.loss[0]) / local
    happened = -np.log(found.loss[local] / found.loss[0]) / local
    # averaged over the run, per iteration: what is certified at the start, and what happened
    # as long as the loss is not rounding
    end = int(np.flatnonzero(found.loss > 1e-20 * found.loss[0])[-1])
    overall = -np.log(found.loss[end] / found.loss[0]) / end
    with np.errstate(invalid="ignore", divide="ignore"):  # steps too long to be certified
        posterior = -np.log(1 - found.learning_rates[:end] * found.local_pl[:end]).mean()
    return {
        "beta": options["residual_beta"],
        "pooling": options["pooling"],
        "predicted": 1 - found.predicted_rate,
        "measured": 1 - found.rate,
        "overall": overall,
        "a posteriori": posterior,
        "certified": found.certified,
        "alpha_cert": found.alpha_cert,
        "kernel_min": found.kernel_min,
        "jacobian_norm": found.jacobian_norm,
        "condition_ratio": found.condition_ratio,
        "horizon": found.predicted_horizon / n_iter,
        "local over measured": followed / happened if happened > 0 else np.nan,
        "n_outputs": int(np.size(y)),
    }


def report(name, runs):
    """Print how often the bounds held, and the distribution of their tightness."""

    def column(key):
        return np.array([run[key] for run in runs], dtype=float)

    alpha, smallest = column("alpha_cert"), column("kernel_min")
    certified = column("certified") > 0
    predicted, measured, overall = column("predicted"), column("measured"), column("overall")
    known = np.isfinite(predicted) & np.isfinite(measured)
    slack = 1e-9 * column("jacobian_norm")
    checks = {
        "alpha_cert <= lambda_min(J J^T)": (alpha <= smallest * (1 + 1e-9) + slack),
        "certified runs: loss <= a-posteriori product": (
            overall >= column("a posteriori") * (1 - 1e-9)
        )[certified],
        "certified runs: loss <= (1 - mu alpha_cert)^t": (
            overall >= -np.log1p(-predicted) * (1 - 1e-9)
        )[certified & np.isfinite(predicted)],
        "measured 1 - rate, late in the run, >= predicted at its start": (
            (measured >= predicted)[known]
        ),
        "every step had r_t >= 1/2": certified,
    }
    rows = [[what, int(ok.sum()), len(ok)] for what, ok in checks.items()]
    print_table(f"{name}: what held", ["", "held", "of"], rows)
    with np.errstate(divide="ignore", invalid="ignore"):
        distributions = {
            "alpha_cert / lambda_min": alpha / smallest,
            "predicted / measured (1 - rate)": predicted / measured,
            "predicted / overall decrease": predicted / overall,
            "a posteriori / overall decrease": column("a posteriori") / overall,
            "linearised / measured, while valid": column("local over measured"),
            "share of the run linearised to 10 %": column("horizon"),
        }
    rows = []
    for what, values in distributions.items():
        values = values[np.isfinite(values)]
        rows.append([what, *[float(q) for q in np.quantile(values, QUANTILES)], len(values)])
    print_table(f"{name}: tightness", ["", *[f"{q:.0%}" for q in QUANTILES], "of"], rows)
    usable = known & (predicted > 0) & (measured > 0)
    if usable.sum() > 2:
        ranks = [np.argsort(np.argsort(v[usable])) for v in (predicted, measured)]
        ratio = np.argsort(np.argsort(column("condition_ratio")[usable]))
        print(
            f"  rank correlation with the measured 1 - rate: predicted "
            f"{np.corrcoef(*ranks)[0, 1]:.2f}, sigma_min^2/||Z||^2 "
            f"{np.corrcoef(ratio, ranks[1])[0, 1]:.2f}"
        )


def rate_estimator(quick):
    """Return the relative error of the measured 1 - rate on curves of known rate."""
    rng = np.random.default_rng(0)
    t = np.arange(1001)
    repeats = 20 if quick else 200
    kinds = {
        "one mode, floor": lambda r: 0.7 + r**t,
        "two modes, floor": lambda r: 0.7 + r**t + 3 * (2 * r - 1) ** t,
        "one mode, floor, noise 1e-6": lambda r: 0.7 + r**t + 1e-6 * rng.standard_normal(len(t)),
        "plateau of 100, then one mode": lambda r: 0.7 + r ** np.maximum(t - 100, 0),
    }
    errors = {}
    for name, curve in kinds.items():
        rates = 1 - 10 ** rng.uniform(-2.3, -1, repeats)
        errors[name] = [(1 - measure_rate(curve(r)).rate) / (1 - r) - 1 for r in rates]
    broad = []
    for _ in range(repeats):
        rates = 1 - 10 ** rng.uniform(-4, -0.3, 20)
        measured = 1 - measure_rate((rates[:, None] ** t).sum(0)).rate
        broad.append(measured / (1 - rates.max()) - 1)
    errors["20 modes, 1 - rate over 4 decades: against the slowest"] = broad
    return errors


def report_estimator(errors):
    """Print the relative errors."""
    rows = []
    for name, values in errors.items():
        values = np.array(values)
        rows.append([name, *[float(q) for q in np.nanquantile(values, QUANTILES)]])
    title = "Measured 1 - rate: relative error on curves of known rate"
    print_table(title, ["", *[f"{q:.0%}" for q in QUANTILES]], rows)


def draw(runs):
    """Draw predicted against measured, and alpha_cert against the kernel's smallest eigenvalue."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, 3, figsize=(14, 4.5))
    pairs = [
        ("kernel_min", "alpha_cert", r"$\lambda_{\min}(JJ^T)$", r"$\alpha_{cert}$"),
        ("overall", "predicted", "decrease of log loss per iteration", r"predicted $\mu\alpha$"),
        ("condition_ratio", "measured", r"$\sigma_{\min}^2/\|Z\|^2$", "measured 1 - rate"),
    ]
    for ax, (x, y, x_label, y_label) in zip(axes, pairs, strict=True):
        values = []
        for name, found in runs.items():
            points = np.array([[run[x], run[y]] for run in found], dtype=float)
            points = points[(points > 0).all(1)]
            ax.plot(*points.T, "o", ms=4, alpha=0.6, label=name)
            values.append(points)
        values = np.concatenate(values)
        if y != "measured":
            ends = [values.min(), values.max()]
            ax.plot(ends, ends, "k:", lw=1, label="equal")
        ax.set_xscale("log")
        ax.set_yscale("log")
        ax.set_xlabel(x_label)
        ax.set_ylabel(y_label)
    axes[0].legend()
    figure.tight_layout()
    return figure
