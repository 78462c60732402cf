"""The live page: what it is served with, and how it looks and behaves in a real browser."""

import json
import re
import shutil
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.proxy.conftest import Cluster, chat, running

LONG = "please tell me everything about the sea and the ships on it"
HOSTILE = "<img src=x onerror='window.hacked=1'><script>window.hacked=2</script>"
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

needs_browser = pytest.mark.skipif(BROWSER is None, reason="no Chromium here: apt-get install chromium")


async def two_turns(cluster: Cluster) -> None:
    await cluster.post(chat(LONG, conversation_id="secret-id", stream=True))
    await cluster.post(chat(LONG, "the reply", "go on", conversation_id="secret-id", stream=True))


async def test_state(cluster: Cluster) -> None:
    await two_turns(cluster)
    answer = await cluster.get("/ui/state")
    state = answer.json
    assert answer.headers["cache-control"] == "no-store"
    assert [(engine["role"], engine["usable"]) for engine in state["engines"]] == [("prefill", True), ("decode", True)]
    assert (state["ready"], state["streams"], state["conversation_keys"]) == (True, 0, 1)
    recent = state["recent"]
    assert (recent["turns"], recent["hits"], recent["failed"]) == (2, 1, 0)
    assert recent["first_token_ms"]["p50"] > 0
    assert [turn["path"] for turn in recent["last"]] == ["read_back", "recompute"]
    assert "secret-id" not in answer.raw.decode()
    assert "the sea" not in answer.raw.decode()


async def test_the_page_carries_everything_and_allows_nothing_else(cluster: Cluster) -> None:
    answer = await cluster.get("/ui")
    assert (answer.status, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
    text = answer.raw.decode()
    assert not re.search(r"(src|href)=[\"'](https?:)?//", text)
    assert "innerHTML" not in text
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    async with cluster.session.post(cluster.url + "/ui") as refused:
        assert refused.status == 405


# ---- in a browser


@pytest.fixture
async def page() -> AsyncIterator[Any]:
    from playwright.async_api import async_playwright

    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        page = await browser.new_page()
        page.errors = []
        page.on("pageerror", lambda error: page.errors.append(str(error)))
        page.on("console", lambda message: page.errors.append(message.text) if message.type == "error" else None)
        yield page
        await browser.close()


async def rows(page: Any, body: str) -> list[list[str]]:
    return [await row.locator("th, td").all_text_contents() for row in await page.locator(f"#{body} tr").all()]


@needs_browser
async def test_in_a_browser(page: Any) -> None:
    async with running() as cluster:
        await two_turns(cluster)
        await page.goto(cluster.url + "/ui")
        await page.get_by_text("Ready", exact=True).wait_for()
        engines = await rows(page, "engines")
        assert [row[:5] for row in engines] == [
            ["prefill", cluster.prefill.url, "ready", "closed", "yes"],
            ["decode", cluster.decode.url, "ready", "closed", "yes"],
        ]
        turns = await rows(page, "turns")
        assert [(row[1], row[2], row[6]) for row in turns] == [("read_back", "HIT", "85"), ("recompute", "MISS", "0")]
        figures = dict(
            zip(
                await page.locator("#figures dt").all_text_contents(),
                await page.locator("#figures dd").all_text_contents(),
                strict=True,
            )
        )
        assert figures["Cache hits, last turns"] == "50 %"
        assert re.fullmatch(r"\d+ ms", figures["First token, median"])
        # It is live: what happens now is shown without a reload.
        await cluster.decode.stop()
        await page.get_by_text("Not ready").wait_for()
        assert "cannot connect" in await page.locator("#problems").inner_text()
        await cluster.decode.restart()
        await page.get_by_text("Ready", exact=True).wait_for()
        assert page.errors == []


@needs_browser
async def test_hostile_names_stay_text(page: Any) -> None:
    async with running() as cluster:
        assert cluster.decode.info is not None
        cluster.decode.info["model"] = HOSTILE
        cluster.prefill.info = {"hello": HOSTILE}
        await cluster.proxy.probe.once()
        await two_turns(cluster)
        cluster.proxy.roster.fails(HOSTILE, HOSTILE)
        await page.goto(cluster.url + "/ui")
        await page.get_by_text(HOSTILE, exact=True).first.wait_for()
        assert HOSTILE in await page.locator("#problems").inner_text()
        assert await page.evaluate("window.hacked") is None
        assert await page.locator("img").count() == 0
        assert page.errors == []


@needs_browser
async def test_accessible_in_light_and_dark(page: Any) -> None:
    """No finding of axe (WCAG 2 A and AA, contrast included), with a problem and a failed turn on the page."""
    from axe_playwright_python.async_playwright import Axe

    async with running() as cluster:
        await two_turns(cluster)
        cluster.prefill.faults.status = 500
        await cluster.post(chat("this one fails"))
        cluster.proxy.roster.drain(cluster.proxy.engines.decode[0])
        await page.goto(cluster.url + "/ui")
        await page.get_by_text("draining").wait_for()
        for scheme, paper in (("light", "rgb(255, 255, 255)"), ("dark", "rgb(20, 22, 26)")):
            await page.emulate_media(color_scheme=scheme)
            assert await page.evaluate("getComputedStyle(document.body).backgroundColor") == paper
            results = await Axe().run(page)
            found = [(one["id"], one["help"]) for one in results.response["violations"]]
            assert found == [], json.dumps(results.response["violations"], indent=1)[:2000]
        await page.set_viewport_size({"width": 360, "height": 740})
        assert await page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
