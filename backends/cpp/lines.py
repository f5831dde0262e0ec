"""Lines of printed code: broken where they are long, comments filled."""

from __future__ import annotations

STEP = "  "
WIDTH = 120


def broken(text: str, indent: str) -> list[str]:
    """A line of code as lines that fit, broken at spaces: as far right as may be among those in the fewest parentheses."""
    lines: list[str] = []
    while len(indent) + len(text) > WIDTH:
        best, best_depth, depth = 0, 0, 0
        for n, c in enumerate(text[: WIDTH - len(indent)]):
            depth += (c in "([{") - (c in ")]}")
            if c == " " and n > WIDTH // 3 and (not best or depth <= best_depth):
                best, best_depth = n, depth
        if not best:
            break
        lines.append(indent + text[:best])
        text = text[best + 1 :]
        indent = indent if len(lines) > 1 else indent + 2 * STEP
    return [*lines, indent + text]


def filled_comment(text: str, indent: str) -> list[str]:
    """Words as lines of comment."""
    lines, line = [], indent + "//"
    for word in text.split(" "):
        if len(line) + len(word) >= WIDTH:
            lines.append(line)
            line = indent + "//  "
        line += f" {word}"
    return [*lines, line]
