"""What the theorems say, as plain numbers, and a check that holds a run against them."""

from adacgd.theory.check import Check, check
from adacgd.theory.constants import beta, movement, theta
from adacgd.theory.stepsizes import stepsize

__all__ = ["Check", "beta", "check", "movement", "stepsize", "theta"]
