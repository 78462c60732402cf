"""Secrets, and texts without them: by their values where these are known, and by what a secret looks like elsewhere."""

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final
from urllib.parse import quote, quote_plus

MARK: Final = "[removed]"
SHORTEST: Final = 4  # characters; a shorter value would take half of every text with it
NAME: Final = re.compile(
    r"TOKEN(?!IZ)|SECRET|PASSW|PASSPHRASE|CREDENTIAL|COOKIE|(^|_)(API_?|ACCESS_?|PRIVATE_?)?KEY|(^|_)AUTH(_|$)"
)
# Variables that say where a secret is, and are none.
PLACE: Final = re.compile(r"_(FILE|PATH|DIR|ENV|URL|SOCK)$")
WORD: Final = (
    r"(?:api[-_]?keys?|secret(?:[-_]access[-_]key)?|passw(?:or)?d"
    r"|(?:control|auth|access|hf|session)[-_]token|x-neuron-pd-token)"
)
WRITTEN: Final = r"(?:\"[^\"]*\"|'[^']*'|[^\s\"'-]\S*)"
SHAPES: Final = (
    re.compile(r"(?P<keep>\b(?:bearer|basic)\s+)[^\s\"',;]+", re.IGNORECASE),
    # One or several: vLLM's --api-key takes a list, on the command line and in the log of its settings.
    re.compile(rf"(?P<keep>--[\w-]{{0,40}}{WORD}(?![-\w])[ =]\s*)(?:{WRITTEN}(?:[ \t]+{WRITTEN})*|\S+)", re.IGNORECASE),
    re.compile(
        rf"(?P<keep>{WORD}[\"']?\s*(?:[:=]\s*[\[(]?\s*[\"']|,\s*[\"'](?!-)))"
        r"[^\"']*(?:[\"'],\s*[\"'](?!-)[^\"']*(?=[\"'](?!\s*:)))*",
        re.IGNORECASE,
    ),
    re.compile(rf"(?P<keep>{WORD}\s*[:=]\s*)[^\s\"',\[{{]+", re.IGNORECASE),
    re.compile(r"(?P<keep>\w://[^\s/:@]*:)[^\s/]+(?=@)"),
    re.compile(r"(?P<keep>)\b(?:npd-|sk-|hf_|ghp_|AKIA)[\w-]{16,}"),
)


class Secrets:
    """`without(text)` is the text with a mark for every secret in it."""

    def __init__(self, values: Iterable[str]) -> None:
        plain = {text for value in values for text in (value, value.strip()) if len(text) >= SHORTEST}
        spellings = {spelling for text in plain for spelling in _spellings(text)}
        longest_first = sorted(spellings, key=len, reverse=True)
        self._known = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None

    def without(self, text: str) -> str:
        if self._known is not None:
            text = self._known.sub(MARK, text)
        for shape in SHAPES:
            text = shape.sub(rf"\g<keep>{MARK}", text)
        return text


def secrets_of(environ: Mapping[str, str], files: Iterable[Path] = (), names: Iterable[str] = ()) -> Secrets:
    """The values of variables with these names or a secret's, and the contents of these files where they are there."""
    values = [value for name, value in environ.items() if is_secret(name)]
    values += [environ[name] for name in names if name in environ]
    for path in files:
        try:
            values.append(path.read_text(errors="surrogateescape").strip())
        except OSError:
            continue
    return Secrets(values)


def is_secret(name: str) -> bool:
    """Whether a variable of this name holds a secret, by the name."""
    return NAME.search(name.upper()) is not None and PLACE.search(name.upper()) is None


def _spellings(value: str) -> Iterable[str]:
    """As it is, and as JSON, Python and URLs write it."""
    yield value
    yield json.dumps(value)[1:-1]
    yield json.dumps(value, ensure_ascii=False)[1:-1]
    yield repr(value)[1:-1]
    yield value.replace("\\", "\\\\").replace("'", "\\'")
    yield quote(value, safe="", errors="replace")
    yield quote_plus(value, errors="replace")
