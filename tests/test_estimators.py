"""Uplinks with a memory: their rules by hand, and the identities that theory.md 2 and 3.5 prove."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import adacgd as ac
import problems

RNG = np.random.RandomState(3)
ROOTS = RNG.normal(size=(4, 6, 6))
MATRICES = ROOTS @ ROOTS.transpose(0, 2, 1) / 6 + 0.3 * np.eye(6)
QUADRATIC = problems.general_quadratic(MATRICES, RNG.normal(size=(4, 6)), x0=RNG.normal(size=6))


class Line:
    """f_i(x) = <a_i, x>: a gradient that never changes."""

    def __init__(self, rows):
        self.rows = jnp.asarray(rows, float)
        self.n, self.dim = self.rows.shape
        self.x0 = jnp.zeros(self.dim)
        self.smoothness = problems.Smoothness(0.0, 0.0, 0.0, 0.0, np.zeros(self.n), {})

    def loss(self, x):
        return jnp.mean(self.rows @ x)

    def grads(self, x):
        return self.rows + 0 * x[None, :]


jax.tree_util.register_pytree_node(Line, lambda p: ((p.rows,), None), lambda _, leaves: _rebuilt(leaves[0]))


def _rebuilt(rows):
    made = object.__new__(Line)
    made.rows, (made.n, made.dim) = rows, rows.shape
    return made


def steps_of(problem, uplink, rounds, gamma=1.0, **options):
    """What the server steps along in each round: differences of x."""
    xs = [np.asarray(problem.x0)]
    for t in range(1, rounds + 1):
        xs.append(ac.simulate(problem, uplink, stepsize=gamma, rounds=t, record_every=t, **options).x)
    return -np.diff(xs, axis=0) / gamma


def test_classic_feedback_compresses_what_is_compensated():  # FR-10
    sent = steps_of(Line([[1, 0.9]]), ac.EF14(ac.TopK(1)), 3, init="compressed")
    np.testing.assert_allclose(sent, [[1, 0], [0, 1.8], [2, 0]], atol=1e-15)
    held = steps_of(Line([[1, 0.9]]), ac.EF21(ac.TopK(1)), 3, init="compressed")
    np.testing.assert_allclose(held, [[1, 0], [1, 0.9], [1, 0.9]], atol=1e-15)
    # the memory is per worker and the average is taken once
    pair = steps_of(Line([[1, 0.9], [0.9, 1]]), ac.EF14(ac.TopK(1)), 2, init="compressed")
    np.testing.assert_allclose(pair, [[0.5, 0.5], [0.9, 0.9]], atol=1e-15)


def test_classic_feedback_is_ef21_for_a_fixed_mask():
    """Deterministic, positively homogeneous and additive C: the same iterates (theory.md 2, "Not 3PC")."""

    @ac.module
    class Mask(ac.Compressor):
        nonexpansive = True

        def __call__(self, key, x):
            return ac.Message(jnp.where(jnp.arange(x.size) < 4, x, 0), ac.Cost(4))

        def alpha(self, dim):
            return 4 / dim  # of a mask that moved; nobody asks here

    a, b = (
        ac.simulate(QUADRATIC, up(Mask()), stepsize=0.05, rounds=30, init="compressed").x for up in (ac.EF14, ac.EF21)
    )
    np.testing.assert_allclose(a, b, rtol=1e-12)
    c, d = (
        ac.simulate(QUADRATIC, up(ac.TopK(2)), stepsize=0.05, rounds=30, init="compressed").x
        for up in (ac.EF14, ac.EF21)
    )
    assert np.abs(c - d).max() > 1e-3


def replay(uplink, gradients, gamma=0.1):
    """The estimator alone, worker 0 of 1, over rows of gradients: its values, memories and levels."""
    memory, h, y, out = uplink.init(jnp.zeros(gradients.shape[1])), jnp.zeros(gradients.shape[1]), gradients[0], []
    key = jax.random.key(0)
    for t, x in enumerate(jnp.asarray(gradients)):
        k = jax.random.fold_in(key, t)
        draw = ac.Draw(k, k, jnp.int32(t), jnp.int32(0), 1, 0.1 * x, jnp.asarray(gamma))
        message, memory = uplink.step(draw, memory, h, y, x)
        out.append((np.asarray(message.value), jax.tree.map(np.asarray, memory), int(message.level)))
        h, y = message.value, x
    return out


def test_econtrol_moves_the_virtual_iterate_by_the_gradient():
    gradients = RNG.normal(size=(12, 5))
    error = np.zeros(5)
    for (value, memory, _), g in zip(replay(ac.EControl(ac.TopK(2), 0.3), gradients), gradients, strict=True):
        np.testing.assert_allclose(memory - error, g - value, atol=1e-14)  # e^+ = e + g - h^+
        error = memory
    assert np.abs(error).max() > 0.1
    plain = [v for v, _, _ in replay(ac.EControl(ac.TopK(2), 0.0), gradients)]
    ef21 = [v for v, _, _ in replay(ac.estimators.Lifted(ac.EF21(ac.TopK(2))), gradients)]
    np.testing.assert_allclose(plain, ef21, atol=1e-14)


def test_diana_by_hand():
    q = ac.RandK(1)
    gradients = np.array([[1.0, 2.0], [1.5, -1.0]])
    (first, shift, _), (second, after, _) = replay(ac.DIANA(q), gradients)
    key = jax.random.key(0)
    sent = np.asarray(q(jax.random.fold_in(key, 0), jnp.asarray(gradients[0])).value)
    np.testing.assert_allclose(first, sent)  # the shift is zero
    np.testing.assert_allclose(shift.next, sent / 2)  # eta = 1/(1 + omega) = 1/2
    assert np.all(shift.last == 0)
    sent = np.asarray(q(jax.random.fold_in(key, 1), jnp.asarray(gradients[1] - shift.next)).value)
    np.testing.assert_allclose(second, shift.next + sent)
    np.testing.assert_allclose(after.next, shift.next + sent / 2)
    np.testing.assert_array_equal(after.last, shift.next)
    with pytest.raises(ValueError, match=r"eta=0.9.*at most 1/\(1 \+ omega\) = 0.5"):
        ac.DIANA(q, 0.9).constants(2, workers=3)


def test_dcgd_with_top_1_diverges_for_every_step():
    """n = d = 3, f_i = <a_i, x>^2 + |x|^2/4: x^k = (1 + 11 gamma/6)^k x^0 exactly (theory.md 2, "Not 3PC")."""
    a = np.array([[-3.0, 2, 2], [2, -3, 2], [2, 2, -3]])
    A = 2 * a[:, :, None] * a[:, None, :] + np.eye(3) / 2
    problem = problems.general_quadratic(A, np.zeros((3, 3)), x0=np.full(3, 0.7))
    for gamma in (1e-3, 1e-2, 0.1):
        trace = ac.simulate(problem, ac.DCGD(ac.TopK(1)), stepsize=gamma, rounds=20, init="compressed")
        np.testing.assert_allclose(trace.x, (1 + 11 * gamma / 6) ** 20 * 0.7, rtol=1e-12)
    safe = ac.theory.stepsize(problem.smoothness, ac.EF21(ac.TopK(1)).constants(3))
    assert ac.simulate(problem, ac.EF21(ac.TopK(1)), stepsize=safe, rounds=2000).grad_sq[-1] < 1e-3


def lag_rule(gradients, gamma, xi, window):
    """LAG-WK for one worker from h = 0, each step 0.1 times the new gradient."""
    h, moves, sends = np.zeros(gradients.shape[1]), [], []
    for g in gradients:
        moves = [np.sum((0.1 * g) ** 2), *moves][:window]
        send = np.sum((g - h) ** 2) > xi * sum(moves) / gamma**2
        sends.append(int(send))
        h = g if send else h
    return sends


def test_original_lag_compares_with_how_the_model_moved():
    gradients = np.cumsum(RNG.normal(size=(30, 4)), axis=0) / 3
    for xi, window in ((0.1, 10), (0.5, 2), (0.3, 4)):
        levels = [level for _, _, level in replay(ac.LAGWorker(xi, window), gradients)]
        assert levels == lag_rule(gradients, 0.1, xi, window) and 0 < sum(levels) < 30


def test_the_server_rule_of_lag_looks_at_the_model_alone():
    gradients = np.ones((6, 1))  # x moves by 0.1 a round: L^2 (0.1 k)^2 > xi sum over the last two of 1
    rule = ac.LAGServer(np.array([3.0]), xi=0.2, window=2)
    levels = [level for _, _, level in replay(rule, gradients)]
    displaced, expected = 0.0, []
    for t in range(6):
        displaced += 0.1
        send = 9 * displaced**2 > 0.2 * min(t + 1, 2) * (1 + 1e-12)
        expected.append(int(send))
        displaced = 0.0 if send else displaced
    assert levels == expected and 0 < sum(levels) < 6
    with pytest.raises(ValueError, match=r"LAGServer presumes .* use init='exact'"):
        ac.simulate(QUADRATIC, rule, stepsize=0.1, rounds=1, init="zero")


def test_laq_by_hand_and_never_silent_for_too_long():
    gradients = np.cumsum(RNG.normal(size=(40, 4)), axis=0) / 5
    rule = ac.LAQ(ac.MaxRounding(3), xi=0.2, window=3, longest=2)
    out = replay(rule, gradients)
    h, moves, last, silent = np.zeros(4), [], 0.0, 0
    for g, (value, _, level) in zip(gradients, out, strict=True):
        moves = [np.sum((0.1 * g) ** 2), *moves][:3]
        r = np.max(np.abs(g - h))
        new = h + np.round((g - h) * 3 / r) * r / 3
        error = np.sum((g - new) ** 2)
        skip = np.sum((new - h) ** 2) <= 0.2 * sum(moves) / 0.1**2 + 3 * (error + last) and silent < 2
        assert level == int(not skip)
        h, last, silent = (h, last, silent + 1) if skip else (new, error, 0)
        np.testing.assert_allclose(value, h, atol=1e-12)
    assert 0 < sum(level for *_, level in out) < 40


def test_idle_workers_send_nothing_and_keep_their_state():
    trace = ac.simulate(QUADRATIC, ac.Sampled(ac.EF21(ac.TopK(2)), count=1), stepsize=0.02, rounds=50)
    active = np.diff(trace.scalars_up, axis=0) > 0
    assert np.all(active.sum(axis=1) == 1) and np.all(active.sum(axis=0) > 3)
    assert np.all((trace.level[1:] > 0) == active)
    coins = ac.simulate(QUADRATIC, ac.Sampled(ac.EF21(ac.TopK(2)), p=0.3), stepsize=0.02, rounds=400)
    share = np.mean(np.diff(coins.scalars_up, axis=0) > 0)
    assert abs(share - 0.3) < 4 * np.sqrt(0.21 / 1600)
    assert np.all(ac.simulate(QUADRATIC, ac.Sampled(ac.LAG(1.0), p=1.0), stepsize=0.02, rounds=20).x == ac.simulate(
        QUADRATIC, ac.LAG(1.0), stepsize=0.02, rounds=20
    ).x)  # fmt: skip


def test_the_constants_of_participation():
    assert ac.Sampled(ac.EF21(ac.TopK(2)), p=0.5).constants(8) == ac.EF21(ac.TopK(1)).constants(8)
    assert ac.Sampled(ac.EF21(ac.TopK(2)), count=2).constants(8, workers=4) == ac.EF21(ac.TopK(1)).constants(8)
    A, B, *_ = ac.Sampled(ac.LAG(2.0), p=0.25).constants(8)
    ratios = [(0.25 * 2 + 0.75 * (1 + 1 / s)) / (0.25 - 0.75 * s) for s in np.linspace(1e-3, 0.33, 2000)]
    assert B / A == pytest.approx(min(ratios), rel=1e-5) and A > 0
    for bad, words in (
        (dict(), "one of them"),
        (dict(p=0.5, count=2), "one of them"),
        (dict(p=1.5), "p="),
        (dict(count=0), "count="),
    ):
        with pytest.raises(ValueError, match=words):
            ac.Sampled(ac.GD(), **bad)
    with pytest.raises(ValueError, match=r"count=5\) is more than the 4 workers"):
        ac.simulate(QUADRATIC, ac.Sampled(ac.GD(), count=5), stepsize=0.1, rounds=1)


@pytest.mark.parametrize("uplink", [ac.Sampled(ac.LAG(2.0), p=0.25), ac.Sampled(ac.EF21(ac.TopK(2)), p=0.5)], ids=str)
def test_participation_is_certified(uplink):
    assert ac.certify(uplink, dim=6)


STATEFUL = [
    ac.DCGD(ac.RandK(2)),
    ac.DCGD(ac.TopK(2)),
    ac.EF14(ac.TopK(2)),
    ac.EControl(ac.TopK(2), 0.1),
    ac.DIANA(ac.RandK(2)),
    ac.LAGWorker(),
    ac.LAGServer(QUADRATIC.smoothness.L_i),
    ac.LAQ(ac.MaxRounding(7)),
    ac.Sampled(ac.CLAG(ac.TopK(2), 1.0), count=2),
    ac.MARINA(ac.RandK(2), 0.3),
]


@pytest.mark.parametrize("uplink", STATEFUL, ids=str)
def test_a_memory_survives_an_interruption_and_a_sweep(uplink):
    run = lambda rounds, start=None: ac.simulate(QUADRATIC, uplink, stepsize=0.02, rounds=rounds, start=start)
    whole = run(25)
    np.testing.assert_array_equal(run(25, run(11)).x, whole.x)
    grid = ac.sweep(QUADRATIC, uplink, stepsizes=[0.02, 0.03], rounds=25)
    np.testing.assert_allclose(grid[0].x, whole.x, rtol=1e-11)
    np.testing.assert_array_equal(grid[0].scalars_up, whole.scalars_up)
    assert whole.grad_sq[-1] < whole.grad_sq[0]


@pytest.mark.parametrize("uplink", STATEFUL, ids=str)
def test_bad_arguments_of_estimators(uplink):
    with pytest.raises((TypeError, ValueError), match=type(uplink).__name__):
        first = next(iter(uplink.__dataclass_fields__))
        type(uplink)(**{**uplink.__dict__, first: "a word"})
