"""The Lightning task alone: what it learns, what it counts, and that how a batch is split cannot be seen."""

import importlib.util
import socket
from pathlib import Path

import pytest
import pytorch_lightning as pl
import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from labkit import runs
from labkit.datasets.memory import DeviceBatches, evaluation_batches
from labkit.errors import RequestError
from labkit.optim import build
from labkit.optim.schedules import Schedule
from labkit.tasks import ImageClassification

WORKER = Path(__file__).parent / "workers" / "ddp.py"
QUIET = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}


def toy(dtype=torch.float32, samples: int = 96):
    """Images of 4 x 4 whose mean is their class, so that a linear model can tell the three classes apart."""
    generator = torch.Generator().manual_seed(1)
    y = torch.arange(samples) % 3
    x = torch.randn(samples, 1, 4, 4, generator=generator, dtype=dtype) + 2 * (y.view(-1, 1, 1, 1) - 1)
    return x, y


def mlp(dtype=torch.float32):
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3)).to(
        dtype
    )


def in_order(x, y, batch: int = 40) -> DataLoader:
    return DataLoader(TensorDataset(x, y), batch)


def trainer(steps: int, **options) -> pl.Trainer:
    return pl.Trainer(accelerator="cpu", devices=1, max_steps=steps, **{**QUIET, **options})


def mean_loss(model, x, y) -> float:
    return F.cross_entropy(model(x), y).item()


class Rates(pl.Callback):
    """The rate that each optimizer step used."""

    def __init__(self):
        self.seen = []

    def on_before_optimizer_step(self, trainer, task, optimizer):
        self.seen.append(optimizer.param_groups[0]["lr"])


def own_optimizer(task):
    return torch.optim.SGD(task.parameters(), lr=0.3)


@pytest.mark.parametrize(
    "optimizer, rate", [("sgd", 0.3), ("adamw", 0.03), ("lars", 0.3), ("lamb", 0.1), (own_optimizer, None)]
)
def test_a_plain_trainer_is_enough_and_the_loss_falls(optimizer, rate):
    x, y = toy()
    model = mlp()
    before = mean_loss(model, x, y)
    # the biases are outside the trust ratio and take the rate as it is, so the ratio has to suit the rate
    options = {"trust_coefficient": 0.1} if optimizer == "lars" else {}
    task = ImageClassification(
        model, optimizer, rate and Schedule(peak=rate, total_steps=30), optimizer_options=options
    )
    boss = trainer(30)
    boss.fit(task, DeviceBatches(x, y, 32), in_order(x, y))
    assert boss.global_step == 30
    assert mean_loss(model, x, y) < 0.5 * before
    assert float(boss.callback_metrics["validation_accuracy"]) > 0.9


def test_bf16_mixed_computes_in_bfloat16_and_learns_with_float32_weights():
    x, y = toy()
    model, seen = mlp(), []
    before = mean_loss(model, x, y)
    model[1].register_forward_hook(lambda module, inputs, output: seen.append(output.dtype))
    task = ImageClassification(model, "sgd", Schedule(peak=0.2, total_steps=20))
    trainer(20, precision="bf16-mixed").fit(task, DeviceBatches(x, y, 32), in_order(x, y))
    assert set(seen) == {torch.bfloat16}
    assert {weight.dtype for weight in model.parameters()} == {torch.float32}
    assert mean_loss(model, x, y) < 0.5 * before


def test_four_accumulated_micro_batches_are_one_batch_and_the_schedule_counts_optimizer_steps():
    x, y = toy(torch.float64)
    schedule = Schedule(peak=0.2, total_steps=8, warmup_steps=3, decay="cosine")
    ends, rates = [], []
    for parts in (1, 4):
        task = ImageClassification(mlp(torch.float64), "sgd", schedule, optimizer_options={"momentum": 0.9})
        rates.append(Rates())
        # one order for both: four micro-batches of 8 in a row are the batch of 32
        batches = DeviceBatches(x, y, 32 // parts, seed=5, dtype=torch.float64)
        boss = trainer(8, accumulate_grad_batches=parts, callbacks=[rates[-1]])
        boss.fit(task, batches, in_order(x, y))
        assert boss.global_step == 8
        ends.append(task.model.state_dict())
    for name in ends[0]:
        torch.testing.assert_close(ends[1][name], ends[0][name], rtol=0, atol=1e-10)
    assert rates[0].seen == rates[1].seen == [schedule(step) for step in range(8)]


@pytest.mark.parametrize("optimizer, rate", [("sgd", 0.1), ("adamw", 0.01), ("lamb", 0.01)])
def test_resumed_after_half_is_bit_for_bit_the_run_that_was_not_interrupted(tmp_path, optimizer, rate):
    x, y = toy(samples=160)
    schedule = Schedule(peak=rate, total_steps=20, warmup_steps=4, decay="poly")

    def parts():
        options = {"momentum": 0.9} if optimizer == "sgd" else {"weight_decay": 0.01}
        return (
            ImageClassification(mlp(), optimizer, schedule, optimizer_options=options),
            DeviceBatches(x, y, 32, seed=2, augment=("flip", "crop")),  # five steps an epoch
            Rates(),
        )

    straight, batches, all_rates = parts()
    trainer(20, callbacks=[all_rates]).fit(straight, batches, in_order(x, y))

    first, batches, _ = parts()
    boss = trainer(10)
    boss.fit(first, batches, in_order(x, y))
    boss.save_checkpoint(tmp_path / "half.ckpt")

    second, batches, late_rates = parts()
    boss = trainer(20, callbacks=[late_rates])
    boss.fit(second, batches, in_order(x, y), ckpt_path=tmp_path / "half.ckpt", weights_only=False)
    assert boss.global_step == 20
    assert late_rates.seen == all_rates.seen[10:] == [schedule(step) for step in range(10, 20)]
    for name, weight in straight.state_dict().items():
        assert torch.equal(second.state_dict()[name], weight), name
    assert not torch.equal(first.model[1].weight, straight.model[1].weight)


def test_one_loader_for_each_evaluation_or_a_clear_word():
    x, y = toy()
    for evaluations, loaders in ((("validation", "test"), [in_order(x, y)]), (("validation",), [in_order(x, y)] * 2)):
        task = ImageClassification(mlp(), evaluations=evaluations)
        with pytest.raises(RequestError, match="give one loader each"):
            trainer(3).fit(task, DeviceBatches(x, y, 32), loaders)


def test_evaluation_batches_are_one_loader_for_lightning():
    x, y = toy()
    task = ImageClassification(mlp())
    boss = trainer(3, check_val_every_n_epoch=1)
    boss.fit(task, DeviceBatches(x, y, 32), evaluation_batches(x, y, 40))
    with torch.no_grad():
        hits = sum(int((task.cpu()(xs).argmax(1) == ys).sum()) for xs, ys in evaluation_batches(x, y, 40))
    assert float(boss.callback_metrics["validation_accuracy"]) == pytest.approx(hits / len(x))


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


@pytest.fixture(scope="module")
def two_ranks(python, tmp_path_factory) -> dict:
    """What rank 0 of two gloo processes left, and the runs that it wrote."""
    output = tmp_path_factory.mktemp("ddp") / "ends.pt"
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "WORLD_SIZE": "2", "NODE_RANK": "0"}
    ranks = [python(WORKER, output, env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank)}) for rank in (0, 1)]
    for child in ranks:
        _, errors = child.communicate(timeout=240)
        assert child.returncode == 0, errors
    assert sorted(path.name for path in output.parent.iterdir()) == ["ends.pt", "stopped.jsonl", "whole.jsonl"]
    return torch.load(output) | {"run": runs.read(output.with_name("whole.jsonl"))}


def test_two_processes_of_half_a_batch_are_one_process_of_the_whole_batch(two_ranks):
    spec = importlib.util.spec_from_file_location("ddp_worker", WORKER)
    worker = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(worker)
    task, (batches, evaluation) = worker.task(), worker.data()
    boss = worker.trainer(devices=1, val_check_interval=2)
    boss.fit(task, batches, evaluation)

    both, start = two_ranks["whole"], worker.task().state_dict()
    assert both["steps"] == boss.global_step == 6
    for name, weight in task.state_dict().items():
        torch.testing.assert_close(both["weights"][name], weight, rtol=0, atol=1e-10)
        assert not torch.equal(weight, start[name])
    assert both["metrics"] == {name: pytest.approx(float(value)) for name, value in boss.callback_metrics.items()}


def test_rank_zero_keeps_the_clock_and_ends_training_for_all(two_ranks):
    run = two_ranks["run"]
    assert [(row.step, row.samples) for row in run.series("validation_accuracy")] == [(2, 48), (4, 96), (6, 144)]
    assert [span.kind for span in run.spans][:6] == ["train", "evaluate"] * 3
    assert two_ranks["stopped"]["steps"] == 2  # the first evaluation meets the target; neither rank waits for ever


def test_metrics_are_the_hand_count_over_uneven_batches_in_evaluation_mode():
    x, y = toy(samples=50)
    other_x, other_y = toy(samples=21)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Dropout(0.5), torch.nn.Linear(16, 3))
    task = ImageClassification(model, evaluations=("validation", "test"), label_smoothing=0.3)
    loaders = [in_order(x, y, 16), in_order(other_x, other_y, 16)]
    boss = trainer(1)
    boss.validate(task, loaders, verbose=False)
    weight, bias = model[2].weight, model[2].bias
    for name, images, classes in (("validation", x, y), ("test", other_x, other_y)):
        correct, loss = 0, 0.0
        for image, label in zip(images, classes, strict=True):
            scores = (weight @ image.flatten() + bias).detach()
            correct += int(scores.argmax() == label)
            loss += float(torch.logsumexp(scores, 0) - scores[label])  # label smoothing is of the training loss only
        assert float(boss.callback_metrics[f"{name}_accuracy"]) == pytest.approx(correct / len(classes), rel=1e-6)
        assert float(boss.callback_metrics[f"{name}_loss"]) == pytest.approx(loss / len(classes), rel=1e-5)


def test_label_smoothing_mixes_the_uniform_distribution_into_the_training_loss():
    x, y = toy()
    model = mlp()
    plain, uniform = mean_loss(model, x, y), -model(x).log_softmax(1).mean().item()
    task = ImageClassification(model, label_smoothing=0.2)
    assert task.training_step((x, y), 0).item() == pytest.approx(0.8 * plain + 0.2 * uniform, rel=1e-6)


@pytest.mark.parametrize("smoothing", [-0.1, 1.0, 2.0, float("nan")])
def test_label_smoothing_outside_its_range_is_refused(smoothing):
    with pytest.raises(RequestError, match=r"label_smoothing .* out of range.*\[0, 1\)"):
        ImageClassification(mlp(), label_smoothing=smoothing)


def test_optimizers_and_options_are_refused_by_name():
    with pytest.raises(RequestError, match="unknown optimizer 'sdg'; allowed: sgd, adam"):
        ImageClassification(mlp(), "sdg").configure_optimizers()
    with pytest.raises(RequestError, match="unknown option of sgd 'betas'; allowed: momentum, weight_decay, nesterov"):
        ImageClassification(mlp(), "sgd", optimizer_options={"betas": (0.9, 0.99)}).configure_optimizers()
    with pytest.raises(RequestError, match="lars has no default rate"):
        ImageClassification(mlp(), "lars").configure_optimizers()
    with pytest.raises(RequestError, match="rate -0.1 of sgd is negative"):
        build.build("sgd", mlp(), rate=-0.1)


@pytest.mark.parametrize("name", build.OPTIONS)
def test_weight_decay_spares_biases_under_every_optimizer(name):
    optimizer = build.build(name, mlp(), rate=0.1, weight_decay=0.01)
    decay = {parameter.ndim: group["weight_decay"] for group in optimizer.param_groups for parameter in group["params"]}
    assert decay == {2: 0.01, 1: 0.0}
