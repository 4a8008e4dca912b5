"""`make sim`: random schedules in memory and on PostgreSQL; exit status 1 and the stories of those that fail.

--seed N         only schedule N, with its parameters and its last events
--schedules N    how many in memory (0, 1, 2, …)
--postgres N     how many further ones on PostgreSQL
"""

import argparse
import gc
import resource
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

from testkit.databases import temporary_database
from testkit.sim.campaign import Outcome, run_in_memory, run_on_postgres
from testkit.sim.schedule import schedule

from control_plane.db.migrate import migrate
from headrace.cli.up.postgres import EmbeddedPostgres, remove_cluster

MAX_STORIES = 3


def main() -> int:
    parser = argparse.ArgumentParser(prog="make sim", description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--schedules", type=int, default=20_000)
    parser.add_argument("--postgres", type=int, default=500)
    parser.add_argument("--processes", type=int, default=2)
    given = parser.parse_args()
    if given.seed is not None:
        return _show(given.seed)
    end = given.first + given.schedules
    with ProcessPoolExecutor(given.processes, initializer=_collect_seldom) as pool:
        began = time.monotonic()
        found = list(pool.map(run_in_memory, range(given.first, end), chunksize=50))
        n_failed = _report("in memory", found, time.monotonic() - began)
        if given.postgres:
            began = time.monotonic()
            found = _all_on_postgres(pool, range(end, end + given.postgres), given.processes)
            n_failed += _report("on PostgreSQL", found, time.monotonic() - began)
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"{spent.ru_utime + spent.ru_stime:.0f} CPU s in {given.processes} processes")
    return 1 if n_failed else 0


def _collect_seldom() -> None:
    """A schedule's objects live about as long as it does; looking through them again and again finds nothing."""
    gc.freeze()
    gc.set_threshold(200_000, 20, 100)


def _show(number: int) -> int:
    outcome = run_in_memory(number)
    print(outcome.failure or f"{schedule(number).describe()}\n{outcome}")
    return 1 if outcome.failure else 0


def _all_on_postgres(pool: ProcessPoolExecutor, numbers: range, n_processes: int) -> list[Outcome]:
    with tempfile.TemporaryDirectory(prefix="headrace-sim-") as folder:
        server = EmbeddedPostgres(Path(folder) / "data", Path(folder) / "postgres.log")
        server.start()
        try:
            with temporary_database(server.url) as url:
                migrate(url)
                shares = [numbers[i::n_processes] for i in range(n_processes)]
                return [
                    outcome
                    for share in pool.map(partial(run_on_postgres, database_url=url), shares)
                    for outcome in share
                ]
        finally:
            server.stop()
            remove_cluster(Path(folder) / "data")


def _report(where: str, found: list[Outcome], seconds: float) -> int:
    failed = [outcome for outcome in found if outcome.failure]
    n_events, n_turns = sum(o.n_events for o in found), sum(o.n_turns for o in found)
    ends = Counter((outcome.reason.split(":")[0] or "failed") for outcome in found)
    print(
        f"{len(found)} schedules {where} in {seconds:.0f} s: {n_events} events in {n_turns} turns, "
        f"{sum(o.n_lost_leases for o in found)} runners without their lease, "
        f"{sum(o.n_in_step for o in found)} turns in lockstep, {sum(o.n_moved for o in found)} trajectories repacked, "
        f"longest {max(o.virtual_s for o in found):.0f} virtual s; {dict(ends.most_common())}",
        flush=True,
    )
    for outcome in failed[:MAX_STORIES]:
        print(f"\n{outcome.failure}", file=sys.stderr)
    if failed:
        numbers = " ".join(str(outcome.number) for outcome in failed[:50])
        print(f"{len(failed)} failed; again with make sim SEED=<number>: {numbers}")
    return len(failed)


if __name__ == "__main__":
    sys.exit(main())
