"""Problems with known constants, the data they stand on, and how it is split over workers."""

from problems.composite import Composite, composite
from problems.datasets import Data, datasets, load
from problems.least_squares import least_squares
from problems.logistic import logistic
from problems.problem import Problem, Smoothness
from problems.quadratic import general_quadratic, quadratic, tridiagonal

__all__ = [
    "Composite",
    "Data",
    "Problem",
    "Smoothness",
    "composite",
    "datasets",
    "general_quadratic",
    "least_squares",
    "load",
    "logistic",
    "quadratic",
    "tridiagonal",
]
