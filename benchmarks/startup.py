"""P13: what the second command of a kind still compiles, and how soon a command answers that starts nothing."""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

from benchmarks.table import Row, judged

COMMAND = """
import collections, json, os, sys
import jax.monitoring
spent = collections.Counter()
def count(event, seconds, **facts):
    spent[event.rsplit("/", 1)[1]] += seconds * event.startswith("/jax/core/compile/")
jax.monitoring.register_event_duration_secs_listener(count)
from experiments.cli import main
code = main(["reproduce", "headline", "--quick", "--json", "--out", sys.argv[1]])
print(json.dumps({"code": code, **spent}), file=sys.stderr)
"""


def spent(cache: str, out: str) -> tuple[float, float]:
    """Seconds of tracing, lowering and compiling of `adacgd reproduce headline --quick`, and of the compiler alone."""
    run = [sys.executable, "-c", COMMAND, out]
    done = subprocess.run(run, env=os.environ | {"ADACGD_CACHE": cache}, capture_output=True, text=True)
    told = json.loads(done.stderr.splitlines()[-1])
    if told.pop("code") not in (0, 1):
        raise RuntimeError(done.stderr)
    return sum(told.values()), told["backend_compile_duration"]


def seconds(*argv: str, repeats: int = 5) -> float:
    """The median wall time of `python ...`."""
    took = []
    for _ in range(repeats):
        began = time.perf_counter()
        subprocess.run([sys.executable, *argv], capture_output=True)
        took.append(time.perf_counter() - began)
    return statistics.median(took)


def rows(repeats: int = 1) -> Iterator[Row]:
    """The second run over the first, the median of pairs, each pair with a folder of its own."""
    pairs = []
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as folder:
            pairs.append([spent(f"{folder}/cache", f"{folder}/out") for _ in range(2)])
    whole = statistics.median(second[0] / first[0] for first, second in pairs)
    compiler = statistics.median(second[1] / first[1] for first, second in pairs)
    (first, _), (second, _) = pairs[0]
    words = f"first {first:.1f} s, second {second:.1f} s, with tracing"
    yield judged("P13", "headline --quick again: trace, lower and compile / first run", whole, 0.3, words)
    yield judged("P13b", "the same, the compiler alone", compiler, 0.3)
    heavy = seconds("-c", "import jax")
    for argv in (["--help"], ["reproduce", "hedline"]):
        words = f"`adacgd {' '.join(argv)}` / `import jax`: answered before it is"
        yield judged("P13c", words, seconds("-m", "experiments", *argv) / heavy, 0.5, f"import jax: {heavy:.2f} s")


if __name__ == "__main__":
    for row in rows(int(sys.argv[1]) if sys.argv[1:] else 1):
        print(f"{row.id:5} {row.measured:>7} (target {row.target}) {row.verdict:16} {row.what} ({row.detail})")
