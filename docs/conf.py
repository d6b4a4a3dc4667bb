"""The site's settings. `make docs` builds it with Sphinx, from Markdown by MyST, and from docstrings.

Docstrings are Markdown in Google's form; Sphinx reads reStructuredText, so `docstring` puts one into the other.
"""

from __future__ import annotations

import importlib.metadata
import inspect
import re
from functools import reduce
from importlib import import_module
from pathlib import Path
from typing import Any

import latex2mathml.converter
from docutils import nodes
from sphinx.application import Sphinx

project, author, copyright = "Medley", "Medley's authors", "Medley's authors, Apache-2.0"
version = release = importlib.metadata.version("medley-fl")
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
exclude_patterns = ["papers/*/[!R]*.md"]
nitpicky = False

myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_heading_anchors = 4

smartquotes = False  # quotes stand in code
html_theme = "furo"
html_title = "Medley"
html_show_sphinx = False
html_copy_source = False
html_static_path, html_css_files = ["static"], ["site.css"]
pygments_style, pygments_dark_style = "friendly", "monokai"
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
autodoc_member_order = "bysource"
python_maximum_signature_line_length = 88
napoleon_use_ivar = True
napoleon_use_param = True
napoleon_use_rtype = False

ENTRY = re.compile(r"^::: ([\w.]+)$", re.MULTILINE)
"""A public name of a reference page."""


FOLDERS = ("decisions/README", "methods/index")
"""Pages with a table that leads to all others of their folder."""


def found(name: str) -> Any:
    """The object of a dotted name."""
    parts = name.split(".")
    for n in range(len(parts), 0, -1):
        try:
            return reduce(getattr, parts[n:], import_module(".".join(parts[:n])))
        except ModuleNotFoundError:
            continue
    raise ModuleNotFoundError(name)


def entry(name: str) -> str:
    """The directive that documents a public name."""
    it = found(name)
    if inspect.ismodule(it):
        how = f".. automodule:: {name}\n   :members:"
    elif inspect.isclass(it):
        how = f".. autoclass:: {name}\n   :members:"
    elif inspect.isroutine(it):
        how = f".. autofunction:: {name}"
    else:
        how = f".. autodata:: {name}"
    return f"```{{eval-rst}}\n{how}\n```"


def references(app: Sphinx, page: str, source: list[str]) -> None:
    """Lines ``::: name`` as directives; a page whose table leads to all others of its folder has them below it."""
    source[0] = ENTRY.sub(lambda m: entry(m[1]), source[0])
    if page in FOLDERS:
        source[0] += "\n```{toctree}\n:hidden:\n:glob:\n\n*\n```\n"


def docstring(app: Sphinx, kind: str, name: str, it: Any, options: Any, lines: list[str]) -> None:
    """Markdown's code, emphasis and links in a docstring, as reStructuredText has them."""
    if not name.startswith("medley"):
        lines.clear()  # inherited from another library, in its own form
    for k, line in enumerate(lines):
        if line.lstrip().startswith(">>>"):
            continue
        parts = re.split(r"(``[^`]+``|`[^`]+`)", line)
        for j, part in enumerate(parts):
            parts[j] = (
                f"``{part.strip('`')}``" if j % 2 else re.sub(r"(?<!\*)([*|])(?!\*)|(?<=\w)(_)(?!\w)", r"\\\1\2", part)
            )
        lines[k] = "".join(parts)


def types(app: Sphinx, kind: str, name: str, it: Any, options: Any, lines: list[str]) -> None:
    """Types of attributes as code: those of arrays have characters with a meaning."""
    for k, line in enumerate(lines):
        lines[k] = re.sub(r"^:vartype (\w+): (?:jaxtyping\.)?([^`]+)$", r":vartype \1: ``\2``", line)


def wide(app: Sphinx, tree: nodes.document) -> None:
    """The class "wide" for pictures that a telephone would make too small to read: `site.css` lets them scroll."""
    for image in tree.findall(nodes.image):
        path = Path(app.srcdir) / image["uri"]
        size = path.suffix == ".svg" and re.search(r'viewBox="0 0 ([\d.]+)', path.read_text(encoding="utf-8")[:300])
        if size and float(size[1]) > 600:
            image["classes"].append("wide")


def mathml(translator: Any, node: Any) -> None:
    """A formula as MathML, which browsers typeset without a script."""
    shown = "block" if node.tagname == "math_block" else "inline"
    translator.body.append(latex2mathml.converter.convert(node.astext(), display=shown))
    raise nodes.SkipNode


def setup(app: Sphinx) -> None:
    """Registers what is above."""
    app.connect("source-read", references)
    app.connect("doctree-read", wide)
    app.connect("autodoc-process-docstring", docstring, priority=400)  # before napoleon reads it
    app.connect("autodoc-process-docstring", types, priority=600)
    app.add_html_math_renderer("mathml", (mathml, None), (mathml, None))


html_math_renderer = "mathml"
