"""What a job on a cluster runs: a build that says everything in JSON lines, which `pipeline submit` shows as its own.

    python -m pipeline.job corpus.yaml [--program DIGEST] [--until STAGE] [--fresh]

A stop asks nicely once (SIGTERM) and the cluster kills soon after. So tasks that are running are not waited for here:
what they are at is done again by the next build.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from pipeline.command import SCHEMA_VERSION, Output

PREEMPTED = 75


class Relay(Output):
    """Output for a program that shows it to people elsewhere: texts go along."""

    def __init__(self) -> None:
        super().__init__(as_json=True, quiet=False, verbose=False, color="never")

    def result(self, text: str, data: dict[str, Any]) -> None:
        """The result, with the text that people see of it."""
        self._line({"result": data, "text": text})

    def next(self, command: str) -> None:
        """The one next step."""
        self._line({"next": command})

    def _line(self, content: dict[str, Any]) -> None:
        click.echo(json.dumps({"schema": SCHEMA_VERSION, **content}, ensure_ascii=False))


@click.command()
@click.argument("config", type=click.Path(path_type=Path))
@click.option("--program", help="Name of the package of the program that sent this job.")
@click.option("--until")
@click.option("--fresh", is_flag=True)
def main(config: Path, program: str | None, until: str | None, fresh: bool) -> None:
    """Build in the cluster that this job belongs to."""
    from pipeline.launch import build_corpus
    from stages.contract.problem import GristmillError
    from stages.jobs.bundle import check_program

    relay = Relay()
    try:
        check_program(program)
        code = build_corpus(
            relay, config, (), until=until, inline=False, address="cluster", fresh=fresh, log_file=None, patient=False
        )
    except GristmillError as error:
        relay.problems(error.problems)
        code = error.exit_code
    except KeyboardInterrupt:
        code = PREEMPTED
    sys.exit(code)


if __name__ == "__main__":
    main()
