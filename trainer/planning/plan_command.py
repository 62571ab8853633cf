"""What `trainer plan` does: work the plan out, say what does not fit, and answer questions about it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import click

from stages.contract.files import write_atomic
from stages.contract.problem import Problem, RunError, SpecError, printable, problem_json, render
from trainer.config import plan_schema
from trainer.loop.flops import token_flops
from trainer.planning import budget, losslaw, whatif
from trainer.planning.explain import explain
from trainer.planning.figures import size
from trainer.planning.initialize import plan_yaml
from trainer.planning.memory import ledger
from trainer.planning.plan import Study, study
from trainer.planning.show import head_text, plan_text, table, values_text

__all__ = ["exit_code", "explain_all", "fit_memory", "fit_runs", "init", "page", "show", "study", "trace", "what_if"]

#: How far the ledger may be from the traced step.
TRACE_NEAR = 0.03


class Output(Protocol):
    """Where words and results go."""

    as_json: bool
    quiet: bool

    def emit(self, kind: str, record: dict[str, Any]) -> None:
        """One JSON line on stdout."""

    def say(self, text: str) -> None:
        """A line for people, on stderr."""

    def next(self, command: Sequence[str]) -> None:
        """What to do now."""


def exit_code(found: Study, strict: bool) -> int:
    """2 with a contradiction, 3 with warnings where `strict` asks for none, else 0."""
    if found.failed:
        return 2
    return 3 if strict and found.problems else 0


def show(output: Output, found: Study, code: int) -> None:
    """The values, the run if there can be one, and every problem. With `--json` one line, the plan in it."""
    problems = [problem_json(problem) for problem in found.problems]
    if output.as_json:
        if found.plan is not None:
            output.emit("plan", found.plan.to_json())
        notes = [vars(note) for note in found.notes]
        record = {"exit": code, "problems": problems, "skipped": list(found.skipped), "values": notes}
        output.emit("result", record)
        return
    if found.plan is not None:
        click.echo(plan_text(found.plan))
    else:
        name = found.draft.config.name or "plan"
        click.echo("\n".join([head_text(name, None), "", *values_text(found.notes)]))
    if found.skipped:
        click.echo(f"\nskipped without --manifest: {', '.join(found.skipped)}")
    for problem in found.problems:
        click.echo("\n" + render(problem), err=True)


def explain_all(output: Output, found: Study, fields: Sequence[str]) -> None:
    """The story of each of these values. SpecError for a name that there is not."""
    stories = {name: explain(found, name) for name in fields}
    if output.as_json:
        output.emit("result", {"exit": 0, "explained": stories})
    else:
        click.echo("\n\n".join(stories.values()))


def trace(output: Output, found: Study) -> int:
    """The ledger beside PyTorch's own count of the same step; 3 where they are more than 3 % apart."""
    setting = budget.setting(found.values)
    if setting is None or found.values.shape is None:
        raise SpecError(*found.problems)
    try:
        from trainer.planning.trace import Case, flops_per_token
        from trainer.planning.trace import trace as traced_of
    except ImportError as error:
        repairs = ("pip install 'gristmill[train]'", "leave --trace out: the ledger needs no torch")
        raise RunError(Problem("R007", f"tracing needs {error.name}", repairs=repairs)) from error
    passes = min(setting.passes, 2)  # more passes repeat the second
    groups = setting.devices // setting.spread if setting.shard == "hybrid" else 1
    case = Case(setting.shape, setting.rows, setting.seq_len, setting.devices, setting.recompute, passes,
                setting.compute, "AdamW", setting.on_cpu, setting.shard, groups, setting.tensor)  # fmt: skip
    own = ledger(replace(setting, passes=passes, pipeline=1, optimizer="AdamW"))
    traced = traced_of(case)
    apart = own.used / traced.total - 1
    counted, ours = flops_per_token(setting.shape, setting.seq_len), token_flops(setting.shape, setting.seq_len)
    code = 3 if abs(apart) > TRACE_NEAR else 0
    rest = [part for part in own.parts if part not in traced.parts]
    rows = [["", "ledger", "traced"]]
    rows += [[part, size(own.parts[part]), size(traced.parts[part])] for part in own.parts if part in traced.parts]
    rows += [[" + ".join(rest), size(sum(own.parts[part] for part in rest)), size(traced.parts["transient"])]]
    rows += [["all", size(own.used), f"{size(traced.total)}  ({apart:+.2%})"]]
    rows += [["FLOP of a token", f"{ours:,.0f}", f"{counted:,.0f}  ({ours / counted - 1:+.4%})"]]
    if output.as_json:
        record = {"ledger": own.parts, "traced": traced.parts, "apart": apart, "flops": ours, "flops_counted": counted}
        output.emit("result", {"exit": code} | record)
    else:
        click.echo("\n".join(table(rows)))
    return code


def what_if(output: Output, changes: Sequence[str], work_out: Callable[[Sequence[str]], Study]) -> int:
    """The values that change, one column for each change; what it breaks and what it puts right."""
    found = whatif.columns(changes, work_out)
    rows = whatif.differences(found)
    broken, solved = whatif.new_problems(found), whatif.solved_problems(found)
    code = 2 if any(column.study.failed for column in found) else 0
    if output.as_json:
        record = {
            "columns": [column.title for column in found], "rows": rows,
            "new": [{"column": title} | problem_json(problem) for title, problem in broken],
            "solved": [{"column": title} | problem_json(problem) for title, problem in solved],
        }  # fmt: skip
        output.emit("result", {"exit": code} | record)
        return code
    click.echo("\n".join(table([["", *(column.title for column in found)], *rows])))
    for problem in found[0].study.problems:
        click.echo("\n" + render(problem), err=True)
    for title, problem in broken:
        click.echo(f"\nwith {title}: {render(problem)}", err=True)
    for title, problem in solved:
        click.echo(f"\nwith {title} this is gone: {problem.message}", err=True)
    return code


def init(output: Output, found: Study, path: Path, again: Callable[[], Study]) -> int:
    """Writes a complete plan.yaml and works it out again. SpecError where it exists, or nothing can be planned."""
    if found.plan is None:
        raise SpecError(*found.problems)
    if path.exists():
        message = f"{path} is there already, and is not overwritten"
        raise SpecError(Problem("C020", message, repairs=("name another file, or remove it",)))
    path.parent.mkdir(parents=True, exist_ok=True)
    schema = json.dumps(plan_schema(), indent=1, ensure_ascii=False) + "\n"
    write_atomic(path.with_name("plan.schema.json"), schema.encode())
    write_atomic(path, plan_yaml(found).encode())
    read = again()
    if read.plan is None or read.plan.digest != found.plan.digest:
        raise SpecError(*read.problems, Problem("R009", f"{path} was written, but is not the plan that it was made of"))
    if output.as_json:
        output.emit("result", {"exit": 0, "path": str(path), "digest": found.plan.digest})
    else:
        click.echo(f"wrote {path}, and plan.schema.json beside it for editors: plan {found.plan.digest[:12]}")
    for problem in read.problems:
        click.echo("\n" + render(problem), err=True)
    return 0


def fit_runs(output: Output, found: Study, paths: Sequence[Path]) -> int:
    """The loss law of these runs, and what it says of the plan."""
    runs = [losslaw.read_run(path) for path in paths]
    fitted = losslaw.fit(runs)
    law = fitted.law
    parameters, tokens = found.values.number("model.parameters"), found.values.number("data.total_tokens")
    says = losslaw.meaning(fitted, parameters, tokens)
    scales = [run.noise_scale for run in runs if run.noise_scale is not None]
    lines = table([
        ["run", "parameters", "tokens", "points", "loss", ""],
        *([printable(str(run.path)), f"{run.parameters:,}", f"{run.tokens.max():,.0f}", str(len(run.tokens)),
           f"{run.losses[-1]:.4f} {run.kind}", "" if run.done else "not done yet"] for run in runs),
    ])  # fmt: skip
    size_part = f" + {law.a:.4g} / parameters^{law.alpha:.3f}" if law.a else ""
    lines += ["", f"loss = {law.floor:.4f}{size_part} + {law.b:.4g} / tokens^{law.beta:.3f}   ({fitted.points} points, {fitted.error:.2%} apart)"]
    if not fitted.of_size:
        lines.append("the runs are of one size: the law says nothing about another one")
    if any(not run.done for run in runs) or len(runs) == 1:
        lines.append("points within a run lie above what a run that ends there would reach: its rate has not decayed yet")
    lines += ["", f"for the plan, {parameters:,.0f} parameters and {tokens:,.0f} tokens:", *(f"  {text}" for _, _, text in says)]
    times = losslaw.reach(runs, tokens)
    if times > 1:
        lines.append(f"  the plan reads {times:.3g} times the tokens of the longest run: take this as a direction, not as a number")
    if scales:
        scale = sorted(scales)[len(scales) // 2]
        step = found.values.number("batch.global_tokens")
        lines.append(f"  gradient-noise scale {scale:,.0f} tokens: steps up to about that size learn as much of each token; "
                     f"the plan has {step:,.0f} ({step / scale:.2f} times)")  # fmt: skip
    if output.as_json:
        record = {"law": vars(law), "error": fitted.error, "points": fitted.points, "meaning": {n: v for n, v, _ in says}}
        output.emit("result", {"exit": 0} | record | {"noise_scale": scales})
    else:
        click.echo("\n".join(lines))
    return 0


def page(output: Output, found: Study, folder: Path) -> None:
    """Writes the plan as a page and an image. SpecError where there is no plan."""
    if found.plan is None:
        raise SpecError(*found.problems)
    from trainer.planning.page import write

    for path in write(found, folder):
        output.say(f"wrote {path}")


def fit_memory(output: Output, found: Study) -> int:
    """The largest micro-batch of a device. SpecError where nothing says what memory it has."""
    memory = found.values.get("hardware.gpu_memory")
    if memory is None:
        message = "nothing says how much memory a device has"
        raise SpecError(Problem("P002", message, repairs=("give --gpu-memory 80GiB, or hardware.gpu",)))
    lines = budget.fit_memory(found.values, memory)
    if output.as_json:
        output.emit("result", {"exit": 0, "lines": lines})
    else:
        click.echo("\n".join(lines))
    return 0
