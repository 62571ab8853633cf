from __future__ import annotations

import ast
import json
import pickle
import re
from pathlib import Path

import pytest

from stages.contract.problem import (
    CODES,
    Problem,
    RunError,
    SpecError,
    Where,
    in_order,
    printable,
    problem_json,
    render,
)

ROOT = Path(__file__).parents[3]


def test_a_problem_is_shown_with_its_line_and_repairs():
    where = Where("corpus.yaml", 23, 7, "      keeps: [zh, en]", 5)
    problem = Problem("C001", "unknown key `keeps` in stages[1].language", where, ("did you mean `keep`?",))
    assert render(problem).splitlines() == [
        "error[C001]: unknown key `keeps` in stages[1].language",
        "  --> corpus.yaml:23:7",
        "    |",
        " 23 |       keeps: [zh, en]",
        "    |       ^^^^^",
        "   = did you mean `keep`?",
    ]


def test_without_a_place_there_is_head_and_repair():
    problem = Problem("R005", "the disk is full", None, ("free 3 GiB",), "warning")
    assert render(problem) == "warning[R005]: the disk is full\n  = free 3 GiB"


@pytest.mark.parametrize(
    ("line", "column", "width", "before", "carets"),
    [
        ("来源: 网页", 5, 2, 6, 4),  # wide characters take two cells
        ("नाम: हिन्दी", 6, 6, 5, 5),  # a vowel sign that is Mc takes one, Mn none
        ("e\u0301a: x", 6, 1, 4, 1),  # a combining accent takes none
        ("\tx: y", 2, 1, 1, 1),
    ],
)
def test_the_caret_stands_under_the_text(line, column, width, before, carets):
    shown = render(Problem("C001", "m", Where("f", 1, column, line, width))).splitlines()[-1]
    assert shown == "   | " + " " * before + "^" * carets


def test_a_long_line_is_cut_around_the_place():
    where = Where("f", 1, 501, "a" * 500 + "BAD" + "z" * 500, 3)
    line, carets = render(Problem("C001", "m", where)).splitlines()[-2:]
    assert len(line) < 140
    start = carets.index("^")
    assert line[start : start + 3] == "BAD"


def test_data_cannot_steer_the_terminal():
    evil = "\x1b[2Jgone\r\n\u202etxt\x00"
    text = render(Problem("C001", evil, Where(evil, 1, 1, evil), (evil,)))
    assert not re.search(r"[\x00-\x09\x0b-\x1f\u202e]", text)
    assert "\\x1b[2Jgone" in text
    assert printable("日本語 ไทย עברית 😀") == "日本語 ไทย עברית 😀"


def test_colour_only_adds_codes():
    problem = Problem("C001", "m", Where("f", 1, 1, "x"), ("r",))
    assert re.sub(r"\x1b\[[0-9;]*m", "", render(problem, color=True)) == render(problem)


def test_an_error_crosses_a_process_border():
    problem = Problem("C001", "m", Where("f", 1, 1, "x"), ("r",))
    error = pickle.loads(pickle.dumps(SpecError(problem, problem)))
    assert error.problems == (problem, problem)
    assert (SpecError.exit_code, RunError.exit_code) == (2, 1)
    assert "error[C001]" in str(error)


def test_json_has_all_parts():
    problem = Problem("C001", "m", Where("f", 1, 2, "x"), ("r",))
    assert json.loads(json.dumps(problem_json(problem))) == {
        "code": "C001", "severity": "error", "message": "m", "repairs": ["r"],
        "where": {"file": "f", "line": 1, "column": 2, "text": "x", "width": 1},
    }  # fmt: skip


def test_order_is_by_file_line_and_column():
    places = [None, ("b", 2, 1), ("b", 1, 9), ("a", 1, 1), ("b", 1, 2)]
    found = in_order(Problem("C001", "m", Where(*p, "") if p else None) for p in places)
    assert [p.where and (p.where.file, p.where.line, p.where.column) for p in found] == [
        ("b", 1, 2), ("b", 1, 9), ("b", 2, 1), ("a", 1, 1), None,
    ]  # fmt: skip


def test_every_code_in_the_code_is_in_the_table():
    code = f"[{''.join(sorted({known[0] for known in CODES}))}][0-9]{{3}}"  # H100 and A100 are devices
    missing = []
    for path in sorted(p for package in ("stages", "pipeline", "trainer") for p in (ROOT / package).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and re.fullmatch(code, node.value):
                missing += [f"{path.name}:{node.lineno} {node.value}"] if node.value not in CODES else []
    assert missing == []
