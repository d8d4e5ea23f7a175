"""What a compressor is: two abstract classes, the message they send, and the randomness they may ask for."""

import abc
import dataclasses
import math
from typing import Any, NamedTuple, NoReturn

import jax
import jax.numpy as jnp
import numpy as np

from adacgd.compressors.calls import number, with_checks
from adacgd.compressors.codes import Format
from adacgd.cost import Cost
from adacgd.module import concrete, module, static


class Message(NamedTuple):
    """What is sent: `value` is what the receiver reconstructs."""

    value: jax.Array  # (d,)
    cost: Cost  # realised price of this very message
    level: jax.Array | int = 1  # () 0 nothing sent, 1..m the level sent


@module
class Draw:
    """The randomness of one message, handed to an uplink by the loop.

    private: a key of this worker and round alone. common: a key that all workers of the round share.
    round: () int, absolute. worker: () int. workers: how many there are. moved: (d,) how the model that the workers
    hold has just moved, x^{t+1} - x^t, which they all see. stepsize: () gamma, which they all know.
    """

    private: jax.Array
    common: jax.Array
    round: jax.Array
    worker: jax.Array
    workers: int = static()
    moved: Any = None
    stepsize: Any = None

    def shared(self) -> dict[str, Any]:
        """The keywords that a part with `shares_randomness` is called with, besides its private key."""
        return {"common": self.common, "round": self.round, "worker": self.worker, "workers": self.workers}


Outcomes = tuple[np.ndarray, np.ndarray]  # probabilities (m,) and vectors (m, d), all that may arrive of one input


class Sharp:
    """Where a constant cannot be improved. An own compressor may leave all of it out."""

    equality: bool = False  # every x attains it

    def __init_subclass__(cls, **options: Any) -> None:
        """Every class, own ones too, refuses what it cannot be called with."""
        super().__init_subclass__(**options)
        with_checks(cls)

    def worst(self, dim: int) -> np.ndarray | None:
        """(dim,) float64, the input that loses most; ones where every x does alike; None where none is known."""
        return np.ones(dim) if self.equality else None

    def attained(self, dim: int) -> bool:
        """Whether `worst(dim)` attains the constant, to rounding or to within 1e-6 where it is a supremum."""
        return self.equality

    def outcomes(self, x: np.ndarray) -> Outcomes | None:
        """All that may arrive of x, with its probability, so that expectations are sums; None where they are many."""
        return None


class Compressor(Sharp, abc.ABC):
    """A contractive compressor: E|C(x) - x|^2 <= (1 - alpha) |x|^2 for every x, 0 < alpha <= 1 (theory.md 1.1).

    An own one is a `module` with two methods, the call and `alpha`. `nonexpansive` promises |C(x)| <= |x|, which
    sharpens the bidirectional theory. With `shares_randomness` the call takes `common=, round=, worker=, workers=` as
    keywords. `worst` and `attained` say where alpha cannot be improved.
    """

    nonexpansive: bool = False
    shares_randomness: bool = False

    @abc.abstractmethod
    def __call__(self, key: jax.Array, x: jax.Array) -> Message:
        """Compress x, (d,)."""

    @abc.abstractmethod
    def alpha(self, dim: int) -> float:
        """The contraction constant on R^dim."""


class Unbiased(Sharp, abc.ABC):
    """E Q(x) = x and E|Q(x) - x|^2 <= omega |x|^2 for every x. `Shrunk(Q)` makes it a `Compressor`.

    `shares_randomness`, `worst` and `attained` as there.
    """

    shares_randomness: bool = False

    @abc.abstractmethod
    def __call__(self, key: jax.Array, x: jax.Array) -> Message:
        """Compress x, (d,)."""

    @abc.abstractmethod
    def omega(self, dim: int) -> float:
        """The variance constant on R^dim."""


class Coded(abc.ABC):
    """A compressor whose messages have an exact byte format, which `adacgd.wire` writes and reads.

    The value of a message is what its format rebuilds of its numbers, bit for bit, and its cost is their price.
    `verbatim`: the value is x itself on the coordinates that travel and +0 elsewhere, so that a receiver that holds h
    can be given those coordinates of x and rounds nothing.
    """

    verbatim: bool = False

    @abc.abstractmethod
    def format(self, dim: int, float_width: int) -> Format:
        """The layout of a message of so many coordinates; of those that share randomness, told `workers=`."""

    @abc.abstractmethod
    def numbers(self, key: jax.Array, x: jax.Array, **shared: Any) -> tuple[np.ndarray, ...]:
        """What travels of x, host arrays in the order of `format(dim, float_width).fields(dim)`."""


class Stateful(abc.ABC):
    """A compressor with a memory: `init(key, dim)` makes its state, `step(state, x)` a message and the next state.

    What it loses depends on what it sent before, so that no constant holds for all states: it is no `Compressor`, and
    what relies on a constant refuses it by `refuse_state`. `adacgd.wire.encode(..., state=)` writes its messages.
    """

    @abc.abstractmethod
    def init(self, key: jax.Array, dim: int, dtype: Any = None) -> jax.Array:
        """The state before the first message."""

    @abc.abstractmethod
    def step(self, state: jax.Array, x: jax.Array) -> tuple[Message, jax.Array]:
        """The message of x, (d,), and the state of the next one."""

    @abc.abstractmethod
    def send(self, state: jax.Array, x: jax.Array) -> tuple[jax.Array, ...]:
        """The numbers of that message, in the order of `format(dim, float_width).fields(dim)`."""

    @abc.abstractmethod
    def format(self, dim: int, float_width: int) -> Format:
        """The layout of a message of so many coordinates."""

    @abc.abstractmethod
    def fresh(self) -> str:
        """The call that makes its like without a state."""


def refuse_state(place: str, part: Any) -> None:
    """Raises TypeError where a `Stateful` stands for something with a constant."""
    if isinstance(part, Stateful):
        raise TypeError(
            f"{place}: {part!r} keeps a state between messages and has no uniform constant, so no mechanism, simulate "
            f"or certify takes it; use {part.fresh()}, which starts afresh, or call its `init` and `step` in a loop of "
            "your own."
        )


def brief(self: Any) -> str:
    """A `__repr__` that stays short in legends and errors: the call that makes it, less options at their defaults."""
    values = [(f.name, getattr(self, f.name), f.default) for f in dataclasses.fields(self)]
    shown = [
        f"{name}={v!r}" for name, v, default in values if default is dataclasses.MISSING or not _plainly(v, default)
    ]
    return f"{type(self).__name__}({', '.join(shown)})"


def _plainly(value: Any, default: Any) -> bool:
    """Whether an option is at its default; an array never is."""
    return type(value) is type(default) and value == default


def fetch(*arrays: Any) -> tuple[np.ndarray, ...]:
    """Off the device."""
    return tuple(np.asarray(a) for a in jax.device_get(arrays))


def sq(v: jax.Array) -> jax.Array:
    """|v|^2 along the last axis."""
    return jnp.sum(v * v, axis=-1)


def settled(v: jax.Array) -> jax.Array:
    """v, with +0 for -0: a selection that keeps a compiler from contracting a product into the sum that follows it.

    Without it eager, compiled and mapped programs differ in the last bit.
    """
    return jnp.where(v != 0, v, 0)


def total_of(v: jax.Array) -> jax.Array:
    """Sum of (d,) by halves, in one fixed order: the same bits in every program, and an error of log2 d roundings."""
    v = settled(v)
    while v.shape[0] > 1:
        half = (v.shape[0] + 1) // 2
        v = v[:half] + jnp.pad(v[half:], (0, 2 * half - v.shape[0]))
    return v[0]


def working(x: jax.Array) -> jax.Array:
    """x in the precision to compute in: float16 in float32, others in their own."""
    return x.astype(jnp.float32) if x.dtype.itemsize == 2 else x


def norm_of(x: jax.Array) -> jax.Array:
    """|x| of (d,), the same bits in every program, scaled by a power of two so that no square leaves the range."""
    info = jnp.finfo(x.dtype)
    word = jnp.uint32 if info.bits == 32 else jnp.uint64
    bits = jax.lax.bitcast_convert_type(jnp.max(jnp.abs(x)), word) >> info.nmant << info.nmant
    power = jax.lax.bitcast_convert_type(bits, x.dtype)  # 2^e of the largest entry
    power = jnp.where(power > 0, jnp.minimum(power, info.max / 8), 1)
    scaled = x * (1 / power)
    return power * jnp.sqrt(total_of(scaled * scaled))


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


def shared_with(part: Any, shared: dict[str, Any], index: int | None = None) -> dict[str, Any]:
    """The shared randomness as a part takes it: nothing where it asks for none; part `index` of several draws apart."""
    if not part.shares_randomness:
        return {}
    if index is None or "common" not in shared:
        return shared
    return {**shared, "common": jax.random.fold_in(shared["common"], index)}


def level_index(j: int, levels: int) -> int | None:
    """The `index` of `shared_with` for level j of so many; a level that is alone takes the common key as it is."""
    return j if levels > 1 else None


MOST_OUTCOMES = 4096


def product_outcomes(chance: np.ndarray, low: np.ndarray, high: np.ndarray) -> Outcomes | None:
    """All outcomes where each coordinate is `high` with its own chance, (d,), else `low`; None where they are many."""
    dim = low.size
    if 2**dim > MOST_OUTCOMES:
        return None
    up = (np.arange(2**dim)[:, None] >> np.arange(dim)) & 1 == 1
    return np.prod(np.where(up, chance, 1 - chance), axis=1), np.where(up, high, low)


def no_constant(owner: Any, why: str) -> NoReturn:
    """Refuse to name a constant that there is not. Raises ValueError."""
    raise ValueError(f"{owner!r} has no uniform contraction constant: {why}.")


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
    refuse_state(f"{owner}({name}=...)", part)
    if isinstance(part, type):
        raise TypeError(f"{owner}({name}=...) takes an object, got the class {part.__name__}; call it first.")
    if isinstance(part, str | bytes | list | tuple | dict | set):
        raise TypeError(f"{owner}({name}=...) must be a Compressor, got {type(part).__name__} {part!r}.")


class NoFormat(TypeError):
    """It has no byte format, so that its price is taken as claimed."""


def no_bytes(mechanism: Any) -> NoReturn:
    """Refuse to write what does not say what it sends. Raises NoFormat."""
    raise NoFormat(f"{type(mechanism).__name__} has no byte format; give it a method `sends` (docs/wire.md).")


def format_of(part: Any, dim: int, float_width: int, workers: int | None = None) -> Format:
    """`part.format(...)`, told the number of workers where the part shares randomness. Raises NoFormat."""
    if isinstance(part, type):
        raise TypeError(f"a message is sent by an object, got the class {part.__name__}; call it first.")
    if not isinstance(part, Coded):
        raise NoFormat(f"{type(part).__name__} has no byte format; make it a Coded with `format` and `numbers`.")
    told = {"workers": workers} if getattr(part, "shares_randomness", False) else {}
    return part.format(dim, float_width, **told)


def alpha_of(part: Compressor, dim: int, workers: int | None = None) -> float:
    """`part.alpha(dim)`, told the number of workers where the part shares randomness."""
    if not isinstance(part, Compressor):
        raise TypeError(f"a Compressor is wanted here, got {type(part).__name__} {part!r}.")
    told = {"workers": workers} if part.shares_randomness else {}
    value = number(part, "alpha", dim, part.alpha(dim, **told))
    if not 0 < value <= 1:
        raise ValueError(f"{part!r}.alpha({dim}) must lie in (0, 1], got {value}.")
    return value


def omega_of(part: Unbiased, dim: int, workers: int | None = None) -> float:
    """`part.omega(dim)`, told the number of workers where the part shares randomness."""
    if not isinstance(part, Unbiased):
        raise TypeError(f"an Unbiased compressor is wanted here, got {type(part).__name__} {part!r}.")
    told = {"workers": workers} if part.shares_randomness else {}
    value = number(part, "omega", dim, part.omega(dim, **told))
    if not (value >= 0 and math.isfinite(value)):
        raise ValueError(f"{part!r}.omega({dim}) must be finite and at least 0, got {value}.")
    return value
