"""Data sets by name, with the shapes and checksums of the official files, and the check of a user's own arrays.

Two sets are embedded (they come with scikit-learn): ``breast_cancer`` and ``digits``. The others are LIBSVM files,
looked for in the folder the caller names, in the folders of the environment variable ``ADACGD_DATA`` and in the user's
cache; nothing is ever fetched. A file that is not the official one, to the byte of its raw text, is refused.
"""

import dataclasses
import difflib
import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import platformdirs
import scipy.sparse as sp

from problems import libsvm
from problems.libsvm import LibsvmError, MissingFileError

__all__ = ["Data", "LibsvmError", "MissingFileError", "as_data", "datasets", "load", "search_path"]

ENVIRONMENT = "ADACGD_DATA"
SUFFIXES = ("", ".xz", ".gz", ".bz2")


@dataclass(frozen=True, eq=False, repr=False)
class Data:
    """A data set for two classes (or, for least squares, with real targets).

    `features` is an (N, d) ndarray or SciPy CSR array, `labels` an (N,) array of -1 and +1 in the same dtype. `source`
    is "embedded", "arrays" or the path read. `sha256` is that of the raw text, or of the bytes of the float64 arrays,
    features first (None for arrays of the caller). `verified` says how far it is known to be the official set:
    "sha256", "shape only" (no checksum is on record) or "unchecked".
    """

    features: Any
    labels: np.ndarray
    name: str
    source: str
    sha256: str | None = None
    verified: str = "unchecked"

    @property
    def storage(self) -> str:
        """ "sparse" or "dense"."""
        return "sparse" if sp.issparse(self.features) else "dense"

    def __repr__(self) -> str:
        rows, width = self.features.shape
        kind = f"{self.storage} {self.features.dtype}"
        return f"Data({self.name!r}, {rows} x {width} {kind}, from {self.source!r}, verified: {self.verified})"


@dataclass(frozen=True)
class _Official:
    """Rows, width and sha256 of the raw text (None: not on record) of a set, and other names its file goes by."""

    rows: int
    width: int
    sha256: str | None = None
    also: tuple[str, ...] = ()


_EMBEDDED = {
    "breast_cancer": _Official(569, 30, "2c52fd08540f0d6ef402a922974de2d1a1b8622a1bee37af6bf61cdeb381404b"),
    "digits": _Official(1797, 64, "e6004b918d8b861d67cb1cd8641b3f3f02ab6000fc01c535fd33317f806c9053"),
}
_FILES = {
    "phishing": _Official(11055, 68, "0cf66ef36604c393da9359b2e5d894a2df8aee31fd184633cefa138add2ef08a"),
    "mushrooms": _Official(8124, 112, "f39a4eb628dc61a7d43760815b061c9e497aa728ce1ad8bde57a09ef6043b538"),
    "a1a": _Official(1605, 123, "eb54c45f1bdb51286f803dd092eb8202b44637a858fc6c4e533a2d64a0d94b4e"),
    "a9a": _Official(32561, 123, "f5d5ffd8d865ff41328e7ee043e4b020816914ff6843ff15b98905ddbedce906"),
    "a9a.t": _Official(16281, 123, "1f448a153f0320399a7e40836eb207655b0bde0f21fc941cc472193daa9f5de9"),
    "w6a": _Official(17188, 300),
    "w7a": _Official(24692, 300, "bd02f445a1a2f4aaefd27d7dcc31f1f6a8521f904157f2ee7c96d1294cd26e36"),
    "w8a": _Official(49749, 300),
    "splice": _Official(1000, 60, "eee33566cfe8988ec26122460cc712d66c5c5b79b966b259408e803addaa584d"),
    "german.numer": _Official(1000, 24, "69ffe0c4ba0bd91f936986d7c070dfca7e22064bbd5ab8e1fb925d6c86024ec8"),
    "australian": _Official(690, 14, "e11b85d6265a6cc8d07e3200fc04557009e6e2407331ea8d7910eddf199c2d1a"),
    "heart_scale": _Official(270, 13, "5defa0a4c4c5bdaf3f55ae3828310252e8565c13ee37ce279e0b86d82e7f4ce9"),
    # Not an official set: the sparse text data that comes with the CoCoA code, here under a name of our own.
    "cocoa_small_train": _Official(2000, 9947, "e49c95459a812ad6f76bfe1abc8ef274b050911420c78cb96010e4c783e54af1"),
    "ijcnn1": _Official(49990, 22),
    "real-sim": _Official(72309, 20958),
    "rcv1_train": _Official(20242, 47236, also=("rcv1_train.binary",)),
    "covtype": _Official(581012, 54, also=("covtype.libsvm.binary",)),
}


def datasets() -> tuple[str, ...]:
    """Names that `load` takes: the embedded sets first, then those read from files."""
    return (*_EMBEDDED, *_FILES)


def load(
    name: str | None = None,
    *,
    path: str | os.PathLike[str] | None = None,
    n_features: int | None = None,
    index_base: int | None = None,
    dtype: Any = "float64",
    data_dir: str | os.PathLike[str] | None = None,
    sparse: bool | None = None,
    verify: bool = True,
) -> Data:
    """Load a data set by name, or a LIBSVM file of one's own by `path`.

    With a name the shape and the sha256 of the raw text must be the official ones, unless `verify` is False; `path`
    then says which file it is, otherwise `search_path(data_dir)` is searched for the name, plain or with .xz, .gz,
    .bz2. With `path` alone nothing is checked against a registry, and the set is called after its file. `data_dir` is
    a place to look and no more: a set that needs no search is loaded as if it were not given. `n_features` (the width;
    with a name the official one), `index_base` (0, 1, None), `dtype` (float64, float32) and `sparse` (True, False,
    None: by density) are those of `libsvm.Options`.

    Raises ValueError for a bad request, `LibsvmError` for a bad file and `MissingFileError` for none, all ValueErrors.
    """
    options = libsvm.Options(n_features, index_base, dtype, sparse)
    if name is None:
        if path is None:
            raise ValueError(f"load needs a name ({', '.join(datasets())}) or path=FILE")
        table = libsvm.read(path, options)
        return Data(table.features, table.labels, _stem(path), os.fspath(path), table.sha256)
    name, official = _lookup(name)
    if n_features not in (None, official.width) and verify:
        raise ValueError(
            f"{name} is {official.width} wide, not n_features={n_features}; verify=False takes other files"
        )
    if name in _EMBEDDED:
        if path is not None or index_base is not None or n_features not in (None, official.width):
            raise ValueError(f"{name} is embedded: path, index_base and another width have no effect on it")
        return _embedded(name, official, np.dtype(dtype), sparse, verify)
    file = os.fspath(path) if path is not None else str(_find(name, official, data_dir))
    text = libsvm.read_text(file)
    if verify:
        _check_sha256(text, file, name, official)
    table = libsvm.parse(text, file, dataclasses.replace(options, n_features=n_features or official.width))
    if not verify:
        return Data(table.features, table.labels, name, file, table.sha256)
    if table.features.shape[0] != official.rows:
        told = f"{file}: {name} has {official.rows} rows, this file has {table.features.shape[0]}; "
        raise LibsvmError(told + "verify=False takes it as it is", path=file)
    return Data(table.features, table.labels, name, file, table.sha256, "sha256" if official.sha256 else "shape only")


def _stem(path: str | os.PathLike[str]) -> str:
    """The name of a data file without folder, compression suffix and text suffix: ``x.svm.xz`` gives ``x``."""
    name = Path(path).name
    for suffixes in ((".xz", ".gz", ".bz2"), (".svm", ".libsvm", ".txt", ".dat", ".data")):
        for suffix in suffixes:
            if name.lower().endswith(suffix) and len(name) > len(suffix):
                name = name[: -len(suffix)]
                break
    return name


def _lookup(name: str) -> tuple[str, _Official]:
    known = {**_EMBEDDED, **_FILES}
    aliases = {alias: own for own, official in known.items() for alias in official.also}
    if name in known or name in aliases:
        own = aliases.get(name, name)
        return own, known[own]
    near = difflib.get_close_matches(str(name), [*known, *aliases], n=1, cutoff=0.0)
    raise ValueError(
        f"no data set is called {name!r}; the nearest is {near[0]!r}, all are {', '.join(known)}. "
        "For a file of your own give path=FILE and no name"
    )


def search_path(data_dir: str | os.PathLike[str] | None = None) -> list[Path]:
    """Folders in which `load` looks, in this order: `data_dir`, those of ``ADACGD_DATA``, the user's cache."""
    folders = [] if data_dir is None else [Path(data_dir)]
    folders += [Path(part).expanduser() for part in os.environ.get(ENVIRONMENT, "").split(os.pathsep) if part]
    return [*folders, Path(platformdirs.user_cache_dir("adacgd"))]


def _find(name: str, official: _Official, data_dir: str | os.PathLike[str] | None) -> Path:
    if data_dir is not None and not Path(data_dir).is_dir():
        raise MissingFileError(f"data_dir {os.fspath(data_dir)!r} is not a folder", path=os.fspath(data_dir))
    folders = search_path(data_dir)
    for folder in folders:
        for base in (name, *official.also):
            for suffix in SUFFIXES:
                file = folder / (base + suffix)
                if file.is_file():
                    return file
    names = ", ".join((name, *official.also))
    raise MissingFileError(
        f"{name}: no file called {names} (plain, .xz, .gz or .bz2) in {', '.join(map(str, folders))}. "
        f"Get the file from the LIBSVM data page, then give path=FILE, or put it into a folder named by data_dir or by "
        f"the environment variable {ENVIRONMENT} (several folders: joined by {os.pathsep!r})"
    )


def _check_sha256(text: bytes, file: str, name: str, official: _Official) -> None:
    """Before parsing: a file that is cut or edited is told as that, not by its first odd token."""
    if official.sha256 is None:
        return
    found = hashlib.sha256(text).hexdigest()
    if found != official.sha256:
        lines = text.count(b"\n") + (not text.endswith(b"\n"))
        raise LibsvmError(
            f"{file}: this is not the official {name}: sha256 of the raw text {official.sha256} expected, {found} "
            f"found; {official.rows} rows expected, {lines} lines found (a changed line end counts too). "
            "verify=False takes it as it is",
            path=file,
        )


def _embedded(name: str, official: _Official, dtype: np.dtype, sparse: bool | None, verify: bool) -> Data:
    features, labels = _breast_cancer() if name == "breast_cancer" else _digits()
    digest = hashlib.sha256(features.tobytes() + labels.tobytes()).hexdigest()
    if verify and digest != official.sha256:
        raise ValueError(f"{name}: scikit-learn's copy has changed: sha256 {official.sha256} expected, {digest} found")
    stored = sp.csr_array(features) if sparse else features
    known = "sha256" if verify else "unchecked"
    return Data(stored.astype(dtype), labels.astype(dtype), name, "embedded", digest, known)


def _breast_cancer() -> tuple[np.ndarray, np.ndarray]:
    """Return (569, 30) standardised columns, rounded so that every machine has the same bits, and +1 for benign."""
    from sklearn.datasets import load_breast_cancer  # slow to import

    raw, target = load_breast_cancer(return_X_y=True)
    return np.round((raw - raw.mean(axis=0)) / raw.std(axis=0), 6), np.where(target == 1, 1.0, -1.0)


def _digits() -> tuple[np.ndarray, np.ndarray]:
    """Return (1797, 64) grey values in [0, 1] and +1 for an even digit."""
    from sklearn.datasets import load_digits  # slow to import

    raw, target = load_digits(return_X_y=True)
    return raw / 16.0, np.where(target % 2 == 0, 1.0, -1.0)


# --- arrays of the caller ----------------------------------------------------------------------------------------


def as_data(data: Any, *, classes: bool = True) -> Data:
    """Check a `Data` or a pair (features, labels) and return it as `Data`, called "arrays" if it has no name yet.

    Features: (N, d), real and finite, an array or any SciPy sparse matrix; float32 stays, all else becomes float64.
    Labels: (N,), finite. With `classes` there must be exactly two values; the smaller becomes -1 and the larger +1.
    Otherwise they are real targets and kept. ValueError for anything else. What is given is never changed.
    """
    if not isinstance(data, Data):
        try:
            features, labels = data
        except (TypeError, ValueError):
            raise ValueError("data must be a Data object of problems.load, or a pair (features, labels)") from None
        data = Data(features, labels, "arrays", "arrays")
    features = _sparse(data.features) if sp.issparse(data.features) else _dense(data.features)
    with np.errstate(over="ignore"):
        labels = _labels(data.labels, features.shape[0], classes).astype(features.dtype)
    if not np.isfinite(labels).all():
        raise ValueError(f"a label overflows {features.dtype}, the dtype of the features")
    return dataclasses.replace(data, features=features, labels=labels)


def _float(dtype: np.dtype, what: str) -> np.dtype:
    if dtype.kind not in "fiub":
        raise ValueError(f"{what} must be real numbers, not {dtype}")
    return np.dtype("float32" if dtype == np.float32 else "float64")


def _check_table(shape: tuple[int, ...]) -> None:
    if len(shape) != 2 or 0 in shape:
        raise ValueError(f"features must be a table (N, d) with N and d at least 1, not of shape {shape}")


def _dense(given: Any) -> np.ndarray:
    features = np.asarray(given)
    _check_table(features.shape)
    features = features.astype(_float(features.dtype, "features"), copy=False)
    for row, column in np.argwhere(~np.isfinite(features))[:1]:
        raise ValueError(f"features must be finite: row {row} (counted from 0) holds {features[row, column]}")
    return features


def _sparse(given: Any) -> Any:
    _check_table(given.shape)
    features = sp.csr_array(given.astype(_float(given.dtype, "features")), copy=True)
    features.sum_duplicates()  # in the copy; it also sorts
    for at in np.flatnonzero(~np.isfinite(features.data))[:1]:
        row = np.searchsorted(features.indptr, at, side="right") - 1
        raise ValueError(f"features must be finite: row {row} (counted from 0) holds {features.data[at]}")
    return features


def _labels(given: Any, rows: int, classes: bool) -> np.ndarray:
    labels = np.asarray(given)
    _float(labels.dtype, "labels")
    labels = labels.astype(np.float64, copy=False)
    if labels.shape != (rows,):
        raise ValueError(f"labels must have shape ({rows},), one for each row of the features, not {labels.shape}")
    found = np.unique(labels)
    if not np.isfinite(found).all():
        raise ValueError(f"labels must be finite; found {libsvm.list_values(found[~np.isfinite(found)])}")
    if not classes:
        return labels
    if found.size != 2:
        raise ValueError(f"labels must take exactly two values; found {found.size}: {libsvm.list_values(found)}")
    return np.where(labels == found[1], 1.0, -1.0)
