"""The court on trial: `python -m benchmarks.court [--keys 20] [--dim 12] [--only WORD] [--write FILE]`.

Whoever is guilty must be convicted with every key, whoever is honest acquitted with every key. Guilty are constants
that are 5 % better than a truth which cannot be improved, prices that are one bit short, and the ways of going wrong
that people have found. The exit code is 1 if one verdict is wrong. The test-suite runs the same lists with two keys.
"""

import argparse
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import adacgd as ac
from adacgd.compressors.base import Coded, alpha_of, omega_of
from benchmarks.report import write
from tests.zoo import NO_CONSTANT, zoo

WORKERS = 4
FACTOR = 1.05


@ac.module
class OneBitShort(ac.Compressor, Coded):
    """As the inner one, for one bit less."""

    inner: Any

    def __call__(self, key, x):
        sent = self.inner(key, x)
        return sent._replace(cost=ac.Cost(sent.cost.scalars, sent.cost.extra_bits - 1))

    def alpha(self, dim):
        return self.inner.alpha(dim)

    def format(self, dim, float_width):
        return self.inner.format(dim, float_width)

    def numbers(self, key, x, **shared):
        return self.inner.numbers(key, x)


# --- the ways of going wrong ------------------------------------------------------------------------------------------


@ac.module
class CalledUnbiased(ac.Unbiased):
    """A contractive compressor that says it is unbiased, with the variance that it has."""

    inner: Any
    variance: float = ac.static()

    def __call__(self, key, x):
        return self.inner(key, x)

    def omega(self, dim):
        return self.variance


@ac.module
class CalledContractive(ac.Compressor):
    """Rand-K with its factor d/k, said to be contractive."""

    k: int = ac.static()

    def __call__(self, key, x):
        return ac.RandK(self.k)(key, x)

    def alpha(self, dim):
        return self.k / dim


@ac.module
class RoundsDown(ac.Unbiased):
    """A quantiser of the largest entry into four levels, which cuts what is between them."""

    def __call__(self, key, x):
        largest = jnp.max(jnp.abs(x))
        level = jnp.floor(4 * jnp.abs(x) / jnp.where(largest > 0, largest, 1))
        return ac.Message(largest * jnp.sign(x) * level / 4, ac.Cost(1, 4 * x.size))

    def omega(self, dim):
        return float(dim)


@ac.module
class KeepsTies(ac.Compressor):
    """Top-K by a threshold: all entries as large as the k-th stay, for the price of k."""

    k: int = ac.static()

    def __call__(self, key, x):
        threshold = jnp.sort(jnp.abs(x))[-self.k]
        return ac.Message(jnp.where(jnp.abs(x) >= threshold, x, 0), ac.Cost(self.k, 4 * self.k))

    def alpha(self, dim):
        return self.k / dim


@ac.module
class NaNOnZero(ac.Compressor):
    """A sign with a scale, divided by a norm that may be 0."""

    def __call__(self, key, x):
        norm = jnp.linalg.norm(x)
        share = jnp.sum(jnp.abs(x)) / (norm * norm)
        return ac.Message(jnp.sign(x) * share * norm * norm / x.size, ac.Cost(1, x.size))

    def alpha(self, dim):
        return 1 / dim


_calls = [0]


@ac.module
class LooksAround(ac.Compressor):
    """Each call keeps other coordinates, whatever the key: NumPy-like randomness with a state of its own."""

    k: int = ac.static()

    def __call__(self, key, x):
        _calls[0] += 1
        kept = (jnp.arange(x.size) + _calls[0]) % x.size < self.k
        return ac.Message(jnp.where(kept, x, 0), ac.Cost(self.k))

    def alpha(self, dim):
        return 1e-6  # generous, and still not true of one coordinate


@ac.module
class GoodOnGaussians(ac.Compressor):
    """Top-K with the share of a Gaussian that it keeps on average, and not of every x."""

    k: int = ac.static()

    def __call__(self, key, x):
        return ac.TopK(self.k)(key, x)

    def alpha(self, dim):
        draws = np.sort(np.random.RandomState(0).normal(size=(4000, dim)) ** 2, axis=1)
        return float(np.mean(draws[:, -self.k :].sum(1) / draws.sum(1)))


class Case(NamedTuple):
    """One on trial."""

    name: str
    target: Any
    guilty: bool
    claim: Any = None  # in place of its own


def maps(dim: int) -> dict[str, Any]:
    """Mechanisms over levels of several families."""
    k = max(1, dim // 3)
    return {
        "GD": ac.GD(),
        "EF21, top": ac.EF21(ac.TopK(k)),
        "EF21, sign": ac.EF21(ac.Sign()),
        "EF21, rand": ac.EF21(ac.ContractiveRandK(k)),
        "EF21, shrunk qsgd": ac.EF21(ac.Shrunk(ac.QSGD(1))),
        "LAG": ac.LAG(4.0),
        "CLAG, small zeta": ac.CLAG(ac.TopK(k), 0.5),
        "CLAG, large zeta": ac.CLAG(ac.TopK(k), 64.0),
        "AdaCGD, small zeta": ac.AdaCGD([ac.TopK(1), ac.TopK(k)], 0.5),
        "AdaCGD, large zeta": ac.AdaCGD([ac.TopK(1), ac.TopK(k)], 64.0),
        "AdaCGD, quantisers": ac.AdaCGD([ac.Shrunk(ac.QSGD(1)), ac.Shrunk(ac.QSGD(3))], 1.0),
        "AdaCGD, random": ac.AdaCGD([ac.ContractiveRandK(1), ac.ContractiveRandK(k)], 1.0),
        "energy, small zeta": ac.Energy(k / dim, 0.5),
        "energy, large zeta": ac.Energy(k / dim, 64.0),
        "3PCv1": ac.ThreePCv1(ac.TopK(k)),
        "3PCv2": ac.ThreePCv2(ac.RandK(k), ac.ContractiveRandK(k)),
        "3PCv3": ac.ThreePCv3(ac.CLAG(ac.TopK(k), 0.5), ac.TopK(k)),
        "3PCv4": ac.ThreePCv4(ac.ContractiveRandK(k), ac.TopK(k)),
        "3PCv5": ac.ThreePCv5(ac.TopK(k), 0.3),
        "3PCv5, own coin": ac.ThreePCv5(ac.Sign(), 0.3, common_coin=False),
        "EF21+, top": ac.EF21Plus(ac.TopK(k)),
        "EF21+, rand": ac.EF21Plus(ac.ContractiveRandK(k)),
        "Ada3PC": ac.Ada3PC([ac.EF21(ac.TopK(1)), ac.ThreePCv4(ac.ContractiveRandK(k), ac.TopK(k))], 0.5),
        "Ada3PC, mixed": ac.Ada3PC([ac.EF21(ac.Sign()), ac.LAG(1.0), ac.ThreePCv5(ac.TopK(k), 0.3)], 0.5),
    }


# Of the others (A, B) is not attained: with a large zeta what a silent round leaves is met by |h - y| too.
# Nor where a second Top-K follows (v3), and what attains v5 and EF21+ with Top-K is no point that the search meets:
# tests/test_three_point.py has it.
TIGHT_A = (*[name for name in maps(12) if name.startswith("EF21,")], "CLAG, small zeta", "AdaCGD, small zeta",
           "AdaCGD, random", "energy, small zeta", "3PCv2", "3PCv4", "EF21+, rand", "Ada3PC")  # fmt: skip
TIGHT_B = (*TIGHT_A, "LAG", "AdaCGD, quantisers", "3PCv1")


def cases(dim: int) -> Iterator[Case]:
    """Everyone."""
    k = max(1, dim // 3)
    yield Case("top, declared unbiased", CalledUnbiased(ac.TopK(k), dim / k - 1), True)
    yield Case("rand unscaled, declared unbiased", CalledUnbiased(ac.ContractiveRandK(k), dim / k - 1), True)
    yield Case("rand scaled, declared contractive", CalledContractive(k), True)
    yield Case("rounds down, declared unbiased", RoundsDown(), True)
    yield Case("keeps all ties", KeepsTies(k), True)
    yield Case("NaN on zero", NaNOnZero(), True)
    yield Case("depends on global state", LooksAround(k), True)
    yield Case("right for Gaussians only", GoodOnGaussians(k), True)
    for name in ("top", "top, rank", "sign", "sign with zero", "blocks", "on support, natural"):
        yield Case(f"{name}, one bit short", OneBitShort(zoo(dim)[name]), True)
    for name, target in zoo(dim).items():
        if name in NO_CONSTANT:
            continue
        yield Case(name, target, False)
        if isinstance(target, ac.Unbiased):
            if target.attained(dim) and omega_of(target, dim, WORKERS) > 0:
                yield Case(f"{name}, omega 5 % better", target, True, omega_of(target, dim, WORKERS) / FACTOR)
        elif target.attained(dim) and FACTOR * alpha_of(target, dim, WORKERS) <= 1:
            yield Case(f"{name}, alpha 5 % better", target, True, FACTOR * alpha_of(target, dim, WORKERS))
    for name, target in maps(dim).items():
        own = target.constants(dim)
        yield Case(name, target, False)
        if name in TIGHT_A:
            yield Case(f"{name}, A 5 % better", target, True, own._replace(A=own.A * FACTOR))
        if name in TIGHT_B:
            yield Case(f"{name}, B 5 % better", target, True, own._replace(B=own.B / FACTOR))


class Trial(NamedTuple):
    """What came of one case."""

    case: Case
    right: int  # verdicts that were right
    keys: int
    certificate: ac.Certificate  # the last, or the first that was wrong
    seconds: float


def trial(case: Case, dim: int, keys: int, hints: bool = True) -> Trial:
    """Every key in turn."""
    start, right, kept = time.perf_counter(), 0, None
    for key in range(keys):
        certificate = ac.certify(case.target, dim=dim, key=key, claim=case.claim, workers=WORKERS, hints=hints)
        good = certificate.ok != case.guilty
        right += good
        kept = certificate if kept is None or not good else kept
    return Trial(case, right, keys, kept, time.perf_counter() - start)


WORDS = """\
Those of the library mostly name their own worst input, where the search then starts. *Without hints* is how often a
constant 5 % too good falls when the search is told no such input; only *judged right* decides the exit code. What the
court has been seen to miss stands in [adding-a-compressor.md](adding-a-compressor.md)."""


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.court")
    parser.add_argument("--keys", type=int, default=20)
    parser.add_argument("--dim", type=int, default=12)
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--write", type=Path, help="a Markdown file for the table")
    arguments = parser.parse_args(argv)
    jax.config.update("jax_enable_x64", True)
    rows, wrong, missed = [], 0, 0
    for i, case in enumerate(cases(arguments.dim)):
        if arguments.only not in case.name:
            continue
        if i % 20 == 0:
            jax.clear_caches()  # programs hold memory maps, of which a process may have some 65,000
        t = trial(case, arguments.dim, arguments.keys)
        wrong += t.right != t.keys
        reason = t.certificate.reason or f"worst/claimed {t.certificate.tightness:.4f}"
        alone = "-"
        if case.claim is not None:  # 5 % too good: found without being told where?
            found = trial(case, arguments.dim, arguments.keys, hints=False).right
            missed += found != arguments.keys
            alone = f"{found}/{arguments.keys}"
        rows.append((case.name, "guilty" if case.guilty else "honest", f"{t.right}/{t.keys}", alone, reason))
        print(f"{case.name:44} {rows[-1][1]:7} {rows[-1][2]:>6} {alone:>6} {t.seconds:7.1f} s  {reason}", flush=True)
    better = sum(row[3] != "-" for row in rows)
    alone_words = f"without hints {better - missed} of {better} constants 5 % too good fall with every key"
    print(f"{len(rows)} cases, {wrong} with a wrong verdict; {alone_words}")
    if arguments.write:
        head = (
            f"{len(rows)} cases, {arguments.keys} keys each, dimension {arguments.dim}; wrong verdicts: {wrong}; "
            f"{alone_words}.\n{WORDS}"
        )
        columns = ("case", "is", "judged right", "without hints", "evidence")
        write(
            arguments.write, "The court on trial", " ".join(["python -m benchmarks.court", *argv]), head, columns, rows
        )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
