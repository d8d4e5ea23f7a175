"""What a compressor refuses to be called with, in words that name it, the argument, the rule, the value, the remedy."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from zoo import NO_CONSTANT, zoo

import adacgd as ac
from adacgd.compressors.base import alpha_of, omega_of

KEY, X = jax.random.key(0), jnp.arange(20.0)


@ac.module
class Own(ac.Compressor):
    """Knows nothing of the checks."""

    k: int = ac.static()
    claims: str = ac.static(default="1/d")

    def __call__(self, key, x):
        return ac.Message(jnp.where(jax.random.permutation(key, x.size) < self.k, x, 0), ac.Cost(self.k))

    def alpha(self, dim):
        return self.claims


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (
            lambda: ac.RandK(2)(7, X),
            TypeError,
            "RandK(k=2)(key=...) must be a JAX key, got the integer 7; pass jax.random",
        ),
        (lambda: Own(2)(7, X), TypeError, "Own(k=2, claims='1/d')(key=...) must be a JAX key, got the integer 7"),
        (
            lambda: ac.TopK(2)(KEY, [1.0, 2.0, 3.0]),
            TypeError,
            "TopK(k=2)(x=...) must be a (d,) array, got list [1.0, 2",
        ),
        (
            lambda: ac.Sign()(KEY, jnp.ones((2, 3))),
            ValueError,
            "Sign()(x=...) must be a vector (d,), got shape (2, 3); f",
        ),
        (
            lambda: ac.TopK(2)(KEY, X * 1j),
            TypeError,
            "(x=...) must hold real floats, got complex128; compress real and",
        ),
        (lambda: ac.TopK(2)(KEY, jnp.arange(3)), TypeError, "(x=...) must hold real floats, got int64; cast it"),
        (
            lambda: ac.TopK(2).alpha(0),
            ValueError,
            "TopK(k=2).alpha(dim=...) must be an integer of at least 1, got 0; p",
        ),
        (
            lambda: ac.TopK(2).alpha(2.5),
            ValueError,
            "TopK(k=2).alpha(dim=...) must be an integer of at least 1, got 2.5",
        ),
        (
            lambda: ac.RandK(2).omega(True),
            ValueError,
            "RandK(k=2).omega(dim=...) must be an integer of at least 1, got T",
        ),
        (lambda: alpha_of(Own(2), 5), TypeError, ".alpha(5) must return one number, got str '1/d'"),
        (lambda: ac.EF21(Own(2)).constants(5), TypeError, ".alpha(5) must return one number, got str '1/d'"),
    ],
)
def test_a_call_is_refused_in_words(call, error, words):
    with pytest.raises(error, match=re.escape(words)):
        call()


@pytest.mark.parametrize("worker", [-1, 4, np.int32(7), jnp.int32(4)])
def test_a_worker_that_is_not_there(worker):
    for perm in (ac.PermK(), ac.ContractivePermK()):
        with pytest.raises(
            ValueError, match=re.escape("PermK()(worker=...) must be one of 0, ..., workers - 1 = 3, got")
        ):
            perm(KEY, X, common=KEY, worker=worker, workers=4)
    with pytest.raises(TypeError, match=re.escape("PermK()(common=...) must be a JAX key, got the integer 3")):
        ac.PermK()(KEY, X, common=3, worker=0, workers=4)


def test_the_whole_zoo_is_checked_and_an_error_of_its_own_code_comes_through():
    for name, target in zoo(12).items():
        with pytest.raises(ValueError, match="must be a vector"):
            target(KEY, jnp.ones((3, 4)))
        if name not in NO_CONSTANT:
            with pytest.raises(ValueError, match="must be an integer of at least 1"):
                (omega_of if isinstance(target, ac.Unbiased) else alpha_of)(target, 0, 4)
    with pytest.raises(TypeError, match=r"unsupported operand|not supported"):
        Own("2")(KEY, X)
