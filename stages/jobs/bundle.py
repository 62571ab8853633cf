"""What a job takes to the cluster: this program, a config, and the small files that it names. Nothing else.

Two packages, each a zip whose name is the digest of its content, so what a cluster has already is not sent again:
the code, laid out as a wheel of the packages that are running now (a checkout or an installation, whichever), and
the job's own folder. Data, checkpoints and `.git` cannot get in, because files are named, not swept up.
"""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from stages.contract.problem import Problem, RunError, SpecError

PACKAGES = ("pipeline", "stages", "trainer")

#: Ray keeps packages in the memory of the head: it refuses 500 MiB, and much less is felt.
LIMIT = 256 << 20
NAMED = 5  # of the largest files, when there is too much

_EPOCH = (1980, 1, 1, 0, 0, 0)  # the time of every file in a zip: the same content is the same package


@dataclass(frozen=True)
class Package:
    """A zip for the cluster. `files` has the stored bytes of each file in it, before compression."""

    name: str
    content: bytes
    files: Mapping[str, int]

    @property
    def uri(self) -> str:
        """What a runtime environment calls it."""
        return f"gcs://{self.name}"


def pack(files: Mapping[str, bytes]) -> Package:
    """The package of some files by their path in it. SpecError naming the largest when they are more than `LIMIT`."""
    sizes = {path: len(content) for path, content in files.items()}
    total = sum(sizes.values())
    if total > LIMIT:
        largest = sorted(sizes.items(), key=lambda item: (-item[1], item[0]))[:NAMED]
        named = ", ".join(f"{path} {_mib(size)}" for path, size in largest)
        raise SpecError(
            Problem(
                "C022",
                f"the job would take {_mib(total)} to the cluster, and the limit is {_mib(LIMIT)}; the largest: {named}",
                repairs=("put the large ones where every node can read them and name them by an absolute path",),
            )
        )
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(files):
            entry = zipfile.ZipInfo(path, _EPOCH)
            entry.external_attr = 0o644 << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, files[path])
    content = raw.getvalue()
    name = f"_ray_pkg_{hashlib.sha256(content).hexdigest()[:32]}.zip"
    return Package(name, content, sizes)


def code_package() -> Package:
    """The program that is running, as the content of a wheel: its packages and its metadata."""
    import stages

    root = Path(stages.__file__).resolve().parents[1]
    files = {path.relative_to(root).as_posix(): path.read_bytes() for name in PACKAGES for path in _sources(root / name)}
    return pack(files | _metadata(files))


def check_program(name: str | None) -> None:
    """Raises RunError when the program that runs here is not the one whose package has this name; None is any."""
    if name is not None and (mine := code_package().name) != name:
        text = f"the nodes have another program ({mine[9:17]}) than the one that sent this job ({name[9:17]})"
        raise RunError(Problem("R010", text, repairs=("submit without --installed, or install the same on both sides",)))


def module_files(name: str) -> dict[str, bytes]:
    """The files of a user's own module or package, by their path below the folder it is imported from.

    Empty for what is installed: an installed package is the cluster's own business.
    """
    import importlib

    top = importlib.import_module(name.split(".")[0])
    if top.__name__ in PACKAGES or not getattr(top, "__file__", None):
        return {}
    place = Path(str(top.__file__)).resolve()
    if "site-packages" in place.parts or "dist-packages" in place.parts:
        return {}
    if place.name != "__init__.py":
        return {place.name: place.read_bytes()}
    root = place.parents[1]
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in _sources(place.parent)}


def _sources(folder: Path) -> Iterator[Path]:
    """Modules and the tables beside them; no caches, nothing hidden."""
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder).parts
        hidden = any(part.startswith(".") or part == "__pycache__" for part in inside)
        if not hidden and path.suffix in {".py", ".json", ".txt", ".html", ".npz", ".typed"} and path.is_file():
            yield path


def _metadata(files: dict[str, bytes]) -> dict[str, bytes]:
    """The `.dist-info` of the wheel, so that the version is known on the cluster too. Nothing of it depends on how the program
    came to be installed here."""
    try:
        version = distribution("gristmill").version
    except PackageNotFoundError:
        version = "0"
    described = f"Metadata-Version: 2.1\nName: gristmill\nVersion: {version}\n"
    folder = f"gristmill-{version}.dist-info"
    own = {
        f"{folder}/METADATA": described.encode(),
        f"{folder}/WHEEL": b"Wheel-Version: 1.0\nGenerator: gristmill\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    rows = [f"{path},sha256={hashlib.sha256(body).hexdigest()},{len(body)}" for path, body in sorted((files | own).items())]
    return {**own, f"{folder}/RECORD": "\n".join([*rows, f"{folder}/RECORD,,", ""]).encode()}


def _mib(size: int) -> str:
    return f"{size / (1 << 20):.1f} MiB"
