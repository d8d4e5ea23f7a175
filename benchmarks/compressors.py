"""All compressors side by side: `python -m benchmarks.compressors [--dim 1000] [--write FILE --figure FILE.png]`.

For each: the constant it claims, the price of a message in float32, how much of the claim is lost at its own worst
input, and which input that is. The figure shows variance against bits: the bits an entry that an ideal code
would need for the same loss, so that the bound that no compressor beats is the diagonal (theory.md 1.4).
"""

import argparse
import functools
import math
import sys
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import adacgd as ac
from adacgd.compressors.base import alpha_of, omega_of
from adacgd.laws import ask
from benchmarks.report import write
from experiments.figures import MARKERS, OKABE_ITO

WORKERS, DRAWS = 10, 256


def families(dim: int) -> dict[str, list[Any]]:
    """Members of each family, from few bits to many; the first of each stands in the table."""
    ks = [max(1, round(dim * share)) for share in (0.1, 0.001, 0.01, 0.03, 0.3, 0.7)]
    k, side = dim // 10, math.isqrt(dim)
    few = [max(1, dim // 100), max(1, dim // 20), k]
    return {
        "Identity": [ac.Identity()],
        "Top-K": [ac.TopK(k) for k in ks],
        "Top-K, rank-coded": [ac.TopK(k, "rank") for k in ks],
        "Rand-K": [ac.RandK(k) for k in ks],
        "Rand-K, shared seed": [ac.RandK(k, shared_seed=True) for k in ks],
        "Rand-K, unscaled": [ac.ContractiveRandK(k) for k in ks],
        "Perm-K": [ac.PermK()],
        "Perm-K, unscaled": [ac.ContractivePermK()],
        "Block Top-K": [ac.BlockTopK((k // 2, k // 2), (dim // 2, dim - dim // 2))],
        "Mix-K": [ac.MixK(k // 2, k // 2, shared_seed=True)],
        "Threshold, share of max": [ac.RelativeThreshold(0.5)],
        "Threshold, share of norm": [ac.RelativeThreshold(0.5, "l2")],
        "Adaptive random": [ac.AdaptiveRandom()],
        "Biased random": [ac.BiasedRandom(0.1, "gaps")],
        "Sign": [ac.Sign()],
        "Sign, three symbols": [ac.Sign("zero")],
        "Natural": [ac.Natural()],
        "QSGD": [ac.QSGD(s) for s in (4, 1, 2, 16, 64, 256)],
        "QSGD, Elias": [ac.QSGD(s, "elias") for s in (4, 1, 2, 16)],
        "Max-norm rounding": [ac.MaxRounding(s) for s in (4, 2, 16, 64, 256)],
        "Max-norm dithering": [ac.MaxDithering(s) for s in (4, 2, 16, 64, 256)],
        "TernGrad": [ac.TernGrad()],
        "Natural dithering": [ac.NaturalDithering(s) for s in (4, 1, 2, 8)],
        "Low rank": [ac.LowRank(r) for r in (2, 1, 4, 8) if r * 2 * (side + 1) <= dim],
        "PowerSGD": [ac.PowerSGD(r) for r in (2, 1, 4, 8) if r * 2 * (side + 1) <= dim],
        "Top-K of quantised": [ac.OnSupport(k, ac.Natural())],
        "Induced": [ac.Induced(ac.TopK(k // 2), ac.RandK(k // 2)) for k in few],
        "Participation": [ac.Participation(ac.TopK(k), 0.5)],
    }


class Row(NamedTuple):
    """One compressor at one dimension."""

    target: Any
    claimed: float  # 1 - alpha, or omega
    delta: float  # the share that is lost at worst: 1 - alpha, or omega / (1 + omega) of the shrunk form
    mean_bits: float  # of a Gaussian x, float32
    tightness: float | None  # found / claimed at its own worst input; None where it names none
    worst: str


@functools.partial(jax.jit, static_argnames="draws")
def measure(target: Any, key: jax.Array, x: jax.Array, draws: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Mean of |C(x) - x|^2 / |x|^2, of the scalars and of the extra bits."""

    def one(key: jax.Array) -> tuple[Any, Any, Any]:
        sent = ask(target, key, (x,), WORKERS)
        return jnp.sum((sent.value - x) ** 2) / jnp.sum(x**2), sent.cost.scalars * 1.0, sent.cost.extra_bits * 1.0

    return tuple(jnp.mean(v) for v in jax.vmap(one)(jax.random.split(key, draws)))


def row(target: Any, dim: int) -> Row:
    """Claimed and measured."""
    unbiased = isinstance(target, ac.Unbiased)
    claimed = omega_of(target, dim, WORKERS) if unbiased else 1 - alpha_of(target, dim, WORKERS)
    gaussian = jnp.asarray(np.random.RandomState(0).normal(size=dim), jnp.float32)
    _, scalars, extra = (float(v) for v in measure(target, jax.random.key(0), gaussian, 16))
    worst = target.worst(dim)
    found = None if worst is None else float(measure(target, jax.random.key(1), jnp.asarray(worst), DRAWS)[0])
    tight = None if found is None else (found / claimed if claimed > 1e-12 else 1.0)
    return Row(target, claimed, claimed / (1 + claimed) if unbiased else claimed, 32 * scalars + extra, tight,
               "" if worst is None else shape_of(worst))  # fmt: skip


def shape_of(x: np.ndarray) -> str:
    """In words."""
    sizes, counts = np.unique(np.round(np.abs(x), 12), return_counts=True)
    if len(sizes) == 1:
        return "flat"
    if sizes[0] == 0 and len(sizes) == 2:
        return "one-hot" if counts[1] == 1 else f"flat on {counts[1]} entries, 0 elsewhere"
    if len(sizes) == 2:
        return f"{counts[1]} of {sizes[1]:.4g}, {counts[0]} of {sizes[0]:.4g}"
    return f"{len(sizes)} sizes, {sizes[0]:.3g} to {sizes[-1]:.3g}"


def page(rows: dict[str, list[Row]], dim: int) -> list[tuple[str, ...]]:
    """The table: the first member of each family."""
    found = []
    for name, (first, *_) in rows.items():
        symbol = "omega" if isinstance(first.target, ac.Unbiased) else "alpha"
        value = first.claimed if symbol == "omega" else 1 - first.claimed
        tight = "" if first.tightness is None else f"{first.tightness:.4f}"
        limit = first.delta * 4 ** (first.mean_bits / dim) if first.delta > 0 else math.inf
        beyond = "exact" if first.delta == 0 else f"{math.log2(limit) / 2:.2f}"
        found.append((name, f"`{first.target!r}`", f"{symbol} = {value:.6g}", f"{first.mean_bits:.0f}", tight,
                      first.worst, beyond))  # fmt: skip
    return found


def draw(rows: dict[str, list[Row]], dim: int, path: Path) -> None:
    """Bits an entry that an ideal code would need for the same loss against the bits that are sent: the bound is the
    diagonal, and on log axes both cheap and fine compressors are seen."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    plt.rcParams.update({"font.size": 9, "pdf.fonttype": 42})
    figure, axes = plt.subplots(figsize=(9.5, 6), layout="constrained")
    shown = {name: [m for m in members if m.delta > 0] for name, members in rows.items()}
    for i, (name, members) in enumerate((n, m) for n, m in shown.items() if m):
        members = sorted(members, key=lambda m: m.mean_bits)
        x, y = [m.mean_bits / dim for m in members], [-math.log2(m.delta) / 2 for m in members]
        colour, marker = OKABE_ITO[i % len(OKABE_ITO)], MARKERS[i // len(OKABE_ITO)]
        axes.plot(x, y, marker=marker, color=colour, lw=1, ms=6, mec="white", mew=0.5, label=name)
    rate = np.geomspace(1e-2, 40, 2)
    axes.plot(rate, rate, color="black", lw=1.5, ls="--", label="no compressor above (uncertainty principle)")
    axes.fill_between(rate, rate, 40, color="0.92", lw=0)
    axes.set(xscale="log", yscale="log", ylim=(5e-4, 12), xlim=(0.02, 40))
    axes.set_xlabel("bits an entry that are sent (float32 wire, Gaussian x)")
    axes.set_ylabel(r"bits an entry that an ideal code needs: $\frac{1}{2}\log_2 1/\delta$")
    axes.set_title(
        f"What a compressor keeps for what it costs, d = {dim}:  "
        r"$\delta = 1-\alpha$, or $\omega/(1+\omega)$"
    )
    axes.grid(True, which="major", color="0.9")
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), fontsize=7.5, frameon=False)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compressors")
    parser.add_argument("--dim", type=int, default=1000)
    parser.add_argument("--write", type=Path, help="a Markdown file for the table")
    parser.add_argument("--figure", type=Path, help="a PNG or PDF for the picture")
    arguments = parser.parse_args(argv)
    jax.config.update("jax_enable_x64", True)
    rows = {name: [row(t, arguments.dim) for t in members] for name, members in families(arguments.dim).items()}
    table = page(rows, arguments.dim)
    for line in table:
        print(" | ".join(line))
    if arguments.figure:
        draw(rows, arguments.dim, arguments.figure)
    if arguments.write:
        words = WORDS.format(dim=arguments.dim, workers=WORKERS, draws=DRAWS)
        columns = (
            "family",
            "member",
            "constant",
            "bits",
            "found / claimed",
            "worst input",
            "bits above the bound",
        )
        write(
            arguments.write,
            "All compressors",
            " ".join(["python -m benchmarks.compressors", *argv]),
            words,
            columns,
            table,
        )
    return 0


WORDS = """
One member of each family at d = {dim}; those that share randomness among {workers} workers. *constant*: alpha of a
contractive one, omega of an unbiased one, claimed for every x. *bits*: the mean price of a message of a Gaussian x in
float32, indices and signs included, header aside ([wire.md](wire.md)). *found / claimed*: what is lost at the named
worst input over what is claimed, a mean of {draws} draws where the compressor is random: 1 where the constant is
attained. *bits above the bound*: how far the price of an entry stands above the uncertainty bound,
N/d + (1/2) log2 delta >= 0 for every compressor, with delta = 1 - alpha or omega/(1 + omega) (theory.md 1.4).
In the figure a line joins members of one family: K from d/1000 to 0.7 d, levels, or ranks 1 to 8. Some lie on others:
Rand-K scaled and unscaled and Top-K, PowerSGD and low rank, the two Perm-K. Compressors without a constant
(`HardThreshold`, `FloatCast`, `FixedPoint`, `PowerSGDWarm`) say so when asked, and are
not in the table.

![bits that an ideal code needs against bits sent](figures/compressors.png)
"""

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
