"""What the theorems say, as plain numbers, and a check that holds a run against them."""

from adacgd.theory.check import Check, check
from adacgd.theory.constants import beta, movement, theta
from adacgd.theory.stepsizes import stepsize
from adacgd.theory.tight import (
    cgd_factor,
    ef14_potential,
    ef21_floor,
    ef21_potential,
    tight_iterations_to,
    tight_rate,
    tight_stepsize,
)
from adacgd.theory.worst_cases import WorstCase, worst_case

__all__ = [
    "Check",
    "WorstCase",
    "beta",
    "cgd_factor",
    "check",
    "ef14_potential",
    "ef21_floor",
    "ef21_potential",
    "movement",
    "stepsize",
    "theta",
    "tight_iterations_to",
    "tight_rate",
    "tight_stepsize",
    "worst_case",
]
