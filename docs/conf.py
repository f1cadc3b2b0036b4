"""The site: ``make docs`` writes it to ``build/docs``."""

from __future__ import annotations

import os
import sys
from importlib.metadata import version as installed_version

from pygments.lexers import PythonLexer
from sphinx.application import Sphinx

sys.path.insert(0, os.path.dirname(__file__))

import commands  # the folder of this file is on the path now
import notebooks

project = "uneven"
author = "The uneven authors"
copyright = author
version = release = installed_version("uneven")

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.intersphinx",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
]
exclude_patterns = ["pictures", "_static"]

smartquotes = False  # it would turn the two hyphens of an option into a dash
maximum_signature_line_length = 88

html_theme = "furo"
pygments_dark_style = "github-dark"  # furo's own underlines modules, as if they were links
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_title = f"uneven {version}"
html_theme_options = {"source_repository": os.environ.get("UNEVEN_REPOSITORY", ""), "source_branch": "main"}

myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_class_signature = "mixed"
autodoc_mock_imports = ["accelerate", "lightning", "lightning_fabric", "transformers"]
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False

# Links into other projects need their lists of names, which are on the network; a build without it has plain text.
if os.environ.get("READTHEDOCS") or os.environ.get("UNEVEN_DOCS_ONLINE"):
    intersphinx_mapping = {
        "python": ("https://docs.python.org/3", None),
        "torch": ("https://docs.pytorch.org/docs/stable", None),
        "numpy": ("https://numpy.org/doc/stable", None),
    }


def setup(app: Sphinx) -> None:
    app.add_lexer("signatures", PythonLexer)  # a block of docs/architecture.md that a test compares with the code
    commands.write()
    notebooks.write()
