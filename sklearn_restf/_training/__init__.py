"""Full-batch gradient descent: objective, step rule, stopping, and the loops that use them."""

from sklearn_restf._training.batched_descent import TRIALS, BatchedDescent
from sklearn_restf._training.checkpoint import TrainingCheckpoint
from sklearn_restf._training.gradient_descent import GradientDescent
from sklearn_restf._training.net import FullBatchClassifierNet, FullBatchNet, gradients_enabled
from sklearn_restf._training.objective import Objective
from sklearn_restf._training.problem import (
    Problem,
    module_config,
    refuse_beyond_range,
    refuse_other_layout,
)
from sklearn_restf._training.progress import make_progress
from sklearn_restf._training.skorch_callbacks import usable_callbacks
from sklearn_restf._training.stacked_samples import StackedSamples
from sklearn_restf._training.step_rule import (
    FIRST_RATE,
    SHRINK,
    SMALLEST_RATE,
    DeviceStepRule,
    StepRule,
    first_rate,
)
from sklearn_restf._training.stopping import (
    BLOW_UP,
    REASONS,
    Best,
    DeviceStoppingRule,
    StoppingRule,
)
from sklearn_restf._training.training_result import TrainingResult, TrainingSettings
