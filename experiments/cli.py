"""The command line: `adacgd reproduce | run | certify | theory | list`.

Exit codes: 0 done; 1 a claim, check or cell failed; 2 bad request, nothing written; 3 a run asked for by itself
diverged; 4 a process of several was lost; 130 interrupted. Nothing heavy is imported until the request is known to be
well-formed.
"""

import argparse
import contextlib
import os
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

from experiments import processes, theorems, trial
from experiments import spec as specs
from experiments.spec import BadRequest, nearest

DONE, BAD_REQUEST, INTERRUPTED, PIPE_CLOSED = 0, 2, 130, 141
EXIT_CODES = (
    "exit codes: 0 done; 1 a claim or check failed; 2 bad request; 3 diverged; 4 a process of several was lost; "
    "130 interrupted"
)
EXAMPLES = {
    "": "example: adacgd reproduce headline --quick",
    "reproduce": "examples:\n  adacgd reproduce headline --quick\n  adacgd reproduce headline --data phishing --path "
    "phishing.xz --workers 10 --set problem.strength=0.01",
    "run": "examples:\n  adacgd run my.toml --out results --set budget.rounds=5000\n"
    "  adacgd run my.toml --devices all\n  srun --ntasks=4 adacgd run my.toml --distributed",
    "certify": "examples:\n  adacgd certify adacgd:'TopK(5)' --dim 20\n  adacgd certify mine.py:MINE --keys 20 --json",
    "theory": "examples:\n  adacgd theory tightness --quick --out results\n  adacgd theory edge",
    "list": "example: adacgd list",
}


class Parser(argparse.ArgumentParser):
    """argparse that takes no abbreviation and answers a mistake in one line, by an exception."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.update(allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter)
        super().__init__(*args, **kwargs)

    def error(self, message: str) -> NoReturn:
        """Raise BadRequest instead of printing the usage."""
        raise BadRequest(f"{message} (see {self.prog} --help)")

    def options(self) -> list[str]:
        """Every option it takes."""
        return [word for action in self._actions for word in action.option_strings]


class Version(argparse.Action):
    """`--version`, looked up only when asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *args: Any) -> None:
        """Print it and leave."""
        from experiments.store import own_version

        print(f"adacgd {own_version()}")
        parser.exit()


def parsers() -> tuple[Parser, dict[str, Parser]]:
    """The parser, and that of each command."""
    top = Parser(prog="adacgd", description="Communication-compressed distributed optimisation: reproduce and check.")
    top.epilog = f"{EXAMPLES['']}\n{EXIT_CODES}"
    top.add_argument("--version", action=Version, nargs=0, help="show the version")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    told = {
        "reproduce": "run an experiment that comes with the package, and judge its claims",
        "run": "run an experiment of your own, written like experiments/specs/headline.toml",
        "certify": "put the claimed constant of a compressor or map of your own on trial",
        "theory": "what the theorems promise, held against exact worst cases, against runs and against longer steps",
        "list": "what can be reproduced, what it claims and what it costs",
    }
    found = {}
    for name, words in told.items():
        epilog = f"{EXAMPLES[name]}\n{EXIT_CODES}"
        found[name] = commands.add_parser(
            name, help=words, description=f"{words[0].upper()}{words[1:]}.", epilog=epilog
        )
    found["reproduce"].add_argument("what", metavar="NAME|all", help="which experiment (see `adacgd list`)")
    found["run"].add_argument("what", metavar="SPEC.toml", help="the file that says what to run")
    trial.add_arguments(found["certify"])
    theorems.add_arguments(found["theory"])
    for name in ("reproduce", "run"):
        add = found[name].add_argument
        add(
            "--quick",
            action="store_true",
            help="part of the grid only: about 20 s on the embedded data, minutes on large files",
        )
        add("--json", action="store_true", help="the rows as JSON on stdout, in place of the table")
        add("--out", metavar="DIR", help="where the files go (default: ./adacgd-out/NAME)")
        add("--data", metavar="NAME", help="another data set, by name")
        add("--path", metavar="FILE", help="its LIBSVM file, plain or .xz, .gz, .bz2; alone: any such file")
        add("--data-dir", metavar="DIR", help="where to look for the file of --data")
        add("--workers", metavar="N", help="how many workers share the rows")
        add(
            "--devices",
            metavar="N|all",
            help="spread the workers over so many devices (a CPU stands for N)",
        )
        add(
            "--distributed",
            action="store_true",
            help="this is one of several processes, as srun, mpirun or JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and "
            "JAX_PROCESS_ID say; the first one prints and writes; --devices counts those of each",
        )
        add(
            "--set", metavar="KEY=VALUE", action="append", default=[], help="any key of the spec, such as grid.ks=[1,2]"
        )
    return top, found


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The arguments, or BadRequest with the nearest valid word."""
    top, commands = parsers()
    first = next((word for word in argv if not word.startswith("-")), None)
    if first is not None and first not in commands and "--help" not in argv[: argv.index(first)]:
        raise BadRequest(f"there is no command {first!r}{nearest(first, commands)}")
    args, unknown = top.parse_known_args(argv)
    if unknown:
        own = commands.get(args.command, top)
        option = next((word for word in unknown if word.startswith("-")), None)
        if option is None:
            raise BadRequest(f"unexpected argument {unknown[0]!r} (see {own.prog} --help)")
        option = option.partition("=")[0]
        raise BadRequest(f"{own.prog} has no option {option!r}{nearest(option, own.options())}")
    return args


def overrides(args: argparse.Namespace) -> dict[str, Any]:
    """Dotted key -> value, each given once."""
    found: dict[str, Any] = {}
    asked: list[tuple[str, str, Any]] = []
    if args.data is not None:
        asked.append(("--data", "problem.data", args.data))
    if args.path is not None:
        asked.append(("--path", "problem.path", args.path))
        if args.data is None:
            asked.append(("--path without --data", "problem.data", None))
    if args.workers is not None:
        asked.append(("--workers", *specs.setting(f"problem.workers={args.workers}")))
    asked += [("--set", *specs.setting(given)) for given in args.set]
    for option, key, value in asked:
        if key in found:
            raise BadRequest(f"{option}: {key} is given twice")
        found[key] = value
    return found


def devices(args: argparse.Namespace) -> int | str | None:
    """How many, "all", or None where nothing is to be spread. Raises BadRequest."""
    asked = args.devices
    if asked is not None and asked != "all" and not (asked.isascii() and asked.isdigit() and 1 <= int(asked) < 2**16):
        raise BadRequest(f"--devices must be a whole number, 1 or more, or 'all'; got {asked!r}")
    return asked if asked in (None, "all") else int(asked)


def jobs(args: argparse.Namespace, command: str) -> list[Any]:
    """What is asked for, its every word checked, before anything is loaded."""
    from experiments.run import Job

    spread = devices(args)
    place = processes.read_place(os.environ) if args.distributed else None

    if args.command == "run":
        texts = {args.what: specs.read_file(args.what)}
    else:
        known = specs.shipped()
        if args.what != "all" and args.what not in known:
            raise BadRequest(f"there is no experiment {args.what!r}{nearest(args.what, [*known, 'all'])}")
        texts = known if args.what == "all" else {args.what: known[args.what]}
    for option in ("out", "path", "data_dir"):
        given = getattr(args, option)
        if given is not None and not given.strip():
            raise BadRequest(f"--{option.replace('_', '-')}: the name is empty; give one, or leave the option out")
    if args.data_dir is not None and not Path(args.data_dir).is_dir():
        raise BadRequest(f"--data-dir: {args.data_dir} is not a folder")
    if args.path is not None and not Path(args.path).is_file():
        raise BadRequest(f"--path: {args.path} is {'a folder' if Path(args.path).is_dir() else 'no file there'}")
    if args.out is not None and Path(args.out).exists() and not Path(args.out).is_dir():
        raise BadRequest(f"--out: {args.out} is a file; give a folder")
    changes, found = overrides(args), []
    for name, text in texts.items():
        spec = specs.read(text, name, quick=args.quick, overrides=changes)
        out = Path("adacgd-out") / spec.name if args.out is None else Path(args.out)
        if args.out is not None and args.what == "all":
            out = out / spec.name
        parts = spread * (1 if place is None else place.count) if isinstance(spread, int) else 1
        if spec.problem.workers % parts:
            raise BadRequest(f"--devices: {spec.problem.workers} workers cannot stand in {parts} equal parts")
        found.append(Job(spec, out, args.data_dir, command, spread, place))
    return found


def show_list() -> None:
    """Name, claims and cost of every experiment that comes with the package."""
    for name, text in specs.shipped().items():
        spec = specs.read(text, name)
        print(f"{name}: {spec.title} (data: {spec.problem.data}; cost: {spec.cost})")
        for claim in spec.claims:
            about = "" if claim.data is None else f" [{claim.data}]"
            print(f"  claim {claim.name}: {claim.words}{about}")


def work(argv: Sequence[str]) -> int:
    """Do what is asked; BadRequest and KeyboardInterrupt go through."""
    args = parse(argv)
    if args.command is None:
        raise BadRequest("give a command: reproduce, run, certify, theory or list (see adacgd --help)")
    if args.command == "certify":
        return trial.certify(args)
    if args.command == "theory":
        return theorems.tell(args, shlex.join(["adacgd", *argv]))
    if args.command == "list":
        show_list()
        return DONE
    todo = jobs(args, shlex.join(["adacgd", *argv]))
    if todo[0].place is None:
        return do(todo, args.json)
    code = processes.supervised(todo[0].place, lambda: answered(lambda: do(todo, args.json)))
    return leave() if code == INTERRUPTED else code


def do(todo: Sequence[Any], as_json: bool) -> int:
    """All jobs, one after another; the exit code."""
    from experiments.run import perform, prepare, start

    start(todo[0])
    ready = [prepare(job) for job in todo]  # all of them before the first runs
    codes, rows = [], []
    for one in ready:
        code, own = perform(one, show_table=not as_json)
        codes.append(code)
        rows += own
    if as_json and todo[0].leads:
        from experiments.store import json_text

        print(json_text(rows), end="")
    return next((code for code in codes if code), DONE)


def leave(*_: Any) -> NoReturn:
    """Answer Ctrl-C: one line, and out at once.

    An exception would be lost where Python cannot raise it (jax runs code inside the garbage collector), and a regular
    exit tears down a compiler whose threads still work. Nothing is half-written: see `store.commit`.
    """
    with contextlib.suppress(Exception):
        sys.stdout.flush()
    shown = b"\r\x1b[2K\x1b[?25h" if os.isatty(2) else b""  # over the progress bar, and the cursor back
    with contextlib.suppress(OSError):
        os.write(2, shown + b"adacgd: interrupted\n")  # not print: this may stand inside another write to stderr
    os._exit(INTERRUPTED)


@contextlib.contextmanager
def leaving_at_ctrl_c(for_good: bool) -> Iterator[None]:
    """SIGINT means `leave`, unless it is ignored (nohup) or not ours to handle (another thread).

    for_good: also after the block, while the interpreter is taken down.
    """
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        yield
        return
    before = signal.signal(signal.SIGINT, leave)
    try:
        yield
    finally:
        if not for_good:
            signal.signal(signal.SIGINT, before)


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point: the exit code."""
    with leaving_at_ctrl_c(for_good=argv is None):
        return answered(lambda: work(sys.argv[1:] if argv is None else list(argv)))


def answered(request: Callable[[], int]) -> int:
    """The exit code of a request, its mistakes told in a line."""
    try:
        code = request()
        sys.stdout.flush()
        return code
    except BadRequest as error:
        print(f"adacgd: {error}", file=sys.stderr)
        return BAD_REQUEST
    except KeyboardInterrupt:
        print("adacgd: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # `adacgd ... | head`: nobody reads on; silence the flush at exit too
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED
