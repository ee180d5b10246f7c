"""What the README takes from the project itself, between its markers: badges, the table of labs, the state of the
board. A test fails when they are stale."""

import re

from labkit import claims, lab, paths
from runner import report
from labkit.errors import RequestError

from . import builder

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,38}/[A-Za-z0-9._-]{1,100}")


def set_repository(name: str) -> list[str]:
    """Write `owner/name` into its one place and carry it to README and notebooks; returns the files that changed.

    Raises:
        RequestError: not of the form owner/name."""
    if not NAME.fullmatch(name) or name.split("/")[1] in (".", ".."):
        raise RequestError(f"{name!r} is not a repository; write owner/name, such as ada/labkit")
    path = paths.root() / "pyproject.toml"
    before = path.read_text(encoding="utf-8")
    text = re.sub(r'(?m)^Repository = ".*"\n', "", before)
    text = re.sub(r"(?m)^\[project\.urls\]\n((?:#.*\n)*)",
                  rf'[project.urls]\n\1Repository = "https://github.com/{name}"\n', text)
    if f'Repository = "https://github.com/{name}"' not in text:
        raise RequestError("pyproject.toml has lost its table [project.urls], the one place of the address; "
                           "put it back")
    path.write_text(text, encoding="utf-8", newline="\n")
    changed = ["pyproject.toml"] if text != before else []
    changed += [f"notebooks/{p.relative_to(paths.notebooks())}"
                for p in builder.write(paths.notebooks() / "src", paths.notebooks())]
    return [*changed, *refresh()]


def refresh() -> list[str]:
    """Make the README's generated blocks anew; returns `README.md` if they changed."""
    readme = paths.root() / "README.md"
    before = readme.read_text(encoding="utf-8")
    text = render(before)
    if text != before:
        readme.write_text(text, encoding="utf-8", newline="\n")
    return ["README.md"] if text != before else []


def render(text: str) -> str:
    """The README with its generated blocks made anew.

    Raises:
        RequestError: a marker is missing."""
    for name, block in (("badges", badges()), ("labs", labs()), ("board", board())):
        pattern = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
        if not pattern.search(text):
            raise RequestError(f"README.md has lost its markers <!-- {name} --> and <!-- /{name} -->; put them back")
        text = pattern.sub(lambda match: f"{match[1]}{block}\n{match[2]}", text)
    return text


def badges() -> str:
    """Launch badges; while the address is not set, how to open the course from a fork."""
    address = builder.repository(paths.root() / "README.md")
    if not address:
        return ("This copy does not know its public address yet, so it shows no launch badges. To open the course from "
                "your own fork: run `make badges REPO=owner/name` (or `python -m labkit badges owner/name`), commit "
                "and push; the badges, and the set-up cell of every notebook, then point there.")
    name = address.removeprefix("https://github.com/").rstrip("/")
    binder = f"https://mybinder.org/v2/gh/{name}/HEAD?urlpath=lab/tree/notebooks/00_start_here.ipynb"
    colab = f"https://colab.research.google.com/github/{name}/blob/main/notebooks/00_start_here.ipynb"
    return (f"[![Open in Binder](https://mybinder.org/badge_logo.svg)]({binder}) [![Open in "
            f"Colab](https://colab.research.google.com/assets/colab-badge.svg)]({colab})")


def labs() -> str:
    """The table of labs with the cost that was measured."""
    lines, measured = ["| lab | question | needs | `quick` took | |", "|---|---|---|---|---|"], lab.costs()
    machines = set()
    for entry in lab.course().values():
        cost = measured.get(entry.number, {}).get("quick")
        if cost:
            machines.add(f"{cost['cpu']}, {cost['threads'] or 'all'} thread(s)")
        title = f"[{entry.stem}](notebooks/{entry.stem}.ipynb)" if entry.exists else entry.stem
        state = "" if entry.exists else "not written yet"
        time = f"{cost['seconds']:.0f} s" if cost else "-"
        lines.append(f"| {title} | {entry.question} | {', '.join(entry.needs) or '-'} | {time} | {state} |")
    note = f"\n\nTimes include starting the kernel; measured on: {'; '.join(sorted(machines))}." if machines else ""
    return "\n".join(lines) + note


def board() -> str:
    """The verdicts of the recorded runs: one line for each claim that has one, and the count of all."""
    table = claims.board(report.recorded_runs())
    judged = table[table["verdict"] != "not attempted"]
    lines = ["| claim | statement | verdict |", "|---|---|---|"]
    lines += [f"| {row['claim']} | {row['statement']} | **{row['verdict']}** |" for row in judged.to_dict("records")]
    lines += ["", f"All {len(table)} claims on the board so far: {report.counts(table)}."]
    lines += ["Those not attempted yet, and the evidence behind each verdict: `labkit report --html FILE`."]
    return "\n".join(lines)
