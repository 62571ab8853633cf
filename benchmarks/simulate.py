"""A build of 10 TB on 100 nodes, as a discrete simulation of its tasks: barriers, stragglers, lost nodes, the driver.

    python -m benchmarks.simulate [--quick] [--terabytes 10 --nodes 100 --node-cpus 64 --rate 4.0 ...]

What is simulated is what the driver does: passes and rounds one behind the other, the rounds those that the stage
itself names for a corpus of this size, with the merging rounds between; tasks sent one by one by a driver that needs a
while for each; a task of a lost node is sent again; a node comes back after some minutes. Durations are log-normal, and
one task in fifty is a straggler that takes ten times as long. Rates are arguments: take them from `pipeline plan --nodes`,
which measures them. `hours` is to be held against `planned`, what that command would say.

It is a model: no network, no store that slows down as it is asked more, no nodes of different speed. What it shows is
what barriers, losses and the driver cost, and that no step of the driver grows faster than its tasks.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.measure import Report, parser
from pipeline.commands.estimate import DRIVER, DRIVER_SMALL, EFFICIENCY, ENOUGH, SLOWEST

TASK_BYTES = 64 << 20  # stored, as the engine cuts inputs
PART_SECONDS, BUCKET_SECONDS, MERGE_SECONDS = 0.3, 6.0, 30.0  # of CPU, of one task of a round
STRAGGLERS, SLOWER = 0.02, 10.0
SPREAD = 0.25  # of the logarithm of a duration


@dataclass(frozen=True)
class Cluster:
    """Nodes and what they do. `lost` is how often a node goes, a day; `away` seconds until another has come."""

    nodes: int
    cpus: int
    lost: float
    away: float


@dataclass(frozen=True)
class Round:
    """Tasks of one pass or round; each needs so many CPU seconds on average."""

    name: str
    tasks: int
    seconds: float
    small: bool = False  # of a round, whose tasks travel together


@dataclass
class Outcome:
    """How it went."""

    seconds: float = 0.0
    worked: float = 0.0  # CPU seconds of tasks that came to their end
    wasted: float = 0.0  # of tasks whose node was lost
    sent: int = 0
    losses: int = 0
    driver: float = 0.0  # seconds in which the driver was busy


def rounds(terabytes: float, rate: float, kept: float, document: int) -> list[Round]:
    """The passes of a build with near-duplicate removal.

    rate      MB of text a second and CPU, over all passes that handle text
    kept      share of the documents that the first pass leaves
    document  bytes of text
    """
    parts = math.ceil(terabytes * 1e12 / TASK_BYTES)
    seconds = TASK_BYTES / (rate * 1e6)
    documents = int(terabytes * 1e12 / document * kept)
    found = [Round("read, clean, collect", parts, 0.6 * seconds)]
    found += _exchange(parts, documents)
    found.append(Round("drop, mask", parts, 0.15 * seconds * kept))
    found.append(Round("encode", parts, 0.25 * seconds * kept))
    found.append(Round("write shards", max(1, int(terabytes * 1e12 * kept / 4 / 128e6)), 4.0))
    return found


def _exchange(parts: int, documents: int) -> Iterator[Round]:
    """The rounds of near-duplicate removal, and the merging of outboxes where too many would be opened one by one."""
    from pipeline.engine.rounds import FACTS, MERGED, PAIRS
    from stages.dedup.minhash import MinhashDedup
    from stages.stage import PartInfo

    before = 0  # tasks of the round before that send to many
    for step in MinhashDedup().supersteps((PartInfo(0, "web", 0, 0, documents),)):
        tasks = parts if step.over is None else step.over
        if step.reads and before > MERGED and before * tasks > PAIRS and tasks != before:
            yield Round(f"merge for {step.name}", math.ceil(before / MERGED), MERGE_SECONDS, small=True)
        yield Round(step.name, tasks, PART_SECONDS if step.over is None else BUCKET_SECONDS, small=True)
        before = tasks
    yield Round("facts", math.ceil(parts / FACTS), FACTS * 0.01, small=True)


class Simulation:
    """One build."""

    def __init__(self, cluster: Cluster, per_task: float, per_small: float, seed: int) -> None:
        self.cluster = cluster
        self.per_task, self.per_small = per_task, per_small
        self.chance = random.Random(seed)
        self.now = 0.0
        self.outcome = Outcome()
        self.back = [0.0] * cluster.nodes  # when each node is there (again)
        self.goes = [self._next_loss(0.0) for _ in range(cluster.nodes)]

    def run(self, plan: list[Round]) -> Outcome:
        """All rounds, one behind the other."""
        for each in plan:
            self._round(each)
        self.outcome.seconds = self.now
        return self.outcome

    def _round(self, each: Round) -> None:
        """One round: events are ends of tasks on the CPUs of nodes that are there, and losses of nodes."""
        waiting, done = each.tasks, 0
        free = [(max(self.now, self.back[n]), n) for n in range(self.cluster.nodes) for _ in range(self.cluster.cpus)]
        heapq.heapify(free)
        ends: list[tuple[float, float, int, int]] = []  # end, begin, node, incarnation
        lives = [0] * self.cluster.nodes
        driver, cost = self.now, self.per_small if each.small else self.per_task
        while done < each.tasks:
            while waiting and free and (not ends or max(free[0][0], driver) <= ends[0][0]):
                ready, node = heapq.heappop(free)
                start = max(ready, driver)
                driver = max(driver, min(start, driver + cost)) + cost
                self.outcome.driver += cost
                if start >= self.goes[node]:
                    self._lose(node, lives, free)
                    continue
                waiting -= 1
                self.outcome.sent += 1
                heapq.heappush(ends, (start + self._seconds(each.seconds), start, node, lives[node]))
            end, begin, node, life = heapq.heappop(ends)
            if life != lives[node] or end > self.goes[node]:
                if life == lives[node]:
                    self._lose(node, lives, free)
                self.outcome.wasted += max(0.0, min(end, self.back[node] - self.cluster.away) - begin)
                waiting += 1
                continue
            done += 1
            self.outcome.worked += end - begin
            self.now = max(self.now, end)
            heapq.heappush(free, (end, node))
        self.now = max(self.now, driver)

    def _lose(self, node: int, lives: list[int], free: list[tuple[float, int]]) -> None:
        gone = self.goes[node]
        lives[node] += 1
        self.outcome.losses += 1
        self.back[node] = gone + self.cluster.away
        self.goes[node] = self._next_loss(self.back[node])
        free[:] = [(at, n) for at, n in free if n != node]
        free += [(self.back[node], node)] * self.cluster.cpus
        heapq.heapify(free)

    def _next_loss(self, after: float) -> float:
        return after + (self.chance.expovariate(self.cluster.lost / 86400) if self.cluster.lost else math.inf)

    def _seconds(self, mean: float) -> float:
        slow = SLOWER if self.chance.random() < STRAGGLERS else 1.0
        return mean * slow * self.chance.lognormvariate(-SPREAD * SPREAD / 2, SPREAD)


def scenarios(nodes: int, cpus: int) -> Iterator[tuple[str, Cluster]]:
    """The same cluster, ever less reliable."""
    yield "no losses", Cluster(nodes, cpus, 0.0, 300.0)
    yield "a node lost a day each", Cluster(nodes, cpus, 1.0, 300.0)
    yield "spot nodes, lost every 3 h", Cluster(nodes, cpus, 8.0, 600.0)


def main() -> None:
    """All scenarios."""
    made = parser(__doc__)
    made.add_argument("--terabytes", type=float, default=10.0, help="of text")
    made.add_argument("--nodes", type=int, default=100)
    made.add_argument("--node-cpus", type=int, default=64)
    made.add_argument("--rate", type=float, default=4.0, help="MB of text a second and CPU over the passes")
    made.add_argument("--per-task", type=float, default=DRIVER, help="seconds of the driver for a task of a pass")
    made.add_argument("--per-small", type=float, default=DRIVER_SMALL, help="seconds of the driver for a task of a round")
    made.add_argument("--document", type=int, default=4000, help="bytes of text of a document")
    options = made.parse_args()
    report = Report("simulate", options)
    terabytes = options.terabytes / 20 if options.quick else options.terabytes
    plan = rounds(terabytes, options.rate, 0.6, options.document)
    tasks = sum(each.tasks for each in plan)
    cpus = options.nodes * options.node_cpus
    driver = sum(each.tasks * (options.per_small if each.small else options.per_task) for each in plan)
    waits = sum((SLOWEST if each.tasks >= ENOUGH else 1.0) * each.seconds for each in plan)
    planned = sum(each.tasks * each.seconds for each in plan) / (cpus * EFFICIENCY) + driver + waits
    ideal = sum(each.tasks * each.seconds for each in plan) * (1 + STRAGGLERS * (SLOWER - 1)) / cpus
    for name, cluster in scenarios(options.nodes, options.node_cpus):
        outcome = Simulation(cluster, options.per_task, options.per_small, seed=1).run(plan)
        report.accuracy(name, "hours", outcome.seconds / 3600, tasks)
        report.accuracy(name, "hours planned", planned / 3600, tasks)
        report.accuracy(name, "share of CPUs at work", ideal / outcome.seconds, tasks)
        report.accuracy(name, "share of work done twice", outcome.wasted / outcome.worked, outcome.losses)
        report.accuracy(name, "share of time the driver is busy", outcome.driver / outcome.seconds, tasks)
    report.close()


if __name__ == "__main__":
    main()
