"""The sweep over (residual_beta, fold): which models are trained side by side, and where."""

from __future__ import annotations

import contextlib
import copy
import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import joblib
import numpy as np
import torch
from sklearn.base import clone
from sklearn.utils.parallel import Parallel, delayed

from sklearn_restf._data.batches import activation_bytes, work_per_pass
from sklearn_restf._estimator.fit import TrainableBase
from sklearn_restf._estimator.outcome import report
from sklearn_restf._model import (
    Loss,
    ModuleConfig,
    ParameterViews,
    ResidualTransformer,
    build_module,
    has_closed_form,
)
from sklearn_restf._training import (
    BatchedDescent,
    Objective,
    Problem,
    StackedSamples,
    StepRule,
    TrainingResult,
    first_rate,
    gradients_enabled,
    module_config,
)
from sklearn_restf._utils.device import resolve_device
from sklearn_restf._utils.threads import thread_limit
from sklearn_restf.model_selection._folds import Fold, SweepData
from sklearn_restf.model_selection._results import Outcome, Scorer, conclude

Task = tuple[float, Fold]  # residual_beta, fold

# Bytes of one pass (multiply-adds times the size of a number) above which sharing the cost of
# calling an operation does not pay, with a gradient in closed form and by autograd. Measured on
# one thread against one by one, in float64: 1.5 to 1.8 times as fast at 0.9e6 multiply-adds, 1.2
# at 1.8e6, 0.9 to 1.1 at 3.6e6; in float32 1.5 to 2, 1.4 to 1.5 and 1.2 to 1.3; with LayerNorm 1.1
# (float32: 1.3 to 1.5) at 0.9e6, 0.8 (0.9) at 3.6e6.
LARGEST_WORK = {True: 2e7, False: 1e7}
# more models in one call cost more in memory traffic than they save, as soon as their
# intermediate results outgrow the processor's cache, which the jobs share
TOGETHER, CACHE_BYTES = (5, 13), 2**24
GROUP_BYTES = {"cpu": 2**28, "cuda": 2**31}  # intermediate results of the models side by side


def run_sweep(
    plain: TrainableBase,
    betas: Sequence[float],
    data: SweepData,
    folds: Sequence[Fold],
    scorer: Scorer,
    *,
    n_jobs: int | None,
) -> list[list[Outcome]]:
    """Train and score one model for every residual_beta (row) and fold (column)."""
    # fold by fold, so that the models of a group share samples
    tasks = [(beta, fold) for fold in folds for beta in betas]
    jobs = min(joblib.effective_n_jobs(n_jobs), len(tasks))
    size = models_side_by_side(plain, data, folds[0], jobs)
    if size > 1:
        pieces = -(-len(tasks) // (size * jobs)) * jobs  # as many for every job
        bounds = np.linspace(0, len(tasks), pieces + 1).astype(int)
        # threads would wait for each other: small models are mostly the interpreter's work
        groups = Parallel(n_jobs=n_jobs)(
            delayed(fit_group)(plain, data, tasks[start:end], scorer)
            for start, end in itertools.pairwise(bounds)
        )
        outcomes = list(itertools.chain(*groups))
    else:
        outcomes = Parallel(n_jobs=n_jobs)(
            delayed(fit_one)(plain, data, task, scorer) for task in tasks
        )
    return [outcomes[i :: len(betas)] for i in range(len(betas))]


def models_side_by_side(plain: TrainableBase, data: SweepData, fold: Fold, jobs: int) -> int:
    """Return how many models each job is to train side by side; 1 means one by one."""
    if plain.callbacks or plain.chunk_size is not None:
        return 1
    device = resolve_device(plain.device).type
    if device == "cpu" and data.samples.tokens.values.nbytes > LARGEST_WORK[True]:
        return 1  # without copying a large array first
    _, problem = data.problem(plain, fold)
    train, config = problem.train, problem.config
    if not train.keeps_graph:
        return 1
    itemsize = torch.finfo(problem.dtype).bits // 8
    largest = LARGEST_WORK[has_closed_form(config)] / itemsize
    if device == "cpu" and work_per_pass(config, train.tokens) > largest:
        return 1
    per_model = len(train) * activation_bytes(config, problem.layout.max_tokens, itemsize)
    fit_into_memory = max(1, GROUP_BYTES.get(device, GROUP_BYTES["cpu"]) // per_model)
    if device != "cpu":
        return fit_into_memory
    fit_into_cache = CACHE_BYTES // (per_model * jobs)
    return min(fit_into_memory, int(np.clip(fit_into_cache, *TOGETHER)))


def fit_one(plain: TrainableBase, data: SweepData, task: Task, scorer: Scorer) -> Outcome:
    """Train and score one model by itself."""
    beta, fold = task
    estimator = clone(plain).set_params(residual_beta=beta)
    train = data.take(fold.train)

    def fit() -> None:
        estimator.fit(train.X, train.y, sample_weight=train.weight)

    return conclude(Outcome(), estimator, fit, data.take(fold.test), scorer)


@dataclass
class Run:
    """One model of a group: its estimator, problem, and result."""

    estimator: TrainableBase
    problem: Problem
    fold: Fold
    result: TrainingResult | None = None
    seconds: float = 0.0


def fit_group(
    plain: TrainableBase, data: SweepData, tasks: Sequence[Task], scorer: Scorer
) -> list[Outcome]:
    """Train several models side by side, and score each; fewer where memory does not suffice."""
    runs = None
    with contextlib.suppress(torch.cuda.OutOfMemoryError):
        runs = fit_side_by_side(plain, data, tasks)
    if runs is not None:
        return [finish(run, data, scorer) for run in runs]
    torch.cuda.empty_cache()
    if len(tasks) == 1:
        return [fit_one(plain, data, tasks[0], scorer)]
    half = len(tasks) // 2
    parts = tasks[:half], tasks[half:]
    return [outcome for part in parts for outcome in fit_group(plain, data, part, scorer)]


def fit_side_by_side(plain: TrainableBase, data: SweepData, tasks: Sequence[Task]) -> list[Run]:
    """Train several models, those of equal shape in one batched run."""
    runs = prepare(plain, data, tasks)
    groups: dict[Any, list[Run]] = {}
    for run in runs:
        groups.setdefault(kind(run), []).append(run)
    for group in groups.values():
        start = time.perf_counter()
        work = work_per_pass(group[0].problem.config, group[0].problem.train.tokens)
        with gradients_enabled(), thread_limit(work):
            train(group)
        for run in group:
            run.seconds += (time.perf_counter() - start) / len(group)
    return runs


def prepare(plain: TrainableBase, data: SweepData, tasks: Sequence[Task]) -> list[Run]:
    """Pose the problem of every task; those of one fold share everything but residual_beta."""
    runs: list[Run] = []
    for beta, fold in tasks:
        start = time.perf_counter()
        estimator, problem = data.problem(plain, fold)
        estimator = copy.copy(estimator).set_params(residual_beta=beta)
        config = module_config(estimator, problem.layout, problem.config.n_outputs)
        runs.append(Run(estimator, replace(problem, config=config), fold))
        runs[-1].seconds = time.perf_counter() - start
    return runs


def kind(run: Run) -> tuple[ModuleConfig, Loss]:
    """Return what models side by side have in common."""
    config = replace(run.problem.config, residual_beta=0.0, ffn_residual_beta=0.0)
    if config.n_tokens is None and config.positional_encoding != "learned":
        config = replace(config, max_tokens=0)
    return config, run.estimator._loss_function()


def train(group: list[Run]) -> None:
    """Train the models of a group."""
    config, loss = kind(group[0])
    problems = [run.problem for run in group]
    settings = group[0].estimator._training_settings()
    rates = [first_rate(settings.learning_rate, partial(curvature, run)) for run in group]
    rules = [StepRule.of(settings, rate) for rate in rates]
    objective = stack(config, problems, loss, settings.alpha)
    held_out = [problem.valid for problem in problems if problem.valid is not None]
    valid = StackedSamples.of(held_out) if held_out else None
    descent = BatchedDescent(objective, rules, settings, valid)
    for run, result in zip(group, descent.run(), strict=True):
        run.result = result


def stack(config: ModuleConfig, problems: Sequence[Problem], loss: Loss, alpha: float) -> Objective:
    """Return the objective of several models of one shape."""
    module, first = ResidualTransformer(config), problems[0]

    def tensor(values: Any) -> torch.Tensor:
        return torch.as_tensor(values, dtype=torch.float64).to(first.dtype).to(first.device)

    views = ParameterViews(module)
    configs = [problem.config for problem in problems]
    return Objective(
        module,
        StackedSamples.of([problem.train for problem in problems]),
        loss,
        alpha,
        theta=tensor(np.stack([views.flatten(problem.state) for problem in problems])),
        strengths=(
            tensor([c.residual_beta for c in configs])[:, None, None],
            tensor([c.ffn_residual_beta for c in configs])[:, None, None],
        ),
    )


def curvature(run: Run) -> float:
    """Return the largest curvature of the loss at the initial weights."""
    problem, estimator = run.problem, run.estimator
    module = build_module(problem.config, problem.state, dtype=problem.dtype, device=problem.device)
    objective = Objective(module, problem.train, estimator._loss_function(), float(estimator.alpha))
    return objective.gauss_newton_norm()


def finish(run: Run, data: SweepData, scorer: Scorer) -> Outcome:
    """Store, diagnose and score one model."""
    estimator, problem, result = run.estimator, run.problem, run.result
    assert result is not None

    def store() -> None:
        with thread_limit(work_per_pass(problem.config, problem.train.tokens)):
            estimator._store(result, problem)
            estimator._diagnose(result, problem)
        report(estimator, result)

    outcome = Outcome(fit_time=run.seconds)
    return conclude(outcome, estimator, store, data.take(run.fold.test), scorer)
