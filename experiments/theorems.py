"""`adacgd theory TOPIC`: what the theorems promise, held against the solver, against runs and against longer steps."""

import argparse
import datetime
import importlib
import importlib.metadata
import importlib.util
import time
from pathlib import Path
from typing import Any, NamedTuple

from experiments import start
from experiments.spec import BadRequest, nearest

DONE, FAILED = 0, 1
KINDS = ("png", "pdf", "csv", "json")


class Topic(NamedTuple):
    """What a topic says of itself before anything heavy is imported.

    `experiments/NAME.py` does the work: `run(quick, progress)` gives rows with a `verdict` and `as_dict()`, and there
    are `finding(rows)`, `table(rows)` and `PACKAGES`, whose versions the record tells.
    """

    words: str
    needs: tuple[str, ...] = ()  # modules of the extra `pep`


TOPICS = {
    "tightness": Topic(
        "linear rates: theorem, exact worst case, measured trajectory (needs the extra `pep`)", ("PEPit", "clarabel")
    ),
    "edge": Topic("how many times its theorem's step each method bears, and what becomes of it beyond"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What `adacgd theory` takes."""
    add = parser.add_argument
    add("what", metavar="TOPIC", help="; ".join(f"{name}: {topic.words}" for name, topic in TOPICS.items()))
    add("--quick", action="store_true", help="fewer rows of the same code: about 10 s instead of 30")
    add("--json", action="store_true", help="the rows as JSON on stdout, in place of the table")
    add("--out", metavar="DIR", help="where the files go (default: ./adacgd-out/TOPIC)")


def tell(args: argparse.Namespace, command: str) -> int:
    """Do it; the exit code, 1 where a row does not hold. Raises BadRequest with nothing written."""
    if args.what not in TOPICS:
        raise BadRequest(f"there is no topic {args.what!r}{nearest(args.what, list(TOPICS))}")
    if args.out is not None and not args.out.strip():
        raise BadRequest("--out: the name is empty; give one, or leave the option out")
    out = Path("adacgd-out") / args.what if args.out is None else Path(args.out)
    missing = [name for name in TOPICS[args.what].needs if importlib.util.find_spec(name) is None]
    if missing:
        raise BadRequest(f'theory {args.what} needs {" and ".join(missing)}: pip install "adacgd[pep]"')
    return answer(args.what, out, args.quick, args.json, command)


def answer(topic: str, out: Path, quick: bool, as_json: bool, command: str) -> int:
    """The table on stdout; TOPIC.png, .pdf, .csv and .json in `out`."""
    from experiments import store

    paths = {kind: out / f"{topic}.{kind}" for kind in KINDS}
    try:
        store.require_writable(out)
        for path in paths.values():
            if path.is_dir():
                raise IsADirectoryError(f"{path} is a folder")
    except OSError as error:
        raise BadRequest(f"--out: {error}") from None
    start.set_up()  # the last digits of a factor are the point
    from experiments import figures, terminal

    work = importlib.import_module(f"experiments.{topic}")
    began = time.perf_counter()
    with terminal.progress() as progress:
        rows = work.run(quick, progress)
    seconds = time.perf_counter() - began
    record = {
        "rows": [row.as_dict() for row in rows],
        "finding": work.finding(rows),
        "made": {
            "command": command,
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "seconds": round(seconds, 2),
            "versions": store.versions() | {name: importlib.metadata.version(name) for name in work.PACKAGES},
        },
    }
    if as_json:
        print(store.json_text(record["rows"]), end="")
    else:
        {"tightness": terminal.show_tightness, "edge": terminal.show_edges}[topic](rows, seconds)
    drawn = figures.render(figure_of(topic, rows))
    files = {**drawn, "csv": work.table(rows).encode(), "json": store.json_text(record).encode()}
    try:
        store.commit({paths[kind]: content for kind, content in files.items()})
    except OSError as error:
        raise BadRequest(f"the files could not be written: {error}") from None
    terminal.note(f"written: {out / topic}.png, .pdf, .csv, .json")
    return DONE if all(row.verdict == "holds" for row in rows) else FAILED


def figure_of(topic: str, rows: list[Any]) -> Any:
    """The picture of its rows."""
    if topic == "tightness":
        from experiments import figures, tightness

        return figures.tightness(rows, tightness.promised)
    from experiments import edge_figure

    return edge_figure.edges(rows)
