"""The same corpus with everything on an object store: build, kill, resume, verify; the bytes are those of a disk."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.engine.lock import owner_of
from pipeline.engine.store import Store
from pipeline.events import Event, TaskDone
from stages.contract.problem import RunError, SpecError
from stages.storage.address import Address
from tests.pipeline.corpora import STAGES, make_inputs, run_build, snapshot, write_config
from tests.store import CREDENTIALS, bad_line, forget_clients, s3_server

pytest.importorskip("moto")
pytest.importorskip("s3fs")


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with s3_server() as found:
        yield found


@pytest.fixture
def store(endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Address:
    """A folder on the store, empty; the environment knows how to get there."""
    for name, value in {**CREDENTIALS, "AWS_ENDPOINT_URL": endpoint, "GRISTMILL_CACHE": str(tmp_path / "cache")}.items():
        monkeypatch.setenv(name, value)
    forget_clients()
    return Address(f"s3://bucket/{tmp_path.name}")


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    folder = tmp_path_factory.mktemp("disk")
    make_inputs(folder / "in", files=4)
    run_build(write_config(folder, folder / "in"))
    return folder / "in", snapshot(folder / "out")


def put_inputs(inputs: Path, store: Address) -> None:
    for path in inputs.rglob("*.jsonl"):
        (store / "in" / path.relative_to(inputs).as_posix()).put(path)


def config_on(folder: Path, store: Address, stages: str = STAGES) -> Path:
    config = write_config(folder, Path("IN"), stages, out=str(store / "out"))
    config.write_text(config.read_text().replace("IN/", f"{store}/in/"))
    return config


def fetched(store: Address, folder: Path) -> dict[str, str]:
    """Digests of what a user gets, as of a folder on a disk."""
    for address in (store / "out").sizes():
        path = folder / str(address.relative_to(store))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(address.read_bytes())
    found = snapshot(folder / "out")
    return {name: digest for name, digest in found.items() if not name.startswith("events/")}


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "pipeline.cli", *words]


def test_inputs_and_output_on_a_store(reference: tuple[Path, dict[str, str]], store: Address, tmp_path: Path) -> None:
    inputs, expected = reference
    put_inputs(inputs, store)
    config = config_on(tmp_path, store)
    run_build(config)
    assert fetched(store, tmp_path / "got") == expected
    done = subprocess.run(command("verify", "--deep", str(store / "out" / "manifest.json")), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "0 problems" in done.stdout
    status = subprocess.run(command("status", str(store / "out")), capture_output=True, text=True, check=False)
    assert status.returncode == 0, status.stderr
    # A second build finds everything done, and changes nothing.
    before = {str(a): a.stat().mark for a in (store / "out").sizes() if "/work/" not in str(a)}
    assert not {k: n for k, n in run_build(config).state.ran.items() if n}
    after = {str(a): a.stat().mark for a in (store / "out").sizes() if "/work/" not in str(a)}
    assert {k for k in before if before[k] != after.get(k) and "/events/" not in k} == set()
    # Credentials are in no file that the build has left.
    for address in store.sizes():
        content = address.read_bytes()
        assert CREDENTIALS["AWS_SECRET_ACCESS_KEY"].encode() not in content, address
        assert CREDENTIALS["AWS_ACCESS_KEY_ID"].encode() not in content, address


def without_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*CREDENTIALS, "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name)
    forget_clients()


def test_options_of_a_source_open_its_store_and_no_secret_is_shown(
    reference: tuple[Path, dict[str, str]], store: Address, endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The environment knows nothing: where the store is and who asks stands in the config."""
    inputs, expected = reference
    put_inputs(inputs, store)
    secret = CREDENTIALS["AWS_SECRET_ACCESS_KEY"]
    options = f"{{endpoint_url: '{endpoint}', key: {CREDENTIALS['AWS_ACCESS_KEY_ID']}, secret: {secret}}}"
    config = config_on(tmp_path, store)
    text = config.read_text().replace(str(store / "out"), "out")
    config.write_text(text.replace(".jsonl", f".jsonl, storage_options: {options}"))
    without_environment(monkeypatch)
    said = ""
    for words in (("check", "--origins"), ("plan",), ("build", "--inline", "-v", "--log", str(tmp_path / "log"))):
        done = subprocess.run([*command(words[0]), str(config), *words[1:]], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        said += done.stdout + done.stderr
    assert secret not in said
    assert snapshot(tmp_path / "out") == expected
    for path in (tmp_path / "out").rglob("*"):
        assert path.is_dir() or secret.encode() not in path.read_bytes(), path
    assert secret not in (tmp_path / "log").read_text()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("{secret: s3cr3t-9}", r"sources\.web: the store cannot be opened: PartialCredentialsError"),
        ("{colour: red, secret: s3cr3t-9}", r"sources\.web: the store cannot be opened: TypeError: .*colour"),
    ],
)
def test_options_that_are_wrong_name_the_source_and_not_the_secret(
    options: str, said: str, store: Address, tmp_path: Path
) -> None:
    config = config_on(tmp_path, store)
    text = config.read_text().replace(str(store / "out"), "out")
    config.write_text(text.replace(".jsonl", f".jsonl, storage_options: {options}"))
    with pytest.raises(SpecError, match=said) as error:
        run_build(config)
    assert "s3cr3t-9" not in str(error.value)
    assert error.value.problems[0].where is not None


def test_the_library_may_be_told_by_its_own_variables(store: Address, endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (store / "in" / "web" / "a.jsonl").write_bytes(b'{"text": "one"}\n')
    (store / "in" / "books" / "b.jsonl").write_bytes(b'{"text": "two"}\n')
    config = config_on(tmp_path, store)
    config.write_text(config.read_text().replace(str(store / "out"), "out"))
    without_environment(monkeypatch)
    monkeypatch.setenv("FSSPEC_S3_ENDPOINT_URL", endpoint)
    monkeypatch.setenv("FSSPEC_S3_KEY", CREDENTIALS["AWS_ACCESS_KEY_ID"])
    monkeypatch.setenv("FSSPEC_S3_SECRET", CREDENTIALS["AWS_SECRET_ACCESS_KEY"])
    done = subprocess.run([*command("plan"), str(config)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "2 files" in done.stdout


@pytest.mark.long
def test_killed_on_a_store_and_run_again(reference: tuple[Path, dict[str, str]], store: Address, tmp_path: Path) -> None:
    inputs, expected = reference
    put_inputs(inputs, store)
    config = config_on(tmp_path, store)
    for pieces in (1, 2):
        process = subprocess.Popen(command("build", "-q", "--inline", str(config)), stdout=subprocess.DEVNULL)
        while process.poll() is None and len(list((store / "out/work/journal").iterdir())) < pieces:
            time.sleep(0.01)
        process.kill()
        assert process.wait() == -signal.SIGKILL
        assert not (store / "out/manifest.json").is_file()
    finished = subprocess.run(command("build", "-q", "--inline", str(config)), capture_output=True, check=False)
    assert finished.returncode == 0, finished.stderr.decode()
    assert fetched(store, tmp_path / "got") == expected


@pytest.mark.parametrize("stages", ["  - normalize\n", pytest.param(STAGES, marks=pytest.mark.long)])
def test_a_bad_line_changes_nothing(
    stages: str, reference: tuple[Path, dict[str, str]], store: Address, endpoint: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    inputs, _ = reference
    put_inputs(inputs, store)
    run_build(write_config(tmp_path / "disk", inputs, stages))
    expected = snapshot(tmp_path / "disk" / "out")
    config = config_on(tmp_path, store, stages)
    with bad_line(endpoint, every=9) as line:
        monkeypatch.setenv("AWS_ENDPOINT_URL", line.endpoint)
        monkeypatch.setattr("stages.storage.patience._FIRST", 0.01)
        forget_clients()
        run_build(config)
        assert line.refused > 5
        assert line.cut > 5
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    forget_clients()
    assert fetched(store, tmp_path / "got") == expected


@pytest.mark.parametrize("seconds", [3.0, pytest.param(60.0, marks=pytest.mark.long)])
def test_a_store_that_is_away_for_a_while_changes_nothing(
    seconds: float, reference: tuple[Path, dict[str, str]], store: Address, endpoint: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """It answers 503 to everything, from the first result of the build on."""
    inputs, _ = reference
    put_inputs(inputs, store)
    run_build(write_config(tmp_path / "disk", inputs, "  - normalize\n"))
    expected = snapshot(tmp_path / "disk" / "out")
    config = config_on(tmp_path, store, "  - normalize\n")

    with bad_line(endpoint, every=1 << 30) as line:

        class Outage(list[Event]):
            def append(self, event: Event) -> None:
                super().append(event)
                if isinstance(event, TaskDone) and line.refused <= 1:
                    line.down = True
                    threading.Timer(seconds, setattr, (line, "down", False)).start()

        monkeypatch.setenv("AWS_ENDPOINT_URL", line.endpoint)
        forget_clients()
        heard = Outage()
        started = time.monotonic()
        run_build(config, heard=heard)
        assert time.monotonic() - started > seconds
        assert line.refused > 3
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    forget_clients()
    assert fetched(store, tmp_path / "got") == expected


def test_a_store_that_stays_away_is_an_error_that_names_it(
    store: Address, endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from stages.storage.patience import patiently

    with bad_line(endpoint, every=1 << 30) as line:
        line.down = True
        monkeypatch.setenv("AWS_ENDPOINT_URL", line.endpoint)
        forget_clients()
        with pytest.raises(RunError, match=r"s3://bucket/.*: the store gave no answer for 0\.5 s") as error:
            patiently(lambda: store._fs.cat_file(store._key), str(store), limit=0.5)
        assert CREDENTIALS["AWS_SECRET_ACCESS_KEY"] not in str(error.value)


def test_the_lock_on_a_store(store: Address) -> None:
    with Store(store / "out") as first:
        assert first.epoch == 1
        assert owner_of(first.work)["pid"] == os.getpid()
        with pytest.raises(RunError, match=f"process {os.getpid()}"):
            Store(store / "out")
    assert not owner_of((store / "out") / "work")


def test_only_one_creates(store: Address) -> None:
    assert (store / "lock").create(b"mine")
    assert not (store / "lock").create(b"yours")
    assert (store / "lock").read_bytes() == b"mine"
