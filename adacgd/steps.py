"""What the message of a mechanism says: the choices its sender made, and steps that its receiver takes from h.

    ADDED        h <- h + v                 v a compressor's value, with +0 for every zero
    REPLACING    h_j <- v_j                 for the coordinates j that travel as they are
    FRESH        h <- v

Each mechanism tells its own by `sends`, beside the call that says the same as a formula; `adacgd.wire` writes them.
NumPy and the standard library only: a receiver needs no JAX.
"""

from typing import NamedTuple

import numpy as np

from adacgd.compressors.codes import Format, Numbers, plus

ADDED, REPLACING, FRESH = KINDS = (1, 2, 3)


class Step(NamedTuple):
    """One step: a kind, and the numbers of a compressor's message in their format."""

    kind: int
    format: Format
    numbers: Numbers


class Code(NamedTuple):
    """A choice that the receiver must be told, such as a level: 0 <= value < choices, in ceil(log2(choices)) bits."""

    value: int
    choices: int


class Sent(NamedTuple):
    """A whole message. No steps: nothing changes; no codes: both ends know what was chosen, or nothing was."""

    steps: tuple[Step, ...] = ()
    codes: tuple[Code, ...] = ()

    def behind(self, code: Code) -> "Sent":
        """The same with a code before all others."""
        return self._replace(codes=(code, *self.codes))


def after(step: Step, h: np.ndarray) -> np.ndarray:
    """(d,) what the receiver of h, (d,), holds after a step: `adacgd.mechanisms.received` in NumPy."""
    with np.errstate(all="ignore"):  # any bits may stand for floats, signalling NaN too
        v = step.format.rebuild(np, step.numbers, h.size, h.dtype)
        if step.kind == FRESH:
            return v
        if step.kind == REPLACING:
            out, carried = np.array(h), step.format.support(step.numbers, h.size)
            out[carried] = v[carried]
            return out
        return plus(np, h, np.where(v != 0, v, h.dtype.type(0)))
