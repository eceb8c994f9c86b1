"""Hypernetworks, their rivals, and what is needed to train and keep them."""

from weightloom.models.diagnose import diagnose
from weightloom.models.diagnosis import Diagnosis
from weightloom.models.embedding import ConditionalNeuralProcess, EmbeddingNetwork
from weightloom.models.encoders import SetEncoder
from weightloom.models.export import export, load
from weightloom.models.heads import (
    ChunkedHead,
    DeltaHead,
    FullHead,
    Head,
    LowRankHead,
    PerLayerHead,
)
from weightloom.models.hyper import HyperNetwork
from weightloom.models.mlp import mlp
from weightloom.models.plan import Plan
from weightloom.models.sizes import count_parameters, matched_pair

__all__ = [
    # the two ways to condition a network
    "HyperNetwork",
    "EmbeddingNetwork",
    "ConditionalNeuralProcess",
    # parts
    "mlp",
    "SetEncoder",
    # heads: how the weights are written
    "Head",
    "FullHead",
    "LowRankHead",
    "ChunkedHead",
    "PerLayerHead",
    "DeltaHead",
    # how large
    "count_parameters",
    "matched_pair",
    # looking inside
    "diagnose",
    "Diagnosis",
    "Plan",
    # keeping
    "export",
    "load",
]
