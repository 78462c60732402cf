"""Values on the command line that more than one command reads."""

from pathlib import Path

import click

from neuron_pd.errors import UsageError


def token_counts(text: str) -> tuple[int, ...]:
    """Comma-separated token counts; a `k` at the end means 1024."""
    try:
        return tuple(
            int(part[:-1]) * 1024 if part[-1:] in "kK" else int(part) for part in text.replace(" ", "").split(",")
        )
    except ValueError:
        raise UsageError(
            f"--lengths {text!r} is not a list of token counts: write it like 1024,2048 or 1k,2k"
        ) from None


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
    if text is None:
        return None
    if not text.startswith(("http://", "https://")):
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
