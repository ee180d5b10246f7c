"""Lab 12's exercises: every solution passes, every planted slip is told apart, every honest entry defended."""

import io
import json
import math

import numpy as np
import pandas as pd
import pytest

from labkit.paths import notebooks
from labkit.teach import check
from labkit.teach.exercises import solution_code
from labkit.tta import statistics
from readers import dawnbench
from labs import lab12, public_logs
from labs.referee import CASES, CLAIMS, GUILTY, PLEAS

SOURCE = (notebooks() / "src" / "12_public_benchmarks.py").read_text(encoding="utf-8")
RIGHT = {"B": ("re-score", 7, 1.6206 * 3600), "E": ("refuse", 6)}


def solved(id, head="", name="answer"):
    """What the solution of an exercise defines; `head` is the line that the solution's body stands under."""
    body = solution_code(SOURCE, id)
    if head:
        body = head + "\n" + "\n".join("    " + line for line in body.splitlines())
    space = {"math": math, "np": np, "json": json}
    exec(body, space)
    return space[name]


@pytest.mark.parametrize(
    "id, head, name",
    [
        ("12.1", "def answer(logs):", "answer"),
        ("12.2", "", "scores"),
        ("12.3", "def answer(text, metric, threshold):", "answer"),
        ("12.4", "", "verdicts"),
    ],
)
def test_the_solutions_are_right(id, head, name, capsys):
    assert check(id, solved(id, head, name)) is True


def reader(
    token=":::MLLOG", unit=1000, starts=max, good=lambda status: status == "success", miss=math.inf, at_start=False,
    in_order=False, score=lambda times: float(np.mean(sorted(times)[1:-1])),
):  # fmt: skip
    """An answer to 12.1 with one slip."""

    def answer(logs):
        times = []
        for text in logs:
            begun, stop, success = [], None, False
            for line in text.splitlines():
                if at_start and not line.startswith(token):
                    continue
                _, found, rest = line.partition(token)
                if not found:
                    continue
                entry = json.loads(rest)
                if entry["key"] == "run_start":
                    begun.append(entry["time_ms"])
                if entry["key"] == "run_stop" and (begun or not in_order):
                    stop, success = entry["time_ms"], good(entry["metadata"]["status"])
            if stop is None and miss is None:
                continue
            times.append((stop - starts(begun)) / unit if success else math.inf)
        return score(times)

    return answer


@pytest.mark.parametrize(
    "answer, message",
    [
        (reader(unit=1), "time_ms is in milliseconds"),
        (reader(score=np.mean), "that is the mean of all five"),
        (reader(score=np.median), "that is the median"),
        (reader(score=lambda times: np.mean(sorted(times)[:-1])), "only the slowest is dropped"),
        (reader(score=lambda times: np.mean(sorted(times)[1:])), "only the fastest is dropped"),
        (reader(score=min), "that is the fastest run"),
        (reader(score=lambda times: None), "return a number of seconds"),
        (reader(score=lambda times: 7.0), "you give 7"),
        (reader(at_start=True), "other text before :::MLLOG"),
        (reader(in_order=True), "not in the order of time"),
        (reader(starts=min), "the last one counts"),
        (reader(starts=lambda begun: begun[0]), "the last one counts"),
        (reader(starts=lambda begun: begun[-1]), "the largest time_ms, not the last line"),
        (reader(good=lambda status: status != "abort"), "whose status is 'aborted' missed"),
        (reader(good=lambda status: status != "aborted"), "'abort' is a miss too"),
        (reader(miss=None), "a log without run_stop was cut off"),
        (reader(score=lambda times: np.mean([t for t in sorted(times)[1:-1] if t < math.inf])), "with two misses"),
    ],
)  # fmt: skip
def test_slips_of_a_reader_are_told_apart(answer, message):
    assert message in lab12.EXERCISES["12.1"].spec(answer)


@pytest.mark.parametrize("slip", lab12.HAND)
def test_each_wrong_score_by_hand_is_explained(slip):
    name, wrong = slip
    right = {"one miss": statistics.drop_extremes_mean(lab12.FIVE)[0], "two misses": math.inf}
    assert right["one miss"] == pytest.approx(1222.0)
    assert lab12.HAND[slip] in lab12.EXERCISES["12.2"].spec({**right, name: wrong})


def test_an_unplanned_score_gets_the_rule_and_a_wrong_form_is_said():
    spec = lab12.EXERCISES["12.2"].spec
    assert "drop the fastest" in spec({"one miss": 1.0, "two misses": math.inf})
    assert "give a dictionary" in spec(1222.0)
    assert "math.inf where there is no score" in spec({"one miss": 1222.0, "two misses": "none"})


def table_reader(
    position=False, bom=True, lines=str.splitlines, passes=lambda v, t: v >= t, hours=3600, miss=math.inf, pick=0,
    strip=True, skip=0,
):  # fmt: skip
    """An answer to 12.3 with one slip."""

    def answer(text, metric, threshold):
        text = text.lstrip("\ufeff") if bom else text
        rows = [line.split("\t") for line in lines(text) if line.strip()]
        names = [name.strip() if strip else name for name in rows[0]]
        at = (1, names.index(metric)) if position else (names.index("hours"), names.index(metric))
        found = [(float(row[at[0]]) * hours, row[at[1]]) for row in rows[1 + skip :]]
        ok = [seconds for seconds, value in found if passes(float(value), threshold)]
        return ok[pick] if ok else miss if miss == math.inf else found[miss][0]

    return answer


@pytest.mark.parametrize(
    "answer, message",
    [
        (table_reader(hours=1), "multiply by 3600"),
        (table_reader(pick=-1), "the row of the best value"),
        (table_reader(position=True), "find columns by name, not by position"),
        (table_reader(passes=lambda v, t: v > t), ">=, not >"),
        (table_reader(passes=lambda v, t: round(v, 2) >= t), "never a rounded one"),
        (table_reader(passes=lambda v, t: str(v) >= str(t)), "compare numbers"),
        (table_reader(bom=False), "byte order mark"),
        (table_reader(lines=lambda text: text.split("\n"), strip=False), "hours\\r"),
        (table_reader(strip=False), "fields are padded with blanks"),
        (table_reader(miss=-1), "not as long as it ran"),
        (table_reader(miss=0), "argmax of nothing"),
        (table_reader(skip=1), "you lost the first row of data"),
        (lambda *given: None, "return a number of seconds"),
    ],
)
def test_slips_of_a_table_reader_are_told_apart(answer, message):
    assert message in lab12.EXERCISES["12.3"].spec(answer)


def naive(text, metric, threshold):
    names, *rows = [line.split("\t") for line in text.split("\n")]
    hits = [row for row in rows if float(row[names.index(metric)]) >= threshold]
    return float(hits[0][names.index("hours")]) * 3600


def test_an_exception_of_a_table_reader_comes_with_its_line_and_the_table(capsys):
    assert check("12.3", naive) is False
    said = capsys.readouterr().out
    assert "IndexError" in said and "leaves an empty row" in said and "at: hits = [row for row" in said
    assert "for 'epoch\\thours" in said


def test_a_reader_that_uses_pandas_passes():
    def answer(text, metric, threshold):
        table = pd.read_csv(io.StringIO(text.lstrip("\ufeff")), sep="\t").rename(columns=str.strip)
        hits = table[table[metric] >= threshold]
        return hits["hours"].iloc[0] * 3600 if len(hits) else math.inf

    assert lab12.EXERCISES["12.3"].spec(answer) is None


def test_a_reader_of_tables_that_is_not_filled_in_is_no_wrong_answer():
    assert check("12.3", lambda text, metric, threshold: ... + 1) is None


def test_labkits_own_readers_judge_the_six_entries_as_the_referee_must(tmp_path):
    about = {"version": "v1.0", "model": "m", "hardware": "h", "framework": "f", "timestamp": "2019-01-01", "misc": {}}
    for entry, text in CASES.items():
        if text.startswith(":::"):
            found = public_logs.read_text(text)
            seconds, reason = found["tta_seconds"], found["reason"]
        else:
            folder = tmp_path / "ImageNet" / "train"
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{entry}.json").write_text(json.dumps(about))
            (folder / f"{entry}.tsv").write_bytes(text.encode())
            table = dawnbench.read(tmp_path).train.set_index("entry")
            seconds, reason = table.loc[entry, "tta_seconds"], ""
        if entry == "E":
            assert "2 run_start lines, 412 s apart" in reason
        else:
            right = GUILTY[entry]["seconds"] if entry in GUILTY else CLAIMS[entry]["seconds"]
            assert not reason and seconds == pytest.approx(right, abs=0.01), entry
    assert CLAIMS["B"]["seconds"] != GUILTY["B"]["seconds"] and {*GUILTY, *PLEAS} == {*CASES}


@pytest.mark.parametrize("entry", PLEAS)
def test_an_honest_entry_answers_to_every_line_that_is_held_against_it(entry):
    for line in range(1, len(CASES[entry].splitlines()) + 1):
        for verdict in (("refuse", line), ("re-score", line, 1.0)):
            message = lab12.EXERCISES["12.4"].spec({**RIGHT, entry: verdict})
            assert message == f"entry {entry} is honest. {PLEAS[entry].get(line, PLEAS[entry][0])}"
    assert set(PLEAS[entry]) - {0} <= set(range(1, len(CASES[entry].splitlines()) + 1))


@pytest.mark.parametrize(
    "answer, message",
    [
        ({}, "two entries stand that should not"),
        ({"B": RIGHT["B"]}, "one entry stands that should not"),
        ({**RIGHT, "B": ("refuse", 7)}, "what is wrong is the claim, so the entry is re-scored"),
        ({**RIGHT, "E": ("re-score", 6, 2875.0)}, "a referee does not guess"),
        ({**RIGHT, "B": ("re-score", 4, 5834.16)}, "line 4 does not show it"),
        ({**RIGHT, "E": ("refuse", 10)}, "When did its training begin"),
        ({**RIGHT, "B": ("re-score", 7, 5000.4)}, "93.00 only when rounded"),
        ({**RIGHT, "B": ("re-score", 7, 1.0)}, "which row is the first"),
        ({**RIGHT, "B": ("re-score", 9, 5834.16)}, "line 9 does not show it"),
        ({**RIGHT, "B": ("re-score", 8, 5832.0)}, "5832 s is not the score: the row is right, the rounding is too"),
        ({**RIGHT, "B": ("re-score", 8, 1.62)}, "the column is in hours"),
        ({**RIGHT, "B": ("re-score", 8, 97.24)}, "those are minutes"),
        ({**RIGHT, "B": ("re-score", 8, 6667.6)}, "that is the last row"),
        ({**RIGHT, "E": ("refuse", 2)}, "When did its training begin"),
        ({**RIGHT, "B": ("re-score", 7)}, "give {entry:"),
        ({**RIGHT, "B": "guilty"}, "give {entry:"),
        ({**RIGHT, "G": ("refuse", 1)}, "there is no entry 'G'"),
        ({**RIGHT, "E": ("refuse", 99)}, "has lines 1 to 10"),
        ("B and E", "give {entry:"),
    ],
)
def test_a_referee_who_errs_is_told_how(answer, message):
    assert message in lab12.EXERCISES["12.4"].spec(answer)


def test_entries_that_are_accepted_by_name_are_left_alone_and_the_case_file_shows_every_line():
    assert lab12.EXERCISES["12.4"].spec({**dict.fromkeys("ACDF", "accept"), **RIGHT}) is None
    shown = lab12.case_file()
    assert shown.count("\n") + 1 == len(CASES) + sum(len(text.splitlines()) for text in CASES.values())
    assert " 2| 0.3106    1    45.120    70.415\\r" in shown


@pytest.mark.parametrize("seconds", [5834.16, 5834.2, 5834, 5833.8])
@pytest.mark.parametrize("line, start", [(6, 3), (7, 4), (8, 5), (8, 6)])
def test_a_referee_may_round_and_name_any_line_that_shows_it(seconds, line, start):
    assert lab12.EXERCISES["12.4"].spec({"B": ("re-score", line, seconds), "E": ("refuse", start)}) is None


def test_no_other_row_is_near_enough_to_pass_for_the_right_one():
    hours = [float(row.split("\t")[1]) for row in CASES["B"].splitlines()[1:]]
    assert sum(abs(3600 * one - GUILTY["B"]["seconds"]) <= 100 * lab12.NEAR for one in hours) == 1
