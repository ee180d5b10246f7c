"""The course as data, and the session that a notebook holds."""

import dataclasses
import json
import sys

import numpy as np
import pytest
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
from traitlets.config import Config

from labkit import claims, course, lab, machine, paths, profiles
from labkit.errors import RequestError, WorkError
from labkit.runs import Header, Row, Run, Store

LABS = course.course()
ROUTES = ("evening", "week", "semester")


@pytest.fixture
def written(tmp_path, monkeypatch):
    """A course in which labs 07 and 11 are written, 11 as a source only."""
    (tmp_path / "notebooks" / "src").mkdir(parents=True)
    (tmp_path / "notebooks" / "07_large_batches.ipynb").touch()
    (tmp_path / "notebooks" / "src" / "11_time_to_accuracy.py").touch()
    monkeypatch.setattr(paths, "notebooks", lambda: tmp_path / "notebooks")


@pytest.fixture
def shell(tmp_path, monkeypatch):
    """A shell as a notebook has it, so that what is displayed can be captured."""
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])  # a shell brings its own
    yield InteractiveShell.instance(config=Config(HistoryManager={"enabled": False}))
    InteractiveShell.clear_instance()


@pytest.fixture
def session(written, store):
    return lab.Lab(lab.find("07"), "smoke", profiles.resolve("07", "smoke"), [3, 5], store, False)


def test_the_course_is_a_graph_that_can_be_walked():
    assert list(LABS) == [f"{number:02d}" for number in range(len(LABS))]
    done = set()
    while len(done) < len(LABS):  # each round takes the labs whose needs are met; a circle would stop it
        ready = {number for number, entry in LABS.items() if set(entry.needs) <= done} - done
        assert ready, f"labs {sorted(set(LABS) - done)} need one another, or a lab that is not there"
        done |= ready
    assert len({entry.name for entry in LABS.values()}) == len(LABS)
    assert all(entry.question.endswith("?") for entry in LABS.values())


def test_every_route_starts_at_the_start_and_holds_the_shorter_one():
    on = {route: {number for number, entry in LABS.items() if route in entry.routes} for route in ROUTES}
    assert {route for entry in LABS.values() for route in entry.routes} == set(ROUTES)
    assert "00" in on["evening"] < on["week"] < on["semester"] == set(LABS)
    for entry in LABS.values():  # all that a lab needs lies on the longest route, the start before anything else
        assert set(entry.needs) <= on["semester"] and entry.number not in entry.needs
        assert LABS["00"].needs == () and (entry.needs or entry.number in ("00", "16"))


def test_every_claim_belongs_to_labs_that_there_are():
    for claim in claims.load():
        assert claim.labs and set(claim.labs) <= set(LABS), claim.id


@pytest.mark.parametrize("text", ["7", "07", 7, " 07 ", "large_batches", "07_large_batches", "07_large_batches.ipynb"])
def test_a_lab_is_found_by_number_and_name(written, text):
    entry = lab.find(text)
    assert (entry.number, entry.stem, entry.exists) == ("07", "07_large_batches", True)
    assert entry.notebook == paths.notebooks() / "07_large_batches.ipynb"
    assert lab.find("11").exists and not lab.find("11").notebook.exists()


@pytest.mark.parametrize(
    "text", ["99", "", "007", "7.0", "-7", "large", "\u0667", "../07_large_batches", "07 large_batches"]
)
def test_an_unknown_lab_is_named_with_those_there_are(written, text):
    with pytest.raises(RequestError, match="unknown lab .*; allowed: 07_large_batches, 11_time_to_accuracy$"):
        lab.find(text)


def test_a_planned_lab_is_not_an_unknown_one(written):
    with pytest.raises(RequestError, match="lab 01_cost_of_a_step is planned but not written yet; allowed: 07_"):
        lab.find("1")


def test_a_request_is_checked_whole_before_anything_starts(written):
    entry, settings, seeds = lab.request("7", "smoke", "4,2", {"data": "procedural"})
    assert (entry.number, settings.data, settings.train, seeds) == ("07", "procedural", 512, [4, 2])
    with pytest.raises(RequestError, match="mnist5k has 5000 images for this and train 4900"):
        lab.request("7", "quick", overrides={"train": 4900})
    with pytest.raises(RequestError, match="unknown size of deep-mlp 'hidden'; allowed: width, depth"):
        lab.request("11", overrides={"sizes": {"hidden": 3}})
    with pytest.raises(RequestError, match="seeds '1,1'"):
        lab.request("11", seeds="1,1")


@pytest.mark.parametrize("number", ["00", "07", "11", "12", "13"])
def test_every_field_of_every_lab_may_be_set(number):
    settings = profiles.resolve(number, "smoke")
    for field in dataclasses.fields(settings):
        given = {field.name: getattr(settings, field.name)}
        assert lab.request(number, "smoke", overrides=given)[1] == settings, field.name


def test_the_plan_says_what_runs_and_what_it_cost(written, tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "data", lambda: tmp_path)
    entry = LABS["07"]
    text = lab.plan(entry, "quick", [0, 1])
    assert text.startswith("**Lab 07** at profile **quick**, seeds 0, 1.") and "not been measured yet" in text
    costs = {
        "07": {"quick": {"seconds": 74.6, "cpu": "a processor", "threads": None}, "full": {"seconds": 9, "cpu": "b"}}
    }
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "costs.json").write_text(json.dumps(costs))
    assert lab.costs() == costs
    assert "It took 75 s on a processor (all threads)." in lab.plan(entry, "quick", [0])
    assert "It took 9 s on b (all threads)." in lab.plan(entry, "full", [0])
    assert "not been measured yet" in lab.plan(entry, "smoke", [0])
    (tmp_path / "results" / "costs.json").write_text("{")
    with pytest.raises(WorkError, match="costs.json is not sound JSON"):
        lab.plan(entry, "quick", [0])


def test_opening_a_lab_shows_its_plan_and_writes_nothing(written, store_folder, shell):
    with capture_output() as shown:
        opened = lab.start("07", "smoke", "1,2", {"epochs": 1}, interactive=False)
    assert "**Lab 07** at profile **smoke**, seeds 1, 2." in shown.outputs[0].data["text/markdown"]
    assert opened.store.folder == store_folder and not store_folder.exists()
    assert opened.settings == dataclasses.replace(profiles.resolve("07", "smoke"), epochs=1.0)
    assert opened.claims == claims.hashes("07") and opened.claims
    with capture_output():
        assert lab.start("07", "smoke", record_to=str(store_folder / "x")).store.folder == store_folder / "x"


@pytest.mark.parametrize("count, expected", [(1, [3, 5]), (2, [3, 5]), (4, [3, 4, 5, 6])])
def test_seeds_are_those_asked_for_or_counted_from_the_first(session, count, expected):
    assert session.repeats(count) == expected


def test_training_goes_through_the_store(session, tiny, store, capsys):
    recipes = [tiny(rate=0.05), tiny(rate=0.1)]
    first = session.train(recipes, label="two rates")
    assert [(run.config["rate"], run.header.repeat) for run in first] == [(0.05, 3), (0.05, 5), (0.1, 3), (0.1, 5)]
    assert all(run.header.claims == session.claims and run.header.lab == "07" for run in first)
    again = session.train(recipes[1:], [5])
    assert again[0].header.began == first[3].header.began and again[0].rows == first[3].rows  # not trained again
    assert len(store.runs("07")) == len(session.used) == 4
    assert session.train(recipes, []) == []
    assert "two rates: 4 runs" in capsys.readouterr().err


def test_runs_trained_together_come_in_one_batch_a_size(session, tiny):
    recipes = [tiny(batch=batch, rate=rate) for batch in (32, 16) for rate in (0.05, 0.1)]
    found = session.train_together(recipes, [0])
    assert [(run.config["batch"], run.config["rate"]) for run in found] == [
        (16, 0.05),
        (16, 0.1),
        (32, 0.05),
        (32, 0.1),
    ]
    assert {run.header.arms for run in found} == {2} and session.train_together(recipes, []) == []


def test_evidence_is_a_run_of_its_own(session, store):
    run = session.evidence("norms", [("gap", 0.5), ("gap", 0.25, 64)], width=8)
    assert run.config == {"evidence": "norms", "width": 8} and run.status == "finished"
    assert [(row.name, row.value, row.samples) for row in run.rows] == [("gap", 0.5, 0), ("gap", 0.25, 64)]
    assert store.runs("07") == [run] == list(session.used.values())
    session.evidence("norms", [("gap", 0.125)], width=8)
    assert [run.last("gap") for run in store.runs("07")] == [0.125]


def test_the_record_holds_what_ran_on_what_and_the_verdicts(session, shell):
    run = session.evidence("norms", [("gap", 0.5)])
    session.keep("07.p1", "legw")
    session.keep(
        "07.p2", {"factor": np.float32(2.5), "steps": np.int64(3), "all": np.array([1, 2]), "none": float("nan")}
    )
    with capture_output() as shown:
        session.record()
    (output,) = shown.outputs
    record = json.loads(json.dumps(output.data[lab.RECORD_MIME], allow_nan=False))  # it travels in a notebook
    assert record["runs"] == [f"{run.header.identity}-{run.header.machine}"]
    assert (record["lab"], record["profile"], record["seeds"]) == ("07", "smoke", [3, 5])
    assert record["settings"] == dataclasses.asdict(session.settings) and record["seconds"] >= 0
    assert record["claims"] == claims.hashes("07")
    assert set(record["verdicts"]) == {claim.id for claim in claims.load("07")}
    assert set(record["verdicts"].values()) <= set(claims.VERDICTS) and record["verdicts"]["L01"] == "holds exactly"
    assert record["hardware"] == machine.hardware("cpu") and record["software"] == machine.software()
    assert record["predictions"] == {
        "07.p1": "legw",
        "07.p2": {"factor": 2.5, "steps": 3, "all": [1, 2], "none": "NaN"},
    }
    assert output.data["text/plain"].startswith("recorded: 1 run of lab 07 at profile smoke; claims")


def test_the_board_is_over_recorded_runs_and_those_of_this_session(session, monkeypatch):
    claim = next(claim for claim in claims.load("07") if claim.rule)
    planted = Run(Header("07", {"planted": True}, claims={claim.id: "an older rule"}), [], [Row(0, 0, 0, 0, "a", 1)])
    monkeypatch.setattr(session, "recorded", lambda: [planted])
    assert list(session.board()["claim"]) == [claim.id for claim in claims.load("07")]
    evidence = dict(zip(session.board()["claim"], session.board()["evidence"], strict=True))
    assert "1 runs left out: made under another version" in evidence[claim.id]
    assert "left out" not in " ".join(session.board([])["evidence"])


def test_simulated_runs_prove_nothing_about_accuracy():
    claim = next(claim for claim in claims.load() if claim.rule.get("name") == "at_most")
    real = Run(Header("07", {}, claims={claim.id: claim.hash}), [], [Row(0, 0, 0, 0, claim.rule["metric"], 0.0)])
    made_up = Run(dataclasses.replace(real.header, source="simulated"), [], real.rows)
    assert claims.judge(claim, [real]).verdict != "not attempted"
    found = claims.judge(claim, [made_up])
    assert found.verdict == "not attempted" and "1 runs left out: simulated" in found.evidence
    waiting = dataclasses.replace(claim, about="waiting")
    assert claims.judge(waiting, [made_up]).runs == 1


FITS = {"id": "X1", "origin": "paper", "paper": "legw", "place": "p", "grade": "verified", "statement": "s"}
FITS |= {"kind": "value", "about": "time", "labs": ["07"]}


@pytest.mark.parametrize(
    "content, message",
    [
        ("", "bad.yaml is not a list of claims"),
        ("[{id: X", "bad.yaml is not a list of claims"),
        ([7], "bad.yaml: claim 7 does not fit"),
        ([{"id": "X1"}], "bad.yaml: claim X1 does not fit: 'labs'"),
        ([FITS | {"colour": "red"}], "claim X1 does not fit: .*colour"),
        ([FITS | {"origin": "hearsay"}], "unknown origin of claim X1 'hearsay'; allowed: paper, later literature"),
        ([FITS | {"grade": "remembered", "literature": "76 %"}], "only remembered, so it may not show a figure"),
        ([FITS | {"rule": {"name": "cubes"}}], "unknown rule of claim X1 'cubes'; allowed: at_most"),
        ([FITS | {"rule": {"name": "at_most", "bound": 1}}], "rule at_most of claim X1: missing a required .*'metric'"),
        ([FITS | {"rule": {"name": "at_most", "metric": "a", "bound": 1, "seed": 3}}], "at_most of claim X1: .*'seed'"),
        ([FITS, FITS], "two claims share an id"),
    ],
)
def test_a_claim_that_does_not_fit_is_named(tmp_path, monkeypatch, content, message):
    (tmp_path / "claims").mkdir()
    text = content if isinstance(content, str) else json.dumps(content)  # JSON is YAML
    (tmp_path / "claims" / "bad.yaml").write_text(text)
    monkeypatch.setattr(paths, "data", lambda: tmp_path)
    with pytest.raises(WorkError, match=message):
        claims.load()
    (tmp_path / "claims" / "bad.yaml").write_text(json.dumps([FITS]))
    assert [claim.id for claim in claims.load("07")] == ["X1"] and claims.load("11") == []


def test_a_store_is_where_the_environment_says(monkeypatch, tmp_path):
    monkeypatch.setenv("LABKIT_STORE", str(tmp_path / "mine"))
    assert paths.store() == tmp_path / "mine"
    monkeypatch.setenv("LABKIT_STORE", "")
    assert paths.store() == paths.root() / "results" / "runs"
    assert isinstance(Store(paths.store()), Store) and (paths.data() / "labs.yaml").is_file()


@pytest.mark.parametrize(
    "text, cap", [("", None), ("0", None), ("4", 4), ("4,2", 4), (" 2 ", 2), ("many", None), ("\u0664", None)]
)
def test_any_thread_cap_is_read(monkeypatch, text, cap):
    monkeypatch.setenv("OMP_NUM_THREADS", text)
    assert machine.hardware()["threads"] == cap


def test_what_belongs_to_a_lab_is_found_in_the_checkout(tmp_path, monkeypatch):
    assert {"plan00", "plan07", "plan11"} <= set(paths.lab_parts("plan[0-9]"))
    assert all(profiles.plan(name[4:]) is paths.lab_part(name).Profile for name in paths.lab_parts("plan[0-9]"))
    with pytest.raises(WorkError, match="notebooks/labs/plan99.py is not there"):
        paths.lab_part("plan99")
    monkeypatch.setattr(paths, "root", lambda: tmp_path)
    with pytest.raises(RequestError, match="unknown lab with a profile '07'; allowed: none"):
        profiles.resolve("07")
