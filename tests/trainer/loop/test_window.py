from __future__ import annotations

import json
from types import SimpleNamespace

from tests.trainer.tiny import corpus, fit, overrides
from trainer.loop.window import shares


def test_names_of_work_are_sorted_into_kinds():
    names = {
        "aten::mm": "matrix products", "aten::addmm": "matrix products", "sm90_xmma_gemm_bf16": "matrix products",
        "aten::_scaled_dot_product_flash_attention_for_cpu": "matrix products", "flash_fwd_kernel": "matrix products",
        "nccl:all_gather": "communication", "gloo:all_reduce": "communication", "c10d::allreduce_": "communication",
        "aten::silu": "other compute", "aten::mul": "other compute", "aten::_fused_adamw_": "other compute",
    }  # fmt: skip
    for name, kind in names.items():
        one = SimpleNamespace(key=name, self_cpu_time_total=2e6, self_device_time_total=3e6)
        assert shares([one], on_device=False)[kind] == 2.0, name
        assert shares([one], on_device=True)[kind] == 3.0


def test_a_window_says_where_the_time_went_and_leaves_a_trace(tmp_path):
    path = corpus(tmp_path / "corpus")
    with fit(path, tmp_path / "run", *overrides(6, "monitoring.profile_steps=[2, 4]")) as run:
        said: list[str] = []
        run.say = said.append
        run.run()
    (sentence,) = [text for text in said if text.startswith("profile of steps 2 to 3: data ")]
    assert all(word in sentence for word in ("communication", "matrix products", "other compute"))
    trace = json.loads((tmp_path / "run" / "profile" / "profile-00000002-rank-00000.json").read_bytes())
    assert any("mm" in event.get("name", "") for event in trace["traceEvents"])
