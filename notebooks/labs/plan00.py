"""Lab 00 by profile: how hard the machine is measured."""

from dataclasses import dataclass

from labkit.profiles import setting


@dataclass(frozen=True)
class Profile:
    """Lab 00: the doctor measures the machine."""

    gemm: int = setting(1024, "side of the square matrices that are multiplied", least=16, most=16384)
    copy_mib: int = setting(256, "size of the memory copy in MiB", least=1, most=4096)
    repeats: int = setting(5, "measurements of which the median is taken", least=1)
