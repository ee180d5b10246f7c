"""Profiles: data that fits its dataclass, and requests that are refused with what is allowed."""

import dataclasses
import math
import string

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit import paths, profiles
from labkit.errors import RequestError, WorkError
from labs import plan07, plan11

LABS = sorted(path.stem for path in (paths.data() / "profiles").glob("*.yaml"))


@pytest.mark.parametrize("profile", profiles.NAMES)
@pytest.mark.parametrize("lab", LABS)
def test_every_profile_file_fits(lab, profile):
    found = profiles.resolve(lab, profile)
    assert isinstance(found, profiles.plan(lab))
    assert profiles.resolve(lab, profile, dataclasses.asdict(found)) == found


def test_every_dataclass_has_its_file_and_every_field_says_what_it_is():
    assert LABS == [name.removeprefix("plan") for name in paths.lab_parts("plan[0-9]")]
    for lab in LABS:
        cls = profiles.plan(lab)
        assert cls() == cls(**profiles.fitted(cls, lab, dataclasses.asdict(cls())))
        assert all(field.metadata["doc"] for field in dataclasses.fields(cls))


def test_profiles_differ_only_in_data_and_overrides_only_in_what_they_name():
    quick = profiles.resolve("07", "quick")
    assert profiles.resolve("07") == quick
    content = yaml.safe_load((paths.data() / "profiles" / "07.yaml").read_text(encoding="utf-8"))
    for profile in profiles.NAMES:
        found = profiles.resolve("07", profile)
        expected = dataclasses.asdict(plan07.Profile()) | (content[profile] or {})
        assert dataclasses.asdict(found) == expected
    changed = profiles.resolve("07", "quick", {"epochs": 3})
    assert changed == dataclasses.replace(quick, epochs=3.0) and type(changed.epochs) is float


@pytest.mark.parametrize("profile", profiles.NAMES)
def test_the_plans_of_every_profile_are_recipes_each_once(profile):
    lab = profiles.resolve("07", profile)
    optional = {plan07.adaptive: lab.adaptive, plan07.equal_steps: lab.equal_steps_batches}
    for plan in (plan07.mlp_table, plan07.lstm_table, plan07.adaptive, plan07.equal_steps, plan07.curvature):
        recipes = plan(lab)
        assert all(recipe not in recipes[:place] for place, recipe in enumerate(recipes))
        assert bool(recipes) == bool(optional.get(plan, True))
    assert plan11.repeated(profiles.resolve("11", profile)).target["higher"]


@pytest.mark.parametrize(
    "lab, profile, overrides, message",
    [
        ("07", "quik", {}, "unknown profile 'quik'; allowed: smoke, quick, full"),
        ("99", "quick", {}, "unknown lab with a profile '99'; allowed: 00, 01, "),
        ("07", "quick", {"typo": 1}, "unknown field of lab 07 'typo'; allowed: data, train, batches, epochs"),
        ("07", "quick", {3: 1}, "unknown field of lab 07 '3'; allowed: data"),
        ("07", "quick", [("train", 1)], "fields of lab 07 must be a mapping"),
        ("07", "quick", {"train": 12.0}, "train must be a whole number, not 12.0"),
        ("07", "quick", {"train": True}, "train must be a whole number, not True"),
        ("07", "quick", {"train": "12"}, "train must be a whole number, not '12'"),
        ("07", "quick", {"train": None}, "train must be a whole number, not None"),
        ("07", "quick", {"train": 0}, "train 0 is out of range; it must be at least 1"),
        ("07", "quick", {"train": 60001}, "train 60001 is out of range; it must be at most 60000"),
        ("07", "quick", {"epochs": 0.0}, "epochs 0.0 is out of range; it must be more than 0"),
        ("07", "quick", {"epochs": True}, "epochs must be a finite number, not True"),
        ("07", "quick", {"epochs": math.nan}, "epochs must be a finite number, not nan"),
        ("07", "quick", {"epochs": math.inf}, "epochs must be a finite number, not inf"),
        ("07", "quick", {"epochs": 10**400}, "epochs must be a finite number, not 1000"),
        ("07", "quick", {"factorial": 1}, "factorial must be True or False, not 1"),
        ("07", "quick", {"data": "cifar"}, "unknown data 'cifar'; allowed: mnist5k, procedural, mnist, fashion-mnist"),
        ("07", "quick", {"data": 5}, "data must be a text, not 5"),
        ("07", "quick", {"lstm_pool": 3}, "unknown lstm_pool '3'; allowed: 1, 2, 4"),
        ("07", "quick", {"mlp_rates": 0.1}, r"mlp_rates must be a list such as \[0.5\], not 0.1"),
        ("05", "quick", {"race_times": "[constant]"}, r"not '\[constant\]'; names in it need quotes"),
        ("07", "quick", {"mlp_rates": "0.1"}, r"mlp_rates must be a list such as \[0.5\], not '0.1'"),
        ("07", "quick", {"mlp_rates": [0.1, -1.0]}, "mlp_rates -1.0 is out of range; it must be more than 0"),
        ("07", "quick", {"mlp_rates": [[0.1]]}, r"mlp_rates must be a finite number, not \[0.1\]"),
        ("07", "quick", {"mlp_rates": [math.nan]}, "mlp_rates must be a finite number, not nan"),
        ("07", "quick", {"mlp_rates": [True]}, "mlp_rates must be a finite number, not True"),
        ("07", "quick", {"mlp_rates": []}, "mlp_rates is empty; it must hold at least one value"),
        ("07", "quick", {"mlp_rates": [0.1, 0.1]}, "mlp_rates holds 0.1 twice"),
        ("07", "quick", {"lstm_rules": ["legw", "cube"]}, "unknown lstm_rules 'cube'; allowed: fixed, square_root"),
        ("07", "quick", {"batches": [1024, 16]}, r"batches \[1024, 16\] must be increasing, the baseline first"),
        ("07", "quick", {"batches": [16, 999999]}, "batches holds 999999, more than the 4096 training images"),
        ("07", "quick", {"train": 512}, "batches holds 1024, more than the 512 training images"),
        ("07", "quick", {"curvature_batches": [4097]}, "curvature_batches holds 4097, more than the 4096"),
        ("07", "quick", {"lstm_batches": [64]}, r"lstm_batches holds 64, which is not one of batches \[16, 1024\]"),
        ("11", "quick", {"batch": 4097}, "batch 4097 is larger than the 4096 training images"),
        ("11", "quick", {"coarse_every": [8, 12]}, "coarse_every holds 12, which is not a multiple of evaluate_every"),
        ("11", "quick", {"target": 93}, "target 93.0 is out of range; it must be at most 1"),
        ("11", "quick", {"sizes": [8]}, "sizes must be a mapping such as .*, not .8."),
        ("11", "quick", {"runs": 1}, "runs 1 is out of range; it must be at least 2"),
    ],
)
def test_a_wrong_request_is_named_in_one_line(lab, profile, overrides, message):
    with pytest.raises(RequestError, match=message) as caught:
        profiles.resolve(lab, profile, overrides)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "content, message",
    [
        ("", "07.yaml must hold exactly the profiles smoke, quick, full"),
        ("- 1", "07.yaml must hold exactly the profiles"),
        ("{smoke: {}, quick: {}}", "07.yaml must hold exactly the profiles"),
        ("{smoke: {}, quick: {", "07.yaml cannot be read"),
        ("{smoke: {}, quick: {typo: 1}, full: {}}", "quick in 07.yaml does not fit: unknown field of lab 07 'typo'"),
        ("{smoke: {}, quick: {train: 0}, full: {}}", "quick in 07.yaml does not fit: train 0 is out of range"),
        ("{smoke: {}, quick: {train: 16}, full: {}}", "quick in 07.yaml does not fit: batches holds 64"),
        ("{smoke: {}, quick: [train], full: {}}", "quick in 07.yaml does not fit: fields of lab 07 must be a mapping"),
    ],
)
def test_a_profile_file_that_does_not_fit_is_our_fault_not_the_readers(tmp_path, monkeypatch, content, message):
    (tmp_path / "profiles").mkdir()
    (tmp_path / "profiles" / "07.yaml").write_text(content)
    monkeypatch.setattr(paths, "data", lambda: tmp_path)
    with pytest.raises(WorkError, match=message):
        profiles.resolve("07", "quick", {"epochs": 1.0})


@given(st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=6, unique=True), st.sampled_from([",", ", ", " ,"]))
def test_seeds_are_read_as_they_were_written(numbers, comma):
    assert profiles.parse_seeds(comma.join(map(str, numbers))) == numbers


@settings(max_examples=200)
@given(st.text(alphabet=string.digits + ",- .e_+\u00b2\u0663\n") | st.text())
def test_any_text_is_seeds_or_a_request_error(text):
    try:
        found = profiles.parse_seeds(text)
    except RequestError as error:
        assert "not understood" in str(error) and "\n" not in str(error)
    else:
        assert found and len(set(found)) == len(found) and all(0 <= seed < 2**31 for seed in found)


@pytest.mark.parametrize("text", ["", ",", "0,0", "0,00", "-1", "x", "1.5", "1;2", str(2**31), "9" * 5000, "\u0663"])
def test_seeds_that_are_none(text):
    with pytest.raises(RequestError, match="write distinct whole numbers"):
        profiles.parse_seeds(text)


@given(
    st.text(string.ascii_lowercase + "_", min_size=1),
    st.recursive(
        st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text("ab c'=,"),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab"), inner, max_size=3),
        max_leaves=6,
    ),
)
def test_a_setting_is_a_field_and_a_literal(name, value):
    assert profiles.parse_setting(f" {name} = {value!r} ") == (name, value)


@pytest.mark.parametrize("text", ["mnist", "resnet8", "a=b", "[1", "{[]: 1}", "{{}}", "1is", "'\\d", "os.getcwd()",
                                  "(" * 500, "[" * 2000, "0x" + "f" * 5000, "9" * 5000, ""])  # fmt: skip
def test_what_is_no_literal_is_a_text(text, recwarn):
    assert profiles.parse_setting(f"data={text}") == ("data", text)
    assert not recwarn.list


@settings(max_examples=200)
@given(st.text(alphabet="a=[]{}()'\"\\1.,e+-jx# \n\0") | st.text())
def test_any_setting_is_read_or_a_request_error(text):
    try:
        name, value = profiles.parse_setting(text)
    except RequestError as error:
        assert "write --set field=value" in str(error) and "\n" not in str(error)
        return
    assert name
    for field in ("train", "mlp_rates", "data", "factorial"):  # whatever it is, a field takes it or says why not
        try:
            profiles.fitted(plan07.Profile, "07", {field: value})
        except RequestError as error:
            assert field in str(error)
