"""What a message costs, and the named conventions that turn counts into bits.

A message is priced in counts, never in bits: how many real scalars it carries, and how many bits besides. Bits are a
*view* of those counts, so that one run serves every axis. The papers plot `"floats"`; `"wire"` is what a link carries.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

CONVENTIONS = ("floats", "wire")
FLOAT_WIDTHS = (16, 32, 64)


class Cost(NamedTuple):
    """The price of one message, as counts.

    `extra_bits` is what is needed beyond the scalars when both ends know family, parameters and dimension: indices,
    signs, codes, and the level code of a mechanism that chooses or may be silent. Both are () int32 or Python ints.
    """

    scalars: int | jax.Array
    extra_bits: int | jax.Array = 0


def index_bits(choices: int) -> int:
    """ceil(log2(choices)): the bits that name one of so many, exact for every integer; 0 for a single choice."""
    return max(int(choices) - 1, 0).bit_length()


def level_bits(levels: int) -> int:
    """The bits that name one of `levels` levels or silence: ceil(log2(m + 1)) (theory.md section 2, AdaCGD)."""
    return index_bits(levels + 1)


def bits(scalars: Any, extra_bits: Any, convention: str = "floats", float_width: int = 32) -> np.ndarray:
    """Counts seen as bits, exact in int64.

    scalars, extra_bits: integers or integer arrays of one shape, which is the shape of the result.
    convention: `"floats"` is float_width a scalar and nothing else, as the papers plot; `"wire"` adds the extra bits.
    float_width: 16, 32 or 64, the width *counted*, whatever the precision simulated.
    """
    if convention not in CONVENTIONS:
        raise ValueError(f"bits(convention=...) must be one of {', '.join(CONVENTIONS)}; got {convention!r}.")
    if float_width not in FLOAT_WIDTHS:
        raise ValueError(f"bits(float_width=...) must be one of {FLOAT_WIDTHS}; got {float_width!r}.")
    floats = float_width * np.asarray(scalars, dtype=np.int64)
    return floats if convention == "floats" else floats + np.asarray(extra_bits, dtype=np.int64)


def total(costs: Sequence[Cost]) -> Cost:
    """The price of several messages sent together."""
    return Cost(sum(c.scalars for c in costs), sum(c.extra_bits for c in costs))
