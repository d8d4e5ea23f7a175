"""A table with its date, command and machine, as the docs include it."""

import datetime
import platform
from collections.abc import Iterable, Sequence
from pathlib import Path

import jax
import numpy as np


def write(
    path: Path, title: str, command: str, words: str, columns: Sequence[str], rows: Iterable[Sequence[str]]
) -> None:
    """A Markdown page: what was measured, when, by which command, and the table."""
    machine = f"{jax.devices()[0].platform} ({platform.machine()})"
    versions = f"Python {platform.python_version()}, jax {jax.__version__}, NumPy {np.__version__}, float64"
    lines = [
        f"# {title}",
        "",
        f"Measured {datetime.date.today()} by `{command}` on {machine}, {versions}.",
        words.strip(),
        "",
        f"| {' | '.join(columns)} |",
        f"|{' --- |' * len(columns)}",
        *[f"| {' | '.join(row)} |" for row in rows],
    ]
    path.write_text("\n".join([*lines, ""]))
