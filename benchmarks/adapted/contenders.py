"""Who takes part. All have the same hypernetwork; they differ in how they use what it writes."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import weightloom as wl
from adapted.handwritten import BatchedLinear, FusedLinear, adapted, place
from adapted.mixed import MixedBatch
from adapted.reference import STEPS, Reference, outputs_of_rows
from adapted.settings import RATE, SHORT_NEW, Start

__all__ = ["HAND", "MANY", "PEFT", "Adapting", "Bound", "check", "make"]

OURS, HAND, PEFT = "weightloom", "hand-written", "PEFT"
MANY = 16  # conditions beyond which some things are left out that would take many gigabytes


class Adapting:
    """One way to run a network for many conditions at once."""

    family: str
    name: str
    kinds: tuple[str, ...] = ("forward", "step", "decode")
    lean = False
    """whether a step has few operations: the profiler keeps gigabytes for a hundred thousand"""
    net: Any = None

    def __init__(self, start: Start) -> None:
        self.start = start
        frozen = {id(t): t for t in (*start.base.parameters(), *start.base.buffers())}
        frozen |= {id(t): t for t in (*start.hyper.primary.parameters(), *start.hyper.buffers())}
        self.hyper: wl.HyperNetwork = copy.deepcopy(start.hyper, frozen)
        learned = [p for p in self.hyper.parameters() if p.requires_grad]
        self.optimizer = torch.optim.SGD(learned, lr=RATE)

    @property
    def label(self) -> str:
        return f"{self.family}: {self.name}" if self.name else self.family

    def write(self) -> None:
        """Make the adapters of all conditions and put them in place, for `logits` and `decode`."""

    def release(self) -> None:
        """Let go of the adapters: nobody starts a step with those of the step before."""

    def logits(self, ids: Tensor) -> Tensor:
        raise NotImplementedError

    def decode(self, prompt: Tensor, new: int) -> Tensor:
        """The prompt and ``new`` tokens more, greedily, with a cache."""
        raise NotImplementedError

    def backward(self, ids: Tensor) -> None:
        """Write adapters, forward, loss; gradients of what is learned."""
        raise NotImplementedError

    def step(self, ids: Tensor | None = None) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        self.backward(self.start.ids if ids is None else ids)
        self.optimizer.step()
        self.release()

    def rest(self) -> None:
        """Give gradients back, so that a waiting contender holds no memory but its parameters."""
        self.optimizer.zero_grad(set_to_none=True)

    def action(self, kind: str, new: int) -> Callable[[], object]:
        actions: dict[str, Callable[[], object]] = {
            "forward": torch.no_grad()(lambda: self.logits(self.start.ids)),
            "step": self.step,
            "decode": lambda: self.decode(self.start.prompt, new),
        }
        return actions[kind]

    def generated(self) -> dict[str, Any]:
        return self.hyper.head.generate(
            self.hyper.scaled(self.hyper.encoder(self.start.conditions))
        )


def greedy(model: Any, prompt: Tensor, new: int, **options: Any) -> Tensor:
    return model.generate(
        input_ids=prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=new,
        do_sample=False, pad_token_id=0, **options,
    )  # fmt: skip


def loss_of(model: Any, ids: Tensor, **options: Any) -> Tensor:
    return model(input_ids=ids, labels=ids, use_cache=False, **options).loss


class BaseAlone(Adapting):
    """No adapters. Its step is a backward pass to the embeddings: no way to adapt needs less."""

    family, name, lean = "base model", "", True

    def logits(self, ids: Tensor) -> Tensor:
        return self.start.base(input_ids=ids).logits

    def decode(self, prompt: Tensor, new: int) -> Tensor:
        return greedy(self.start.base, prompt, new)

    def backward(self, ids: Tensor) -> None:
        base: Any = self.start.base
        embedded = base.get_input_embeddings()(ids).requires_grad_(True)
        base(inputs_embeds=embedded, labels=ids, use_cache=False).loss.backward()


class Bound(Adapting):
    family, name, lean = OURS, "hyper.bind(conditions)", True

    @torch.no_grad()
    def write(self) -> None:
        self.net = self.hyper.bind(self.start.conditions)

    def release(self) -> None:
        self.net = None

    def logits(self, ids: Tensor) -> Tensor:
        return self.net(input_ids=ids).logits

    def decode(self, prompt: Tensor, new: int) -> Tensor:
        return greedy(self.net, prompt, new)

    def backward(self, ids: Tensor) -> None:
        loss_of(self.hyper.bind(self.start.conditions), ids).backward()


class Rowwise(Adapting):
    """Writes its adapters in every call."""

    family, name = OURS, "hyper(x, conditions)"
    kinds = ("forward", "step")

    def logits(self, ids: Tensor) -> Tensor:
        output = self.hyper(
            input_ids=ids.unsqueeze(1), condition=self.start.conditions, use_cache=False
        )
        return output.logits.squeeze(1)

    def backward(self, ids: Tensor) -> None:
        rows = ids.unsqueeze(1)
        output = self.hyper(
            input_ids=rows, labels=rows, condition=self.start.conditions, use_cache=False
        )
        output.loss.mean().backward()


class HandWritten(Adapting):
    family, name, lean = HAND, "baddbmm", True
    layer: type[BatchedLinear] = BatchedLinear

    def __init__(self, start: Start) -> None:
        super().__init__(start)
        self.model = adapted(start.base, list(self.hyper.spec), self.layer)
        self.layers = [part for part in self.model.modules() if isinstance(part, BatchedLinear)]

    @torch.no_grad()
    def write(self) -> None:
        place(self.model, self.start.base, self.generated())

    def release(self) -> None:
        for layer in self.layers:
            layer.A = layer.B = None

    def logits(self, ids: Tensor) -> Tensor:
        return self.model(input_ids=ids).logits

    def decode(self, prompt: Tensor, new: int) -> Tensor:
        return greedy(self.model, prompt, new)

    def backward(self, ids: Tensor) -> None:
        place(self.model, self.start.base, self.generated())
        loss_of(self.model, ids).backward()


class Fused(HandWritten):
    """Differs from `HandWritten` in a step only."""

    name, kinds, layer = "baddbmm, own backward", ("step",), FusedLinear


class Mixed(Adapting):
    family, name = PEFT, "adapter_names="

    def __init__(self, start: Start) -> None:
        super().__init__(start)
        self.mixed = MixedBatch(start.setting, start.base)

    @torch.no_grad()
    def write(self) -> None:
        self.mixed.place(self.generated())

    def release(self) -> None:
        self.mixed.release()

    def logits(self, ids: Tensor) -> Tensor:
        return self.mixed.model(input_ids=ids, adapter_names=self.mixed.names).logits

    def decode(self, prompt: Tensor, new: int) -> Tensor:
        return greedy(self.mixed.model, prompt, new, adapter_names=self.mixed.names)

    def backward(self, ids: Tensor) -> None:
        self.mixed.place(self.generated())
        self.mixed.backward(loss_of(self.mixed.model, ids, adapter_names=self.mixed.names))


class OneByOne(Adapting):
    """A network for each condition; a step writes each one's matrices and calls the base."""

    family, name = "one by one", "materialized networks"

    @torch.no_grad()
    def write(self) -> None:
        self.nets: list[Any] = [self.hyper.materialize(c) for c in self.start.conditions]

    def release(self) -> None:
        self.nets = []

    def logits(self, ids: Tensor) -> Tensor:
        rows = zip(self.nets, ids.split(1), strict=True)
        return torch.cat([net(input_ids=row).logits for net, row in rows])

    def decode(self, prompt: Tensor, new: int) -> Tensor:
        rows = zip(self.nets, prompt.split(1), strict=True)
        return torch.cat([greedy(net, row, new) for net, row in rows])

    def backward(self, ids: Tensor) -> None:
        rows = outputs_of_rows(self.start.base, self.generated(), ids)
        torch.stack([row.loss for row in rows]).mean().backward()


def make(start: Start) -> list[Adapting]:
    """All contenders of a setting, ready to be checked."""
    kinds: list[type[Adapting]] = [BaseAlone, Bound, HandWritten, Fused, Mixed, Rowwise]
    if start.setting.conditions <= MANY:
        kinds.append(OneByOne)
    return [kind(start) for kind in kinds]


# -- are they right? ----------------------------------------------------------------------------

TOLERANCE = 2e-3  # of the scale of what is compared: single precision, with room


def check(contender: Adapting, answer: Reference) -> str:
    """What was verified, in words; ValueError if anything is not as in the reference."""
    if isinstance(contender, BaseAlone):
        return "no adapters"
    short, kinds = contender.start.short, contender.kinds
    contender.write()
    before = _logits(contender, short)
    errors = {"outputs": _error(before, answer.before, answer.scale, "outputs")}
    if "decode" in kinds:
        lost = answer.shortfall(contender.decode(short, SHORT_NEW))
        errors["decoded tokens"] = _within(lost, "decoded tokens")
    if "step" in kinds:
        for _ in range(STEPS):
            contender.step(short)
        contender.write()
        # On its own scale: a wrong gradient cannot hide behind the outputs.
        change, scale = _logits(contender, short) - before, float(answer.change.std())
        errors["change by training"] = _error(change, answer.change, scale, "change", 20)
        contender.hyper.load_state_dict(contender.start.hyper.state_dict())
        contender.write()
    contender.rest()
    return ", ".join(f"{what} to {error:.0e}" for what, error in errors.items())


@torch.no_grad()
def _logits(contender: Adapting, ids: Tensor) -> Tensor:
    return contender.logits(ids)


def _error(seen: Tensor, wanted: Tensor, scale: float, what: str, slack: float = 1.0) -> float:
    if seen.shape != wanted.shape:
        raise ValueError(f"{what} of shape {tuple(seen.shape)}, wanted {tuple(wanted.shape)}")
    return _within(float((seen.double() - wanted).abs().max()) / scale, what, slack)


def _within(error: float, what: str, slack: float = 1.0) -> float:
    if not error < TOLERANCE * slack:
        raise ValueError(f"{what} differ from the reference by {error:.1e} of their scale")
    return error
