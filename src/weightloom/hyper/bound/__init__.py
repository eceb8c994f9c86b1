"""The primary with generated weights in place, called exactly as the primary is.

`Binding.network` copies the module tree (tensors are shared) and puts layers into it that know
which row of a batch has which weights. `Owners` says which: row i has condition i, or an index.
"""

from weightloom.hyper.bound.calls import Layout
from weightloom.hyper.bound.network import Binding
from weightloom.hyper.bound.owners import Owners

__all__ = ["Binding", "Layout", "Owners"]
