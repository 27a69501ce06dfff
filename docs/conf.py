"""Configuration of the documentation site; `scripts/docs` builds it and fails on any warning."""

from departing import __version__

project = "departing"
author = "the authors of departing"
project_copyright = "the authors of departing, MIT licence"
release = version = __version__
extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx-mathjax-offline",
    "sphinx_copybutton",
]
exclude_patterns = ["_build"]
nb_execution_mode = "off"  # notebooks are committed with their outputs; `docs/notebook.py` executes them
myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_heading_anchors = 3
suppress_warnings = [
    "myst.xref_missing",  # links to repository files outside the site; a test checks them
    "ref.python",  # attributes of the same name in several classes
]
html_theme = "furo"
html_title = "departing"
html_static_path = ["static"]
html_css_files = ["site.css"]
copybutton_prompt_text = r">>> |\.\.\. |\$ "  # copy the input of sessions, without prompts and output
copybutton_prompt_is_regexp = True
html_show_sphinx = False
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
napoleon_google_docstring = False
napoleon_use_ivar = True  # attributes that are also properties are described once
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
default_role = "code"
