"""Communication-compressed distributed optimisation: compressors, mechanisms, adaptive selection, one loop, theory.

problem = problems.logistic(problems.load("breast_cancer"), workers=20)
uplink = ac.AdaCGD([ac.TopK(1), ac.TopK(4), ac.TopK(15)], zeta=1.0)
gamma = ac.theory.stepsize(problem.smoothness, uplink.constants(problem.dim))
trace = ac.simulate(problem, uplink, stepsize=gamma, rounds=1000)
"""

from adacgd import theory, wire
from adacgd.adaptive import AdaCGD
from adacgd.certify import Certificate, certify
from adacgd.compressors import (
    QSGD,
    AdaptiveRandom,
    BiasedRandom,
    BlockTopK,
    Coded,
    Composed,
    Compressor,
    ContractivePermK,
    ContractiveRandK,
    Draw,
    FixedPoint,
    FloatCast,
    HardThreshold,
    Identity,
    Induced,
    LowRank,
    MaxDithering,
    MaxRounding,
    Message,
    MixK,
    Natural,
    NaturalDithering,
    OnSupport,
    Participation,
    PermK,
    PowerSGD,
    PowerSGDWarm,
    RandK,
    RelativeThreshold,
    Residual,
    Shrunk,
    Sign,
    TernGrad,
    TopK,
    Unbiased,
)
from adacgd.cost import Cost
from adacgd.energy import Energy
from adacgd.estimators import Estimator
from adacgd.feedback import DCGD, DIANA, EF14, EControl
from adacgd.grid import Grid, sweep
from adacgd.host import simulate
from adacgd.lazy import LAQ, LAGServer, LAGWorker
from adacgd.marina import MARINA
from adacgd.mechanisms import AB, CLAG, EF21, GD, LAG, ThreePoint
from adacgd.module import module, static
from adacgd.oracles import PAGE, Minibatch, Momentum, Oracle
from adacgd.participation import Sampled
from adacgd.stability import Edge, stability_edge
from adacgd.three_point import (
    Ada3PC,
    EF21Plus,
    ThreePCv1,
    ThreePCv2,
    ThreePCv3,
    ThreePCv4,
    ThreePCv5,
)
from adacgd.trace import Trace

__version__ = "0.1.0"

__all__ = [
    "AB",
    "CLAG",
    "DCGD",
    "DIANA",
    "EF14",
    "EF21",
    "GD",
    "LAG",
    "LAQ",
    "MARINA",
    "PAGE",
    "QSGD",
    "Ada3PC",
    "AdaCGD",
    "AdaptiveRandom",
    "BiasedRandom",
    "BlockTopK",
    "Certificate",
    "Coded",
    "Composed",
    "Compressor",
    "ContractivePermK",
    "ContractiveRandK",
    "Cost",
    "Draw",
    "EControl",
    "EF21Plus",
    "Edge",
    "Energy",
    "Estimator",
    "FixedPoint",
    "FloatCast",
    "Grid",
    "HardThreshold",
    "Identity",
    "Induced",
    "LAGServer",
    "LAGWorker",
    "LowRank",
    "MaxDithering",
    "MaxRounding",
    "Message",
    "Minibatch",
    "MixK",
    "Momentum",
    "Natural",
    "NaturalDithering",
    "OnSupport",
    "Oracle",
    "Participation",
    "PermK",
    "PowerSGD",
    "PowerSGDWarm",
    "RandK",
    "RelativeThreshold",
    "Residual",
    "Sampled",
    "Shrunk",
    "Sign",
    "TernGrad",
    "ThreePCv1",
    "ThreePCv2",
    "ThreePCv3",
    "ThreePCv4",
    "ThreePCv5",
    "ThreePoint",
    "TopK",
    "Trace",
    "Unbiased",
    "certify",
    "module",
    "simulate",
    "stability_edge",
    "static",
    "sweep",
    "theory",
    "wire",
]
