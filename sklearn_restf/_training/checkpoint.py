"""Checkpoints of training, from which a fit that was killed goes on."""

from __future__ import annotations

import io
import os
import zipfile
from pathlib import Path
from typing import Any

import torch
from skorch.callbacks import Callback

from sklearn_restf._training.fingerprint import differences, identity
from sklearn_restf._training.net import FullBatchNet
from sklearn_restf._training.training_state import FORMAT_VERSION, restore, state_of_training
from sklearn_restf._utils.files import remove_leftovers, write_whole
from sklearn_restf._utils.warnings import warn


class TrainingCheckpoint(Callback):
    """Save the state of a fit to a file every so often, and go on from it.

    Give it to the `callbacks` of an estimator. When the process dies, run the same program
    again: `fit` finds the file, goes on from the iteration that was saved last, and ends as
    if nothing had happened, with the same weights (to the last bit in the same environment
    on one thread), loss curve and diagnostics.

    The file is always whole: it is written beside the old one, which it then replaces at
    once. Reading it runs no code. It belongs to one fit: found by a fit with another model,
    other samples or other initial weights it is refused, so that nothing is mixed up. When
    training ends only for another `max_iter`, `tol` or `n_iter_no_change`, the fit goes on.

    Parameters
    ----------
    path : str or path-like
        The file. Its folder is made if it is missing. After the fit the file stays, so that a
        process killed before it has saved the estimator loses nothing either: delete it when
        it is not needed any more.
    every : int, default=10
        Iterations between two savings. A fit that goes on repeats at most so many.

    Attributes
    ----------
    resumed_from_ : int
        The iteration this fit went on from; 0 when it began at its start.

    See Also
    --------
    skorch.callbacks.Checkpoint : Saves the weights of the best epoch of any net.

    Notes
    -----
    `random_state` must be set: without it the program run again would be another fit. Other
    callbacks begin anew when a fit goes on.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from sklearn.datasets import load_iris
    >>> from sklearn_restf import ResidualTransformerClassifier
    >>> from sklearn_restf.callbacks import TrainingCheckpoint
    >>> X, y = load_iris(return_X_y=True)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     checkpoint = TrainingCheckpoint(Path(folder) / "iris.checkpoint")
    ...     model = ResidualTransformerClassifier(
    ...         max_iter=20, tol=None, callbacks=[checkpoint], random_state=0
    ...     )
    ...     _ = model.fit(X, y)  # and in another process, longer:
    ...     _ = model.set_params(max_iter=30).fit(X, y)
    >>> model.callbacks_[0].resumed_from_, model.n_iter_
    (20, 30)
    """

    def __init__(self, path: Any, *, every: int = 10) -> None:
        self.path = path
        self.every = every

    def initialize(self) -> TrainingCheckpoint:
        """Forget the last fit.

        Returns
        -------
        self : TrainingCheckpoint
            The callback itself, as skorch expects.
        """
        if isinstance(self.every, bool) or not isinstance(self.every, int) or self.every < 1:
            raise ValueError(
                "every of TrainingCheckpoint must be a whole number of iterations, at least 1; "
                f"got every={self.every!r}."
            )
        if not isinstance(self.path, str | os.PathLike) or Path(self.path).is_dir():
            raise ValueError(
                f"path of TrainingCheckpoint must be the path of a file; got path={self.path!r}."
            )
        self.resumed_from_ = 0
        self._complained = False
        return self

    def on_train_begin(self, net: Any, X: Any = None, y: Any = None, **kwargs: Any) -> None:
        """Go on from the file if there is one."""
        if not isinstance(net, FullBatchNet):
            raise TypeError(
                "TrainingCheckpoint is for the estimators of sklearn_restf; in other nets use "
                "skorch.callbacks.Checkpoint."
            )
        self._identity = identity(net)
        path = Path(self.path)
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_leftovers(path)
        if path.exists():
            self._check(state := read(path), net)
            restore(net, state)
            self.resumed_from_ = net.result_.n_iter

    def on_epoch_end(self, net: Any, **kwargs: Any) -> None:
        """Save every so often."""
        if net.result_.n_iter % self.every:
            return
        content = io.BytesIO()
        torch.save(state_of_training(net) | {"fit": self._identity}, content)
        try:
            write_whole(Path(self.path), content.getvalue())
        except OSError as error:  # a full disk must not cost the training
            if not self._complained:
                warn(
                    f"The checkpoint {self.path} could not be written ({error}). Training goes "
                    "on; an older checkpoint, if there was one, is intact.",
                    UserWarning,
                )
            self._complained = True

    def _check(self, state: dict[str, Any], net: FullBatchNet) -> None:
        """Raise unless the checkpoint is of this fit."""
        differing = differences(state["fit"], self._identity)
        if differing:
            raise ValueError(
                f"The checkpoint {self.path} belongs to another fit, which differs in "
                f"{', '.join(differing)}. Delete the file, or name another one, to begin anew."
            )
        reached = len(state["learning_rates"])
        if reached > net.settings.max_iter:
            raise ValueError(
                f"The checkpoint {self.path} is of iteration {reached}, beyond "
                f"max_iter={net.settings.max_iter}. Raise max_iter, or delete the file to begin "
                "anew."
            )


def read(path: Path) -> dict[str, Any]:
    """Read a checkpoint; no code in it is run."""
    content = io.BytesIO(path.read_bytes())
    try:
        with zipfile.ZipFile(content) as parts:  # torch itself does not look at the checksums
            if broken := parts.testzip():
                raise ValueError(f"the checksum of {broken} is wrong")
        content.seek(0)
        state = torch.load(content, map_location="cpu", weights_only=True)
        version = state["format_version"]
    except Exception as error:  # torch has no exception of its own for this
        raise ValueError(
            f"{path} is no checkpoint of this package, or is damaged ({error}). Delete the file, "
            "or name another one."
        ) from error
    if version > FORMAT_VERSION:
        raise ValueError(
            f"The checkpoint {path} was written by a newer sklearn-restf (its format is {version}, "
            f"known here up to {FORMAT_VERSION}). Update sklearn-restf to go on from it."
        )
    return state
