"""Claims: what the literature says, the rule that would show it, and the verdict that our runs give.

A claim is YAML (`data/claims/*.yaml`). Its rule, margin and number of seeds are written before the sweep; their hash
travels in the header of every run of that sweep, and a run that carries another hash cannot support the claim. Misses
and contradictions stay on the board. Rules themselves are in `labkit.rules`.

The board's own rules, enforced here: a claim that is only remembered can be `same shape` or `not seen`, never more,
and never shows a number of the paper; a scale gap caps a verdict at
`same shape`; simulated runs may support claims about waiting and bytes, never about accuracy."""

import hashlib
import inspect
from collections.abc import Sequence
from dataclasses import dataclass, field

from labkit import paths, rules
from labkit.errors import RequestError, WorkError, choose
from labkit.runs import Run, canonical

ORIGINS = ("paper", "later literature", "derived by us")
KINDS = ("identity", "ordering", "ratio", "trend", "value")
GRADES = ("verified", "derived", "counted", "remembered")
VERDICTS = ("holds exactly", "reproduced", "same shape at smaller scale", "depends on the base rate", "not seen",
            "contradicted", "not attempted")
BOARD = ("claim", "statement", "origin", "place", "literature", "verdict", "evidence", "runs", "flat set", "scale gap",
         "rule")
OUTCOMES = ("holds", "partly", "not seen", "contradicted", "not attempted")


@dataclass(frozen=True)
class Claim:
    """One row of the board, as written before the sweep."""

    id: str
    origin: str
    paper: str
    place: str
    grade: str
    statement: str
    kind: str
    about: str  # accuracy, time, arithmetic, curvature, waiting, bytes
    labs: tuple
    literature: str = ""
    rule: dict = field(default_factory=dict)
    scale_gap: str = ""

    def __post_init__(self):
        if self.rule:
            choose(f"rule of claim {self.id}", self.rule.get("name"), rules.RULES)
            try:
                inspect.signature(rules.RULES[self.rule["name"]]).bind([], **self.parameters)
            except TypeError as error:
                raise RequestError(f"rule {self.rule['name']} of claim {self.id}: {error}") from None
        for kind, given, allowed in (("origin", self.origin, ORIGINS), ("kind", self.kind, KINDS),
                                     ("grade", self.grade, GRADES)):
            choose(f"{kind} of claim {self.id}", given, allowed)
        if self.grade == "remembered" and self.literature:
            raise RequestError(f"claim {self.id} is only remembered, so it may not show a figure of the literature; "
                               "leave literature empty")

    @property
    def parameters(self) -> dict:
        """What the rule is called with, besides the runs."""
        return {key: value for key, value in self.rule.items() if key != "name"}

    @property
    def hash(self) -> str:
        """Twelve hex digits of what decides the verdict: statement, rule with its margin and seeds, and the code of
        the rule."""
        code = rules.code(self.rule["name"]) if self.rule else ""
        text = canonical([self.id, self.statement, self.kind, self.grade, self.rule, self.scale_gap, code])
        return hashlib.sha256(text.encode()).hexdigest()[:12]


@dataclass(frozen=True)
class Verdict:
    """A claim with what was found for it."""

    claim: Claim
    verdict: str
    evidence: str
    runs: int
    fraction: float | None
    hash: str


def load(lab: str | None = None) -> list[Claim]:
    """All claims, or those that a lab judges, in the order of their files.

    Raises:
        WorkError: a claim file that does not fit, by name."""
    import yaml

    claims = []
    for path in sorted((paths.data() / "claims").glob("*.yaml")):
        try:
            entries = list(yaml.safe_load(path.read_text(encoding="utf-8")))
        except (TypeError, ValueError, yaml.YAMLError) as error:
            raise WorkError(f"{path.name} is not a list of claims: {error}") from None
        for entry in entries:
            try:
                claims.append(Claim(**{**entry, "labs": tuple(entry["labs"])}))
            except (TypeError, KeyError, AttributeError, RequestError) as error:
                name = entry.get("id", "?") if isinstance(entry, dict) else entry
                raise WorkError(f"{path.name}: claim {name} does not fit: {error}") from None
    if len({claim.id for claim in claims}) < len(claims):
        raise WorkError("two claims share an id; give each its own")
    return [claim for claim in claims if lab is None or lab in claim.labs]


def hashes(lab: str) -> dict:
    """What a run of this lab carries: the hash of every rule that will judge it."""
    return {claim.id: claim.hash for claim in load(lab) if claim.rule}


def judge(claim: Claim, runs: Sequence[Run]) -> Verdict:
    """The verdict of one claim over runs. Runs that carry another hash of this rule are left out and counted in the
    evidence; those that carry none were not made for it."""
    if not claim.rule:
        return Verdict(claim, "not attempted", "no rule: nothing here attempts it yet", 0, None, claim.hash)
    sworn = claim.hash
    own = [run for run in runs if claim.id in run.header.claims]
    current = [run for run in own if run.header.claims[claim.id] == sworn]
    simulated = claim.about in ("waiting", "bytes")
    valid = [run for run in current if simulated or run.header.source != "simulated"]
    try:
        finding = rules.RULES[claim.rule["name"]](valid, **claim.parameters)
    except (ArithmeticError, ValueError, LookupError) as error:  # such as a logarithm of 0, or rows that are not there
        why = f"{type(error).__name__}: {error}"
        return Verdict(claim, "not attempted", f"these runs cannot be judged ({why})", len(valid), None, sworn)
    choose("outcome", finding.outcome, OUTCOMES)
    evidence = finding.evidence
    if len(own) > len(current):
        evidence += f" ({len(own) - len(current)} runs left out: made under another version of this rule)"
    if len(current) > len(valid) and finding.outcome == "not attempted":
        evidence += f" ({len(current) - len(valid)} runs left out: simulated)"
    return Verdict(claim, verdict_of(claim, finding.outcome), evidence, finding.runs, finding.fraction, sworn)


def verdict_of(claim: Claim, outcome: str) -> str:
    """The word on the board for an outcome, under the board's rules."""
    if outcome == "not attempted":
        return "not attempted"
    if claim.grade == "remembered":
        return "same shape at smaller scale" if outcome == "holds" else "not seen"
    if outcome == "holds":
        if claim.kind == "identity":
            return "holds exactly"
        return "same shape at smaller scale" if claim.scale_gap else "reproduced"
    return {"partly": "depends on the base rate", "not seen": "not seen", "contradicted": "contradicted"}[outcome]


def board(runs: Sequence[Run], lab: str | None = None):
    """The scoreboard as a data frame: one row a claim, in the order of the files.

    The same seed of the same configuration counts once, as it was given first: a run made again is no new evidence."""
    import pandas as pd

    once: dict = {}
    for run in runs:
        once.setdefault((run.header.lab, canonical(run.config), run.header.repeat, run.header.source), run)
    runs = list(once.values())
    rows = []
    for claim in load(lab):
        found = judge(claim, runs)
        place = f"{claim.paper}, {claim.place} [{claim.grade}]"
        literature = claim.literature if claim.grade != "remembered" else "(remembered: no figure is shown)"
        flat = "" if found.fraction is None else f"{found.fraction:.0%}"
        told = (claim.id, claim.statement, claim.origin, place, literature)
        rows.append((*told, found.verdict, found.evidence, found.runs, flat, claim.scale_gap, found.hash))
    return pd.DataFrame(rows, columns=BOARD)
