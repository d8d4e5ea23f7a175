"""Bits in a row: a writer and a reader of bit fields, most significant bit first, vectorised with NumPy.

Nothing here knows what a number means. The reader checks that the bits are there before it allocates anything, so that
a short message cannot ask for a large array.
"""

import numpy as np

_CHUNK = 1 << 16  # entries unpacked at a time: bounds the memory of unpacked bits, and keeps chunks whole bytes
_WINDOW = 1 << 18  # bits looked at together while code words of unknown length are read
LONGEST = 62  # zeros that an Elias gamma code word may start with


class WireError(ValueError):
    """These bytes are no message, or not the whole of one, or not one that this version reads."""


def bits_for(choices: int) -> int:
    """ceil(log2(choices)): the bits that name one of so many; 0 for a single choice."""
    return max(int(choices) - 1, 0).bit_length()


def bit_lengths(values: np.ndarray) -> np.ndarray:
    """How many bits each unsigned integer has, exactly: (n,) uint64 -> (n,) int64; 0 has none."""
    left, found = values.astype(np.uint64), np.zeros(values.shape, np.int64)
    for step in (32, 16, 8, 4, 2, 1):
        large = left >> np.uint64(step) > 0
        found += np.where(large, step, 0)
        left = np.where(large, left >> np.uint64(step), left)
    return found + (left > 0)


class BitWriter:
    """Collects fields; `getvalue` joins them, padded with fewer than 8 zero bits."""

    def __init__(self) -> None:
        self.bits = 0
        self._pieces: list[tuple[np.ndarray, int]] = []

    def packed(self, octets: np.ndarray, count: int) -> None:
        """`count` bits that stand packed in bytes; what follows them in the last byte must be zero."""
        self._pieces.append((octets, count))
        self.bits += count

    def integer(self, value: int, width: int) -> None:
        """One integer of any size."""
        if width:
            padded = -(-width // 8)
            octets = (int(value) << (8 * padded - width)).to_bytes(padded, "big")
            self.packed(np.frombuffer(octets, np.uint8), width)

    def uints(self, values: np.ndarray, width: int) -> None:
        """Unsigned integers below 2^width, width at most 64, each in `width` bits."""
        kind = _holder(width)
        for start in range(0, values.size if width else 0, _CHUNK):
            part = values[start : start + _CHUNK].astype(kind.newbyteorder(">"))
            if width == 8 * kind.itemsize:
                octets = part.view(np.uint8)
            else:
                octets = np.packbits(np.unpackbits(part.view(np.uint8).reshape(part.size, -1), axis=1)[:, -width:])
            self.packed(octets, part.size * width)

    def floats(self, values: np.ndarray) -> None:
        """IEEE numbers, sign first."""
        self.packed(values.astype(values.dtype.newbyteorder(">"), copy=False).view(np.uint8), 8 * values.nbytes)

    def gammas(self, values: np.ndarray) -> None:
        """Positive integers in Elias gamma code: as many zeros as bits follow the leading one, then the integer."""
        lengths = 2 * bit_lengths(values) - 1
        ends = np.cumsum(lengths)
        stream = np.zeros(int(ends[-1]) if values.size else 0, np.uint8)
        left, places = values.astype(np.uint64), ends - 1
        while left.size:  # one plane of bits after the other, least significant first
            stream[places] = left & np.uint64(1)
            left, places = left >> np.uint64(1), places - 1
            places, left = places[left > 0], left[left > 0]
        self.packed(np.packbits(stream), stream.size)

    def getvalue(self) -> bytes:
        """The bytes."""
        out = np.zeros(-(-self.bits // 8) + 1, np.uint8)
        at = 0
        for octets, count in self._pieces:
            first, shift = divmod(at, 8)
            used = octets[: -(-count // 8)]
            out[first : first + used.size] |= used >> shift
            if shift:
                out[first + 1 : first + 1 + used.size] |= used << (8 - shift)
            at += count
        return out[:-1].tobytes()


class BitReader:
    """Reads `bits` bits of `octets`. Raises WireError where fewer are left than asked for."""

    def __init__(self, octets: bytes, bits: int) -> None:
        self._octets = np.frombuffer(octets, np.uint8)
        self._at = 0
        self._bits = bits

    @property
    def left(self) -> int:
        """Bits not yet read."""
        return self._bits - self._at

    def require(self, count: int) -> None:
        """Raise WireError unless so many bits are left."""
        if count > self.left:
            raise WireError(f"the payload ends early: {count} bits are wanted where {self.left} are left.")

    def packed(self, count: int) -> np.ndarray:
        """The next `count` bits in bytes, zeros behind them."""
        self.require(count)
        found = self._look(count)
        self._at += count
        return found

    def _look(self, count: int) -> np.ndarray:
        first, shift = divmod(self._at, 8)
        size = -(-count // 8)
        source = self._octets[first : first + size + 1]
        found = source[:size] << shift
        if shift:
            behind = source[1:] >> (8 - shift)
            found[: behind.size] |= behind[:size]
        if count % 8:
            found[-1] &= (0xFF << (8 - count % 8)) & 0xFF
        return found

    def integer(self, width: int) -> int:
        """One integer of any size."""
        return int.from_bytes(self.packed(width).tobytes(), "big") >> (-width % 8)

    def uints(self, count: int, width: int) -> np.ndarray:
        """(count,) unsigned integers of `width` bits, in the smallest of NumPy's unsigned types that holds them."""
        self.require(count * width)
        kind = _holder(width)
        out = np.zeros(count, kind)
        for start in range(0, count if width else 0, _CHUNK):
            size = min(_CHUNK, count - start)
            octets = self.packed(size * width)
            if width != 8 * kind.itemsize:
                bits = np.zeros((size, 8 * kind.itemsize), np.uint8)
                bits[:, -width:] = np.unpackbits(octets, count=size * width).reshape(size, width)
                octets = np.packbits(bits)
            out[start : start + size] = octets.view(kind.newbyteorder(">"))
        return out

    def floats(self, count: int, width: int) -> np.ndarray:
        """(count,) IEEE numbers of 16, 32 or 64 bits."""
        return self.packed(count * width).view(f">f{width // 8}").astype(f"f{width // 8}")

    def gammas(self, count: int) -> np.ndarray:
        """(count,) uint64, positive integers below 2^63 in Elias gamma code. At least one bit each."""
        self.require(count)
        parts, missing = [], count
        while missing:
            part = self._gamma_window(missing)
            parts.append(part)
            missing -= part.size
        return np.concatenate(parts) if parts else np.zeros(0, np.uint64)

    def _gamma_window(self, wanted: int) -> np.ndarray:
        """As many code words as lie whole in the next window: each ends where twice its zeros and one bit are read."""
        size = min(self.left, _WINDOW, (2 * LONGEST + 1) * wanted)  # a few words need not unpack much
        bits = np.unpackbits(self._look(size), count=size)
        place = np.arange(size, dtype=np.int32)
        next_one = np.minimum.accumulate(np.where(bits, place, np.int32(size + LONGEST + 1))[::-1])[::-1]
        ends, at = (2 * next_one - place + 1).data, 0
        starts: list[int] = []
        while len(starts) < wanted and at < size and ends[at] <= size:
            starts.append(at)
            at = ends[at]
        if not starts:
            raise WireError("an Elias gamma code word does not end.")
        self._at += at
        begin = np.array(starts, np.int64)
        zeros = next_one[begin] - begin
        if zeros.max() > LONGEST:
            raise WireError(f"an Elias gamma code word starts with {zeros.max()} zeros; at most {LONGEST} are read.")
        values, places = np.zeros(begin.size, np.uint64), begin + zeros
        for step in range(int(zeros.max()) + 1):
            more = zeros >= step
            values[more] = values[more] << np.uint64(1) | bits[places[more] + step]
        return values


def _holder(width: int) -> np.dtype:
    """The smallest unsigned type of at least `width` bits."""
    return np.dtype(f"u{next(size for size in (1, 2, 4, 8) if 8 * size >= width)}")


def varint(value: int) -> bytes:
    """An unsigned integer in groups of 7 bits, least significant first, the top bit of a byte meaning *more*."""
    out = bytearray()
    while value > 0x7F:
        out.append(0x80 | (value & 0x7F))
        value >>= 7
    return bytes([*out, value])


class ByteReader:
    """Reads a header byte by byte. Raises WireError where it ends early or a number never ends."""

    def __init__(self, octets: bytes, at: int = 0) -> None:
        self.octets, self.at = octets, at

    def take(self, count: int) -> bytes:
        """The next `count` bytes."""
        if count > len(self.octets) - self.at:
            raise WireError(f"the header ends early: {count} bytes are wanted, {len(self.octets) - self.at} are left.")
        self.at += count
        return self.octets[self.at - count : self.at]

    def varint(self) -> int:
        """An unsigned integer below 2^63, in its shortest form."""
        value = 0
        for position in range(9):
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << (7 * position)
            if byte < 0x80:
                if position and not byte:
                    raise WireError("a number of the header is not in its shortest form.")
                return value
        raise WireError("a number of the header does not end within 9 bytes.")
