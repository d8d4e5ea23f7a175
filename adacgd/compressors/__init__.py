"""Compressors: what to send of a vector, what it costs, and how much of it is lost at worst."""

from adacgd.compressors.base import Compressor, Draw, Message, Unbiased, as_key, sq
from adacgd.compressors.combinators import Shrunk
from adacgd.compressors.quantisers import Sign
from adacgd.compressors.sparsifiers import ContractiveRandK, Identity, RandK, TopK

__all__ = [
    "Compressor",
    "ContractiveRandK",
    "Draw",
    "Identity",
    "Message",
    "RandK",
    "Shrunk",
    "Sign",
    "TopK",
    "Unbiased",
    "as_key",
    "sq",
]
