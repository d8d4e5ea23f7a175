"""Print the table: `python -m benchmarks [--data-dir DIR] [--repeats N] [--write FILE]`."""

import argparse
import itertools
import sys
from pathlib import Path

import jax

from benchmarks.report import write
from benchmarks.table import as_row


def main() -> int:
    """Measure all targets; the exit code is 1 if one does not hold."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__, allow_abbrev=False)
    parser.add_argument("--data-dir", help="where the real LIBSVM files lie; like-shaped data without them")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--write", type=Path, help="also write the table to this Markdown file")
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    from benchmarks import rounds, selection, startup

    found = []
    for one in itertools.chain(
        selection.rows(options.data_dir, options.repeats),
        map(as_row, rounds.measure(options.data_dir, options.repeats)),
        startup.rows(),
    ):
        found.append(one)
        print(f"{one.id:4} {one.measured:>7} (target {one.target}) {one.verdict:16} {one.what}", flush=True)
    if options.write:
        words = (
            "Each is a ratio side by side in one run, the median of interleaved repeats; a base that varies by more "
            "than\n30 % leaves the verdict open."
        )
        columns = ("id", "ratio", "target", "measured", "detail", "verdict")
        rows = [(o.id, o.what, o.target, o.measured, o.detail, o.verdict) for o in found]
        write(options.write, "Benchmarks", " ".join(["python -m benchmarks", *sys.argv[1:]]), words, columns, rows)
    return int(any(one.verdict == "does not hold" for one in found))


if __name__ == "__main__":
    sys.exit(main())
