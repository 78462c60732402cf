import pytest

from neuron_pd.bench.text import Ruler, words


def test_same_key_same_words_and_longer_text_continues_shorter() -> None:
    short, long = words("0/1024/0/1", 300), words("0/1024/0/1", 3000)
    assert long.startswith(short)
    assert words("0/1024/0/1", 300) == short
    assert 300 <= len(short) + 1 < 320


def test_other_keys_give_other_words() -> None:
    texts = {
        words(f"0/{length}/{repeat}/{turn}", 200)[:40] for length in (1, 2) for repeat in (0, 1) for turn in (1, 2)
    }
    assert len(texts) == 8


@pytest.mark.parametrize("tokens", [1, 16, 150, 1024, 24_000])
async def test_a_ruler_that_counts_hits_the_length(tokens: int) -> None:
    async def count(text: str) -> int:
        return len(text.split())

    text = await Ruler(chars_per_token=2.0, count=count).text("key", tokens)
    assert abs(len(text.split()) - tokens) <= max(2, tokens // 200)


async def test_a_tokenizer_that_counts_nothing_ends() -> None:
    async def count(text: str) -> int:
        return 0

    assert await Ruler(count=count).text("key", 10)


async def test_without_a_tokenizer_the_ratio_decides() -> None:
    assert await Ruler(chars_per_token=5.0).text("key", 100) == words("key", 500)
