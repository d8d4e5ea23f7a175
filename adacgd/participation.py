"""Partial participation: in each round some workers are idle, send nothing and keep their state (theory.md 1.1)."""

from typing import Any

import jax
import jax.numpy as jnp

from adacgd.compressors.base import Message, alpha_of, brief, require_count
from adacgd.compressors.correlated import require_workers
from adacgd.compressors.thresholds import require_share
from adacgd.cost import Cost
from adacgd.mechanisms import AB, EF21, ResidualAB, ThreePoint, choose, compressor_of, single
from adacgd.module import module, static
from adacgd.steps import Sent
from adacgd.theory.constants import beta, participating, theta
from adacgd.three_point import FIRST, SECOND, constants_of, draw_of, require_map


@module
class Sampled(ThreePoint):
    """The inner map for the workers that take part, h for the others; with EF21 inside it is EF21-PP.

    p: each worker takes part with probability p by a coin of its own. count: exactly that many of the n workers do, a
    uniform sample which the common key draws. Give one of them. Idle workers send nothing, not even a bit: the receiver
    sees that no message came. y is the gradient at the previous iterate, also after idle rounds.

    EF21: alpha_eff = p alpha. Any other map: A' = p A - (1 - p) s, B' = p B + (1 - p)(1 + 1/s) at the s that makes
    B'/A' least (derived, theory.md 1.1). Only P(i takes part) >= p matters, so p = count/n for a sample.
    """

    inner: ThreePoint
    p: float | jax.Array | None = None
    count: int | None = static(default=None)
    __repr__ = brief

    def __post_init__(self) -> None:
        require_map("Sampled", "inner", self.inner)
        if (self.p is None) == (self.count is None):
            raise ValueError("Sampled takes either p=... (a coin each) or count=... (workers a round), one of them.")
        if self.p is not None:
            require_share("Sampled", "p", self.p)
        if self.count is not None:
            require_count("Sampled", "count", self.count)

    @property
    def shares_randomness(self) -> bool:  # type: ignore[override]
        """With a common sample, or as the inner map."""
        return self.count is not None or self.inner.shares_randomness

    def _takes_part(self, key: jax.Array, shared: dict[str, Any]) -> jax.Array:
        if self.count is None:
            return jax.random.bernoulli(jax.random.fold_in(key, FIRST), jnp.asarray(self.p))
        n = require_workers(self, shared.get("workers"))
        self._require_fits(n)
        place = jax.random.permutation(jax.random.fold_in(shared["common"], FIRST), n)
        return place[shared["worker"]] < self.count

    def _require_fits(self, n: int) -> None:
        if self.count is not None and self.count > n:
            raise ValueError(f"Sampled(count={self.count}) is more than the {n} workers there are; use count <= {n}.")

    def __call__(self, key: jax.Array, h: jax.Array, y: jax.Array, x: jax.Array, **shared: Any) -> Message:
        """C_{h,y}(x) or h."""
        own_key, own = draw_of(self.inner, SECOND, key, shared)
        sent = self.inner(own_key, h, y, x, **own)
        sent = sent._replace(level=jnp.asarray(sent.level, jnp.int32))
        return choose(self._takes_part(key, shared), sent, Message(h, Cost(0, 0), 0))

    def sends(self, key: jax.Array, h: jax.Array, y: jax.Array, x: jax.Array, **shared: Any) -> Sent:
        """What the inner map sends, or no bit."""
        if not self._takes_part(key, shared):
            return Sent()
        own_key, own = draw_of(self.inner, SECOND, key, shared)
        return self.inner.sends(own_key, h, y, x, **own)

    def share(self, workers: int | None = None) -> float:
        """p: the chance of one worker to take part. Raises ValueError where a count needs `workers`."""
        if self.count is None:
            return float(single("Sampled", "p", self.p))
        n = require_workers(self, workers)
        self._require_fits(n)
        return self.count / n

    def constants(self, dim: int, workers: int | None = None) -> AB:
        """See the class."""
        p = self.share(workers)
        if isinstance(self.inner, EF21):
            inner = compressor_of("EF21", "compressor", self.inner.compressor)
            alpha = p * alpha_of(inner, dim, workers)
            moves = {"P": 2.0, "Q": 2.0} if inner.nonexpansive else {}
            return ResidualAB(theta(alpha), beta(alpha), **moves)
        A, B, *_ = constants_of(self.inner, dim, workers)
        return AB(*participating(A, B, p))
