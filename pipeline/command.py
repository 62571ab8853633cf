"""What the commands of `pipeline` share: output, options, errors and exit codes."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import click

SCHEMA_VERSION = 1
INTERRUPTED = 130


class Output:
    """Where results and messages go: people or JSON lines."""

    def __init__(self, as_json: bool, quiet: bool, verbose: bool, color: str) -> None:
        self.as_json = as_json
        self.quiet = quiet
        self.verbose = verbose
        self.color = color == "always" or (
            color == "auto" and sys.stderr.isatty() and "NO_COLOR" not in os.environ
        )

    def result(self, text: str, data: dict[str, Any]) -> None:
        """The result of the command: text for people, one JSON line for programs."""
        if self.as_json:
            click.echo(
                json.dumps({"schema": SCHEMA_VERSION, "result": data}, ensure_ascii=False, sort_keys=True)
            )
        elif text:
            click.echo(text)

    def next(self, command: str) -> None:
        """The one next step."""
        if not self.as_json and not self.quiet:
            click.echo(f"next: {command}", err=True)

    def problems(self, problems: tuple[Any, ...]) -> None:
        """Everything that is wrong, at once."""
        from stages.contract.problem import problem_json, render

        if self.as_json:
            for problem in problems:
                click.echo(
                    json.dumps(
                        {"schema": SCHEMA_VERSION, "problem": problem_json(problem)}, ensure_ascii=False
                    )
                )
        else:
            click.echo("\n\n".join(render(p, self.color) for p in problems), err=True)


class Place(click.ParamType):
    """A file or folder on a disk, or an address of a store."""

    name = "path"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ARG002
        if not isinstance(value, str) or "://" not in value:
            return Path(value)
        from stages.storage.address import located

        return located(value)


def common(command: Callable[..., int | None]) -> Callable[..., None]:
    """The options that every command has; turns errors into messages and exit codes."""

    @click.option("--json", "as_json", is_flag=True, help="JSON lines on stdout; the last one is the result.")
    @click.option("-q", "--quiet", is_flag=True, help="Only results and problems.")
    @click.option("-v", "--verbose", is_flag=True, help="More detail; a traceback when something fails.")
    @click.option(
        "--color", type=click.Choice(["auto", "always", "never"]), default="auto", show_default=True
    )
    @wraps(command)
    def run(as_json: bool, quiet: bool, verbose: bool, color: str, **arguments: Any) -> None:
        from stages.contract.problem import GristmillError

        out = Output(as_json, quiet, verbose, color)
        try:
            code = command(out, **arguments)
        except GristmillError as error:
            if verbose:
                import traceback

                traceback.print_exc()
            out.problems(error.problems)
            code = error.exit_code
        except KeyboardInterrupt:
            click.echo("interrupted; run the same command again to go on", err=True)
            code = INTERRUPTED
        sys.exit(code or 0)

    return run


def config_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """CONFIG and `--set`."""
    command = click.option(
        "--set", "overrides", multiple=True, metavar="a.b=c", help="Override a value of the config."
    )(command)
    return click.argument("config", type=click.Path(path_type=Path))(command)


def run_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """How a build runs."""
    command = click.option("--inline", is_flag=True, help="One task at a time in this process, without Ray.")(
        command
    )
    command = click.option(
        "--address",
        metavar="A",
        help="Ray: local, cluster or host:port; http://head:8265 submits a job. Overrides run.address.",
    )(command)
    command = click.option("--fresh", is_flag=True, help="Forget what earlier builds did in this folder.")(
        command
    )
    return click.option(
        "--log", "log_file", type=click.Path(path_type=Path), help="Write messages to a file too."
    )(command)
