"""What reaches the disk: whole files or none, JSON without NaN, and a stamp of what made them."""

import contextlib
import importlib.metadata
import importlib.util
import json
import math
import os
import platform
import re
import signal
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np


def commit(files: Mapping[Path, bytes]) -> None:
    """Write all files, folders included, each whole: written aside in the same folder, then put in place.

    Whatever interrupts it, no file is ever half of one; before the first is in place, nothing has changed at all.
    Ctrl-C waits for it, so that neither some of the files nor what was written aside stays behind.
    """
    with _ctrl_c_waits():
        _commit(files)


@contextlib.contextmanager
def _ctrl_c_waits() -> Iterator[None]:
    """SIGINT is remembered and delivered at the end. Only the main thread can ask for that."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    waiting: list[Any] = []
    before = signal.signal(signal.SIGINT, lambda *given: waiting.append(given))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if waiting and callable(before):
            before(*waiting[0])


def _commit(files: Mapping[Path, bytes]) -> None:
    aside: list[tuple[str, Path]] = []
    try:
        for path, content in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
            aside.append((name, path))
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(name, 0o666 & ~_umask())  # mkstemp makes files that only their owner can read
        while aside:
            os.replace(*aside[0])
            del aside[0]
    finally:
        for name, _ in aside:
            with contextlib.suppress(OSError):
                os.unlink(name)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def require_writable(folder: Path) -> None:
    """Find out, without leaving anything behind, that `folder` can be written. Raises OSError that says why not."""
    place = folder.absolute()
    while not place.exists() and place != place.parent:
        place = place.parent
    if not place.is_dir():
        raise NotADirectoryError(f"{place} is a file, not a folder")
    try:
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:
        raise PermissionError(f"{place} cannot be written: {error.strerror or error}") from None


def plain(value: Any) -> Any:
    """`value` as JSON can say it: NumPy numbers as numbers, tuples as lists, what is not finite as None."""
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def json_text(value: Any) -> str:
    """JSON in which NaN and infinity are null; floats are written so that they read back as the same bits."""
    return json.dumps(plain(value), indent=1, allow_nan=False, ensure_ascii=False) + "\n"


def own_version() -> str:
    """The version of adacgd, read without importing it: an import would start jax."""
    found = importlib.util.find_spec("adacgd")
    if found is not None and found.origin is not None:
        match = re.search(r'^__version__ = "(.+)"$', Path(found.origin).read_text(encoding="utf-8"), re.MULTILINE)
        if match:
            return match[1]
    return importlib.metadata.version("adacgd")


def versions() -> dict[str, str]:
    """Of everything that a number may depend on."""
    packages = ("jax", "jaxlib", "numpy", "scipy", "scikit-learn", "matplotlib")
    return {
        "adacgd": own_version(),
        "python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in packages},
    }
