"""Seeded text of a wanted length in tokens: the same key always gives the same words, other keys give others."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from random import Random

CountTokens = Callable[[str], Awaitable[int]]

_ROUNDS = 6
_STRETCH = 4.0  # a round makes the text at most this much longer, whatever the server counts
_WORDS = """
    about above account across action address after again agent air allow almost along also always among amount angle
    animal answer appear apple area arm around arrive art ask autumn away back balance base beach because become before
    begin behind below best better between bird block blue board boat body book both bottom bread bridge bright bring
    brother brown build busy call camera capital car carry case catch cause center chance change check child choose
    circle city class clean clear clock close cloud coast cold color common compare complete contain control copy corner
    cost country course cover create cross current cut daily dark data day decide deep degree depend describe design
    detail differ direct distance divide doctor door double down draw dream drive dry during each early earth east easy
    edge effect eight either electric end energy engine enough enter equal even event every exact example except
    expect explain eye face fact fall family far farm fast father field figure fill final find fine finger finish fire
    first fish five flat floor flow flower follow food foot force forest form forward four free fresh friend front
    fruit full game garden gather general give glass gold good grand grass great green ground group grow guess half
    hand happen hard heart heat heavy height help here high hill history hold home horse hour house human hundred idea
    important inch include increase industry inside instrument island join journey jump keep kind king know lake land
    language large last late laugh lead learn leave left length letter level light line list listen little live local
    long look loud low machine main major make many map mark market matter meaning measure meet melody metal method
    middle mile milk million mind minute modern moment money month moon morning most mother motion mountain move much
    music name nation nature near need never new next night nine noise north note nothing notice number object observe
    ocean offer office often oil old once only open opposite orange order other over own page paint paper parent part
    pass path pattern people perhaps period person phrase picture piece place plain plan plane planet plant play point
    poem port position possible power practice prepare present press pretty problem process produce product protect
    prove public pull push question quick quiet quite race rain raise range reach read ready real reason receive record
    region remember repeat reply report rest result return rich ride right ring rise river road rock room root round
    rule run safe sail same sand scale school science sea season second section seed segment select sense sentence
    separate serve seven several shape share sharp ship short should show side sight signal silver simple single sister
    six sleep slow small smile snow soft soil solve some song soon sound south space speak special speed spring square
    stand star start state station stay steam step still stone store story straight street strong student study
    subject sudden sugar summer sun supply support sure surface surprise system table tail talk teach team tell
    temperature ten test thick thin thing think third thought thousand three through time together tool top total touch
    toward town track trade train travel tree triangle trip true turn twenty type under unit until upon usual valley
    value various very view village visit voice wait walk wall warm watch water wave weather week weight west wheel
    while white whole wide wild window winter wire wish wonder wood word work world write year yellow yesterday young
"""
_VOCABULARY = tuple(_WORDS.split())


def words(key: str, chars: int) -> str:
    """The first sentences of the stream that `key` seeds, about `chars` characters of them, cut at a word."""
    random = Random(key)
    parts: list[str] = []
    size = 0
    while size < chars:
        sentence = random.choices(_VOCABULARY, k=random.randint(6, 14))
        sentence[0] = sentence[0].capitalize()
        sentence[-1] += "."
        for word in sentence:
            if size >= chars:
                break
            parts.append(word)
            size += len(word) + 1
    return " ".join(parts)


@dataclass(frozen=True, slots=True)
class Ruler:
    """Turns a number of tokens into text: by the server's tokenizer where `count` is given, else by `chars_per_token`.

    `overhead` is what the chat template adds to a prompt of one message, in tokens.
    """

    chars_per_token: float = 4.0
    overhead: int = 0
    count: CountTokens | None = None

    async def text(self, key: str, tokens: int) -> str:
        """Text of `key` that holds `tokens` tokens, within half a percent (at least 2) where the tokenizer is known."""
        return await self.fit(lambda chars: words(key, chars), tokens)

    async def fit(self, source: Callable[[int], str], tokens: int) -> str:
        """As `text`, of the text that `source` gives for about so many characters."""
        size = tokens * self.chars_per_token
        text = source(round(size))
        if self.count is None:
            return text
        for _ in range(_ROUNDS):
            counted = await self.count(text)
            if abs(counted - tokens) <= max(2, tokens // 200):
                break
            size *= min(_STRETCH, tokens / max(counted, 1))
            text = source(round(size))
        return text

    async def tokens(self, text: str) -> int:
        """How many tokens a text holds: counted, or estimated from its length."""
        return await self.count(text) if self.count is not None else round(len(text) / self.chars_per_token)
