"""Hypernetworks, their rivals, and what is needed to train and keep them."""

from weightloom.hyper.adapters import Adapter, combine, fit_adapters
from weightloom.hyper.coordinates import coordinate_network
from weightloom.hyper.diagnosis import Diagnosis, diagnose
from weightloom.hyper.encoders import Features, SetEncoder
from weightloom.hyper.equal_size import (
    MatchedModels,
    count_parameters,
    matched_models,
    matched_pair,
)
from weightloom.hyper.film import FiLMNetwork
from weightloom.hyper.fully_connected import mlp
from weightloom.hyper.heads import (
    AdapterHead,
    ChunkedHead,
    DeltaHead,
    FullHead,
    Head,
    LowRankHead,
    PerLayerHead,
)
from weightloom.hyper.hypernetwork import HyperNetwork
from weightloom.hyper.rivals import ConditionalNeuralProcess, EmbeddingNetwork
from weightloom.hyper.rows import CallPlan, shared
from weightloom.hyper.saving import export, load

__all__ = [
    # ways to condition a network: all weights, features, or one more input
    "HyperNetwork",
    "FiLMNetwork",
    "EmbeddingNetwork",
    "ConditionalNeuralProcess",
    # parts
    "mlp",
    "coordinate_network",
    "SetEncoder",
    "Features",
    # heads: how the weights are written
    "Head",
    "FullHead",
    "LowRankHead",
    "ChunkedHead",
    "PerLayerHead",
    "DeltaHead",
    "AdapterHead",
    # adapters: a low-rank change of a given network
    "Adapter",
    "combine",
    "fit_adapters",
    # one set of weights for all rows
    "shared",
    # how large
    "count_parameters",
    "matched_pair",
    "matched_models",
    "MatchedModels",
    # looking inside
    "diagnose",
    "Diagnosis",
    "CallPlan",
    # keeping
    "export",
    "load",
]
