from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from stages.tokenizer.tokenizer_json import byte_alphabet
from tests.trainer.tiny import alone, corpus, model, overrides, planned
from trainer.loader import Loader
from trainer.loop.evaluate import Held, byte_lengths, evaluate, held_text
from trainer.loop.flops import definition, peak_of, token_flops
from trainer.model.sample import continued

TOKENS = ["!", "ab", "é", "", "中"]


def tokenizer_file(path: Path) -> Path:
    """A byte-level tokenizer.json of these tokens; the fourth is special."""
    letters = byte_alphabet()
    written = ["".join(letters[byte] for byte in token.encode()) for token in TOKENS]
    vocab = {token: number for number, token in enumerate(written) if number != 3}
    added = [{"id": 3, "content": "<|end|>", "special": True}]
    path.write_text(json.dumps({"model": {"type": "BPE", "vocab": vocab}, "added_tokens": added}))
    return path


def test_bytes_of_tokens_are_those_of_their_text(tmp_path):
    assert byte_lengths(tokenizer_file(tmp_path / "t.json"), 6).tolist() == [1, 2, 2, 0, 3, 0]
    (tmp_path / "other.json").write_text('{"model": {"type": "WordPiece", "vocab": {}}}')
    assert byte_lengths(tmp_path / "other.json", 6) is None


def test_bits_per_byte_of_a_model_that_knows_nothing_are_those_of_its_vocabulary(tmp_path):
    path = corpus(tmp_path / "corpus")
    plan, manifests = planned(path, *overrides(2))
    net = model()
    with torch.no_grad():
        net.lm_head.weight.zero_()
    with Loader([path.parent], plan, manifests) as loader:
        whole = evaluate(net, loader, alone(), 32, 4)
        part = evaluate(net, loader, alone(), 32, 4, limit=1)
    assert list(whole) == ["web"]
    assert whole["web"].loss == pytest.approx(math.log(64), rel=1e-6)
    assert part["web"].targets < whole["web"].targets
    assert whole["web"].bits_per_byte is None  # the stand-in of a tokenizer has no vocabulary
    held = Held(lost=10 * math.log(2), targets=5, bytes=4)
    assert (held + held).bits_per_byte == pytest.approx(2.5)
    text = held_text({"web": held, "书": Held(1.0, 1, 0)}, 7)
    assert "2.5000" in text
    assert text.splitlines()[-1].split()[0] == "all"


def test_a_rank_without_a_batch_counts_nothing_twice(tmp_path):
    path = corpus(tmp_path / "corpus")
    plan, manifests = planned(path, *overrides(2))
    with Loader([path.parent], plan, manifests) as loader:
        found = [evaluate(model(), loader, alone(), 32, rows)["web"] for rows in (1, 3, 100)]
    assert len({one.targets for one in found}) == 1
    assert np.ptp([one.loss for one in found]) < 1e-6


def test_text_is_written_on_token_by_token_until_a_document_ends():
    net = model()
    cpu = torch.device("cpu")

    def text(temperature, seed, eos=63, vocab=60):
        return list(continued(net, [1, 2, 3], 12, temperature, seed, eos, vocab, cpu))

    assert text(0.0, 1) == text(0.0, 2)
    assert text(1.0, 1) == text(1.0, 1) != text(1.0, 2)
    assert len(text(1.0, 1)) == 12
    assert all(one < 60 for one in text(5.0, 3))  # rows of the padded vocabulary are no tokens
    first = text(0.0, 1)[0]
    assert text(0.0, 1, eos=first) == []
    with torch.no_grad():
        scores = net(torch.tensor([1, 2, 3]), torch.arange(3), segments_of(3))[-1, :60]
    assert first == int(scores.argmax())


def segments_of(length: int):
    from trainer.model.attention import Segments

    return Segments.of([0, length], "cpu")


def test_flops_count_matrix_parameters_and_attention_inside_documents(tmp_path):
    plan, _ = planned(corpus(tmp_path / "corpus"), *overrides(2))
    shape = plan.model
    assert token_flops(shape, 10) == 6 * shape.matmul_parameters + 12 * 2 * 32 * 10
    assert peak_of("NVIDIA H100 80GB HBM3") == 989e12
    assert peak_of("NVIDIA H100 PCIe") == 756e12
    assert peak_of("Some CPU") is None
    assert "(8 x 989 TFLOP/s)" in definition(shape, 8, 989e12)
