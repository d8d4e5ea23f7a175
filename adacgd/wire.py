"""The bytes of a message: a compressor's or a mechanism's, written by the sender and read without JAX.

    8 len(blob) - header_bits(blob) - padding_bits(blob) = float_width * scalars + extra_bits     exactly

with the counts of the simulator's own `Message.cost`, and `decode` gives its `Message.value` bit for bit. The header
says what both ends of a link know already (family, parameters, dimension, what a shared seed draws), so that a stored
message explains itself; it is no part of a price. A compressor's message is a value, a mechanism's the steps that lead
from what the receiver holds to what it holds next (`adacgd.steps`). docs/wire.md has the layout byte by byte.

Any bytes are safe to read: they give a value or a `WireError`. A few bytes may stand for a long vector, so no more than
`max_dim` coordinates are read, which bounds time and memory; all other work grows with the bytes there are.
"""

import contextlib
import dataclasses
import functools
import typing
import zlib
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from adacgd.compressors.bitstream import BitReader, BitWriter, ByteReader, WireError, bits_for, varint
from adacgd.compressors.codes import Dense, Format, Seeded, Silent, Sparse, SparseVariable
from adacgd.compressors.dense_codes import (
    FixedPoint,
    FloatCast,
    Levels,
    LevelsElias,
    LowRank,
    Natural,
    SignScale,
    TernaryScale,
)
from adacgd.compressors.nested import (
    Blocks,
    Maybe,
    Nested,
    OnSupport,
    Pair,
    PartlySeeded,
    Scaled,
    SeededVariable,
)
from adacgd.steps import FRESH, KINDS, REPLACING, Code, Sent, Step, after

__all__ = ["MAX_DIM", "Contents", "WireError", "decode", "encode", "header_bits", "inspect", "padding_bits"]

MAGIC = b"acgd"
VERSION = 2
MAX_DIM = 1 << 20  # coordinates read unless more are asked for: a few bytes then cannot ask for 64 MB
_CHECKED = len(MAGIC) + 1 + 4  # the CRC covers what stands before its 4 bytes, and all behind them

_SIMPLE = (Silent, Dense, Sparse, SparseVariable, Seeded, SignScale, TernaryScale, Levels, LevelsElias, Natural)
_OTHERS = (FloatCast, FixedPoint, LowRank, SeededVariable, PartlySeeded, Blocks, Pair, Scaled, OnSupport, Maybe)
FORMATS: dict[int, type[Format]] = {cls.code: cls for cls in (*_SIMPLE, *_OTHERS)}

COMPRESSOR, MECHANISM = range(2)  # whose message it is
FLOAT_WIDTHS = (16, 32, 64)
MOST_DEPTH = 6  # formats inside each other
MOST_PARTS = 1 << 14  # entries of a tuple: blocks
MOST_LETTERS = 64
MOST_STEPS = 8  # of a mechanism's message; as many codes
MOST_PASSES = 8  # times dim: coordinates of all formats of a message together, a sum of four being 7


class Contents(NamedTuple):
    """What a message says besides its numbers."""

    dim: int
    float_width: int
    kind: int  # COMPRESSOR or MECHANISM
    steps: tuple[tuple[int, Format], ...]  # kind and format; of a compressor's message one that is FRESH
    codes: tuple[Code, ...]  # what its sender chose, such as a level
    header_bits: int
    payload_bits: int

    @property
    def format(self) -> Format | None:
        """That of the only step there is; None where there are none or several."""
        return self.steps[0][1] if len(self.steps) == 1 else None

    @property
    def padding_bits(self) -> int:
        """Zero bits behind the payload, fewer than 8."""
        return -self.payload_bits % 8


# --- writing -----------------------------------------------------------------------------------------------------


def encode(
    what: Any,
    key: Any,
    x: Any,
    *,
    float_width: int | None = None,
    h: Any = None,
    y: Any = None,
    common: Any = None,
    round: Any = None,
    worker: Any = None,
    workers: int | None = None,
    state: Any = None,
) -> bytes:
    """The message that `what` sends of x, (d,), with the randomness of `key`, a JAX key or an integer in [0, 2^32).

    what: a compressor with a byte format, or a three point map or estimator over such compressors, which also needs h,
    what the receiver holds, and y, the previous vector, both (d,).
    float_width: 16, 32 or 64, to which x, h and y are cast first; by default that of x.
    common, worker, workers (and round): what estimators, and compressors and maps that share randomness, are called
    with; others ignore them. For an estimator `key` may be the whole `Draw` instead.
    state: what a `Stateful` such as PowerSGDWarm, or an estimator with a memory such as DIANA, has from its `init` or
    last `step`.

    Raises TypeError for what has no byte format, ValueError for arguments that do not fit.
    """
    from adacgd.sending import Request, message

    sent, v = message(what, Request(key, x, float_width, h, y, common, round, worker, workers, state))
    return _packed(sent, v.size, 8 * v.dtype.itemsize, COMPRESSOR if h is None else MECHANISM)


def _packed(sent: Sent, dim: int, width: int, kind: int = MECHANISM) -> bytes:
    """Header, known bits, payload."""
    known, payload = BitWriter(), BitWriter()
    for code in sent.codes:
        payload.integer(code.value, bits_for(code.choices))
    for step in sent.steps:
        step.format.write(payload, known, step.numbers, dim, width)
    head = bytes([kind, width]) + varint(dim) + _chain(sent, kind)
    body = head + varint(known.bits) + varint(payload.bits) + known.getvalue() + payload.getvalue()
    start = MAGIC + bytes([VERSION])
    blob = start + zlib.crc32(start + body).to_bytes(4, "big") + body
    inspect(blob)  # what no receiver would read is refused here
    return blob


def _chain(sent: Sent, kind: int) -> bytes:
    """The format of a compressor's message; of a mechanism's how many choices each code has, and all steps."""
    if kind == COMPRESSOR:
        return _tree(sent.steps[0].format)
    codes = varint(len(sent.codes)) + b"".join(varint(code.choices) for code in sent.codes)
    return codes + varint(len(sent.steps)) + b"".join(bytes([s.kind]) + _tree(s.format) for s in sent.steps)


def _tree(layout: Format) -> bytes:
    """The code of a format and its parameters in the order of the dataclass."""
    if FORMATS.get(layout.code) is not type(layout):
        raise TypeError(f"{type(layout).__name__} is none of adacgd.wire.FORMATS, so that no receiver could read it.")
    parameters = (getattr(layout, f.name) for f in dataclasses.fields(layout))  # type: ignore[arg-type]
    return bytes([layout.code]) + b"".join(_parameter(p) for p in parameters)


def _parameter(value: Any) -> bytes:
    if isinstance(value, Format):
        return _tree(value)
    if isinstance(value, tuple):
        if len(value) > MOST_PARTS:
            raise ValueError(f"a message has at most {MOST_PARTS} blocks, got {len(value)}.")
        return varint(len(value)) + b"".join(_parameter(v) for v in value)
    if isinstance(value, str):
        return varint(len(value)) + value.encode("ascii")
    return varint(2 * int(value) if value >= 0 else -2 * int(value) - 1)


# --- reading -----------------------------------------------------------------------------------------------------


def decode(blob: bytes, *, h: Any = None, max_dim: int = MAX_DIM) -> np.ndarray:
    """The value of a message, (d,), of float16, 32 or 64 as the message says; NumPy only, whatever the bytes.

    h: what the receiver holds, for the message of a mechanism, which changes it; (d,) of the message's dtype.
    max_dim: the most coordinates to read where no h says how many there are.

    Raises WireError for bytes that are no message, or that h or max_dim does not fit; TypeError for what is not bytes.
    """
    if isinstance(max_dim, bool) or not isinstance(max_dim, int | np.integer) or max_dim < 1:
        raise ValueError(f"decode(max_dim=...) must be an integer of at least 1, got {max_dim!r}.")
    found, known, payload = _opened(blob)
    _require_held(found, h)
    if h is None and found.dim > max_dim:
        raise WireError(f"the message has {found.dim} coordinates, above max_dim={max_dim}; pass a larger max_dim=.")
    held = np.broadcast_to(np.zeros((), f"f{found.float_width // 8}"), found.dim) if h is None else np.asarray(h)
    for step in _steps(found, known, payload):
        held = after(step, held)
    return held if found.steps else np.array(held)


def _steps(found: Contents, known: BitReader, payload: BitReader) -> Iterator[Step]:
    """One after the other, so that the numbers of one alone are held."""
    for kind, layout in found.steps:
        with _refusals():
            numbers = layout.read(payload, known, found.dim, found.float_width)
        yield Step(kind, layout, numbers)
    if payload.left or known.left:
        raise WireError(f"{payload.left + known.left} bits are left when all fields are read.")


def inspect(blob: bytes) -> Contents:
    """What a message says besides its numbers. Raises as `decode` does; the numbers are not looked at."""
    return _opened(blob)[0]


def header_bits(blob: bytes) -> int:
    """Bits of a message that only make it explain itself: no part of its price. Raises as `inspect`."""
    return inspect(blob).header_bits


def padding_bits(blob: bytes) -> int:
    """Zero bits at the end of a message, fewer than 8, which make it whole bytes. Raises as `inspect`."""
    return inspect(blob).padding_bits


def _require_held(found: Contents, h: Any) -> None:
    if found.kind == COMPRESSOR and h is not None:
        raise WireError("h= is given for the message of a compressor, which has a value of its own; leave it out.")
    if found.kind == COMPRESSOR:
        return
    if h is None:
        raise WireError("the message of a mechanism changes what the receiver holds: pass it as h=.")
    shape, dtype = getattr(h, "shape", "no"), getattr(h, "dtype", type(h).__name__)
    if shape != (found.dim,) or dtype != f"f{found.float_width // 8}":
        raise WireError(f"h= must be an array float{found.float_width} ({found.dim},), got {dtype}, shape {shape}.")


def _opened(blob: Any) -> tuple[Contents, BitReader, BitReader]:
    """What the header says, and the known bits and the payload, the latter behind the codes."""
    if not isinstance(blob, bytes | bytearray | memoryview):
        raise TypeError(f"a message is bytes, got {type(blob).__name__} {blob!r:.40}.")
    octets = bytes(blob)
    source = _checked(octets)
    kind, width, dim = *source.take(2), source.varint()
    if kind not in (COMPRESSOR, MECHANISM):
        raise WireError(f"the kind of the message is {kind}; there are 0 and 1.")
    if width not in FLOAT_WIDTHS:
        raise WireError(f"the float width is {width}; it must be 16, 32 or 64.")
    if dim < 1:
        raise WireError("the message has no coordinates.")
    choices = _choices(source) if kind == MECHANISM else ()
    steps = _read_steps(source) if kind == MECHANISM else ((FRESH, _read_format(source, 1)),)
    with _refusals():
        for _, layout in steps:
            layout.check(dim, width)
    if sum(_passes(layout, dim) for _, layout in steps) > MOST_PASSES * dim:
        raise WireError(f"the formats of the message together have more than {MOST_PASSES} times its coordinates.")
    sizes = source.varint(), source.varint()
    known, payload = (_bits(source, size) for size in sizes)
    if source.at != len(octets):
        raise WireError(f"{len(octets) - source.at} bytes follow the end of the message.")
    codes = tuple(_code(payload, count) for count in choices)
    head = 8 * (len(octets) - -(-sizes[1] // 8))
    return Contents(dim, width, kind, steps, codes, head, sizes[1]), known, payload


def _checked(octets: bytes) -> ByteReader:
    """A reader of what stands behind magic, version and CRC."""
    if not octets.startswith(MAGIC):
        raise WireError(f"the bytes start with {octets[: len(MAGIC)].hex() or 'nothing'}, not with {MAGIC.hex()}.")
    source = ByteReader(octets, len(MAGIC))
    version, written = source.take(1)[0], int.from_bytes(source.take(4), "big")
    if version != VERSION:
        raise WireError(f"the message is of version {version}; this library reads version {VERSION}.")
    if zlib.crc32(octets[_CHECKED:], zlib.crc32(octets[: len(MAGIC) + 1])) != written:
        raise WireError("the CRC-32 does not fit: the message is damaged or cut off.")
    return source


def _bits(source: ByteReader, count: int) -> BitReader:
    """So many bits, in whole bytes with zeros behind them."""
    octets = source.take(-(-count // 8))
    if count % 8 and octets[-1] & ((1 << (-count % 8)) - 1):
        raise WireError("the bits that fill up the last byte are not zero.")
    return BitReader(octets, count)


def _few(source: ByteReader, what: str) -> Iterable[int]:
    """So many as the next number says, if they are few."""
    count = source.varint()
    if count > MOST_STEPS:
        raise WireError(f"the message has {count} {what}; at most {MOST_STEPS} are read.")
    return range(count)


def _choices(source: ByteReader) -> tuple[int, ...]:
    """How many choices each code has."""
    choices = tuple(source.varint() for _ in _few(source, "codes"))
    if min(choices, default=2) < 2:
        raise WireError(f"a code has {min(choices)} choices; there are at least 2.")
    return choices


def _code(payload: BitReader, choices: int) -> Code:
    value = payload.integer(bits_for(choices))
    if value >= choices:
        raise WireError(f"a code is {value} where there are {choices} choices.")
    return Code(value, choices)


def _read_steps(source: ByteReader) -> tuple[tuple[int, Format], ...]:
    """Kind and format of each."""
    steps = []
    for _ in _few(source, "steps"):
        kind, layout = source.take(1)[0], _read_format(source, 1)
        if kind not in KINDS:
            raise WireError(f"the kind of a step is {kind}; there are 1, 2 and 3.")
        if kind == REPLACING and not layout.verbatim:
            raise WireError(f"{type(layout).__name__} carries no coordinates that could replace those of h.")
        steps.append((kind, layout))
    return tuple(steps)


def _passes(layout: Format, dim: int) -> int:
    """Coordinates of all formats of the tree together: what rebuilding costs however short the message is."""
    parts = layout.parts(dim) if isinstance(layout, Nested) else ()
    return dim + sum(_passes(part, size) for part, size in parts)


@contextlib.contextmanager
def _refusals() -> Iterator[None]:
    """The one place where the ValueError of a format that refuses its parameters is told as what it is: bad bytes."""
    try:
        yield
    except WireError:
        raise
    except ValueError as error:
        raise WireError(str(error)) from error


@functools.cache
def _kinds(cls: type[Format]) -> tuple[Any, ...]:
    """The types of the parameters of a format: int, str, Format, or a tuple of one of them."""
    hints = typing.get_type_hints(cls)
    return tuple(hints[f.name] for f in dataclasses.fields(cls))  # type: ignore[arg-type]


def _read_format(source: ByteReader, depth: int) -> Format:
    if depth > MOST_DEPTH:
        raise WireError(f"formats stand more than {MOST_DEPTH} deep inside each other.")
    code = source.take(1)[0]
    if code not in FORMATS:
        raise WireError(f"format {code} is unknown to this version of the library.")
    parameters = [_read_parameter(source, kind, depth) for kind in _kinds(FORMATS[code])]
    with _refusals():
        return FORMATS[code](*parameters)


def _read_parameter(source: ByteReader, kind: Any, depth: int) -> Any:
    if kind is Format:
        return _read_format(source, depth + 1)
    number = source.varint()
    if kind is int:
        return -(number + 1) // 2 if number % 2 else number // 2
    if kind is str:
        letters = source.take(number) if number <= MOST_LETTERS else b"\xff"
        if not letters.isascii():
            raise WireError(f"a word of the header is not at most {MOST_LETTERS} letters of ASCII.")
        return letters.decode("ascii")
    if number > MOST_PARTS:
        raise WireError(f"the header lists {number} blocks; at most {MOST_PARTS} are read.")
    return tuple(_read_parameter(source, typing.get_args(kind)[0], depth) for _ in range(number))
