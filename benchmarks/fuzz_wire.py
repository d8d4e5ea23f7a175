"""Hostile bytes for the receiver: `python -m benchmarks.fuzz_wire [--count N] [--seed S] [--write FILE]`.

N random strings, N mutations of valid messages of every format and of chains of steps (of half of them the CRC is
repaired, so that the reader of the format itself meets them), and short messages that stand for the longest vectors.
Each must give a value or a
`WireError` of one line, within 5 s and 64 MB, and whatever is decoded must be written again as the very same bytes.
The exit code is 1 if one does not.
"""

import argparse
import dataclasses
import faulthandler
import random
import sys
import time
import tracemalloc
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

import adacgd as ac
from adacgd import wire
from adacgd.compressors import codes, dense_codes, nested
from adacgd.compressors.bitstream import varint
from adacgd.compressors.fields import subset_bits
from adacgd.steps import ADDED, FRESH, KINDS, REPLACING, Sent
from benchmarks.report import write

MOST_SECONDS = 5.0
MOST_BYTES = 64 << 20
HANGS = 600  # seconds that the messages of one kind may take
TRACED = 100  # memory is traced in every so many messages: it makes them several times slower
CHAINS = "chains of steps"
START = wire.MAGIC + bytes([wire.VERSION])

Case = tuple[bytes, Any]  # a message, and the h to decode it with


class Broken(Exception):
    """A message did what none may."""


@dataclasses.dataclass
class Tally:
    """What became of the messages of one kind."""

    name: str
    tried: int = 0
    refused: int = 0
    decoded: int = 0
    slowest: float = 0.0  # seconds, of those whose memory was not traced
    peak: int = 0  # bytes, of those whose memory was


def sealed(body: bytes) -> bytes:
    """A message with this body and the CRC that fits it."""
    return START + zlib.crc32(START + body).to_bytes(4, "big") + body


def valid() -> dict[str, list[Case]]:
    """Messages of every format, by its name, some of them of mechanisms; and those of several steps, or with codes."""
    key, rng = jax.random.key(0), np.random.default_rng(0)
    shared: dict[str, Any] = {"common": key, "worker": 1, "workers": 3}
    parts: list[Any] = [
        ac.Identity(),
        *(ac.TopK(3, coding) for coding in ("fixed", "rank", "gaps")),
        *(ac.RelativeThreshold(0.5, coding=coding) for coding in ("fixed", "gaps")),
        ac.RandK(4, shared_seed=True),
        ac.Sign(),
        ac.Sign("zero"),
        ac.QSGD(5),
        ac.QSGD(3, "elias"),
        ac.NaturalDithering(4),
        ac.Natural(),
        ac.FloatCast("float8_e4m3"),
        ac.FixedPoint(10, 5),
        ac.LowRank(1),
        ac.PermK(),
        ac.MixK(2, 3, shared_seed=True),
        ac.BlockTopK((1, 2, 1), (5, 6, 7)),
        ac.Residual(ac.TopK(2), ac.Sign()),
        ac.Shrunk(ac.QSGD(2)),
        ac.OnSupport(4, ac.Natural()),
        ac.Participation(ac.TopK(2, "gaps"), 0.9),
        ac.Participation(ac.TopK(2), 1e-9),
        ac.Participation(ac.Residual(ac.TopK(2), ac.Shrunk(ac.MaxDithering(3, "elias"))), 1.0),
    ]
    found: dict[str, list[Case]] = {cls.__name__: [] for cls in wire.FORMATS.values()}
    x, h = rng.standard_normal((2, 18))
    for part in parts:
        blob = wire.encode(part, key, x, float_width=32, **shared)
        found[type(wire.inspect(blob).format).__name__].append((blob, None))
        if isinstance(part, ac.Compressor):
            blob = wire.encode(ac.CLAG(part, 0.0), key, x, h=h, y=x)
            found[type(wire.inspect(blob).format).__name__].append((blob, h))
    found["Silent"] = [(sealed(chain((codes.Silent(), kind), dim=18)), h) for kind in KINDS]
    found["Silent"].append((sealed(pieces(codes.Silent(), 18)), None))
    return {**found, CHAINS: [(wire.encode(one, key, x, h=h, y=(x + h) / 2, **shared), h) for one in maps()]}


def maps() -> list[Any]:
    """Maps of every kind of step and of code, three steps and three codes deep, silent and not."""
    top, sign = ac.TopK(3, "gaps"), ac.Sign()
    quiet, loud = ac.CLAG(top, 1e9), ac.AdaCGD([top, sign, ac.TopK(9)], 0.0)
    return [
        *(ac.LAG(1e9), ac.LAG(0.0), quiet, loud, ac.Energy(0.3, 0.1), ac.Sampled(ac.GD(), p=1e-9), ac.ThreePCv1(sign)),
        *(ac.ThreePCv2(ac.RandK(2, shared_seed=True), top), ac.ThreePCv2(ac.PermK(), ac.Shrunk(ac.QSGD(2, "elias")))),
        *(ac.ThreePCv3(loud, top), ac.ThreePCv3(ac.ThreePCv4(top, sign), sign), ac.ThreePCv5(sign, 0.5, False)),
        *(ac.EF21Plus(top), ac.EF21Plus(ac.TopK(17)), ac.Ada3PC([quiet, ac.EF21Plus(top)], 0.1)),
        *(ac.ThreePCv3(ac.Ada3PC([ac.ThreePCv3(loud, sign)], 0.0), sign), ac.MARINA(ac.QSGD(3), 0.5)),
    ]


def pieces(layout: codes.Format, dim: int, known: bytes = b"", payload: bytes = b"", width: int = 64) -> bytes:
    """The body of a compressor's message, be it right or not; bits in whole bytes."""
    sizes = varint(8 * len(known)) + varint(8 * len(payload))
    return bytes([wire.COMPRESSOR, width]) + varint(dim) + wire._tree(layout) + sizes + known + payload


def chain(
    *steps: tuple[codes.Format, int], dim: int, choices: tuple[int, ...] = (), payload: bytes = b"", known: bytes = b""
) -> bytes:
    """The body of a mechanism's message, be it right or not: formats with their kinds; bits in whole bytes."""
    head = bytes([wire.MECHANISM, 64]) + varint(dim) + varint(len(choices)) + b"".join(varint(n) for n in choices)
    head += varint(len(steps)) + b"".join(bytes([kind]) + wire._tree(layout) for layout, kind in steps)
    return head + varint(8 * len(known)) + varint(8 * len(payload)) + known + payload


def long_chains(dim: int = wire.MAX_DIM) -> list[Case]:
    """As many steps as are read, each of which touches all of a long h."""
    silent, empty = codes.Silent(), codes.Sparse(0)
    h = np.ones(dim)
    bodies = [chain(*[(silent, kind)] * wire.MOST_STEPS, dim=dim) for kind in (ADDED, FRESH)]
    bodies += [chain(*[(layout, REPLACING)] * wire.MOST_STEPS, dim=dim) for layout in (empty, codes.Sparse(0, "rank"))]
    bodies += [chain(*[(nested.Scaled(silent, (2.0).hex()), ADDED)] * 4, dim=dim)]
    bodies += [chain((nested.Pair(nested.Pair(silent, silent), silent), ADDED), (empty, REPLACING), dim=dim)]
    bodies += [chain(*[(silent, ADDED)] * (wire.MOST_STEPS + 1), dim=dim), chain(dim=dim)]
    bodies += [chain(dim=dim, choices=(1 << 62,) * 8, payload=bytes(62)), chain(dim=dim, choices=(2,) * 9)]
    return [(sealed(body), h) for body in bodies]


def traps(dim: int = wire.MAX_DIM) -> list[Case]:
    """A few bytes that stand for as long a vector as is read, in as many formats as are."""
    silent, one = codes.Silent(), (1.0).hex()
    layouts: list[codes.Format] = [nested.Pair(nested.Pair(silent, silent), nested.Pair(silent, silent))]
    for wrap in (
        lambda inner: nested.Pair(silent, inner),
        lambda inner: nested.Pair(inner, silent),
        lambda inner: nested.Scaled(inner, one),
        lambda inner: nested.Blocks((inner,), (dim,)),
        nested.Maybe,
    ):
        layouts.append(silent)
        for _ in range(wire.MOST_DEPTH - 1):
            layouts.append(wrap(layouts[-1]))
    layouts += [
        *(codes.Sparse(0), codes.Sparse(0, "rank"), codes.Sparse(0, "gaps"), codes.SparseVariable("gaps")),
        *(codes.Seeded(0), nested.PartlySeeded(0, 0), nested.OnSupport(0, "fixed", silent), codes.Dense()),
        *(nested.Blocks((silent, silent), (dim - 1, 1)), dense_codes.LowRank(1, 1, dim), dense_codes.SignScale()),
        *(dense_codes.TernaryScale(), dense_codes.FloatCast(8, 7)),
    ]
    ends = (b"", bytes(2), bytes(40), b"\xff" * 40)
    bodies = [pieces(layout, dim, payload=end) for layout in layouts for end in ends]
    bodies += [pieces(layout, dim, known=bytes(n)) for layout in layouts for n in (1, 3)]
    bodies += [pieces(silent, n) for n in (dim + 1, 1 << 40, (1 << 63) - 1)]
    return [(sealed(body), None) for body in bodies]


def ranks(dim: int = wire.MAX_DIM) -> list[Case]:
    """Four subsets by their rank, or eight in a chain, each a walk over all coordinates: the slowest there is."""
    top = codes.Sparse(2, "rank")
    layout = nested.Pair(nested.Pair(top, top), nested.Pair(top, top))
    bits = 4 * (subset_bits(2, dim, "rank") + 2 * 64)
    head = bytes([wire.COMPRESSOR, 64]) + varint(dim) + wire._tree(layout)
    eight = chain(*[(top, REPLACING)] * wire.MOST_STEPS, dim=dim, payload=bytes(2 * bits // 8))
    return [(sealed(head + varint(0) + varint(bits) + bytes(-(-bits // 8))), None), (sealed(eight), np.ones(dim))]


def random_strings(rng: random.Random, count: int) -> Iterator[Case]:
    """Noise; of half of it a start and a CRC that fit."""
    for i in range(count):
        noise = rng.randbytes(rng.randrange(120))
        yield (sealed(bytes([rng.randrange(2), rng.choice((16, 32, 64))]) + noise) if i % 2 else noise), None


def mutations(rng: random.Random, cases: list[Case], count: int) -> Iterator[Case]:
    """Valid messages with one to four changes; of half of them the CRC is repaired."""
    for i in range(count):
        blob, h = rng.choice(cases)
        body = bytearray(blob[len(START) + 4 :]) if i % 2 else bytearray(blob)
        for _ in range(rng.choice((1, 1, 2, 4))):
            change(rng, body, rng.choice(cases)[0])
        yield (sealed(bytes(body)) if i % 2 else bytes(body)), h


def change(rng: random.Random, body: bytearray, other: bytes) -> None:
    """One of: a bit, a byte, a number, something in, something out, the end of another message."""
    at, kind = rng.randrange(len(body) + 1), rng.randrange(6)
    if kind == 0 and at < len(body):
        body[at] ^= 1 << rng.randrange(8)
    elif kind == 1 and at < len(body):
        body[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
    elif kind == 2:
        body[at : at + 1] = varint(rng.choice((0, 1, 2**7, 2**20, 2**31, 2**63 - 1, 2**64)))
    elif kind == 3:
        body[at:at] = rng.randbytes(rng.randrange(1, 9))
    elif kind == 4:
        del body[at : at + rng.randrange(1, 9)]
    else:
        body[at:] = other[rng.randrange(len(other)) :]


def again(blob: bytes) -> bytes:
    """What is read of a message, written again."""
    found, known, payload = wire._opened(blob)
    sent = Sent(tuple(wire._steps(found, known, payload)), found.codes)
    return wire._packed(sent, found.dim, found.float_width, found.kind)


def attack(name: str, cases: Iterable[Case], traced: int = TRACED) -> Tally:
    """Decode all. Raises Broken with the message in hex for the first that does what none may."""
    tally = Tally(name)
    for i, (blob, h) in enumerate(cases):
        tracing = traced > 0 and i % traced == 0
        tally.tried += 1
        if tracing:
            tracemalloc.start()
        began = time.perf_counter()
        try:
            value = wire.decode(blob, h=h)
            tally.decoded += 1
        except wire.WireError as error:
            tally.refused += 1
            value = None
            if not str(error) or "\n" in str(error) or len(str(error)) > 300:
                raise Broken(f"{name}: refused by {str(error)!r}: {blob.hex()}") from error
        except Exception as error:
            raise Broken(f"{name}: {type(error).__name__}: {error}: {blob.hex()}") from error
        if tracing:
            tally.peak = max(tally.peak, tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
        else:
            tally.slowest = max(tally.slowest, time.perf_counter() - began)
        if tally.slowest > MOST_SECONDS or tally.peak > MOST_BYTES:
            raise Broken(f"{name}: {tally.slowest:.1f} s, {tally.peak / 2**20:.0f} MB: {blob.hex()}")
        if value is not None and again(blob) != blob:
            raise Broken(f"{name}: read, and written again otherwise: {blob.hex()}")
    return tally


def attacks(count: int, seed: int = 0) -> Iterator[Tally]:
    """All of them in turn."""
    yield attack("random bytes", random_strings(random.Random(seed), count))
    for name, cases in valid().items():
        yield attack(name, mutations(random.Random(f"{seed} {name}"), cases, count))
    yield short_for_long()


def short_for_long() -> Tally:
    """All traps, once for the time and once for the memory, since tracing slows them down."""
    tally = attack("short for long", traps() + long_chains() + ranks(), traced=0)
    tally.peak = attack("short for long", traps() + long_chains(), traced=1).peak
    return tally


def main(argv: list[str]) -> int:
    """Attack, print, write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fuzz_wire", description=__doc__, allow_abbrev=False)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", type=Path, help="also write the table to this Markdown file")
    options = parser.parse_args(argv)
    jax.config.update("jax_enable_x64", True)
    began, done = time.perf_counter(), []
    try:
        faulthandler.dump_traceback_later(HANGS, exit=True)  # what hangs is shown and ends the process, exit code 1
        for tally in attacks(options.count, options.seed):
            faulthandler.dump_traceback_later(HANGS, exit=True)
            done.append(row(tally))
            print(" | ".join(done[-1]), flush=True)
    except Broken as broken:
        print(broken, file=sys.stderr)
        return 1
    finally:
        faulthandler.cancel_dump_traceback_later()
    if options.write:
        words = WORDS.format(seconds=time.perf_counter() - began)
        columns = ("messages", "tried", "refused", "decoded", "slowest, ms", "peak, MB")
        command = " ".join(["python -m benchmarks.fuzz_wire", *argv])
        write(options.write, "Hostile bytes", command, words, columns, done)
    return 0


def row(t: Tally) -> tuple[str, ...]:
    return t.name, str(t.tried), str(t.refused), str(t.decoded), f"{1e3 * t.slowest:.1f}", f"{t.peak / 2**20:.2f}"


WORDS = f"""
It took {{seconds:.0f}} s. Each message gave a value or a `WireError` of one line, within {MOST_SECONDS:.0f} s and
{MOST_BYTES >> 20} MB, and all that were decoded were written again as the same bytes. Half of the mutations have a CRC
that fits. Peak memory is what `tracemalloc` saw in every {TRACED}th message, whose time does not count. The last row,
traced in full, are a few bytes that stand for 2^20 coordinates, the most that are read unless more are asked for.
"""

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
