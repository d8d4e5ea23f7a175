"""Both long trials: `python -m benchmarks.trials` attacks the wire with 100 000 random strings and 100 000 mutations of
every format, then puts everyone before the court with 20 keys, and writes what came of it to docs/.

It takes about half an hour. The exit code is 1 if a message did what none may, or if a verdict was wrong.
"""

import sys

from benchmarks import court, fuzz_wire


def main() -> int:
    hostile = fuzz_wire.main(["--count", "100000", "--write", "docs/wire-fuzz.md"])
    return hostile | court.main(["--keys", "20", "--write", "docs/court.md"])


if __name__ == "__main__":
    sys.exit(main())
