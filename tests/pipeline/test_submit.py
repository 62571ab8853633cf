"""Builds as jobs on a real head: success, failure, stop, a client that gets lost, and what must appear nowhere."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.corpus import load_corpus
from pipeline.submit import CONFIG, make_bundle
from stages.contract.manifest import load_manifest
from stages.contract.problem import SpecError
from stages.jobs import bundle
from stages.jobs.client import Client, job_address
from tests.pipeline.corpora import make_inputs, run_build, snapshot, write_config
from tests.pipeline.head import head_folder, ray_head

SECRET = "planted-4f1c9a7720"


def command(address: str, *words: str) -> list[str]:
    return [sys.executable, "-m", "pipeline.cli", *words, "--address", address]


def run(address: str, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(address, *words), capture_output=True, text=True, check=False, env=os.environ | environment
    )


@pytest.fixture(scope="module")
def head() -> Iterator[tuple[str, Path]]:
    folder = head_folder()
    with ray_head(folder) as address:
        yield address, folder


# -- what is sent ----------------------------------------------------------------------------------------------


def test_the_config_that_is_sent_is_the_same_corpus(tmp_path: Path) -> None:
    make_inputs(tmp_path / "in")
    (tmp_path / "blocked.txt").write_text("example.com\n")
    write_config(tmp_path, Path("in"), "  - normalize\n  - urls: {block: blocked.txt}\n")
    (tmp_path / "mine.yaml").write_text("extends: [corpus.yaml]\nname: mine\n")
    made = make_bundle(tmp_path / "mine.yaml", ("seed=9", "output.path=elsewhere"))
    original = load_corpus(tmp_path / "mine.yaml", ("seed=9", "output.path=elsewhere"))
    there = tmp_path / "there"
    for name, content in unpacked(made.own).items():
        (there / name).parent.mkdir(parents=True, exist_ok=True)
        (there / name).write_bytes(content)
    sent = load_corpus(there / CONFIG)
    assert sent.config_digest() == original.config_digest()
    assert sent.seed == 9
    assert sent.sources["web"].path == original.sources["web"].path
    assert sent.output.path == original.output.path
    assert Path(sent.stages[1].block[0]).read_text() == "example.com\n"
    assert str(sent.stages[1].block[0]).startswith(str(there))


def unpacked(package: bundle.Package) -> dict[str, bytes]:
    import io
    import zipfile

    with zipfile.ZipFile(io.BytesIO(package.content)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_a_folder_of_data_and_history_stays_where_it_is(tmp_path: Path) -> None:
    make_inputs(tmp_path / "in")
    for folder in (".git/objects", "checkpoints", "out"):
        (tmp_path / folder).mkdir(parents=True)
        with open(tmp_path / folder / "large.bin", "wb") as file:
            file.truncate(300 << 20)
    made = make_bundle(write_config(tmp_path, tmp_path / "in"), ())
    assert set(made.own.files) == {CONFIG}
    assert len(made.own.content) < 10_000
    assert all(name.split("/")[0] in bundle.PACKAGES or ".dist-info/" in name for name in made.code.files)
    assert "stages/text/unicode.npz" in made.code.files
    assert len(made.code.content) < 4 << 20


def test_a_stage_of_ones_own_goes_along(tmp_path: Path) -> None:
    make_inputs(tmp_path / "in")
    made = make_bundle(write_config(tmp_path, tmp_path / "in", "  - tests.pipeline.shout:Shout\n"), ())
    assert "tests/pipeline/shout.py" in made.own.files


def test_too_much_is_refused_with_the_largest_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle, "LIMIT", 3 << 20)
    make_inputs(tmp_path / "in")
    lists = tmp_path / "lists"
    lists.mkdir()
    for number in range(4):
        (lists / f"{number}.txt").write_text(f"{'x' * 50}{number}.example\n" * (10_000 + 10_000 * number))
    block = ", ".join(f"lists/{n}.txt" for n in range(4))
    config = write_config(tmp_path, tmp_path / "in", f"  - urls: {{block: [{block}]}}\n")
    with pytest.raises(SpecError, match=r"limit is 3\.0 MiB; the largest: files/\d+/3\.txt 2\.\d MiB"):
        make_bundle(config, ())


def test_a_secret_in_the_config_is_refused_and_not_shown(tmp_path: Path) -> None:
    make_inputs(tmp_path / "in")
    config = write_config(tmp_path, tmp_path / "in")
    text = config.read_text().replace("web/*.jsonl}", f"web/*.jsonl, storage_options: {{secret: {SECRET}}}}}")
    config.write_text(text)
    with pytest.raises(SpecError, match=r"sources\.web\.storage_options\.secret is a secret") as error:
        make_bundle(config, ())
    assert SECRET not in str(error.value)


def test_the_package_of_the_program_is_named_by_its_content() -> None:
    assert bundle.code_package().name == bundle.code_package().name
    with pytest.raises(Exception, match="another program"):
        bundle.check_program("_ray_pkg_0123456789abcdef.zip")


def test_an_address_that_is_none() -> None:
    with pytest.raises(SpecError, match="no address of a Ray dashboard"):
        job_address("head:8265")


def test_nobody_there() -> None:
    done = run("http://127.0.0.1:9", "jobs", "status")
    assert done.returncode == 1
    assert "error[R006]: no answer from http://127.0.0.1:9" in done.stderr


# -- on a head ---------------------------------------------------------------------------------------------------


@pytest.mark.ray
def test_a_job_builds_what_a_build_here_builds(head: tuple[str, Path], tmp_path: Path) -> None:
    address, folder = head
    make_inputs(tmp_path / "in")
    config = write_config(tmp_path, Path("in"))
    done = run(address, "submit", str(config), "--installed", AWS_SECRET_ACCESS_KEY=SECRET, HF_TOKEN=SECRET)
    assert done.returncode == 0, done.stderr + done.stdout
    assert "config and files: " in done.stderr
    assert "tokenize: 2 tasks" in done.stderr  # the events of the job, as a build here shows them
    assert "manifest    " in done.stdout
    run_build(config, (f"output.path={tmp_path / 'here'}",))
    assert snapshot(tmp_path / "out") == snapshot(tmp_path / "here")
    # Nothing that this machine keeps to itself has come along.
    for path in [*folder.rglob("*"), *tmp_path.rglob("*")]:
        if path.is_file() and not path.is_socket() and path.stat().st_size < 64 << 20:
            assert SECRET.encode() not in path.read_bytes(), path
    assert SECRET not in json.dumps([str(job) for job in Client(address).jobs()])


@pytest.mark.long
@pytest.mark.ray
def test_a_job_that_fails_says_so_as_a_build_does(head: tuple[str, Path], tmp_path: Path) -> None:
    address, _ = head
    make_inputs(tmp_path / "in", files=1)
    config = write_config(tmp_path, Path("in"), "  - language: {keep: [ja], max_loss: 10%}\n")
    done = run(address, "submit", str(config), "--installed", "--until", "tokenizer")
    assert done.returncode == 1
    assert "error[R003]" in done.stderr
    assert "max_loss" in done.stderr
    job = Client(address).jobs()[-1]
    assert (job.status, job.code) == ("FAILED", 1)
    again = run(address, "jobs", "logs", job.id)
    assert again.returncode == 1
    assert "error[R003]" in again.stderr


@pytest.mark.long
@pytest.mark.ray
def test_a_client_is_lost_and_comes_back_and_stops_the_job(head: tuple[str, Path], tmp_path: Path) -> None:
    address, _ = head
    make_inputs(tmp_path / "in", files=1)
    config = write_config(tmp_path, Path("in"), "  - tests.pipeline.poison:Waits\n")
    client = subprocess.Popen(command(address, "submit", str(config), "--installed"), stderr=subprocess.PIPE, text=True)
    assert client.stderr is not None
    seen = ""
    while "tasks" not in seen:
        seen = client.stderr.readline()
        assert seen, "the job ended"
    client.send_signal(signal.SIGKILL)
    client.wait()
    job = Client(address).jobs()[-1]
    assert job.status == "RUNNING"
    # The same command finds the job that is there, and shows it from its beginning.
    again = subprocess.Popen(command(address, "submit", str(config), "--installed"), stderr=subprocess.PIPE, text=True)
    assert again.stderr is not None
    lines = [again.stderr.readline() for _ in range(3)]
    assert f"a job builds this already: {job.id}" in lines[0]
    assert "tasks" in lines[2]
    assert run(address, "jobs", "status", job.id).returncode == 0
    assert run(address, "jobs", "stop", job.id).returncode == 0
    assert again.wait() == 130
    assert "was stopped; what is done stays" in again.stderr.read()
    # And a build here goes on at once where the job was.
    until = time.monotonic() + 30
    while list((tmp_path / "out" / "work").glob("lock-*")) and time.monotonic() < until:
        time.sleep(0.1)
    run_build(write_config(tmp_path, Path("in")))
    assert load_manifest(tmp_path / "out").name == "test"


@pytest.mark.ray
@pytest.mark.long
def test_the_program_goes_along(head: tuple[str, Path], tmp_path: Path) -> None:
    """Compiles every kernel on the way, since the nodes see this program for the first time."""
    address, _ = head
    make_inputs(tmp_path / "in", files=2)
    config = write_config(tmp_path, Path("in"))
    done = run(address, "train-tokenizer", str(config))
    assert done.returncode == 0, done.stderr
    assert "program: " in done.stderr
    assert (tmp_path / "out" / "tokenizer" / "tokenizer.json").is_file()
