from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path

import pytest
import torch

from stages.contract.files import sha256_file
from stages.contract.problem import RunError, SpecError
from tests.trainer.tiny import alone, ids, model
from trainer import checkpoint
from trainer.checkpoint import COMPLETE, Stamp, keeping
from trainer.checkpoint.records import History, Identity, State, check_identity
from trainer.loop import optim
from trainer.model.attention import Segments
from trainer.planning.plan import OptimizerPlan

PLAN = OptimizerPlan("AdamW", 0.9, 0.95, 1e-8, 0.1, 1.0)
MINE = Identity(
    manifests=["m" * 64],
    chain=["a" * 64, "b" * 64],
    model={"width": 32, "rope_theta": 10000.0},
    packing="concat",
    optimizer="AdamW",
)
PAST = History(asked=[], followed=[], skip=[], data_step=0, schedule={})


def trained(seed=1):
    """A model with one step behind it, its optimizer, and both as a checkpoint takes them."""
    net = model(seed=seed)
    adam = optim.Updater(net, PLAN)
    tokens = ids(16)
    net(tokens, torch.arange(16), Segments.of([0, 16], "cpu"), tokens.roll(-1)).sum().backward()
    adam.step(1e-3, torch.tensor(0.5), torch.tensor(1.0))
    return net, {"model": dict(net.named_parameters()), "optimizer": adam.state_tensors()}


def save(root: Path, step: int, tensors=None, identity=MINE) -> Path:
    tensors = tensors or {"model": {"w": torch.arange(6.0).reshape(2, 3)}}
    return checkpoint.save(root, tensors, Stamp(State(step=step), identity, PAST, "p" * 64), alone())


def test_a_saved_state_comes_back_bit_for_bit(tmp_path):
    _, tensors = trained()
    save(tmp_path, 7, tensors)
    found, skipped = checkpoint.newest(tmp_path)
    assert not skipped
    assert found.step == 7
    _, other = trained(seed=2)
    checkpoint.load(found, other)
    for group, named in tensors.items():
        for name, tensor in named.items():
            assert torch.equal(_local(tensor), _local(other[group][name])), name


def _local(tensor):
    return tensor.detach().to_local() if hasattr(tensor, "to_local") else tensor.detach()


def test_two_saves_of_one_state_are_byte_equal(tmp_path):
    _, tensors = trained()
    a, b = save(tmp_path / "a", 7, tensors), save(tmp_path / "b", 7, tensors)
    for path in a.iterdir():
        assert path.read_bytes() == (b / path.name).read_bytes()


def test_the_folder_holds_safetensors_and_json_only(tmp_path):
    path = save(tmp_path, 3)
    assert sorted(p.name for p in path.iterdir()) == ["complete.json", "model-00000-of-00001.safetensors"]
    record = json.loads((path / COMPLETE).read_text())
    file = path / "model-00000-of-00001.safetensors"
    assert record["files"][file.name] == {"bytes": file.stat().st_size, "sha256": sha256_file(file)}
    assert record["state"]["step"] == 3
    assert record["world"] == 1
    assert record["made_with"]["torch"] == torch.__version__


@pytest.mark.parametrize("damage", ["cut", "flip", "gone", "extra", "record"])
def test_a_damaged_newest_one_is_passed_over_by_name(tmp_path, damage):
    save(tmp_path, 5)
    path = save(tmp_path, 10)
    file = path / "model-00000-of-00001.safetensors"
    if damage == "cut":
        file.write_bytes(file.read_bytes()[:-1])
    elif damage == "flip":
        data = bytearray(file.read_bytes())
        data[-1] ^= 1
        file.write_bytes(data)
    elif damage == "gone":
        file.unlink()
    elif damage == "extra":
        (path / "model.pt").write_bytes(b"x")
    else:
        (path / COMPLETE).write_text("{}")
    found, skipped = checkpoint.newest(tmp_path)
    assert found.step == 5
    assert [item.name for item in skipped] == ["step-00000010"]
    assert skipped[0].reason


def test_the_rest_of_a_killed_save_is_named_and_does_not_stop_a_fresh_start(tmp_path):
    (tmp_path / "step-00000005.tmp").mkdir(parents=True)
    found, skipped = checkpoint.newest(tmp_path)
    assert found is None
    assert "not finished" in skipped[0].reason
    keeping.clear_unfinished(tmp_path)
    assert not list(tmp_path.iterdir())


def test_when_no_checkpoint_is_sound_nothing_is_trained_over(tmp_path):
    (save(tmp_path, 5) / COMPLETE).unlink()
    with pytest.raises(RunError, match=r"no checkpoint in .* can be used"):
        checkpoint.newest(tmp_path)


def test_another_corpus_order_or_model_is_refused_with_the_differences(tmp_path):
    save(tmp_path, 5)
    found, _ = checkpoint.newest(tmp_path)
    check_identity(found.path, found.record.identity, MINE)
    other = MINE.model_copy(
        update={
            "manifests": ["n" * 64],
            "chain": ["a" * 64, "c" * 64],
            "model": {"width": 64, "rope_theta": 10000.0},
            "packing": "best-fit",
        }
    )
    with pytest.raises(SpecError) as caught:
        check_identity(found.path, found.record.identity, other)
    text = str(caught.value)
    assert "3 values differ" in text
    for words in (
        "data order, link 1  checkpoint bbbbbbbbbbbb  now cccccccccccc",
        "model.width",
        "write data.packing: concat, as the run began",
    ):
        assert words in text
    assert "data order, link 0" not in text
    assert "nnnn" not in text  # another manifest alone is no other run


def test_numbers_that_are_not_finite_are_never_saved(tmp_path):
    save(tmp_path, 5)
    with pytest.raises(RunError, match="w holds NaN"):
        save(tmp_path, 10, {"model": {"w": torch.tensor([1.0, float("nan")])}})
    assert checkpoint.newest(tmp_path)[0].step == 5


def test_a_disk_that_is_full_stops_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(100, 90, 10))
    with pytest.raises(RunError, match="10 are free"):
        save(tmp_path, 5)


@pytest.mark.parametrize(
    ("keep_last", "kept"),
    [(2, [900, 10000, 10100]), (1, [900, 10100])],
)
def test_rotation_goes_by_number_and_spares_last_and_best(tmp_path, keep_last, kept):
    for step in (900, 1000, 9900, 10000, 10100):
        save(tmp_path, step)
        keeping.rotate(tmp_path, keep_last, {900})
        assert step in checkpoint.folders(tmp_path)
        assert 900 in checkpoint.folders(tmp_path)
    assert list(checkpoint.folders(tmp_path)) == kept
    assert keeping.outdated([10000, 9900], 0, set()) == [9900]
    assert keeping.outdated([99_999_999, 100_000_000], 1, set()) == [99_999_999]
    assert keeping.outdated([5, 10, 15, 20], 1, set(), every=10) == [5, 15]


class Payload:
    """Pickled, it makes a file when it is loaded."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self):
        return (Path.touch, (self.marker,))


def test_planted_pickles_are_refused_and_never_run(tmp_path):
    marker = tmp_path / "PWNED"
    evil = pickle.dumps({"step": 1, "x": Payload(marker)})
    pickle.loads(evil)
    assert marker.exists()  # the payload works
    marker.unlink()
    names = ["model.pt", "optimizer.pt", ".metadata", "complete.json", "model-00000-of-00001.safetensors"]
    for number, name in enumerate(names):
        root = tmp_path / str(number)
        path = save(root, 5)
        (path / name).write_bytes(evil)
        with pytest.raises(RunError):
            checkpoint.newest(root)
        if name.endswith(".safetensors"):  # and with a record that vouches for it
            record = json.loads((path / COMPLETE).read_text())
            record["files"][name] = {"bytes": len(evil), "sha256": sha256_file(path / name)}
            (path / COMPLETE).write_text(json.dumps(record))
            found, _ = checkpoint.newest(root)
            with pytest.raises(RunError, match="cannot be loaded"):
                checkpoint.load(found, {"model": {"w": torch.zeros(2, 3)}})
    assert not marker.exists()


def test_a_record_cannot_point_outside_its_folder(tmp_path):
    path = save(tmp_path, 5)
    record = json.loads((path / COMPLETE).read_text())
    record["files"] = {"../../other.safetensors": {"bytes": 1, "sha256": "0" * 64}}
    (path / COMPLETE).write_text(json.dumps(record))
    assert "complete.json is not a record" in checkpoint.read(path)


def test_missing_or_reshaped_tensors_are_named(tmp_path):
    save(tmp_path, 5)
    found, _ = checkpoint.newest(tmp_path)
    for wanted, words in (
        ({"v": torch.zeros(2, 3)}, "model/v is nothing"),
        ({"w": torch.zeros(3, 2)}, r"\[2, 3\]"),
    ):
        with pytest.raises(RunError, match=words):
            checkpoint.load(found, {"model": wanted})
