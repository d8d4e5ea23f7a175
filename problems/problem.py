"""What a problem is: f = (1/n) sum f_i, the gradients of all workers at one x, and its constants."""

import abc
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from adacgd.module import Aside
from adacgd.workers import tree_mean


class Smoothness(NamedTuple):
    """The constants of theory.md 3.0, and how each was obtained.

    L_minus: |grad f(x) - grad f(y)| <= L_minus |x - y|. L_plus: the same for the root mean square over workers of
    grad f_i. L_pm: with the mean's share taken out (Hessian variance). L_i: (n,), one a worker.
    mu: strong convexity or PL constant; 0 where only convexity is known; None where not even that.
    mu_i: (n,) strong convexity constants of the f_i, for the theorems that ask it of each; None where not known.
    strongly: whether mu is one of strong convexity; False where it is a PL constant alone; None where it is not said.
    how: name -> "exact", "bound: ...", "given", ...
    """

    L_minus: float
    L_plus: float
    L_pm: float
    mu: float | None
    L_i: np.ndarray
    how: Mapping[str, str]
    mu_i: np.ndarray | None = None
    strongly: bool | None = None


class Problem(abc.ABC):
    """The protocol that the loop and the theory read. Concrete problems are `module`s with a static field `about`.

    The loop needs `n`, `dim`, `loss`, `grads` and `x0`; theory needs `smoothness` and `f_star` or `f_lower`.
    by_worker: the fields whose arrays have an entry for each worker along their first axis, so that workers may be
    spread over devices; a problem that is given those of some workers alone is the problem of those workers.
    """

    about: Aside
    by_worker: ClassVar[tuple[str, ...]] = ()

    @property
    @abc.abstractmethod
    def n(self) -> int:
        """The number of workers."""

    @property
    @abc.abstractmethod
    def dim(self) -> int:
        """The dimension of x."""

    @abc.abstractmethod
    def losses(self, x: jax.Array) -> jax.Array:
        """(f_i(x))_i, (n,); x is (d,)."""

    @abc.abstractmethod
    def grads(self, x: jax.Array) -> jax.Array:
        """(grad f_i(x))_i, (n, d)."""

    def loss(self, x: jax.Array) -> jax.Array:
        """f(x), ()."""
        return tree_mean(self.losses(x))

    def losses_and_grads(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Both of every worker, (n,) and (n, d); in one pass where that is cheaper."""
        return self.losses(x), self.grads(x)

    @property
    def x0(self) -> jax.Array:
        """Where runs start, (d,), in the precision of the problem."""
        return jnp.asarray(self.about.x0)

    @property
    def smoothness(self) -> Smoothness:
        """L_minus, L_plus, L_pm, mu, L_i and how each was obtained."""
        return self.about.smoothness

    @property
    def f_star(self) -> float | None:
        """The least value of f, certified, found when first asked for; None where it is not known."""
        return self.about.minimum().value

    @property
    def f_lower(self) -> float:
        """A certified lower bound of f: f_star where known; -inf where f is unbounded below."""
        found = self.about.minimum()
        return found.lower if found.value is None else found.value

    @property
    def x_star(self) -> np.ndarray | None:
        """A minimiser, (d,) float64, where the least value is known by one; else None."""
        found = self.about.minimum()
        return None if found.value is None else found.x

    @property
    def sizes(self) -> jax.Array:
        """The rows of each worker, (n,), for estimates of gradients from some. TypeError where there are none."""
        raise TypeError(f"{self.name}: it has no rows to draw a batch from; use exact gradients.")

    @property
    def storage(self) -> str:
        """How the data is kept: "dense" or "banded"."""
        return self.about.storage

    @property
    def name(self) -> str:
        """What it is, in words."""
        return self.about.name


class Minimum(NamedTuple):
    """What is known of inf f. value: f_star or None; lower <= inf f; how: in words."""

    value: float | None
    lower: float
    how: str
    x: np.ndarray | None = None


def as_dtype(dtype: Any) -> np.dtype:
    """float32 or float64, or an error before anything is built: double precision asked is double precision had."""
    try:
        wanted = np.dtype(dtype)
    except TypeError as error:
        raise ValueError(f"dtype must be float32 or float64, got {dtype!r}.") from error
    if wanted not in (np.dtype(np.float32), np.dtype(np.float64)):
        raise ValueError(f"dtype must be float32 or float64, got {dtype!r}.")
    if wanted == np.float64 and not jax.config.read("jax_enable_x64"):
        raise ValueError(
            "this problem is float64 and jax is not in 64-bit mode, where arrays silently become float32: call "
            'jax.config.update("jax_enable_x64", True) at the start of the program, or ask for dtype="float32".'
        )
    return wanted


def require_positive(owner: str, name: str, value: Any, zero: bool = False) -> float:
    """A finite number > 0 (>= 0 with `zero`). Raises ValueError that names owner, argument and value."""
    rule = ">= 0" if zero else "> 0"
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        raise ValueError(f"{owner}({name}=...) must be a finite number {rule}, got {value!r}.")
    if not np.isfinite(value) or value < 0 or (value == 0 and not zero):
        raise ValueError(f"{owner}({name}=...) must be a finite number {rule}, got {value}.")
    return float(value)
