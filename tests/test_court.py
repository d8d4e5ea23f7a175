"""The court: how it judges, and what goes with it for users. Its cases: test_court_compressors, test_court_maps."""

import functools
import json
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings

import adacgd as ac
from adacgd import evidence, hasty, testing
from adacgd.laws import panel
from benchmarks.court import KeepsTies, OneBitShort
from experiments.cli import main
from tests.zoo import zoo

DIM = 12


@pytest.mark.parametrize("dim", [1, 2, 3])
def test_small_dimensions_are_tried_whole(dim):
    """All small integer vectors are among the starts, and what attains its constant is seen to."""
    for target in (ac.TopK(1), ac.Sign(), ac.RandK(1)):
        found = ac.certify(target, dim=dim)
        assert found.ok and found.tightness >= 0.99, str(found)
    law_starts = found.inputs
    assert law_starts > {1: 4, 2: 168, 3: 124}[dim]


# --- exact enumeration -----------------------------------------------------------------------------------------------


def with_outcomes():
    x = np.array([3.0, -1.0, 0.5, 2.0, 0.0])
    return [(n, t, x) for n, t in zoo(5).items() if not t.shares_randomness and t.outcomes(x) is not None]


@pytest.mark.parametrize(("name", "target", "x"), with_outcomes(), ids=[n for n, *_ in with_outcomes()])
def test_outcomes_are_a_distribution_with_the_mean_and_the_error_that_are_drawn(name, target, x):
    chance, rows = target.outcomes(x)
    assert np.all(chance >= 0) and np.isclose(chance.sum(), 1)
    error = chance @ np.sum((rows - x) ** 2, axis=1)
    assert error <= np.sum(x**2) * (target.omega(5) if isinstance(target, ac.Unbiased) else 1 - target.alpha(5)) + 1e-9
    if isinstance(target, ac.Unbiased):
        np.testing.assert_allclose(chance @ rows, x, atol=1e-12)
    sent = jax.vmap(lambda k: target(k, jnp.asarray(x)).value)(jax.random.split(jax.random.key(0), 4000))
    off = np.sum((np.asarray(sent) - x) ** 2, axis=1)
    assert abs(off.mean() - error) <= 5 * off.std() / np.sqrt(len(off)) + 1e-9


def test_several_are_enumerated():
    assert {"rand", "adaptive random", "biased random", "natural", "qsgd 1"} <= {name for name, *_ in with_outcomes()}


@ac.module
class Loaded(ac.Unbiased):
    """Rand-1 whose draws are not those that it enumerates; omega is so large that nothing else speaks against it."""

    def __call__(self, key, x):
        j = jnp.minimum(jax.random.randint(key, (), 0, x.size + 1), x.size - 1)
        return ac.Message(jnp.where(jnp.arange(x.size) == j, x * float(x.size), 0), ac.Cost(1, 3))

    def omega(self, dim):
        return 10.0 * dim

    def outcomes(self, x):
        return ac.RandK(1).outcomes(x)


def test_chances_that_sum_to_a_rounding_more_than_one_are_no_error():
    same, half = np.ones((8, 2)), np.nextafter(0.5, 1)
    assert half + half > 1 and evidence._follows(same, np.array([half, half]), np.ones((2, 2))) == ""


def test_outcomes_that_the_draws_do_not_follow_are_held_against_it():
    found = ac.certify(Loaded(), dim=6)
    assert not found.ok and "came" in found.reason


# --- what a newcomer found -------------------------------------------------------------------------------------------


@ac.module
class HeadTail(ac.Compressor):
    """The k largest as they are and one scale for the others: its k is no support."""

    k: int = ac.static()

    def __call__(self, key, x):
        head = ac.TopK(self.k)(key, x).value
        tail = x - head
        scale = jnp.sum(jnp.abs(tail)) / (x.size - self.k)
        return ac.Message(head + scale * jnp.sign(tail), ac.Cost(self.k + 1, 5 * self.k + x.size))

    def alpha(self, dim):
        return self.k / dim


@ac.module
class NeverSends(ac.Unbiased):
    """Rand-1 that loses its last coordinate."""

    def __call__(self, key, x):
        return ac.RandK(1)(key, x)._replace(value=ac.RandK(1)(key, x).value.at[-1].multiply(0.0))

    def omega(self, dim):
        return dim - 1.0


@ac.module
class Rotated(ac.Compressor):
    """Half of x after a rotation and back, which rounds by another route in each program."""

    def __call__(self, key, x):
        q, _ = np.linalg.qr(np.random.RandomState(0).normal(size=(x.size, x.size)))
        return ac.Message(0.5 * (q.T @ (q @ x)), ac.Cost(x.size))

    def alpha(self, dim):
        return 0.75


@functools.cache  # called plainly, `cond` and `fori_loop` compile anew whatever function they have not met
def cut_to(rank):
    def cut(x):
        u, s, vt = jnp.linalg.svd(x.reshape(4, 5), full_matrices=False)
        return ((u[:, :rank] * s[None, :rank]) @ vt[:rank]).reshape(-1)

    return cut, lambda i, x: cut(x)


def all_nan(x):
    return x * jnp.nan


@ac.module
class OwnSVD(ac.Compressor):
    """The largest singular values of a 4 x 5 matrix, with a guard against infinities or without."""

    rank: int = ac.static()
    guard: str = ac.static()

    def __call__(self, key, x):
        finite, (cut, again) = jnp.all(jnp.isfinite(x)), cut_to(self.rank)
        if self.guard == "cond":  # both branches run where it is mapped
            value = jax.lax.cond(finite, cut, all_nan, x)
        elif self.guard == "loop":
            value = jax.lax.fori_loop(0, 2, again, x)
        else:
            value = cut(jnp.where(finite, x, 0) if self.guard == "where" else x)
            value = jnp.where(finite, value, jnp.nan)
        return ac.Message(value, ac.Cost(9 * self.rank))

    def alpha(self, dim):
        return self.rank / 4


def test_an_svd_of_infinity_is_seen_and_not_waited_for():
    """LAPACK never returns from it: without the look before, these would hang."""
    for guard, kept, words in (
        ("none", False, "an SVD of inf may never return"),
        ("cond", False, "an SVD of inf may never return"),
        ("where", True, ""),
        ("loop", None, "not tried"),
    ):
        found = ac.certify(OwnSVD(1, guard), dim=20)
        shown = next(h for h in found.habits if "infinity" in h.habit)
        assert shown.ok is kept and words in shown.words and found.ok == (kept is not False), str(found)
    assert found.tightness > 0.999 and not ac.certify(OwnSVD(1, "where"), dim=20, claim=0.26).ok


@ac.module
class HiddenTopK(ac.Compressor):
    """Top-K in an orthonormal basis that no structured input knows: alpha = k/d in any basis."""

    k: int = ac.static()

    def __call__(self, key, x):
        q = jnp.asarray(np.linalg.qr(np.random.RandomState(0).normal(size=(x.size, x.size)))[0])
        return ac.Message(q.T @ ac.TopK(self.k)(key, q @ x).value, ac.Cost(self.k, 5 * self.k))

    def alpha(self, dim):
        return self.k / dim


@ac.module
class CodeBook(ac.Compressor):
    """The best of 64 random directions, and the length along it."""

    def __call__(self, key, x):
        words = np.random.RandomState(1).normal(size=(64, x.size))
        words = jnp.asarray(words / np.linalg.norm(words, axis=1, keepdims=True))
        along = words @ x
        return ac.Message(along[jnp.argmax(jnp.abs(along))] * words[jnp.argmax(jnp.abs(along))], ac.Cost(1, 6))

    def alpha(self, dim):
        return 0.0245  # at d = 20 no search of any length found less than 0.0247


def test_a_worst_input_in_hidden_axes_is_found():
    """None of them names an input; signs of the tail lose most where 8 of 20 entries are equal, the others zero."""
    signs = 1 - 5 / 8 * 12 / 17
    for target, alpha in ((HiddenTopK(3), 0.15), (CodeBook(), 0.0248), (HeadTail(3), signs)):
        for key in range(2):
            assert not ac.certify(target, dim=20, key=key, claim=1.05 * alpha).ok
            assert ac.certify(target, dim=20, key=key, claim=0.98 * alpha).ok


@ac.module
class SometimesOther(ac.Compressor):
    """Top-1, but nothing every 50th call, and priced as if it sent no number."""

    count: list = ac.static()

    def __call__(self, key, x):
        self.count.append(1)
        return ac.TopK(1)(key, x)._replace(value=ac.TopK(1)(key, x).value * (len(self.count) % 50 > 0), cost=ac.Cost(0))

    def alpha(self, dim):
        return 1e-6


class Counter(list):
    """A list that can be static."""

    __hash__ = object.__hash__


def test_what_happens_in_every_50th_call_is_seen_and_numbers_without_a_price_are_told():
    found = ac.certify(SometimesOther(Counter()), dim=DIM)
    habits = {h.habit: h for h in found.habits}
    assert habits["the key decides"].ok is False and "depends on other state" in habits["the key decides"].words
    assert habits["price"].ok is None and "1 different numbers arrive for 0 scalars, 0 bits" in habits["price"].words
    assert "different" not in str(ac.certify(OwnSVD(1, "where"), dim=20).habits[0])


def test_a_k_that_is_no_support_and_a_rotation_are_acquitted():
    assert ac.certify(HeadTail(3), dim=DIM).ok
    assert ac.certify(Rotated(), dim=16).ok


@pytest.mark.parametrize("dim", [20, pytest.param(100, marks=pytest.mark.slow)])
def test_a_coordinate_that_is_never_sent_is_seen(dim):
    for key in range(3):
        found = ac.certify(NeverSends(), dim=dim, key=key)
        assert not found.ok and "biased" in found.reason, str(found)
    assert ac.certify(ac.RandK(1), dim=dim).ok


def test_natural_refuses_what_it_has_no_format_for():
    with pytest.raises(TypeError, match="bfloat16"):
        ac.Natural()(jax.random.key(0), jnp.ones(3, jnp.bfloat16))


# --- the certificate -------------------------------------------------------------------------------------------------


def test_another_claim_can_be_tried():
    assert ac.certify(ac.TopK(3), dim=DIM, claim=0.2).ok
    assert not ac.certify(ac.TopK(3), dim=DIM, claim=0.3).ok
    assert not ac.certify(ac.LAG(4.0), dim=DIM, claim=ac.AB(1.0, 3.0)).ok
    with pytest.raises(ValueError, match=r"AB\(A, B\)"):
        ac.certify(ac.LAG(4.0), claim=0.5)
    for claim in (0.0, 1.5, -1, True, "1"):
        with pytest.raises(ValueError, match=r"claim=\.\.\."):
            ac.certify(ac.TopK(3), dim=DIM, claim=claim)


def test_without_hints_the_search_is_on_its_own():
    """The worst x of a threshold is d - 1 entries just under it: told, it is attained; alone, it is still come near."""
    target = ac.RelativeThreshold(0.5)
    told, alone = (ac.certify(target, dim=DIM, hints=hints) for hints in (True, False))
    assert "its own worst case" in told.how and "its own worst case" not in alone.how
    assert told.tightness > alone.tightness - 1e-9 and told.ok and alone.ok


def test_the_report_and_the_plain_form_say_the_same():
    found = ac.certify(ac.TopK(3), dim=DIM)
    plain = json.loads(json.dumps(found.as_dict()))
    assert plain["ok"] and plain["claimed"] == 0.75 and plain["dim"] == DIM and len(plain["witness"][0]) == DIM
    assert [h["habit"] for h in plain["habits"]] == [h.habit for h in found.habits]
    assert "the claim stands" in str(found) and "0.75" in str(found)


def test_the_price_of_an_own_one_without_a_format_is_only_told():
    told = [h for h in ac.certify(KeepsTies(4), dim=DIM).habits if h.habit == "price"]
    assert told and told[0].ok is None


def test_what_the_court_does_not_take():
    for dim in (0, -1, 2.5, True):
        with pytest.raises(ValueError, match="dim="):
            ac.certify(ac.TopK(1), dim=dim)
    with pytest.raises(ValueError, match="workers="):
        ac.certify(ac.PermK(), workers=0)
    with pytest.raises(TypeError, match="certify takes"):
        ac.certify("TopK")


# --- assertions for users --------------------------------------------------------------------------------------------


def test_assertions_pass_the_honest_and_name_the_guilty():
    testing.assert_contractive(ac.TopK(3), dim=(3, DIM))
    testing.assert_unbiased(ac.RandK(3), dim=DIM)
    testing.assert_three_point(ac.LAG(4.0), dim=DIM)
    with pytest.raises(AssertionError, match="CONVICTED: at most k entries"):
        testing.assert_contractive(KeepsTies(4), dim=DIM)
    for assertion in (testing.assert_contractive, testing.assert_three_point):
        with pytest.raises(TypeError, match="takes a"):
            assertion(ac.RandK(3))
    testing.assert_contractive(ac.TopK(2), dim=np.int64(3))
    with pytest.raises(ValueError, match="no dimension"):
        testing.assert_contractive(ac.TopK(2), dim=())
    with pytest.raises(ValueError, match="keys="):
        testing.assert_unbiased(ac.RandK(3), keys=0)


def test_wire_exactness_is_asserted_of_compressors_and_mechanisms():
    testing.assert_wire_exact(ac.TopK(3, "rank"), dim=DIM)
    testing.assert_wire_exact(ac.AdaCGD([ac.TopK(1), ac.Sign()], 1.0), dim=DIM)
    testing.assert_wire_exact(ac.PermK(), dim=DIM)
    with pytest.raises(AssertionError, match="claims 143 bits and writes 144"):
        testing.assert_wire_exact(OneBitShort(ac.TopK(4)), dim=DIM + 4)


@settings(max_examples=50, deadline=None)
@given(x=testing.vectors(DIM, np.float32, finite=False))
def test_vectors_are_inputs(x):
    assert x.shape == (DIM,) and x.dtype == np.float32


def test_the_panel_has_what_it_says():
    rows = np.asarray(panel(jax.random.key(0), DIM))
    assert len(rows) == 8 and np.all(np.isfinite(rows)) and np.all(np.any(rows != 0, axis=1))
    assert any(np.ptp(np.abs(row)) == 0 for row in rows), "a flat one"
    assert any(np.count_nonzero(row) == 1 for row in rows), "a one-hot one"
    assert any(len(set(np.abs(row))) < DIM / 2 and np.ptp(np.abs(row)) > 0 for row in rows), "ties"


def test_what_is_compiled_in_haste_says_the_same_and_unknown_options_are_left_out(monkeypatch):
    double = lambda x, n: n * jnp.sin(x)
    x = jnp.linspace(0.0, 3.0, 5)
    np.testing.assert_allclose(hasty.hasty("n")(double)(x, n=2), 2 * np.sin(x), rtol=1e-14)
    assert hasty.known.__wrapped__("gpu") == {}
    monkeypatch.setattr(hasty, "OPTIONS", {"xla_of_another_day": True})
    assert hasty.known.__wrapped__("cpu") == {}


PLUGIN_TEST = """
import jax, adacgd as ac
jax.config.update("jax_enable_x64", True)

def test_good(court):
    court(ac.TopK(2), dim=5)

def test_bad(court):
    court(BAD, dim=5)
"""
OWN = '''
import jax.numpy as jnp
import adacgd as ac


@ac.module
class Mine(ac.Compressor):
    """Ten lines."""

    k: int = ac.static()
    factor: float = 1.0

    def __call__(self, key, x):
        kept = jnp.argsort(-jnp.abs(x))[: self.k]
        return ac.Message(jnp.zeros_like(x).at[kept].set(x[kept]), ac.Cost(self.k, 8 * self.k))

    def alpha(self, dim):
        return self.factor * self.k / dim


BAD = Mine(2, 1.2)
'''


def test_the_plugin_is_light_and_its_fixture_asserts(tmp_path):
    light = "import sys, experiments.pytest_plugin; assert not {'jax', 'numpy'} & set(sys.modules)"
    assert subprocess.run([sys.executable, "-c", light]).returncode == 0
    (tmp_path / "test_own.py").write_text(OWN + PLUGIN_TEST)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--court-keys", "2", "-p", "no:cacheprovider", str(tmp_path)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert "1 failed, 1 passed" in done.stdout and "CONVICTED" in done.stdout, done.stdout + done.stderr


# --- the command line ------------------------------------------------------------------------------------------------


@pytest.fixture
def own(tmp_path) -> Path:
    path = tmp_path / "mine_for_the_court.py"
    path.write_text(OWN)
    return path


def test_a_file_of_ones_own_is_certified_from_the_command_line(own, capsys):
    assert main(["certify", f"{own}:Mine(2)", "--dim", "5"]) == 0
    assert "the claim stands" in capsys.readouterr().out
    assert main(["certify", f"{own}:BAD", "--dim", "5", "--keys", "2", "--json"]) == 1
    rows = json.loads(capsys.readouterr().out)
    assert len(rows) == 2 and not rows[0]["ok"] and "0.6 found where 0.52 is claimed" in rows[0]["reason"]


def test_only_what_can_be_tried_is_suggested(own, capsys):
    own.write_text(
        OWN.replace("import jax.numpy as jnp", "import jax\nimport jax.numpy as jnp\nfrom adacgd import TopK")
    )
    assert main(["certify", f"{own}:Zzz(2)", "--dim", "5"]) == 2
    said = capsys.readouterr().err
    assert "known are BAD, Mine" in said and "TopK" not in said


def test_a_fault_in_ones_own_code_is_no_conviction(own, capsys):
    own.write_text(OWN.replace("kept = jnp.argsort", "raise RuntimeError('mine')\n        kept = jnp.argsort"))
    assert main(["certify", f"{own}:Mine(2)", "--dim", "5"]) == 2
    assert "RuntimeError: mine" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["adacgd:TopK"], "is the class TopK"),
        (["adacgd:TopQ(3)"], "the nearest is 'TopK'"),
        (["adacgd:TopK(3.5)"], "integer of at least 1"),
        (["adacgd:TopK(50)", "--dim", "20"], "more than the 20 coordinates"),
        (["adacgd:TopK(len)"], "plain values"),
        (["adacgd.nowhere:TopK(3)"], "cannot import"),
        (["nowhere.py:X"], "no file there"),
        (["adacgd"], "MODULE:OBJECT"),
        (["adacgd:TopK(3)", "--dim", "0"], "--dim"),
        (["adacgd:theory"], "not a Compressor"),
    ],
)
def test_a_bad_request_is_answered_in_a_line(words, said, capsys):
    assert main(["certify", *words]) == 2
    found = capsys.readouterr()
    assert said in found.err and found.err.count("\n") <= 2 and not found.out
