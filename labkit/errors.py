"""The two ways a request can end badly, and the exit status of each.

Every message is written for a person: what was wrong, what is allowed, what to do."""


class RequestError(ValueError):
    """The request itself was wrong (exit 2): nothing was started and nothing was written."""


class WorkError(RuntimeError):
    """The request was right and the work failed (exit 1)."""


def choose(kind: str, given: object, allowed) -> None:
    """Refuse `given` unless it is one of `allowed`, naming both.

    Raises:
        RequestError: one line, e.g. ``unknown profile 'quik'; allowed: smoke, quick, full``."""
    options = [str(option) for option in allowed]
    if str(given) not in options:
        raise RequestError(f"unknown {kind} {str(given)!r}; allowed: {', '.join(options) or 'none'}")
