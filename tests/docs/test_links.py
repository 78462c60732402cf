"""Every link of the pages leads somewhere, and every page is linked from the index."""

from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.docs.pages import ROOT, anchors, links, named, pages

PAGES = pages()


def broken(page: Path, link: str) -> str | None:
    """Why a link leads nowhere; addresses on the network are not asked."""
    parts = urlsplit(link)
    if parts.scheme in ("http", "https"):
        return None if parts.netloc else "no host"
    target = (page.parent / parts.path).resolve() if parts.path else page
    if not target.exists():
        return "no such file"
    if not target.is_relative_to(ROOT):
        return "outside the project"
    if parts.fragment and parts.fragment not in anchors(target):
        return "no such heading"
    return None


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_link_leads_somewhere(page: Path) -> None:
    wrong = {link: why for link in links(page) if (why := broken(page, link))}
    assert wrong == {}


def test_what_leads_nowhere_is_seen(tmp_path: Path) -> None:
    page = ROOT / "docs" / "proxy.md"
    assert broken(page, "none.md") == "no such file"
    assert broken(page, "../README.md#none") == "no such heading"
    assert broken(page, "#pools") is None
    assert broken(page, "/etc/hostname") in ("outside the project", "no such file")


def test_the_index_has_every_page() -> None:
    index = ROOT / "docs" / "README.md"
    linked = {link.partition("#")[0] for link in links(index)}
    assert {path.name for path in (ROOT / "docs").glob("*.md")} - {"README.md"} <= linked
