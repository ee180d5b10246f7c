"""What communication costs data-parallel training: the alpha-beta model of a ring all-reduce. numpy only.

Sending a message of n bytes takes alpha + n beta seconds. When not to use it: to forecast a cluster without
calibrating it on that cluster. It knows no congestion, no stragglers, no hierarchy of links and no tuned algorithm."""

import numpy as np

from labkit.errors import RequestError


def ring_seconds(workers, size: float, alpha: float, beta: float):
    """Seconds of a ring all-reduce of `size` bytes: 2 (P - 1) alpha + 2 (P - 1) / P size beta.

    2 (P - 1) rounds, in each of which every worker sends size / P bytes (reduce-scatter, then all-gather).

    Args:
        workers: P, 1 or more; a number or an array. alpha: seconds a message. beta: seconds a byte.

    Raises:
        RequestError: fewer than one worker, or a negative cost."""
    workers = np.asarray(workers, float)
    if np.any(workers < 1) or min(size, alpha, beta) < 0:
        raise RequestError("a ring needs one worker or more, and size, alpha and beta of 0 or more")
    return 2 * (workers - 1) * alpha + 2 * (workers - 1) / workers * size * beta


def step_seconds(compute, communication, overlap: float = 0.0):
    """(seconds of a step, share of it that waits for communication).

    Args:
        overlap: fraction of the computing during which gradients can already be sent, 0 to 1.

    Raises:
        RequestError: `overlap` is not between 0 and 1."""
    if not 0 <= overlap <= 1:
        raise RequestError(f"overlap {overlap} is out of range; it must lie between 0 and 1")
    exposed = np.maximum(0.0, np.asarray(communication, float) - overlap * np.asarray(compute, float))
    seconds = compute + exposed
    return seconds, exposed / seconds


def calibrate(samples, steps, workers, seconds, size: float, alpha: float) -> tuple[float, float]:
    """(seconds a sample on one worker, beta of what communication leaves exposed) that fit whole runs best.

    seconds = samples / P x compute + steps x ring, by least squares on relative errors, both unknowns 0 or more. The
    beta holds what overlap hides, so use it with `overlap=0`.

    Args:
        samples, steps, workers, seconds: of each run, two runs or more with different numbers of workers.

    Raises:
        RequestError: fewer than two different numbers of workers."""
    from scipy.optimize import nnls

    samples, steps, workers, seconds = (np.asarray(x, float) for x in (samples, steps, workers, seconds))
    if len(set(workers)) < 2:
        raise RequestError("calibration needs runs at two different numbers of workers")
    latency = steps * ring_seconds(workers, 0.0, alpha, 0.0)
    design = np.stack([samples / workers, steps * ring_seconds(workers, size, 0.0, 1.0)], axis=1) / seconds[:, None]
    scale = design.max(axis=0)  # both unknowns near 1: the solver's tolerance is absolute
    compute, beta = nnls(design / scale, (seconds - latency) / seconds)[0] / scale
    return float(compute), float(beta)
