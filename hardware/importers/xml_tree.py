"""XML of strangers: a small tree without document types, entities, depth or size that nobody needs."""

from dataclasses import dataclass, field
from typing import Any, Final
from xml.parsers import expat

from hardware.importers.source_text import SourceText

MOST_XML: Final = 4 * 2**20
"""Characters: dumps of sixteen GPUs have some 20,000."""
MOST_ELEMENTS: Final = 20_000
MOST_ATTRIBUTES: Final = 200_000
"""A PCI device has eight; counted by equals signs before anything is parsed, for one tag may hold them all."""
MOST_DEPTH: Final = 64


@dataclass(frozen=True)
class Element:
    """An element: name, attributes, line and children in order."""

    name: str
    attributes: dict[str, str]
    line: int
    children: list["Element"] = field(default_factory=list)

    def get(self, key: str) -> str:
        """Return an attribute, or an empty text."""
        return self.attributes.get(key, "").strip()

    def walk(self) -> list["Element"]:
        """Return this element and everything below it, in order of the document."""
        found = [self]
        for child in self.children:
            found += child.walk()
        return found


class _Builder:
    """Builds the tree from the parser's events and stops at what is not wanted."""

    def __init__(self, source: SourceText) -> None:
        self._source = source
        self.parser: Any = expat.ParserCreate()
        self.parser.StartElementHandler = self._start
        self.parser.EndElementHandler = self._end
        self.parser.StartDoctypeDeclHandler = self._refuse
        self.parser.EntityDeclHandler = self._refuse
        self._open: list[Element] = []
        self._count = 0
        self.root: Element | None = None

    def _refuse(self, *_: object) -> None:
        line = self.parser.CurrentLineNumber
        raise self._source.wrong("a document type or entity is declared", line, "plain elements and attributes")

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        line = self.parser.CurrentLineNumber
        self._count += 1
        if self._count > MOST_ELEMENTS:
            raise self._source.wrong("too many elements", line, f"up to {MOST_ELEMENTS}")
        if len(self._open) >= MOST_DEPTH:
            raise self._source.wrong("elements nested too deeply", line, f"up to {MOST_DEPTH} levels")
        element = Element(name, attributes, line)
        if self._open:
            self._open[-1].children.append(element)
        else:
            self.root = element
        self._open.append(element)

    def _end(self, _: str) -> None:
        self._open.pop()


def parse_xml(source: SourceText) -> Element:
    """Parse a document.

    Parameters
    ----------
    source : SourceText
        The text.

    Returns
    -------
    Element
        The root.

    Raises
    ------
    InputError
        Not well-formed, a document type (the door to entity expansion), more than ``MOST_XML`` characters,
        ``MOST_ELEMENTS``, ``MOST_ATTRIBUTES`` or ``MOST_DEPTH``.
    """
    source.check_size(MOST_XML, "the topology of one machine")
    if source.text.count("=") > MOST_ATTRIBUTES:
        raise source.wrong("too many attributes", allowed=f"up to {MOST_ATTRIBUTES}")
    builder = _Builder(source)
    try:
        builder.parser.Parse(source.text.encode("utf-8"), True)
    except expat.ExpatError as error:
        raise source.wrong(f"not XML: {expat.ErrorString(error.code)}", error.lineno, "a whole document") from None
    except (LookupError, ValueError) as error:
        if hasattr(error, "allowed"):
            raise
        raise source.wrong("not XML: unknown encoding", 1, "UTF-8") from None
    if builder.root is None:
        raise source.wrong("no element", allowed="<system> or <graphs>")
    return builder.root
