"""One rank of two that train `w -> 0.5 |w - x|^2` by DDP; rank 0 saves what `GradientNoise` measured.

Usage: noise_ddp.py OUTPUT, with RANK, LOCAL_RANK and WORLD_SIZE set.
"""

import os
import sys

import pytorch_lightning as pl
import torch

from labkit.optim.noise import GradientNoise

STEPS, RANKS, ROWS, WIDTH = 6, 2, 4, 5


def samples() -> torch.Tensor:
    """[steps, ranks, rows, width], float64."""
    generator = torch.Generator().manual_seed(3)
    return 1.0 + 2.0 * torch.randn(STEPS, RANKS, ROWS, WIDTH, generator=generator, dtype=torch.float64)


class Pull(pl.LightningModule):
    """The mean over rows of 0.5 |w - x|^2: its gradient is w - mean(x), the covariance of one sample is that of x."""

    def __init__(self, rate: float = 0.1, width: int = WIDTH):
        super().__init__()
        self.rate = rate
        self.near = torch.nn.Parameter(torch.zeros(width // 2, dtype=torch.float64))
        self.far = torch.nn.Parameter(torch.zeros(width - width // 2, dtype=torch.float64))

    def training_step(self, batch, batch_index):
        return 0.5 * (torch.cat([self.near, self.far]) - batch).square().sum(1).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.rate)


def fit(batches, callback, module=None, **options) -> Pull:
    module = module or Pull()
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "barebones": False}
    trainer = pl.Trainer(
        accelerator="cpu",
        max_epochs=1,
        enable_checkpointing=False,
        use_distributed_sampler=False,
        callbacks=[callback],
        **{**quiet, **options},
    )
    trainer.fit(module, torch.utils.data.DataLoader(batches, batch_size=None))
    return module


def main(output: str) -> None:
    rank = int(os.environ["RANK"])
    callback = GradientNoise()
    module = fit(samples()[:, rank], callback, strategy="ddp", devices=RANKS)
    if rank == 0:
        torch.save({"traces": callback.traces, "squares": callback.squares, "far": module.far.detach()}, output)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
