"""All of lab 02's real schemes in one launch of the ranks. Imports little: every rank imports it anew."""

from labs import pipeline_ranks, split_ranks


def everything(within: dict[str, tuple], pipelines: dict[str, int], microbatches: int, samples: int) -> dict:
    """`split_ranks.several(within)` and `pipeline_ranks.several(pipelines, ...)`: results by scheme."""
    return split_ranks.several(within) | pipeline_ranks.several(pipelines, microbatches, samples)
