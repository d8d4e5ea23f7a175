"""Print the table: `python -m benchmarks [--data-dir DIR] [--repeats N] [--write FILE]`."""

import argparse
import datetime
import platform
import sys
from pathlib import Path

import jax
import numpy as np


def main() -> int:
    """Measure all targets; the exit code is 1 if one does not hold."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__, allow_abbrev=False)
    parser.add_argument("--data-dir", help="where the real LIBSVM files lie; like-shaped data without them")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--write", type=Path, help="also write the table to this Markdown file")
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    from benchmarks import rounds, selection

    found = []
    for room in (selection, rounds):
        for one in room.measure(options.data_dir, options.repeats):
            found.append(one)
            print(f"{one.id:4} {one.measured:7.3f} (target {one.target}) {one.verdict:16} {one.what}", flush=True)
    if options.write:
        options.write.write_text(table(found))
    return int(any(one.verdict == "does not hold" for one in found))


def table(found: list) -> str:  # type: ignore[type-arg]
    command = " ".join(["python -m benchmarks", *sys.argv[1:]])
    machine = f"{jax.devices()[0].platform} ({platform.machine()})"
    versions = f"Python {platform.python_version()}, jax {jax.__version__}, NumPy {np.__version__}, float64"
    lines = [
        "# Benchmarks",
        "",
        f"Measured {datetime.date.today()} by `{command}` on {machine}, {versions}.",
        "Each is a ratio side by side in one run, the median of interleaved repeats; a base that varies by more than",
        "30 % leaves the verdict open.",
        "",
        "| id | ratio | target | measured | spread of the base | verdict |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    rows = [f"| {o.id} | {o.what} | <= {o.target} | {o.measured:.3f} | {o.spread:.0%} | {o.verdict} |" for o in found]
    return "\n".join([*lines, *rows, ""])


if __name__ == "__main__":
    sys.exit(main())
