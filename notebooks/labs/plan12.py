"""Lab 12 by profile: how many resamples an interval takes, and how many runs of your own lie beside the public ones."""

from dataclasses import dataclass

from labkit import profiles
from labkit.experiment import Recipe
from labkit.profiles import setting
from labs import plan11


@dataclass(frozen=True)
class Profile:
    """Lab 12: read the public logs."""

    resamples: int = setting(4000, "bootstrap resamples of an interval", least=50, most=100000)
    own: str = setting("quick", "profile of lab 11 whose recipe your own runs follow", among=profiles.NAMES)
    runs: int = setting(6, "your own runs, if lab 11 left fewer", least=3, most=1000)


def own(settings: Profile) -> Recipe:
    """The recipe of lab 11 at the profile that `own` names."""
    return plan11.repeated(profiles.resolve("11", settings.own))
