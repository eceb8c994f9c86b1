"""PEFT's mixed batch: many adapters in one model, and a name for each row."""

from __future__ import annotations

import copy

import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from adapted.handwritten import factors
from adapted.settings import Setting
from weightloom.hyper.rows import Generated

__all__ = ["MixedBatch"]


class MixedBatch:
    """The base with one PEFT adapter for each condition."""

    def __init__(self, setting: Setting, base: nn.Module) -> None:
        tensors = {id(t): t for t in (*base.parameters(), *base.buffers())}
        self.names = [f"adapter{i}" for i in range(setting.conditions)]
        config = LoraConfig(
            r=setting.rank,
            lora_alpha=setting.rank,
            target_modules=list(setting.targets),
            fan_in_fan_out=setting.model == "gpt2",
        )
        self.model = get_peft_model(copy.deepcopy(base, tensors), config, self.names[0])
        for name in self.names[1:]:
            self.model.add_adapter(name, config)
        self.model.eval()  # it refuses adapter_names= in training mode
        for name, parameter in self.model.named_parameters():
            parameter.requires_grad_("lora_" in name)  # of all adapters, not of the active one
        self.inner = self.model.get_base_model()
        self.pairs: list[tuple[nn.Parameter, Tensor]] = []
        """PEFT's parameters, and what the head wrote for them"""

    def place(self, generated: dict[str, Generated]) -> None:
        """Give every adapter its numbers, without a copy."""
        self.pairs = []
        for name, value in generated.items():
            layer = self.inner.get_submodule(name.removesuffix(".weight"))
            A, B = factors(value, isinstance(layer.base_layer, Conv1D))
            rows = zip(self.names, A.unbind(0), B.mT.unbind(0), strict=True)
            for adapter, down, up in rows:
                self.pairs.append((layer.lora_A[adapter].weight, down))
                self.pairs.append((layer.lora_B[adapter].weight, up))
        for parameter, tensor in self.pairs:
            parameter.data = tensor.detach()

    def release(self) -> None:
        for parameter, _ in self.pairs:
            parameter.data = parameter.data.new_empty(0)
        self.pairs = []

    def backward(self, loss: Tensor) -> None:
        """Gradients of PEFT's parameters, then through the head: PEFT takes leaves only."""
        loss.backward()
        torch.autograd.backward(
            [tensor for _, tensor in self.pairs], [parameter.grad for parameter, _ in self.pairs]
        )
        for parameter, _ in self.pairs:
            parameter.grad = None
