"""Text to syntax tree.  A sound file is parsed in one go; a broken one by statement, so that each mistake gets its own caret."""

from __future__ import annotations

from lark.exceptions import UnexpectedInput

from tilec.dsl import ast, comments, tree
from tilec.dsl.faults import Fault, Source, SyntaxFault
from tilec.dsl.grammar import parser


def parse(source: Source) -> tuple[ast.File, list[Fault]]:
    """The file and its syntax errors in source order; what did not parse is absent from the tree."""
    try:
        file = tree.file(parser().parse(source.text, start="file"))
    except (UnexpectedInput, SyntaxFault):
        from tilec.dsl.recover import recover

        return recover(source)
    return comments.attach(file, source.text), []
