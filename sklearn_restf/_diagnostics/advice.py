"""A sentence of judgement on a convergence diagnosis, and what to change.

Each rule names a problem, the evidence, and one remedy; the tests build every situation
and check that the remedy makes training faster. Thresholds are deliberately on the safe
side: no advice is better than wrong advice.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from sklearn_restf._diagnostics.convergence_diagnostics import ConvergenceDiagnostics

COLLAPSED = 1e-2  # rank-1 residual of Z
ALIKE = 2e-2  # residual between samples of what the readout sees
ILL_CONDITIONED = 1e-8  # sigma_min^2 / ||Z||^2
COLLINEAR = 1e-7  # the same of the features that come in
VANISHING = 1e-3  # norm of the last Z relative to that of the input
SMALL_STEP = 0.9  # a step that realises so much of the first-order decrease is short
RISING = 0.1  # share of steps that raised the loss
LEVEL = 0.02  # what is still to be gained, relative to the loss
SOLVED = 0.01  # of the loss of a constant prediction
USELESS = 0.95  # of the loss of a constant prediction


@dataclass(frozen=True)
class Finding:
    """What slows training or bounds the loss, and the remedy."""

    name: str
    words: str


def judge(diagnostics: ConvergenceDiagnostics) -> str:
    """Say in plain words how training went, what slows it, and the remedy."""
    problems = find_problems(diagnostics)
    words = [outcome(diagnostics)]
    words += [problem.words for problem in problems[:3]]
    if not problems and math.isfinite(diagnostics.condition_ratio):
        words.append(_all_is_well(diagnostics))
    if "local_rate" in diagnostics.reasons or math.isfinite(diagnostics.local_rate):
        words += _outlook(diagnostics)
    return " ".join(words)


def outcome(diagnostics: ConvergenceDiagnostics) -> str:
    """Say how training ended."""
    reason, n_iter = diagnostics.stop_reason, diagnostics.n_iter
    loss = diagnostics.loss
    to = f" The loss fell from {loss[0]:.3g} to {loss[-1]:.3g}." if len(loss) > 1 else ""
    words = {
        "": "Not trained yet.",
        "diverged": f"Training diverged after {n_iter} iterations.",
        "interrupted": f"Training was interrupted after {n_iter} iterations.",
        "callback": f"A callback ended training after {n_iter} iterations.",
        "stalled": f"No step lowered the loss any more after {n_iter} iterations.",
        "tol": f"Training stopped improving after {n_iter} iterations.",
        "stationary": f"The gradient is zero after {n_iter} iterations.",
        "ended": f"Training ended after {n_iter} iterations.",
        "early_stopping": f"The validation loss stopped improving after {n_iter} iterations.",
    }
    return words.get(reason, f"All {n_iter} iterations were used.") + to


def find_problems(diagnostics: ConvergenceDiagnostics) -> list[Finding]:
    """Return what slows training or bounds the loss, most important first."""
    if diagnostics.stop_reason == "diverged":
        remedy = "Training diverged: lower learning_rate, or use learning_rate='adaptive'."
        return [Finding("diverged", remedy)]
    rules = (_step_size, _signal, _rank_collapse, _samples_alike, _conditioning, _floor, _budget)
    found = [problem for rule in rules for problem in rule(diagnostics)]
    names = {problem.name for problem in found}
    # a floor that has a cause of its own is not one of the model's size
    if len(names) > 1:
        found = [problem for problem in found if problem.name != "model_too_small"]
    return found


def _step_size(d: ConvergenceDiagnostics) -> list[Finding]:
    """Judge a step rule by how much of the promised decrease the steps realised."""
    rate, momentum = d.settings.get("learning_rate"), d.settings.get("momentum", 0.0)
    # with momentum only the first step is one along the gradient
    armijo = d.armijo[:1] if momentum else d.armijo
    armijo = armijo[np.isfinite(armijo)]
    if rate is None or (rate == "adaptive" and momentum) or not len(armijo) or _solved(d):
        return []
    rises = float((np.diff(d.loss) > 1e-12 * d.loss[:-1]).mean())
    # with momentum a loss that rises at times is nothing unusual
    if not isinstance(rate, str) and not momentum and rises > RISING:
        return [
            Finding(
                "edge_of_stability",
                f"The loss rose in {rises:.0%} of the steps: a constant learning rate cannot be "
                "raised any further. learning_rate='adaptive' is faster, and safe.",
            )
        ]
    if not isinstance(rate, str) and armijo.min() > SMALL_STEP:
        factor = 0.25 / max(1 - armijo.min(), 1e-3)
        return [
            Finding(
                "step_too_small",
                f"The learning rate is small: every step realised {armijo.min():.0%} or more of "
                f"the decrease its gradient promised. Raise it (up to {factor:.0f} times), or use "
                "learning_rate='adaptive'.",
            )
        ]
    if d.stop_reason == "max_iter" and not _level(d):
        rule = "a constant step" if momentum else "gradient descent without momentum"
        return [
            Finding(
                "plain_step_rule",
                f"Flat directions take long by {rule}: learning_rate='adaptive' with "
                "momentum=0.9 is faster.",
            )
        ]
    return []


def _signal(d: ConvergenceDiagnostics) -> list[Finding]:
    """Compare the size of Z in the last layer with that of the tokens."""
    if not d.norm < VANISHING * d.input_norm or d.settings.get("layer_norm"):
        return []
    return [
        Finding(
            "vanishing_signal",
            f"The signal dies on its way: ||Z|| is {_over(d.norm, d.input_norm)} of the tokens'. "
            "Raise residual_beta (or init_scale), or set layer_norm=True.",
        )
    ]


def _rank_collapse(d: ConvergenceDiagnostics) -> list[Finding]:
    """Look for tokens that became indistinguishable; the mean over tokens does not mind."""
    single = d.settings.get("pooling") == "mean" and d.settings.get("n_layers", 1) == 1
    already = d.input_rank1_residual < COLLAPSED
    if not d.rank1_residual < COLLAPSED or single or _solved(d):
        return []
    if already:
        return [Finding("equal_tokens", _equal_tokens(d))]
    if d.residual_beta >= 1:
        return []
    words = (
        "Z has collapsed to nearly rank one: the tokens of a sample are indistinguishable "
        f"(rank-1 residual {d.rank1_residual:.1e}). Raise residual_beta."
    )
    if d.collapse_floor > 0 and len(d.loss) and d.loss[-1] < 2 * d.collapse_floor:
        words += f" Until they differ the loss stays above {d.collapse_floor:.3g}."
    return [Finding("rank_collapse", words)]


def _equal_tokens(d: ConvergenceDiagnostics) -> str:
    if d.settings.get("standardize") is False:
        return (
            "The tokens of a sample differ little compared with their mean: centre the channels "
            "of X, set standardize=True."
        )
    return (
        "The tokens of a sample are nearly equal already in the input: set "
        "positional_encoding='sinusoidal', or use fewer tokens."
    )


def _samples_alike(d: ConvergenceDiagnostics) -> list[Finding]:
    """Look for samples that became indistinguishable to the readout."""
    if not d.sample_residual < ALIKE or _solved(d):
        return []
    if d.settings.get("standardize") is False:
        remedy = "Centre the channels of X: set standardize=True."
    elif d.residual_beta < 0.5:
        remedy = "Raise residual_beta, or use fewer layers."
    else:
        remedy = "Use fewer layers, or layer_norm=True."
    words = (
        f"All samples look nearly alike to the readout (residual {d.sample_residual:.1e}), which "
        f"slows everything but the mean. {remedy}"
    )
    return [Finding("samples_alike", words)]


def _conditioning(d: ConvergenceDiagnostics) -> list[Finding]:
    """Judge sigma_min^2 / ||Z||^2, and whether the tokens or the attention is to blame."""
    if d.rank1_residual < COLLAPSED or _solved(d):
        return []
    if d.input_condition_ratio < COLLINEAR:
        if d.settings.get("standardize") is False:
            remedy = "set standardize=True"
        else:
            remedy = "remove duplicate channels, or decorrelate them (PCA(whiten=True))"
        words = (
            "The features are ill-conditioned (sigma_min^2 / norm^2 = "
            f"{d.input_condition_ratio:.1e}), which slows what depends on their small "
            f"differences: {remedy}."
        )
        return [Finding("ill_conditioned_input", words)]
    single = d.settings.get("pooling") == "mean" and d.settings.get("n_layers", 1) == 1
    if d.condition_ratio < ILL_CONDITIONED and d.residual_beta < 0.5 and not single:
        words = (
            f"Z is ill-conditioned (sigma_min^2 / ||Z||^2 = {d.condition_ratio:.1e}), which slows "
            "the weakest directions. Raise residual_beta."
        )
        return [Finding("ill_conditioned_attention", words)]
    return []


def _floor(d: ConvergenceDiagnostics) -> list[Finding]:
    """Look for a loss that has levelled off well above zero."""
    if d.stop_reason in ("", "interrupted", "callback", "early_stopping"):
        return []
    if _solved(d) or not _level(d):
        return []
    share = float(d.loss[-1]) / d.trivial_loss if d.trivial_loss > 0 else math.nan
    if d.settings.get("alpha") and share > USELESS:
        words = (
            "The L2 penalty keeps the model at a constant prediction: unless there is nothing to "
            f"learn, lower alpha (now {d.settings['alpha']:g})."
        )
        return [Finding("penalty_floor", words)]
    if d.penalty > 0.3:
        words = (
            f"The loss has levelled off, and {d.penalty:.0%} of it is the L2 penalty: a lower "
            "alpha lowers the training loss (whether the test error too, cross-validation tells)."
        )
        return [Finding("penalty_floor", words)]
    if math.isnan(share):  # nothing to learn, or nothing to compare with
        return []
    words = (
        f"The loss has levelled off at {share:.0%} of that of a constant prediction: more "
        "iterations gain little; a larger d_ff or n_layers lowers the training loss."
    )
    return [Finding("model_too_small", words)]


def _budget(d: ConvergenceDiagnostics) -> list[Finding]:
    """Look for a run that was cut short."""
    if d.stop_reason != "max_iter" or not still_falling(d.loss):
        return []
    return [Finding("max_iter", "The loss was still falling fast: raise max_iter.")]


def _all_is_well(d: ConvergenceDiagnostics) -> str:
    if d.attention_sigma_min < d.sigma_min / 10:
        return "Z is well conditioned, and the residual connection is what keeps it so."
    return "Nothing in the spectrum of Z slows training."


def _outlook(d: ConvergenceDiagnostics) -> list[str]:
    if not len(d.forecast) or not np.isfinite(d.forecast[-1]):
        return []
    n = len(d.forecast) - 1
    return [f"Linearised, {n} more iterations would bring the loss to {d.forecast[-1]:.3g}."]


def _solved(d: ConvergenceDiagnostics) -> bool:
    """Tell whether there is next to nothing left to gain."""
    reference = d.trivial_loss if d.trivial_loss > 0 else d.loss[:1].sum()
    return bool(len(d.loss) > 1 and d.loss[-1] < SOLVED * reference)


def _level(d: ConvergenceDiagnostics) -> bool:
    """Tell whether the loss has levelled off, by extrapolating its measured rate."""
    if d.stop_reason in ("tol", "stalled", "stationary"):
        return True
    lag = max(1, d.n_iter // 10)
    if len(d.loss) <= 2 * lag:
        return False
    last = d.loss[-1 - lag] - d.loss[-1]
    factor = min(d.rate, 1.0) ** lag if math.isfinite(d.rate) else 0.0
    remaining = last * factor / (1 - factor) if factor < 1 else math.inf
    return bool(remaining < LEVEL * abs(d.loss[-1]))


def _over(value: float, reference: float) -> str:
    return f"{value / reference:.1e}"


def still_falling(loss: np.ndarray, window: int = 10) -> bool:
    """Tell whether the last iterations lowered the loss a lot.

    By more than a tenth, and by more than a twentieth of what there was to lower at the
    start: a loss that is nearly zero may go on shrinking for ever.
    """
    before = loss[max(0, len(loss) - 1 - window)]
    change = before - loss[-1]
    return bool(change > 0.1 * abs(before) and change > 0.05 * abs(loss[0]))
