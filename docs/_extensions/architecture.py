"""The picture of the package's parts, drawn from the import statements of its modules.

A room is a package or a module beside the packages; which room stands on which is read from the
source.
"""

from __future__ import annotations

import ast
import textwrap
from functools import cache
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sphinx.application import Sphinx

PACKAGE = Path(__file__).resolve().parents[2] / "sklearn_restf"

WIDTH, GAP_X, GAP_Y, LINE, MARGIN = 250, 26, 58, 15, 12
TITLE = 26


def read_imports(package: Path = PACKAGE) -> dict[str, set[str]]:
    """Return the modules of the package that each of its modules imports."""
    files = {
        ".".join(path.relative_to(package).with_suffix("").parts): path
        for path in sorted(package.rglob("*.py"))
    }
    imports = {}
    for module, path in files.items():
        found = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.ImportFrom) or not node.module:
                continue
            if node.module.split(".")[0] != package.name:
                continue
            base = node.module.split(".")[1:]
            for alias in node.names:
                names = (
                    ".".join([*base, alias.name]),
                    ".".join(base),
                    ".".join([*base, "__init__"]),
                )
                found.update([name for name in names if name in files][:1])
        imports[module] = found - {"__init__"}  # the version, and what it re-exports
    del imports["__init__"]
    return imports


def room_of(module: str) -> str:
    """Return the room of a module: its package, or itself."""
    return module.split(".")[0]


def read_rooms(imports: dict[str, set[str]]) -> tuple[dict[str, list[str]], dict[str, set[str]]]:
    """Return the modules of each room, and the rooms that each room imports from."""
    modules: dict[str, list[str]] = {}
    edges: dict[str, set[str]] = {}
    for module, imported in imports.items():
        room = room_of(module)
        modules.setdefault(room, []).append(module)
        edges.setdefault(room, set()).update({room_of(name) for name in imported} - {room})
    return modules, edges


def levels_of(edges: dict[str, set[str]]) -> dict[str, int]:
    """Return the height of each room over the ground; raise if rooms stand on each other."""

    @cache
    def level(room: str, above: tuple[str, ...] = ()) -> int:
        if room in above:
            raise ValueError(f"rooms import each other: {' -> '.join([*above, room])}")
        return 1 + max((level(below, (*above, room)) for below in edges[room]), default=-1)

    return {room: level(room) for room in edges}


def without_shortcuts(edges: dict[str, set[str]]) -> dict[str, set[str]]:
    """Drop the edges that a chain of others implies."""

    def reachable(room: str) -> set[str]:
        return edges[room].union(*(reachable(below) for below in edges[room]))

    return {
        room: {
            below
            for below in belows
            if not any(below in reachable(other) for other in belows - {below})
        }
        for room, belows in edges.items()
    }


def label(modules: list[str]) -> list[str]:
    """Return the lines that name the modules of a package."""
    names = sorted(name.partition(".")[2].lstrip("_") for name in modules)
    names = [name for name in names if name not in ("", "init__")]
    return textwrap.wrap(", ".join(names), 38, break_long_words=False)


def draw(package: Path = PACKAGE) -> str:
    """Return the picture as SVG."""
    modules, edges = read_rooms(read_imports(package))
    levels = levels_of(edges)
    # rooms without an arrow have a row of their own
    carrying = set().union(*edges.values())
    alone = {room for room in edges if not edges[room] and room not in carrying}
    top = max(levels.values())
    rows = [[room for room in edges if levels[room] == n and room not in alone]
            for n in range(top, -1, -1)]  # fmt: skip
    rows = [row for row in [*rows, sorted(alone)] if row]
    widest = max(map(len, rows))
    total = widest * WIDTH + (widest - 1) * GAP_X + 2 * MARGIN
    boxes, y = {}, MARGIN
    for row in rows:
        x = (total - len(row) * WIDTH - (len(row) - 1) * GAP_X) / 2
        height = TITLE + LINE * max(len(label(modules[room])) for room in row) + 8
        for room in row:
            boxes[room] = (x, y, height)
            x += WIDTH + GAP_X
        y += height + GAP_Y
    bottom = y - GAP_Y + MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {total:.0f} {bottom:.0f}" '
        f'width="{total:.0f}" role="img" font-family="sans-serif">',
        "<title>The parts of sklearn_restf, and which is built on which</title>",
        '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
        'markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8" fill="none"/></marker></defs>',
    ]
    for room, belows in without_shortcuts(edges).items():
        x, y, height = boxes[room]
        for below in sorted(belows):
            x2, y2, _ = boxes[below]
            start, end = (x + WIDTH / 2, y + height), (x2 + WIDTH / 2, y2 - 2)
            middle = (start[1] + end[1]) / 2
            parts.append(
                f'<path d="M{start[0]:.0f} {start[1]:.0f}C{start[0]:.0f} {middle:.0f} '
                f'{end[0]:.0f} {middle:.0f} {end[0]:.0f} {end[1]:.0f}" fill="none" '
                'stroke-width="1.4" marker-end="url(#head)"/>'
            )
    for room, (x, y, height) in boxes.items():
        parts.append(f'<rect x="{x:.0f}" y="{y}" width="{WIDTH}" height="{height}" rx="6"/>')
        parts.append(
            f'<text x="{x + 10:.0f}" y="{y + 18}" font-size="14" font-weight="bold">'
            f"{escape(room)}</text>"
        )
        for n, line in enumerate(label(modules[room])):
            parts.append(
                f'<text x="{x + 10:.0f}" y="{y + TITLE + 10 + LINE * n}" font-size="10.5" '
                f'font-family="monospace">{escape(line)}</text>'
            )
    return "\n".join([*parts, "</svg>", ""])


def write(app: Sphinx) -> None:
    """Draw the picture where the page includes it from."""
    target = Path(app.srcdir) / "generated" / "architecture.html"
    target.parent.mkdir(exist_ok=True)
    picture = f'<div class="architecture">\n{draw()}</div>\n'
    if not target.is_file() or target.read_text(encoding="utf-8") != picture:
        target.write_text(picture, encoding="utf-8")


def setup(app: Sphinx) -> dict[str, Any]:
    """Draw the picture at every build."""
    app.connect("builder-inited", write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
