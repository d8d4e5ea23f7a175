"""Compressors: what to send of a vector, what it costs, and how much of it is lost at worst."""

from adacgd.compressors.base import Coded, Compressor, Draw, Message, Unbiased, as_key, sq
from adacgd.compressors.combinators import Composed, Induced, OnSupport, Participation, Residual, Shrunk
from adacgd.compressors.correlated import ContractivePermK, PermK
from adacgd.compressors.dithering import QSGD, MaxDithering, MaxRounding, NaturalDithering, TernGrad
from adacgd.compressors.low_rank import LowRank, PowerSGD, PowerSGDWarm
from adacgd.compressors.quantisers import FixedPoint, FloatCast, Natural, Sign
from adacgd.compressors.sparsifiers import BlockTopK, ContractiveRandK, Identity, MixK, RandK, TopK
from adacgd.compressors.thresholds import AdaptiveRandom, BiasedRandom, HardThreshold, RelativeThreshold

__all__ = [
    "QSGD",
    "AdaptiveRandom",
    "BiasedRandom",
    "BlockTopK",
    "Coded",
    "Composed",
    "Compressor",
    "ContractivePermK",
    "ContractiveRandK",
    "Draw",
    "FixedPoint",
    "FloatCast",
    "HardThreshold",
    "Identity",
    "Induced",
    "LowRank",
    "MaxDithering",
    "MaxRounding",
    "Message",
    "MixK",
    "Natural",
    "NaturalDithering",
    "OnSupport",
    "Participation",
    "PermK",
    "PowerSGD",
    "PowerSGDWarm",
    "RandK",
    "RelativeThreshold",
    "Residual",
    "Shrunk",
    "Sign",
    "TernGrad",
    "TopK",
    "Unbiased",
    "as_key",
    "sq",
]
