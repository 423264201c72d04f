"""Puts measured figures into the page that explains them, between the comments that name each part."""

import re
from pathlib import Path


class PageError(Exception):
    """The page has no place for a part."""


def fill(page: Path, parts: dict[str, str]) -> None:
    """Replace what stands between ``<!-- measured: NAME -->`` and ``<!-- end -->``. Raises PageError."""
    text = page.read_text(encoding="utf-8")
    for name, content in parts.items():
        place = re.compile(rf"(<!-- measured: {re.escape(name)} -->\n).*?(<!-- end -->)", re.DOTALL)
        if len(place.findall(text)) != 1:
            raise PageError(f"{page}: must have '<!-- measured: {name} -->' and '<!-- end -->' after it, once")
        text = place.sub(lambda found, content=content: f"{found[1]}{content}\n{found[2]}", text)
    page.write_text(text, encoding="utf-8")
