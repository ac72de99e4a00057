"""Sphinx configuration. The build needs no network and treats every warning as an error."""

import os
import re
import sys
import warnings
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "_extensions"))

# Examples draw to files, and do not fight over the cores.
os.environ.setdefault("MPLBACKEND", "agg")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import sklearn_restf  # noqa: E402

project = "sklearn-restf"
author = "The sklearn-restf developers"
copyright = "2026, the sklearn-restf developers (BSD-3-Clause)"
release = version = sklearn_restf.__version__

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "numpydoc",
    "myst_parser",
    "sphinx_gallery.gen_gallery",
    "architecture",
    "mathml",
]
html_math_renderer = "mathml"
templates_path = ["_templates"]
exclude_patterns = ["_build", "auto_examples/**/*.ipynb", "auto_examples/**/*.py"]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
suppress_warnings = ["config.cache"]

# --- prose ---------------------------------------------------------------------------

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
math_number_all = False
math_eqref_format = "({number})"

# --- reference -----------------------------------------------------------------------

autosummary_generate = True
autodoc_typehints = "none"  # the types stand in the docstrings
numpydoc_show_class_members = False  # the template lists them

# --- examples ------------------------------------------------------------------------

sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "auto_examples",
    "filename_pattern": r"plot_\d",
    "ignore_pattern": r"distributed_fit",  # runs in several processes
    "within_subsection_order": "FileNameSortKey",
    "reset_argv": "gallery.arguments",
    "download_all_examples": False,
    "show_signature": False,
    "remove_config_comments": True,
    "abort_on_example_error": True,
    "plot_gallery": "True",
    "min_reported_time": 0,
    "write_computation_times": False,
}
# What the examples want to show with ``plt.show()`` is collected by the gallery.
warnings.filterwarnings("ignore", message="FigureCanvasAgg is non-interactive")
# Warnings that examples are about are shown without the paths of the machine that built the pages.
warnings.formatwarning = lambda message, category, *_, **__: f"{category.__name__}: {message}\n"

# --- looks ---------------------------------------------------------------------------

html_theme = "pydata_sphinx_theme"
html_title = f"sklearn-restf {release}"
html_static_path = ["_static"]
html_css_files = ["custom.css"]
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {
    "show_prev_next": False,
    "navbar_align": "left",
    "header_links_before_dropdown": 7,
    "secondary_sidebar_items": ["page-toc"],
    "navigation_with_keys": False,
    "footer_start": ["copyright"],
    "footer_end": [],
}
pages_without_parts = ("getting_started", "theory", "how_it_is_built", "contributing", "changelog")
html_sidebars = {page: [] for page in pages_without_parts}


def without_foreign_labels(
    app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]
) -> None:
    """Make text of references in inherited docstrings of scikit-learn: they lead nowhere."""
    if (getattr(obj, "__module__", None) or "").startswith("sklearn."):
        lines[:] = [re.sub(r":ref:`([^`<]*?)(?: <[^`]*>)?`", r"\1", line) for line in lines]


def setup(app: Any) -> None:
    """Connect the above."""
    app.connect("autodoc-process-docstring", without_foreign_labels, priority=100)
