"""Compressed gradients: bytes as the formulas say, unbiased where they claim it, nothing lost where there is a memory,
and the same on real ranks under DDP, in a bare loop and in one process."""

import functools
import inspect
import math
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from labs import compression_extras, compression_ranks, compressors

from labkit.errors import RequestError, WorkError
from labkit.simulate import traced
from labkit.training.compression import Memory, State, hook_of
from labkit.training.ranks import RanksError, run_ranks

sys.path.insert(0, str(Path(__file__).parent / "workers"))
import mixing_ranks  # noqa: E402

OPTIONS = {"none": {}, "fp16": {}, "onebit": {}, "qsgd": {"levels": 2, "bucket": 100}, "terngrad": {},
           "topk": {"density": 0.1}, "randomk": {"density": 0.1}, "dgc": {"density": 0.02}, "dorefa": {"bits": 3}}
ALL = OPTIONS | {"threshold": {"tau": 0.05}, "adacomp": {"width": 20}}


def gradient(*shape, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def read(state: State, key, g: torch.Tensor) -> torch.Tensor:
    return state.now().decode(state.wire(key, g), g)


def draws(compressor, g: torch.Tensor, times: int = 1000) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.stack([compressor.decode(compressor.encode(g, generator), g) for _ in range(times)])


# Wires


@pytest.mark.parametrize("base, digits", [(2, 8), (3, 5), (4, 4), (5, 3), (9, 2), (16, 2), (17, 1), (256, 1)])
def test_codes_are_packed_as_many_to_a_byte_as_fit(base, digits):
    assert base**digits <= 256 < base ** (digits + 1)
    for count in (1, digits, digits + 1, 100):
        codes = torch.randint(base, (count,), generator=torch.Generator().manual_seed(count))
        packed = compressors.pack(codes, base)
        assert packed.dtype == torch.uint8 and len(packed) == -(-count // digits)
        assert compressors.unpack(packed, base, count).equal(codes)


@pytest.mark.parametrize("name", OPTIONS)
def test_the_wire_has_the_bytes_of_its_formula(name):
    for shape in [(1,), (7,), (513,), (24, 32), (6, 4, 3, 3)]:
        g, rows = gradient(*shape).float(), shape[0] if len(shape) > 1 else 1
        state = state_of(name)
        read(state, 0, g)
        assert state.payload == compressors.size(name, g.numel(), rows, **OPTIONS[name]), shape


def state_of(name: str, worker: int = 0, **options) -> State:
    return compression_ranks.state_of(name, worker, **(ALL[name] | options))


@pytest.mark.parametrize("name", ALL)
def test_a_gradient_of_zeros_is_read_as_zeros(name):
    assert read(state_of(name), 0, torch.zeros(50)).abs().max() == 0


@pytest.mark.parametrize("name", [name for name in ALL if name != "randomk"])  # it sees only what it draws
def test_a_gradient_that_is_not_finite_never_becomes_a_plausible_one(name):
    for bad in (math.nan, math.inf):
        g = gradient(40)
        g[7] = bad
        assert not read(state_of(name), 0, g).isfinite().all()


def test_random_numbers_are_the_ranks_own_and_the_same_again():
    g = gradient(200)
    wires = [state_of("qsgd", worker, seed=seed).wire(0, g)[0] for worker, seed in ((0, 0), (0, 0), (1, 0), (0, 1))]
    assert wires[0].equal(wires[1]) and not wires[0].equal(wires[2]) and not wires[0].equal(wires[3])


def test_float16_says_when_it_overflows_and_loses_what_is_small():
    assert read(state_of("fp16"), 0, torch.tensor([65504.0, 1e-8])).tolist() == [65504, 0]
    with pytest.raises(WorkError, match=r"1e\+05 overflows torch.float16 \(largest 65504\)"):
        read(state_of("fp16"), 0, torch.tensor([1.0, 1e5]))


# Unbiased, and by how much they vary


def unbiased(compressor, g, exact: torch.Tensor):
    """Mean and variance of each entry's draws, against g and its `exact` variance, within sampling error."""
    seen = draws(compressor, g)
    deviation = float((seen.mean(0) - g).square().sum() / (exact.sum() / len(seen)))
    assert deviation == pytest.approx(1, abs=6 * math.sqrt(2 * exact.square().sum() / exact.sum() ** 2))
    variance = (seen - g).square().sum(1).mean()
    assert float(variance) == pytest.approx(float(exact.sum()), rel=0.05)
    return variance


@pytest.mark.parametrize("levels", [1, 4, 16])
def test_qsgd_is_unbiased_and_its_variance_is_below_its_bound(levels):
    g, n = gradient(2000), 2000
    place = levels * g.abs() / g.norm()
    exact = (g.norm() / levels) ** 2 * (place % 1) * (1 - place % 1)
    variance = unbiased(compressors.quantized(levels, bucket=0), g, exact)
    assert variance <= min(n / levels**2, math.sqrt(n) / levels) * g.norm() ** 2


def test_moments_tell_the_unbiased_from_the_biased():
    for name in ("qsgd", "terngrad", "dorefa"):
        chance, variance = compression_extras.moments(compressors.NAMES[name][0](), times=200)
        assert chance == pytest.approx(1, abs=0.3) and variance > 0.1
    chance, variance = compression_extras.moments(compressors.drawn(False, 0.1), times=200)
    assert chance > 100 and variance == pytest.approx(0.1 * 0.9, rel=0.1)


def test_buckets_keep_the_variance_of_qsgd_down():
    g = gradient(2048)
    whole, parts = (draws(compressors.quantized(4, bucket), g, 50) for bucket in (0, 128))
    assert (parts - g).square().sum(1).mean() < (whole - g).square().sum(1).mean() / 2


def test_terngrad_is_unbiased_with_the_variance_of_its_coin():
    g = gradient(2000)
    unbiased(compressors.NAMES["terngrad"][0](), g, g.abs().max() * g.abs() - g**2)


def test_terngrad_sends_minus_one_zero_or_one_times_the_largest():
    g = gradient(2000)
    values = draws(compressors.NAMES["terngrad"][0](), g, 3).unique()
    assert (values / g.abs().max()).tolist() == pytest.approx([-1, 0, 1], rel=1e-6)


def test_dorefa_is_unbiased_and_has_no_zero():
    g, steps = gradient(2000), 3
    place = steps * (g / (2 * g.abs().max()) + 0.5)
    exact = (2 * g.abs().max() / steps) ** 2 * (place % 1) * (1 - place % 1)
    unbiased(compressors.dorefa(bits=2), g, exact)
    values = draws(compressors.dorefa(bits=2), g, 3).unique()
    assert (values / g.abs().max()).tolist() == pytest.approx([-1, -1 / 3, 1 / 3, 1], rel=1e-6)


def test_random_k_is_unbiased_only_if_it_is_scaled():
    g = gradient(2000)
    seen = draws(compressors.drawn(True, 0.1), g, 500)
    assert float((seen - g).square().sum(1).mean() / (g @ g)) == pytest.approx(1 / 0.1 - 1, rel=0.1)
    assert float(draws(compressors.drawn(False, 0.1), g, 500).mean(0) @ g / (g @ g)) == pytest.approx(0.1, rel=0.1)
    assert float(seen.mean(0) @ g / (g @ g)) == pytest.approx(1, rel=0.1)


# Biased ones, and memories


def test_one_bit_is_the_mean_of_either_sign_in_every_row():
    g = gradient(5, 3, 4)
    expected = torch.empty(5, 12, dtype=torch.float64)
    for row in range(5):
        entries = g.reshape(5, 12)[row].tolist()
        for place, entry in enumerate(entries):
            half = [other for other in entries if (other >= 0) == (entry >= 0)]
            expected[row, place] = sum(half) / len(half)
    read_back = read(state_of("onebit"), 0, g)
    assert read_back.reshape(5, 12).allclose(expected, rtol=1e-6)
    assert (g - read_back).flatten(1).sum(1).abs().max() < 1e-5


@pytest.mark.parametrize("name", [name for name in ALL if name not in ("dgc", "none")])
def test_with_feedback_what_was_sent_and_what_is_kept_are_all_gradients(name):
    state = state_of(name, **({} if name == "adacomp" or name == "threshold" else {"feedback": True}))
    gradients = [gradient(6, 20, seed=step) for step in range(30)]
    sent = sum(read(state, 0, g) for g in gradients)
    total = sum(gradients)
    assert (sent + state.kept[0]["rest"] - total).abs().max() < 1e-12 * len(gradients)
    assert (sent - total).abs().max() > 1e-5  # something was kept back


def test_without_feedback_the_rest_is_lost():
    state = state_of("topk", feedback=False)
    for step in range(3):
        read(state, 0, gradient(100, seed=step))
    assert state.kept == {0: {}}


def test_signs_alone_stand_still_where_signs_with_feedback_arrive():
    rates = [2.0**-octave for octave in range(1, 9)]
    assert [compression_extras.signs_alone(False, rate) for rate in rates] == pytest.approx([1.0] * 8, abs=1e-9)
    assert min(compression_extras.signs_alone(True, rate) for rate in rates) < 0.1


def test_top_k_sends_the_largest_and_all_where_that_is_fewer_bytes():
    g = gradient(1000)
    for density in (0.001, 0.1, 0.5):
        sent = compressors.topk(density)
        wire = sent.encode(g)
        kept = sent.decode(wire, g)
        assert (kept != 0).sum() == round(1000 * density) and len(wire) == 2
        assert kept.abs()[kept != 0].min() >= g.abs()[kept == 0].max()
    wire = compressors.topk(0.501).encode(g)
    assert [part.nbytes for part in wire] == [4000]
    assert compressors.topk(0.501).decode(wire, g).equal(g.float().double())


def test_the_warm_up_of_deep_gradient_compression():
    state, sparsities = state_of("dgc", density=0.001, stage=2), []
    for state.step in range(12):
        values, index = state.wire(0, gradient(100_000, seed=state.step))
        assert len(values) == len(index)
        sparsities.append(100 - len(values) / 1000)
    assert sparsities == pytest.approx(np.repeat([75, 93.75, 98.4375, 99.61, 99.9, 99.9], 2), abs=0.005)


def test_deep_gradient_compression_by_its_definition():
    state, u, v = state_of("dgc", density=0.1, momentum=0.7), np.zeros(50), np.zeros(50)
    for step in range(20):
        g = gradient(50, seed=step)
        u = 0.7 * u + g.numpy()
        v = v + u
        largest = sorted(range(50), key=lambda place: -abs(v[place]))[:5]  # noqa: B023
        expected = np.zeros(50)
        for place in largest:
            expected[place] = np.float32(v[place])
            v[place] -= expected[place]
            u[place] = 0
        assert read(state, 0, g).numpy() == pytest.approx(expected, abs=1e-12)


def test_without_momentum_it_is_top_k_with_feedback():
    one, other = state_of("dgc", momentum=0.0, density=0.1), state_of("topk")
    for step in range(10):
        g = gradient(100, seed=step)
        assert read(one, 0, g).equal(read(other, 0, g))


@pytest.mark.parametrize("masking, momentum", [(False, 0.9), (True, 0.0)])
def test_with_all_entries_sent_it_is_momentum_and_with_masking_none_is_left(masking, momentum):
    """Weights are those that torch's own SGD makes of the same gradients."""
    state = State(compressors.cast(None), Memory(feedback=True, momentum=0.9, masking=masking), worker=0)
    ours, theirs = torch.zeros(30, dtype=torch.float64), torch.zeros(30, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.SGD([theirs], lr=0.1, momentum=momentum)
    for step in range(10):
        g = gradient(30, seed=step)
        ours -= 0.1 * read(state, 0, g)
        theirs.grad = g
        optimizer.step()
    assert (ours - theirs).abs().max() < 1e-14


def test_adacomp_by_its_definition():
    state, residual = state_of("adacomp"), np.zeros(50)
    for step in range(20):
        g = gradient(50, seed=step).numpy()
        full, expected = residual + g, np.zeros(50)
        for start in range(0, 50, 20):
            part = slice(start, min(start + 20, 50))
            largest = max(abs(entry) for entry in full[part])
            for place in range(50)[part]:
                if abs(full[place] + g[place]) >= largest:
                    expected[place] = np.float32(full[place])
        residual = full - expected
        assert read(state, 0, torch.from_numpy(g)).numpy() == pytest.approx(expected, abs=1e-12)


def test_a_threshold_sends_its_own_size_only():
    state, g = state_of("threshold", tau=0.5), torch.tensor([0.5, 0.51, -3.0, 0.1])
    assert read(state, 0, g).tolist() == [0, 0.5, -0.5, 0] and state.payload == 8
    assert read(state, 0, torch.zeros(4)).tolist() == [0, 0, -0.5, 0]


@pytest.mark.parametrize("name", ALL)
def test_what_is_saved_goes_on_exactly(name):
    """In another state, by steps 3 to 7 of ten: memory, warm-up, counters, random numbers."""
    options = {"stage": 2} if name == "dgc" else {}
    one, saved, reads = state_of(name, **options), None, []
    for one.step in range(8):
        if one.step == 3:
            saved = one.state_dict()
        reads.append([read(one, key, gradient(30, seed=2 * one.step + key)) for key in range(2)])
    other = state_of(name, **options)
    other.load_state_dict(saved)
    assert other.state_dict().keys() == saved.keys() and other.step == 3
    for step in range(3, 8):
        other.step = step
        found = [read(other, key, gradient(30, seed=2 * step + key)) for key in range(2)]
        assert all(mine.equal(theirs) for mine, theirs in zip(found, reads[step], strict=True))
    assert other.payload == one.payload
    assert sorted(one.kept) == [0, 1] and (saved["kept"][0].keys() == one.kept[0].keys())


def test_saved_memory_goes_to_the_device_of_the_gradient():
    state = State(compressors.cast(None), Memory(feedback=True, momentum=0.9), worker=0)
    read(state, 0, gradient(4))
    state.memory.add(state.kept[0], torch.zeros(4, dtype=torch.float64, device="meta"))
    assert {part.device.type for part in state.kept[0].values()} == {"meta"}


# Sums of sparse tensors


def sparse_ranks(ranks: int, n: int, density: float, seed: int = 0) -> np.ndarray:
    """Float32 [ranks, n] with independent places and values that add up exactly."""
    rng = np.random.default_rng(seed)
    places = rng.random((ranks, n)) < density
    return (places * rng.integers(1, 100, (ranks, n))).astype(np.float32)


def test_the_union_of_sparse_tensors_fills_up():
    n, density = 100_000, 0.02
    for ranks in (2, 8, 32):
        seen = (sparse_ranks(ranks, n, density) != 0).any(0).mean()
        expected = compression_extras.union_density(density, ranks)
        assert seen == pytest.approx(expected, abs=5 * math.sqrt(expected * (1 - expected) / n))


def test_dense_is_smaller_from_where_the_union_has_half_of_the_entries():
    for density in (0.001, 0.01, 0.1):
        ranks = compression_extras.dense_from(density)
        assert compression_extras.union_density(density, ranks) == pytest.approx(4 / 8)
    assert compression_extras.dense_from(0.01) == pytest.approx(math.log(2) / -math.log(0.99))
    assert compression_extras.union_density(0.01, compression_extras.dense_from(0.01, 2, 4)) == pytest.approx(2 / 6)


@pytest.mark.parametrize("density, dense", [(0.001, False), (0.2, True)])
def test_a_sparse_sum_switches_to_dense_where_that_is_fewer_words(density, dense):
    arrays, n = sparse_ranks(16, 2000, density), 2000

    def program(comm, switch):
        return compression_extras.sparse_sum(arrays[comm.rank], comm, switch)

    switched, sparse = (traced.run(program, 16, switch, limit=10).results for switch in (True, False))
    for rank in range(16):
        for total, _ in (switched[rank], sparse[rank]):
            assert np.array_equal(total, arrays.sum(0))
        for step, (ours, always) in enumerate(zip(switched[rank][1], sparse[rank][1], strict=True)):
            group = range(rank >> step << step, (rank >> step << step) + 2**step)
            union = int((arrays[group] != 0).any(0).sum())
            assert always == 1 + 2 * union and ours == 1 + min(2 * union, n)
    assert (switched[0][1][-1] < sparse[0][1][-1]) == dense


def test_a_sparse_sum_needs_a_power_of_two():
    with pytest.raises(traced.TraceError, match="3 ranks: recursive doubling needs a power of 2"):
        traced.run(lambda comm: compression_extras.sparse_sum(np.zeros(4, np.float32), comm), 3)


# Real ranks

WAYS = {f"{name} {way}": ("trained", (name, way), ALL[name]) for name in ALL for way in ("ddp", "bare")}
MATRICES, VECTORS = [(32, 24), (5, 32)], [32, 5]


@functools.cache
def ranks(size: int) -> list[dict]:
    arrays = sparse_ranks(4, 500, 0.4)
    calls = WAYS | {"none torch": ("trained", ("none", "torch"), {}), "fp16 torch": ("trained", ("fp16", "torch"), {}),
                    "none, float64": ("trained", ("none", "ddp"), {"dtype": "float64"}),
                    "powersgd": ("trained", ("powersgd", "torch"), {"rank": 2}),
                    "factors": ("factors", (4, 20, 30), {}), "many factors": ("factors", (12, 20, 30), {})}
    if size == 4:
        calls["sparse"] = ("sparse", (arrays,), {})
    return run_ranks(compression_ranks.several, size, calls)


@pytest.mark.parametrize("size", [3, 4])
def test_all_ranks_hold_the_same_weights(size):
    for name in [*WAYS, "powersgd"]:
        assert all(report[name]["weights"].equal(ranks(size)[0][name]["weights"]) for report in ranks(size)), name


@pytest.mark.parametrize("size", [3, 4])
def test_the_hook_without_compression_is_ddp_and_with_float16_torchs_own(size):
    report = ranks(size)[0]
    assert report["fp16 ddp"]["weights"].equal(report["fp16 torch"]["weights"])
    apart = (report["none ddp"]["weights"] - report["none torch"]["weights"]).abs().max()
    assert apart == 0 if size == 4 else apart < 1e-6  # DDP multiplies by 1/P, which is exact for 4
    alone = compression_ranks.alone("none", size, dtype="float64")
    assert (report["none, float64"]["weights"] - alone).abs().max() < 1e-12
    assert 1e-7 < (report["fp16 ddp"]["weights"] - report["none ddp"]["weights"]).abs().max() < 1e-3


@pytest.mark.parametrize("size", [3, 4])
@pytest.mark.parametrize("name", ALL)
def test_ranks_in_one_process_are_the_real_ones(name, size):
    """Bit for bit where every rank adds up all wires; DDP takes tensors in another order: random methods notice."""
    alone = compression_ranks.alone(name, size, **ALL[name])
    bare, ddp = (ranks(size)[0][f"{name} {way}"]["weights"] for way in ("bare", "ddp"))
    if name in ("none", "fp16"):
        assert max((each - alone).abs().max() for each in (bare, ddp)) < (1e-6 if name == "none" else 1e-3)
    else:
        assert bare.equal(alone)
        assert bare.equal(ddp) == (name not in ("qsgd", "terngrad", "randomk", "dorefa"))


@pytest.mark.parametrize("size", [3, 4])
@pytest.mark.parametrize("name", OPTIONS)
def test_bytes_are_those_of_the_formula_and_of_the_dispatcher(name, size):
    payload = sum(compressors.size(name, rows * columns, rows, **OPTIONS[name]) for rows, columns in MATRICES)
    payload += sum(compressors.size(name, n, **OPTIONS[name]) for n in VECTORS)
    closed = name in ("none", "fp16")
    for way in ("ddp", "bare"):
        report = ranks(size)[0][f"{name} {way}"]
        assert report["step"] == 4 and report["payload"] == 4 * payload
        assert report["sent"] == pytest.approx(4 * payload * (size - 1) * (2 / size if closed else 1))
        assert report["calls"] == {("all_reduce", 965) if closed else ("all_gather", size * payload): 1}


@pytest.mark.parametrize("name", ["threshold", "adacomp"])
def test_wires_of_different_lengths_are_padded_to_the_longest(name):
    reports = [report[f"{name} bare"] for report in ranks(4)]
    payloads = [report["payload"] for report in reports]
    assert len(set(payloads)) > 1 and len({report["sent"] for report in reports}) == 1
    parts = 4 * (1 if name == "threshold" else 2)  # tensors times parts of a wire, a length of 8 bytes each
    assert reports[0]["sent"] >= 3 * (max(payloads) + 4 * 8 * parts)
    assert 4 * parts in {elements for _, elements in reports[0]["calls"]}


def test_powersgd_sends_two_factors_of_every_matrix():
    shapes = [*MATRICES, *((n,) for n in VECTORS)]
    words = ranks(4)[0]["powersgd"]["factors"] + sum(VECTORS)
    assert words == sum(2 * (rows + columns) for rows, columns in MATRICES) + sum(VECTORS)
    assert 4 * words == compressors.powersgd_size(shapes, rank=2)
    assert compressors.powersgd_size(shapes, rank=100) == 4 * 965


def test_real_ranks_add_up_sparse_tensors():
    arrays = sparse_ranks(4, 500, 0.4)
    for report in ranks(4):
        total, words, counted = report["sparse"]
        assert np.array_equal(total, arrays.sum(0))
        assert counted == sum(words)
    assert words[-1] == 501


@pytest.mark.parametrize("batch, name", [(4, "factors"), (12, "many factors")])
def test_the_factors_of_a_layer_give_its_gradient_and_pay_for_small_batches(batch, name):
    for report in ranks(4):
        assert report[name]["error"] < 1e-12
        assert report[name]["words of factors"] == 4 * batch * (20 + 30)
        assert report[name]["words of matrices"] == 4 * 20 * 30
    fewer = report[name]["words of factors"] < report[name]["words of matrices"]
    assert fewer == compression_extras.factors_pay(batch, 20, 30) == (batch < 12)


def test_an_overflow_on_a_rank_is_told():
    with pytest.raises(RanksError, match="overflows torch.float16"):
        run_ranks(compression_ranks.overflow, 2)


@pytest.mark.parametrize("name, way", [("none", "hook"), ("topk", "hook"), ("powersgd", "hook"), ("none", "exchange"),
                                       ("randomk", "exchange")])
def test_a_rank_with_nan_is_named_before_it_sends(name, way):
    with pytest.raises(RanksError, match="rank 1 of 3 failed: .*rank 1 has gradients that are not finite and sent"):
        run_ranks(mixing_ranks.poisoned_hook, 3, name, way, 1)


# What is refused


@pytest.mark.parametrize("name, options, message", [
    ("topp", {}, "unknown compression 'topp'; allowed: none, fp16, onebit, qsgd, terngrad, topk"),
    ("topk", {"densty": 0.1}, "unknown option of topk 'densty'; allowed: density, stage, feedback, masking, momentum"),
    ("powersgd", {"feedback": True}, "unknown option of powersgd 'feedback'; allowed: rank, start"),
    ("topk", {"density": 0}, "density must be a number from 1e-09 to 1, not 0"),
    ("qsgd", {"levels": 128}, "levels must be a whole number from 1 to 127, not 128"),
    ("qsgd", {"levels": 2.5}, "levels must be a whole number from 1 to 127, not 2.5"),
    ("qsgd", {"bucket": 1.5}, "bucket must be a whole number of 0 or more, not 1.5"),
    ("qsgd", {"bucket": math.inf}, "bucket must be a whole number of 0 or more, not inf"),
    ("qsgd", {"norm": 0.5}, "norm must be a number of 1 or more, not 0.5"),
    ("qsgd", {"levels": True}, "levels must be a whole number from 1 to 127, not True"),
    ("dorefa", {"bits": 1.5}, "bits must be a whole number from 1 to 8, not 1.5"),
    ("topk", {"stage": 0.5}, "stage must be a whole number of 0 or more, not 0.5"),
    ("topk", {"density": "a"}, "density must be a number from 1e-09 to 1, not 'a'"),
    ("topk", {"density": None}, "density must be a number from 1e-09 to 1, not None"),
    ("topk", {"density": math.nan}, "density must be a number from 1e-09 to 1, not nan"),
    ("powersgd", {"rank": 1.5}, "rank must be a whole number from 1 to 1024, not 1.5"),
    ("powersgd", {"start": 2.5}, "start must be a whole number of 2 or more, not 2.5"),
    ("dgc", {"momentum": 1.5}, "momentum must be a number from 0 to 1, not 1.5"),
    ("dgc", {"masking": "no"}, "masking must be True or False, not 'no'"),
    ("topk", {"feedback": "yes"}, "feedback must be True or False, not 'yes'"),
    ("topk", {"seed": "a"}, "seed must be a whole number of 0 or more, not 'a'"),
])
def test_a_wrong_request_is_refused(name, options, message):
    with pytest.raises(RequestError) as refused:
        hook_of(name, worker=0, **options)
    assert str(refused.value).startswith(message)


def test_every_option_has_a_rule_and_the_documentation_names_every_method():
    for name, (make, _) in compressors.NAMES.items():
        assert re.search(rf"\b{name}\b", hook_of.__doc__)
        for option in inspect.signature(make).parameters:
            with pytest.raises(RequestError, match=option):
                hook_of(name, worker=0, **{option: "2"})
    assert hook_of("qsgd", worker=0, norm=math.inf)[0].memory == Memory()
