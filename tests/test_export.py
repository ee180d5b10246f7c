"""Runs in the public formats: what is written says the same to the public readers as the run does here."""

import dataclasses
import json
import math
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit import experiment, runs
from labkit.curve import Header, Row, Run, Span
from labkit.errors import RequestError
from labkit.tta import clock
from readers import commands, dawnbench, export, mlperf
from labs import thresholds

ROOT = Path(__file__).resolve().parent.parent
TARGET = {"metric": "validation_accuracy", "value": 0.57, "higher": True}  # 100 * 0.57 is below 57 in doubles
# Initialisation after the data, compilation, a gap before and after the first evaluation; the target is met at 15.
SPANS = [
    Span("data", 0.5, 1.0),
    Span("init", 1.0, 2.0),
    Span("compile", 2.0, 4.0),
    Span("train", 4.5, 7.5),
    Span("evaluate", 8.0, 9.0),
    Span("checkpoint", 9.0, 9.25),
    Span("train", 9.25, 14.0),
    Span("evaluate", 14.25, 15.0),
    Span("train", 15.0, 20.0),
    Span("evaluate", 20.0, 21.0),
]
ROWS = [(0.5, 9.0, 0.5), (1.0, 15.0, 0.57), (1.5, 21.0, 0.686)]
CONFIG = {"data": "digits", "model": "a/../b_c", "batch": 8, "rate": 0.1, "train": 100, "validation": 50}
BEGAN, LATER = "2024-02-29T23:59:59+00:00", "2024-03-01T00:00:59+00:00"
MS = 1709251199000  # BEGAN in milliseconds since 1970
HARDWARE = {"cpu": "One (R)", "cpus": 2, "threads": 1, "device": "cpu"}


def run(rows=ROWS, spans=SPANS, target=TARGET, status="finished", metric="validation_accuracy", **header) -> Run:
    found = [Row(0, epoch, 0, when, metric, value) for epoch, when, value in rows]
    found += [Row(1, 0.1, 0, when, "validation_loss", 2.0) for _, when, _ in rows]
    about = {"config": CONFIG, "hardware": HARDWARE, "began": BEGAN, "data": {"checksum": "0"}, **header}
    return Run(Header("11", target=target, **about), list(spans), found, status)


@pytest.fixture(scope="module")
def recorded() -> list[Run]:
    """The thirty recorded runs of lab 11."""
    return runs.read_many(ROOT / "data" / "results" / "11.jsonl.gz")


def events(path: Path) -> list[dict]:
    lines = path.read_text().splitlines()
    assert all(line.startswith(":::MLLOG {") for line in lines)
    return [json.loads(line.removeprefix(":::MLLOG ")) for line in lines]


def everything(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*"))


# DAWNBench


def test_an_entry_has_the_fields_of_the_public_ones(tmp_path):
    paths = export.dawnbench([run(code="c0de", repeat=3)], tmp_path, author="Me & Co")
    assert [path.relative_to(tmp_path).as_posix() for path in paths] == [
        f"digits/train/Me-Co_a-..-b-c-batch-8-rate-0.1_2-x-One-R-threads-1{suffix}" for suffix in (".json", ".tsv")
    ]
    entry = json.loads(paths[0].read_text())
    assert list(entry) == [
        *("version", "author", "authorEmail", "framework", "codeURL"),
        *("model", "hardware", "costPerHour", "timestamp", "misc"),
    ]
    assert (entry["version"], entry["timestamp"], entry["model"]) == ("v1.0", "2024-02-29", "a/../b_c")
    assert entry["costPerHour"] is None and entry["codeURL"] is None
    assert entry["misc"]["config"] == CONFIG and entry["misc"]["target"] == TARGET
    assert (entry["misc"]["repeat"], entry["misc"]["code"]) == (3, "c0de")
    assert "not a submission" in entry["misc"]["note"]


def test_a_table_has_hours_on_the_dawnbench_clock_and_percent(tmp_path):
    _, tsv = export.dawnbench([run()], tmp_path)
    head, *rows = [line.split("\t") for line in tsv.read_bytes().decode().removesuffix("\n").split("\n")]
    assert head == ["epoch", "hours", "top1Accuracy"]
    assert [float(epoch) for epoch, _, _ in rows] == [0.5, 1.0, 1.5]
    # data, init, compile and training; no gap, no evaluation, no checkpoint
    assert [float(hours) * 3600 for _, hours, _ in rows] == pytest.approx([6.5, 11.25, 16.25], abs=1e-9)
    assert [float(percent) for _, _, percent in rows] == [50.0, 57.0, 68.6]


def test_repeats_get_their_number_and_recipes_alike_in_name_a_digest(tmp_path):
    def stems(folder, *found):
        return [path.stem for path in export.dawnbench(found, tmp_path / folder) if path.suffix == ".json"]

    (alone,) = stems("alone", run(repeat=4))
    assert stems("two", run(repeat=0), run(repeat=4)) == [f"{alone}_0", f"{alone}_4"]
    large = {**CONFIG, "batch": 32}
    (one, other) = stems("batches", run(), run(config=large))
    assert one == alone and other == alone.replace("-batch-8-", "-batch-32-")
    # The same model, batch and rate; on a file system that ignores case, "M" and "m" would be one file.
    capital, small = (run(repeat=number, config={**CONFIG, "model": name}) for number, name in enumerate("Mm"))
    for folder, found in {"code": (run(code="1"), run(code="2")), "case": (capital, small)}.items():
        assert all(re.search("-batch-8-rate-0.1-[0-9a-f]{8}_2-x", stem) for stem in stems(folder, *found))
        assert len({stem.lower() for stem in stems(f"{folder} again", *found)}) == 2
    with pytest.raises(RequestError, match="is given twice; name it once"):
        stems("twice", run(), run())


def test_the_files_of_a_recipe_are_those_of_any_company(tmp_path):
    """Where names do not clash, exporting one recipe alone and beside another names it alike."""
    large = run(config={**CONFIG, "batch": 32})
    for write in (export.dawnbench, export.mlperf):
        alone = write([run()], tmp_path / write.__name__)
        both = write([run(), large], tmp_path / f"{write.__name__} two")
        assert [path.name for path in both[: len(alone)]] == [path.name for path in alone]


def seconds_read(folder: Path, percent: float) -> list[float]:
    benchmark = dawnbench.read(folder)
    assert benchmark.refused == []
    tasks = {task for task, _ in benchmark.curves}
    return thresholds.thresholds(benchmark, {task: [percent] for task in tasks}).seconds.tolist()


def test_the_recorded_runs_read_back_with_their_times(recorded, tmp_path):
    export.dawnbench(recorded, tmp_path)
    expected = [clock.time_to_target(each, "dawnbench").seconds for each in recorded]
    assert len(set(expected)) == 30
    assert sorted(seconds_read(tmp_path, 84.0)) == pytest.approx(sorted(expected), abs=1e-6)


@settings(max_examples=40, deadline=None)
@given(counts=st.lists(st.integers(0, 1000), min_size=1, max_size=6), target=st.integers(1, 1000))
def test_percent_crosses_where_the_fraction_does(counts, target, tmp_path_factory):
    folder = tmp_path_factory.mktemp("percent")
    rows = [(number + 1.0, number + 1.0, count / 1000) for number, count in enumerate(counts)]
    spans = [Span("train", float(number), number + 1.0) for number in range(len(counts))]
    one = run(rows, spans, {**TARGET, "value": target / 1000})
    export.dawnbench([one], folder)
    expected = clock.time_to_target(one, "dawnbench").seconds
    assert seconds_read(folder, target / 10) == pytest.approx([expected], abs=1e-6)


def test_without_a_target_the_validation_accuracy_is_filed(tmp_path):
    _, tsv = export.dawnbench([run(target=None)], tmp_path)
    assert len(tsv.read_text().splitlines()) == 4
    with pytest.raises(RequestError, match="validation_accuracy was never evaluated"):
        export.dawnbench([run(target=None, metric="test_accuracy")], tmp_path / "other")


# MLPerf


def test_a_log_line_by_line(tmp_path):
    (path,) = export.mlperf([run()], tmp_path)
    found = events(path)
    times = {event["key"]: event["time_ms"] for event in found}
    # On the clock: 15 s less half a second before the data, init and compile. All of those 3.5 s come first.
    assert times["init_start"] == MS and times["init_stop"] == times["run_start"] == MS + 3500
    assert times["run_stop"] - times["run_start"] == 11500
    assert clock.time_to_target(run(), "mlperf").seconds == 11.5
    inside = [event for event in found if event["time_ms"] >= times["run_start"]][2:]
    assert [(event["key"], event["time_ms"] - times["run_start"]) for event in inside] == [
        ("block_start", 1000),  # the data and the gap before training
        ("block_stop", 4500),  # with the gap after it
        *(("eval_start", 4500), ("eval_stop", 5500), ("eval_accuracy", 5500)),
        ("block_start", 5750),  # the checkpoint before it is on the clock
        ("block_stop", 10750),
        *(("eval_start", 10750), ("eval_stop", 11500), ("eval_accuracy", 11500)),
        ("run_stop", 11500),  # at the target: what the run did after it is left out
    ]
    assert [event["value"] for event in inside if event["key"] == "eval_accuracy"] == [0.5, 0.57]
    assert [event["metadata"] for event in inside if event["key"] == "block_start"] == [
        {"first_epoch_num": 0.0, "epoch_count": 0.5},
        {"first_epoch_num": 0.5, "epoch_count": 0.5},
    ]
    assert inside[-1]["metadata"] == {"status": "success"}
    kinds = {event["key"].split("_")[-1]: event["event_type"] for event in found}
    assert (kinds["start"], kinds["stop"], kinds["accuracy"]) == ("INTERVAL_START", "INTERVAL_END", "POINT_IN_TIME")
    said = {event["key"]: event["value"] for event in found}
    assert said["submission_benchmark"] == "labkit-digits-a-..-b-c"
    assert (said["train_samples"], said["eval_samples"], said["global_batch_size"]) == (100, 50, 8)
    assert said["cache_clear"] is False and "not a submission" in said["labkit_export"]["note"]


def test_a_run_that_misses_is_aborted_at_its_last_evaluation(tmp_path):
    (path,) = export.mlperf([run(target={**TARGET, "value": 0.7})], tmp_path)
    last = events(path)[-1]
    assert (last["key"], last["metadata"]) == ("run_stop", {"status": "aborted"})
    assert last["time_ms"] == MS + 21000  # stops stand where they were


def test_logs_are_numbered_in_the_order_of_repeats(tmp_path):
    paths = export.mlperf([run(repeat=7), run(repeat=2)], tmp_path)
    assert [path.name for path in paths] == ["result_0.txt", "result_1.txt"]
    seeds = [event["value"] for path in paths for event in events(path) if event["key"] == "seed"]
    assert seeds == [2, 7]


@pytest.mark.parametrize("other", [{"config": {**CONFIG, "batch": 9}}, {"hardware": {**HARDWARE, "cpus": 4}}])
def test_each_recipe_and_machine_has_a_folder_of_its_own(tmp_path, other):
    """What readers take for repeats are repeats: each folder is a system of its own to them."""
    paths = export.mlperf([run(), run(**other), run(repeat=1, began=LATER, **other)], tmp_path)
    folders = [path.parent.relative_to(tmp_path).as_posix() for path in paths]
    assert len(set(folders)) == 2 and all(re.fullmatch(r"[A-Za-z0-9.+-]+", folder) for folder in folders)
    assert sorted(f"{folders.index(folder)}/{path.name}" for folder, path in zip(folders, paths)) == [
        "0/result_0.txt", "1/result_0.txt", "1/result_1.txt",
    ]  # fmt: skip
    read = mlperf.read(tmp_path)
    assert read.refused == [] and dict(zip(read.systems.system, read.systems.runs)) == {folders[0]: 1, folders[1]: 2}


def test_a_run_given_twice_is_refused(tmp_path):
    with pytest.raises(RequestError, match="is given twice; name it once"):
        export.mlperf([run(), run()], tmp_path)
    assert everything(tmp_path) == []


def test_our_reader_gives_the_times_back(recorded, tmp_path):
    export.mlperf(recorded, tmp_path / "thirty")
    read = mlperf.read(tmp_path / "thirty")
    assert read.refused == [] and read.runs.converged.all() and set(read.runs["format"]) == {"v0.7"}
    expected = [
        clock.time_to_target(each, "mlperf").seconds for each in sorted(recorded, key=lambda r: r.header.repeat)
    ]
    found = read.runs.set_index("file").tta_seconds
    assert [found[f"result_{number}.txt"] for number in range(30)] == pytest.approx(expected, abs=6e-4)
    # the same thirty under the same rule: drop the fastest and the slowest, mean of the rest
    assert read.systems.score_seconds.tolist() == pytest.approx([clock.score(recorded, "mlperf").seconds], abs=6e-4)
    export.mlperf([run(target={**TARGET, "value": 0.7})], tmp_path / "missed")
    (missed,) = mlperf.read(tmp_path / "missed").runs.itertuples()
    assert (missed.converged, missed.evaluations, missed.last_epoch) == (False, 3, 1.5) and math.isnan(
        missed.tta_seconds
    )


def test_runs_of_less_than_a_second_are_read_back(tmp_path):
    """So short are those of lab 11 at profile quick."""
    spans = [dataclasses.replace(span, start=span.start / 50, end=span.end / 50) for span in SPANS]
    short = run([(epoch, when / 50, value) for epoch, when, value in ROWS], spans)
    export.mlperf([short], tmp_path / "mlperf")
    read = mlperf.read(tmp_path / "mlperf")
    assert read.refused == [] and read.runs.tta_seconds.tolist() == pytest.approx([0.23], abs=1e-3)
    export.dawnbench([short], tmp_path / "dawnbench")
    assert dawnbench.read(tmp_path / "dawnbench").train.tta_seconds.tolist() == pytest.approx([0.225])


# The official package. Its parsers differ by round; the rules for an unknown task stop at its name.

ROUNDS = ["0.7.0", "1.0.0", "2.1.0", "4.0.0", "5.1.0", "6.0.0"]


@pytest.fixture
def compliance():
    """The official checker's module, without rules left over from another test."""
    module = pytest.importorskip("mlperf_logging.compliance_checker.mlp_compliance")
    module.enqueued_configs.clear()
    yield module
    module.enqueued_configs.clear()


def test_the_official_parser_reads_the_same_times(recorded, tmp_path):
    official = pytest.importorskip("mlperf_logging.result_summarizer.result_summarizer")
    paths = export.mlperf(recorded, tmp_path)
    for path, each in zip(paths, sorted(recorded, key=lambda each: each.header.repeat), strict=True):
        lines, errors = official.parse_file(str(path), ruleset="0.7.0")
        assert errors == [] and len(lines) == len(path.read_text().splitlines())
        start, stop = official._query_run_start_stop(lines)
        assert stop - start == round(1000 * clock.time_to_target(each, "mlperf").seconds)


@pytest.mark.parametrize("ruleset", ROUNDS)
def test_the_official_checker_objects_to_the_name_of_the_task_alone(compliance, ruleset, tmp_path):
    from mlperf_logging.compliance_checker import mlp_parser

    (path,) = export.mlperf([run()], tmp_path)
    lines, errors = mlp_parser.parse_file(str(path), ruleset)
    checker = compliance.make_checker("training", ruleset, quiet=False, werror=True)
    folder = Path(compliance.__file__).parent
    for rules in (f"training_{ruleset}/common.yaml", f"training_{ruleset}/open_common.yaml"):
        checker.configured_checks(lines, folder / rules)
    assert errors == [] and checker.not_overwritable == [] and list(checker.overwritable) == ["submission_benchmark"]


@pytest.mark.parametrize("reached, passes", [(0.76, True), (0.75, False)])
def test_nothing_but_the_name_keeps_a_log_from_passing(compliance, reached, passes, tmp_path):
    """Under a round's own task name the whole official check runs: its target for `resnet` is 0.759."""
    one = run([(1.0, 9.0, 0.2), (2.0, 15.0, reached)], target={**TARGET, "value": reached})
    (path,) = export.mlperf([one], tmp_path, benchmark="resnet")
    checker = compliance.make_checker("training", "0.7.0", quiet=True, werror=False)
    assert bool(checker.check_file(str(path), "training_0.7.0/common.yaml")) is passes


# A run that was just trained


def test_a_trained_run_from_its_file(store, store_folder, tiny, tmp_path):
    target = {"metric": "validation_accuracy", "value": 0.01, "higher": True}
    trained = experiment.train(tiny(target=target), store, lab="11")
    (entry, _) = commands.export([store_folder], "dawnbench", tmp_path / "dawn").splitlines()
    assert json.loads(Path(entry).read_text())["misc"]["config"]["batch"] == 16
    (log,) = commands.export([store.path(trained.header)], "mlperf", tmp_path / "mlperf").splitlines()
    found = {event["key"]: event["time_ms"] for event in events(Path(log))}
    seconds = clock.time_to_target(trained, "mlperf").seconds
    assert found["run_stop"] - found["run_start"] == round(1000 * seconds) > 0


# Refusals: one line with the reason, and nothing is written


@pytest.mark.parametrize("write", [export.dawnbench, export.mlperf])
@pytest.mark.parametrize(
    "change, reason",
    [
        ({"arms": 2}, "2 runs were trained together and share their seconds"),
        ({"source": "public-log", "clock": "mlperf"}, "its source is public-log"),
        ({"source": "simulated"}, "its source is simulated"),
        ({"status": "unfinished"}, "it is unfinished"),
        ({"status": "failed"}, "it is failed"),
        ({"spans": []}, "no spans of time"),
        ({"spans": [Span("evaluate", 0.0, 1.0)]}, "no span that .* the (dawnbench|mlperf) clock"),
        ({"target": {"metric": "validation_loss", "value": 0.1, "higher": False}}, "is not an accuracy"),
        ({"target": {"metric": "validation_accuracy", "value": math.nan}}, "is not an accuracy"),
        ({"target": {"metric": "validation_accuracy"}}, "is not an accuracy"),
        ({"target": {**TARGET, "metric": "test_accuracy"}}, "test_accuracy was never evaluated"),
        ({"rows": [(0.5, 9.0, 1.01)]}, "out of range"),
        ({"rows": [(0.5, 9.0, math.nan)]}, "out of range"),
        ({"rows": [(math.inf, 9.0, 0.5)]}, "out of range"),
        ({"rows": [(0.5, math.nan, 0.5)]}, "out of range"),
        ({"rows": [ROWS[1], ROWS[0]]}, "do not follow one another"),
        ({"began": ""}, "when it began"),
        ({"began": "2024-02-30T00:00:00+00:00"}, "when it began"),
    ],
)
def test_what_is_not_a_whole_run_of_ones_own_is_refused(write, change, reason, tmp_path):
    bad = run(repeat=1, **change)
    with pytest.raises(RequestError, match=reason) as refused:
        write([run(), bad], tmp_path / "out")
    assert bad.header.identity in str(refused.value) and "\n" not in str(refused.value)
    assert everything(tmp_path) == []


def test_mlperf_wants_a_target(tmp_path):
    with pytest.raises(RequestError, match="without a target"):
        export.mlperf([run(target=None)], tmp_path)


@pytest.mark.parametrize("write, number", [(export.dawnbench, 3), (export.mlperf, 1)])
def test_a_file_that_is_there_stays_as_it_is(write, number, tmp_path):
    both = [run(), run(repeat=1)]
    taken = write(both, tmp_path)[number]
    for path in everything(tmp_path):
        if path.is_file() and path != taken:
            path.unlink()
    taken.write_text("mine")
    with pytest.raises(RequestError, match=re.escape(f"{taken} is already there")):
        write(both, tmp_path)
    assert [path for path in everything(tmp_path) if path.is_file()] == [taken] and taken.read_text() == "mine"


def test_nothing_half_written_stays(tmp_path):
    (tmp_path / "digits").write_text("in the way")
    with pytest.raises(RequestError, match="nothing can be written into"):
        export.dawnbench([run()], tmp_path)
    with pytest.raises(RequestError, match="nothing can be written into"):
        export.mlperf([run()], tmp_path / "digits" / "logs")
    assert everything(tmp_path) == [tmp_path / "digits"]


# The command: files and folders with runs of any kind


def file_of(one: Run, path: Path) -> Path:
    """A store's file of a run."""
    with runs.RunWriter(dataclasses.replace(one.header), path) as writer:
        for span in one.spans:
            writer.span(span.kind, span.start, span.end)
        for row in one.rows:
            writer.metric(row.name, row.value, step=row.step, epoch=row.epoch, when=row.when)
    return path


def test_runs_are_found_in_files_and_folders(recorded, tmp_path):
    folder = tmp_path / "some" / "runs"
    runs.pack(recorded[:2], folder / "two.jsonl.gz")
    file_of(recorded[2], folder / "11" / "one.jsonl")
    (folder / "notes.txt").write_text("no run")
    assert len(commands.export([tmp_path], "mlperf", tmp_path / "a").splitlines()) == 3
    both = commands.export([folder / "two.jsonl.gz", str(folder / "11")], "dawnbench", tmp_path / "b")
    assert len(both.splitlines()) == 6 and all(Path(line).is_file() for line in both.splitlines())


def mixed(folder: Path) -> Path:
    """Two recipes with a target; and shared seconds, no target, no curve, a killed run, a damaged file."""
    each = {
        "0": run(), "1": run(repeat=1, began=LATER), "large": run(config={**CONFIG, "batch": 32}),
        "arms": run(repeat=2, arms=2),
        "evidence": run(rows=[], config={"evidence": "a sum"}, target=None), "aimless": run(repeat=3, target=None),
    }  # fmt: skip
    for name, one in each.items():
        file_of(one, folder / f"{name}.jsonl")
    killed = file_of(run(repeat=4), folder / "killed.jsonl")
    killed.write_bytes(b"".join(killed.read_bytes().splitlines(True)[:-1]))
    (folder / "damaged.jsonl").write_text("no run\n")
    return folder


@pytest.mark.parametrize("to, files, left_out", [("mlperf", 3, 5), ("dawnbench", 8, 4)])
def test_of_a_mixed_folder_the_rest_is_written_and_each_other_run_named(to, files, left_out, tmp_path):
    lines = commands.export([mixed(tmp_path / "runs")], to, tmp_path / "out").splitlines()
    assert len([line for line in lines if Path(line).is_file()]) == files
    told = [line for line in lines if line.startswith("left out: ")]
    assert len(told) == left_out == len(lines) - files
    reasons = ["2 runs were trained together", "it is unfinished", "damaged.jsonl, line 1: not a line of a run"]
    reasons += ["without a target"] * 2 if to == "mlperf" else ["validation_accuracy was never evaluated"]
    for reason in set(reasons):
        assert sum(reason in line for line in told) == reasons.count(reason), reason


def test_what_a_mixed_folder_gives_is_read_back(tmp_path):
    for to in ("mlperf", "dawnbench"):
        commands.export([mixed(tmp_path / to / "runs")], to, tmp_path / to / "out")
    systems = mlperf.read(tmp_path / "mlperf" / "out").systems
    assert systems.runs.tolist() == [1, 2] and systems.converged.tolist() == [1, 2]
    entries = dawnbench.read(tmp_path / "dawnbench" / "out").train
    # Each at the target that it states (the run without one has no time), to the second of its own clock.
    assert entries["flags"].str.contains("own-target").tolist().count(True) == 3
    assert sorted(entries.tta_seconds.dropna()) == pytest.approx([clock.time_to_target(run(), "dawnbench").seconds] * 3)


def test_where_no_run_is_left_the_reasons_are_given_once_each(tmp_path):
    for number in range(3):
        file_of(run(repeat=number, target=None), tmp_path / "runs" / f"{number}.jsonl")
    file_of(run(arms=2), tmp_path / "runs" / "arms.jsonl")
    with pytest.raises(RequestError) as refused:
        commands.export([tmp_path / "runs"], "mlperf", tmp_path / "out")
    said = str(refused.value)
    assert said.count("without a target") == said.count("trained together") == 1 and "\n" not in said
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["absent", "absent.jsonl", "empty", "notes.txt"])
def test_a_path_without_runs_is_named(name, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(RequestError, match=f"no runs at .*{name}; name .jsonl"):
        commands.export([tmp_path / name], "mlperf", tmp_path / "out")


def test_a_wrong_format_and_an_empty_file_are_refused(tmp_path):
    (tmp_path / "empty.jsonl").write_bytes(b"")
    with pytest.raises(RequestError, match="unknown format 'csv'; allowed: dawnbench, mlperf"):
        commands.export([tmp_path], "csv", tmp_path / "out")
    with pytest.raises(RequestError, match="no run in these files can be exported .they hold none"):
        commands.export([tmp_path], "mlperf", tmp_path / "out")
