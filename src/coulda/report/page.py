"""The page: a report's JSON, the template, the style and the script in one file that asks nothing of anybody.

The browser is told so, too: the policy in the page's head forbids every request, and every script and style but its
own, which are named by their digests. Pictures are data inside the page.
"""

import base64
import hashlib
import html
import re
from importlib.resources import files
from pathlib import Path

import msgspec

from coulda.report.contents import Report
from coulda.storage import ArtifactError, Kind, read_artifact, replace_file, write_artifact

FOLDER = "report"
"""The name of the artifact within a run."""


class Metadata(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the manifest says of a report."""

    title: str


KIND = Kind("report", 1, Metadata)
_PART = "report.json"


def save_report(run: Path | str, report: Report) -> None:
    """Write the report as an artifact in the folder `run`, from which `coulda report` makes the page."""
    write_artifact(Path(run) / FOLDER, KIND, [(_PART, msgspec.json.encode(report))], Metadata(report.title))


def check_place(run: Path | str) -> None:
    """Refuse a folder that has a report already, before any work is done for it."""
    if (Path(run) / FOLDER).exists():
        raise FileExistsError(f"{run} holds a report already, and artifacts are never overwritten; name another folder")


def load_report(run: Path | str) -> Report:
    """The report that `save_report` wrote."""
    path = Path(run) / FOLDER
    if not path.exists():
        raise FileNotFoundError(
            f"there is no report in {run} (no folder '{FOLDER}'); name a folder that `coulda evaluate --out` wrote"
        )
    artifact = read_artifact(path, KIND)
    try:
        report = msgspec.json.decode(artifact.only(_PART), type=Report)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise ArtifactError(f"{path / _PART}: expected a report, found something else ({error})") from error
    if report.title != artifact.metadata.title:
        raise ArtifactError(f"{path}: its manifest is of another report, '{artifact.metadata.title}'; write it anew")
    return report


def write_report(path: Path | str, report: Report) -> None:
    """Write the page; the same report always gives the same bytes."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, render(report).encode())


def render(report: Report) -> str:
    """The page's HTML."""
    style, script = _source("page.css"), "".join(map(_source, ("page.js", "explained.js", "explorer.js")))
    policy = (
        "default-src 'none'; img-src data:; base-uri 'none'; form-action 'none'; "
        f"style-src '{_digest(style)}'; script-src '{_digest(script)}'"
    )
    parts = {
        "title": html.escape(report.title),
        "policy": policy,
        "style": style,
        "script": script,
        "data": _embedded(msgspec.json.encode(report).decode()),
    }
    # In one pass: what is filled in is never looked at again, whatever it says.
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], _source("page.html"))


def _embedded(json: str) -> str:
    r"""The same JSON without a character that could end the script that it stands in.

    >>> _embedded('{"title": "</script>"}')
    '{"title": "\\u003c/script\\u003e"}'
    """
    return re.sub("[<>&\u2028\u2029]", lambda match: f"\\u{ord(match[0]):04x}", json)


def _source(name: str) -> str:
    return files("coulda.report").joinpath(name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
