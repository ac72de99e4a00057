"""The fitted models that are written to files in one environment and read in another.

python -m tests.persistence_models write FOLDER
python -m tests.persistence_models read FOLDER [FOLDER ...]
"""

import json
import pickle
import sys
import warnings
import zipfile
from pathlib import Path

import joblib
import numpy as np
import sklearn

from sklearn_restf import (
    ResidualTransformerClassifier,
    ResidualTransformerRegressor,
    __version__,
)

RNG = np.random.RandomState(0)
TABLE = RNG.standard_normal((12, 4))
WINDOWS = RNG.standard_normal((12, 3, 2))
RAGGED = [x[: 1 + i % 3] for i, x in enumerate(WINDOWS)]
Y = WINDOWS[:, 0, 0] + TABLE[:, 0] ** 2
SMALL = {"d_ff": 3, "max_iter": 4, "tol": None, "device": "cpu", "random_state": 0}

#: name: (estimator, X, y)
MODELS = {
    "table": (
        ResidualTransformerRegressor(**SMALL, d_model=2, n_tokens=2, diagnostics=False),
        TABLE,
        np.column_stack([Y, -Y]),
    ),
    "windows": (
        ResidualTransformerRegressor(**SMALL, early_stopping="last", diagnostics_samples=2),
        WINDOWS.astype("f4"),
        Y,
    ),
    "tokens": (
        ResidualTransformerRegressor(
            **SMALL, pooling="none", layer_norm=True, d_model=2, diagnostics=False, warm_start=True
        ),
        WINDOWS,
        WINDOWS[:, :, 0],
    ),
    "classes": (
        ResidualTransformerClassifier(
            **SMALL, positional_encoding="learned", class_weight="balanced", diagnostics=False
        ),
        RAGGED,
        np.array(["low", "mid", "high"])[np.digitize(Y, [0.0, 1.0])],
    ),
}


def expected(name, estimator):
    """Return what a model says of its samples, as plain numbers."""
    X = MODELS[name][1]
    predict = getattr(estimator, "predict_proba", estimator.predict)
    return {
        "predictions": np.asarray(predict(X)).ravel().tolist(),
        "labels": np.asarray(estimator.predict(X)).ravel().tolist(),
        "loss_curve": estimator.loss_curve_,
        "summary": estimator.convergence_diagnostics_.summary(),
    }


def write(folder):
    """Fit and write all models, in every format there is here."""
    folder.mkdir(parents=True, exist_ok=True)
    found = {"sklearn_restf": __version__, "sklearn": sklearn.__version__, "models": {}}
    for name, (estimator, X, y) in MODELS.items():
        estimator.fit(X, y)
        found["models"][name] = expected(name, estimator)
        (folder / f"{name}.pickle").write_bytes(pickle.dumps(estimator, protocol=4))
        joblib.dump(estimator, folder / f"{name}.joblib")
        try:
            import skops.io
        except ImportError:
            continue
        skops.io.dump(
            estimator, folder / f"{name}.skops", compression=zipfile.ZIP_DEFLATED, compresslevel=9
        )
    text = json.dumps(found, indent=1) + "\n"
    (folder / "expected.json").write_text(text, encoding="utf-8")


def load(file):
    """Load a model; skops is to trust no more than this package's own types."""
    if file.suffix == ".skops":
        import skops.io

        types = skops.io.get_untrusted_types(file=file)
        foreign = [name for name in types if not name.startswith("sklearn_restf.")]
        assert not foreign, foreign
        return skops.io.load(file, trusted=types)
    return joblib.load(file) if file.suffix == ".joblib" else pickle.loads(file.read_bytes())


def read(folder):
    """Load all models of a folder; return how many, after comparing what they say."""
    kept = json.loads((folder / "expected.json").read_text(encoding="utf-8"))
    files = sorted(path for path in folder.iterdir() if path.suffix != ".json")
    for file in files:
        estimator = load(file)
        found, wanted = expected(file.stem, estimator), kept["models"][file.stem]
        for key in ("predictions", "loss_curve"):
            np.testing.assert_allclose(found[key], wanted[key], rtol=1e-10, atol=1e-12)
        if isinstance(wanted["labels"][0], str):
            assert found["labels"] == wanted["labels"]
        assert found["summary"] == wanted["summary"]
        estimator.get_params()
        repr(estimator)
        _, X, y = MODELS[file.stem]
        estimator.set_params(random_state=0).fit(X, y)  # goes on, or begins anew
    return len(files)


if __name__ == "__main__":
    warnings.simplefilter("error")
    if sys.argv[1] == "write":
        write(Path(sys.argv[2]))
    else:
        print(json.dumps([read(Path(name)) for name in sys.argv[2:]]))
