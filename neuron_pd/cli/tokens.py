"""Token counts as options: `2048`, `2k`, and lists of them."""

import click


class TokenCounts(click.ParamType[tuple[int, ...]]):
    """Comma-separated token counts above 0; a `k` at the end means 1024."""

    name = "tokens"

    def convert(
        self, value: str | tuple[int, ...], param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        try:
            counts = tuple(_count(part) for part in value.replace(" ", "").split(","))
        except ValueError:
            counts = ()
        if not counts or min(counts) < 1:
            self.fail(f"{value!r} is not a list of token counts: write it like 1024,2048 or 1k,2k", param, ctx)
        return counts


class TokenCount(click.ParamType[int]):
    """One token count above 0; a `k` at the end means 1024."""

    name = "tokens"

    def convert(self, value: str | int, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        counts = TokenCounts().convert(value, param, ctx)
        if len(counts) > 1:
            self.fail(f"{value!r} is more than one token count", param, ctx)
        return counts[0]


def _count(text: str) -> int:
    return int(text[:-1]) * 1024 if text[-1:] in ("k", "K") else int(text)
