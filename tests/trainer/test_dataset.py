"""The batches for other trainers: plain torch, and each library that is installed here."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from stages.contract.problem import SpecError
from tests.trainer.corpora import make_corpus, random_documents
from trainer.loader import IGNORE, Loader, TokenDataset

SETS = ("model.seq_len=32", "batch.global_tokens=320", "data.total_tokens=9600", "data.mix={web: 0.6, books: 0.4}")


@pytest.fixture
def corpus(tmp_path):
    sources = {"web": random_documents(150, 40), "books": random_documents(60, 90, seed=1)}
    make_corpus(tmp_path, sources, documents_per_shard=13, pack=(32,))
    return tmp_path


def rows(data):
    return [row["input_ids"].tolist() for row in data]


def test_a_plain_data_loader_gets_the_rows_of_the_plan_in_order(corpus):
    data = TokenDataset([corpus], overrides=SETS)
    batches = list(DataLoader(data, batch_size=10))
    assert [tuple(batch["input_ids"].shape) for batch in batches] == [(10, 32)] * 30
    with Loader([corpus], data.plan) as loader:
        for step, batch in enumerate(batches):
            micro = loader.batch(step, micro=10).micros[0]
            for name in ("input_ids", "labels", "position_ids"):
                assert torch.equal(batch[name], torch.as_tensor(micro[name]))


def test_ranks_get_different_rows_and_all_of_them(corpus):
    whole = rows(TokenDataset([corpus], overrides=SETS))
    parts = [rows(TokenDataset([corpus], overrides=SETS, rank=rank, world=3)) for rank in range(3)]
    assert sorted(map(tuple, whole)) == sorted(tuple(row) for part in parts for row in part)


def test_micro_batches_have_borders_of_documents_and_equal_shapes_on_all_ranks(corpus):
    items = [list(TokenDataset([corpus], overrides=SETS, rank=rank, world=4, micro=2)) for rank in range(4)]
    assert {len(one) for one in items} == {30 * 2}
    assert {tuple(item["input_ids"].shape) for one in items for item in one} == {(2, 32)}
    item = next(iter(DataLoader(TokenDataset([corpus], overrides=SETS, micro=2), batch_size=None)))
    assert item["cu_seqlens"].dtype == torch.int32
    assert int(item["cu_seqlens"][-1]) == 64


def test_labels_of_models_that_shift_by_themselves(corpus):
    plain, shifted = (list(TokenDataset([corpus], overrides=SETS, shifted=one)) for one in (False, True))
    for a, b in zip(plain, shifted, strict=True):
        assert a["input_ids"].tolist() == b["input_ids"].tolist()
        assert b["labels"][1:].tolist() == a["labels"][:-1].tolist()
        kept = b["labels"] != IGNORE
        assert torch.equal(b["labels"][kept], b["input_ids"][kept])


@pytest.mark.parametrize("taken", [0, 1, 10, 17])
def test_the_state_is_a_place_and_nothing_else(corpus, taken):
    data = TokenDataset([corpus], overrides=SETS)
    items = iter(data)
    head = [next(items)["input_ids"].tolist() for _ in range(taken)]
    state = data.state_dict()
    items.close()
    assert (state["step"], state["item"]) == divmod(taken, 10)
    again = TokenDataset([corpus], overrides=SETS)
    again.load_state_dict(state)
    assert head + rows(again) == rows(TokenDataset([corpus], overrides=SETS))
    other = TokenDataset([corpus], overrides=[*SETS, "data.seed=9"])
    with pytest.raises(SpecError, match="belongs to another order of data"):
        other.load_state_dict(state)


def test_worker_processes_are_refused(corpus):
    with pytest.raises(RuntimeError, match="num_workers=0"):
        next(iter(DataLoader(TokenDataset([corpus], overrides=SETS), batch_size=2, num_workers=1)))


def test_a_stateful_data_loader_resumes(corpus):
    stateful = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader
    straight = [batch["input_ids"].tolist() for batch in stateful(TokenDataset([corpus], overrides=SETS), batch_size=4)]
    loader = stateful(TokenDataset([corpus], overrides=SETS), batch_size=4)
    items = iter(loader)
    head = [next(items)["input_ids"].tolist() for _ in range(11)]
    again = stateful(TokenDataset([corpus], overrides=SETS), batch_size=4)
    again.load_state_dict(loader.state_dict())
    assert head + [batch["input_ids"].tolist() for batch in again] == straight


class Tiny(torch.nn.Module):
    """A model with the interface of a causal language model that shifts labels itself."""

    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(256, 8)
        self.head = torch.nn.Linear(8, 256)

    def forward(self, input_ids, labels, position_ids=None):
        logits = self.head(self.embedding(input_ids))
        loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=IGNORE)
        return {"loss": loss, "logits": logits}


def test_lightning(corpus, tmp_path):
    lightning = pytest.importorskip("lightning")
    seen = []

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = Tiny()

        def training_step(self, batch, _index):
            seen.append(batch["input_ids"].tolist())
            return self.model(**batch)["loss"]

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.1)

    loader = DataLoader(TokenDataset([corpus], overrides=SETS, shifted=True), batch_size=10)
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
    lightning.Trainer(max_steps=5, accelerator="cpu", default_root_dir=tmp_path / "run", **quiet).fit(Module(), loader)
    assert seen == [batch["input_ids"].tolist() for batch in DataLoader(TokenDataset([corpus], overrides=SETS), batch_size=10)][:5]


def test_the_trainer_of_transformers(corpus, tmp_path):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path / "run"), max_steps=5, per_device_train_batch_size=10, report_to=[], use_cpu=True,
        disable_tqdm=True, save_strategy="no", remove_unused_columns=False, dataloader_pin_memory=False,
    )  # fmt: skip
    data = TokenDataset([corpus], overrides=SETS, shifted=True)
    seen = []

    class Recording(Tiny):
        def forward(self, input_ids, labels, position_ids=None, **_ignored):
            seen.append(input_ids.tolist())
            return super().forward(input_ids, labels)

    transformers.Trainer(model=Recording(), args=arguments, train_dataset=data).train()
    whole = np.array(rows(TokenDataset([corpus], overrides=SETS)))[:50].reshape(5, 10, 32)
    assert seen == whole.tolist()


def test_the_data_interface_of_torchtitan(corpus):
    """Its loaders are iterables of `(dict(input=...), labels)` with a state: two lines around the dataset."""

    class Titan(DataLoader):
        def __iter__(self):
            for batch in super().__iter__():
                yield {"input": batch["input_ids"], "positions": batch["position_ids"]}, batch["labels"]

    inputs, labels = next(iter(Titan(TokenDataset([corpus], overrides=SETS), batch_size=2)))
    assert inputs["input"].shape == labels.shape == (2, 32)
