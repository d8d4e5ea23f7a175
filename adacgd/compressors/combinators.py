"""Compressors made of compressors (theory.md 1.1)."""

from typing import Any

import jax

from adacgd.compressors.base import Compressor, Message, Unbiased, omega_of
from adacgd.module import module


@module
class Shrunk(Compressor):
    """Q / (1 + omega): the contractive form of an unbiased Q, alpha = 1 / (1 + omega) (theory.md 1.1).

    Equality holds exactly where the variance bound of Q is an equality.
    """

    inner: Unbiased

    def __post_init__(self) -> None:
        if isinstance(self.inner, Compressor):
            raise TypeError(
                f"Shrunk(inner={self.inner!r}) is for unbiased compressors; that one is contractive already."
            )
        if isinstance(self.inner, type | str):
            raise TypeError(f"Shrunk(inner=...) must be an Unbiased compressor, got {self.inner!r}.")

    @property
    def shares_randomness(self) -> bool:  # type: ignore[override]
        """As the inner one."""
        return self.inner.shares_randomness

    def __call__(self, key: jax.Array, x: jax.Array, **shared: Any) -> Message:
        """Q(x) / (1 + omega)."""
        sent = self.inner(key, x, **shared)
        shrink = 1 / (1 + omega_of(self.inner, x.size, shared.get("workers")))
        return sent._replace(value=sent.value * shrink)

    def alpha(self, dim: int, workers: int | None = None) -> float:
        """1 / (1 + omega)."""
        return 1 / (1 + omega_of(self.inner, dim, workers))
