"""PyTorch's own way: write the weights, then functional_call under vmap."""

from __future__ import annotations

from torch import Tensor, nn
from torch.func import functional_call, vmap
from workloads import Start, Workload

from contenders.base import Contender
from contenders.written import WrittenWeights

__all__ = ["contenders"]


class Vmapped(WrittenWeights):
    def __init__(self, workload: Workload, start: Start) -> None:
        super().__init__(workload, start)
        self.primary = [workload.make_primary()]  # in a list: its own weights are not trained
        self.names = list(start.shapes)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        def call_primary(weights: dict[str, Tensor], x: Tensor) -> Tensor:
            return functional_call(self.primary[0], weights, (x,))

        weights = dict(zip(self.names, self.weights(condition), strict=True))
        return vmap(call_primary)(weights, x)


class InPlace(Vmapped):
    """The same with nn.ReLU(inplace=True), which saves a pass over the activations."""

    def __init__(self, workload: Workload, start: Start) -> None:
        super().__init__(workload, start)
        for module in self.primary[0].modules():
            if isinstance(module, nn.ReLU):
                module.inplace = True


def contenders(key: str) -> list[Contender]:
    vmapped = Contender("functional_call + vmap", "torch.func", Vmapped).also_compiled()
    return [*vmapped, Contender("functional_call + vmap, in-place ReLU", "torch.func", InPlace)]
