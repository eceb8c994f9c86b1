"""Hugging Face's Trainer and Lightning: a run in two parts ends where a whole one does."""

import warnings

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from tests.hyper.frameworks.models import (
    TaskModel,
    adapted,
    learned,
    next_word,
    one_by_one,
    sentences,
)
from tests.oracle import close

pytestmark = pytest.mark.slow

ROWS, BATCH, STEPS, STOP = 16, 4, 6, 3
EPOCH = ROWS // BATCH
RATE = 0.01


class Rows(Dataset):
    def __init__(self):
        self.batch = sentences(ROWS)

    def __len__(self):
        return ROWS

    def __getitem__(self, i):
        row = {name: value[i] for name, value in self.batch.items()}
        return {**row, "labels": row["input_ids"]}


def by_hand(model):
    """The same optimiser and batches in a loop, each condition's network by itself."""
    optimizer = torch.optim.AdamW(learned(model).values(), lr=RATE, weight_decay=0.0)
    batch = Rows().batch
    for step in range(STEPS):
        start = step * BATCH % ROWS
        rows = {name: value[start : start + BATCH] for name, value in batch.items()}
        loss = next_word(one_by_one(model.hyper, rows), rows["input_ids"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model


def same_weights(model, want, factor):
    expected = want.state_dict()
    weights = model.state_dict()
    assert weights.keys() == expected.keys()
    for name, value in expected.items():
        close(weights[name], value, factor)


def changed(model):
    """Training moved what is learned, and nothing else."""
    before, after = TaskModel(adapted()), dict(model.named_parameters())
    for name, value in before.named_parameters():
        assert torch.equal(after[name], value) != value.requires_grad, name


# -- Hugging Face -------------------------------------------------------------------------------


def trainer(folder, steps, **options):
    transformers = pytest.importorskip("transformers")

    class InOrder(transformers.Trainer):
        def _get_train_sampler(self, *args, **kwargs):
            return torch.utils.data.SequentialSampler(self.train_dataset)

    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=BATCH,
        max_steps=steps,
        save_steps=STOP,
        learning_rate=RATE,
        lr_scheduler_type="constant",
        weight_decay=0.0,
        max_grad_norm=0.0,
        remove_unused_columns=False,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        logging_strategy="no",
        dataloader_pin_memory=False,
        **options,
    )
    return InOrder(model=TaskModel(adapted()), args=arguments, train_dataset=Rows())


def test_hugging_face(tmp_path):
    whole = trainer(tmp_path / "whole", STEPS)
    whole.train()
    changed(whole.model)
    # Adam divides by the root of squared gradients: rounding in small ones is enlarged.
    same_weights(whole.model, by_hand(TaskModel(adapted())), 100)
    trainer(tmp_path / "parts", STOP).train()
    rest = trainer(tmp_path / "parts", STEPS)
    rest.train(resume_from_checkpoint=True)
    assert rest.state.global_step == STEPS
    same_weights(rest.model, whole.model, 1)


def test_hugging_face_recomputes_activations(tmp_path):
    """The base has the switch; the model that is trained passes it on."""
    plain = trainer(tmp_path / "plain", 2)
    plain.train()
    recomputing = trainer(tmp_path / "recomputing", 2)
    calls = []
    for layer in recomputing.model.hyper.primary.model.layers:
        layer.input_layernorm.register_forward_pre_hook(lambda *given: calls.append(1))
    recomputing.model.hyper.primary.gradient_checkpointing_enable({"use_reentrant": False})
    recomputing.train()
    assert len(calls) == 2 * 2 * 2  # layers, steps; forward and once more in backward
    same_weights(recomputing.model, plain.model, 100)


# -- Lightning ----------------------------------------------------------------------------------


def lightning(folder, steps, resume=None):
    pl = pytest.importorskip("pytorch_lightning")

    class Lit(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = TaskModel(adapted())

        def training_step(self, batch, index):
            return self.model(**batch)["loss"]

        def configure_optimizers(self):
            return torch.optim.AdamW(learned(self).values(), lr=RATE, weight_decay=0.0)

    keep = pl.callbacks.ModelCheckpoint(folder, every_n_train_steps=EPOCH, save_top_k=-1)
    runner = pl.Trainer(
        max_steps=steps,
        accelerator="cpu",
        logger=False,
        callbacks=[keep],
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
    )
    lit = Lit()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # advice about workers and loggers
        runner.fit(lit, DataLoader(Rows(), batch_size=BATCH), ckpt_path=resume)
    assert runner.global_step == steps
    return lit.model


def test_lightning(tmp_path):
    whole = lightning(tmp_path / "whole", STEPS)
    changed(whole)
    same_weights(whole, by_hand(TaskModel(adapted())), 100)
    # Between epochs: Lightning does not skip the batches that a DataLoader has given before.
    lightning(tmp_path / "parts", EPOCH)
    (checkpoint,) = (tmp_path / "parts").glob("*.ckpt")
    rest = lightning(tmp_path / "parts", STEPS, resume=str(checkpoint))
    same_weights(rest, whole, 1)
