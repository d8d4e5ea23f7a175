"""One command on several processes: who they are, how they meet, and how the others end when one of them is lost.

Who and where is read from the environment, before jax is imported: JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and
JAX_PROCESS_ID, or what SLURM's `srun` and the launchers of MPI set. The work is done in a child of each process: the
runtime ends a process whose peers are gone by SIGABRT and a page of C++, and only a parent can say in a line what
happened (docs/parallel.md).
"""

import contextlib
import os
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO, NoReturn

from experiments.spec import BadRequest

DONE, FAILED, BAD_REQUEST, DIVERGED, LOST, INTERRUPTED = 0, 1, 2, 3, 4, 130
ADDRESS, COUNT, ID = "JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"
WAIT = "ADACGD_WAIT"  # seconds that processes wait for each other at the start
HEARTBEAT = "ADACGD_HEARTBEAT"  # seconds of silence after which a process counts as lost
SECONDS = {WAIT: 120, HEARTBEAT: 30}
UNTIL_ALL_END = 600  # seconds that the others wait for the first one to draw and write
TOLD_BY_PEERS = ("Gloo", "NCCL", "coordination", "distributed service", "Connection", "Socket", "heartbeat")


@dataclass(frozen=True)
class Launcher:
    """Which variables a launcher sets: of how many, which one, which one on its machine; and who knows the address."""

    name: str
    count: str
    id: str
    local: str
    address_from: str  # jax finds the address itself where this is set


OPEN_MPI = Launcher(
    "Open MPI", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_MCA_orte_hnp_uri"
)
SLURM = Launcher("SLURM", "SLURM_NTASKS", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_STEP_NODELIST")
MPI = Launcher("MPI", "PMI_SIZE", "PMI_RANK", "MPI_LOCALRANKID", "")


@dataclass(frozen=True)
class Place:
    """Process `id` of `count`. address: of process 0, or None: jax finds it. local: its number on its machine."""

    id: int
    count: int
    address: str | None = None
    local: int | None = None
    wait: int = SECONDS[WAIT]
    heartbeat: int = SECONDS[HEARTBEAT]

    @property
    def leads(self) -> bool:
        """Whether it is the one that prints and writes."""
        return self.id == 0

    @property
    def name(self) -> str:
        """As in a message."""
        return f"process {self.id} of {self.count}"


def read_place(environment: Mapping[str, str]) -> Place:
    """Which process this is. Raises BadRequest that names the variable which is missing or contradicts another."""
    launcher = _launcher(environment)
    given = {name: environment[name] for name in (ADDRESS, COUNT, ID) if environment.get(name)}
    if launcher is None and len(given) < 3:
        missing = [name for name in (ADDRESS, COUNT, ID) if name not in given]
        hint = "; inside a SLURM job start it by srun" if "SLURM_JOB_ID" in environment else ""
        raise BadRequest(
            f"--distributed: {', '.join(missing)} not set, and neither SLURM's srun nor mpirun started this{hint}; "
            f"set {ADDRESS}=HOST:PORT of process 0, {COUNT} and {ID} (from 0) for each process"
        )
    names = (COUNT, ID) if launcher is None or {COUNT, ID} <= given.keys() else (launcher.count, launcher.id)
    count, own = (_whole(environment, name) for name in names)
    if count < 1 or not 0 <= own < count:
        raise BadRequest(
            f"--distributed: {names[1]}={own} and {names[0]}={count} contradict each other; they count from 0"
        )
    address = given.get(ADDRESS)
    if address is not None:
        host, colon, port = address.rpartition(":")
        if not host or not colon or not port.isdigit() or not 0 < int(port) < 2**16:
            raise BadRequest(f"--distributed: {ADDRESS}={address!r} must be HOST:PORT, such as node1:12345")
    elif launcher is None or not environment.get(launcher.address_from):
        raise BadRequest(
            f"--distributed: {launcher.name if launcher else 'nobody'} does not say where process 0 is; set {ADDRESS}="
            "HOST:PORT for all processes, HOST the machine of process 0 and PORT any free one there"
        )
    local = None
    if launcher is not None and names[1] == launcher.id and environment.get(launcher.local):
        local = None if environment.get("JAX_LOCAL_DEVICE_IDS") else _whole(environment, launcher.local)
    return Place(own, count, address, local, *(_seconds(environment, name) for name in (WAIT, HEARTBEAT)))


def _launcher(environment: Mapping[str, str]) -> Launcher | None:
    """Who started this. mpirun within a SLURM job counts by itself; srun may set what MPI reads, to the same."""
    has = lambda launcher: bool(environment.get(launcher.count) and environment.get(launcher.id))
    if has(OPEN_MPI):
        return OPEN_MPI
    srun = has(SLURM) and bool(environment.get(SLURM.address_from))
    alike = [environment.get(name) for name in (MPI.count, MPI.id)] == [
        environment.get(name) for name in (SLURM.count, SLURM.id)
    ]
    if has(MPI) and not (srun and alike):
        return MPI
    return SLURM if srun else None


def _whole(environment: Mapping[str, str], name: str) -> int:
    text = environment[name].strip()
    if not text.isdigit():
        raise BadRequest(f"--distributed: {name} must be a whole number, 0 or more; got {environment[name]!r}")
    return int(text)


def _seconds(environment: Mapping[str, str], name: str) -> int:
    if not environment.get(name):
        return SECONDS[name]
    seconds = _whole(environment, name)
    if seconds < 1:
        raise BadRequest(f"--distributed: {name} must be at least 1 second; got {seconds}")
    return seconds


def join(place: Place) -> None:
    """Meet the others, before jax has touched a device."""
    import inspect

    import jax

    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    wishes = {
        "initialization_timeout": place.wait,
        "heartbeat_timeout_seconds": place.heartbeat,
        "shutdown_timeout_seconds": UNTIL_ALL_END,
    }
    known = inspect.signature(jax.distributed.initialize).parameters
    jax.distributed.initialize(
        coordinator_address=place.address,
        num_processes=place.count,
        process_id=place.id,
        local_device_ids=None if place.local is None else [place.local],
        cluster_detection_method=None if place.address is None else "deactivate",
        **{name: value for name, value in wishes.items() if name in known},  # type: ignore[arg-type]
    )
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # jax has taken it for a notice, and would go on
    _report("joined")


def require_agreement(what: str) -> None:
    """All processes were asked for the same thing. Raises BadRequest where not: they would wait for ever."""
    import zlib

    import jax
    import numpy as np
    from jax.experimental import multihost_utils

    if jax.process_count() == 1:
        return
    told = np.ravel(multihost_utils.process_allgather(np.uint32(zlib.crc32(what.encode()))))
    others = [int(i) for i in np.flatnonzero(told != told[0])]
    if others:
        raise BadRequest(
            f"--distributed: process 0 was asked for other things than {', '.join(map(str, others))}: give all of them "
            "the same command, files and versions"
        )


# --- a parent that can tell what became of the work -------------------------------------------------------------------

_reports: list[int] = []  # in the child: where its parent listens


def _report(words: str) -> None:
    for end in _reports:
        os.write(end, words.encode() + b"\n")


def supervised(place: Place, work: Callable[[], int]) -> int:
    """The exit code of `work`, done in a child; LOST, after a line on stderr, where the run lost a process.

    Raises BadRequest where a child cannot be had.
    """
    if not hasattr(os, "fork") or "jax" in sys.modules:
        raise BadRequest("--distributed: start it as a command of its own, on Linux or macOS, not from within Python")
    with tempfile.TemporaryFile() as said:
        listen, report = os.pipe()
        watched, held = os.pipe()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        child = os.fork()
        if child == 0:
            os.close(listen)
            os.close(held)
            _reports.append(report)
            _work(work, watched, said)
        os.close(report)
        os.close(watched)
        with _passed_on(child):
            reports = _all_of(listen)
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        os.close(held)
        if reports and reports[-1] == f"ended {status}":
            return status
        if status == INTERRUPTED or status in (-signal.SIGTERM, -signal.SIGINT):
            return status if status > 0 else 128 - status
        said.seek(0)
        print(f"adacgd: {place.name}: {_what_happened(place, reports, status, said)}", file=sys.stderr)
        return LOST


def _what_happened(place: Place, reports: list[str], status: int, said: BinaryIO) -> str:
    """In a line, from what the child reported and what the runtime said."""
    text = said.read().decode(errors="replace")
    if "joined" not in reports and ("DEADLINE" in text or "distributed service" in text):
        where = "" if place.address is None else f" at {place.address}"
        return (
            f"not all {place.count} processes have met{where} within {place.wait} s; start them all, with the same "
            f"address, reachable from every machine ({WAIT} sets the seconds)"
        )
    lost = [line.removeprefix("lost ") for line in reports if line.startswith("lost ")]
    whole = "files are whole or not there"
    if lost or any(word in text for word in TOLD_BY_PEERS):
        why = f" ({lost[-1]})" if lost else ""
        return f"another process of the run has ended or cannot be reached, so this one ends too{why}; {whole}"
    last = [line for line in text.splitlines() if line.strip()][-1:]
    how = f"signal {-status}" if status < 0 else f"exit code {status}"
    return f"ended by itself, {how}{''.join(': ' + line[:300] for line in last)}; {whole}"


def _all_of(listen: int) -> list[str]:
    with os.fdopen(listen, encoding="utf-8", errors="replace") as lines:
        return lines.read().splitlines()


@contextlib.contextmanager
def _passed_on(child: int) -> Any:
    """SIGINT and SIGTERM are for the child to answer."""

    def pass_on(number: int, _: Any) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, number)

    heeded = [n for n in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(n) != signal.SIG_IGN]
    before = {number: signal.signal(number, pass_on) for number in heeded}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _work(work: Callable[[], int], watched: int, said: BinaryIO) -> NoReturn:
    """The child: it does the work, reports, and never returns.

    What C++ writes to the descriptors of stdout and stderr goes to `said`; Python's own stay what they were. No exit
    handlers: they would wait for processes that are gone. Nothing is half-written: see `store.commit`.
    """
    threading.Thread(target=_end_with_parent, args=(watched,), daemon=True).start()
    sys.stdout, sys.stderr = (
        os.fdopen(os.dup(number), "w", encoding=stream.encoding, errors=stream.errors, buffering=1)
        for number, stream in ((1, sys.stdout), (2, sys.stderr))
    )
    for number in (1, 2):
        os.dup2(said.fileno(), number)
    code = FAILED
    try:
        code = work()
        if code in (DONE, FAILED, DIVERGED):
            import jax

            jax.distributed.shutdown()  # waits for all: a process that leaves early would be taken for lost
    except BaseException as error:
        words = str(error).partition("\n")[0]
        if type(error).__name__ == "JaxRuntimeError" and any(word in words for word in TOLD_BY_PEERS):
            _report(f"lost {words[:300]}")
            code = LOST
        else:
            traceback.print_exc()
            code = FAILED
    with contextlib.suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    if code != LOST:
        _report(f"ended {code}")
    os._exit(code)


def _end_with_parent(watched: int) -> NoReturn:
    """The pipe closes when the parent is gone, however it went."""
    os.read(watched, 1)
    os._exit(LOST)
