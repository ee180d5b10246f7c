"""Results folders: where a batch writes, what it had been asked, and whether it has finished."""

import datetime
import json
import os
import tempfile
from pathlib import Path

from labkit import paths
from labkit.errors import RequestError

MANIFEST = "manifest.json"


def now() -> str:
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")


def writable(folder: Path, what: str) -> None:
    """Make the folder, and write and remove a file in it.

    Raises:
        RequestError: that cannot be done; nothing is left behind."""
    missing = [place for place in (folder, *folder.parents) if not os.path.lexists(place)]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        for place in missing:
            if place.is_dir():
                place.rmdir()
        raise RequestError(f"{what} {str(folder)[:200]} cannot be written to ({error.strerror}); "
                           "choose another folder") from None


def choose_folder(out: str | None, resume: bool, request: dict) -> Path:
    """Where a batch writes: `out`, the newest unfinished folder with the same request when resuming, or a new one that
    is named by the time.

    Raises:
        RequestError: a place where the files of others would be overwritten, or nothing to resume."""
    if out is not None:
        return given_folder(out)
    if resume:
        manifests = [path.parent for path in sorted(paths.results().glob("*/" + MANIFEST))]
        same = [folder for folder in manifests if read_manifest(folder).get("request") == request]
        unfinished = [folder for folder in same if not read_manifest(folder)["finished"]]
        if not unfinished:
            raise RequestError("nothing to resume: no unfinished folder of this request in results/; "
                               "leave --resume away")
        return unfinished[-1]
    stamp, number = datetime.datetime.now().strftime("%Y-%m-%d_%H-%M-%S"), 0
    folder = paths.results() / stamp
    while folder.exists():
        number += 1
        folder = paths.results() / f"{stamp}_{number}"
    return folder


def given_folder(out: str) -> Path:
    """`--out` as a folder that is new, empty, or holds an earlier batch."""
    if not out.strip():
        raise RequestError("--out is empty; give a folder")
    try:
        folder = Path(out).expanduser().resolve()
        exists, is_folder = folder.exists(), folder.is_dir()
    except (OSError, RuntimeError, ValueError) as error:
        raise RequestError(f"--out {out[:200]!r} is no usable path ({error}); choose another folder") from None
    if exists and not is_folder:
        raise RequestError(f"--out {out} is a file; give a folder")
    for checkout in (paths.root(), paths.notebooks()):
        inside = folder.is_relative_to(checkout) and not folder.is_relative_to(paths.results())
        if checkout.is_relative_to(folder) or inside:
            raise RequestError(f"--out {out} lies inside the course itself; choose a folder in results/ or elsewhere")
    if exists and any(folder.iterdir()) and not read_manifest(folder):
        raise RequestError(f"--out {out} holds other files, which would be overwritten; choose a new or empty folder")
    return folder


def read_manifest(folder: Path) -> dict:
    """What a batch wrote of itself; empty where there is nothing that a batch could have written."""
    try:
        content = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        request, labs = content["request"], content["labs"]
        whole = isinstance(request, dict) and all(state["status"] in ("done", "failed") for state in labs.values())
        return content if whole and {"finished", "began"} <= content.keys() else {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def write_manifest(folder: Path, manifest: dict) -> None:
    temporary = folder / f".{MANIFEST}.{os.getpid()}"
    temporary.write_text(json.dumps(manifest, indent=1, sort_keys=True), encoding="utf-8")
    os.replace(temporary, folder / MANIFEST)
