"""When softmax attention collapses to rank one: by initialisation, by width, by depth."""

import time

import numpy as np
from _reproduce_common import DataMissing, finish, jena_file, jena_windows, plain, print_table

from sklearn_restf._diagnostics.singular_values import centred_residual, singular_values

# name: (variance of the entries of W_Q and W_K, power of d_qk that divides the logits, tied)
VARIANTS = {
    "variance 1/d": (lambda d, k: 1 / d, 0.5, False),
    "variance 1/d_qk": (lambda d, k: 1 / k, 0.5, False),
    "Xavier 2/(d + d_qk)": (lambda d, k: 2 / (d + k), 0.5, False),
    "variance 1/d, logits / d_qk": (lambda d, k: 1 / d, 1.0, False),
    "variance 1": (lambda d, k: 1.0, 0.5, False),
    "variance 1/d, logits not scaled": (lambda d, k: 1 / d, 0.0, False),
    "tied W_Q = W_K, 1/d": (lambda d, k: 1 / d, 0.5, True),
}


def run(arguments):
    """Measure, print and save."""
    started, quick = time.perf_counter(), arguments.quick
    seeds = list(range(arguments.seeds or (3 if quick else 10)))
    widths = [16, 256, 16384] if quick else [16, 64, 256, 1024, 4096, 16384]
    n, T = (8, 12) if quick else (24, 12)
    inputs = {"Gaussian": np.random.default_rng(0).standard_normal((n, T, 21))}
    skipped = ""
    try:
        inputs["Jena"] = jena_windows(jena_file(arguments.data), n, T, unit_rows=True)[0]
    except DataMissing as missing:
        skipped = f"Jena left out: {missing}"
        print(skipped)
    tables = {name: by_width(x, widths, seeds) for name, x in inputs.items()}
    depths = {name: by_depth(x, 6, seeds) for name, x in inputs.items()}
    for name, table in tables.items():
        report_width(name, table, widths)
    for name, depth in depths.items():
        report_depth(name, depth)
    settings = {
        "seeds": seeds, "n": n, "T": T, "d": 21, "d_qk": widths, "skipped": skipped,
        "inputs": "standard Gaussian tokens; Jena rows of unit norm", "value": "variance 1/d",
        "depth": "attention only, W_Q and W_K of variance 1/d_qk with d_qk = 64, beta shared",
    }  # fmt: skip
    figure = draw(tables, depths, widths)
    results = plain({"by width": tables, "by depth": depths})
    finish("rank-collapse", results, settings, figure, started, arguments)


def attention(x, rng, variant, d_qk):
    """Return Attn(X) = A X W_V without residual connection."""
    variance, power, tied = VARIANTS[variant]
    d = x.shape[2]
    scale = np.sqrt(variance(d, d_qk))
    query = scale * rng.standard_normal((d, d_qk))
    key = query if tied else scale * rng.standard_normal((d, d_qk))
    logits = x @ (query @ key.T) @ x.transpose(0, 2, 1) / d_qk**power
    logits -= logits.max(2, keepdims=True)
    A = np.exp(logits)
    A /= A.sum(2, keepdims=True)
    return A @ x @ (rng.standard_normal((d, d)) / np.sqrt(d))


def measure(Z):
    """Return the scalars of a batch of token matrices: worst sigma_min, median residual."""
    values = singular_values(Z)
    return {
        "sigma_min": values[:, -1].min(),
        "relative": (values[:, -1] / values[:, 0]).min(),
        "norm": values[:, 0].max(),
        "rank1_residual": float(np.median(centred_residual(Z))),
    }


def by_width(x, widths, seeds):
    """Measure Attn(X) (beta 0) and Z at beta 1 for every initialisation and width."""
    table = {}
    for variant in VARIANTS:
        table[variant] = {}
        for beta in (0.0, 1.0):
            rows = []
            for width in widths:
                measured = []
                for seed in seeds:
                    rng = np.random.default_rng([seed, width])
                    measured.append(measure(beta * x + attention(x, rng, variant, width)))
                rows.append({k: float(np.median([m[k] for m in measured])) for k in measured[0]})
            table[variant][f"beta {beta:g}"] = rows
    return table


def by_depth(x, n_layers, seeds):
    """Measure Z after each attention layer (attention only: no feed-forward network)."""
    depth = {}
    for beta in (0.0, 0.25, 1.0):
        residuals = np.zeros((len(seeds), n_layers + 1))
        for row, seed in enumerate(seeds):
            rng = np.random.default_rng([seed, 1])
            F = x
            residuals[row, 0] = np.median(centred_residual(F))
            for layer in range(1, n_layers + 1):
                F = beta * F + attention(F, rng, "variance 1/d_qk", 64)
                residuals[row, layer] = np.median(centred_residual(F))
        depth[f"beta {beta:g}"] = np.median(residuals, axis=0)
    return depth


def report_width(name, table, widths):
    """Print the rank-1 residual by width, and sigma_min at the largest."""
    rows = []
    for variant, by_beta in table.items():
        zero, one = by_beta["beta 0"], by_beta["beta 1"]
        residuals = [row["rank1_residual"] for row in zero]
        slope = np.log(residuals[-1] / residuals[-2]) / np.log(widths[-1] / widths[-2])
        sigmas = [zero[-1]["sigma_min"], one[-1]["sigma_min"]]
        rows.append([variant, *residuals, float(slope), one[-1]["rank1_residual"], *sigmas])
    header = ["W_Q, W_K", *[f"res. {w}" for w in widths], "power", "res. beta 1"]
    header += ["sigma_min b=0", "sigma_min b=1"]
    title = f"{name}: rank-1 residual of Attn(X) by d_qk, its power law; at the largest d_qk: Z"
    print_table(title, header, rows)


def report_depth(name, depth):
    """Print the rank-1 residual by depth, and the exponent from layer to layer."""
    rows = []
    for beta, residuals in depth.items():
        rows.append([beta, *[float(r) for r in residuals]])
        # r -> r^3 where the logits are as small as the differences: doubly exponential
        logs = np.log(residuals)
        usable = residuals[1:] > 1e-14
        growth = [
            float(b / a) if ok else "~0" for a, b, ok in zip(logs, logs[1:], usable, strict=False)
        ]
        rows.append(["  log r' / log r", "", *growth])
    header = [f"{name}", *[f"layer {i}" for i in range(len(residuals))]]
    print_table("Rank-1 residual by depth, attention only", header, rows)


def draw(tables, depths, widths):
    """Draw residual by width, sigma_min by width, and residual by depth."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(len(tables), 3, figsize=(15, 4.2 * len(tables)), squeeze=False)
    for row, (name, table) in enumerate(tables.items()):
        for variant, by_beta in table.items():
            zero, one = by_beta["beta 0"], by_beta["beta 1"]
            (line,) = axes[row, 0].plot(
                widths, [r["rank1_residual"] for r in zero], "o-", label=variant
            )
            colour = line.get_color()
            axes[row, 1].plot(widths, [r["relative"] for r in zero], "o-", color=colour)
            axes[row, 1].plot(widths, [r["relative"] for r in one], "s--", color=colour)
        for beta, residuals in depths[name].items():
            axes[row, 2].plot(np.asarray(residuals), "o-", label=beta.replace("beta", r"$\beta$ ="))
        axes[row, 0].set_title(f"{name}: Attn(X)")
        axes[row, 0].set_ylabel("rank-1 residual")
        axes[row, 1].set_title(f"{name}: Z, beta = 0 (solid), 1 (dashed)")
        axes[row, 1].set_ylabel(r"$\sigma_{\min} / \|Z\|$")
        axes[row, 2].set_title(f"{name}: depth, attention only")
        axes[row, 2].set_ylabel("rank-1 residual")
        axes[row, 2].set_xlabel("layer")
        axes[row, 2].set_ylim(1e-17, 3)
        axes[row, 2].legend(fontsize=8)
        for ax in axes[row, :2]:
            ax.set_xscale("log")
            ax.set_xlabel(r"$d_{qk}$")
        for ax in axes[row]:
            ax.set_yscale("log")
    axes[0, 0].legend(fontsize=7)
    figure.tight_layout()
    return figure
