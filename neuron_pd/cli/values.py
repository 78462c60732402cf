"""Values on the command line that more than one command reads."""

from pathlib import Path
from urllib.parse import urlsplit

import click

from neuron_pd.errors import UsageError


def token_counts(text: str, option: str = "--lengths") -> tuple[int, ...]:
    """Comma-separated token counts; a `k` at the end means 1024."""
    try:
        return tuple(
            int(part[:-1]) * 1024 if part[-1:] in "kK" else int(part) for part in text.replace(" ", "").split(",")
        )
    except ValueError:
        raise UsageError(f"{option} {text!r} is not a list of token counts: write it like 1024,2048 or 1k,2k") from None


class TokenCounts(click.ParamType[tuple[int, ...]]):
    """Token counts above 0, as `token_counts` reads them."""

    name = "tokens,..."

    def convert(
        self, value: str | tuple[int, ...], param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        counts = token_counts(value, param.opts[0] if param else "")
        if min(counts) < 1:
            self.fail(f"{value!r} has a count below 1", param, ctx)
        return counts


class TokenCount(click.ParamType[int]):
    """One token count above 0."""

    name = "tokens"

    def convert(self, value: str | int, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        counts = TokenCounts().convert(value, param, ctx)
        if len(counts) > 1:
            self.fail(f"{value!r} is more than one token count", param, ctx)
        return counts[0]


def numbers(context: click.Context, parameter: click.Parameter, text: str | None) -> tuple[float, ...] | None:
    """Comma-separated numbers; whole ones stay whole."""
    if text is None:
        return None
    try:
        return tuple(int(part) if part.strip().isdecimal() else float(part) for part in text.split(","))
    except ValueError:
        name = parameter.opts[0]
        raise UsageError(f"{name} {text!r} is not a list of numbers: write it like {name} 1,4") from None


def base_url(context: click.Context, parameter: click.Parameter, text: str | None) -> str | None:
    return None if text is None else _url(text)


def base_urls(context: click.Context, parameter: click.Parameter, texts: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(map(_url, texts))


def _url(text: str) -> str:
    """Where a server is, without a slash at the end. UsageError, which shows no password."""
    try:
        parts = urlsplit(text)
        complete = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        complete = False
    if "@" in text:
        raise UsageError("a URL is shown and logged: leave user and password out; keys are given by --api-key-env")
    if not complete or not text.isascii() or not text.isprintable() or " " in text:
        raise UsageError(f"{text!r} is not a URL: write it like http://127.0.0.1:8000")
    return text.rstrip("/")


def leg_file(context: click.Context, parameter: click.Parameter, texts: tuple[str, ...]) -> list[tuple[str, Path]]:
    """Files of a leg each, written on=FILE or off=FILE."""
    found = []
    for text in texts:
        leg, _, name = text.partition("=")
        if leg not in ("on", "off") or not name:
            option = parameter.opts[0]
            raise UsageError(f"{option} {text!r} names no leg: write it like {option} on=FILE")
        found.append((leg, Path(name)))
    return found
