"""Compressors at the ends of what may come: large numbers, few bits, empty tensors, options that are fractions."""

import math

import pytest
import torch
from labs import compression_extras, compressors
from labs.compressors import NAMES

from labkit.errors import RequestError, WorkError
from labkit.training.compression import hook_of
from labkit.training.ranks import run_ranks

MADE = {name: make() for name, (make, _) in NAMES.items() if name != "powersgd"}
MADE |= {"qsgd, one bucket": compressors.quantized(4, 0), "qsgd, 127 levels": compressors.quantized(127, 64, math.inf),
         "topk, all": compressors.topk(1.0), "dgc, stages": compressors.topk(0.01, 2).at(0),
         "threshold": compression_extras.threshold(0.5), "dorefa, 8 bits": compressors.dorefa(8)}  # fmt: skip
EXACT = ("none", "fp16")  # what does not fit is theirs to say, at once


def read(compressor, g):
    return compressor.decode(compressor.encode(g, torch.Generator().manual_seed(0)), g)


def normal(*shape, dtype=torch.float64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)


@pytest.mark.parametrize("name", [name for name in MADE if name not in (*EXACT, "threshold")])
def test_what_float32_cannot_hold_is_told(name):
    with pytest.raises(WorkError, match=r"up to \S+e\+200 in torch.float64 cannot be read"):
        read(MADE[name], 1e200 * normal(6, 50))


@pytest.mark.parametrize("dtype, largest", [(torch.float32, 3e38), (torch.float64, 3e38), (torch.float32, 1e30),
                                            (torch.float16, 6e4), (torch.bfloat16, 3e38)])  # fmt: skip
@pytest.mark.parametrize("name", MADE)
def test_what_is_finite_is_read_as_finite_numbers_or_refused(name, dtype, largest):
    g = torch.full((4, 64), largest, dtype=dtype)
    g[1::2, ::2] *= -1
    try:
        assert read(MADE[name], g).isfinite().all()
    except WorkError as error:
        assert "cannot be read" in str(error) or "overflows torch.float16" in str(error)
        assert name in ("fp16", "randomk_scaled") or "qsgd" in name  # the others never enlarge an entry


@pytest.mark.parametrize("name", [name for name in MADE if name not in EXACT])
@pytest.mark.parametrize("scale", [2.0**100, 2.0**-100])
def test_a_large_gradient_is_read_as_a_small_one_times_its_scale(name, scale):
    """2^100 squared is beyond float32, 2^-100 squared is 0 there: neither may show."""
    if name == "threshold" or (scale < 1 and "qsgd" in name):  # the first has a unit; norms below 1e-19 are read as 0
        return
    g = normal(3, 70, dtype=torch.float32)
    assert read(MADE[name], scale * g).allclose(scale * read(MADE[name], g), rtol=1e-5, atol=0)


def test_a_mean_of_what_has_too_large_a_sum():
    g = torch.tensor([[3e38, 2e38, 1e38, -1e38, -3e38]])
    assert read(MADE["onebit"], g).tolist()[0] == pytest.approx([2e38, 2e38, 2e38, -2e38, -2e38], rel=1e-6)


def test_halves_are_computed_in_float32():
    g = torch.full((256,), 6e4, dtype=torch.float16)
    assert read(MADE["onebit"], g).tolist() == [6e4] * 256
    assert read(MADE["terngrad"], g).tolist() == [6e4] * 256
    with pytest.raises(WorkError, match=r"up to 6e\+04 in torch.float16 cannot be read"):
        MADE["qsgd"].encode(g, torch.Generator().manual_seed(0))  # some are rounded up to a quarter of the norm, 2.4e5


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0), (2, 0, 3)])
@pytest.mark.parametrize("name", MADE)
def test_an_empty_tensor_has_an_empty_wire(name, shape):
    g = torch.zeros(shape)
    wire = MADE[name].encode(g, torch.Generator())
    assert sum(part.nbytes for part in wire) == 0 and MADE[name].decode(wire, g).shape == shape
    if name in NAMES:
        assert compressors.size(name, 0, shape[0], bucket=0) == 0


def with_an_empty_one(name: str):
    from labkit.training.compression import exchange

    state = hook_of(name)[0]
    gradients = [torch.ones(3, 2), torch.zeros(0, 3), torch.ones(2)]
    exchange(gradients, state)
    return gradients


@pytest.mark.parametrize("name", ["onebit", "terngrad", "dorefa", "none"])
def test_real_ranks_exchange_empty_tensors_beside_others(name):
    for report in run_ranks(with_an_empty_one, 2, name):
        assert [part.tolist() for part in report] == [[[1, 1]] * 3, [], [1, 1]]


@pytest.mark.parametrize("make, option, wrong", [
    (compressors.quantized, "levels", 2.5), (compressors.quantized, "levels", 0),
    (compressors.quantized, "levels", 128), (compressors.quantized, "bucket", 1.5),
    (compressors.quantized, "bucket", -1), (compressors.topk, "stage", 0.5),
    (compressors.topk, "stage", math.inf), (compressors.dorefa, "bits", 2.5), (compressors.dorefa, "bits", 9),
    (compressors.powersgd, "rank", 1.5), (compressors.powersgd, "rank", 0), (compressors.powersgd, "start", 2.5),
    (compression_extras.AdaComp, "width", 0.5), (compressors.quantized, "levels", math.nan),
])  # fmt: skip
def test_what_is_counted_is_whole(make, option, wrong):
    with pytest.raises(RequestError, match=f"{option} {wrong} must be a whole number, from"):
        make(**{option: wrong})


def test_whole_numbers_may_be_written_as_floats():
    g = normal(500)
    assert read(compressors.quantized(4.0, 100.0), g).equal(read(compressors.quantized(4, 100), g))
    assert read(compressors.dorefa(3.0), g).equal(read(compressors.dorefa(3), g))


@pytest.mark.parametrize("tau", [0.0, -1.0, math.nan, math.inf])
def test_a_threshold_is_a_size(tau):
    with pytest.raises(RequestError, match="must be above 0 and finite"):
        compression_extras.threshold(tau)


def test_what_is_unbiased_keeps_no_memory():
    """Scaled random entries have errors larger than the gradient: fed back, they grow without end."""
    assert hook_of("randomk", worker=0)[0].memory.feedback
    assert not hook_of("randomk_scaled", worker=0)[0].memory.feedback
    with pytest.raises(RequestError, match="for use without feedback"):
        hook_of("randomk_scaled", worker=0, feedback=True)
    with pytest.raises(RequestError, match="unknown option of randomk 'scale'"):
        hook_of("randomk", worker=0, scale=True)
