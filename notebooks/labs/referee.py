"""The six entries of lab 12's last exercise: made up, in the public formats. Two of them do not carry their claims."""


def _mllog(time_ms: int, key: str, value: str = "null", metadata: str = "{}") -> str:
    kind = {"start": "INTERVAL_START", "stop": "INTERVAL_END"}.get(key.split("_")[-1], "POINT_IN_TIME")
    fields = f'"time_ms": {time_ms}, "event_type": "{kind}", "key": "{key}", "value": {value}, "metadata": {metadata}'
    return f':::MLLOG {{"namespace": "", {fields}}}'


def _mll(seconds: str, key: str, value: str = "null", metadata: str = '"file": "main.py"') -> str:
    return f':::MLL {seconds} {key}: {{"value": {value}, "metadata": {{{metadata}}}}}'


def _mlp(seconds: str, rest: str) -> str:
    return f":::MLPv0.5.0 resnet {seconds} {rest}"


def _table(names: str, rows: tuple, end: str) -> str:
    return "".join("\t".join(line.split()) + end for line in (names, *rows))


CASES = {
    "A": "\n".join((
        _mlp("1543100000.250", "(train.py:61) run_clear_caches"),
        _mlp("1543100003.500", "(train.py:70) run_start"),
        _mlp("1543100003.900", "(train.py:88) eval_target: 0.749"),
        _mlp("1543106310.100", '(train.py:131) eval_accuracy: {"epoch": 52, "value": 0.73914}'),
        _mlp("1543107205.400", '(train.py:131) eval_accuracy: {"epoch": 56, "value": 0.74702}'),
        _mlp("1543108104.600", '(train.py:131) eval_accuracy: {"epoch": 60, "value": 0.74931}'),
        _mlp("1543108104.700", "(train.py:140) run_stop"),
        _mlp("1543108111.020", "(train.py:141) run_final\n"),
    )),
    "B": _table("epoch hours top1Accuracy top5Accuracy", (
        "1 0.2314 41.250 66.902", "2 0.4630 58.914 82.337", "3 0.6945 66.480 87.561", "4 0.9259 70.932 90.842",
        "5 1.1575 74.016 92.480", "6 1.3890 75.391 92.997", "7 1.6206 75.402 93.041", "8 1.8521 75.420 93.012",
    ), "\n"),
    "C": _table("hours epoch top1Accuracy top5Accuracy", (
        "0.3106 1 45.120 70.415", "0.6212 2 60.808 83.990", "0.9318 3 68.114 88.652", "1.2424 4 72.330 91.204",
        "1.5530 5 74.688 92.587", "1.8636 6 75.610 93.000", "2.1742 7 75.588 92.988",
    ), "\r\n"),
    "D": "\n".join((
        _mllog(1593990000512, "submission_benchmark", '"dlrm"'),
        _mllog(1594010481, "run_start"),
        _mllog(1594102730, "eval_accuracy", "0.80187", '{"epoch_num": 0.5}'),
        _mllog(1594211310, "eval_accuracy", "0.80254", '{"epoch_num": 0.9}'),
        _mllog(1594211331, "run_stop", "null", '{"status": "success"}'),
        _mllog(1594216020, "eval_accuracy", "0.80249", '{"epoch_num": 0.95}'),
        _mllog(1593990231904, "submission_status", '"onprem"'),
    )) + "\n",
    "E": "\n".join((
        _mll("1558451000.118", "init_start"),
        _mll("1558451120.406", "init_stop"),
        _mll("1558451120.411", "run_start"),
        _mll("1558451120.502", "block_start", metadata='"first_epoch_num": 1, "epoch_count": 4'),
        _mll("1558451532.730", "block_stop", metadata='"first_epoch_num": 1'),
        _mll("1558451532.911", "run_start"),
        _mll("1558451536.300", "eval_accuracy", "0.39120", '"epoch_num": 4'),
        _mll("1558453585.020", "eval_accuracy", "0.75730", '"epoch_num": 60'),
        _mll("1558453995.204", "eval_accuracy", "0.76107", '"epoch_num": 64'),
        _mll("1558453995.411", "run_stop", metadata='"status": "success"'),
    )) + "\n",
    "F": "\n".join((
        _mlp("0000000000", "(cache.sh:3) run_clear_caches"),
        _mlp("1541500002", "(solver.cpp:81) run_start"),
        _mlp("1541500003", "(solver.cpp:81) run_start"),
        _mlp("1541501270", '(solver.cpp:573) eval_accuracy: {"epoch": -1, "value": 0.00102}'),
        _mlp("1541501270", "(solver.cpp:570) eval_target: 0.749"),
        _mlp("1541576560", '(solver.cpp:573) eval_accuracy: {"epoch": 59, "value": 0.74870}'),
        _mlp("1541576560", "(solver.cpp:570) eval_target: 0.749"),
        _mlp("1541577830", '(solver.cpp:573) eval_accuracy: {"epoch": 60, "value": 0.75262}'),
        _mlp("1541577830", '(solver.cpp:590) run_stop: {"success": "true"}\n'),
    )),
}  # fmt: skip

CLAIMS = {
    "A": {"form": "MLPerf v0.5 ResNet-50", "target": 0.749, "seconds": 8101.2},
    "B": {"form": "DAWNBench ImageNet, top-5", "target": 93.0, "seconds": 5000.4},
    "C": {"form": "DAWNBench ImageNet, top-5", "target": 93.0, "seconds": 6708.96},
    "D": {"form": "MLPerf v0.7 DLRM", "target": 0.8025, "seconds": 200.85},
    "E": {"form": "MLPerf v0.6 ResNet-50", "target": 0.759, "seconds": 2462.5},
    "F": {"form": "MLPerf v0.5 ResNet-50", "target": 0.749, "seconds": 77827},
}

GUILTY = {
    "B": {
        "verdict": "re-score",
        "lines": (6, 7, 8),  # the claim's row and the first at the target; without the header they are rows 6 and 7
        "seconds": 5834.16,
        "other": (
            "the log itself is sound, and the run did reach the target later: what is wrong is the claim, so the "
            "entry is re-scored"
        ),
        "where": "Compare the claim's hours with the row they come from, digit by digit.",
        "slips": {
            5000.4: "that is the claim itself: 92.997 is 93.00 only when rounded, and the rule compares raw values",
            6667.56: "that is the last row; the first that passes counts",
            1.6206: "the column is in hours",
            97.236: "those are minutes",
        },
    },
    "E": {
        "verdict": "refuse",
        "lines": (3, 4, 5, 6),  # either start, or the block that was trained between them
        "seconds": None,
        "other": (
            "no second score can be had: two starts 412 s apart, with an epoch block trained in between, contradict "
            "each other. Which was meant is not in the log, and a referee does not guess in anyone's favour: refuse"
        ),
        "where": "When did its training begin, and when does the claim's clock?",
        "slips": {},
    },
}

# What an honest entry answers when it is accused, by the line that is held against it; 0: any other line.
PLEAS = {
    "A": {
        0: "Its stop minus its start is the claim, and its last evaluation meets the logged target.",
        1: "Caches are flushed before the clock starts: that is the rule, not free time.",
        2: "Its clock starts once, before the first evaluation.",
        5: "0.74702 is below 0.749, and the run went on: nothing is claimed of this line.",
        6: "0.74931 is at least 0.749 by its raw value: no rounding is needed.",
        7: (
            "Line 7 does not say how the run ended, but lines 3 and 6 do: the last evaluation meets the logged "
            "target, so success can be inferred."
        ),
        8: "run_final comes after run_stop; the clock has stopped by then.",
    },
    "C": {
        0: "Its claim is the hours of the first row at 93.",
        1: (
            "Here hours come first and epochs second. Whoever reads by position takes epoch 6 for 6 hours; read by "
            "name, the claim stands. The \\r is only a line ending of another system."
        ),
        7: "93.000 is the target exactly, and the rule is >=, not >.",
        8: (
            "The curve falls below the target again, which is a pity for whoever keeps the model; the rule takes the "
            "first crossing."
        ),
    },
    "D": {
        0: "Stop minus start is 200,850 ms, which is the claim.",
        1: (
            "The first and the last line carry the true time of day; they are what confirms that the other stamps are "
            "in milliseconds."
        ),
        2: (
            "These stamps have another origin (they read as January 1970), but start and stop share it, so their "
            "difference is right; lines 1 and 7, which carry true times 231 s apart, confirm the unit."
        ),
        4: "0.80254 is at least 0.8025 by its raw value.",
        5: (
            "Start and stop share their odd origin, so the difference is right; read as seconds it would be 200,850 "
            "s, which lines 1 and 7 rule out."
        ),
        6: "An evaluation after run_stop is ignored: the run had met its target at line 4.",
        7: (
            "The first and the last line carry the true time of day; they are what confirms that the other stamps are "
            "in milliseconds."
        ),
    },
    "F": {
        0: "Its stop minus its (last) start is the claim.",
        1: "The stamp 0000000000 of the cache line is broken, but that line is no part of the time.",
        2: (
            "Two ranks print run_start one second apart, on a clock of whole seconds; the later counts, and nothing "
            "was trained between them."
        ),
        3: (
            "Two ranks print run_start one second apart, on a clock of whole seconds; the later counts, and nothing "
            "was trained between them."
        ),
        4: (
            "Epoch -1 is an evaluation of the random start. It is on the clock, which costs the entry time: nobody "
            "cheats against himself."
        ),
        5: "The target is logged again at each evaluation, always the same one.",
        6: "0.74870 is below 0.749, and the run went on: nothing is claimed of this line.",
        7: "The target is logged again at each evaluation, always the same one.",
        9: 'success is the text "true" instead of a boolean: odd, and clear enough.',
    },
}
