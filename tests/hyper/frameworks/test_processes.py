"""Data parallel and sharded training with two processes: the gradients of one process."""

import multiprocessing
import traceback
import warnings
from functools import partial
from typing import NamedTuple

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import weightloom as wl
from tests.hyper.frameworks.models import (
    TaskModel,
    adapted,
    learned,
    next_word,
    one_by_one,
    pairs,
    sentences,
    small,
)
from tests.hyper.frameworks.processes import in_two_processes, second_fails
from tests.oracle import close, loop
from weightloom.errors import UnsupportedModuleError

pytestmark = pytest.mark.slow

ROWS = 6
STEPS = 2


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """scenario -> its results in both processes: one start of two processes for all of them."""
    both = in_two_processes(every_scenario, tmp_path_factory.mktemp("processes"))

    def of(scenario):
        by_rank = [each[scenario.__name__] for each in both]
        for each in by_rank:
            assert not isinstance(each, Failed), each.reason
        return by_rank

    return of


class Failed(NamedTuple):
    reason: str


def every_scenario(rank):
    results = {}
    for scenario in (
        data_parallel,
        sharded_at_the_root,
        sharded_by_layer,
        sharded_with_other_rows,
        sharded_generation,
        sharded_in_half_precision,
        sharded_for_one_condition,
        sharded_and_mixing,
        sharded_and_needed_whole,
    ):
        try:
            results[scenario.__name__] = scenario(rank)
        except Exception:
            results[scenario.__name__] = Failed(traceback.format_exc())
        torch.distributed.barrier()
    return results


def share(batch, rank):
    """The rows of one process: the first or the second half."""
    half = ROWS // 2
    return {name: value[half * rank : half * (rank + 1)] for name, value in batch.items()}


def whole(value):
    """The tensor of which a process may hold a part only."""
    value = value.full_tensor() if hasattr(value, "full_tensor") else value
    return value.detach().clone()


def trained(model, parameters, loss_of):
    """Losses, and gradients and values of ``parameters``, in each of some steps of SGD."""
    optimizer = torch.optim.SGD(parameters.values(), lr=0.1)
    losses, gradients = [], []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(model)
        loss.backward()
        losses.append(loss.detach().clone())
        gradients.append({name: whole(p.grad) for name, p in parameters.items()})
        optimizer.step()
    return losses, gradients, {name: whole(p) for name, p in parameters.items()}


def compare(results, want):
    """The mean loss of the processes, their gradients and weights are those of one process."""
    losses, gradients, weights = want
    for step in range(STEPS):
        close(torch.stack([result[0][step] for result in results]).mean(), losses[step], 10)
    for result in results:
        assert result[2].keys() == weights.keys()
        for name, weight in weights.items():
            close(result[2][name], weight, 10)
            for step in range(STEPS):
                close(result[1][step][name], gradients[step][name], 50)


# -- what is trained ----------------------------------------------------------------------------


def task_loss(model, batch):
    return model(**batch, labels=batch["input_ids"])["loss"]


def pair_loss(model, x, condition):
    return model(x, condition).square().mean()


def rows_of_rank(rank, rows=ROWS):
    x, condition = pairs(rows)
    half = slice(rank * rows // 2, (rank + 1) * rows // 2)
    return {"x": x[half], "condition": condition[half]}


def bound_oracle():
    """One process, one condition after the other."""
    hyper, batch = adapted(), sentences(ROWS)
    parameters = {f"hyper.{name}": p for name, p in learned(hyper).items()}
    return trained(hyper, parameters, lambda h: next_word(one_by_one(h, batch), batch["input_ids"]))


def rowwise_oracle():
    hyper = small()
    x, condition = pairs(ROWS)
    return trained(hyper, learned(hyper), lambda h: loop(h, x, condition).square().mean())


# -- DistributedDataParallel --------------------------------------------------------------------


def data_parallel(rank):
    torch.manual_seed(rank)  # DDP sends the parameters of the first process to the others
    model = TaskModel(adapted())
    wrapped = DistributedDataParallel(model)
    batch = share(sentences(ROWS), rank)
    bound = trained(wrapped, learned(model), partial(task_loss, batch=batch))
    hyper = small()
    wrapped = DistributedDataParallel(hyper)
    rowwise = trained(wrapped, learned(hyper), partial(pair_loss, **rows_of_rank(rank)))
    return bound, rowwise


def test_data_parallel(results):
    bound, rowwise = zip(*results(data_parallel), strict=True)
    compare(bound, bound_oracle())
    compare(rowwise, rowwise_oracle())


# -- FSDP2 --------------------------------------------------------------------------------------


def shard(*modules, **options):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (2,))
    for module in modules:
        fully_shard(module, mesh=mesh, **options)


def sharded_at_the_root(rank):
    """All parameters in one group: gathered when the model is called."""
    model = TaskModel(adapted())
    shard(model)
    bound = trained(model, learned(model), partial(task_loss, batch=share(sentences(ROWS), rank)))
    hyper = small()
    shard(hyper)
    return bound, trained(hyper, learned(hyper), partial(pair_loss, **rows_of_rank(rank)))


def test_sharded_at_the_root(results):
    bound, rowwise = zip(*results(sharded_at_the_root), strict=True)
    compare(bound, bound_oracle())
    compare(rowwise, rowwise_oracle())


def sharded_by_layer(rank):
    """As for large models: each layer of the base is gathered when it is called, and let go."""
    model = TaskModel(adapted())
    base = model.hyper.primary
    shard(*base.model.layers, [base.model.norm, base.lm_head], model.hyper.encoder, model)
    batch = share(sentences(ROWS), rank)
    result = trained(model, learned(model), partial(task_loss, batch=batch))
    matrix = base.model.layers[0].self_attn.q_proj.weight
    return result, tuple(matrix.to_local().shape)


def test_sharded_by_layer(results):
    bound, shapes = zip(*results(sharded_by_layer), strict=True)
    assert shapes == ((8, 16), (8, 16))  # of a matrix [16, 16]: each process has a half again
    compare(bound, bound_oracle())


def sharded_with_other_rows(rank):
    """Three rows here and one row there: both must gather the same layers equally often."""
    model = TaskModel(adapted())
    shard(*model.hyper.primary.model.layers, model)
    batch = sentences(4)
    own = {name: value[:3] if rank == 0 else value[3:] for name, value in batch.items()}
    with torch.no_grad():
        return model(**own)["logits"]


def test_sharded_with_other_rows(results):
    logits = torch.cat(results(sharded_with_other_rows))
    close(logits, one_by_one(adapted(), sentences(4)).detach(), 10)


def sharded_generation(rank):
    """A method beside forward that gathers: as PyTorch's documentation of FSDP2 has it."""
    from torch.distributed.fsdp import register_fsdp_forward_method

    hyper = adapted().eval()
    model = TaskModel(hyper)
    shard(*hyper.primary.model.layers, model)
    register_fsdp_forward_method(model, "decode")
    batch = share(sentences(ROWS), rank)
    return model.decode(batch["task"], batch["input_ids"])


def test_sharded_generation(results):
    hyper, batch = adapted().eval(), sentences(ROWS)
    for i, tokens in enumerate(torch.cat(results(sharded_generation))):
        net = hyper.materialize(batch["task"][i])
        ids = batch["input_ids"][i : i + 1]
        want = net.generate(ids, max_new_tokens=4, do_sample=False, use_cache=True)
        assert torch.equal(tokens, want[0])


def sharded_in_half_precision(rank):
    """Gathered in another type than they are kept in."""
    from torch.distributed.fsdp import MixedPrecisionPolicy

    model = TaskModel(adapted())
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    shard(*model.hyper.primary.model.layers, model, mp_policy=policy)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")  # such as one that rows were not checked
        return model(**share(sentences(ROWS), rank))["logits"]


def test_sharded_in_half_precision(results):
    logits = torch.cat(results(sharded_in_half_precision))
    want = one_by_one(adapted(), sentences(ROWS)).detach()
    assert logits.dtype == torch.bfloat16
    scale = want.abs().max() * torch.finfo(torch.bfloat16).eps
    error = float((logits.float() - want).abs().max() / scale)
    assert error < 20  # about one rounding for each of the operations on the way


class Changes(nn.Module):
    """An MLP with written changes, and what is done with it."""

    def __init__(self, function, between=nn.Tanh):
        super().__init__()
        torch.manual_seed(0)
        primary = nn.Sequential(nn.Linear(3, 8), between(), nn.Linear(8, 2))
        self.hyper = wl.HyperNetwork(primary, None, wl.DeltaHead(), features=4)
        self.function = function
        with torch.no_grad():
            for parameter in self.hyper.head.parameters():
                parameter.normal_(std=0.3)

    def forward(self, x, condition):
        return self.function(self.hyper, x[:, 0], condition)


class Flip(nn.Module):
    def forward(self, x):
        return x.flip(0)


def bind_one(hyper, x, condition):
    """One condition for the whole batch; the change of each matrix is written in full."""
    return hyper.bind(condition[0])(x)


def bind_all(hyper, x, condition):
    return hyper.bind(condition)(x)


def sharded_for_one_condition(rank):
    model = Changes(bind_one)
    shard(model.hyper.primary[0], model.hyper.primary[2], model)
    return trained(model, learned(model), partial(pair_loss, **rows_of_rank(0)))


def test_sharded_for_one_condition(results):
    def oracle(hyper, x, condition):
        weights = hyper.weights(condition[0])
        return torch.func.functional_call(hyper.primary, weights, (x,))

    model = Changes(oracle)
    want = trained(model, learned(model), partial(pair_loss, **rows_of_rank(0)))
    compare(results(sharded_for_one_condition), want)


def sharded_and_mixing(rank):
    """The check runs with stand-ins for what is not gathered, and still finds what mixes rows."""
    model = Changes(bind_all, between=Flip)
    shard(model.hyper.primary[0], model.hyper.primary[2], model)
    try:
        model(**rows_of_rank(rank))
    except UnsupportedModuleError as error:
        return str(error)


def test_sharded_and_mixing(results):
    for message in results(sharded_and_mixing):
        assert "mixes or rearranges" in message


def sharded_and_needed_whole(rank):
    """Weights are changes of the whole base, of which a process has a part."""
    hyper = Changes(bind_all).hyper
    shard(hyper.primary[0], hyper.primary[2])
    condition = rows_of_rank(rank)["condition"]
    try:
        hyper.weights(condition)
    except UnsupportedModuleError as error:
        return str(error)


def test_sharded_and_needed_whole(results):
    for message in results(sharded_and_needed_whole):
        assert "'0.weight' is sharded (fully_shard)" in message
        assert "hyper.bind(condition)(x)" in message


# -- nothing stays behind -----------------------------------------------------------------------


def test_no_process_outlives_a_failure(tmp_path):
    before = set(multiprocessing.active_children())
    with pytest.raises(RuntimeError, match="the second process fails"):
        in_two_processes(second_fails, tmp_path)
    assert set(multiprocessing.active_children()) <= before
