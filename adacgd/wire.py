"""The bytes of a message: a compressor's or a mechanism's, written by the sender and read without JAX.

    8 len(blob) - header_bits(blob) - padding_bits(blob) = float_width * scalars + extra_bits     exactly

with the counts of the simulator's own `Message.cost`, and `decode` gives its `Message.value` bit for bit. The header
says what both ends of a link know already (family, parameters, dimension, what a shared seed draws), so that a stored
message explains itself; it is no part of a price. docs/wire.md has the layout byte by byte.

Any bytes are safe to read: they give a value or a `WireError`. A few bytes may stand for a long vector, so no more than
`max_dim` coordinates are read, which bounds time and memory; all other work grows with the bytes there are.
"""

import contextlib
import dataclasses
import functools
import typing
import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from adacgd.compressors.bitstream import BitReader, BitWriter, ByteReader, WireError, bits_for, varint
from adacgd.compressors.codes import Dense, Format, Numbers, Seeded, Silent, Sparse, SparseVariable, plus
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

__all__ = ["MAX_DIM", "Contents", "WireError", "decode", "encode", "header_bits", "inspect", "padding_bits"]

MAGIC = b"acgd"
VERSION = 1
MAX_DIM = 1 << 20  # coordinates read unless more are asked for: a few bytes then cannot ask for 64 MB
_CHECKED = len(MAGIC) + 1 + 4  # the CRC covers what stands before its 4 bytes, and all behind them

_SIMPLE = (Silent, Dense, Sparse, SparseVariable, Seeded, SignScale, TernaryScale, Levels, LevelsElias, Natural)
_OTHERS = (FloatCast, FixedPoint, LowRank, SeededVariable, PartlySeeded, Blocks, Pair, Scaled, OnSupport, Maybe)
FORMATS: dict[int, type[Format]] = {cls.code: cls for cls in (*_SIMPLE, *_OTHERS)}

COMPRESSOR, ADDED, REPLACING = range(3)  # kinds: a value; what is added to h; coordinates that replace those of h
FLOAT_WIDTHS = (16, 32, 64)
MOST_DEPTH = 6  # formats inside each other
MOST_PARTS = 1 << 14  # entries of a tuple: blocks
MOST_LETTERS = 64
MOST_PASSES = 8  # times dim: coordinates of all formats of a message together, a sum of four being 7


class Contents(NamedTuple):
    """What a message says besides its numbers."""

    dim: int
    float_width: int
    format: Format
    level: int | None  # of a mechanism: 0 nothing sent, 1..m the level sent; None for a compressor's message
    levels: int  # m of a mechanism that may be silent, in whose payload the level stands first; else 0
    kind: int
    header_bits: int
    payload_bits: int

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

    what: a compressor with a byte format, or one of GD, EF21, LAG, CLAG, AdaCGD over such compressors, which also needs
    h, what the receiver holds, and y, the previous vector, both (d,).
    float_width: 16, 32 or 64, to which x, h and y are cast first; by default that of x.
    common, worker, workers (and round): what compressors that share randomness are called with; others ignore them.
    state: what a `Stateful` such as PowerSGDWarm has from its `init` or last `step`; it draws nothing from the key.

    Raises TypeError for what has no byte format, ValueError for arguments that do not fit.
    """
    from adacgd.compressors.base import Stateful, as_key, fetch, format_of, shared_with
    from adacgd.mechanisms import ThreePoint

    if isinstance(what, Stateful) != (state is not None):
        words = (
            "keeps a state: pass state=, of its init or last step" if state is None else "keeps no state: leave it out"
        )
        raise ValueError(f"encode({what!r}, ..., state=...): {type(what).__name__} {words}.")
    shared = _shared(what, common, round, worker, workers)
    key, x = as_key(key), _vector("x", x, float_width)
    width = 8 * x.dtype.itemsize
    if not isinstance(what, ThreePoint):
        if h is not None or y is not None:
            raise ValueError(f"encode({what!r}, ...): h= and y= are for mechanisms; a compressor is given x alone.")
        if isinstance(what, Stateful):
            return _packed(what.format(x.size, width), fetch(*what.send(state, x)), x.size, width)
        layout = format_of(what, x.size, width, workers)
        return _packed(layout, what.numbers(key, x, **shared_with(what, shared)), x.size, width)
    if h is None or y is None:
        raise ValueError(f"encode({what!r}, ...) is a mechanism: pass h=, what the receiver holds, and y=.")
    h, y = _vector("h", h, float_width, x), _vector("y", y, float_width, x)
    return _mechanism(what, key, h, y, x, shared)


def _shared(what: Any, common: Any, round: Any, worker: Any, workers: Any) -> dict[str, Any]:
    """What `what` is called with besides its key."""
    from adacgd.compressors.base import as_key

    if not getattr(what, "shares_randomness", False):
        return {}
    told = {"common": common, "worker": worker, "workers": workers}
    missing = [f"{name}=" for name, value in told.items() if value is None]
    if missing:
        raise ValueError(f"encode({what!r}, ...) shares randomness among workers: pass {', '.join(missing)} too.")
    return {**told, "common": as_key(common), **({} if round is None else {"round": round})}


def _vector(name: str, v: Any, float_width: int | None, like: Any = None) -> Any:
    """A JAX vector of the width asked for. Raises ValueError for all that is none, or that JAX would narrow."""
    import jax.numpy as jnp

    v = np.asarray(v)
    if float_width is not None:
        if float_width not in FLOAT_WIDTHS or not isinstance(float_width, int | np.integer):
            raise ValueError(f"encode(float_width=...) must be 16, 32 or 64, got {float_width!r}.")
        with np.errstate(all="ignore"):
            v = v.astype(f"f{float_width // 8}")
    if v.ndim != 1 or v.size < 1 or v.dtype not in ("f2", "f4", "f8"):
        raise ValueError(f"encode({name}=...) must be a (d,) array of float16, 32 or 64, got {v.dtype} {v.shape}.")
    if like is not None and (v.shape != like.shape or v.dtype != like.dtype):
        raise ValueError(f"encode({name}=...) must be as x, {like.dtype} {like.shape}, got {v.dtype} {v.shape}.")
    there = jnp.asarray(v)
    if there.dtype != v.dtype:
        raise ValueError(f"encode({name}=...) is {v.dtype}, which needs jax_enable_x64; or pass float_width=32.")
    return there


def _mechanism(what: Any, key: Any, h: Any, y: Any, x: Any, shared: dict[str, Any]) -> bytes:
    """The level that the mechanism chooses, and what its compressor sends of x - h."""
    import jax.numpy as jnp

    from adacgd.compressors.base import format_of, level_index, shared_with

    ladder, width = what.ladder(), 8 * x.dtype.itemsize
    if ladder is None:
        raise TypeError(f"{type(what).__name__} has no byte format; only maps with a `ladder()` have one.")
    layouts = [format_of(c, x.size, width, shared.get("workers")) for c in ladder.levels]
    levels = len(layouts) if ladder.may_be_silent else 0
    if ladder.level_bits != bits_for(levels + 1):
        raise TypeError(f"{what!r} counts {ladder.level_bits} bits for its level; {levels} and silence take another.")
    level = int(what(key, h, y, x, **shared_with(what, shared)).level)
    if not level:
        return _packed(Silent(), (), x.size, width, ADDED, levels, level)
    compressor, layout = ladder.levels[level - 1], layouts[level - 1]
    own = shared_with(compressor, shared, level_index(level - 1, len(layouts)))
    numbers = compressor.numbers(what.level_keys(key)[level - 1], x - h, **own)
    if not compressor.verbatim:
        return _packed(layout, numbers, x.size, width, ADDED, levels, level)
    values = x if ladder.whole else jnp.where(x - h != 0, x, h)
    return _packed(layout, layout.carrying(numbers, np.asarray(values)), x.size, width, REPLACING, levels, level)


def _packed(
    layout: Format, numbers: Any, dim: int, width: int, kind: int = COMPRESSOR, levels: int = 0, level: int = 0
) -> bytes:
    """Header, known bits, payload."""
    known, payload = BitWriter(), BitWriter()
    payload.integer(level, bits_for(levels + 1))
    layout.write(payload, known, numbers, dim, width)
    head = bytes([kind, width]) + varint(dim) + (varint(levels) if kind else b"") + _tree(layout)
    body = head + varint(known.bits) + varint(payload.bits) + known.getvalue() + payload.getvalue()
    start = MAGIC + bytes([VERSION])
    blob = start + zlib.crc32(start + body).to_bytes(4, "big") + body
    inspect(blob)  # what no receiver would read is refused here
    return blob


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
    with _refusals():
        numbers = found.format.read(payload, known, found.dim, found.float_width)
    if payload.left or known.left:
        raise WireError(f"{payload.left + known.left} bits are left when all fields are read.")
    return _value(found, numbers, h)


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


def _value(found: Contents, numbers: Numbers, h: Any) -> np.ndarray:
    """What the receiver makes of the numbers: `adacgd.mechanisms.received` in NumPy."""
    dtype = np.dtype(f"f{found.float_width // 8}")
    if found.level == 0:
        return np.array(h)
    with np.errstate(all="ignore"):  # any bits may stand for floats, signalling NaN too
        sent = found.format.rebuild(np, numbers, found.dim, dtype)
        if found.kind == COMPRESSOR:
            return sent
        if found.kind == REPLACING:
            out, carried = np.array(h), found.format.support(numbers, found.dim)
            out[carried] = sent[carried]
            return out
        return plus(np, np.asarray(h), np.where(sent != 0, sent, dtype.type(0)))


def _opened(blob: Any) -> tuple[Contents, BitReader, BitReader]:
    """What the header says, and the known bits and the payload, the latter behind the level."""
    if not isinstance(blob, bytes | bytearray | memoryview):
        raise TypeError(f"a message is bytes, got {type(blob).__name__} {blob!r:.40}.")
    octets = bytes(blob)
    source = _checked(octets)
    kind, width, dim = *source.take(2), source.varint()
    if kind not in (COMPRESSOR, ADDED, REPLACING):
        raise WireError(f"the kind of the message is {kind}; there are 0, 1 and 2.")
    if width not in FLOAT_WIDTHS:
        raise WireError(f"the float width is {width}; it must be 16, 32 or 64.")
    if dim < 1:
        raise WireError("the message has no coordinates.")
    levels = source.varint() if kind else 0
    layout = _read_format(source, 1)
    with _refusals():
        layout.check(dim, width)
    if _passes(layout, dim) > MOST_PASSES * dim:
        raise WireError(f"the formats of the message together have more than {MOST_PASSES} times its coordinates.")
    sizes = source.varint(), source.varint()
    known, payload = (_bits(source, size) for size in sizes)
    if source.at != len(octets):
        raise WireError(f"{len(octets) - source.at} bytes follow the end of the message.")
    level = _level(payload, levels, layout) if kind else None
    if kind == REPLACING and not layout.verbatim:
        raise WireError(f"{type(layout).__name__} carries no coordinates that could replace those of h.")
    head = 8 * (len(octets) - -(-sizes[1] // 8))
    return Contents(dim, width, layout, level, levels, kind, head, sizes[1]), known, payload


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


def _level(payload: BitReader, levels: int, layout: Format) -> int:
    """The level that a mechanism sent: 1 where it has no choice."""
    level = payload.integer(bits_for(levels + 1)) if levels else 1
    if level > levels > 0:
        raise WireError(f"level {level} was sent by a mechanism of {levels}.")
    if (level == 0) != isinstance(layout, Silent):
        raise WireError(f"level {level} was sent in format {type(layout).__name__}; level 0, and no other, is Silent.")
    return level


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
