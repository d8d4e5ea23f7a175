"""Bytes from anywhere: decoded or refused in one line, in little time and memory, and never anything else."""

import random
import re
import time
import tracemalloc

import numpy as np
import pytest
from zoo import normal

import adacgd as ac
from adacgd import wire
from adacgd.compressors import codes, dense_codes, nested
from adacgd.compressors.bitstream import WireError, varint
from adacgd.steps import ADDED, FRESH, REPLACING, Sent, Step
from benchmarks import fuzz_wire
from benchmarks.fuzz_wire import chain, pieces, sealed


def test_random_and_mutated_bytes_are_decoded_or_refused():
    """5000 of each, and short ones that stand for long vectors, within 5 s and 64 MB; the benchmark runs 100 000."""
    tallies = {tally.name: tally for tally in fuzz_wire.attacks(5000)}
    assert set(tallies) == {
        "random bytes",
        "short for long",
        fuzz_wire.CHAINS,
        *(cls.__name__ for cls in wire.FORMATS.values()),
    }
    for name, tally in tallies.items():
        assert tally.tried == tally.refused + tally.decoded >= 100 and tally.refused
        assert tally.decoded or name == "random bytes", "mutations that all fail reach nothing"


def test_the_attack_sees_what_breaks(monkeypatch):
    def explode(blob, **_):
        raise IndexError("a bug")

    monkeypatch.setattr(wire, "decode", explode)
    with pytest.raises(fuzz_wire.Broken, match="IndexError: a bug"):
        fuzz_wire.attack("any", fuzz_wire.random_strings(random.Random(0), 3))
    monkeypatch.setattr(wire, "decode", lambda blob, **_: np.zeros(10 << 20))
    with pytest.raises(fuzz_wire.Broken, match="80 MB"):
        fuzz_wire.attack("any", fuzz_wire.random_strings(random.Random(0), 3))


def test_no_part_of_a_message_is_a_message_and_no_flipped_bit_goes_unseen():
    x = normal(3, 20, dtype=np.float32)
    for part in (ac.TopK(3, "gaps"), ac.Sign("zero"), ac.RandK(2, shared_seed=True), ac.Shrunk(ac.QSGD(2))):
        blob = wire.encode(part, 0, x)
        wrong = [blob[:n] for n in range(len(blob))] + [blob + b"\0", b"\0" + blob]
        for place in range(8 * len(blob)):
            flipped = bytearray(blob)
            flipped[place // 8] ^= 1 << place % 8
            wrong.append(bytes(flipped))
        for octets in wrong:
            for read in (wire.decode, wire.inspect, wire.header_bits, wire.padding_bits):
                with pytest.raises(WireError):
                    read(octets)


SILENT, ONE = codes.Silent(), (1.0).hex()
TREE = wire._tree
REFUSED = {
    "not with 61636764": b"\x1f\x8b\x08 no message",
    "start with nothing": b"",
    "version 1": b"acgd\1" + bytes(20),
    "header ends early": b"acgd\2",
    "CRC-32": b"acgd\2" + bytes(20),
    "kind of the message is 2": sealed(b"\2" + pieces(SILENT, 4)[1:]),
    "float width is 8": sealed(b"\0\x08" + pieces(SILENT, 4)[2:]),
    "no coordinates": sealed(pieces(SILENT, 0)),
    "above max_dim": sealed(pieces(SILENT, wire.MAX_DIM + 1)),
    "shortest form": sealed(b"\0\x40\x84\0" + pieces(SILENT, 4)[3:]),
    "9 bytes": sealed(b"\0\x40" + b"\xff" * 20),
    "format 0 is unknown": sealed(b"\0\x40\4\0\0\0"),
    "format 21 is unknown": sealed(b"\0\x40\4\x15\0\0"),
    "1 bytes follow": sealed(pieces(SILENT, 4) + b"\0"),
    "8 bits are left": sealed(pieces(SILENT, 4, payload=b"\0")),
    "not zero": sealed(b"\0\x40\4" + TREE(SILENT) + b"\0\3\x07"),
    "6 deep": sealed(b"\0\x40\4" + b"\x14" * 100_000),
    "more than 8 times": sealed(
        pieces(nested.Pair(*[nested.Pair(nested.Pair(SILENT, SILENT), nested.Pair(SILENT, SILENT))] * 2), 4)
    ),
    "lists 16385 blocks": sealed(b"\0\x40\4\x10" + varint(16385)),
    "payload ends early": sealed(pieces(codes.Dense(), 4)),
    "subset of 5 among 4": sealed(pieces(codes.Sparse(5), 4)),
    "coding must be one of": sealed(b"\0\x40\4\3\2" + b"\4huff" + b"\0\0"),
    "64 letters": sealed(b"\0\x40\4\3\2" + b"\x41" + b"f" * 65),
    "letters of ASCII": sealed(b"\0\x40\4\3\2" + b"\2\xff\xff"),
    "float.hex": sealed(b"\0\x40\4\x12\1" + b"\5" + b"0x1p0" + b"\0\0"),
    "factor='inf'": sealed(b"\0\x40\4\x12\1" + b"\3" + b"inf" + b"\0\0"),
    "factor='0x1p9999'": sealed(b"\0\x40\4\x12\1" + b"\x08" + b"0x1p9999" + b"\0\0"),
    "of float width 64": sealed(pieces(dense_codes.Natural(32), 4)),
    "1..65535": sealed(b"\0\x40\4\x08\0" + b"\6linear" + b"\0\0"),
    "2..24 bits": sealed(b"\0\x40\4\x0c\x32\0\0\0"),
    "LowRank": sealed(pieces(dense_codes.LowRank(3, 2, 2), 4)),
    "kind of a step is 0": sealed(chain((SILENT, 0), dim=4)),
    "kind of a step is 4": sealed(chain((SILENT, 4), dim=4)),
    "9 steps; at most 8": sealed(chain(*[(SILENT, ADDED)] * 9, dim=4)),
    "9 codes; at most 8": sealed(chain(dim=4, choices=(2,) * 9)),
    "a code has 1 choices": sealed(chain(dim=4, choices=(2, 1))),
    "code is 3 where there are 3": sealed(chain(dim=4, choices=(3,), payload=b"\xc0")),
    "payload ends early: 2 bits": sealed(chain(dim=4, choices=(3,))),
    "SignScale carries no coordinates": sealed(chain((dense_codes.SignScale(), REPLACING), dim=4)),
    "together have more than 8": sealed(chain(*[(nested.Pair(SILENT, SILENT), ADDED)] * 3, dim=4)),
    "pass it as h=": sealed(chain(dim=4)),
    "do not make up 4": sealed(pieces(nested.Blocks((SILENT, SILENT), (1, 2)), 4)),
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_no_sender_writes_is_refused_in_words(words):
    with pytest.raises(WireError, match=re.escape(words)) as refusal:
        wire.decode(REFUSED[words])
    assert "\n" not in str(refusal.value)


def packed(layout, bits, known=""):
    """A compressor's message with these bits."""

    def octets(b):
        return int("1" + b + "0" * (-len(b) % 8), 2).to_bytes(-(-len(b) // 8) + 1, "big")[1:]

    head = bytes([wire.COMPRESSOR, 16, 4]) + TREE(layout)
    return sealed(head + varint(len(known)) + varint(len(bits)) + octets(known) + octets(bits))


def test_numbers_that_mean_nothing_are_refused():
    none = "0" * 16
    for octets, words in [
        (packed(dense_codes.TernaryScale(), none + "1" * 7), "too large"),
        (packed(dense_codes.Levels(2), none + "0000" + "11000000"), "a code is 3"),
        (packed(dense_codes.LevelsElias(2), none + "001" + "1" + "0" + "011"), "2 is the largest"),
        (packed(codes.SparseVariable(), "111"), "a subset has 7 members"),
        (packed(codes.Sparse(1, "gaps"), "00101" + none), "a gap between indices is 5"),
        (packed(codes.Sparse(1, "gaps"), "0" * 70 + "1" * 80), "an Elias gamma code word"),
        (packed(codes.Sparse(2, "rank"), "110" + 2 * none), "rank of a subset of 2 among 4"),
        (packed(codes.SparseVariable("rank"), "010" + "111" + 2 * none), "too large"),
        (packed(codes.Sparse(2), "0101" + 2 * none), "ascending"),
        (packed(codes.Seeded(2), 2 * none, known="0100"), "ascending"),
        (packed(nested.PartlySeeded(1, 1), "10" + 2 * none, known="10"), "comes twice"),
    ]:
        with pytest.raises(WireError, match=words):
            wire.decode(octets)


def test_h_must_be_what_the_message_changes():
    h = np.arange(4.0)
    blob, plain = wire.encode(ac.EF21(ac.TopK(1)), 0, 2 * h, h=h, y=h), wire.encode(ac.TopK(1), 0, h)
    for octets, held, words in [
        (blob, None, "pass it as h="),
        (blob, h[:3], r"float64 \(4,\)"),
        (blob, h.astype(np.float32), "float32"),
        (blob, [0.0, 1, 2, 3], "list"),
        (blob, h[None], r"\(1, 4\)"),
        (plain, h, "leave it out"),
    ]:
        with pytest.raises(WireError, match=words):
            wire.decode(octets, h=held)
    for odd in (None, 3, blob.hex(), [1, 2], np.zeros(3)):
        for read in (wire.decode, wire.inspect, wire.header_bits, wire.padding_bits):
            with pytest.raises(TypeError, match=type(odd).__name__):
                read(odd)
    np.testing.assert_array_equal(wire.decode(bytearray(plain)), wire.decode(memoryview(plain)))


def test_a_long_vector_is_read_when_asked_for():
    blob = wire.encode(ac.TopK(1), 0, np.eye(1, wire.MAX_DIM + 1)[0])
    with pytest.raises(WireError, match="max_dim="):
        wire.decode(blob)
    assert wire.inspect(blob).dim == wire.MAX_DIM + 1
    assert wire.decode(blob, max_dim=1 << 21)[0] == 1
    h = np.zeros(wire.MAX_DIM + 1)
    change = wire.encode(ac.EF21(ac.TopK(1)), 0, h + 1, h=h, y=h)
    assert wire.decode(change, h=h).sum() == 1, "an h says how many there are"


def one(layout, numbers, dim):
    """A compressor's message of these numbers."""
    return wire._packed(Sent((Step(FRESH, layout, numbers),)), dim, 64, wire.COMPRESSOR)


def test_many_small_blocks_and_many_ranks_take_little():
    """Work that grows with the square of the message, or memory with the rank, is how a receiver is brought down."""
    layout = nested.Blocks((codes.Sparse(1, "gaps"),) * 5000, (4,) * 5000)
    numbers = tuple(n for i in range(5000) for n in (np.array([i % 4]), np.ones(1)))
    blob = one(layout, numbers, 20000)
    began = time.perf_counter()
    assert wire.decode(blob).sum() == 5000
    assert time.perf_counter() - began < 3
    factors = (np.ones(500 * 40), np.ones(500 * 40))
    blob = one(dense_codes.LowRank(40, 500, 500), factors, 250_000)
    tracemalloc.start()
    assert np.all(wire.decode(blob) == 40)
    assert tracemalloc.get_traced_memory()[1] < 20 << 20, "40 outer products at once would be 80 MB"
    tracemalloc.stop()
