"""Formulas as MathML, which browsers set themselves: no JavaScript, no network."""

import re
from typing import Any

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx


def to_mathml(latex: str, display: str) -> str:
    """Convert a formula; fail on a command that the converter does not know."""
    # the same to a browser; the converter knows one of the two names
    result = convert(re.sub(r"\b(begin|end)\{aligned\}", r"\1{align*}", latex), display=display)
    unknown = re.search(r">(\\[a-zA-Z]+|&)<", result)
    if unknown:
        raise ValueError(f"no MathML for {unknown[1]} in {latex!r}")
    return result


def visit_math(self: Any, node: nodes.math) -> None:
    """Write a formula in a line of text."""
    self.body.append(to_mathml(node.astext(), "inline"))
    raise nodes.SkipNode


def visit_displaymath(self: Any, node: nodes.math_block) -> None:
    """Write a formula on a line of its own, with its number if it has one."""
    self.body.append(self.starttag(node, "div", CLASS="formula"))
    self.body.append(to_mathml(node.astext(), "block"))
    if node["number"]:
        self.body.append(f'<span class="eqno">({node["number"]})')
        self.add_permalink_ref(node, "Link to this equation")
        self.body.append("</span>")
    self.body.append("</div>\n")
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, Any]:
    """Offer the renderer as ``html_math_renderer = "mathml"``."""
    app.add_html_math_renderer("mathml", (visit_math, None), (visit_displaymath, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
