"""What a parameter server (`parallel.server`) leaves behind."""

from collections import namedtuple
from types import SimpleNamespace

from labkit.errors import WorkError

Update = namedtuple("Update", "worker clock read second staleness")


class Report(SimpleNamespace):
    """What a server leaves: its `parameters` (but frozen ones); `state`, from which `serve` goes on; `updates`,
    gradients in the order of arrival; who is `gone` (worker, second, why) or was `refused`; bytes of gradients
    `received`, of parameters `sent`; the largest `gap` of clocks. An `Update` tells its worker, its number there
    (clock), the gradients that had arrived when its parameters were read, the second of its arrival, and its staleness:
    optimizer steps between reading and writing, None if it was dropped or its step undone."""


class ServerError(WorkError):
    """Too few workers are left. `report` is what the server leaves, its `state` that after the last whole step."""

    report: Report
