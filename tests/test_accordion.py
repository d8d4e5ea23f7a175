"""Accordion's rule against a table worked by hand."""

import jax.numpy as jnp
import numpy as np

from adacgd.accordion import critical


def test_the_table():  # FR-12
    old = jnp.array([1.0, 1.0, 0.0, 0.0, 1.0, 2.0, 1.0, jnp.nan, 1.0])
    new = jnp.array([0.4, 0.6, 1.0, 0.0, 1.5, 2.9, 0.5, 1.0, jnp.nan])
    expected = [True, False, True, True, True, False, True, True, True]
    assert np.asarray(critical(old, new)).tolist() == expected
    assert np.asarray(critical(old[:3], new[:3], 0.3)).tolist() == [True, True, True]
