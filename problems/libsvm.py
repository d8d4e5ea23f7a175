"""A strict reader of LIBSVM text, plain or compressed.

A line is ``label index:value index:value ...``. ``#`` starts a comment, blank lines are skipped, only LF or CRLF ends
a line, space and tab separate. Indices count from 1 unless an index 0 occurs anywhere in the file. Numbers are plain
decimal. There are exactly two labels; the smaller becomes -1 and the larger +1. Whatever is ambiguous is refused, with
one kind of exception that names the file, the line (every physical line counts, from 1) and the token.

One regular expression decides whether a line is well-formed and the conversions are done in bulk for the whole line,
which reads about a million entries a second. Only a line that fails is looked at token by token, to say what is wrong.
"""

import bz2
import hashlib
import lzma
import os
import re
import stat
import zlib
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp

MAX_WIDTH = 10_000_000  # a wider table is more often a wrong index than a wish; n_features overrides it
MAX_INDEX = 2**31 - 1  # what an int32, JAX's default integer, can hold
_TOO_LARGE = f"the index is over {MAX_INDEX}, the largest int32"
MAX_DENSE_BYTES = 2 * 2**30
SPARSE_BELOW = 0.25  # density under which CSR is chosen

# Possessive quantifiers keep the match linear in the length of the line, also for a hostile one.
_NUMBER = rb"[+-]?(?:[0-9]++(?:\.[0-9]*+)?|\.[0-9]++)(?:[eE][+-]?[0-9]++)?"
_row = re.compile(rb"[ \t]*+(%b(?:[ \t]++[0-9]++:[ \t]*+%b)*)[ \t]*+\r?" % (_NUMBER, _NUMBER)).fullmatch
_number = re.compile(_NUMBER).fullmatch
_group = re.compile(rb"([^ \t:]++)[ \t]++qid:[0-9]++(?=[ \t]|$)").match


class LibsvmError(ValueError):
    """A file that cannot be taken as LIBSVM data. `path`, `line` (from 1) and `token` say where; None: not known."""

    def __init__(self, message: str, *, path: str | None = None, line: int | None = None, token: str | None = None):
        super().__init__(message)
        self.path, self.line, self.token = path, line, token


class MissingFileError(LibsvmError, FileNotFoundError):
    """There is no such file."""


@dataclass(frozen=True, eq=False)
class Table:
    """What a file holds: `features` (N, d) ndarray or CSR, `labels` (N,) in {-1, +1}, `sha256` of the raw text."""

    features: Any
    labels: np.ndarray
    sha256: str


@dataclass(frozen=True)
class Options:
    """How a file is to be taken; ValueError for what no file could satisfy.

    `n_features` is the width d (None: the largest index); an index beyond it is an error. `index_base` is 0, 1 or None
    (1, unless an index 0 occurs anywhere). `dtype` is float64 or float32. `sparse` None gives CSR when less than a
    quarter of the entries are non-zero and a dense array otherwise.
    """

    n_features: int | None = None
    index_base: int | None = None
    dtype: Any = "float64"
    sparse: bool | None = None

    def __post_init__(self) -> None:
        width, base = self.n_features, self.index_base
        if width is not None and (isinstance(width, bool) or not isinstance(width, int | np.integer)):
            raise ValueError(f"n_features must be a whole number or None, not {width!r}")
        if width is not None and not 1 <= width <= MAX_INDEX:
            raise ValueError(f"n_features must lie between 1 and {MAX_INDEX}, not {width}")
        if base is not None and (isinstance(base, bool | float) or base not in (0, 1)):
            raise ValueError(f"index_base must be None, 0 or 1, not {base!r}")
        if self.sparse not in (None, True, False):
            raise ValueError(f"sparse must be None, True or False, not {self.sparse!r}")
        try:
            known = self.dtype is not None and np.dtype(self.dtype) in (np.dtype("float32"), np.dtype("float64"))
        except TypeError:
            known = False
        if not known:
            raise ValueError(f"dtype must be 'float64' or 'float32', not {self.dtype!r}")


def read(path: str | os.PathLike[str], options: Options | None = None) -> Table:
    """Read a LIBSVM file, plain or compressed with gzip, bzip2 or xz (recognised by content, whatever its name).

    Raises `LibsvmError` for anything that is not plainly right.
    """
    return parse(read_text(path), os.fspath(path), options)


# --- from a path to the raw text ---------------------------------------------------------------------------------


def read_text(path: str | os.PathLike[str]) -> bytes:
    """Return the raw text of a file, decompressed, or raise `LibsvmError` naming the path."""
    where = os.fspath(path)
    raw = _read_whole(where)
    if not raw:
        raise _error(where, "the file is empty (0 bytes)")
    _check_start(raw, where)  # a pointer or UTF-16 under a compressed name is better told as what it is
    try:
        text = _decompress(raw, where)
    except MemoryError:
        raise _error(where, "the decompressed text does not fit into memory") from None
    if not text:
        raise _error(where, "the file is empty: compressed data of 0 bytes")
    return text


def _stamp(path: str) -> tuple[int, ...]:
    """Whatever changes when a file is replaced, rewritten or cut."""
    found = os.stat(path)
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _read_whole(path: str) -> bytes:
    try:
        kind = os.stat(path).st_mode
        if stat.S_ISDIR(kind):
            raise _error(path, "this is a directory; give the path of a file")
        if not stat.S_ISREG(kind):  # opening a pipe would wait for ever
            raise _error(path, "this is not a regular file")
        before = _stamp(path)
        with open(path, "rb") as file:
            raw = file.read()
        after = _stamp(path)
    except FileNotFoundError:
        raise MissingFileError(f"{path}: there is no such file", path=path) from None
    except MemoryError:
        raise _error(path, "the file does not fit into memory") from None
    except OSError as fault:
        raise _error(path, f"the file cannot be read ({fault.strerror or fault})") from None
    if before != after or len(raw) != before[2]:
        raise _error(path, "the file changed while it was read; wait for its writer to finish and read it again")
    return raw


def _gzip() -> Any:
    return zlib.decompressobj(wbits=31)  # 31: gzip with its checksum


_COMPRESSED: tuple[tuple[str, str, bytes, Callable[[], Any]], ...] = (
    (".gz", "gzip", b"\x1f\x8b", _gzip),
    (".bz2", "bzip2", b"BZh", bz2.BZ2Decompressor),
    (".xz", "xz", b"\xfd7zXZ\0", lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ)),
)
_STEP = 1 << 20  # bytes given to a decompressor at a time
_FOREIGN = ((b"PK\x03\x04", "a zip archive"), (b"\x28\xb5\x2f\xfd", "zstd data"), (b"7z\xbc\xaf", "a 7z archive"))


def _decompress(raw: bytes, where: str) -> bytes:
    for _, kind, magic, make in _COMPRESSED:
        if raw.startswith(magic):
            return _inflate(raw, make, kind, where)
    for magic, kind in _FOREIGN:
        if raw.startswith(magic):
            raise _error(
                where, f"this is {kind}; unpack it first (plain text, gzip, bzip2 and xz are read as they are)"
            )
    for suffix, kind, _, _ in _COMPRESSED:
        if where.lower().endswith(suffix):
            raise _error(where, f"the name says {kind}, the content is not {kind} data; rename it if it is plain text")
    return raw


def _inflate(raw: bytes, make: Callable[[], Any], kind: str, where: str) -> bytes:
    """All members of a compressed stream, joined; the standard one-call functions ignore some broken tails."""
    pieces, decoder = [], make()
    try:
        for start in range(0, len(raw), _STEP):  # in steps: a file of many members would be copied again for each
            chunk = raw[start : start + _STEP]
            while chunk:
                if decoder.eof:
                    chunk = chunk.lstrip(b"\0")  # padding between and after members is legal
                    if not chunk:
                        break
                    decoder = make()
                pieces.append(decoder.decompress(chunk))
                chunk = decoder.unused_data
    except (zlib.error, lzma.LZMAError, OSError, EOFError, ValueError) as fault:
        raise _error(where, f"corrupt {kind} data ({fault}); fetch the file again") from None
    if not decoder.eof:
        raise _error(where, f"truncated {kind} data: it ends before its end-of-stream mark; fetch the file again")
    return b"".join(pieces)


# --- from the raw text to numbers --------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Rows:
    """Numbers as written: `label` (N,), `count` (N,) entries a row, `index` and `value` (nnz,), `line` (N,) from 1."""

    where: str
    text: list[bytes]
    line: np.ndarray
    label: np.ndarray
    count: np.ndarray
    index: np.ndarray
    value: np.ndarray

    def fault(self, position: int, rule: str) -> LibsvmError:
        """The error of the entry at `position` of `index` and `value`."""
        ends = np.cumsum(self.count)
        row = int(np.searchsorted(ends, position, side="right"))
        column = position - int(ends[row] - self.count[row])
        index, value = self.parts(row)[1 + 2 * column :][:2]
        return _error(self.where, rule, int(self.line[row]), f"{index}:{value}")

    def label_fault(self, row: int, rule: str) -> LibsvmError:
        """The error of the label of the row at position `row`."""
        return _error(self.where, rule, int(self.line[row]), self.parts(row)[0])

    def parts(self, row: int) -> list[str]:
        return _tidy(self.text[self.line[row] - 1]).replace(b":", b" ").decode("ascii").split()


def parse(text: bytes, where: str, options: Options | None = None) -> Table:
    """Turn LIBSVM text into a `Table`; `where` is the name that errors carry."""
    options = options or Options()
    rows = _rows(text, where)
    if not rows.label.size:
        raise _error(where, "no samples: only blank lines and comments")
    dtype = np.dtype(options.dtype)
    value = _values(rows, dtype)
    _check_duplicates(rows)
    base = _base(rows, options.index_base)
    width = _width(rows, base, options.n_features)
    labels = _labels(rows)
    features = _matrix(rows, value, base, width, options.sparse)
    return Table(features, labels.astype(dtype), hashlib.sha256(text).hexdigest())


def _rows(text: bytes, where: str) -> _Rows:
    _check_start(text, where)
    lines = text.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    label, value = array("d"), array("d")
    line, count, index = array("q"), array("q"), array("q")
    fault = None
    for number, content in enumerate(lines, 1):
        match = _row(content)
        if match is None:
            body = _tidy(content)
            if not body:
                continue
            match = _row(body)
        try:
            if match is None:
                raise ValueError
            parts = match[1].replace(b":", b" ").split()
            index.extend(map(int, parts[1::2]))
        except (ValueError, OverflowError):  # Python refuses to convert more than 4300 digits
            fault = _explain(_tidy(content), where, number)
            break
        label.append(float(parts[0]))
        value.extend(map(float, parts[2::2]))
        count.append(len(parts) // 2)
        line.append(number)
    whole = len(value)  # a faulty line may have left indices without values
    as_array = [np.array(a, dtype=a.typecode) for a in (line, label, count, index[:whole], value)]
    rows = _Rows(where, lines, *as_array)
    _check_numbers(rows)  # before the fault: the first bad line is the one to report
    if fault is not None:
        raise fault
    return rows


def _check_start(text: bytes, where: str) -> None:
    if text.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise _error(where, "the text is UTF-16; save it as ASCII or UTF-8", 1)
    if text.startswith(b"version https://git-lfs."):
        raise _error(where, "this is a Git LFS pointer, not the data; fetch it with `git lfs pull`", 1, "version")


def _tidy(line: bytes) -> bytes:
    """The line without comment, line end, outer white space and ranking group."""
    body = line.partition(b"#")[0].removesuffix(b"\r").strip(b" \t")
    group = _group(body)
    return body if group is None else group[1] + body[group.end() :]


def _check_numbers(rows: _Rows) -> None:
    """Refuse what is well-formed but too large for a float64 or an int32, at its first line."""
    faults = [rows.label_fault(row, "the label overflows float64") for row in _first(~np.isfinite(rows.label))]
    faults += [rows.fault(at, "the value overflows float64") for at in _first(~np.isfinite(rows.value))]
    faults += [rows.fault(at, _TOO_LARGE) for at in _first(rows.index > MAX_INDEX)]
    if faults:
        raise min(faults, key=lambda fault: fault.line or 0)


def _first(true: np.ndarray) -> list[int]:
    """Position of the first True, in a list that is empty when there is none."""
    return [int(at) for at in np.flatnonzero(true)[:1]]


def _values(rows: _Rows, dtype: np.dtype) -> np.ndarray:
    """Return the values in the dtype asked for, each the float64 nearest to its text and then rounded to float32."""
    with np.errstate(over="ignore", under="ignore"):
        value = rows.value.astype(dtype)
    for at in _first(~np.isfinite(value)):
        raise rows.fault(at, f"the value overflows {dtype}; load with dtype='float64' or rescale it")
    return value


def _check_duplicates(rows: _Rows) -> None:
    row = np.repeat(np.arange(rows.count.size), rows.count)
    ascending = np.diff(rows.index) > 0
    if np.all(ascending | (np.diff(row) > 0)):
        return
    order = np.lexsort((rows.index, row))
    same = (np.diff(rows.index[order]) == 0) & (np.diff(row[order]) == 0)
    for at in _first(same):  # the sort is by row: the first is in the first such line
        raise rows.fault(int(order[at + 1]), f"index {rows.index[order[at + 1]]} occurs twice in this line")


def _base(rows: _Rows, index_base: int | None) -> int:
    zeros = _first(rows.index == 0)
    if index_base == 1 and zeros:
        raise rows.fault(zeros[0], "index 0 in a file that is to be read with index_base=1; pass index_base=0")
    return (0 if zeros else 1) if index_base is None else int(index_base)


def _width(rows: _Rows, base: int, n_features: int | None) -> int:
    """Width of the table; `n_features` may widen it, never cut it."""
    if n_features is not None:
        for at in _first(rows.index - base >= n_features):
            told = f"index {rows.index[at]}, counted from {base}, does not fit into the width n_features={n_features}"
            raise rows.fault(at, told)
        return int(n_features)
    if not rows.index.size:
        raise _error(rows.where, "no features: every line is a label alone; pass n_features if this is meant")
    at = int(np.argmax(rows.index))
    width = int(rows.index[at]) + 1 - base
    if width > MAX_WIDTH:
        told = f"the index makes the table {width} wide, over the limit of {MAX_WIDTH}; if it is meant, pass n_features"
        raise rows.fault(at, f"{told}={width}")
    return width


def _labels(rows: _Rows) -> np.ndarray:
    """Map the smaller of the two labels to -1 and the larger to +1."""
    found, first = np.unique(rows.label, return_index=True)
    listed = list_values(found)
    if found.size == 1:
        raise _error(rows.where, f"only one label, {listed}: there must be exactly two")
    if found.size > 2:
        third = int(np.sort(first)[2])
        told = f"a third label; there must be exactly two, and the file has {found.size}: {listed}"
        raise rows.label_fault(third, told)
    return np.where(rows.label == found[1], 1.0, -1.0)


def list_values(values: np.ndarray) -> str:
    """The numbers, comma separated and without a needless ``.0``; at most 20 of them."""
    words = [str(float(value)).removesuffix(".0") for value in values[:20]]
    return ", ".join(words) + (", ..." if values.size > 20 else "")


def _matrix(rows: _Rows, value: np.ndarray, base: int, width: int, sparse: bool | None) -> Any:
    kept = value != 0  # zeros written in the text are legal and not stored
    shape = (rows.label.size, width)
    row = np.repeat(np.arange(shape[0]), rows.count)[kept]
    starts = np.concatenate([[0], np.cumsum(np.bincount(row, minlength=shape[0]))])
    indices = (rows.index - base)[kept].astype(np.int32)
    matrix = sp.csr_array((value[kept], indices, starts.astype(np.int32)), shape=shape)
    matrix.sort_indices()
    if sparse or (sparse is None and matrix.nnz < SPARSE_BELOW * shape[0] * width):
        return matrix
    size = shape[0] * width * value.itemsize
    if size > MAX_DENSE_BYTES:
        told = f"a dense table of {shape[0]} rows, {width} wide, takes {size} bytes, over {MAX_DENSE_BYTES}"
        raise _error(rows.where, told + "; pass sparse=True")
    return matrix.toarray()


# --- what is wrong with a line -----------------------------------------------------------------------------------


def _error(where: str, rule: str, line: int | None = None, token: str | None = None) -> LibsvmError:
    place = where if line is None else f"{where}, line {line}"
    if token is None:
        return LibsvmError(f"{place}: {rule}", path=where, line=line)
    shown = token if len(token) <= 60 else token[:57] + "..."
    return LibsvmError(f"{place}: '{shown}': {rule}", path=where, line=line, token=token)


def _show(token: bytes) -> str:
    """The token in printable ASCII."""
    return token.decode("latin-1").encode("unicode_escape").decode("ascii")


def _explain(body: bytes, where: str, line: int) -> LibsvmError:
    """Say which token of a line that is not well-formed breaks which rule; `body` is what `_tidy` leaves of it."""
    label, *tokens = re.split(rb"[ \t]+", body)
    if _number(label) is None:
        return _error(where, _label_rule(label) + _bytes_note(label), line, _show(label))
    position = 0
    while position < len(tokens):
        token = tokens[position]
        position += 1
        if token.endswith(b":") and position < len(tokens) and b":" not in tokens[position]:
            token += tokens[position]  # a fixed-width writer puts spaces between colon and value
            position += 1
        rule = _entry_rule(token)
        if rule is not None:
            return _error(where, rule + _bytes_note(token), line, _show(token))
    return _error(where, "this line is not `label index:value ...`", line, _show(body))


def _label_rule(label: bytes) -> str:
    if b":" in label:
        return "a line starts with its label, a number without a colon; is the label missing, or a weight attached?"
    if b"," in label:
        return "a label is one number: lists of labels and comma-separated tables are not LIBSVM text"
    return "a label is a finite decimal number"


def _entry_rule(token: bytes) -> str | None:
    """The rule that one ``index:value`` breaks, or None."""
    index, colon, value = token.partition(b":")
    if not colon:
        return "after the label every entry is `index:value`; this one has no colon"
    if not re.fullmatch(rb"[0-9]+", index):
        return "an index is a whole number of plain digits" + (", and there is none before the colon" * (not index))
    if len(index.lstrip(b"0")) > 10 or len(index) > 4000:
        return _TOO_LARGE
    if not value:
        return "there is no value after the colon; has the file been cut?"
    if b":" in value:
        return "an entry has one colon; is a space lost, or is this `field:index:value`?"
    if _number(value) is None:
        return (
            "a value is a finite plain decimal number (no nan or inf, a decimal point, no underscore, not hexadecimal)"
        )
    return None


def _bytes_note(token: bytes) -> str:
    if b"\0" in token:
        return "; it holds NUL bytes, as a broken copy or UTF-16 text does"
    if b"\r" in token:
        return "; it holds a carriage return: only LF or CRLF ends a line"
    if any(byte > 126 or byte < 32 for byte in token):
        return "; it holds bytes that are not printable ASCII, such as a no-break space or a byte order mark"
    return ""
