"""The directive that lists every error of a class: its words, and what to do."""

from docutils import nodes
from refusals import Refusal, notes, refusals, words
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective


class Refusals(SphinxDirective):
    """List the errors of one class, each with a link of its own."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Return a definition list, in the order of the messages' words."""
        by_words: dict[str, list[Refusal]] = {}
        for refusal in refusals():
            if refusal.error == self.arguments[0]:
                by_words.setdefault(refusal.happened, []).append(refusal)
        items = [_item(alike) for alike in by_words.values()]
        return [nodes.definition_list("", *items)]


def setup(app: Sphinx) -> dict[str, bool]:
    """Add the directive."""
    app.add_directive("refusals", Refusals)
    return {"parallel_read_safe": True}


def _item(alike: list[Refusal]) -> nodes.definition_list_item:
    """Return the entry of errors with one message, which several places may raise."""
    error, happened = alike[0].error, alike[0].happened
    told = [text for refusal in alike for text in (refusal.seen, refusal.hint)]
    told += [note for begin, note in notes().items() if happened.startswith(begin)]
    name = "-".join(words(f"{error} {happened}").split())
    term = nodes.term("", "", nodes.strong("", happened), ids=[name])
    said = [text for text in dict.fromkeys(told) if words(text)]
    paragraphs = [nodes.paragraph("", "", *_inline(text)) for text in said]
    return nodes.definition_list_item("", term, nodes.definition("", *paragraphs))


def _inline(text: str) -> list[nodes.Node]:
    """Return a text in which `code` stands between backquotes."""
    found: list[nodes.Node] = []
    for number, part in enumerate(text.split("`")):
        found.append(nodes.literal("", part) if number % 2 else nodes.Text(part))
    return found
