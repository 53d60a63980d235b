"""Sphinx settings. Tables of registered things are written anew at every build."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import generate  # noqa: E402
import kept_runs  # noqa: E402

import buttress  # noqa: E402

generate.write_all(HERE / "_generated")
generate.write(HERE / "_generated" / "results.md", kept_runs.results_page(kept_runs.KEPT))
generate.write(HERE / "_generated" / "findings.md", kept_runs.findings(kept_runs.KEPT))
kept_runs.write_site(
    kept_runs.KEPT, HERE / "_generated" / "site" / "results", HERE / "_generated" / "kept-runs"
)

project = "Buttress"
author = "The Buttress authors"
copyright = author
version = release = buttress.__version__

extensions = ["myst_parser", "notebooks", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build", "_generated", "measured", "results"]
html_extra_path = ["_generated/site"]
myst_heading_anchors = 3
myst_enable_extensions = ["dollarmath"]  # $formula$ and $$formula$$
suppress_warnings = ["config.cache"]
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
autodoc_member_order = "bysource"
napoleon_numpy_docstring = False

html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["pages.css"]
html_title = "Buttress"
html_copy_source = False
