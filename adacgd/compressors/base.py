"""What a compressor is: two abstract classes, the message they send, and the randomness they may ask for."""

import abc
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from adacgd.cost import Cost
from adacgd.module import concrete, module, static


class Message(NamedTuple):
    """What is sent: `value` is what the receiver reconstructs."""

    value: jax.Array  # (d,)
    cost: Cost  # realised price of this very message
    level: jax.Array | int = 1  # () 0 nothing sent, 1..m the level sent


@module
class Draw:
    """The randomness of one message, handed to an uplink by the loop (architecture.md decision 5).

    private: a key of this worker and round alone. common: a key that all workers of the round share.
    round: () int, absolute. worker: () int. workers: how many there are.
    """

    private: jax.Array
    common: jax.Array
    round: jax.Array
    worker: jax.Array
    workers: int = static()

    def shared(self) -> dict[str, Any]:
        """The keywords that a part with `shares_randomness` is called with, besides its private key."""
        return {"common": self.common, "round": self.round, "worker": self.worker, "workers": self.workers}


class Compressor(abc.ABC):
    """A contractive compressor: E|C(x) - x|^2 <= (1 - alpha) |x|^2 for every x, 0 < alpha <= 1 (theory.md 1.1).

    An own one is a `module` with these two methods. `nonexpansive` promises |C(x)| <= |x|, which sharpens the
    bidirectional theory. With `shares_randomness` the call takes `common=, round=, worker=, workers=` as keywords.
    """

    nonexpansive: bool = False
    shares_randomness: bool = False

    @abc.abstractmethod
    def __call__(self, key: jax.Array, x: jax.Array) -> Message:
        """Compress x, (d,)."""

    @abc.abstractmethod
    def alpha(self, dim: int) -> float:
        """The contraction constant on R^dim."""


class Unbiased(abc.ABC):
    """E Q(x) = x and E|Q(x) - x|^2 <= omega |x|^2 for every x. `Shrunk(Q)` makes it a `Compressor`."""

    shares_randomness: bool = False

    @abc.abstractmethod
    def __call__(self, key: jax.Array, x: jax.Array) -> Message:
        """Compress x, (d,)."""

    @abc.abstractmethod
    def omega(self, dim: int) -> float:
        """The variance constant on R^dim."""


def sq(v: jax.Array) -> jax.Array:
    """|v|^2 along the last axis."""
    return jnp.sum(v * v, axis=-1)


def as_key(key: Any) -> jax.Array:
    """A JAX key from a key or an int n in [0, 2^32), meaning `jax.random.key(n)`.

    Other integers are refused: they mean different keys with 64-bit mode on and off.
    """
    if isinstance(key, jax.Array) and jax.dtypes.issubdtype(key.dtype, jax.dtypes.prng_key):
        if key.shape == ():
            return key
        raise ValueError(f"key must be one key, got an array of keys of shape {key.shape}; pass keys[i].")
    if isinstance(key, int | np.integer) and not isinstance(key, bool | np.bool_):
        if 0 <= key < 2**32:
            return jax.random.key(np.uint32(key))
        raise ValueError(f"key must be an integer in [0, 2**32), got {key}; or pass jax.random.key(...).")
    raise TypeError(
        f"key must be a JAX key or an integer in [0, 2**32), got {type(key).__name__} {key!r}; "
        "build one with jax.random.key(seed) (jax.random.wrap_key_data for raw key words)."
    )


def require_count(owner: str, name: str, value: Any) -> None:
    """A static count: a true integer of at least 1. Raises ValueError that names owner, argument and value."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise ValueError(f"{owner}({name}=...) must be an integer of at least 1, got {value!r}.")


def require_fits(owner: str, name: str, value: int, dim: int) -> None:
    """A count of coordinates that exist. Raises ValueError before anything is compiled."""
    if value > dim:
        raise ValueError(
            f"{owner}({name}={value}) keeps more than the {dim} coordinates there are; use {name} <= {dim}."
        )


def require_nonnegative(owner: str, name: str, value: Any) -> None:
    """A finite number >= 0, checked where it is concrete. Raises ValueError."""
    if isinstance(value, str | bytes | bool | complex | list | tuple | type | Compressor) or value is None:
        raise ValueError(f"{owner}({name}=...) must be a finite number >= 0, got {value!r}.")
    if concrete(value) and not (np.all(np.isfinite(value)) and np.all(np.asarray(value) >= 0)):
        raise ValueError(f"{owner}({name}=...) must be a finite number >= 0, got {value}.")


def require_contractive(owner: str, name: str, part: Any) -> None:
    """A contractive compressor, or an error that says what to wrap. Raises TypeError.

    What jax may put in the place of a subtree (None, numbers, arrays, its own objects) passes: `alpha_of` meets it.
    """
    if isinstance(part, Unbiased):
        raise TypeError(
            f"{owner}({name}={part!r}): {type(part).__name__} is unbiased, not contractive, and error feedback on it "
            f"diverges; wrap it as Shrunk({part!r})."
        )
    if isinstance(part, type):
        raise TypeError(f"{owner}({name}=...) takes an object, got the class {part.__name__}; call it first.")
    if isinstance(part, str | bytes | list | tuple | dict | set):
        raise TypeError(f"{owner}({name}=...) must be a Compressor, got {type(part).__name__} {part!r}.")


def alpha_of(part: Compressor, dim: int, workers: int | None = None) -> float:
    """`part.alpha(dim)`, told the number of workers where the part shares randomness."""
    if not isinstance(part, Compressor):
        raise TypeError(f"a Compressor is wanted here, got {type(part).__name__} {part!r}.")
    told = {"workers": workers} if part.shares_randomness else {}
    value = float(part.alpha(dim, **told))
    if not 0 < value <= 1:
        raise ValueError(f"{part!r}.alpha({dim}) must lie in (0, 1], got {value}.")
    return value


def omega_of(part: Unbiased, dim: int, workers: int | None = None) -> float:
    """`part.omega(dim)`, told the number of workers where the part shares randomness."""
    if not isinstance(part, Unbiased):
        raise TypeError(f"an Unbiased compressor is wanted here, got {type(part).__name__} {part!r}.")
    told = {"workers": workers} if part.shares_randomness else {}
    value = float(part.omega(dim, **told))
    if not (value >= 0 and math.isfinite(value)):
        raise ValueError(f"{part!r}.omega({dim}) must be finite and at least 0, got {value}.")
    return value
