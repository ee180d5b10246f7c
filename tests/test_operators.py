"""FLOPs equal the formulas, kinds are told apart, the parts of a step add up, the profiler prints nothing."""

import contextlib

import pytest
import torch
from torch import nn

from labkit import models
from labkit.errors import RequestError
from labs import roofline
from labs import trace


def step_of(model, images, mark=True):
    classes, optimizer = torch.zeros(len(images), dtype=torch.long), torch.optim.SGD(model.parameters(), 0.01, 0.9)

    def step(update=contextlib.nullcontext):
        nn.functional.cross_entropy(model(images), classes).backward()
        with update() if mark else contextlib.nullcontext():
            optimizer.step()
            optimizer.zero_grad()

    return step


def test_the_roofs_meet_at_the_balance():
    roof = roofline.Roofline(peak=1e11, bandwidth=1e10)
    assert roof.balance == 10.0
    assert [roof.attainable(x) for x in (1.0, 10.0, 100.0)] == [1e10, 1e11, 1e11]
    with pytest.raises(RequestError, match="must both be more than 0"):
        roofline.Roofline(0.0, 1.0)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_both_roofs_are_measured_in_this_dtype(dtype):
    roof = roofline.measure(dtype, side=64, mib=1, repeats=1)
    assert roof.peak > 0 and roof.bandwidth > 0 and (roof.dtype, roof.device) == (dtype, "cpu")


def test_an_unknown_dtype_or_no_size_is_refused():
    with pytest.raises(RequestError, match="int8"):
        roofline.measure("int8")
    with pytest.raises(RequestError, match="side 0 is out of range"):
        roofline.measure(side=0)


def test_flops_of_a_plain_network_are_those_of_its_products():
    widths, batch = [196] + [32] * 3 + [10], 8
    model = models.build("deep-mlp", image_shape=(1, 14, 14), width=32, depth=3)
    products = [a * b for a, b in zip(widths, widths[1:])]
    found = trace.trace(step_of(model, torch.rand(batch, 1, 14, 14)), repeats=1)
    assert found.flops == 2 * batch * (3 * sum(products) - products[0])  # the first layer's input needs no gradient


def test_flops_of_a_convolution_equal_the_loops():
    model = nn.Sequential(nn.Conv2d(3, 5, 3, padding=1), nn.Conv2d(5, 4, 3), nn.Flatten())
    found = trace.trace(step_of(model, torch.rand(2, 3, 8, 8)), repeats=1)
    first, second = 2 * 2 * 5 * 8 * 8 * 3 * 9, 2 * 2 * 4 * 6 * 6 * 5 * 9
    assert found.flops == 2 * first + 3 * second


@pytest.mark.filterwarnings("ignore:TF32 acceleration")
@pytest.mark.parametrize("fused", [True, False])
def test_flops_of_a_recurrent_layer_are_the_same_fused_or_not(fused):
    batch, steps, inputs, hidden = 4, 7, 6, 5
    model = models.build("row-lstm", image_shape=(1, steps, 9), projection=inputs, hidden=hidden)
    with contextlib.nullcontext() if fused else torch.backends.mkldnn.flags(enabled=False):
        found = trace.trace(step_of(model, torch.rand(batch, 1, steps, 9)), repeats=1)
    gates = 2 * batch * steps * 4 * hidden * (inputs + hidden)
    projection, classifier = 2 * batch * steps * 9 * inputs, 2 * batch * hidden * 10
    assert found.flops == pytest.approx(3 * gates + 2 * projection + 3 * classifier, rel=0.06)


def test_bytes_are_the_tensors_in_and_out():
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 8, bias=False))
    found = trace.trace(step_of(model, torch.rand(4, 1, 4, 4)), repeats=1)
    forward, backward = 4 * 16 + 16 * 8 + 4 * 8, 4 * 8 + 4 * 16 + 16 * 8
    assert found.kinds["gemm/conv"].bytes == 4 * (forward + backward)


def test_the_parts_add_up_and_the_update_is_told_by_its_place():
    model = models.build("resnet8", image_shape=(1, 14, 14))
    found = trace.trace(step_of(model, torch.rand(8, 1, 14, 14)), repeats=1)
    assert set(found.kinds) == set(trace.KINDS)
    assert sum(k.seconds for k in found.kinds.values()) == pytest.approx(found.profiled, rel=1e-6)
    for kind in ("gemm/conv", "norm", "elementwise", "reduction/loss", "optimizer", "overhead"):
        assert found.kinds[kind].seconds > 0, kind
    parameters = sum(p.numel() for p in model.parameters())
    assert found.kinds["optimizer"].bytes >= 4 * 3 * parameters  # weight, gradient and momentum are all touched
    assert found.matrix_units is None
    unmarked = trace.trace(step_of(model, torch.rand(8, 1, 14, 14), mark=False), repeats=1)
    assert unmarked.kinds["optimizer"].seconds == 0


def test_the_profiler_writes_nothing(capfd):
    trace.trace(step_of(nn.Sequential(nn.Flatten(), nn.Linear(4, 2)), torch.rand(2, 1, 2, 2)), repeats=1)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    "kind, names",
    {
        "gemm/conv": "mm addmm bmm mkldnn_convolution convolution_backward _cudnn_rnn mkldnn_rnn_layer_backward",
        "norm": "native_batch_norm cudnn_batch_norm_backward native_layer_norm _fused_rms_norm",
        "pooling": "max_pool2d_with_indices avg_pool2d_backward _adaptive_avg_pool2d",
        "reduction/loss": "sum mean _log_softmax nll_loss_backward max argmax norm",
        "elementwise": "add_ relu_ clamp_min_ threshold_backward mul.Tensor _foreach_add_ exp maximum ge lerp_",
        "data movement": "copy_ _to_copy cat constant_pad_nd fill_ zeros_like index_select slice_backward new_zeros",
        "overhead": "t view transpose expand as_strided empty_strided new_empty conv2d linear lstm to detach unsqueeze",
        "other": "fft_r2c histc",
    }.items(),
)
def test_operators_are_sorted_by_name(kind, names):
    assert {name: trace.kind_of(f"aten::{name}") for name in names.split()} == dict.fromkeys(names.split(), kind)


def test_what_is_not_an_operator_of_aten_is_overhead():
    for name in ("autograd::engine::evaluate_function: MmBackward0", "MmBackward0", "Optimizer.step#SGD.step"):
        assert trace.kind_of(name) == "overhead"


@pytest.mark.parametrize(
    "name, used",
    [
        ("volta_fp16_s884gemm_fp16_128x128_ldg8_f2f_nn", True),
        ("ampere_bf16_s16816gemm_bf16_256x128_ldg8_f2f_stages_32x3_tn", True),
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute", True),
        ("cutlass_80_tensorop_s1688gemm_128x256_16x3_nt_align4", True),
        ("volta_sgemm_128x64_nn", False),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>", False),
        ("void cudnn::bn_fw_tr_1C11_kernel_NCHW<__half, float, 512, true, 1, true>", False),
    ],
)
def test_matrix_units_show_in_a_gpu_kernels_name(name, used):
    assert bool(trace.MATRIX_UNITS.search(name)) is used
