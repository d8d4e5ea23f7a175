"""The loop: outcomes, counts, randomness, recording, continuation, and that changing numbers compiles nothing."""

import dataclasses
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import adacgd as ac
import problems
from adacgd import drive, loop

QUAD_A = dict(workers=10, dim=100, noise_scale=0.8, seed=12345)
LADDER = ac.AdaCGD([ac.TopK(k) for k in (1, 4, 16)], zeta=1.0)


@pytest.fixture(scope="module")
def quad():
    return problems.quadratic(**QUAD_A)


@pytest.fixture(scope="module")
def half_norm():
    """f = |x|^2/2 on R^2, one worker, from (1, 1)."""
    return problems.general_quadratic(np.eye(2)[None], np.zeros((1, 2)), x0=np.ones(2))


def safe(problem, uplink, downlink=None):
    down = None if downlink is None else downlink.constants(problem.dim)
    return ac.theory.stepsize(problem.smoothness, uplink.constants(problem.dim), downlink=down)


def same(a, b, exact=True):
    """The same run: every column."""
    assert (a.status, a.outcome_round) == (b.status, b.outcome_round)
    for name in ("rounds", "level", "scalars_up", "extra_bits_up", "scalars_down", "extra_bits_down"):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name), err_msg=name)
    for name in ("loss", "grad_sq", "grad_sq_sum", "G", "H", "x"):
        one, other = getattr(a, name), getattr(b, name)
        if exact:
            np.testing.assert_array_equal(one, other, err_msg=name)
        else:
            np.testing.assert_allclose(one, other, rtol=1e-11, atol=1e-13 * np.abs(one).max(), err_msg=name)


# --- one round, by hand --------------------------------------------------------------------------------------------


def test_uncompressed_is_gradient_descent(quad):
    gamma = safe(quad, ac.GD())
    trace = ac.simulate(quad, ac.GD(), stepsize=gamma, rounds=30)
    x = np.asarray(quad.x0)
    for t in range(31):
        g = np.asarray(quad.grads(jnp.asarray(x))).mean(axis=0)
        np.testing.assert_allclose(trace.grad_sq[t], g @ g, rtol=1e-12)
        np.testing.assert_allclose(trace.loss[t], float(quad.loss(jnp.asarray(x))), rtol=1e-11, atol=1e-13)
        x = x - gamma * g
    assert np.all(trace.level[0] == 0) and np.all(trace.level[1:] == 1)


@pytest.mark.parametrize("n", [1, 2, 4, 8])
def test_identical_workers_average_once(n):
    """FR-9."""
    A = np.diag([1.0, 3.0, 0.5])
    make = lambda n: problems.general_quadratic(np.stack([A] * n), np.ones((n, 3)), x0=[1.0, -2.0, 0.5])
    runs = [ac.simulate(make(m), ac.EF21(ac.TopK(1)), stepsize=0.1, rounds=40) for m in (1, n)]
    np.testing.assert_allclose(runs[1].grad_sq, runs[0].grad_sq, rtol=1e-12)


def test_lazy_trigger_is_strict(half_norm):
    """FR-11: sends F, T, F, F, F."""
    trace = ac.simulate(half_norm, ac.LAG(1.0), stepsize=0.5, rounds=5)
    assert trace.level[1:, 0].tolist() == [0, 1, 0, 0, 0]


def test_after_a_full_send_the_server_holds_the_very_bits_of_the_gradient(quad):
    for problem in (quad, problems.logistic(problems.load("breast_cancer"))):
        run = ac.simulate(problem, ac.EF21(ac.TopK(problem.dim)), stepsize=safe(problem, ac.GD()), rounds=25)
        state = run.resume.carry.state
        np.testing.assert_array_equal(state.g_i, state.grads)
        assert np.all(run.G == 0)


def test_server_without_compression_sends_d_scalars_and_holds_the_mean(quad):
    trace = ac.simulate(quad, LADDER, stepsize=safe(quad, LADDER), rounds=20)
    np.testing.assert_array_equal(np.diff(trace.scalars_down), np.full(20, quad.dim))
    assert np.all(trace.H == 0) and trace.downlink_constants is None


def test_identity_downlink_is_no_downlink(quad):
    runs = [
        ac.simulate(quad, LADDER, down, stepsize=0.01, rounds=30) for down in (None, ac.GD(), ac.EF21(ac.TopK(100)))
    ]
    for run in runs[1:]:
        np.testing.assert_allclose(run.grad_sq, runs[0].grad_sq, rtol=1e-12)
    assert runs[2].extra_bits_down[-1] == 30 * 100 * 7  # Top-100 of 100 pays its indices, the identity does not


def test_adacgd_with_one_level_is_clag_and_with_the_identity_lag(quad):
    for problem in (quad, problems.logistic(problems.load("breast_cancer"))):
        gamma = safe(problem, ac.CLAG(ac.TopK(5), 2.0))
        run = lambda uplink, problem=problem, gamma=gamma: ac.simulate(problem, uplink, stepsize=gamma, rounds=60)
        same(run(ac.AdaCGD([ac.TopK(5)], 2.0)), run(ac.CLAG(ac.TopK(5), 2.0)))
        same(run(ac.CLAG(ac.Identity(), 2.0)), run(ac.LAG(2.0)))
        same(run(ac.AdaCGD([ac.Identity()], 2.0)), run(ac.LAG(2.0)))


def test_zeta_zero_is_ef21_with_the_finest_level(quad):
    ada, ef21 = ac.AdaCGD([ac.TopK(k) for k in (1, 4, 16)], 0.0), ac.EF21(ac.TopK(16))
    a, b = (ac.simulate(quad, up, stepsize=safe(quad, ef21), rounds=100) for up in (ada, ef21))
    np.testing.assert_array_equal(a.grad_sq, b.grad_sq)
    assert np.all(a.scalars_up <= b.scalars_up)
    assert np.all(np.diff(a.extra_bits_up, axis=0) <= 16 * 7 + 2) and np.diff(a.extra_bits_up, axis=0).min() >= 2


def test_table_and_plain_formula_make_the_same_run(quad):
    """The one-sort table against the general path, which a wrapper hides from it."""

    @ac.module
    class Hidden(ac.ThreePoint):
        inner: ac.ThreePoint

        def __call__(self, key, h, y, x):
            return self.inner(key, h, y, x)

        def constants(self, dim):
            return self.inner.constants(dim)

    for uplink in (LADDER, ac.CLAG(ac.TopK(5), 8.0), ac.LAG(1.0), ac.EF21(ac.TopK(5)), ac.GD()):
        gamma = safe(quad, uplink)
        same(*(ac.simulate(quad, up, stepsize=gamma, rounds=80) for up in (uplink, Hidden(uplink))), exact=False)


# --- outcomes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("uplink", [ac.GD(), ac.EF21(ac.TopK(50)), ac.LAG(8.0), ac.CLAG(ac.TopK(50), 8.0)], ids=repr)
def test_a_step_100_times_theory_diverges_and_says_where(quad, uplink):
    """FR-14."""
    trace = ac.simulate(quad, uplink, stepsize=100 * safe(quad, uplink), rounds=1000, tolerance=1e-3)
    assert trace.status == "diverged" and trace.outcome_round <= 13
    assert trace.rounds[-1] == trace.outcome_round
    assert trace.grad_sq[-1] > 1e12 * max(1, trace.grad_sq[0]) >= trace.grad_sq[-2]
    verdict = ac.theory.check(trace)
    assert not verdict.ok and "100 times" in verdict.reason


def test_ef21_with_few_coordinates_survives_even_that(quad):
    trace = ac.simulate(quad, ac.EF21(ac.TopK(5)), stepsize=100 * safe(quad, ac.EF21(ac.TopK(5))), rounds=1000)
    assert trace.status == "completed"


def test_a_blown_up_lazy_worker_keeps_sending(quad):
    h = jnp.array([jnp.nan, 1.0])
    assert int(ac.LAG(1.0)(None, h, h, jnp.ones(2)).level) == 1


def test_a_start_that_is_not_finite_is_an_outcome_at_row_0(quad):
    trace = ac.simulate(quad, LADDER, stepsize=0.01, rounds=10, x0=np.full(100, np.nan))
    assert (trace.status, trace.outcome_round, len(trace.rounds)) == ("diverged", 0, 1)


def test_nothing_diverges_on_nonconvex_logistic_but_the_bound_fails():
    problem = problems.logistic(problems.load("breast_cancer"))
    trace = ac.simulate(problem, ac.LAG(1.0), stepsize=2.0**14 * safe(problem, ac.LAG(1.0)), rounds=300)
    assert trace.status == "completed"
    verdict = ac.theory.check(trace)
    assert not verdict.ok and verdict.worst_ratio > 1


@pytest.mark.parametrize("record_every", [1, 7, 1000])
def test_the_first_hit_is_exact_whatever_is_recorded(quad, record_every):
    gamma = safe(quad, LADDER)
    full = ac.simulate(quad, LADDER, stepsize=gamma, rounds=2000)
    hit = int(np.argmax(full.grad_sq <= 0.05**2))
    assert 0 < hit < 2000
    trace = ac.simulate(quad, LADDER, stepsize=gamma, rounds=2000, tolerance=0.05, record_every=record_every)
    assert (trace.status, trace.outcome_round, trace.rounds[-1]) == ("converged", hit, hit)
    np.testing.assert_array_equal(trace.scalars_up[-1], full.scalars_up[hit])
    np.testing.assert_array_equal(trace.extra_bits_up[-1], full.extra_bits_up[hit])
    np.testing.assert_allclose(trace.loss[-1], full.loss[hit], rtol=1e-12)
    np.testing.assert_allclose(trace.grad_sq_sum[-1], full.grad_sq[:hit].sum(), rtol=1e-12)


def test_a_start_within_the_tolerance_is_row_0_only(quad):
    trace = ac.simulate(quad, LADDER, stepsize=0.01, rounds=10, tolerance=1e6)
    assert (trace.status, trace.outcome_round, trace.rounds.tolist()) == ("converged", 0, [0])
    assert ac.theory.check(trace).ok


def test_no_rounds(quad):
    trace = ac.simulate(quad, LADDER, stepsize=0.01, rounds=0)
    assert trace.rounds.tolist() == [0] and trace.status == "completed" and trace.bits()[-1] == 0


# --- counts --------------------------------------------------------------------------------------------------------


@ac.module
class Priced(ac.ThreePoint):
    """x, at whatever price."""

    scalars: int
    extra_bits: int

    def __call__(self, key, h, y, x):
        return ac.Message(x, ac.Cost(self.scalars, self.extra_bits))

    def constants(self, dim):
        return ac.AB(1.0, 0.0)


@pytest.mark.parametrize("record_every", [1, 5000])
def test_bits_are_exact_beyond_2_31(half_norm, record_every):
    """FR-16: d = 10^6, k = 10^4, 20 index bits."""
    uplink = Priced(10_000, 10_000 * 20)
    trace = ac.simulate(half_norm, uplink, stepsize=1e-3, rounds=5000, record_every=record_every)
    bits = trace.bits("up", "wire", per="sum")
    assert bits[-1] == 2_600_000_000 and np.all(np.diff(bits) > 0)
    if record_every == 1:
        assert bits[4130] == 2_147_600_000


def test_counts_hold_in_long_stretches_of_large_messages(half_norm):
    huge = 2**31 - 1
    trace = ac.simulate(half_norm, Priced(huge, huge), stepsize=1e-3, rounds=100_000, record_every=90_000)
    assert trace.rounds.tolist() == [0, 90_000, 100_000]
    assert trace.scalars_up[-1, 0] == huge * 100_000 and trace.extra_bits_up[1, 0] == huge * 90_000


def test_price_ratio_start_and_directions():
    """FR-17: Top-10 of d = 100 costs 390 bits against 3200."""
    problem = problems.quadratic(**QUAD_A)
    trace = ac.simulate(problem, ac.EF21(ac.TopK(10)), ac.EF21(ac.TopK(20)), stepsize=0.01, rounds=10)
    assert trace.bits("up", "wire")[1] == 390 and 3200 / trace.bits("up", "wire")[1] == pytest.approx(8.205, abs=5e-4)
    assert trace.bits("up")[1] == 320 and trace.bits("up", per="sum")[1] == 3200
    assert trace.bits("down")[1] == 640 and trace.bits("down", broadcast="each")[1] == 6400
    assert trace.bits("up", float_width=64)[3] == 3 * 640
    assert trace.bits()[0] == 0 and trace.initial_cost.up == (100, 0) and trace.initial_cost.down == (100, 0)
    with pytest.raises(ValueError, match="convention"):
        trace.bits(convention="flots")


def test_hand_made_triggers_count_two_messages():
    """FR-13: T, F, F, T; a skipping worker keeps its vector bitwise, NaN in the branch not taken stays there."""

    @ac.module
    class NaNUnlessSent(ac.Compressor):
        def __call__(self, key, x):
            return ac.Message(jnp.where(jnp.abs(x).sum() > 5, x, jnp.nan), ac.Cost(x.size))

        def alpha(self, dim):
            return 1.0

    h = jnp.zeros((4, 3))
    x = jnp.array([[9.0, 1, 1], [0.1, 0, 0], [0, 0.2, 0], [3, 3, 3.0]])
    y = x - 1
    sent = jax.vmap(ac.CLAG(NaNUnlessSent(), 1.0), (None, 0, 0, 0))(jax.random.key(0), h, y, x)
    assert sent.level.tolist() == [1, 0, 0, 1] and sent.cost.scalars.tolist() == [3, 0, 0, 3]
    np.testing.assert_array_equal(sent.value[1:3], h[1:3])
    np.testing.assert_array_equal(sent.value[jnp.array([0, 3])], x[jnp.array([0, 3])])


# --- randomness ----------------------------------------------------------------------------------------------------


@ac.module
class Witness(ac.Compressor):
    """Adds nothing and sends one coordinate drawn by the key, so that the level tells which."""

    def __call__(self, key, x):
        j = jax.random.randint(key, (), 0, x.size)
        return ac.Message(jnp.zeros_like(x).at[j].set(x[j]), ac.Cost(j))

    def alpha(self, dim):
        return 1 / dim


def drawn(n, rounds=50, key=0, **options):
    """Which coordinate each worker drew in each round, (rounds, n)."""
    problem = problems.tridiagonal(np.ones(n), np.zeros(n), np.zeros(n), 1000)
    trace = ac.simulate(problem, ac.EF21(Witness()), stepsize=1e-3, rounds=rounds, key=key, **options)
    return np.diff(trace.scalars_up, axis=0)


def test_streams_are_independent():
    """FR-26."""
    eight, nine = drawn(8), drawn(9)
    np.testing.assert_array_equal(nine[:, :8], eight)
    pairs = [(eight[:, i] != eight[:, j]).mean() for i in range(8) for j in range(i)]
    rounds = [(eight[s] != eight[t]).mean() for s in range(50) for t in range(s)]
    assert np.mean(pairs) > 0.95 and np.mean(rounds) > 0.95
    assert (drawn(8, key=1) != eight).mean() > 0.95


def test_the_recording_interval_changes_nothing(quad):
    uplink = ac.EF21(ac.ContractiveRandK(5))
    full = ac.simulate(quad, uplink, stepsize=0.01, rounds=100, key=3)
    thin = ac.simulate(quad, uplink, stepsize=0.01, rounds=100, key=3, record_every=7)
    assert thin.rounds.tolist() == [*range(0, 99, 7), 100]
    for name in ("loss", "grad_sq", "G", "level", "scalars_up"):
        np.testing.assert_array_equal(getattr(thin, name), getattr(full, name)[thin.rounds], err_msg=name)
    np.testing.assert_allclose(thin.grad_sq_sum, full.grad_sq_sum[thin.rounds], rtol=1e-12)


def test_the_same_seed_twice_is_bitwise_equal_and_an_int_is_its_key(quad):
    uplink = ac.EF21(ac.ContractiveRandK(5))
    runs = [ac.simulate(quad, uplink, stepsize=0.01, rounds=50, key=k) for k in (7, np.int64(7), jax.random.key(7))]
    same(runs[0], runs[1])
    same(runs[0], runs[2])


def test_a_part_that_shares_randomness_is_told_round_worker_and_the_common_key(quad):
    @ac.module
    class Shared(ac.Compressor):
        shares_randomness = True

        def __call__(self, key, x, *, common, round, worker, workers):
            kept = (jnp.arange(x.size) + jax.random.randint(common, (), 0, x.size)) % workers == worker
            return ac.Message(jnp.where(kept, x, 0), ac.Cost(1000 * round + worker))

        def alpha(self, dim, workers=None):
            if workers is None:
                raise ValueError("Shared.alpha needs workers=")
            return 1 / dim

    for uplink in (ac.EF21(Shared()), ac.CLAG(Shared(), 0.0), ac.AdaCGD([Shared()], 0.0)):
        trace = ac.simulate(quad, uplink, stepsize=1e-3, rounds=4)
        sent = np.diff(trace.scalars_up, axis=0)
        assert sent.tolist() == [[1000 * t + i for i in range(10)] for t in range(4)]


# --- recording, continuing, progress -------------------------------------------------------------------------------


def test_the_same_x0_may_start_two_runs(quad):
    """FR-27."""
    x0 = jnp.asarray(quad.x0)
    same(*(ac.simulate(quad, LADDER, stepsize=0.01, rounds=10, x0=x0) for _ in range(2)))
    assert float(x0[0]) == 10.0


@pytest.mark.slow
def test_memory_of_the_history():
    """FR-27: d = 10^5, T = 10^4 grows memory by less than 500 MB."""
    code = """
import resource, jax, numpy as np
jax.config.update("jax_enable_x64", True)
import adacgd as ac, problems
problem = problems.tridiagonal(np.ones(2), np.zeros(2), np.ones(2), 10**5)
run = lambda T: ac.simulate(problem, ac.GD(), stepsize=1e-3, rounds=T)
run(10); before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
run(10**4); print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""
    grown = float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
    assert grown < 500


@pytest.mark.parametrize("uplink", [LADDER, ac.EF21(ac.ContractiveRandK(5))], ids=["adacgd", "random"])
@pytest.mark.parametrize("stops", [(30,), (30, 31, 77)])
def test_a_continued_run_is_the_uninterrupted_one(quad, uplink, stops):
    run = lambda rounds, start=None: ac.simulate(quad, uplink, stepsize=0.01, rounds=rounds, key=5, start=start)
    trace = None
    for stop in (*stops, 100):
        trace = run(stop, trace)
    same(trace, run(100))


def test_a_trace_continues_twice_and_thinned(quad):
    run = lambda rounds, start=None: ac.simulate(
        quad, LADDER, stepsize=0.01, rounds=rounds, record_every=7, start=start
    )
    first = run(30)
    assert first.rounds[-1] == 30
    for _ in range(2):
        later = run(100, first)
        assert later.rounds.tolist() == run(100).rounds.tolist()
        np.testing.assert_array_equal(later.grad_sq, run(100).grad_sq)
        np.testing.assert_array_equal(later.scalars_up, run(100).scalars_up)


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        (dict(stepsize=0.02), "stepsize"),
        (dict(key=1), "key"),
        (dict(uplink=ac.GD()), "uplink"),
        (dict(downlink=ac.EF21(ac.TopK(3))), "downlink"),
        (dict(problem=problems.quadratic(workers=10, dim=100, seed=1, dtype="float64")), "problem"),
        (dict(rounds=10), "rounds"),
        (dict(x0=np.zeros(100)), "x0"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_continuing_something_else_is_refused_by_name(quad, changed, named):
    request = dict(problem=quad, uplink=LADDER, stepsize=0.01, rounds=30)
    trace = ac.simulate(**request)
    with pytest.raises(ValueError, match=named):
        ac.simulate(**{**request, "rounds": 60, **changed}, start=trace)


@pytest.mark.parametrize("had", [False, True])
def test_verify_is_continued_as_it_was(quad, had):
    run = lambda rounds, verify, start=None: ac.simulate(
        quad, LADDER, stepsize=0.01, rounds=rounds, verify=verify, start=start
    )
    first = run(20, had)
    with pytest.raises(ValueError, match=r"simulate\(verify=.*, start=.*round 0"):
        run(40, not had, first)
    later = run(40, had, first)
    same(later, run(40, had))
    assert later.slack == run(40, had).slack


def test_a_tolerance_is_continued_where_the_past_did_not_pass_it(quad):
    gamma = safe(quad, LADDER)

    def run(rounds, tolerance=None, start=None, record_every=1):
        return ac.simulate(
            quad, LADDER, stepsize=gamma, rounds=rounds, tolerance=tolerance, start=start, record_every=record_every
        )

    hit = run(2000, 0.5).outcome_round
    assert 1 < hit < 1000
    same(run(2000, 0.5, run(hit - 1)), run(2000, 0.5))  # it comes later
    same(run(2000, 0.5, run(hit)), run(2000, 0.5))  # it is where the trace ends
    same(run(2000, 0.1, run(2000, 0.5)), run(2000, 0.1))  # a tighter one goes on
    same(run(2000, 0.1, run(2000, 0.5, None, 7), 7), run(2000, 0.1, None, 7))
    same(run(hit + 5, None, run(2000, 0.5)), run(hit + 5))
    with pytest.raises(ValueError, match=rf"tolerance=0.5, start.*round {hit} already"):
        run(2000, 0.5, run(hit + 1))
    with pytest.raises(ValueError, match="does not hold every round"):
        run(2000, 0.5, run(hit - 1, record_every=7), 7)


def test_rows_are_continued_at_a_multiple_of_their_distance(quad):
    run = lambda rounds, every, start=None: ac.simulate(
        quad, LADDER, stepsize=0.01, rounds=rounds, record_every=every, start=start
    )
    for before, after in ((1, 7), (5, 10)):
        same(run(60, after, run(33, before)), run(60, after), exact=False)
    with pytest.raises(ValueError, match=r"record_every=7, start.*every 10 rounds.*multiple of 10"):
        run(60, 7, run(30, 10))
    same(run(60, 7, run(0, 10)), run(60, 7))


def test_progress_does_not_touch_the_result(quad):
    """FR-28."""
    seen = []
    watched = ac.simulate(quad, LADDER, stepsize=0.01, rounds=200, progress=lambda t, T: seen.append((t, T)))
    same(watched, ac.simulate(quad, LADDER, stepsize=0.01, rounds=200))
    assert seen[-1] == (200, 200) and seen == sorted(seen)
    short = []
    ac.simulate(quad, LADDER, stepsize=0.01, rounds=1, progress=lambda t, T: short.append(t))
    assert short == [1]


def test_verify_carries_the_worst_slack(quad):
    trace = ac.simulate(quad, LADDER, stepsize=safe(quad, LADDER), rounds=200, verify=True)
    assert 0 < trace.slack.three_point <= 1 and 0.5 < trace.slack.L_minus <= 1 and 0 < trace.slack.L_plus <= 1
    plain = ac.simulate(quad, LADDER, stepsize=safe(quad, LADDER), rounds=200)
    assert plain.slack is None
    same(trace, plain, exact=False)

    @ac.module
    class Overclaimed(ac.ThreePoint):
        inner: ac.ThreePoint

        def __call__(self, key, h, y, x):
            return self.inner(key, h, y, x)

        def constants(self, dim):
            A, B, *_ = self.inner.constants(dim)
            return ac.AB(A, B / 3)

    broken = ac.simulate(quad, Overclaimed(ac.LAG(1.0)), stepsize=0.01, rounds=200, verify=True)
    assert broken.slack.three_point > 1


# --- nothing compiles twice ----------------------------------------------------------------------------------------


def test_no_retrace():
    """Over methods, steps, zetas, Ks, ladders, keys, tolerances, lengths, intervals, another data set of the shape."""
    make = lambda seed: problems.quadratic(workers=10, dim=60, noise_scale=0.5, seed=seed)
    methods = [
        ac.GD(),
        ac.EF21(ac.TopK(3)),
        ac.EF21(ac.TopK(7)),
        ac.LAG(1.0),
        ac.CLAG(ac.TopK(5), 4.0),
        ac.AdaCGD([ac.TopK(1), ac.TopK(9)], 2.0),
        ac.AdaCGD([ac.TopK(k) for k in (1, 2, 3, 4, 5)] + [ac.Identity()], 0.5),
    ]
    ac.simulate(make(1), methods[0], stepsize=0.01, rounds=10)
    before = loop.ONE.stretch._cache_size(), loop.ONE.begin._cache_size()
    for i, method in enumerate(methods):
        ac.simulate(
            make(i), method, stepsize=0.01 / (i + 1), rounds=20 + i, key=i, tolerance=1e-3 * (i + 1), record_every=i + 1
        )
    assert (loop.ONE.stretch._cache_size(), loop.ONE.begin._cache_size()) == before


def test_no_retrace_over_data_sets_of_one_shape():
    rng = np.random.default_rng(0)
    make = lambda: problems.logistic((rng.standard_normal((40, 6)), np.sign(rng.standard_normal(40))), workers=4)
    ac.simulate(make(), LADDER_SMALL, stepsize=0.01, rounds=5)
    before = loop.ONE.stretch._cache_size()
    ac.simulate(make(), ac.CLAG(ac.TopK(2), 1.0), stepsize=0.02, rounds=7)
    assert loop.ONE.stretch._cache_size() == before


LADDER_SMALL = ac.AdaCGD([ac.TopK(1), ac.TopK(3)], 1.0)


# --- precision and requests ----------------------------------------------------------------------------------------


def test_float32_is_labelled_and_not_certified():
    """FR-20, FR-25."""
    problem = problems.quadratic(workers=10, dim=60, dtype="float32")
    trace = ac.simulate(problem, ac.EF21(ac.TopK(6)), stepsize=0.01, rounds=20)
    assert trace.precision == "float32" and trace.grad_sq.dtype == np.float32 and trace.x.dtype == np.float32
    with pytest.raises(ValueError, match=r"float32.*jax_enable_x64"):
        ac.theory.check(trace)


def test_double_precision_asked_without_64_bit_mode_is_refused_and_counts_stay_exact():
    """FR-25, FR-16: in a process of its own, with 64-bit mode off."""
    code = """
import numpy as np, jax
import adacgd as ac, problems
assert not jax.config.jax_enable_x64
try:
    problems.quadratic(workers=2, dim=5)
except ValueError as error:
    assert "jax_enable_x64" in str(error)
else:
    raise AssertionError("float64 was promised")
try:
    ac.certify(ac.TopK(2), dim=5)
except ValueError as error:
    assert "jax_enable_x64" in str(error)
else:
    raise AssertionError("float32 was certified")
@ac.module
class Priced(ac.ThreePoint):
    def __call__(self, key, h, y, x): return ac.Message(x, ac.Cost(10_000, 200_000))
    def constants(self, dim): return ac.AB(1.0, 0.0)
problem = problems.quadratic(workers=2, dim=5, dtype="float32")
trace = ac.simulate(problem, Priced(), stepsize=1e-3, rounds=5000, record_every=1000)
assert trace.bits("up", "wire")[-1] == 2_600_000_000, trace.bits("up", "wire")
assert trace.precision == "float32"
assert jax.random.key_data(ac.compressors.as_key(2**32 - 1)).tolist() == [0, 2**32 - 1]
assert not jax.config.jax_enable_x64
print("fine")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "fine", done.stderr


@pytest.mark.parametrize(
    ("changed", "error", "words"),
    [
        (dict(stepsize=float("nan")), ValueError, "stepsize"),
        (dict(stepsize=-1.0), ValueError, "stepsize"),
        (dict(stepsize=[0.1, 0.2]), TypeError, "stepsize"),
        (dict(rounds=-1), ValueError, "rounds"),
        (dict(rounds=2.5), ValueError, "rounds"),
        (dict(record_every=0), ValueError, "record_every"),
        (dict(tolerance=0.0), ValueError, "tolerance"),
        (dict(tolerance=float("nan")), ValueError, "tolerance"),
        (dict(tolerance=True), ValueError, "tolerance"),
        (dict(x0=np.zeros(3)), ValueError, "x0"),
        (dict(key=True), TypeError, "key"),
        (dict(key=-1), ValueError, "key"),
        (dict(key=2**32), ValueError, "key"),
        (dict(uplink=ac.TopK(3)), TypeError, r"EF21\(TopK\(k=3\)\)"),
        (dict(uplink=ac.RandK(3)), TypeError, r"EF21\(Shrunk\(RandK\(k=3\)\)\)"),
        (dict(uplink=ac.GD), TypeError, "class GD"),
        (dict(downlink="top"), TypeError, "downlink"),
        (dict(uplink=ac.EF21(ac.TopK(101))), ValueError, r"TopK\(k=101\).*100"),
        (dict(uplink=ac.AdaCGD([ac.TopK(3), ac.TopK(101)], 1.0)), ValueError, r"TopK\(k=101\)"),
        (dict(uplink=ac.EF21(3)), TypeError, r"EF21\(compressor=...\) must be a Compressor.*3"),
        (dict(uplink=ac.EF21(None)), TypeError, r"EF21\(compressor=...\) must be a Compressor.*None"),
        (dict(downlink=ac.CLAG(3, 1.0)), TypeError, r"CLAG\(compressor=...\) must be a Compressor.*3"),
        (dict(uplink=ac.AdaCGD([1, 4], 1.0)), TypeError, r"AdaCGD\(levels\[0\]=...\) must be a Compressor.*1"),
        (dict(uplink=ac.LAG(np.array([1.0, 2.0]))), ValueError, r"LAG\(zeta=...\) must be one number.*zetas="),
        (dict(uplink=ac.CLAG(ac.TopK(2), np.ones(3))), ValueError, r"CLAG\(zeta=...\) must be one number"),
        (dict(uplink=ac.AdaCGD([ac.TopK(2)], np.ones(3))), ValueError, r"AdaCGD\(zeta=...\) must be one number"),
        (dict(problem=3), TypeError, "problem"),
        (dict(start="x"), TypeError, "start"),
    ],
    ids=lambda value: "" if not isinstance(value, dict) else next(iter(value)),
)
def test_bad_requests_are_refused_by_name(quad, changed, error, words):
    before = loop.ONE.stretch._cache_size()
    with pytest.raises(error, match=words):
        ac.simulate(**{"problem": quad, "uplink": LADDER, "stepsize": 0.01, "rounds": 10, **changed})
    assert loop.ONE.stretch._cache_size() == before


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (lambda x: x, "must return Message"),
        (lambda x: ac.Message(x, 3), "must return Message"),
        (lambda x: ac.Message(x[:1], ac.Cost(1)), "shape"),
        (lambda x: ac.Message(x, ac.Cost(1.5)), "integer"),
        (lambda x: ac.Message(x, ac.Cost(2**31)), "2\\*\\*31"),
        (lambda x: ac.Message(x.astype(jnp.float32), ac.Cost(1)), "dtype"),
    ],
)
def test_an_own_map_that_breaks_the_form_is_told_so(half_norm, message, words):
    @ac.module
    class Own(ac.ThreePoint):
        make: object = ac.static()

        def __call__(self, key, h, y, x):
            return self.make(x)

        def constants(self, dim):
            return ac.AB(1.0, 0.0)

    with pytest.raises((TypeError, ValueError), match=words):
        ac.simulate(half_norm, Own(message), stepsize=0.1, rounds=2)


class Bare(ac.Compressor):
    """Without @ac.module."""

    def __call__(self, key, x):
        return ac.Message(x, ac.Cost(x.size))

    def alpha(self, dim):
        return 1.0


class BareMap(ac.ThreePoint):
    def __call__(self, key, h, y, x):
        return ac.Message(x, ac.Cost(x.size))

    def constants(self, dim):
        return ac.AB(1.0, 0.0)


@ac.module
class Own(ac.Compressor):
    """Whatever `made` makes of x."""

    made: object = ac.static()

    def __call__(self, key, x):
        return self.made(x)

    def alpha(self, dim):
        return 1.0


@ac.module
class Labelled(BareMap):
    label: object


@ac.module
class Claims(BareMap):
    def constants(self, dim):
        return (1.0, 0.0)


@pytest.mark.parametrize(
    ("uplink", "words"),
    [
        (BareMap(), r"uplink=...\): BareMap is not a module; write @ac.module"),
        (ac.EF21(Bare()), r"uplink=...\): Bare is not a module; write @ac.module"),
        (ac.AdaCGD([ac.TopK(1), Bare()], 1.0), r"Bare is not a module"),
        (Labelled("fast"), r"Labelled.label is 'fast'.*ac.static"),
        (Claims(), r"Claims.constants\(dim\) must return ac.AB"),
        (ac.EF21(Own(lambda x: x)), r"Own must return Message"),
        (ac.AdaCGD([Own(lambda x: x)], 1.0), r"Own must return Message"),
        (ac.EF21(Own(lambda x: ac.Message(x if x[0] > 0 else -x, ac.Cost(1)))), r"uplink=EF21.*jnp.where"),
        (ac.EF21(Own(lambda x: ac.Message(jnp.full(2, float(x[0])), ac.Cost(1)))), r"uplink=EF21.*jnp.where"),
        (ac.EF21(Own(lambda x: ac.Message(jnp.asarray(np.sign(x)), ac.Cost(1)))), r"uplink=EF21.*jnp.where"),
    ],
    ids=lambda value: "" if isinstance(value, str) else type(value).__name__,
)
def test_what_an_own_part_gets_wrong_is_told_before_anything_is_compiled(half_norm, uplink, words):
    before = loop.ONE.stretch._cache_size(), loop.ONE.begin._cache_size(), loop.MANY.begin._cache_size()
    for owner, run in (
        ("simulate", lambda: ac.simulate(half_norm, uplink, stepsize=0.1, rounds=2)),
        ("sweep", lambda: ac.sweep(half_norm, uplink, stepsizes=[0.1], rounds=2)),
    ):
        with pytest.raises(TypeError, match=words) as refused:
            run()
        assert "uplink=" not in str(refused.value) or f"{owner}(" in str(refused.value)
    assert (loop.ONE.stretch._cache_size(), loop.ONE.begin._cache_size(), loop.MANY.begin._cache_size()) == before


def test_stretches_cover_every_round_once():
    for done, rounds, every in [
        (0, 10, 1),
        (0, 100, 7),
        (30, 100, 7),
        (0, 100_000, 90_000),
        (5, 70_000, 10**6),
        (9, 9, 2),
    ]:
        ends = drive.stretch_ends(done, rounds, every)
        assert np.all(np.diff(np.insert(ends, 0, done)) > 0)
        assert np.all(np.diff(np.insert(ends, 0, done)) <= loop.LONGEST_STRETCH)
        rows = [t for t in range(done + 1, rounds + 1) if t % every == 0 or t == rounds]
        assert set(rows) <= set(ends.tolist())


def test_a_trace_prints_itself_in_a_line_and_is_frozen(quad):
    trace = ac.simulate(quad, LADDER, stepsize=0.01, rounds=5)
    assert "AdaCGD" in repr(trace) and "float64" in repr(trace) and "\n" not in repr(trace)
    with pytest.raises(dataclasses.FrozenInstanceError):
        trace.x = 0
