"""Reads a page as a browser does: its elements, and the text that it shows."""

from html.parser import HTMLParser
from pathlib import Path

from engine.report.page import write_report

VOID = {"meta", "link", "img", "br", "input"}


class Reader(HTMLParser):
    """tags: (name, attributes) of all elements. text: all that is shown. Raises AssertionError if tags do not match."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.html, self.tags, self.open, self.parts = html, [], [], []
        self.feed(html)
        assert not self.open

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if not self.open or self.open[-1] not in ("style", "script", "desc"):
            self.parts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.parts).split())

    def all(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.tags if name == tag]


def read_page(folder: Path) -> Reader:
    return Reader(write_report(folder).read_text(encoding="utf-8"))
