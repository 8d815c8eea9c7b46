"""The five ingredients of every policy, for custom policies: `Composed(kernel, …, score=LogEI())`.

A policy consists of a posterior (exact, or from the features of a `FeatureMap`), a `Memory`, a `Score`, a width of
`torchbandits.widths` and a `BatchRule`. Rules for first picks are in `torchbandits.starts`. A new combination has no guarantee.
"""

from torchbandits.batching import (
    BatchRule,
    ExactRatio,
    FixedSize,
    Global,
    GlobalThenLocal,
    Local,
    Product,
    RandomizedBeliever,
    Repeat,
)
from torchbandits.embeddings import FeatureMap, FiniteEmbedding, GaussianProjection, Identity, QuadratureFourier, RandomFourier
from torchbandits.memory import EntropyThreshold, FrequentDirections, KeepAll, LeverageSampling, Memory
from torchbandits.policies.composed import Composed
from torchbandits.policies.from_data import FromData, Priors
from torchbandits.policies.reweighting import Discount, Huber, Restart, Reweighting, Window
from torchbandits.scores import UCB, LogEI, LogPI, MostProbable, PerCost, PosteriorDraw, Score, Straddle, TopBoundary

__all__ = [
    "UCB",
    "BatchRule",
    "Composed",
    "Discount",
    "EntropyThreshold",
    "ExactRatio",
    "FeatureMap",
    "FiniteEmbedding",
    "FixedSize",
    "FrequentDirections",
    "FromData",
    "GaussianProjection",
    "Global",
    "GlobalThenLocal",
    "Huber",
    "Identity",
    "KeepAll",
    "LeverageSampling",
    "Local",
    "LogEI",
    "LogPI",
    "Memory",
    "MostProbable",
    "PerCost",
    "PosteriorDraw",
    "Priors",
    "Product",
    "QuadratureFourier",
    "RandomFourier",
    "RandomizedBeliever",
    "Repeat",
    "Restart",
    "Reweighting",
    "Score",
    "Straddle",
    "TopBoundary",
    "Window",
]
