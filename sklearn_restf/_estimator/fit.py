"""How an estimator is fitted: read, split, pose, train, store, diagnose, report."""

from __future__ import annotations

import copy
from abc import abstractmethod
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from sklearn.base import is_classifier
from sklearn.utils import check_random_state

from sklearn_restf._data.arrays import RawTokens, validating
from sklearn_restf._data.batches import Batches, work_per_pass
from sklearn_restf._data.samples import Samples
from sklearn_restf._data.tokens import TokenLayout, check_compatible, plan_layout
from sklearn_restf._data.validation_split import split_rows
from sklearn_restf._diagnostics.diagnose import diagnose_fit
from sklearn_restf._estimator.base import ResidualTransformerBase
from sklearn_restf._estimator.fitted_model import FittedModel, check_same_shapes
from sklearn_restf._estimator.outcome import report
from sklearn_restf._estimator.ranks import agree_on_call, agree_on_samples, common_random_state
from sklearn_restf._estimator.sklearn_callbacks import FitContext
from sklearn_restf._model import Loss, ResidualTransformer, build_module, initial_state, state_of
from sklearn_restf._training import (
    FullBatchClassifierNet,
    FullBatchNet,
    Problem,
    TrainingResult,
    make_progress,
    module_config,
    refuse_beyond_range,
    refuse_other_layout,
    usable_callbacks,
)
from sklearn_restf._utils.device import resolve_device, resolve_dtype
from sklearn_restf._utils.process_group import (
    first,
    gather,
    rank,
    sharing_samples,
    total,
)
from sklearn_restf._utils.threads import thread_limit


class TrainableBase(ResidualTransformerBase):
    """An estimator whose parameters are those of one model: it trains itself."""

    # --- fit ------------------------------------------------------------------------

    def _fit(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        X_val: Any = None,
        y_val: Any = None,
        sample_weight_val: Any = None,
    ) -> None:
        """Fit on the samples of this process, and those of the others of its group."""
        with self._new_state(go_on=self.warm_start) as new:
            with sharing_samples():
                samples, valid = new._read(X, y, sample_weight, (X_val, y_val, sample_weight_val))
                result = new._fit_samples(samples, valid, FitContext.of(self, X, y))
            report(new, result)

    def _fit_samples(
        self, samples: Samples, valid: Samples | None, context: FitContext | None
    ) -> TrainingResult:
        """Fit on samples that have been read; `context` reports to scikit-learn's callbacks."""
        previous, device = self._previous(), resolve_device(self.device)
        random_state = common_random_state(self.random_state)
        samples, valid = self._split(samples, valid, random_state)
        problem = self._pose(samples, valid, previous, random_state, device)
        with thread_limit(work_per_pass(problem.config, problem.train.tokens)):
            result = self._train(problem, previous, context)
            self._store(result, problem)
            self._diagnose(result, problem)
        if context:
            context.close(self._fitted_state())
        return result

    def _previous(self) -> FittedModel | None:
        """Return the model that training goes on from (warm_start)."""
        return vars(self).get("_fitted")

    def _read(
        self, X: Any, y: Any, sample_weight: Any, validation: tuple[Any, Any, Any]
    ) -> tuple[Samples, Samples | None]:
        """Check the parameters, and read the samples to train on and those to validate on."""
        self._check_parameters()
        previous, valid = self._previous(), None
        validated = any(argument is not None for argument in validation)
        agree_on_call(self, previous, validated)
        samples = self._read_samples(X, y, sample_weight, reset=previous is None)
        samples = self._with_class_weights(samples)
        if validated:
            valid = self._read_validation(*validation)
        agree_on_samples(self, samples)
        return samples, valid

    def _train(
        self, problem: Problem, previous: FittedModel | None, context: FitContext | None
    ) -> TrainingResult:
        """Run gradient descent; keep the callbacks as they were used."""
        attributes_of = partial(self._provisional_attributes, problem)
        net_class = FullBatchClassifierNet if is_classifier(self) else FullBatchNet
        net = net_class(
            build_module(problem.config, problem.state, dtype=problem.dtype, device=problem.device),
            settings=self._training_settings(),
            train=problem.train,
            valid=problem.valid,
            warm_start_from=(previous.learning_rate, previous.velocity) if previous else None,
            callbacks=usable_callbacks(self.callbacks, self.random_state),
            hooks=context.hooks(attributes_of) if context else None,
            progress=make_progress(self.verbose if rank() == 0 else 0, type(self).__name__),
            device=problem.device,
        )
        result = net.run()
        self._fitted_callbacks = [callback for _, callback in net.callbacks_]
        return result

    def _read_validation(self, X_val: Any, y_val: Any, sample_weight_val: Any) -> Samples:
        if X_val is None or y_val is None:
            raise ValueError(
                "Validation samples need both X_val and y_val; sample_weight_val only goes with "
                "them."
            )
        valid = self._read_samples(X_val, y_val, sample_weight_val, reset=False, suffix="_val")
        return valid.without_zero_weights()

    def _with_class_weights(self, samples: Samples) -> Samples:
        """Multiply the weights by those of the classes, and drop samples of weight zero."""
        samples = samples.without_zero_weights()
        weight = self._class_weight(samples.y, samples.weight)
        return replace(samples, weight=weight).without_zero_weights()

    def _split(
        self, samples: Samples, valid: Samples | None, random_state: np.random.RandomState
    ) -> tuple[Samples, Samples | None]:
        """Hold out what early stopping watches, unless the user gave it."""
        seed = draw_split_seed(random_state)  # drawn always: same weights either way
        if valid is not None or not self.early_stopping:
            return samples, valid
        train, held_out = split_rows(
            samples.tokens.n_samples,
            self.validation_fraction,
            how=self.early_stopping,
            labels=self._stratify(samples.y),
            seed=seed,
        )
        return samples.take(train), samples.take(held_out)

    def _pose(
        self,
        samples: Samples,
        valid: Samples | None,
        previous: FittedModel | None,
        random_state: np.random.RandomState,
        device: torch.device,
    ) -> Problem:
        """Turn samples into tokens, targets and initial weights."""
        if previous is None:
            self._learn_targets(samples.y, samples.tokens, samples.weight)
            layout = self._plan_layout(samples.tokens, samples.weight)
        else:
            layout = previous.layout
            samples = self._compatible(layout, samples)
            refuse_other_layout(layout, self._plan_layout(samples.tokens, samples.weight))
            self._refuse_other_targets(samples.y, samples.tokens, samples.weight)
        encoded = self._encode_targets(samples.y, samples.tokens)
        config = module_config(self, layout, encoded.shape[-1])
        if previous is None:
            state = initial_state(
                config, random_state, init=self.init, init_scale=float(self.init_scale)
            )
            state["readout_bias"] = self._initial_bias(encoded, samples.weight)
        else:
            state = previous.state
            check_same_shapes(state, config)
        found = np.result_type(*gather(samples.tokens.values.dtype))
        dtype = resolve_dtype(self.dtype, found, device)
        refuse_beyond_range(self, dtype)

        def batches(samples: Samples, encoded: np.ndarray, *, may_cache: bool = True) -> Batches:
            return Batches(
                samples.tokens,
                layout,
                encoded,
                samples.weight,
                config=config,
                chunk_size=self.chunk_size,
                dtype=dtype,
                device=device,
                labels=self._class_indices(samples.y),
                total_weight=total(samples.weight.sum()),
                may_cache=may_cache,
            )

        if valid is None:
            train, held_out = batches(samples, encoded), None
        else:
            with validating("X_val"):
                valid = self._compatible(layout, valid)
            encoded_valid = self._encode_targets(valid.y, valid.tokens, "y_val")
            train = batches(samples, encoded)
            # what trains on a file in little memory validates in little memory
            held_out = batches(valid, encoded_valid, may_cache=train.is_cached)
        return Problem(config, layout, state, train, held_out, dtype, device)

    def _compatible(self, layout: TokenLayout, samples: Samples) -> Samples:
        """Check samples against what was fitted, and bring them into its form."""
        check_compatible(
            layout,
            samples.tokens,
            type(self).__name__,
            fixed=self.positional_encoding == "learned",
        )
        return samples.in_layout(layout)

    def _plan_layout(self, tokens: RawTokens, weight: np.ndarray) -> TokenLayout:
        layout = plan_layout(
            tokens,
            n_tokens=self.n_tokens,
            standardize=bool(self.standardize),
            weight=weight,
        )
        if layout.kind == "ragged" and self.pooling == "flatten":
            raise ValueError(
                "pooling='flatten' has one weight per token position and needs samples of equal "
                "length; X is ragged. Use pooling='mean' or 'last'."
            )
        return layout

    def _store(self, result: TrainingResult, problem: Problem) -> None:
        """Set the fitted attributes of a run that ended, one way or another."""
        earlier = getattr(self, "loss_curve_", [])  # of the fits this one goes on from
        earlier_validation = getattr(self, "validation_curve_", [])
        self._fitted = FittedModel(
            problem.config,
            problem.layout,
            result.state,
            self.loss,
            result.learning_rate,
            result.velocity if self.warm_start else None,
            result.history,
        )
        self.n_iter_ = result.n_iter
        self.n_tokens_ = problem.layout.n_tokens
        self.loss_curve_ = earlier + result.losses[1:]
        self.validation_curve_ = earlier_validation + result.validation_losses
        self.loss_ = result.loss
        self.best_loss_ = min(earlier + result.losses)
        self.best_iteration_ = result.best_iteration
        self.learning_rate_ = float(result.learning_rate)
        self.stop_reason_ = result.stop_reason
        self.device_ = str(problem.device)
        self.dtype_ = str(problem.dtype).removeprefix("torch.")

    def _diagnose(self, result: TrainingResult, problem: Problem) -> None:
        """Set the diagnostics of a run that has been stored."""
        diagnostics = diagnose_fit(
            self, result, problem.train, problem.config, self._loss_function()
        )
        self.convergence_diagnostics_ = first(diagnostics)

    def _provisional_attributes(self, problem: Problem, net: FullBatchNet) -> dict[str, Any]:
        """Return the fitted attributes as if training ended now, for callbacks."""
        state = state_of(net.module_)
        fitted = FittedModel(problem.config, problem.layout, state, self.loss, 0.0)
        return self._fitted_state() | {"_fitted": fitted, "device_": str(problem.device)}

    def _prepare_diagnosis(self, X: Any, y: Any) -> tuple[ResidualTransformer, Batches, Loss]:
        """Return a float64 module (fitted or initial), the samples and the loss, for diagnose."""
        probe = object.__new__(type(self))  # what is learned from the samples stays in it
        probe.__dict__.update(vars(self))
        fitted = self._previous()
        probe._check_parameters()
        if y is None:
            tokens = probe._read_X(X, reset=fitted is None)
            y = probe._placeholder_targets(tokens)
            samples = Samples(tokens, y, np.ones(tokens.n_samples), self.pooling == "none")
        else:
            samples = probe._read_samples(X, y, None, reset=fitted is None)
            samples = probe._with_class_weights(samples)
        # a copy: a diagnosis leaves the user's generator where it is
        random_state = copy.deepcopy(check_random_state(self.random_state))
        draw_split_seed(random_state)
        problem = probe._pose(samples, None, fitted, random_state, torch.device("cpu"))
        module = build_module(problem.config, problem.state)
        return module, problem.train, probe._loss_function()

    # --- what a subclass says about its targets -------------------------------------

    @abstractmethod
    def _learn_targets(self, y: np.ndarray, tokens: RawTokens, weight: np.ndarray) -> None:
        """Set the fitted attributes that describe the targets."""

    def _refuse_other_targets(self, y: np.ndarray, tokens: RawTokens, weight: np.ndarray) -> None:
        """Raise for targets to which the previous fit cannot be taken on (warm_start)."""

    @abstractmethod
    def _encode_targets(
        self, y: np.ndarray, tokens: RawTokens, input_name: str = "y"
    ) -> np.ndarray:
        """Return what the module is trained to output, one column per output."""

    @abstractmethod
    def _placeholder_targets(self, tokens: RawTokens) -> np.ndarray:
        """Return targets of the right shape that say nothing, for a diagnosis without y."""

    def _initial_bias(self, encoded: np.ndarray, weight: np.ndarray) -> np.ndarray:
        """Return the readout bias to start from."""
        return np.zeros(encoded.shape[-1])

    def _stratify(self, y: np.ndarray) -> np.ndarray | None:
        """Return labels to stratify a random validation split by."""
        return None

    def _class_indices(self, y: np.ndarray) -> np.ndarray | None:
        """Return class indices, for callbacks that score."""
        return None

    def _class_weight(self, y: np.ndarray, weight: np.ndarray) -> np.ndarray:
        """Return the sample weights times the class weights."""
        return weight


def draw_split_seed(random_state: np.random.RandomState) -> int:
    """Draw the seed of the validation split, the first number that a fit draws."""
    return int(random_state.randint(np.iinfo(np.int32).max))
