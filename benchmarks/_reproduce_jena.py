"""Figure 3a: full-batch gradient descent on Jena windows for several residual strengths."""

import time
from dataclasses import asdict, dataclass

import numpy as np
import torch
from _reproduce_common import (
    compact,
    finish,
    jena_file,
    jena_windows,
    plain,
    print_table,
    wilson_interval,
)
from _reproduce_engine import (
    Sizes,
    attention_output,
    draw_weights,
    jacobian_norms,
    train,
)

BETAS = (0.0, 0.25, 0.5, 0.75, 1.0)
LARGE = (2.0, 4.0)
BUDGET = (0.05, 0.2, 1.0)
READOUT = {"none": "target per token", "last": "last token", "mean": "mean token"}
NUMERICALLY_ZERO = 21 * np.finfo(float).eps
REPORTED = ("shared", "shared up to 4", "own 1/||J||^2", "own best step")


@dataclass(frozen=True)
class Setting:
    """One way to run the sweep; every choice is written into the results."""

    what: str
    n: int
    T: int
    d_ff: int
    pooling: str
    unit_rows: bool
    constant: float  # the shared step is constant / max_beta ||J||^2
    d_qk: int = 21
    ffn_out_scale: float = 1.0
    wide_logits: bool = False
    dtype: str = "float32"


SETTINGS = {
    "A": Setting(
        "one prediction per token, few samples",
        n=8, T=8, d_ff=512, pooling="none", unit_rows=True, constant=1.0, ffn_out_scale=0.1,
        dtype="float64",
    ),
    "B": Setting(
        "last token, no floor", n=48, T=12, d_ff=64, pooling="last", unit_rows=False, constant=2.0
    ),
    "C": Setting(
        "one prediction per token, collapse: W_Q, W_K of variance 1/d_qk",
        n=48, T=12, d_ff=64, pooling="none", unit_rows=True, constant=1.0, d_qk=1024,
        wide_logits=True,
    ),
    "D": Setting(
        "mean over tokens", n=48, T=12, d_ff=64, pooling="mean", unit_rows=False, constant=1.0
    ),
}  # fmt: skip


def run(arguments):
    """Run all settings, print and save."""
    started, quick = time.perf_counter(), arguments.quick
    path = jena_file(arguments.data)
    seeds = list(range(arguments.seeds or (3 if quick else 10)))
    n_iter = 300 if quick else 1000
    constants = (1.0, 2.0) if quick else (1.0, 2.0, 4.0)
    results = {}
    for name, setting in SETTINGS.items():
        results[name] = sweep(name, setting, path, seeds, n_iter, constants)
        report(name, setting, results[name], REPORTED[::3] if quick else REPORTED)
    conclusions(results)
    settings = {
        "data": path.name,
        "target": "temperature 6 h ahead",
        "seeds": seeds,
        "n_iter": n_iter,
        "own_step_constants": constants,
        "loss": "half the squared error summed over tokens, mean over samples; momentum 0",
        "gamma": 1.0,
        "settings": {name: asdict(setting) for name, setting in SETTINGS.items()},
    }
    finish("jena-beta", plain(compact(results)), settings, draw(results), started, arguments)


def sweep(name, setting, path, seeds, n_iter, constants):
    """Train every beta and seed with a shared step, and with each its own best constant."""
    per_token = setting.pooling == "none"
    x, y = jena_windows(
        path, setting.n, setting.T, unit_rows=setting.unit_rows, per_token=per_token
    )
    sizes = Sizes(
        x.shape[2], setting.d_ff, setting.d_qk, setting.ffn_out_scale, setting.wide_logits
    )
    dtype = getattr(torch, setting.dtype)
    x, y = torch.from_numpy(x), torch.from_numpy(y.reshape(-1))
    betas = (*BETAS, *LARGE)
    drawn = draw_weights(sizes, seeds)
    # model axis: beta slow, seed fast
    weights = {key: value.repeat(len(betas), 1, 1) for key, value in drawn.items()}
    beta = torch.tensor(np.repeat(betas, len(seeds)))
    norms = jacobian_norms(weights, x, beta, setting.pooling)
    grid = norms.view(len(betas), len(seeds))
    spectra = spectra_of(weights, x, beta, len(betas))

    def fit(which, rate):
        chosen = {key: value[which].to(dtype) for key, value in weights.items()}
        history = train(
            chosen, x.to(dtype), y.to(dtype), beta[which].to(dtype), rate[which].to(dtype),
            setting.pooling, n_iter,
        )  # fmt: skip
        return history.reshape(n_iter + 1, -1, len(seeds)).transpose(1, 2, 0)

    few = len(BETAS) * len(seeds)
    rows, every = torch.arange(few), torch.arange(len(beta))
    small = (setting.constant / grid[: len(BETAS)].max(0).values).repeat(len(betas))
    large = (setting.constant / grid.max(0).values).repeat(len(betas))
    shared = fit(rows, small)
    own = [fit(every, c / norms) for c in constants]
    final = np.stack([curves[:, :, -1] for curves in own])
    best = final.argmin(0)
    picked = np.take_along_axis(np.stack(own), best[None, :, :, None], 0)[0]
    return {
        "betas": betas,
        "spectra": spectra,
        "jacobian_norm": grid.numpy(),
        "shared": summary(shared, BETAS),
        "shared up to 4": summary(fit(every, large), betas),
        "own 1/||J||^2": summary(own[constants.index(1.0)], betas),
        "own best step": summary(picked, betas),
        "own best constant": np.array(constants)[best],
        "curves": quantiles(shared),
        "curves, own best step": quantiles(picked),
        "setting": name,
    }


def spectra_of(weights, x, beta, n_betas):
    """Return medians over the seeds of the spectral scalars of Z, per beta, in float64."""
    with torch.no_grad():
        Z = attention_output(weights, x, beta).numpy()
    values = np.linalg.svd(Z, compute_uv=False)
    low, high = values[..., -1].min(1), values[..., 0].max(1)
    columns = {"sigma_min": low, "norm": high, "ratio": (low / high) ** 2}
    return {k: np.median(v.reshape(n_betas, -1), axis=1) for k, v in columns.items()}


def summary(curves, betas):
    """Return losses at shares of the budget, measured rates and how often larger is ahead."""
    from sklearn_restf._diagnostics.convergence_rate import measure_rate

    n_iter = curves.shape[2] - 1
    moments = [max(1, round(share * n_iter)) for share in BUDGET]
    loss = curves[:, :, moments]
    seeds = curves.shape[1]
    rates = [[measure_rate(curve).rate for curve in row] for row in curves]
    # a diverged curve is never ahead
    ahead = (loss[1:] < loss[:-1]).sum(1)
    against_zero = (loss[1:] < loss[:1]).sum(1)
    return {
        "iterations": moments,
        "loss": np.median(loss, axis=1),
        "rate": [float(np.nanmedian(r)) if np.isfinite(r).any() else np.nan for r in rates],
        "diverged": int(np.isinf(curves[:, :, -1]).sum()),
        "ahead_of_previous": {b: shares(a, seeds) for b, a in zip(betas[1:], ahead, strict=True)},
        "ahead_of_zero": {
            b: shares(a, seeds) for b, a in zip(betas[1:], against_zero, strict=True)
        },
        "ordered": shares((np.diff(loss[: len(BETAS)], axis=0) < 0).all(0).sum(0), seeds),
    }


def shares(counts, trials):
    """Return each share with its interval."""
    return [
        {"share": int(c) / trials, "interval": wilson_interval(int(c), trials)}
        for c in np.atleast_1d(counts)
    ]


def quantiles(curves):
    """Return median and quartiles over the seeds, thinned to about 100 iterations."""
    step = max(1, curves.shape[2] // 100)
    with np.errstate(invalid="ignore"):
        return np.quantile(curves[:, :, ::step], [0.25, 0.5, 0.75], axis=1, method="nearest")


def report(name, setting, result, keys):
    """Print one setting, one table per choice of the step."""
    for key in keys:
        part, rows = result[key], []
        for i, beta in enumerate(result["betas"][: len(part["loss"])]):
            spectral = [float(result["spectra"][key][i]) for key in ("sigma_min", "norm", "ratio")]
            if spectral[0] < NUMERICALLY_ZERO * spectral[1]:
                spectral[::2] = ["~0", "~0"]
            norm = float(np.median(result["jacobian_norm"][i]))
            ahead = part["ahead_of_zero"].get(beta)
            words = "" if ahead is None else f"{ahead[-1]['share']:.0%}"
            losses = [float(value) for value in part["loss"][i]]
            rows.append([f"{beta:g}", *spectral, norm, *losses, 1 - part["rate"][i], words])
        header = ["beta", "sigma_min", "||Z||", "ratio", "||J||^2"]
        header += [f"loss@{i}" for i in part["iterations"]] + ["1 - rate", "ahead of 0"]
        print_table(f"{name}: {setting.what}; step: {key} (medians over the seeds)", header, rows)


def conclusions(results):
    """Print the answers, one sentence a setting."""
    print("\nDid a larger beta converge faster, and how much of it is the scale of J?")
    for name, result in results.items():
        one = len(BETAS) - 1
        words = []
        for key in ("shared", "own 1/||J||^2", "own best step"):
            part = result[key]
            ratio = part["loss"][0][-1] / part["loss"][one][-1]
            share = part["ahead_of_zero"][1.0][-1]
            low, high = share["interval"]
            words.append(
                f"{key}: 1 ahead of 0 in {share['share']:.0%} of the seeds "
                f"[{low:.0%}, {high:.0%}], loss ratio {ratio:.3g}, all five in order in "
                f"{part['ordered'][-1]['share']:.0%}"
            )
        norm = np.median(result["jacobian_norm"], axis=1)
        growth = norm[one] / norm[0]
        gain = {
            key: np.log(result[key]["loss"][0][-1] / result[key]["loss"][one][-1])
            for key in ("shared", "own best step")
        }
        kept = gain["own best step"] / gain["shared"]
        print(f"  {name} ({SETTINGS[name].pooling}): " + "; ".join(words))
        print(
            f"     ||J||^2 grows {growth:.2g} times from beta 0 to 1, {norm[-1] / norm[0]:.2g} to "
            f"4; of log(loss at beta 0 / loss at beta 1) {kept:.0%} is left with its best step each"
        )


def draw(results):
    """Draw the loss curves with bands, shared step above, own best step below."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(2, len(results), figsize=(4.2 * len(results), 7), squeeze=False)
    colours = plt.get_cmap("viridis")(np.linspace(0, 0.9, len(BETAS)))
    for column, (name, result) in enumerate(results.items()):
        n_iter = result["shared"]["iterations"][-1]
        for row, key in enumerate(("curves", "curves, own best step")):
            ax = axes[row, column]
            low, middle, high = np.asarray(result[key], dtype=float)
            t = np.linspace(0, n_iter, middle.shape[1])
            for i, beta in enumerate(BETAS):
                ax.plot(t, middle[i], color=colours[i], label=f"{beta:g}")
                ax.fill_between(t, low[i], high[i], color=colours[i], alpha=0.2, lw=0)
            ax.set_yscale("log")
            step = "one step for all" if row == 0 else "each its own best step"
            ax.set_title(f"{name}: {READOUT[SETTINGS[name].pooling]}, {step}", fontsize=9)
            ax.set_xlabel("iteration")
        axes[0, column].set_ylabel("training loss")
        axes[1, column].set_ylabel("training loss")
    axes[0, 0].legend(title=r"$\beta$", fontsize=8)
    figure.suptitle(
        "Jena windows: training loss by residual strength (median, quartiles over seeds)"
    )
    figure.tight_layout()
    return figure
