"""One request from data to files: load, run, tell, write. What can be wrong is found before the first run."""

import datetime
import hashlib
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from experiments import processes, store
from experiments.processes import Place
from experiments.spec import BadRequest, Spec
from experiments.start import set_up

DONE, FAILED, DIVERGED = 0, 1, 3


@dataclass(frozen=True)
class Job:
    """A spec, and what to do with what it finds."""

    spec: Spec
    out: Path
    data_dir: str | None = None
    command: str = ""
    devices: int | str | None = None  # over which the workers are spread; of each process, where there are several
    place: Place | None = None

    @property
    def leads(self) -> bool:
        """Whether this process prints and writes."""
        return self.place is None or self.place.leads

    @property
    def spread(self) -> int | str | None:
        """`devices` of the library: of several processes all take part."""
        return self.devices if self.place is None else "all"


@dataclass(frozen=True)
class Ready:
    """A job whose data and problem are there and fit."""

    job: Job
    data: Any
    problem: Any


def start(job: Job) -> None:
    """Start jax, and meet the other processes. Raises BadRequest where the devices asked for are not there."""
    set_up(job.devices if isinstance(job.devices, int) else None)
    if job.place is None:
        return
    processes.join(job.place)
    import jax

    if isinstance(job.devices, int) and jax.local_device_count() != job.devices:
        raise BadRequest(
            f"--devices: {job.place.name} has {jax.local_device_count()}, not {job.devices}; leave the option out to "
            "take all, or choose by JAX_LOCAL_DEVICE_IDS"
        )


def prepare(job: Job) -> Ready:
    """Load the data and build the problem. Raises BadRequest; nothing has been written then."""
    import problems
    from adacgd.parallel import mesh_of
    from experiments import headline

    asked = job.spec.problem
    try:
        if job.leads:
            store.require_writable(job.out)
        for kind in ("png", "pdf", "csv", "json"):
            if (job.out / f"{job.spec.name}.{kind}").is_dir():
                raise IsADirectoryError(f"{job.out / f'{job.spec.name}.{kind}'} is a folder")
        data = problems.load(asked.data, path=asked.path, data_dir=job.data_dir)
        if job.data_dir is not None and (asked.path is not None or data.source == "embedded"):
            where = "--path names the file" if asked.path is not None else f"{data.name} is embedded"
            raise ValueError(f"--data-dir has no effect: {where}")
        problem = problems.logistic(data, asked.workers, asked.regulariser, asked.strength, asked.partition)
        mesh_of("--devices", job.spread, problem.n)
    except (ValueError, OSError) as error:
        raise BadRequest(str(error)) from None
    headline.choices(job.spec, problem.dim)
    if job.place is not None:
        processes.require_agreement(repr((job.spec, data.sha256, store.versions())))
    return Ready(job, data, problem)


def perform(ready: Ready, show_table: bool) -> tuple[int, list[dict[str, Any]]]:
    """Run it, tell it and write it; the exit code and the rows."""
    from experiments import figures, headline, terminal

    job, spec = ready.job, ready.job.spec
    began = time.perf_counter()
    with terminal.progress(job.leads) as progress:
        outcome = headline.run(ready.problem, spec, progress, job.spread)
        rows = [{"experiment": spec.name, "data": ready.data.name, **told.row()} for told in outcome.told]
        if not job.leads:
            return exit_code(outcome), rows
        seconds = time.perf_counter() - began
        rounded = f"{ready.data.name}, d = {ready.problem.dim}"
        figure, undrawn = figures.headline(outcome, rounded, headline.finding(outcome))
        files = {
            **figures.render(figure),
            "csv": headline.curves(outcome).encode(),
            "json": store.json_text(record(ready, outcome, rows, undrawn, seconds)).encode(),
        }
    if show_table:
        terminal.show(outcome, rounded, seconds)
    for words in (*outcome.notes, *undrawn):
        terminal.note(f"note: {words}")
    try:
        store.commit({job.out / f"{spec.name}.{kind}": content for kind, content in files.items()})
    except OSError as error:
        raise BadRequest(f"the files could not be written: {error}") from None
    terminal.note(f"written: {job.out / spec.name}.png, .pdf, .csv, .json")
    if outcome.sound and outcome.diverged_alone:
        terminal.note(f"diverged: {', '.join(outcome.diverged_alone)}, asked for by itself")
    return exit_code(outcome), rows


def exit_code(outcome: Any) -> int:
    """What became of the claims, and of a run asked for by itself."""
    if not outcome.sound:
        return FAILED
    return DIVERGED if outcome.diverged_alone else DONE


def record(
    ready: Ready, outcome: Any, rows: list[dict[str, Any]], undrawn: list[str], seconds: float
) -> dict[str, Any]:
    """All numbers, and all that is needed to get them again."""
    import jax

    from experiments import headline

    smoothness, device = ready.problem.smoothness, jax.devices()[0]
    return {
        "experiment": outcome.spec.name,
        "rows": rows,
        "finding": headline.finding(outcome),
        "claims": [
            {"name": v.claim.name, "words": v.claim.words, "verdict": v.verdict, "reason": v.reason, "value": v.value}
            for v in outcome.claims
        ],
        "notes": [*outcome.notes, *undrawn],
        "spec": asdict(outcome.spec),
        "grid": outcome.grid,
        "data": {
            "name": ready.data.name,
            "source": ready.data.source,
            "sha256": ready.data.sha256,
            "verified": ready.data.verified,
            "rows": ready.data.features.shape[0],
            "dim": ready.problem.dim,
        },
        "smoothness": {
            "L_minus": smoothness.L_minus,
            "L_plus": smoothness.L_plus,
            "how": dict(smoothness.how),
            "f_lower": ready.problem.f_lower,
        },
        "initial_bits": 32 * ready.problem.dim,  # the first full gradient of each worker, in no row
        "conventions": "bits: uplink, per worker, 32 a scalar; wire_bits: indices and levels besides",
        "cells": [
            {
                "method": c.choice.method,
                "K": c.choice.K,
                "zeta": c.choice.zeta,
                "levels": c.choice.levels,
                "multiple": c.multiple,
                "stepsize": c.stepsize,
                "status": c.status,
                "round": c.round,
                "bits": c.bits,
                "grad_norm": c.grad_norm,
                "loss": c.loss,
            }
            for c in outcome.cells
        ],
        "made": {
            "command": ready.job.command,
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "seconds": round(seconds, 2),
            "precision": outcome.told[0].tuned.precision,
            "device": f"{device.platform}: {device.device_kind}",
            "devices": len(jax.devices()) if ready.job.spread == "all" else ready.job.spread or 1,
            "processes": jax.process_count(),
            "versions": store.versions(),
            "spec_sha256": hashlib.sha256(store.json_text(asdict(outcome.spec)).encode()).hexdigest(),
        },
    }
