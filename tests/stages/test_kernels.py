"""Where compiled kernels are kept."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import stages


def place(folder: Path, **environment: str) -> str:
    """The folder that a process over the package in `folder` keeps its kernels in."""
    kept = {name: value for name, value in os.environ.items() if name not in ("NUMBA_CACHE_DIR", "PYTHONPATH")}
    code = "import stages, os; print(os.environ['NUMBA_CACHE_DIR'])"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env={**kept, **environment}, stdout=subprocess.PIPE, text=True, check=True
    )
    return done.stdout.strip()


def test_kernels_are_kept_for_exactly_these_sources(tmp_path):
    package = tmp_path / "stages"
    (package / "text").mkdir(parents=True)
    shutil.copy(Path(stages.__file__), package)
    (package / "text" / "scan.py").write_text("from numba import njit  # one\n")
    (package / "plain.py").write_text("x = 1\n")
    first = place(tmp_path)
    assert Path(first).is_dir()
    assert Path(first).is_relative_to(package)
    (package / "plain.py").write_text("x = 2\n")
    assert place(tmp_path) == first
    (package / "text" / "scan.py").write_text("from numba import njit  # two\n")
    second = place(tmp_path, NUMBA_CACHE_DIR=first)  # as a process that is started by another one sees it
    assert second != first
    assert Path(second).is_dir()
    assert Path(first).is_dir()
    os.utime(first, (1.0, 1.0))
    assert place(tmp_path) == second
    assert not Path(first).exists()


def test_a_place_that_the_user_names_is_taken(tmp_path):
    shutil.copytree(Path(stages.__file__).parent, tmp_path / "stages", ignore=shutil.ignore_patterns("*.npz", "__pycache__"))
    assert place(tmp_path, NUMBA_CACHE_DIR=str(tmp_path / "mine")) == str(tmp_path / "mine")
