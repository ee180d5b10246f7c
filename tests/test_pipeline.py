"""Pipelines: the simulator against closed forms and a literal recursion, and real ranks against both."""

import contextlib
import functools
import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from labs import pipeline_figures, pipeline_ranks
from labs.pipeline_schedules import SCHEDULES, interleaved, zero_bubble

from labkit.errors import RequestError
from labs.pipeline_timetable import Action, bubble, gpipe, one_f_one_b, simulate
from labkit.teach import viz

TWO = {"GPipe": gpipe, "1F1B": one_f_one_b}
counts = st.integers(1, 9)
durations = st.integers(1, 7)


def literal(schedule, f, b, latency, share):
    """The end of every action, by recursion over what it needs (slow)."""
    stages, chunks = len(schedule), 1 + max(a.chunk for row in schedule for a in row)
    length = {"F": f / chunks, "B": b / chunks, "I": b * (1 - share) / chunks, "W": b * share / chunks}

    @functools.cache
    def end(s, n):
        action = schedule[s][n]
        part = action.chunk * stages + s
        needs = [end(s, n - 1)] if n else []
        if action.kind == "F" and part:
            needs += [arrival("F", action.microbatch, part - 1, s)]
        if action.kind in "BI" and part + 1 < stages * chunks:
            needs += [arrival("BI", action.microbatch, part + 1, s)]
        if action.kind == "W":
            needs += [arrival("I", action.microbatch, part, s)]
        return max(needs, default=0.0) + length[action.kind]

    def arrival(kinds, microbatch, part, here):
        stage = part % stages
        place = next(
            n for n, a in enumerate(schedule[stage]) if a.kind in kinds and a[1:] == (microbatch, part // stages)
        )
        return end(stage, place) + (latency if stage != here else 0.0)

    return [end(s, n) for s, row in enumerate(schedule) for n in range(len(row))]


@pytest.mark.parametrize("name", TWO)
@pytest.mark.parametrize("stages, microbatches", [(4, 1), (4, 4), (4, 16), (8, 32)])
def test_bubble_where_backward_takes_twice_as_long(name, stages, microbatches):
    table = simulate(TWO[name](stages, microbatches), forward=1.0, backward=2.0)
    assert table.bubble == pytest.approx((stages - 1) / (microbatches + stages - 1), abs=1e-12)


@settings(max_examples=60, deadline=None)
@given(counts, st.integers(1, 16), durations, durations)
def test_gpipe_and_1f1b_take_the_same_time_and_hold_different_amounts(stages, microbatches, f, b):
    tables = {name: simulate(make(stages, microbatches), f, b) for name, make in TWO.items()}
    for table in tables.values():
        assert table.makespan == (microbatches + stages - 1) * (f + b)
        assert table.bubble == pytest.approx(bubble(stages, microbatches), abs=1e-12)
        assert all(table.held(stage)[-1][1] == 0 for stage in range(stages))
    assert tables["GPipe"].peak == [microbatches] * stages
    assert tables["1F1B"].peak == [min(stages - s, microbatches) for s in range(stages)]


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(list(SCHEDULES)), st.integers(1, 5), st.integers(1, 4), durations, durations, st.integers(0, 3))
def test_every_end_is_that_of_the_literal_recursion(name, stages, rounds, f, b, latency):
    schedule = SCHEDULES[name](stages, stages * rounds)
    table = simulate(schedule, f, b, latency=latency, weight_share=0.25)
    assert [slot.end for slot in table.slots] == pytest.approx(literal(schedule, f, b, latency, 0.25), rel=1e-12)
    assert [slot.action for slot in table.slots] == [action for row in schedule for action in row]


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 6), st.integers(1, 4), st.integers(2, 4), durations, durations)
def test_interleaving_divides_the_bubble_by_the_chunks(stages, rounds, chunks, f, b):
    microbatches = stages * rounds
    table = simulate(interleaved(stages, microbatches, chunks), f, b)
    idle = table.makespan - microbatches * (f + b)
    assert idle == pytest.approx((stages - 1) * (f + b) / chunks)
    assert table.bubble == pytest.approx(bubble(stages, microbatches, chunks))
    warm = [(chunks - 1) * stages + 2 * (stages - 1 - s) for s in range(stages)]
    assert table.peak == pytest.approx([min(w + 1, chunks * microbatches) / chunks for w in warm])
    assert table.peak[0] > simulate(one_f_one_b(stages, microbatches), f, b).peak[0] or rounds == 1


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 7), st.integers(0, 9), durations)
def test_zero_bubble_leaves_a_third_of_the_idle_time_where_f_i_and_w_take_equally_long(stages, more, unit):
    microbatches = stages + more
    table = simulate(zero_bubble(stages, microbatches), unit, 2 * unit)
    assert table.makespan - 3 * unit * microbatches == pytest.approx((stages - 1) * unit)
    assert table.peak == [stages] * stages  # one microbatch for one: 1F1B's first stage, everywhere


def test_a_slow_link_costs_1f1b_more_than_gpipe():
    """GPipe pays the latency 2 (S-1) times in all; 1F1B waits for a round trip in its steady state too."""
    stages, microbatches = 4, 16
    extra = {}
    for name, make in TWO.items():
        extra[name] = simulate(make(stages, microbatches), latency=0.5).makespan - 3 * (microbatches + stages - 1)
    assert extra["GPipe"] == pytest.approx(2 * (stages - 1) * 0.5)
    assert extra["1F1B"] > 2 * extra["GPipe"]


def test_the_slowest_stage_sets_the_pace():
    table = simulate(gpipe(3, 50), forward=[1, 4, 1], backward=[2, 8, 2])
    assert table.makespan == pytest.approx(50 * 12 + 6)  # 50 microbatches on stage 1, and the way there and back
    fast = [slot for slot in table.slots if slot.stage == 0]
    assert sum(slot.end - slot.start for slot in fast) == 150


F, B, IN, W = (functools.partial(Action, kind) for kind in "FBIW")
WRONG = [
    ([[F(0), B(0)], [B(0), F(0)]], "stage 1 waits at B0 for F0 of stage 1"),
    ([[F(0), B(0), F(1), B(1)], [F(0), F(1), B(0), B(1)]], "stage 0 waits at B0 for B0 of stage 1; stage 1 waits"),
    ([[F(0), W(0), IN(0)]], "stage 0 waits at W0 for I0 of stage 0"),
    ([[F(0), B(0)], [F(0)]], "stage 1 does F of microbatch 0; needed: F and B"),
    ([[F(0), IN(0)]], "stage 0 does FI of microbatch 0; needed: F and B, or F, I and W"),
    ([[F(0), F(1), B(0), B(1)], [F(0), B(0)]], "stage 1 does nothing of microbatch 1"),
    ([[F(0), B(0), B(0)]], "stage 0 does B0 twice"),
    ([[F(0), Action("G", 0)]], "unknown action of stage 0 'G'; allowed: F, B, I, W"),
    ([[F(0), B(0)], []], "one is empty"),
]


@pytest.mark.parametrize("schedule, message", WRONG)
def test_an_illegal_schedule_names_stage_and_action(schedule, message):
    with pytest.raises(RequestError) as caught:
        simulate(schedule)
    assert message in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("options", [{"forward": 0}, {"backward": [1, 2, 3]}, {"latency": -1}, {"weight_share": 2}])
def test_impossible_durations_are_refused(options):
    with pytest.raises(RequestError, match="durations are positive"):
        simulate(gpipe(2, 2), **options)


def test_several_chunks_need_whole_rounds():
    with pytest.raises(RequestError, match="5 microbatches, 4 stages"):
        interleaved(4, 5)
    with pytest.raises(RequestError, match="at least 2 chunks"):
        interleaved(4, 4, chunks=1)


@pytest.mark.parametrize("stages, microbatches", [(2, 4), (4, 4), (4, 8), (3, 9)])
def test_our_two_further_schedules_are_torchs(stages, microbatches):
    tool = pytest.importorskip("torch.distributed.pipelining._schedule_visualizer")  # private: it may move
    for ours, name in ((interleaved, "Interleaved1F1B"), (zero_bubble, "InterleavedZeroBubble")):
        schedule = ours(stages, microbatches, 2)
        with contextlib.redirect_stdout(io.StringIO()):
            rows = tool.get_schedule_ops(name, stages, microbatches, add_spacing=True)
        cells = [[(a.computation_type.value, a.microbatch_index, a.stage_index) for a in row if a] for row in rows]
        theirs = [[Action(kind, m, part // stages) for kind, m, part in row if kind in "FBIW"] for row in cells]
        assert theirs == schedule
        # Its cells are one unit each; a B takes two but is written once.
        ends = [len(row) + sum(bool(a) and a.computation_type.value == "B" for a in row) for row in rows]
        assert max(ends) == simulate(schedule, 2.0, 4.0).makespan


@pytest.fixture(scope="module")
def ranks():
    from labkit.training.ranks import run_ranks

    return run_ranks


@pytest.mark.parametrize("stages, microbatches, samples", [(2, 4, 8), (4, 8, 24)])
def test_torch_does_on_real_ranks_what_the_simulator_says(ranks, stages, microbatches, samples):
    chunks = {"GPipe": 1, "1F1B": 1, "interleaved 1F1B": 2, "zero bubble": 1}
    results = ranks(pipeline_ranks.several, stages, chunks, microbatches, samples)
    boundary = samples * pipeline_ranks.WIDTH  # words of a batch's activations at a boundary
    for name, v in chunks.items():
        table = simulate(SCHEDULES[name](stages, microbatches))
        for rank, seen in enumerate(result[name] for result in results):
            assert seen["error"] < 1e-10
            assert seen["actions"] == [slot.action for slot in table.slots if slot.stage == rank]
            sends = 2 * v - (rank == 0) - (rank == stages - 1)  # forward and backward of each part, but at the two ends
            assert (seen["messages"], seen["words"]) == (sends * microbatches, sends * boundary)
            assert seen["peak"] == table.peak[rank]
            if name in TWO and rank:  # a part keeps its input and its tanh
                assert seen["peak_words"] == table.peak[rank] * 2 * boundary // microbatches
        losses = results[-1][name]["losses"]
        assert sum(losses) / microbatches == pytest.approx(results[-1][name]["loss"], rel=1e-12)
        total = sum(result[name]["words"] for result in results)
        assert total == 2 * (stages * v - 1) * boundary  # N A forward and N A backward at each boundary


@pytest.mark.parametrize("make", TWO.values())
def test_the_step_by_hand_is_that_of_one_process(ranks, make):
    stages, microbatches, samples = 3, 4, 12
    results = ranks(pipeline_ranks.by_hand, stages, microbatches, samples, make)
    for rank, seen in enumerate(results):
        sends = 2 - (rank == 0) - (rank == stages - 1)
        assert seen["error"] < 1e-10
        assert (seen["messages"], seen["words"]) == (sends * microbatches, sends * samples * pipeline_ranks.WIDTH)
    assert sum(results[-1]["losses"]) / microbatches == pytest.approx(results[-1]["loss"], rel=1e-12)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("GPipe", 5), "the microbatches must divide the batch"),
        (("1F1B", 4, 24, 2), "1F1B needs one part a rank; given: 4 parts, 2 ranks"),
        (("1F1B", 1), "torch refuses 1F1B, 1 microbatches on 2 ranks"),
        (("gpipe", 4), "unknown pipeline schedule 'gpipe'; allowed: GPipe, 1F1B"),
    ],
)
def test_what_does_not_fit_together_is_refused(ranks, arguments, message):
    from labkit.training.ranks import RanksError

    with pytest.raises(RanksError, match=message):
        ranks(pipeline_ranks.by_torch, 2, *arguments)


def test_figures_hold_every_action_and_say_the_bubble():
    tables = {"1F1B": simulate(one_f_one_b(4, 8)), "interleaved": simulate(interleaved(4, 8))}
    fig, alt, data = pipeline_figures.timetable(tables)
    assert len(data) == 4 * 16 + 4 * 32 and viz.render(fig)
    assert "1F1B ends at 33 with a bubble of 27.3%" in alt and "ends at 28.5 with a bubble of 15.8%" in alt
    fig, alt, data = pipeline_figures.held(tables)
    assert viz.render(fig) and "1F1B at most 4, 3, 2, 1 on stages 0 to 3" in alt
    assert data.groupby(["schedule", "stage"])["held"].max()["1F1B"].tolist() == [4, 3, 2, 1]
    with pytest.raises(RequestError, match="1 to 3"):
        pipeline_figures.timetable({})
