"""Bytes of mechanisms: what the receiver makes of h, and the price, exactly, for every map and estimator.

`jitted` is the simulator's message; encode works operation by operation, so that the two programs are compared too.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from zoo import hard, normal, paid, price, same, shared

import adacgd as ac
from adacgd import wire
from adacgd.adaptive import tabulated
from adacgd.mechanisms import level_of, towards, whole
from adacgd.steps import ADDED, FRESH, REPLACING, Code, Sent
from adacgd.testing import assert_wire_exact

QUANTISED = ac.Shrunk(ac.QSGD(2))
LADDERS = {
    "gd": ac.GD(),
    "ef21, top": ac.EF21(ac.TopK(2, "gaps")),
    "ef21, qsgd": ac.EF21(QUANTISED),
    "ef21, perm": ac.EF21(ac.ContractivePermK()),
    "ef21, shrunk perm": ac.EF21(ac.Shrunk(ac.PermK())),
    "ef21, participation": ac.EF21(ac.Participation(ac.TopK(2), 0.5)),
    "ef21, participation, qsgd": ac.EF21(ac.Participation(QUANTISED, 0.5)),
    "ef21, blocks": ac.EF21(ac.BlockTopK((1, 2), (2, 3))),
    "ef21, residual": ac.EF21(ac.Residual(ac.TopK(1), ac.ContractiveRandK(1))),
    "lag": ac.LAG(0.5),
    "clag, top": ac.CLAG(ac.TopK(2), 0.5),
    "clag, identity": ac.CLAG(ac.Identity(), 0.5),
    "clag, sign": ac.CLAG(ac.Sign(), 0.5, sharp=True),
    "adacgd, top": ac.AdaCGD([ac.TopK(1), ac.TopK(2), ac.Identity()], 1.0, sharp=True),
    "adacgd, qsgd": ac.AdaCGD([ac.Shrunk(ac.QSGD(s)) for s in (1, 4, 50)], 1.0),
    "adacgd, rand": ac.AdaCGD([ac.ContractiveRandK(1), ac.ContractiveRandK(4, shared_seed=True), ac.TopK(4)], 1.0),
    "adacgd, mixed": ac.AdaCGD([ac.Sign(), ac.ContractivePermK(), ac.Shrunk(ac.RandK(4)), ac.TopK(4)], 1.0),
}
TOP = ac.TopK(1)
OTHERS = {  # these fit in any dimension
    "v1": ac.ThreePCv1(TOP),
    "v1, sign": ac.ThreePCv1(ac.Sign()),
    "v2": ac.ThreePCv2(ac.RandK(1), TOP),
    "v2, qsgd, perm": ac.ThreePCv2(ac.QSGD(2), ac.ContractivePermK()),
    "v2, perm": ac.ThreePCv2(ac.PermK(), ac.Shrunk(ac.QSGD(1, "elias"))),
    "v3, clag": ac.ThreePCv3(ac.CLAG(TOP, 0.5), ac.ContractiveRandK(1)),
    "v3, v2": ac.ThreePCv3(ac.ThreePCv2(ac.RandK(1, shared_seed=True), TOP), ac.Sign()),
    "v4": ac.ThreePCv4(TOP, ac.ContractiveRandK(1)),
    "v4, sign": ac.ThreePCv4(ac.Sign("zero"), QUANTISED),
    "v5": ac.ThreePCv5(TOP, 0.5),
    "v5, own coin": ac.ThreePCv5(ac.Sign(), 0.5, common_coin=False),
    "ef21+": ac.EF21Plus(TOP),
    "ef21+, rand": ac.EF21Plus(ac.ContractiveRandK(1, shared_seed=True)),
    "ef21+, perm": ac.EF21Plus(ac.ContractivePermK()),
    "ada3pc": ac.Ada3PC([ac.EF21(TOP), ac.ThreePCv2(ac.RandK(1), TOP), ac.GD()], 1.0),
    "ada3pc, codes of its own": ac.Ada3PC([ac.CLAG(TOP, 0.1), ac.EF21Plus(ac.Sign()), ac.ThreePCv1(TOP)], 0.5),
    "energy": ac.Energy(0.4, 0.5),
    "sampled": ac.Sampled(ac.EF21(TOP), p=0.5),
    "sampled, clag": ac.Sampled(ac.CLAG(ac.Sign(), 0.5), p=0.7),
    "sampled, count": ac.Sampled(ac.ThreePCv5(ac.ContractivePermK(), 0.5), count=2),
}
CODES = {  # (number of codes, number of steps) that are seen; each of them
    "v3, clag": {(1, 1), (1, 2)},
    "v3, v2": {(0, 3)},
    "v5, own coin": {(1, 1)},
    "ada3pc, codes of its own": {(1, 0), (2, 1), (1, 2)},
    "energy": {(0, 1)},
    "sampled": {(0, 0), (0, 1)},
    "sampled, clag": {(0, 0), (1, 0), (1, 1)},
}
IN_EVERY = ("v1", "v2", "v3, clag", "v4, sign", "v5, own coin", "ef21+, perm", "energy", "sampled, count")
IN_EVERY += ("ada3pc, codes of its own",)
jitted = jax.jit(lambda one, key, h, y, x, **told: one(key, h, y, x, **told), static_argnames="workers")


def triples(dtype, dim=5):
    """(h, y, x), silent and not, with everything that has gone wrong in each place."""
    if dim == 5:
        tiny = float(np.finfo(dtype).tiny)
        alike = (np.array(v, dtype) for v in ([1, -0.0, 0.0, 2 * tiny, 1], [3, 0.0, -0.0, 2.5 * tiny, 1]))
        held, moved = (jnp.asarray(v) for v in alike)  # all but the first differ by what counts as nothing
        yield held, moved, moved
    for i, x in enumerate(hard(dim, dtype)):
        a = jnp.asarray(normal(10 + i, dim, dtype=np.dtype(dtype)))
        near = [jnp.asarray(np.asarray(a) * np.asarray(s, dtype)) for s in (1.05, 1.1, 1.4)]
        yield from ((a, 0 * a, x), (x, a, near[2]), (x, x, x), (a, near[0], near[1]), (near[0], a, near[2]))


def exchanged(one, key, h, y, x):
    """What the wire says and the simulator, when both have been found to say the same."""
    told, dtype = shared(one, key), x.dtype
    blob = wire.encode(one, key, x, h=h, y=y, **told)
    held = np.array(h)
    decoded = wire.decode(blob, h=held)
    sent = jitted(one, key, h, y, x, **told)
    same(decoded, sent.value)
    same(held, h)
    assert paid(blob) == price(sent, dtype) and not np.shares_memory(decoded, held)
    return wire.inspect(blob), sent


@pytest.mark.parametrize(
    ("name", "dtype"),
    [(name, dtype) for name in LADDERS for dtype in (np.float32, np.float64)]
    + [(name, np.float16) for name in ("ef21, top", "ef21, qsgd", "lag", "adacgd, mixed")],
)
def test_mechanisms_change_h_as_in_the_simulator(name, dtype):
    """Eager and compiled; the level code and silence are in the price."""
    one, seen = LADDERS[name], set()
    ladder = one.ladder()
    for i, (h, y, x) in enumerate(triples(dtype)):
        key = jax.random.key(i)
        found, sent = exchanged(one, key, h, y, x)
        if i % 5 == 1:
            eager = one(key, h, y, x, **shared(one, key))
            same(np.asarray(eager.value), sent.value)
        levels = [Code(int(sent.level), len(ladder.levels) + 1)] if ladder.may_be_silent else []
        assert list(found.codes) == levels and len(found.steps) == min(int(sent.level), 1)
        seen.add(int(sent.level))
    assert {0, len(ladder.levels)} <= seen if ladder.may_be_silent else seen == {1}
    assert len(seen) > 2 or not isinstance(one, ac.AdaCGD), "a level between is sent too"


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", OTHERS)
def test_all_other_maps_do_too(name, dtype):
    one, seen = OTHERS[name], set()
    for i, (h, y, x) in enumerate(triples(dtype)):
        found, _ = exchanged(one, jax.random.key(i), h, y, x)
        seen.add((len(found.codes), len(found.steps)))
        assert found.format == (found.steps[0][1] if len(found.steps) == 1 else None)
    assert CODES.get(name, seen) <= seen


@pytest.mark.parametrize(("dim", "dtype"), [(1, np.float64), (2, np.float16), (12, np.float64), (100, np.float32)])
def test_in_every_dimension(dim, dtype):
    chosen = list(triples(dtype, dim))[1::9]
    for name in IN_EVERY:
        for i, (h, y, x) in enumerate(chosen):
            exchanged(OTHERS[name], jax.random.key(i), h, y, x)


def test_kinds_of_steps():
    """What travels as it is replaces, what is quantised is added, and what forgets h comes fresh."""
    h, y, x = (jnp.asarray(normal(i, 6)) for i in range(3))

    def kinds(one, **told):
        return [kind for kind, _ in wire.inspect(wire.encode(one, 0, x, h=h, y=y, **told)).steps]

    assert kinds(ac.GD()) == kinds(ac.LAG(0.0)) == [FRESH]
    assert kinds(ac.ThreePCv1(TOP)) == [FRESH, REPLACING] and kinds(ac.ThreePCv4(ac.Sign(), TOP)) == [REPLACING, ADDED]
    assert kinds(ac.ThreePCv2(ac.RandK(2), TOP)) == [ADDED, REPLACING], "of x - y, which is not what h lacks"
    coins = [kinds(ac.ThreePCv5(TOP, 0.5), common=c, worker=0, workers=2) for c in range(20)]
    assert [FRESH] in coins and [ADDED] in coins, "not replacing: Top-K of x - y is no coordinate of x"
    assert kinds(ac.EF21Plus(ac.Identity())) == [REPLACING], "a tie"
    assert kinds(ac.EF21Plus(ac.TopK(5))) == [FRESH] if np.sum(np.square(x - h)) > np.sum(np.square(x)) else [REPLACING]


def test_silence_is_the_level_code_alone_and_idleness_nothing():
    h = np.arange(1.0, 4.0)
    for one, bits in (
        (ac.LAG(1.0), 1),
        (ac.AdaCGD([ac.TopK(1), ac.TopK(2), ac.TopK(3)], 1.0), 2),
        (ac.Ada3PC([ac.GD()], 1.0), 1),
        (ac.Sampled(ac.GD(), p=1e-9), 0),
        (ac.Energy(0.5, 1.0), 2),
    ):
        blob = wire.encode(one, 0, h, h=h, y=h)
        assert paid(blob) == bits and all(code.value == 0 for code in wire.inspect(blob).codes)
        np.testing.assert_array_equal(wire.decode(blob, h=h), h)


# --- estimators --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("unbiased", [ac.RandK(2), ac.PermK(), ac.QSGD(3)])
def test_marina(unbiased):
    one, seen = ac.MARINA(unbiased, 0.4), set()
    step = jax.jit(lambda one, draw, h, y, x: one.step(draw, (), h, y, x)[0])
    for i, (h, y, x) in enumerate(list(triples(np.float32))[::3]):
        private, common = jax.random.key(i), jax.random.key(100 + i)
        draw = ac.Draw(private, common, jnp.int32(0), jnp.int32(1), 4)
        blob = wire.encode(one, private, x, h=h, y=y, common=common, worker=1, workers=4)
        assert blob == wire.encode(one, draw, x, h=h, y=y)
        sent = step(one, draw, h, y, x)
        same(wire.decode(blob, h=np.asarray(h)), sent.value)
        assert paid(blob) == price(sent, np.float32) and wire.inspect(blob).codes == ()
        seen.add(int(sent.level))
    assert seen == {1, 2}


@pytest.mark.parametrize(
    "one",
    [
        ac.DCGD(ac.RandK(2)),
        ac.EControl(ac.TopK(2), 0.3),
        ac.EControl(ac.Sign(), 0.3),
        ac.DIANA(ac.QSGD(3)),
        ac.LAGWorker(xi=0.1, window=3),
        ac.LAGServer(jnp.ones(4), window=3),
        ac.LAQ(ac.MaxRounding(3), window=3),
        ac.LAQ(ac.TopK(2), window=3),
    ],
    ids=lambda one: repr(one)[:30],
)
def test_estimators_with_a_memory(one):
    """Ten rounds: the memory stays with the sender, and what the receiver holds is h, or the shift of DIANA."""
    h = y = jnp.asarray(normal(0, 5))
    memory, step, flags = one.init(h), jax.jit(lambda one, *a: one.step(*a)), set()
    for i in range(10):
        x = y + jnp.asarray(normal(i + 1, 5)) * (0.05 if i % 3 else 1.0)
        draw = ac.Draw(jax.random.key(i), jax.random.key(50 + i), jnp.int32(i), jnp.int32(1), 4, (x - y) / 2, 0.5)
        state = {"state": memory} if jax.tree.leaves(memory) else {}
        blob = wire.encode(one, draw, x, h=h, y=y, **state)
        held = memory.next if isinstance(one, ac.DIANA) else h
        (sent, memory), h, y = step(one, draw, memory, h, y, x), None, x
        h = sent.value
        same(wire.decode(blob, h=np.asarray(held)), h)
        assert paid(blob) == price(sent, np.float64)
        flags |= {code.value for code in wire.inspect(blob).codes}
    assert flags == ({0, 1} if isinstance(one, ac.LAGWorker | ac.LAGServer | ac.LAQ) else set())


def test_a_memory_and_a_draw_are_asked_for_by_name():
    x = np.ones(4)
    held, told = {"h": x, "y": x}, {"common": 0, "worker": 0, "workers": 2}
    with pytest.raises(ValueError, match="DIANA keeps a state: pass state="):
        wire.encode(ac.DIANA(ac.RandK(1)), 0, x, **held, **told)
    with pytest.raises(ValueError, match="DCGD keeps no state: leave it out"):
        wire.encode(ac.DCGD(ac.RandK(1)), 0, x, **held, **told, state=x)
    with pytest.raises(ValueError, match=r"MARINA.*pass common=, worker=, workers= too"):
        wire.encode(ac.MARINA(ac.RandK(1), 0.5), 0, x, **held)
    with pytest.raises(ValueError, match=r"LAGWorker.*pass as key the Draw that its step was given"):
        wire.encode(ac.LAGWorker(), 0, x, **held, **told, state=np.zeros(10))
    with pytest.raises(TypeError, match="EF14 sends what its compressor makes of e"):
        wire.encode(ac.EF14(ac.TopK(1)), ac.Draw(0, 0, 0, 0, 2), x, **held, state=x)


# --- own maps ----------------------------------------------------------------------------------------------------


@ac.module
class Halfway(ac.ThreePoint):
    """x whole where it is far away, else what a compressor says: an own map with a bit of its own."""

    compressor: ac.Compressor
    short: int = ac.static(default=0)

    def __call__(self, key, h, y, x):
        near = ac.EF21(self.compressor)(key, h, y, x)
        far = jnp.max(jnp.abs(x - h)) > 1
        cost = ac.Cost(jnp.where(far, x.size, near.cost.scalars), jnp.where(far, 0, near.cost.extra_bits) + 1)
        cost = ac.Cost(cost.scalars, cost.extra_bits - self.short)
        return ac.Message(jnp.where(far, x, near.value), cost, jnp.where(far, 2, 1))

    def constants(self, dim):
        return ac.EF21(self.compressor).constants(dim)

    def sends(self, key, h, y, x):
        level = level_of(self, key, h, y, x, {})
        step = whole(x) if level == 2 else towards(self.compressor, key, h, x, {})
        return Sent((step,), (Code(level - 1, 2),))


@ac.module
class Unwritten(ac.ThreePoint):
    def __call__(self, key, h, y, x):
        return ac.Message(x, ac.Cost(x.size))

    def constants(self, dim):
        return ac.AB(1.0, 0.0)


@ac.module
class Half(ac.Compressor):
    def __call__(self, key, x):
        return ac.Message(x / 2, ac.Cost(x.size))

    def alpha(self, dim):
        return 0.75


def test_an_own_map_with_bytes_is_held_to_them():
    assert_wire_exact(Halfway(ac.TopK(2)), dim=(3, 7))
    assert_wire_exact(ac.ThreePCv3(Halfway(ac.Sign()), ac.TopK(2)), dim=5)
    with pytest.raises(AssertionError, match=r"claims \d+ bits and writes \d+"):
        assert_wire_exact(Halfway(ac.TopK(2), short=1), dim=7)


@pytest.mark.parametrize(
    "one",
    [
        ac.Energy(0.4, 0.5),
        ac.Ada3PC([ac.CLAG(TOP, 0.1), ac.ThreePCv2(ac.QSGD(2), TOP)], 0.5),
        ac.MARINA(ac.RandK(2), 0.5),
        ac.Sampled(ac.EF21(TOP), count=2),
    ],
    ids=lambda one: type(one).__name__,
)
def test_the_assertion_takes_maps(one):
    assert_wire_exact(one, dim=5)


def test_a_map_without_bytes_is_refused_whatever_it_would_send():
    x = np.ones(4)
    for one, words in [
        (Unwritten(), "Unwritten has no byte format; give it a method `sends`"),
        (ac.Ada3PC([Unwritten(), ac.GD()], 1e9), "Unwritten has no byte format"),
        (ac.Ada3PC([ac.GD(), Unwritten()], 1e9), "Unwritten has no byte format"),
        (ac.ThreePCv3(Unwritten(), TOP), "Unwritten has no byte format"),
        (ac.EF21Plus(Half()), "Half has no byte format"),
        (ac.Sampled(ac.EF21(Half()), p=1e-9), "Half has no byte format"),
        (ac.AdaCGD([TOP, Half()], 1e9), "Half has no byte format"),
        (tabulated(ac.EF21(TOP), 4, np.float64), "TopKLadder has no byte format"),
    ]:
        with pytest.raises(TypeError, match=words):
            wire.encode(one, 0, x, h=x, y=x)
