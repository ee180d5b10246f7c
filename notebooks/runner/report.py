"""The report of a batch: `index.html` with the scoreboard, one HTML page per executed notebook, machine and versions.
Plain HTML, no scripts, no network."""

import html
import json
import re
from pathlib import Path

from labkit import claims, lab, machine, paths
from labkit.errors import RequestError
from labkit.runs import Run, Store, read_many
from runner.results import writable

# Colours carry no meaning alone: every verdict is written out.
TINT = {"holds exactly": "#d9efe3", "reproduced": "#d9efe3", "same shape at smaller scale": "#e4f0f8",
        "depends on the base rate": "#fdf0d2", "not seen": "#f1e6da", "contradicted": "#f7dcd6",
        "not attempted": "#f2f2f2"}
STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 86rem; margin: 2rem auto; padding: 0 1rem; color: #222 }
table { border-collapse: collapse; width: 100%; font-size: .88rem }
th, td { text-align: left; vertical-align: top; padding: .35rem .6rem; border-bottom: 1px solid #ddd }
th { border-bottom: 2px solid #888 }
table.board td:nth-child(2), table.board td:nth-child(4) { min-width: 15rem }
td.verdict { white-space: nowrap }
small, figcaption { color: #555; font-size: .88rem }
figure { margin: 1.2rem 0 }
.failed { color: #a02010 }
"""


def recorded_runs() -> list[Run]:
    """All runs that are committed with the kit."""
    return [run for path in sorted((paths.data() / "results").glob("[0-9][0-9].jsonl.gz")) for run in read_many(path)]


def page(title: str, body: str) -> str:
    return (f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title><meta '
            f'name="viewport" content="width=device-width, initial-scale=1"><style>{STYLE}</style></head>\n'
            f"<body>\n{body}\n</body></html>\n")


def board_table(board) -> str:
    """The scoreboard as an HTML table, what was attempted first."""
    head = "".join(f'<th scope="col">{name}</th>'
                   for name in ("claim", "statement and its place", "verdict", "evidence", "the literature's value"))
    rows = []
    for row in sorted(board.to_dict("records"), key=lambda row: row["verdict"] == "not attempted"):
        text = {name: html.escape(str(value)) for name, value in row.items()}
        beside = f"<br><small>on {text['flat set']} of the flat set of base rates</small>" if text["flat set"] else ""
        beside += f"<br><small>scale gap: {text['scale gap']}</small>" if text["scale gap"] else ""
        rows.append(f"<tr><td>{text['claim']}</td><td>{text['statement']}<br><small>{text['place']}</small></td>" '<td '
                    f'class="verdict" style="background:{TINT[row["verdict"]]}">{text["verdict"]}</td>'
                    f"<td>{text['evidence']}{beside}</td><td>{text['literature']}</td></tr>")
    body = "\n".join(rows)
    return f'<table class="board"><thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table>'


def counts(board) -> str:
    found = board["verdict"].value_counts()
    return ", ".join(f"{found[verdict]} {verdict}" for verdict in claims.VERDICTS if verdict in found)


def scoreboard(target: Path | None = None) -> str | Path:
    """The board over the recorded runs and your own: as text, or as a page when a file is named."""
    board = claims.board([*recorded_runs(), *Store(paths.store()).runs()])
    if target is None:
        lines = [f"{row['claim']:<12} {row['verdict']:<28} {row['statement']}" for row in board.to_dict("records")]
        return "\n".join([*lines, "", counts(board)])
    if target.suffix != ".html" or (target.exists() and "<title>labkit: " not in target.read_text("utf-8", "replace")):
        raise RequestError(f"--html {target} must be a new file that ends in .html, or a page written before")
    writable(target.resolve().parent, "the folder of --html")
    body = f"<h1>Scoreboard</h1><p>{html.escape(counts(board))}.</p>{board_table(board)}"
    target.write_text(page("labkit: scoreboard", body), encoding="utf-8")
    return target


def notebook_page(path: Path) -> Path:
    """One executed notebook as a self-contained HTML page beside it; figures get the alternative text that they carry.
    """
    from nbconvert import HTMLExporter

    exporter = HTMLExporter(embed_images=True)
    exporter.log.setLevel("ERROR")  # it warns of missing alternative texts, which are put in below
    body, _ = exporter.from_filename(str(path))
    alts = iter([alt for _, _, alt in images(path)])

    def described(match: re.Match) -> str:
        alt = next(alts, None)
        tag = re.sub(r'\salt="[^"]*"', "", match[0])
        return tag if alt is None else tag.replace("<img", f'<img alt="{html.escape(alt, quote=True)}"', 1)

    body = re.sub(r'<img\b[^>]*src="data:image/png;base64,[^>]*>', described, body)
    # The exporter's scripts ask servers for mathematics, diagrams and widgets; offline they would only fail.
    body = re.sub(r"<script\b.*?</script>", "", body, flags=re.DOTALL)
    target = path.with_suffix(".html")
    target.write_text(body, encoding="utf-8")
    return target


def images(path: Path):
    """(tags of the cell, base64 text, alternative text or None) of a notebook's PNG outputs, in order."""
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        for output in cell.get("outputs", ()):
            if "image/png" in output.get("data", {}):
                alt = output.get("metadata", {}).get("image/png", {}).get("alt")
                yield cell["metadata"].get("tags", ()), "".join(output["data"]["image/png"]).strip(), alt


def main_figures(path: Path) -> list[str]:
    """The figures of cells tagged `figure:NAME`, as HTML with a link to their notebook: your points, in the report."""
    found = []
    for tags, source, alt in images(path):
        if any(tag.startswith("figure:") for tag in tags):
            alt = html.escape(alt or "", quote=True)
            found.append(f'<figure><img alt="{alt}" src="data:image/png;base64,{source}"><figcaption>From <a href='
                         f'"{path.stem}.html">{path.stem}</a>: {alt}</figcaption></figure>\n')
    return found


def records(path: Path) -> list[dict]:
    """The records that an executed notebook carries; none where the file is no notebook."""
    found = []
    try:
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            outputs = [output.get("data", {}) for output in cell.get("outputs", ())]
            found += [data[lab.RECORD_MIME] for data in outputs if lab.RECORD_MIME in data]
    except (ValueError, KeyError, TypeError, AttributeError):
        return []
    shape = {"lab": str, "runs": list, "verdicts": dict}
    return [r for r in found if isinstance(r, dict) and all(isinstance(r.get(k), kind) for k, kind in shape.items())]


def write(folder: Path, manifest: dict) -> Path:
    """`index.html` of a results folder, from its manifest and its executed notebooks."""
    stems, rows, own, figures = sorted(manifest["labs"]), [], {}, []
    for stem in stems:
        state, notebook = manifest["labs"][stem], folder / f"{stem}.ipynb"
        link = stem
        if notebook.exists():
            link = f'<a href="{notebook_page(notebook).name}">{stem}</a>'
            own.update({key: record["verdicts"] for record in records(notebook) for key in [record["lab"]]})
            figures += main_figures(notebook)
        status = (f"{state['seconds']:.0f} s" if state["status"] == "done"
                  else f'<span class="failed">failed: {html.escape(state["reason"][:300])}</span>')
        judged = {f"{key}: {value}" for key, value in own.get(stem[:2], {}).items() if value != "not attempted"}
        verdicts = html.escape(", ".join(sorted(judged))) or "none at this profile"
        rows.append(f"<tr><td>{link}</td><td>{status}</td><td>{verdicts}</td></tr>")
    request, facts = manifest["request"], manifest["hardware"]
    store = Store(Path(request["record_to"])) if request.get("record_to") else Store(paths.store())
    damaged: list[str] = []
    board = claims.board([*recorded_runs(), *store.runs(damaged=damaged)])
    left_out = "".join(f'<p class="failed">left out: {html.escape(text)}</p>' for text in damaged)
    versions = ", ".join(f"{name} {version}" for name, version in machine.software().items())
    body = f"""<h1>labkit: what was measured here</h1>
<p>Profile <b>{html.escape(request["profile"])}</b>, seeds {html.escape(request["seeds"])},
begun {manifest["began"]}, finished {manifest["finished"]}.
Machine: {html.escape(str(facts["cpu"]))}, {facts["cpus"]} logical CPUs, {facts["threads"] or "all"} thread(s) used,
{facts["memory_gib"]} GiB, accelerator: {html.escape(str(facts["device"]))}. {html.escape(versions)}.</p>
<h2>Labs</h2>
<table><thead><tr><th scope="col">notebook</th><th scope="col">time</th>
<th scope="col">verdicts from these runs alone</th></tr></thead><tbody>
{chr(10).join(rows)}
</tbody></table>
{"".join(figures)}
<h2>Scoreboard</h2>
<p>Recorded runs, committed with the kit, together with yours: {html.escape(counts(board))}.
A claim that is only remembered shows no figure of its paper; every rule was written before its sweep, and a run made
under another version of a rule does not count. Misses and contradictions stay.</p>
{left_out}{board_table(board)}"""
    target = folder / "index.html"
    target.write_text(page("labkit: report", body), encoding="utf-8")
    return target
