"""Bytes: the value and the price of every message, exactly.

`sent` is the simulator's message; what is decoded of its bytes is compared with it bit by bit, NaN as NaN.
"""

import re
import subprocess
import sys
from pathlib import Path

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis.extra import numpy as hnp
from zoo import WORKERS, each, hard, normal, paid, price, same, send, shared, zoo

import adacgd as ac
from adacgd import wire
from adacgd.adaptive import tabulated
from adacgd.compressors import codes
from adacgd.compressors.bitstream import WireError

ROOT = Path(__file__).resolve().parent.parent
DTYPES = {1: np.float16, 3: np.float64, 12: np.float32}  # of the dimensions that are tried


# --- compressors -------------------------------------------------------------------------------------------------


@each(*DTYPES)
def test_bytes_carry_the_value_at_the_price_of_the_simulator(dim, name):
    target, dtype = zoo(dim)[name], DTYPES[dim]
    for i, x in enumerate(hard(dim, dtype)):
        key = jax.random.key(i)
        sent = send(target, key, x)
        blob = wire.encode(target, key, x, **shared(target, key))
        same(wire.decode(blob), sent.value)
        assert paid(blob) == price(sent, dtype), (x, blob.hex())
        told = wire.inspect(blob)
        workers = {"workers": WORKERS} if target.shares_randomness else {}
        assert told.format == target.format(dim, 8 * x.dtype.itemsize, **workers)
        assert (told.dim, told.float_width, told.codes) == (dim, 8 * x.dtype.itemsize, ())


@hypothesis.settings(max_examples=150, deadline=None, derandomize=True)
@hypothesis.given(st.data())
def test_any_floats_come_through_any_compressor(data):
    dim = 3
    name = data.draw(st.sampled_from(sorted(zoo(dim))))
    patterns = data.draw(hnp.arrays(np.uint64, dim, elements=st.integers(0, 2**64 - 1)))
    target, x = zoo(dim)[name], jnp.asarray(patterns.view(np.float64))
    key = jax.random.key(data.draw(st.integers(0, 9)))
    blob, sent = wire.encode(target, key, x, **shared(target, key)), send(target, key, x)
    same(wire.decode(blob), sent.value)
    assert paid(blob) == price(sent, np.float64)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_a_message_of_one_with_a_memory(dtype):
    """The bytes of each step are its value and its price; the state is given, and by nobody who has none."""
    warm = ac.PowerSGDWarm(2, (5, 6))
    state = warm.init(jax.random.key(0), 30)
    step = jax.jit(warm.step)
    for i in range(3):
        x = jnp.asarray(normal(i, 30, dtype=np.dtype(dtype)))
        blob = wire.encode(warm, 0, x, state=state)
        sent, state = step(state, x)
        same(wire.decode(blob), sent.value)
        assert paid(blob) == price(sent, dtype) == 22 * 8 * np.dtype(dtype).itemsize
        assert wire.inspect(blob).format == warm.format(30, 64) and wire.inspect(blob).codes == ()
    with pytest.raises(ValueError, match="PowerSGDWarm keeps a state: pass state="):
        wire.encode(warm, 0, x)
    with pytest.raises(ValueError, match=r"state= must be \(6, 2\) for 30 coordinates, got \(5, 2\)"):
        wire.encode(warm, 0, x, state=jnp.ones((5, 2)))
    with pytest.raises(ValueError, match="h= and y= are for mechanisms"):
        wire.encode(warm, 0, x, state=state, h=x, y=x)
    for other in (ac.TopK(1), ac.EF21(ac.TopK(1)), ac.PermK()):
        with pytest.raises(ValueError, match=r"state=.*keeps no state: leave it out"):
            wire.encode(other, 0, x, state=state)


def test_top_10_of_100_costs_390_bits():
    """FR-17: 10 floats and 10 indices of 7 bits; by rank ceil(log2 C(100, 10)) = 44 for all indices together."""
    x = normal(0, 100, dtype=np.float32)
    blobs = {coding: wire.encode(ac.TopK(10, coding), 0, x) for coding in ("fixed", "rank", "gaps")}
    assert paid(blobs["fixed"]) == 390 and paid(blobs["rank"]) == 320 + 44
    gaps = np.diff(np.flatnonzero(wire.decode(blobs["gaps"])), prepend=-1)
    assert paid(blobs["gaps"]) == 320 + sum(2 * int(g).bit_length() - 1 for g in gaps)
    for blob in blobs.values():
        np.testing.assert_array_equal(wire.decode(blob), np.where(np.abs(x) >= np.sort(np.abs(x))[-10], x, 0))


def test_x_is_cast_to_the_width_asked_for():
    x = normal(1, 6)
    for width in (16, 32, 64):
        decoded = wire.decode(wire.encode(ac.Identity(), 0, x, float_width=width))
        np.testing.assert_array_equal(decoded, x.astype(f"f{width // 8}"))
    assert wire.decode(wire.encode(ac.Identity(), 0, jnp.float32(2.5) * jnp.ones(3, jnp.float32))).dtype == np.float32


# --- the format --------------------------------------------------------------------------------------------------

GOLDEN = {
    "top": ("61636764028592dde0002006030405666978656400462f0100000100000000", [0, -3, 0, 2, 0, 0]),
    "top, rank, float16": ("6163676402f0da2d4e00100603040472616e6b00244c20040000", [0, -3, 0, 2, 0, 0]),
    "gaps, float64": (
        "61636764027987d2fb00400604046761707300cc01692c0080000000000004000000000000000bff80000000000000",
        [0, -3, 0, 2, 0, -1.5],
    ),
    "sign with zero": (
        "61636764027c621a3e00200607002a3f9aaaab6ec0",
        np.float32(1.2083334) * np.float32([1, -1, 1, 1, 0, -1]),
    ),
    "shrunk qsgd, elias": (
        "616367640284e5d39a002006120906066c696e656172143078312e62366462366462366462366462702d310036407c79ca692a94",
        [0, -2.2542479038238525, 0, 2.2542479038238525, 0, -1.1271239519119263],
    ),
    "rand, shared seed": ("6163676402235d98ef00200605040640043fc00000c1100000", [1.5, -9, 0, 0, 0, 0]),
    "blocks, float16": (
        "6163676402e32b70910010061002030205666978656403020566697865640204080023e100280000",
        [0, -3, 0, 2, 0, 0],
    ),
    "residual": (
        "61636764020cd8361e0020061103020566697865640b080600533808000006000508001780",
        [0.5, -3, 0.25, 2, 0, -1.5],
    ),
}
SCALE = np.float32(1.2916667)
GOLDEN_CHANGES = {  # CLAG with Top-2 and with signs; 3PCv2 with Rand-2 and Top-2; EF21+ with C(x), not C(x - h)
    "61636764020057d8450120060102010203040566697865640047978080000080000000": [0.5, -3, 0, 2, 0, 0],
    "6163676402ac7f2c41012006010201010600279fd2aaab22": [
        1.7916667,
        -0.29166675,
        1.2916667,
        1.2916667,
        1.2916667,
        -1.2916667,
    ],
}


def test_golden_bytes_are_still_read():
    """A change of the format shows here; then VERSION goes up."""
    for name, (blob, value) in GOLDEN.items():
        np.testing.assert_array_equal(wire.decode(bytes.fromhex(blob)), value, err_msg=name)
    for blob, value in GOLDEN_CHANGES.items():
        h = np.array([0.5, 1, 0, 0, 0, 0], np.float32)
        np.testing.assert_array_equal(wire.decode(bytes.fromhex(blob), h=h), np.float32(value))


def test_the_worked_example_of_the_documentation():
    text = (ROOT / "docs" / "wire.md").read_text()
    lines = re.search(r"```hex\n(.*?)```", text, re.S).group(1).splitlines()
    octets = bytes.fromhex("".join(line.split("  ")[0] for line in lines))
    x = np.array([0.5, -3.0, 0.25, 2.0, 0.0, -1.5], np.float32)
    assert wire.encode(ac.TopK(2), 0, x) == octets
    assert wire.decode(octets).tolist() == [0, -3, 0, 2, 0, 0]
    assert f"header {wire.header_bits(octets)} bits, padding {wire.padding_bits(octets)}, paid {paid(octets)}" in text
    for cls in wire.FORMATS.values():
        assert f"| {cls.code} | `{cls.__name__}` |" in text, cls


def test_a_receiver_needs_no_jax():
    """Loaded without the package's front door, in a process where importing jax fails."""
    x = normal(2, 9, dtype=np.float32)
    parts = [ac.Residual(ac.TopK(2), ac.Shrunk(ac.QSGD(3, "elias"))), ac.TopK(3, "rank"), ac.Natural(), ac.Sign("zero")]
    blobs = [wire.encode(part, 0, x) for part in parts]
    code = f"""
import sys, types
for name in ("jax", "jaxlib", "scipy"):
    sys.modules[name] = None
for name in ("adacgd", "adacgd.compressors"):
    room = sys.modules[name] = types.ModuleType(name)
    room.__path__ = [{str(ROOT)!r} + "/" + name.replace(".", "/")]
from adacgd import wire
for blob in {[b.hex() for b in blobs]}:
    print(wire.decode(bytes.fromhex(blob)).tobytes().hex())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [wire.decode(b).tobytes().hex() for b in blobs]


def test_products_and_sums_round_as_compiled_ones_do():
    """Near the smallest normal number, where XLA flushes and rounds in an order of its own."""
    rng = np.random.default_rng(0)
    product = jax.jit(lambda a, b: a * b)
    for dtype, low in ((np.float32, -70), (np.float64, -520)):
        a = np.ldexp(rng.uniform(1, 2, 20000), rng.integers(low, low + 20, 20000)).astype(dtype)
        target = np.finfo(dtype).tiny * rng.choice([1 - 1e-7, 1.0, 1 + 1e-7, 0.5, 1e-3], 20000)
        b = (target / a).astype(dtype) * rng.choice(np.array([-1, 1], dtype), 20000)
        same(codes.times(np, a, b), product(a, b))
        assert codes.times(np, a[0], b[0]).shape == () and codes.times(np, a[:3], dtype(0)).tolist() == [0, 0, 0]


# --- what a sender may not ask for -------------------------------------------------------------------------------


@ac.module
class Half(ac.Compressor):
    def __call__(self, key, x):
        return ac.Message(x / 2, ac.Cost(x.size))

    def alpha(self, dim):
        return 0.75


@ac.module
class Own(ac.ThreePoint):
    def __call__(self, key, h, y, x):
        return ac.Message(x, ac.Cost(x.size))

    def constants(self, dim):
        return ac.AB(1.0, 0.0)


class OwnFormat(codes.Dense):
    code = 99


@ac.module
class OwnlyCoded(ac.Compressor, ac.Coded):
    def __call__(self, key, x):
        return ac.Message(x, ac.Cost(x.size))

    def alpha(self, dim):
        return 1.0

    def format(self, dim, float_width):
        return OwnFormat()

    def numbers(self, key, x, **shared):
        return (np.asarray(x),)


def test_encode_refuses_by_name():
    x, top = np.ones(4), ac.TopK(1)
    held = {"h": x, "y": x}
    deep = ac.Residual(ac.Residual(ac.Residual(top, top), top), ac.Residual(ac.Residual(top, top), top))
    for what, key, v, more, error, words in [
        (Half(), 0, x, {}, TypeError, "Half has no byte format"),
        (ac.EF21(Half()), 0, x, held, TypeError, "Half has no byte format"),
        (ac.AdaCGD([top, Half()], 1e9), 0, x, held, TypeError, "Half has no byte format"),
        (Own(), 0, x, held, TypeError, "Own has no byte format"),
        (tabulated(ac.EF21(top), 4, np.float64), 0, x, held, TypeError, "TopKLadder has no byte format"),
        (OwnlyCoded(), 0, x, {}, TypeError, "OwnFormat is none of"),
        ("TopK", 0, x, {}, TypeError, "str has no byte format"),
        (ac.TopK, 0, x, {}, TypeError, "got the class TopK; call it first"),
        (top, 0, x, {"float_width": 32.0}, ValueError, r"float_width=...\) must be 16, 32 or 64, got 32.0"),
        (ac.EF21(top), 0, x, {}, ValueError, "pass h=.*y="),
        (top, 0, x, held, ValueError, "h= and y= are for mechanisms"),
        (ac.PermK(), 0, x, {"common": 1}, ValueError, "pass worker=, workers= too"),
        (ac.EF21(ac.ContractivePermK()), 0, x, held, ValueError, "pass common=, worker=, workers= too"),
        (top, -1, x, {}, ValueError, "key must be"),
        (top, 0, np.ones((2, 2)), {}, ValueError, r"x=.*\(2, 2\)"),
        (top, 0, np.ones(0), {}, ValueError, r"x=.*\(0,\)"),
        (top, 0, np.arange(4), {}, ValueError, "int64"),
        (top, 0, x, {"float_width": 8}, ValueError, "float_width"),
        (ac.EF21(top), 0, x, {"h": x[:3], "y": x}, ValueError, r"h=.*\(3,\)"),
        (ac.EF21(top), 0, x, {"h": x, "y": x.astype(np.float32)}, ValueError, "y=.*float32"),
        (deep, 0, np.ones(9), {}, WireError, "8 times"),
    ]:
        with pytest.raises(error, match=words):
            wire.encode(what, key, v, **more)
    for most in ("a", 2.0, True, 0):
        with pytest.raises(ValueError, match=r"decode\(max_dim=...\) must be an integer of at least 1, got"):
            wire.decode(wire.encode(top, 0, x), max_dim=most)
    with jax.enable_x64(False), pytest.raises(ValueError, match="jax_enable_x64"):
        wire.encode(top, 0, x)
