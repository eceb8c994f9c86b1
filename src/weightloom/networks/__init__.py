"""What a network is: its weights, its graph, its layers and its activations.

Every other folder reads networks through this one:

- `WeightSpec` gives names, shapes and order of the parameters that are generated;
- `trace` turns a module into a `Graph` of calls, and `chain` into a list of layers;
- `operations_of` runs it on an example input and gives the graph of its tensor operations, for any
  module that `torch.export` can follow; `difference` compares two of them;
- `layers` groups the classes of torch.nn by what they do;
- `activations` has one table with every fact about each activation. `register` adds a row.

>>> from torch import nn
>>> [node.target for node in trace(nn.Sequential(nn.Linear(2, 3), nn.Tanh())).calls()]
['0', '1']
>>> lookup(nn.Tanh()).kind
<Kind.SIGN: 'sign'>
"""

from weightloom.networks import activations, layers
from weightloom.networks.activations import Activation, Kind, lookup, register
from weightloom.networks.comparison import difference, structure
from weightloom.networks.examples import ExampleCall, example_call
from weightloom.networks.exporting import evaluate, operations_of
from weightloom.networks.finiteness import require_finite
from weightloom.networks.graph import Graph, Node, NodeKind, trace
from weightloom.networks.specs import WeightSpec
from weightloom.networks.straight import FunctionLayer, chain

__all__ = [
    # weights: names, shapes and order of what is generated
    "WeightSpec",
    # the reader: a module as a graph of calls, or as a chain of layers
    "trace",
    "Graph",
    "Node",
    "NodeKind",
    "chain",
    "FunctionLayer",
    # weights that can be worked with
    "require_finite",
    # the operations that a module computes on an example input, and how two modules differ in them
    "operations_of",
    "evaluate",
    "difference",
    "structure",
    "example_call",
    "ExampleCall",
    # layer kinds: the classes of torch.nn by what they do
    "layers",
    # activations: one table with every fact about each
    "activations",
    "Activation",
    "Kind",
    "lookup",
    "register",
]
