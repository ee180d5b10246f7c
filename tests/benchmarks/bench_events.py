"""The simulator of distributed training against the same model in simpy: an asynchronous server, 1,000 workers."""

import sys
from pathlib import Path

from labkit.simulate.events import Compute, Link, asynchronous

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "workers"))
import simpy_server  # noqa: E402

COMPUTE, LINK, SIZE = Compute("lognormal"), Link(1e-4, 1e-9), 4e5


def bench_server_against_simpy(compare, clocks):
    def ours():
        return clocks(lambda: asynchronous(1000, 50_000, COMPUTE, link=LINK, size=SIZE))

    def theirs():
        return clocks(lambda: simpy_server.run(1000, 50_000, COMPUTE, LINK.beta * SIZE, LINK.alpha))

    compare("asynchronous, 1,000 workers: updates/s over simpy's", ">= 5", ours, theirs, pairs=3, speedup=True)


def bench_a_million_updates(request, clocks):
    arms = {"asynchronous": {}, "bound 3": {"bound": 3}, "busy ports": {"link": LINK, "size": SIZE}}
    for name, options in arms.items():
        wall, processor = clocks(lambda options=options: asynchronous(1000, 1_000_000, COMPUTE, **options))
        what = f"1,000 workers, 1,000,000 updates, {name}: seconds"
        request.config.benchmarks.append(f"{what:<66} {wall:7.3f} wall {processor:7.3f} processor   aim <= 5")
