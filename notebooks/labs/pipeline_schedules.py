"""Two further pipeline schedules (Extra of lab 02), and all four by name. The core: `labs.pipeline_timetable`."""

from labkit.errors import RequestError
from labs.pipeline_timetable import Action, Schedule, gpipe, one_f_one_b


def interleaved(stages: int, microbatches: int, chunks: int = 2) -> Schedule:
    """1F1B over `chunks` parts a stage: a shorter bubble, more messages and activations. *Not on a slow network.*

    Raises:
        RequestError: fewer than two chunks, or `microbatches` is no multiple of `stages`."""
    if chunks < 2:
        raise RequestError(f"an interleaved schedule has at least 2 chunks a stage; given: {chunks}")
    warm = [(chunks - 1) * stages + 2 * (stages - 1 - s) for s in range(stages)]
    return [_alternate(stages, microbatches, chunks, forwards) for forwards in warm]


def zero_bubble(stages: int, microbatches: int, chunks: int = 1) -> Schedule:
    """1F1B with B split into I and W: no stage waits for W, so W fills the bubble (the idea of ZB-H1).

    Stage s does its W of a microbatch s backwards late; then with one chunk every stage holds min(stages,
    microbatches), as much as 1F1B's first stage. *Not where the two halves of B cannot be computed apart.*

    Raises:
        RequestError: with several chunks, `microbatches` is no multiple of `stages`."""
    return [_alternate(stages, microbatches, chunks, chunks * stages - 1 - s, late=s) for s in range(stages)]


def _alternate(stages: int, microbatches: int, chunks: int, warm: int, late: int | None = None) -> list[Action]:
    """A stage's list: `warm` forwards, then a forward and a backward in turn; each W `late` backwards after its I."""
    if chunks > 1 and microbatches % stages:
        raise RequestError(
            "with several chunks a stage, the microbatches are a multiple of the stages; given: "
            f"{microbatches} microbatches, {stages} stages"
        )
    total = microbatches * chunks

    def nth(kind: str, n: int) -> Action:
        turn, within = divmod(n, stages * chunks)  # `stages` microbatches go through every chunk, then the next ones
        chunk, offset = divmod(within, stages)
        return Action(kind, turn * stages + offset, chunk if kind == "F" else chunks - 1 - chunk)

    actions = [nth("F", n) for n in range(min(warm, total))]
    for n in range(total):
        actions += [nth("F", warm + n)] if warm + n < total else []
        actions += [nth("B" if late is None else "I", n)]
        actions += [nth("W", n - late)] if late is not None and n >= late else []
    return actions + [nth("W", n) for n in range(max(0, total - late), total)] if late is not None else actions


SCHEDULES = {"GPipe": gpipe, "1F1B": one_f_one_b, "interleaved 1F1B": interleaved, "zero bubble": zero_bubble}
