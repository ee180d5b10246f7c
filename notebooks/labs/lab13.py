"""Exercises of lab 13: a ring, one layer on a roofline, a trace read by hand, and where the factor of two went."""

import itertools
import math
from collections.abc import Callable, Mapping
from numbers import Real

from labs import cost
from labkit.teach.exercises import exercise


ENOUGH = 0.002  # relative: three or four digits of a right number are right


def close(a, b, rel_tol: float = ENOUGH, abs_tol: float = 1e-12) -> bool:
    return isinstance(a, Real) and math.isclose(a, b, rel_tol=rel_tol, abs_tol=abs_tol)


def plain(given):
    """An answer without the library that it came from: arrays, series and tensors as lists or numbers of Python."""
    given = given.tolist() if hasattr(given, "tolist") else given
    return [plain(part) for part in given] if isinstance(given, (tuple, list)) else given


def said(value, right: float, slips=(), abs_tol: float = 1e-12) -> str:
    """Why a value is not the right one: the slip that gives the nearest number to it, rounding, or the right number."""
    if not isinstance(value, Real):
        return "give a number"
    near = [(abs(value - wrong), n) for n, (wrong, _) in enumerate(slips) if close(value, wrong, abs_tol=abs_tol)]
    if near:
        return slips[min(near)[1]][1]
    if close(value, right, 10 * ENOUGH, 10 * abs_tol):
        return f"nearly: it is {right:.6g}; round later, or give more digits"
    return f"it is {right:.6g}"


def shown(value) -> str:
    return f"{value:.6g}" if isinstance(value, Real) else repr(value)


# 13.1: (workers, bytes, alpha, beta, compute, overlap)
RINGS = [
    (4, 1e8, 1e-5, 1e-9, 0.1, 0.0),
    (1, 1e8, 1e-5, 1e-9, 0.1, 0.5),
    (128, 5e7, 1e-4, 1e-10, 0.05, 0.3),
    (8, 1e6, 1e-6, 1e-10, 0.2, 0.9),
]


def ring_and_share(answer: Callable) -> str | None:
    """Spec of 13.1: `answer(P, n, alpha, beta, compute, overlap)` gives (ring seconds, share that waits)."""
    for p, n, alpha, beta, compute, overlap in RINGS:
        given = plain(answer(p, n, alpha, beta, compute, overlap))
        if not isinstance(given, list) or len(given) != 2:
            return "return two numbers: the seconds of the ring, and the share of the step that waits for it"
        ring = float(cost.ring_seconds(p, n, alpha, beta))
        share = float(cost.step_seconds(compute, ring, overlap)[1])
        where = f"with {p} worker{'s' * (p != 1)}, {n:g} bytes, alpha {alpha:g}, beta {beta:g}"
        if not close(given[0], ring):
            slips = [
                ((p - 1) * (alpha + n / p * beta), "that is one pass; a ring goes twice: reduce-scatter, all-gather"),
                (2 * (p - 1) * (alpha + n * beta), "a round sends one chunk of n / P bytes, not all n"),
                (2 * (p - 1) / p * n * beta, "the messages themselves cost too: 2 (P - 1) alpha"),
                (2 * p * alpha + 2 * n * beta, "P - 1 rounds a pass, not P: the last chunk is already at home"),
            ]
            return f"{where} you give {shown(given[0])} s: {said(given[0], ring, slips)}"
        if close(given[1], share):
            continue
        exposed = max(0.0, ring - overlap * compute)
        slips = [
            (ring / (compute + ring), "that is without overlap: what hides behind computing does not wait"),
            (exposed / compute if compute else 0, "a share is of the whole step, computing plus waiting"),
            ((ring - overlap * compute) / (compute + ring - overlap * compute), "waiting cannot be negative"),
            (100 * share, "that is in percent; give a share from 0 to 1"),
            (
                (1 - overlap) * ring / (compute + (1 - overlap) * ring),
                "overlap is a fraction of the computing, which can hide so many seconds; not a fraction of the ring",
            ),
        ]
        where += f", computing {compute:g} s and overlap {overlap:g}"
        return f"{where} you give a share of {shown(given[1])}: {said(given[1], share, slips)}"
    return None


# 13.2: a fully connected layer going forward, float32, on a machine with these two roofs.
LAYER = {"inputs": 256, "outputs": 512, "peak": 100e9, "bandwidth": 20e9}
LAYER_PARTS = ("FLOPs", "bytes", "intensity", "attainable")


def layer_numbers(batch: int) -> dict:
    """FLOPs, bytes, FLOPs per byte and attainable FLOP/s of the layer of 13.2 at a batch size (no bias)."""
    a, b = LAYER["inputs"], LAYER["outputs"]
    flops, moved = 2.0 * batch * a * b, 4.0 * (batch * a + a * b + batch * b)
    return {
        "FLOPs": flops,
        "bytes": moved,
        "intensity": flops / moved,
        "attainable": min(LAYER["peak"], LAYER["bandwidth"] * flops / moved),
    }


def layer_on_the_roofline(answer: Mapping) -> str | None:
    """Spec of 13.2: {1: {...}, 64: {...}}, each with the entries of `LAYER_PARTS`."""
    for batch in (1, 64):
        if not isinstance(answer, Mapping) or batch not in answer:
            return f"give a dictionary with the batch sizes 1 and 64; {batch} is missing"
        a, b, right = LAYER["inputs"], LAYER["outputs"], layer_numbers(batch)
        flops, moved, intensity = right["FLOPs"], right["bytes"], right["intensity"]
        slips = {
            "FLOPs": [
                (flops / 2, "a multiplication and an addition are two FLOPs"),
                (2.0 * a * b, "each image of the batch needs them"),
                (3 * flops, "that is forward and backward; forward only is asked for"),
            ],
            "bytes": [
                (moved / 4, "a float32 has 4 bytes"),
                (4.0 * a * b, "the inputs and outputs move too"),
                (4.0 * (batch * a + a * b), "the outputs are written, and writing counts"),
                (4.0 * (batch * a + batch * b), "the weights have to be read"),
                (4.0 * batch * (a + a * b + b), "the weights are read once a batch, not once an image"),
            ],
            "intensity": [
                (moved / flops, "that is bytes per FLOP: turn it over"),
                (batch / 2, "the bytes of the inputs and outputs count too, not the weights' alone"),
            ],
            "attainable": [
                (right["attainable"] / 1e9, "that is GFLOP/s; give FLOP/s"),
                (LAYER["peak"] / 1e9, "memory cannot feed that (and give FLOP/s, not GFLOP/s)"),
                (LAYER["bandwidth"] * batch / 2, "take the intensity with the bytes of the inputs and outputs"),
                (LAYER["bandwidth"] / 1e9 * intensity, "no operation is faster than the peak (and give FLOP/s)"),
                (LAYER["peak"], "memory cannot feed that: the lower roof holds, bandwidth x intensity"),
                (LAYER["bandwidth"] * intensity, "no operation is faster than the peak"),
            ],
        }
        for part in LAYER_PARTS:
            given = plain(answer[batch].get(part)) if isinstance(answer[batch], Mapping) else None
            if not isinstance(given, Real):
                return f"at batch {batch}, give a number for {part}"
            if not close(given, right[part]):
                wrong = [(value, why) for value, why in slips[part] if not close(value, right[part])]
                why = said(given, right[part], wrong)
                if why.startswith("it is"):  # a warm-up's numbers are for the reader to find
                    why = f"look again at how {part} is made"
                return f"{part} at batch {batch}: {shown(given)}; {why}"
    return None


def event(name: str, self_us: float, total_us: float) -> dict:
    return {"name": name, "self_us": self_us, "total_us": total_us}


# 13.3: traces as a profiler gives them; `total_us` has the children in it, `self_us` has not.
TRACES = {
    "a small network": [
        event("aten::linear", 5.0, 105.0),
        event("aten::addmm", 100.0, 100.0),
        event("aten::relu", 10.0, 40.0),
        event("aten::clamp_min", 30.0, 30.0),
        event("AddmmBackward0", 15.0, 215.0),
        event("aten::mm", 200.0, 200.0),
        event("aten::mul_", 40.0, 40.0),
        event("aten::add_", 120.0, 120.0),
    ],
    "a convolutional network": [
        event("aten::conv2d", 3.0, 406.0),
        event("aten::convolution", 3.0, 403.0),
        event("aten::mkldnn_convolution", 400.0, 400.0),
        event("aten::native_batch_norm", 150.0, 150.0),
        event("ConvolutionBackward0", 10.0, 810.0),
        event("aten::convolution_backward", 800.0, 800.0),
        event("aten::native_batch_norm_backward", 90.0, 90.0),
        event("aten::addmm", 20.0, 20.0),
        event("aten::add_", 24.0, 24.0),
    ],
    "a recurrent network": [
        event("aten::lstm", 10.0, 510.0),
        event("aten::mkldnn_rnn_layer", 500.0, 500.0),
        event("aten::mkldnn_rnn_layer_backward", 900.0, 900.0),
        event("aten::bmm", 50.0, 50.0),
        event("aten::addcmul_", 140.0, 140.0),
    ],
}
MATRIX = (
    "addmm",
    "mm",
    "bmm",
    "mkldnn_convolution",
    "convolution_backward",
    "mkldnn_rnn_layer",
    "mkldnn_rnn_layer_backward",
)
FORGOTTEN = {
    ("convolution_backward",): "convolution_backward is matrix work too: two products for each one going forward",
    ("mkldnn_rnn_layer", "mkldnn_rnn_layer_backward"): "mkldnn_rnn_layer is a whole recurrent layer in one kernel: "
    "nearly all of it is matrix products",
    ("mkldnn_rnn_layer_backward",): "the backward pass of the recurrent layer is matrix work too",
    ("mkldnn_convolution",): "mkldnn_convolution is the kernel behind conv2d",
    ("mkldnn_convolution", "convolution_backward"): "a convolution is matrix work, going forward and backward",
    ("mm",): "mm is a matrix product: the backward pass of a linear layer is two of them",
    ("bmm",): "bmm is a batch of matrix products",
    ("addmm",): "addmm is a matrix product that adds a bias",
}
# Looks like matrix work by its name, and only calls the kernel that does it.
WRAPPERS = {
    "a small network": ("linear",),
    "a convolutional network": ("conv2d", "convolution"),
    "a recurrent network": ("lstm",),
}


DECIMALS = 6e-4  # a share may be rounded to three decimals


def share_outside(events: list[dict], matrix=MATRIX, key: str = "self_us") -> float:
    """Share of the time that is not in the named kernels."""
    inside = sum(e[key] for e in events if e["name"].removeprefix("aten::") in matrix)
    return 1 - inside / sum(e[key] for e in events)


def outside_matrix_work(answer: Callable) -> str | None:
    """Spec of 13.3: `answer(events)` gives the share of the time that is not matrix work."""
    for name, events in TRACES.items():
        given, right = plain(answer([dict(e) for e in events])), share_outside(events)
        if not isinstance(given, Real):
            return f"return a number between 0 and 1, not {given!r}"
        wrappers = WRAPPERS[name]
        some = [part for size in range(len(wrappers) + 1) for part in itertools.combinations(wrappers, size)]
        # The calls that lead to a kernel may be counted with it: they are small and it is a matter of taste.
        if any(close(given, share_outside(events, MATRIX + part), 0, DECIMALS) for part in some):
            continue
        callers = ("ConvolutionBackward0", "AddmmBackward0")
        names = [(*MATRIX, *back, *part) for back in ((), callers) for part in some]  # more and less of a name's kin
        slips = [(1 - right, "that is the share of the matrix work; the rest is asked for")]
        slips += [
            (share_outside(events, more, "total_us"), "total_us counts a call and its children: add up self_us")
            for more in names
        ]
        slips += [
            (
                1 - sum(e["name"].removeprefix("aten::") in more for e in events) / len(events),
                "that is a share of the events; each counts with its time",
            )
            for more in names
        ]
        slips += [
            (right / (1 - right), "divide by the whole time, not by that of the matrix work"),
            *((100 * share_outside(events, more), "that is in percent; give a share from 0 to 1") for more in names),
        ]
        slips += [
            (share_outside(events, [m for m in MATRIX if m not in gone]), why)
            for gone, why in FORGOTTEN.items()
            if {f"aten::{m}" for m in gone} <= {e["name"] for e in events}
        ]
        slips += [
            (
                share_outside(events, (*MATRIX, *callers, *part)),
                "the ...Backward0 events only call the kernels: their own time is overhead",
            )
            for part in some
        ]
        slips += [
            (
                share_outside(events, (*MATRIX, "native_batch_norm", "native_batch_norm_backward")),
                "batch norm has no matrix product",
            ),
            (
                share_outside(events, (*MATRIX, "addcmul_", "add_", "mul_")),
                "add_, mul_ and addcmul_ take number by number; only names like mm are products of matrices",
            ),
        ]
        return f"for {name} you give {shown(given)}: {said(given, right, slips, DECIMALS)}"
    return None


# 13.4: eight times each, by the optimisations that are on; planted so that one interaction is the largest.
def planted(base: float, singles: Mapping, interactions: Mapping) -> dict[str, float]:
    """Times of the 2^3 cells: base over the product of the speed-ups, and of the interactions, of what is on."""
    cells = ["".join(c) for n in range(4) for c in itertools.combinations("ABC", n)]
    effects = {**singles, **interactions}
    return {cell: base / math.prod(f for term, f in effects.items() if set(term) <= set(cell)) for cell in cells}


CASES = {
    "two save the same time": planted(
        18.0, {"A": 1.5, "B": 2.0, "C": 1.1}, {"AB": 0.5, "AC": 1.02, "BC": 1.1, "ABC": 1.3}
    ),
    "two help each other": planted(90.0, {"A": 3.0, "B": 1.5, "C": 1.1}, {"AB": 0.9, "AC": 1.1, "BC": 1.6}),
    "all three at once": planted(40.0, {"A": 1.5, "B": 2.0, "C": 1.6}, {"AB": 0.8, "AC": 0.75, "BC": 1.1, "ABC": 2.0}),
    "a slow-down": planted(30.0, {"A": 0.8, "B": 1.4, "C": 3.0}, {"AC": 1.7, "AB": 1.05, "BC": 0.85}),
    "one halves, one helps": planted(24.0, {"A": 2.0, "B": 1.6, "C": 1.5}, {"AB": 1.6, "AC": 0.5, "BC": 1.1}),
}
TERMS = ("AB", "AC", "BC", "ABC")


def interaction(times: Mapping, term: str, joint_only: bool = False) -> float:
    """Factor by which the cell of `term` is faster than the product of the smaller effects in it says."""
    factor = times[""] / times[term] / math.prod(times[""] / times[letter] for letter in term)
    if len(term) == 3 and not joint_only:
        factor /= math.prod(interaction(times, pair) for pair in TERMS[:3])
    return factor


def find_the_interaction(answer: Callable) -> str | None:
    """Spec of 13.4: `answer(times)` gives (product of single speed-ups, joint speed-up, term, its factor)."""
    for name, times in CASES.items():
        given = plain(answer(dict(times)))
        if not isinstance(given, list) or len(given) != 4:
            return "return four things: product of the single speed-ups, joint speed-up, the term, its factor"
        product, joint, term, factor = given
        t, singles = times[""], [times[""] / times[x] for x in "ABC"]
        lesions = math.prod(times[x] / times["ABC"] for x in ("BC", "AC", "AB"))
        right_product, right_joint = math.prod(singles), t / times["ABC"]
        for what, value, right, slips in (
            (
                "product",
                product,
                right_product,
                [
                    (1 / right_product, "a speed-up is the slow time over the fast one: turn it over"),
                    (
                        lesions,
                        "that is the product of the lesions, from the all-on side; single means alone, from all off",
                    ),
                    (sum(singles), "speed-ups multiply; you added them"),
                    (right_joint, "that is the joint speed-up"),
                    (1 + sum(s - 1 for s in singles), "percentages do not add up: multiply the speed-ups"),
                    (math.prod(times[x] for x in "ABC"), "you multiply times; a speed-up is all off over the cell"),
                ],
            ),
            (
                "joint speed-up",
                joint,
                right_joint,
                [
                    (1 / right_joint, "a speed-up is the slow time over the fast one: turn it over"),
                    (right_product, "that is the product of the single ones; the joint one is measured, all three on"),
                    (t - times["ABC"], "that is the seconds saved; a speed-up is a ratio"),
                ],
            ),
        ):
            if not close(value, right):
                return f"{name}: {what} {shown(value)}: {said(value, right, slips)}"
        factors = {x: interaction(times, x) for x in TERMS}
        right_term = max(TERMS, key=lambda x: abs(math.log(factors[x])))
        term = "".join(sorted(term)) if isinstance(term, str) else term
        if term not in TERMS:
            return f"{name}: the term must be one of {', '.join(TERMS)}, not {term!r}"
        if term != right_term:
            return f"{name}: not {term}: {why_not(times, factors, term)}"
        right = factors[term]
        if not close(factor, right):
            slips = [
                (1 / right, "turn it over: below 1 means that together they give less than the product"),
                (math.log(right), "that is its logarithm; give the factor"),
                (interaction(times, term, joint_only=True), "take the pairs out of the three-way term as well"),
                (t / times[term], "that is the speed-up of the cell; divide by the single ones"),
                (right_joint / right_product, "that is what all interactions do together"),
            ]
            slips = [(wrong, why) for wrong, why in slips if not close(wrong, right)]
            return f"{name}: factor {shown(factor)} of {term}: {said(factor, right, slips)}"
    return None


def why_not(times: Mapping, factors: Mapping, term: str) -> str:
    """By which other measure this term would have been the largest."""
    t = times[""]
    saved = {x: abs(t - times[x] - sum(t - times[y] for y in x)) for x in TERMS}
    if term == max(TERMS, key=lambda x: abs(factors[x] - 1)):
        return (
            f"abs(f - 1) makes {factors[term]:.1f} larger than 0.5, and nothing below 1 larger than 2; as a ratio, "
            "0.5 is as far from 1 as 2 is: compare abs(log f)"
        )
    if term == max(TERMS, key=factors.get):
        return "a factor of 0.5 is as large as one of 2: compare the absolute logarithms"
    if term == max(saved, key=saved.get):
        low = term == min(TERMS, key=factors.get)
        more = "; if you take the smallest factor, one above 1 counts as much" if low else ""
        return f"if you compare seconds saved, another term is larger on the log scale, that is as ratios{more}"
    if term == max(TERMS, key=lambda x: abs(math.log(interaction(times, x, joint_only=True)))):
        return "take the three pairs out of the three-way term, and it is another one"
    if term == min(TERMS, key=factors.get):
        return "that is the smallest factor; one above 1 counts as much: compare the absolute logarithms"
    if term == max(TERMS[:3], key=lambda x: t / times[x]):
        return "that is the fastest pair; an interaction is what a pair has beyond its two single speed-ups"
    return f"its factor is {factors[term]:.2f}, and another lies further from 1"


EXERCISES = {
    item.id: item
    for item in (
        exercise(
            "13.1",
            "a ring and the share that waits",
            ring_and_share,
            (
                "Two passes of P - 1 rounds; a round sends a chunk of n / P bytes and costs alpha + n / P x beta.",
                "What waits: max(0, ring - overlap x compute). The share is of compute + what waits.",
            ),
        ),
        exercise(
            "13.2",
            "one layer on the roofline",
            layer_on_the_roofline,
            (
                "FLOPs 2 B a b. Bytes: inputs, weights and outputs, each once, 4 bytes a number.",
                "intensity = FLOPs / bytes; attainable = min(peak, bandwidth x intensity).",
            ),
        ),
        exercise(
            "13.3",
            "the share that is not matrix work",
            outside_matrix_work,
            (
                "Add up self_us of the kernels that multiply matrices: names with mm, convolution, rnn_layer.",
                "1 - matrix / all. Events named ...Backward0, linear or lstm only call: that is overhead.",
            ),
        ),
        exercise(
            "13.4",
            "where did the 2 x go?",
            find_the_interaction,
            (
                "Pair: speed-up of the cell AB over (speed-up of A x speed-up of B); the same for AC and BC.",
                "Three-way: joint / (A x B x C x the three pair factors). The largest has the largest |log|.",
            ),
        ),
    )
}
