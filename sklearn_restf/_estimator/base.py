"""What both estimators share: input -> tokens -> module -> train -> diagnose -> store."""

from __future__ import annotations

import copy
from abc import abstractmethod
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from sklearn.base import is_classifier
from sklearn.utils import Tags, check_random_state

from sklearn_restf._data.arrays import RawTokens, read_X, validating
from sklearn_restf._data.batches import Batches, work_per_pass
from sklearn_restf._data.samples import Samples
from sklearn_restf._data.targets import read_sample_weight
from sklearn_restf._data.tokens import TokenLayout, check_compatible, plan_layout
from sklearn_restf._data.validation_split import split_rows
from sklearn_restf._diagnostics.diagnose import diagnose_fit
from sklearn_restf._estimator.fitted import FittedEstimator, is_fitted_name
from sklearn_restf._estimator.fitted_model import FittedModel, check_same_shapes
from sklearn_restf._estimator.outcome import report
from sklearn_restf._estimator.parameter_constraints import PARAMETER_CONSTRAINTS
from sklearn_restf._estimator.ranks import agree_on_call, agree_on_samples, common_random_state
from sklearn_restf._estimator.sklearn_callbacks import CallbackSupportMixin, FitContext
from sklearn_restf._model.initialization import build_module, initial_state, state_of
from sklearn_restf._model.losses import Loss
from sklearn_restf._model.module import ResidualTransformer
from sklearn_restf._training.net import FullBatchClassifierNet, FullBatchNet
from sklearn_restf._training.problem import (
    Problem,
    module_config,
    refuse_beyond_range,
    refuse_other_layout,
)
from sklearn_restf._training.progress import make_progress
from sklearn_restf._training.skorch_callbacks import usable_callbacks
from sklearn_restf._training.training_result import TrainingResult, TrainingSettings
from sklearn_restf._utils.device import resolve_device, resolve_dtype
from sklearn_restf._utils.process_group import (
    ALONE,
    active_group,
    first,
    gather,
    rank,
    sharing_samples,
    total,
)
from sklearn_restf._utils.threads import thread_limit
from sklearn_restf._utils.validation import check_parameters, plain


class ResidualTransformerBase(CallbackSupportMixin, FittedEstimator):
    """Shared machinery of the regressor and the classifier."""

    _parameter_constraints = PARAMETER_CONSTRAINTS

    # --- what a subclass says about its targets -------------------------------------

    @abstractmethod
    def _read_targets(self, y: Any, tokens: RawTokens, input_name: str) -> np.ndarray:
        """Validate y; one entry per sample, or per token."""

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

    @abstractmethod
    def _loss_function(self) -> Loss:
        """Return the training loss."""

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
        with sharing_samples():
            result = self._fit_shard(X, y, sample_weight, X_val, y_val, sample_weight_val)
        report(self, result)

    def _fit_shard(
        self,
        X: Any,
        y: Any,
        sample_weight: Any,
        X_val: Any,
        y_val: Any,
        sample_weight_val: Any,
    ) -> TrainingResult:
        """Fit on the samples of this process, and those of the others of its group."""
        self._check_parameters()
        previous: FittedModel | None = getattr(self, "_fitted", None) if self.warm_start else None
        validated = not (X_val is None and y_val is None and sample_weight_val is None)
        agree_on_call(self, previous, validated)
        device = resolve_device(self.device)
        random_state = common_random_state(self.random_state)
        samples = self._read_samples(X, y, sample_weight, reset=previous is None)
        valid = None
        if validated:
            valid = self._read_validation(X_val, y_val, sample_weight_val)
        agree_on_samples(self, samples)
        samples, valid = self._split(samples, valid, random_state)
        problem = self._pose(samples, valid, previous, random_state, device)
        context = None
        if getattr(self, "_skl_callbacks", None):
            context = FitContext(
                self, X, y, self.max_iter, lambda net: self._provisional_attributes(net, problem)
            )
        net_class = FullBatchClassifierNet if is_classifier(self) else FullBatchNet
        net = net_class(
            build_module(problem.config, problem.state, dtype=problem.dtype, device=device),
            settings=self._training_settings(),
            train=problem.train,
            valid=problem.valid,
            warm_start_from=(
                (previous.learning_rate, previous.velocity) if previous is not None else None
            ),
            callbacks=usable_callbacks(self.callbacks, self.random_state),
            hooks=(context.begin, context.end) if context else None,
            progress=make_progress(self.verbose if rank() == 0 else 0, type(self).__name__),
            group=active_group() or ALONE,
            device=device,
        )
        with thread_limit(work_per_pass(problem.config, samples.tokens)):
            result = net.run()
            self._store(result, problem)
        self._fitted_callbacks = [callback for _, callback in net.callbacks_]
        if context:
            context.close(dict(vars(self)))
        return result

    def _check_parameters(self) -> None:
        check_parameters(
            type(self).__name__, self.get_params(deep=False), self._parameter_constraints
        )

    def _read_samples(self, X: Any, y: Any, sample_weight: Any, *, reset: bool) -> Samples:
        samples = self._read_weighted(X, y, sample_weight, reset=reset)
        weight = self._class_weight(samples.y, samples.weight)
        return replace(samples, weight=weight).without_zero_weights()

    def _read_validation(self, X_val: Any, y_val: Any, sample_weight_val: Any) -> Samples:
        if X_val is None or y_val is None:
            raise ValueError(
                "Validation samples need both X_val and y_val; sample_weight_val only goes with "
                "them."
            )
        return self._read_weighted(X_val, y_val, sample_weight_val, reset=False, suffix="_val")

    def _read_weighted(
        self,
        X: Any,
        y: Any,
        sample_weight: Any,
        *,
        reset: bool,
        suffix: str = "",
    ) -> Samples:
        """Validate samples and drop those of weight zero; `suffix` names the arguments."""
        tokens = self._read_X(X, reset=reset, input_name=f"X{suffix}")
        weight = read_sample_weight(sample_weight, tokens.n_samples, self, f"sample_weight{suffix}")
        y = self._read_targets(y, tokens, f"y{suffix}")
        return Samples(tokens, y, weight, self.pooling == "none").without_zero_weights()

    def _read_X(self, X: Any, *, reset: bool, input_name: str = "X") -> RawTokens:
        return read_X(
            self,
            X,
            reset=reset,
            token_dim=self.token_dim,
            padding_value=self.padding_value,
            input_name=input_name,
        )

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

    def _prepare_diagnosis(self, X: Any, y: Any) -> tuple[ResidualTransformer, Batches, Loss]:
        """Return a float64 module (fitted or initial), the samples and the loss, for diagnose."""
        probe = copy.copy(self)
        fitted = getattr(self, "_fitted", None)
        probe._check_parameters()
        if y is None:
            tokens = probe._read_X(X, reset=fitted is None)
            y = probe._placeholder_targets(tokens)
            samples = Samples(tokens, y, np.ones(tokens.n_samples), self.pooling == "none")
        else:
            samples = probe._read_samples(X, y, None, reset=fitted is None)
        # a copy: a diagnosis leaves the user's generator where it is
        random_state = copy.deepcopy(check_random_state(self.random_state))
        draw_split_seed(random_state)
        problem = probe._pose(samples, None, fitted, random_state, torch.device("cpu"))
        module = build_module(problem.config, problem.state)
        return module, problem.train, probe._loss_function()

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

    def _training_settings(self) -> TrainingSettings:
        return TrainingSettings(
            loss=self._loss_function(),
            learning_rate=plain(self.learning_rate),
            momentum=float(self.momentum),
            alpha=float(self.alpha),
            max_iter=int(self.max_iter),
            tol=plain(self.tol),
            n_iter_no_change=int(self.n_iter_no_change),
            verbose=int(self.verbose),
        )

    def _store(self, result: TrainingResult, problem: Problem) -> None:
        """Set the fitted attributes of a run that ended, one way or another; diagnose it."""
        earlier = getattr(self, "loss_curve_", []) if self.warm_start else []
        earlier_validation = getattr(self, "validation_curve_", []) if self.warm_start else []
        self._fitted = FittedModel(
            problem.config,
            problem.layout,
            result.state,
            self.loss,
            result.learning_rate,
            result.velocity if self.warm_start else None,
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
        diagnostics = diagnose_fit(
            self, result, problem.train, problem.config, self._loss_function()
        )
        self.convergence_diagnostics_ = first(diagnostics)

    def _provisional_attributes(self, net: FullBatchNet, problem: Problem) -> dict[str, Any]:
        """Return the fitted attributes as if training ended now, for callbacks."""
        attributes = {name: value for name, value in vars(self).items() if is_fitted_name(name)}
        state = state_of(net.module_)
        fitted = FittedModel(problem.config, problem.layout, state, self.loss, 0.0)
        return attributes | {"_fitted": fitted, "device_": str(problem.device)}

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = True
        tags.input_tags.three_d_array = True
        tags.input_tags.allow_nan = False
        tags.target_tags.required = True
        return tags


def draw_split_seed(random_state: np.random.RandomState) -> int:
    """Draw the seed of the validation split, the first number that a fit draws."""
    return int(random_state.randint(np.iinfo(np.int32).max))
