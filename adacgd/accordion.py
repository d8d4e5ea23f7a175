"""Accordion's test for critical regimes (Agarwal et al., arXiv 2010.16248; theory.md section 4)."""

import jax
import jax.numpy as jnp

ETA = 0.5  # the threshold of the published code


def critical(old: jax.Array, new: jax.Array, eta: float | jax.Array = ETA) -> jax.Array:
    """Whether a regime is critical, so that little is compressed: | |new| - |old| | / |old| >= eta.

    old, new: norms of the gradient accumulated over a window, any shape, then and now. Where there was none, old = 0,
    the published code puts the ratio at 9: critical, also for 0 -> 0. What is no number is critical too: it must not
    pass unseen under heavy compression. Finite decisions always: bool, of the shape of old and new.
    """
    was, now = jnp.abs(jnp.asarray(old)), jnp.abs(jnp.asarray(new))
    ratio = jnp.where(was > 0, jnp.abs(was - now) / jnp.where(was > 0, was, 1), 9.0)
    return ~(ratio < eta)
