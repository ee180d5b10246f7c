"""Rules about all-reduce: counts against the formulas, lower bounds, and which algorithm is fastest where."""

import numpy as np

from labkit.rules.finding import Finding, chosen, needs


def formula(algorithm: str, size: int, words: int) -> tuple[float, float]:
    """(rounds, words) on the critical path of an all-reduce, for `words` divisible by `size` and by the largest power
    of two in it. A fold adds to that power of two: a round of n words before, and another after."""
    log = (size - 1).bit_length()
    core = 1 << (size.bit_length() - 1)
    deep, fold = core.bit_length() - 1, core < size
    table = {
        "tree": (2 * log, 2 * words * log),
        "butterfly": (deep + 2 * fold, words * (deep + 2 * fold)),
        "ring": (2 * (size - 1), 2 * words * (size - 1) / size),
        "rabenseifner": (2 * deep + 2 * fold, 2 * words * (core - 1) / core + 2 * words * fold),
    }
    return table[algorithm]


def counted(runs, algorithm: str, words: int) -> dict:
    """{size: {(rounds, words), ...}} of an algorithm, from all runs that recorded them; the size is in `samples`."""
    found = {}
    for run in chosen(runs, {"evidence": "counts", "algorithm": algorithm, "words": words}):
        moved = {row.samples: row.value for row in run.series("words")}
        for row in run.series("rounds"):
            found.setdefault(row.samples, set()).add((row.value, moved.get(row.samples)))
    return found


def counts_equal_formulas(runs, *, algorithms, sizes, words) -> Finding:
    """Rounds and words of each algorithm on each number of ranks are exactly those of the formulas."""
    pairs = 0
    for algorithm in algorithms:
        found = counted(runs, algorithm, words)
        if not set(sizes) <= set(found):
            return needs(f"the counts of {algorithm} for {words} words on {', '.join(map(str, sizes))} ranks")
        for size in sizes:
            asked, pairs = formula(algorithm, size, words), pairs + 1
            for rounds, moved in found[size] - {asked}:
                evidence = (f"{algorithm} on {size} ranks: {rounds:g} rounds and {moved or 0:g} words; "
                            f"the formulas say {asked[0]:g} and {asked[1]:g}")  # fmt: skip
                return Finding("contradicted", evidence, pairs)
    return Finding("holds", f"{pairs} pairs of algorithm and ranks, {words} words: rounds and words equal", pairs)


def none_beats_the_bounds(runs, *, algorithms, draws) -> Finding:
    """On `draws` random pairs of ranks and words, no algorithm takes fewer than lg P rounds or 2n(P-1)/P words."""
    found = {(name, what): [row.value for run in chosen(runs, {"evidence": "bounds", "algorithm": name})
                            for row in run.series(what)] for name in algorithms for what in ("rounds_over", "words_over")}
    if min(map(len, found.values())) < draws:
        return needs(f"{draws} random pairs of ranks and words for each of {', '.join(algorithms)}")
    least = [float(np.min([value for name in algorithms for value in found[name, what]]))  # NaN if one is
             for what in ("rounds_over", "words_over")]
    total = sum(len(found[name, "rounds_over"]) for name in algorithms)
    evidence = f"{total} runs: at least {least[0]:.3g} times lg P rounds and {least[1]:.3g} times 2n(P-1)/P words"
    return Finding("holds" if all(value >= 1 - 1e-12 for value in least) else "contradicted", evidence, total)


def model_seconds(algorithm: str, size: int, words: int, alpha: float, beta: float, gamma: float) -> float:
    """rounds x alpha + words x beta + words added x gamma, for a power of two of ranks."""
    rounds, moved = formula(algorithm, size, words)
    log = (size - 1).bit_length()
    added = {"tree": words * log, "butterfly": words * log}.get(algorithm, words * (size - 1) / size)
    return rounds * alpha + moved * beta + added * gamma


def small_butterfly_large_ring(runs, *, select, small, large, sizes, error, seeds) -> Finding:
    """With the constants of each calibration, for each number of ranks: the butterfly is the fastest of the four at
    `small` words, and the ring or Rabenseifner's algorithm at `large`. A calibration whose relative error is more than
    `error` is none.
    """
    fits = [{row.name: row.value for row in run.rows} for run in chosen(runs, select)]
    if len(fits) < seeds:
        return needs(f"{seeds} calibrations")
    worst = float(np.max([fit["rms"] for fit in fits]))
    if not worst <= error:
        return Finding("not seen", f"a fit is off by {worst:.0%}: the model does not hold here", len(fits))
    ends = []
    for fit in fits:
        for size in sizes:
            for words in (small, large):
                names = ("butterfly", "tree", "ring", "rabenseifner")
                cost = {name: model_seconds(name, size, words, *(fit[key] for key in ("alpha", "beta", "gamma")))
                        for name in names}  # fmt: skip
                ends.append((min(cost, key=cost.get) == "butterfly") == (words == small))
    middle = [float(np.median([fit[key] for fit in fits])) for key in ("alpha", "beta", "rms")]
    evidence = (f"{np.mean(ends):.0%} of {len(ends)} cases; alpha {1e6 * middle[0]:.3g} us, beta "
                f"{1e9 * middle[1]:.3g} ns a word, fit off by {middle[2]:.0%}")  # fmt: skip
    return Finding("holds" if all(ends) else "not seen" if any(ends) else "contradicted", evidence, len(fits))


def timed_small_and_large(runs, *, select, small, large, share, seeds) -> Finding:
    """In `share` of the interleaved rounds, the butterfly is faster than the ring at `small` words, and the faster of
    ring and Rabenseifner than the butterfly at `large`; contradicted where either is the other way round as often.
    """
    found = {}
    for run in chosen(runs, select):
        for row in run.rows:
            found.setdefault((row.name, row.samples), []).append(row.value)
    wanted = [(name, words) for name in ("butterfly", "ring", "rabenseifner") for words in (small, large)]
    if any(len(found.get(key, ())) < seeds for key in wanted):
        return needs(f"{seeds} rounds of timings of butterfly, ring and Rabenseifner at {small} and {large} words")
    times = {key: np.array(found[key]) for key in wanted}
    first = times["butterfly", small] < times["ring", small]
    second = np.minimum(times["ring", large], times["rabenseifner", large]) < times["butterfly", large]
    wins = float(np.mean(first)), float(np.mean(second))
    middle = [1e3 * float(np.median(times[key])) for key in wanted]
    evidence = (f"{4 * small} bytes: butterfly {middle[0]:.3g} ms, ring {middle[2]:.3g}, ahead in {wins[0]:.0%}; "
                f"{4 * large / 1e6:.3g} MB: butterfly {middle[1]:.3g} ms, ring {middle[3]:.3g}, Rabenseifner "
                f"{middle[5]:.3g}, behind in {wins[1]:.0%}")  # fmt: skip
    outcome = "holds" if min(wins) >= share else "contradicted" if min(wins) <= 1 - share else "not seen"
    return Finding(outcome, evidence, len(first))


RULES = (counts_equal_formulas, none_beats_the_bounds, small_butterfly_large_ring, timed_small_and_large)
