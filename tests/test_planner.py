"""The planner: words are the closed forms and those counted on real processes, searches equal trying everything."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.errors import RequestError, WorkError
from labkit.training.ranks import run_ranks
from labs import planner, planner_networks, planner_search, split_ranks, split_runs, zoo
from labs.planner import Machine, Placement, Unit, score
from labs.planner_search import letters_for, optimum, schemes, stages_for

FREE = Machine(flops=1e12, bandwidth=1e9, latency=0.0, memory=math.inf)


def fc(cin, cout, name="fc"):
    return Unit(name, "fc", cin * cout, cin, cout, cout, cin, cin * cout, cin, cout)


def conv(cin, cout, side, kernel=3, name="conv"):
    area = side * side
    return Unit(
        name,
        "conv",
        cin * cout * kernel**2,
        cin * area,
        cout * area,
        cout * area,
        2 * cin * area,
        cin * cout * kernel**2 * area,
        cin,
        cout,
        side,
        2 * cin * side * (kernel - 1),
        4 * (kernel > 1),
    )


def words(units, letters, devices=4, batch=8, **options):
    return score(units, FREE, devices, batch, Placement((letters,), **options)).words


networks = st.lists(
    st.one_of(
        st.builds(fc, st.integers(4, 64), st.integers(4, 64)),
        st.builds(conv, st.integers(4, 16), st.integers(4, 16), st.sampled_from([2, 4, 8]), st.sampled_from([1, 3])),
    ),
    min_size=1,
    max_size=4,
)
machines = st.builds(
    Machine,
    flops=st.sampled_from([1e6, 1e9]),
    bandwidth=st.sampled_from([1e5, 1e7]),
    latency=st.sampled_from([0.0, 1e-4]),
    memory=st.sampled_from([3e4, 1e5, 1e9]),
)


@pytest.mark.parametrize("devices", [1, 2, 3, 4, 8])
def test_sharded_data_sends_half_as_much_again_as_data(devices):
    units = [conv(8, 16, 8), fc(64, 32)]
    weights = sum(unit.weights for unit in units)
    assert words(units, "dd", devices, 24) == pytest.approx(2 * weights * (devices - 1) / devices)
    assert words(units, "dd", devices, 24, sharded=True) == pytest.approx(3 * weights * (devices - 1) / devices)


@pytest.mark.parametrize("devices", [2, 3, 4])
def test_a_column_layer_and_a_row_layer_behind_it_send_only_at_their_ends(devices):
    units, every, batch = [fc(24, 48), fc(48, 96), fc(96, 24)], (devices - 1) / devices, 12
    gather, scatter = 2 * batch * 48 * every, 2 * batch * 24 * every
    found = score(units, FREE, devices, batch, Placement(("dcr",)))
    assert found.by_unit == pytest.approx((2 * units[0].weights * every, gather, scatter))
    assert words(units, "ddc", devices, batch) == pytest.approx(
        2 * (24 * 48 + 48 * 96) * every + 2 * batch * 96 * every + 2 * batch * 24 * every / devices
    )  # the outputs of the last one go back to samples by an all-to-all


@pytest.mark.parametrize("devices, borders", [(2, 1), (3, 2), (4, 2)])
def test_a_spatial_layer_sends_its_border_rows_both_ways(devices, borders):
    unit = conv(5, 7, 12)
    moved = 2 * 7 * 144 * 6 * (devices - 1) / devices**2  # back to samples at the end
    halos = borders * 6 * 5 * 12 * 2  # one row a border and direction, there and back
    assert words([unit], "s", devices, 6) == pytest.approx(halos + 2 * unit.weights * (devices - 1) / devices + moved)


@given(st.integers(2, 8), st.integers(1, 600), st.integers(8, 400), st.integers(8, 400))
def test_a_layer_in_the_middle_is_split_by_columns_where_its_outputs_outnumber_the_batch(devices, batch, cin, cout):
    """2 w = 2 Ci Co against 2 N Ci: data iff Co < N, whatever Ci is; the kernel and the image weigh on both sides."""
    batch *= devices
    data = planner.piece(fc(cin, cout), "d", batch, devices, FREE, False)
    assert (data.end_words < planner.moved("d", "c", fc(cin, cout), batch, devices)[0]) == (cout < batch)
    unit = conv(cin, cout, 14)
    data = planner.piece(unit, "d", batch, devices, FREE, False)
    assert (data.end_words < planner.moved("d", "c", unit, batch, devices)[0]) == (9 * cout < 14 * 14 * batch)


@pytest.mark.parametrize("stages, micro", [(4, 1), (4, 4), (4, 16), (8, 32), (2, 3)])
def test_even_stages_wait_for_the_bubble_of_the_formula(stages, micro):
    units = [fc(64, 64)] * stages
    machine = Machine(bandwidth=math.inf, latency=0.0)
    plan = score(units, machine, stages, 96, Placement(("d",) * stages, micro))
    assert plan.waiting / plan.seconds == pytest.approx((stages - 1) / (micro + stages - 1))
    assert plan.communication == 0
    kept = 96 // micro * 64 * 4
    assert plan.memory[0] == pytest.approx(64 * 64 * 12 + min(stages, micro) * kept)
    assert plan.memory[-1] == pytest.approx(64 * 64 * 12 + kept)


def test_a_stage_in_the_middle_sends_activations_on_and_gradients_back():
    units = [fc(10, 20), fc(20, 30), fc(30, 40)]
    assert score(units, FREE, 3, 12, Placement(("d", "d", "d"), 4)).words == 12 * (20 + 30)


def test_memory_is_weights_three_times_and_what_the_backward_pass_needs():
    units = [fc(100, 200), fc(200, 50)]
    state, kept = 4 * 3 * 30000, 4 * 8 * (100 + 200)
    assert score(units, FREE, 4, 8, Placement(("dd",))).memory == pytest.approx((state + kept / 4,))
    gathered = 2 * 4 * 20000
    assert score(units, FREE, 4, 8, Placement(("dd",), sharded=True)).memory == pytest.approx(
        (state / 4 + kept / 4 + gathered,)
    )
    assert score(units, FREE, 4, 8, Placement(("cr",))).memory == pytest.approx(
        (state / 4 + 4 * 8 * (100 + 200 / 4),)
    )  # columns hold all inputs, rows their part
    assert score(units, FREE, 4, 8, Placement(("dd",), 2)).memory == pytest.approx((state + kept / 8,))


@given(networks, machines, st.sampled_from([2, 4]), st.sampled_from(["dcr", "dscr", "cr"]))
@settings(max_examples=60, deadline=None)
def test_the_letters_of_the_dynamic_programme_are_those_of_trying_everything(units, machine, devices, allowed):
    best = math.inf
    for letters in itertools.product(allowed, repeat=len(units)):
        try:
            best = min(best, score(units, machine, devices, 8, Placement(("".join(letters),))).seconds)
        except RequestError:  # such as rows of an image for a layer without one
            continue
    found = letters_for(units, machine, devices, 8, allowed)
    assert found.seconds == pytest.approx(best) if found else best == math.inf


def all_stages(units, stages):
    for cut in itertools.combinations(range(1, len(units)), stages - 1):
        yield [j - i for i, j in itertools.pairwise((0, *cut, len(units)))]


@given(
    st.lists(st.builds(fc, st.integers(1, 64), st.integers(1, 64)), min_size=2, max_size=8),
    machines,
    st.integers(2, 4),
    st.sampled_from([1, 2, 8]),
)
@settings(max_examples=80, deadline=None)
def test_the_stages_are_the_best_of_all_contiguous_ones(units, machine, stages, micro):
    plans = [
        score(units, machine, stages, 8, Placement(tuple("d" * n for n in sizes), micro))
        for sizes in all_stages(units, stages)
    ]
    found = stages_for(units, machine, stages, 8, micro)
    if not plans:
        assert found is None
    else:
        best = min(plans, key=lambda plan: (not plan.fits, plan.seconds))
        assert (found.fits, found.seconds) == (best.fits, pytest.approx(best.seconds))


@given(networks, machines)
@settings(max_examples=25, deadline=None)
def test_the_optimum_is_that_of_scoring_every_placement(units, machine):
    best = math.inf
    for count in (n for n in (1, 2, 4) if n <= len(units)):
        for sizes in all_stages(units, count):
            for letters in itertools.product("dscr", repeat=len(units)):
                text = iter("".join(letters))
                stages = tuple("".join(itertools.islice(text, n)) for n in sizes)
                for micro, sharded in itertools.product((1, 2, 8), (False, True)):
                    try:
                        plan = score(units, machine, 4, 8, Placement(stages, micro, sharded))
                    except RequestError:
                        continue
                    best = min(best, plan.seconds if plan.fits else math.inf)
    if best == math.inf:
        with pytest.raises(WorkError, match="no placement"):
            optimum(units, machine, 4, 8, micros=(1, 2, 8))
    else:
        found = optimum(units, machine, 4, 8, micros=(1, 2, 8))
        assert found.fits and found.seconds == pytest.approx(best)


def test_the_parts_of_a_step_add_up_and_the_hybrid_is_never_slower_than_data_or_model():
    units = [conv(8, 16, 16), conv(16, 32, 8), fc(512, 256), fc(256, 64), fc(64, 64)]
    found = schemes(units, Machine(), 4, 64)
    assert tuple(found) == planner_search.SCHEMES and all(found.values())
    for plan in found.values():
        assert plan.seconds == pytest.approx(plan.compute + plan.communication + plan.waiting)
    assert found["hybrid"].seconds <= min(found["data"].seconds, found["model"].seconds)
    assert found["data"].seconds < found["sharded"].seconds  # sharding is not free
    assert found["pipeline"].communication > 0  # neither is a pipeline


def test_a_scheme_that_the_network_does_not_allow_is_missing():
    found = schemes([fc(64, 64), fc(64, 64)], Machine(), 4, 2)
    assert [name for name, plan in found.items() if plan is None] == ["data", "sharded", "spatial", "pipeline"]


@pytest.mark.parametrize(
    "placement, words",
    [
        (Placement(("ddx",)), "unknown letter 'x'"),
        (Placement(("dd",)), "2 letters for 3 layers"),
        (Placement(("d", "d", "d")), "3 stages on 4 devices"),
        (Placement(("ddd", "")), "each needs a layer"),
        (Placement(("ddd",), 3), "3 microbatches of a batch of 8"),
        (Placement(("ddd",), 4), "2 samples for 4 devices"),
        (Placement(("dds",)), "fc by spatial: 0 rows of an image"),
        (Placement(("dcd",)), "conv by columns: 3 output channels for 4 devices"),
    ],
)
def test_an_impossible_placement_says_why(placement, words):
    with pytest.raises(RequestError, match=words):
        score([conv(4, 4, 8), conv(4, 3, 8), fc(192, 10)], Machine(), 4, 8, placement)


def test_pieces_that_are_not_even_cost_waiting():
    plan = score([fc(64, 64)], Machine(bandwidth=math.inf, latency=0), 4, 9, Placement(("d",)))
    assert plan.waiting / plan.compute == pytest.approx(3 / (9 / 4) - 1)


def test_too_many_units_to_try_everything_are_refused():
    with pytest.raises(RequestError, match="at most nine"):
        optimum([fc(8, 8)] * 10, Machine(), 2, 8)


@pytest.mark.parametrize("ranks", [2, 4])
def test_words_and_messages_of_the_planner_are_those_counted_on_real_processes(ranks):
    texts = ["dddd", "cccc", "rrrr", "ssdd", "ddcr", "sdrc", "crcd", "rsrr", "dcrd"]
    counted = run_ranks(split_ranks.several, ranks, {text: ("placed", text, 16) for text in texts})
    units = split_runs.four_layers()
    for text in texts:
        plan = score(units, Machine(), ranks, 16, Placement((text,)))
        assert max(rank[text]["words"] for rank in counted) == round(plan.words), text
        assert max(rank[text]["messages"] for rank in counted) == plan.messages, text
        assert max(rank[text]["error"] for rank in counted) < 1e-12, text


@pytest.mark.parametrize("name", ["AlexNet", "ResNet-18"])
def test_units_of_a_network_hold_all_of_its_weights_and_work(name):
    layers = zoo.layers(zoo.build(name), zoo.NETWORKS[name].shape)
    units = planner_networks.units(name)
    assert sum(unit.weights for unit in units) == sum(layer.parameters for layer in layers)
    assert sum(unit.macs for unit in units) == sum(layer.macs for layer in layers)
    assert sum(unit.saved for unit in units) == sum(layer.words_in for layer in layers)
    assert [unit.kind for unit in units] == [layer.kind for layer in layers if layer.kind in ("conv", "fc")]
    assert units[0].name == "conv1" and units[-1].name == f"fc{len(units)}"
    with pytest.raises(RequestError, match="nothing to place"):
        planner_networks.units_of([layer for layer in layers if layer.kind == "pool"])


def test_halos_of_alexnet_are_those_of_its_windows():
    first, second = planner_networks.units("AlexNet")[:2]
    # conv1: 11 rows, stride 4, and no gradient of the image; its pooling: 3 rows, stride 2, of 64 x 55 x 55.
    assert first.halo == 3 * 224 * 7 + 2 * 64 * 55 * 1
    assert second.halo == 2 * (64 * 27 * 4 + 192 * 27 * 1)


def test_alexnet_goes_by_data_where_it_convolves_and_is_split_where_it_is_fully_connected():
    letters, rows = planner_networks.hybrid_rows("AlexNet", Machine(), 8, 256)
    found = dict(rows)
    assert letters.startswith("ddddd") and set(letters[5:]) <= {"c", "r"}
    assert found["seconds"] == pytest.approx(found["exhaustive seconds"], rel=1e-12)
    assert found["tried"] == 2 * 3**7  # three input channels do not go by rows on eight devices
    assert (found["conv by data"], found["fc split"]) == (5, 3)


def test_a_layer_that_runs_twice_is_refused_and_so_are_weights_outside_of_layers():
    shared = torch.nn.Linear(8, 8)
    with pytest.raises(RequestError, match="layer 0 runs more than once with the same weights"):
        planner_networks.units_of(zoo.layers(torch.nn.Sequential(shared, torch.nn.ReLU(), shared), (8,)))

    class Bare(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.w = torch.nn.Linear(8, 8), torch.nn.Parameter(torch.zeros(8, 8))

        def forward(self, x):
            return self.first(x) @ self.w

    with pytest.raises(RequestError, match="w: no layer that is known here uses these weights"):
        zoo.layers(Bare(), (8,))
    with pytest.raises(RequestError, match="self_attn.*no layer that is known here"):
        zoo.layers(torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), (4, 16))
