"""`trainer plan` as a user runs it: exit codes, questions, files that it writes, and that it needs no torch."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from stages.contract.problem import SpecError
from tests.trainer.corpora import make_corpus, random_documents
from trainer.cli import cli
from trainer.config import PlanConfig, plan_schema, read_plan
from trainer.planning.plan import OF_A_CORPUS

ROOT = Path(__file__).parents[3]


def run(*arguments: str | Path):
    """(exit code, stdout, stderr) of `trainer` in this process."""
    found = CliRunner().invoke(cli, [str(one) for one in arguments])
    assert found.exception is None or isinstance(found.exception, SystemExit), found.exception
    return found.exit_code, found.stdout, found.stderr


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Path:
    sources = {"web": random_documents(300, 200), "books": random_documents(80, 400, seed=1)}
    return make_corpus(tmp_path_factory.mktemp("corpus"), sources, holdout={"web": random_documents(9, 99, seed=2)})


@pytest.fixture
def template(shared) -> Path:
    path = shared / "examples" / "article_template.yaml"
    if not path.is_file():
        pytest.skip("the data folder has no examples")
    return path


# ---- the template of the article ------------------------------------------------------------------------------


def test_the_template_has_exactly_two_findings(template):
    code, out, err = run("plan", template)
    assert code == 2
    assert re.findall(r"^(error|warning)\[(\w+)\]", err, re.MULTILINE) == [("warning", "W001"), ("error", "P001")]
    assert "7,995,392, but batch.global_tokens is 4,000,000" in err
    assert "read 280 B tokens, not 140 B" in err
    assert "the warm-up takes 5.7% of the run" in err
    assert "skipped without --manifest: " + ", ".join(OF_A_CORPUS) in out
    for part, text in (("weights", "14 GB | 28 GB"), ("gradients", "14 GB | 28 GB"), ("master_copy", "28 GB | 0 GB"),
                       ("first_moment", "28 GB | 28 GB"), ("second_moment", "28 GB | 28 GB"), ("sum", "112 GB | 112 GB")):  # fmt: skip
        assert re.search(rf"bill\.{part} +{re.escape(text)}", out)


def test_every_repair_of_the_template_re_runs_clean(template):
    _, _, err = run("plan", template)
    warmup = re.search(r"write (lr_schedule\.warmup_steps): ([\d_]+)", err)
    lines = [re.findall(r"([a-z_]+\.[a-z_]+): ([\d_]+)", line) for line in err.splitlines() if line.strip().startswith("=   ")]
    assert len(lines) == 6
    for changes in lines:
        sets = [part for name, value in changes for part in ("--set", f"{name}={value}")]
        code, _, err = run("plan", template, *sets, "--set", f"{warmup[1]}={int(warmup[2]) // 2}", "--strict")
        assert (code, err) == (0, ""), changes


def test_the_days_of_the_template_are_108(template):
    _, out, _ = run("plan", template, "--set", "hardware.tokens_per_second=15000")
    assert re.search(r"run\.wall_time +108 days", out)
    _, out, _ = run("plan", template, "--set", "hardware.tokens_per_second=15000", "--set", "hardware.price_per_gpu_hour=2", "--explain", "cost")
    assert "41,481" in out


def test_strict_makes_a_warning_an_exit_code(template):
    fixed = ("--set", "batch.grad_accum_steps=31")
    assert run("plan", template, *fixed)[0] == 0
    assert run("plan", template, *fixed, "--strict")[0] == 3


# ---- questions ---------------------------------------------------------------------------------------------------


def test_json_is_the_object_that_fit_runs(corpus):
    code, out, _ = run("plan", "--manifest", corpus, "--json")
    plan, result = [json.loads(line) for line in out.splitlines()]
    assert (code, plan["kind"], result["kind"], result["exit"]) == (0, "plan", "result", 0)
    assert {value["key"] for value in result["values"]} >= {"batch.global_tokens", "memory.total", "sources.web.epochs"}
    assert all(set(value) >= {"key", "value", "origin", "why", "number"} for value in result["values"])
    assert len(plan["digest"]) == 64


def test_fit_stores_what_plan_prints(corpus, tmp_path):
    from tests.trainer.tiny import alone
    from trainer.checkpoint.runfolder import describe_run
    from trainer.command import plan_of

    _, out, _ = run("plan", "--manifest", corpus, "--json")
    printed = json.loads(out.splitlines()[0])
    plan, _, _ = plan_of(None, [corpus], (), 1)
    describe_run(tmp_path, plan, alone(), 0)
    stored = json.loads((tmp_path / "plan.json").read_bytes())
    assert stored == {key: value for key, value in printed.items() if key not in ("schema", "kind")}


def test_what_if_shows_what_moves(corpus):
    code, out, err = run("plan", "--manifest", corpus, "--what-if", "model.seq_len=64", "--what-if", "data.total_tokens=100k")
    assert code == 0
    head, *rows = out.splitlines()
    assert re.split(r"  +", head.strip()) == ["now", "model.seq_len=64", "data.total_tokens=100k", "all of these"]
    names = {row.split()[0] for row in rows}
    assert {"model.seq_len", "data.total_tokens", "lr_schedule.total_steps", "run.wall_time"} <= names
    assert "model.params" not in names
    code, _, err = run("plan", "--manifest", corpus, "--what-if", "data.repeat_limit=0.1", "--set", "data.total_tokens=100k")
    assert code == 2
    assert "with data.repeat_limit=0.1: error[M001]" in err


def test_explain_tells_every_equation(corpus):
    code, out, _ = run("plan", "--manifest", corpus, "--explain", "global_tokens", "--explain", "sources.web.epochs")
    assert code == 0
    assert "batch.global_tokens = batch.micro_batch_size x model.seq_len x" in out
    assert "sources.web.epochs = " in out
    code, _, err = run("plan", "--explain", "globl_tokens")
    assert code == 2
    assert "did you mean `batch.global_tokens`?" in err


def test_fit_memory_finds_the_largest_micro_batch():
    sets = ["--set", "model.params=1B", "--set", "model.seq_len=2048", "--set", "batch.global_tokens=1M"]
    code, out, _ = run("plan", *sets, "--gpus", "8", "--gpu-memory", "40GiB", "--fit-memory")
    assert code == 0
    found = {m[1]: (int(m[2]), int(m[3])) for m in re.finditer(r"activation_checkpointing (\w+) +micro_batch_size (\d+)  grad_accum_steps (\d+)", out)}
    assert set(found) == {"none", "selective", "full"}
    assert found["none"][0] < found["selective"][0] <= found["full"][0]
    rows = round(1e6 / 2048)
    for micro, passes in found.values():
        assert (passes - 1) * micro * 8 < rows <= passes * micro * 8
    code, _, err = run("plan", *sets, "--fit-memory")
    assert code == 2
    assert "nothing says how much memory a device has" in err


def test_too_little_memory_is_an_error_with_the_way_out():
    code, _, err = run("plan", "--set", "model.params=7B", "--set", "batch.micro_batch_size=4", "--set", "model.seq_len=4096", "--gpus", "8", "--gpu-memory", "80GiB")
    assert code == 2
    assert "error[P003]: a device needs" in err
    assert err.index("batch.micro_batch_size:") < err.index("activation_checkpointing: selective") < err.index("optimizer.type:")


# ---- files --------------------------------------------------------------------------------------------------------


def test_init_writes_a_plan_that_is_the_plan(corpus, tmp_path):
    path = tmp_path / "plan.yaml"
    code, out, err = run("plan", path, "--init", "--params", "1M", "--manifest", corpus)
    assert (code, "next: trainer plan" in err) == (0, True)
    digest = re.search(r"plan (\w{12})", out)[1]
    code, shown, _ = run("plan", path, "--manifest", corpus)
    assert code == 0
    assert f"plan {digest}" in shown
    text = path.read_text()
    for section, info in PlanConfig.model_fields.items():
        assert re.search(rf"^{section}:", text, re.MULTILINE)
        for key in getattr(info.annotation, "model_fields", {}):
            assert re.search(rf"^ +(# )?{key}:", text, re.MULTILINE), key
    assert json.loads((tmp_path / "plan.schema.json").read_bytes()) == plan_schema()
    assert run("plan", path, "--init", "--manifest", corpus)[0] == 2


def test_init_keeps_the_phases_of_the_corpus(tmp_path):
    sources = {"a": random_documents(60, 90), "b": random_documents(60, 90, seed=1)}
    made = make_corpus(tmp_path / "c", sources, mixture={"a": 0.7, "b": 0.3})
    code, _, err = run("plan", tmp_path / "p.yaml", "--init", "--manifest", made)
    assert code == 0, err
    assert yaml.safe_load((tmp_path / "p.yaml").read_text())["data"]["mix"] == {"a": 0.7, "b": 0.3}


def test_a_page_is_written(corpus, tmp_path):
    pytest.importorskip("PIL")
    assert run("plan", "--manifest", corpus, "--page", tmp_path)[0] == 0
    assert {path.name for path in tmp_path.iterdir()} == {"plan.html", "plan.png"}


def test_fit_runs_reads_run_folders(corpus, tmp_path):
    from tests.trainer.planning.test_losslaw import LAW, make_run

    runs = [make_run(tmp_path / str(size), LAW, size, 30 * size, noise_scale=4096.0) for size in (10**6, 4 * 10**6)]
    code, out, _ = run("plan", "--manifest", corpus, "--fit-runs", runs[0], "--fit-runs", runs[1])
    assert code == 0
    assert "loss = " in out
    assert "gradient-noise scale 4,096 tokens" in out
    assert "for the same compute" in out
    code, _, err = run("plan", "--fit-runs", tmp_path)
    assert (code, "is no run folder" in err) == (2, True)


# ---- what it needs ------------------------------------------------------------------------------------------------

BARE = (
    "import sys; sys.modules.update(dict.fromkeys(['torch', 'pyarrow', 'ray', 'numba', 'PIL', 'tensorboard'])); "
    "from trainer.cli import cli; cli(sys.argv[1:])"
)


def test_it_works_without_torch(corpus, tmp_path):
    for arguments in (["plan"], ["plan", "--manifest", corpus], ["plan", tmp_path / "p.yaml", "--init", "--manifest", corpus],
                      ["plan", "--what-if", "model.seq_len=64"], ["schema"]):  # fmt: skip
        found = subprocess.run([sys.executable, "-c", BARE, *map(str, arguments)], capture_output=True, text=True, cwd=ROOT, check=False)
        assert found.returncode == 0, found.stderr
    found = subprocess.run([sys.executable, "-c", BARE, "plan", "--trace"], capture_output=True, text=True, cwd=ROOT, check=False)
    assert found.returncode == 1
    assert "error[R007]: tracing needs torch" in found.stderr


def test_it_takes_well_under_a_second_of_work(template):
    began = time.process_time()
    run("plan", template)
    assert time.process_time() - began < 0.5


# ---- help ---------------------------------------------------------------------------------------------------------


def test_every_key_has_help_in_the_schema():
    schema = plan_schema()
    bare = [
        f"{name}.{key}"
        for name, model in [("", schema), *schema["definitions"].items()]
        for key, about in model.get("properties", {}).items()
        if not about.get("description")
    ]
    assert bare == []
    code, out, _ = run("schema")
    assert (code, json.loads(out)) == (0, schema)


def test_the_schema_takes_the_examples(shared):
    jsonschema = pytest.importorskip("jsonschema")
    folder = shared / "examples"
    if not folder.is_dir():
        pytest.skip("the data folder has no examples")
    for name in ("plan.yaml", "article_template.yaml"):
        jsonschema.validate(as_editors_read((folder / name).read_text()), plan_schema())


def as_editors_read(text: str) -> object:
    """YAML 1.2, in which `1e-8` is a number; PyYAML reads 1.1."""

    class Loader(yaml.SafeLoader):
        pass

    Loader.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(r"^\d+(\.\d+)?e[-+]?\d+$"), list("0123456789"))
    return yaml.load(text, Loader)


def test_the_reference_page_is_what_the_tables_say():
    from trainer.planning.reference import PAGE, with_reference

    text = PAGE.read_text(encoding="utf-8")
    assert text == with_reference(text), "run python -m trainer.planning.reference"


def test_names_may_be_spelled_as_people_do():
    for spelled, name in (("adamw", "AdamW"), ("adamw-8bit", "AdamW8bit"), ("MUON", "Muon"), ("lion", "Lion")):
        assert read_plan(None, [f"optimizer.type={spelled}"]).value.optimizer.type == name
    assert read_plan(None, ["lr_schedule.decay=inverse_sqrt"]).value.lr_schedule.decay == "inverse-sqrt"
    with pytest.raises(SpecError, match="did you mean `AdamW`"):
        read_plan(None, ["optimizer.type=adam"])
