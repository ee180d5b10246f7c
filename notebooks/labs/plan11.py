"""Lab 11 by profile: the recipe that is trained to a target, many times."""

from dataclasses import dataclass

from labkit.errors import RequestError
from labkit.experiment import Recipe
from labkit.profiles import setting


@dataclass(frozen=True)
class Profile:
    """Lab 11: train to a target, many times."""

    data: str = setting("mnist5k", "dataset", among=("mnist5k", "procedural", "mnist", "fashion-mnist"))
    train: int = setting(4096, "training images", least=1, most=60000)
    pool: int = setting(1, "mean-pool the images by this factor", among=(1, 2))
    validation: int = setting(0, "validation images; 0: what the dataset gives", least=0)
    test: int = setting(0, "test images, seen at the end only; 0: what the dataset gives", least=0)
    model: str = setting("deep-mlp", "model", among=("deep-mlp", "resnet8", "resnet20", "resnet9", "row-lstm"))
    sizes: dict = setting({"width": 64, "depth": 2}, "keyword arguments of the model")
    batch: int = setting(64, "batch size", least=1)
    rate: float = setting(0.05, "peak rate", above=0)
    epochs: float = setting(16.0, "epochs at most", above=0)
    runs: int = setting(12, "independent runs, seeds counted from the first of `seeds`", least=2, most=10000)
    target: float = setting(0.93, "validation accuracy to reach", above=0, most=1)
    evaluate_every: int = setting(8, "optimizer steps between evaluations", least=1)
    coarse_every: list[int] = setting(
        [8, 64, 256], "evaluation intervals at which the same runs are read again", least=1
    )
    larger: int = setting(4, "how many times larger the batch is whose speed-up is split", least=2)
    price: float = setting(1.0, "dollars per hour of this machine", above=0)

    def __post_init__(self):
        if self.batch > self.train:
            raise RequestError(
                f"batch {self.batch} is larger than the {self.train} training images; choose a batch of at most {self.train}"
            )
        for every in self.coarse_every:
            if every % self.evaluate_every:
                raise RequestError(
                    f"coarse_every holds {every}, which is not a multiple of evaluate_every ({self.evaluate_every})"
                )


def repeated(settings: Profile) -> Recipe:
    """Lab 11's recipe: one cycle of warm-up and cosine, trained to the end with an evaluation every few steps, so that
    the same run can be read as if it had been evaluated less often.
    """
    steps = settings.epochs * (settings.train // settings.batch)
    return Recipe(
        data=settings.data,
        train=settings.train,
        pool=settings.pool,
        validation=settings.validation or None,
        test=settings.test or None,
        evaluate_on=("validation",),
        model=settings.model,
        sizes=settings.sizes,
        batch=settings.batch,
        rate=settings.rate,
        epochs=settings.epochs,
        warmup_steps=round(steps / 10),
        decay="cosine",
        options={"momentum": 0.9, "nesterov": True},
        evaluate_every=settings.evaluate_every,
        target={"metric": "validation_accuracy", "value": settings.target, "higher": True},
    )
