"""weightloom: networks whose weights are written by other networks.

Importing this package imports nothing else. Folders and names are loaded when they are first used.

>>> import weightloom as wl
>>> hyper = wl.HyperNetwork(wl.mlp([2, 16, 1]), wl.mlp([5, 8], last_activation=True))
>>> hyper.spec.size
65
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from weightloom import (
        bounds,
        construct,
        data,
        demo,
        errors,
        hyper,
        kernels,
        linalg,
        networks,
        symmetry,
        training,
        web,
    )
    from weightloom.hyper import (
        Adapter,
        AdapterHead,
        CallPlan,
        ChunkedHead,
        ConditionalNeuralProcess,
        DeltaHead,
        Diagnosis,
        EmbeddingNetwork,
        Features,
        FiLMNetwork,
        FullHead,
        Head,
        HyperNetwork,
        LowRankHead,
        MatchedModels,
        PerLayerHead,
        SetEncoder,
        combine,
        coordinate_network,
        count_parameters,
        diagnose,
        export,
        fit_adapters,
        load,
        matched_models,
        matched_pair,
        mlp,
        shared,
    )
    from weightloom.networks import WeightSpec
    from weightloom.training import (
        LearnedConditions,
        SampledCondition,
        output_regulariser,
        sample_networks,
    )

__version__ = "0.1.0"

# Written out for type checkers. A test compares it with the lists of the folders.
__all__ = [
    "__version__",
    # networks that take a condition
    "HyperNetwork",
    "FiLMNetwork",
    "EmbeddingNetwork",
    "ConditionalNeuralProcess",
    # parts
    "mlp",
    "coordinate_network",
    "SetEncoder",
    "Features",
    # heads: how weights are generated
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
    # which weights are generated
    "WeightSpec",
    "shared",
    # sizes
    "count_parameters",
    "matched_pair",
    "matched_models",
    "MatchedModels",
    # diagnosis
    "diagnose",
    "Diagnosis",
    "CallPlan",
    # saving
    "export",
    "load",
    # conditions that are learned or sampled, and tasks one after another
    "LearnedConditions",
    "SampledCondition",
    "sample_networks",
    "output_regulariser",
    # folders
    "networks",
    "linalg",
    "hyper",
    "kernels",
    "symmetry",
    "bounds",
    "construct",
    "data",
    "training",
    "demo",
    "web",
    "errors",
]

_FOLDERS = frozenset(
    {
        "bounds", "construct", "data", "demo", "errors", "hyper", "kernels", "linalg", "networks",
        "symmetry", "training", "web",
    }
)  # fmt: skip
#: Names that are not in hyper.
_ELSEWHERE = {
    "WeightSpec": "networks",
    "LearnedConditions": "training",
    "SampledCondition": "training",
    "sample_networks": "training",
    "output_regulariser": "training",
}


if not TYPE_CHECKING:  # with this a type checker would accept any name

    def __getattr__(name: str) -> Any:
        if name in _FOLDERS:
            return import_module(f"weightloom.{name}")
        if name not in __all__:
            raise AttributeError(f"module 'weightloom' has no attribute {name!r}")
        folder = import_module(f"weightloom.{_ELSEWHERE.get(name, 'hyper')}")
        value = globals()[name] = getattr(folder, name)
        return value


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
