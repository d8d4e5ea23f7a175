"""What the theorems say, as plain numbers, and a check that holds a run against them."""

from adacgd.theory.check import Check, check
from adacgd.theory.choice import theorem
from adacgd.theory.constants import (
    ContractiveDCGD,
    DCGDConstants,
    DianaConstants,
    EF14Constants,
    NoTheorem,
    SGDMConstants,
    beta,
    movement,
    participating,
    sharper,
    theta,
)
from adacgd.theory.statement import Start, Theorem
from adacgd.theory.stepsizes import Gain, bits_to, bound, gain_factors, iterations_to, rate, stepsize
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
    "ContractiveDCGD",
    "DCGDConstants",
    "DianaConstants",
    "EF14Constants",
    "Gain",
    "NoTheorem",
    "SGDMConstants",
    "Start",
    "Theorem",
    "WorstCase",
    "beta",
    "bits_to",
    "bound",
    "cgd_factor",
    "check",
    "ef14_potential",
    "ef21_floor",
    "ef21_potential",
    "gain_factors",
    "iterations_to",
    "movement",
    "participating",
    "rate",
    "sharper",
    "stepsize",
    "theorem",
    "theta",
    "tight_iterations_to",
    "tight_rate",
    "tight_stepsize",
    "worst_case",
]
