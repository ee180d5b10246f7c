"""The hand-written ring on four processes against gloo's own all-reduce: 16 MB of float32, the two in turns."""

import sys
from pathlib import Path

from labkit.training.ranks import run_ranks

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "workers"))
import collectives_ranks  # noqa: E402


def bench_ring(request):
    by_rank = run_ranks(collectives_ranks.race, 4, 4_000_000, 15)
    ours, theirs = (max(rank[kind] for rank in by_rank) for kind in (0, 1))
    request.config.benchmarks.append(
        f"{'hand-written ring against gloo, 16 MB, 4 ranks':<66} {ours / theirs:7.3f} wall "
        f"({1000 * ours:.1f} and {1000 * theirs:.1f} ms)   aim <= 1.5"
    )
