"""Settings of Sphinx for this documentation: ``make docs``."""

import sys
import warnings
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # for tools.docs_site

import sawlog  # noqa: E402

# Packages that are documented warn about their own dependencies when they are imported.
warnings.simplefilter("ignore")

project = "sawlog"
author = "the sawlog authors"
copyright = "the sawlog authors, Apache-2.0"
version = release = sawlog.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "tools.docs_site",
]
exclude_patterns = ["_build"]
default_role = "code"

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 4

autosummary_generate = False
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
python_maximum_signature_line_length = 80
python_display_short_literal_types = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True

copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

pygments_dark_style = "github-dark"
html_theme = "furo"
html_title = f"sawlog {release}"
html_static_path = ["_static"]
html_css_files = ["sawlog.css"]
html_js_files = ["sawlog.js"]
html_extra_path = ["llms.txt"]
html_show_sphinx = False
html_copy_source = False
html_theme_options = {
    "light_css_variables": {
        "color-brand-primary": "#9a4b00",
        "color-brand-content": "#9a4b00",
        "drawing-tint": "#fdf0e1",
        "drawing-good": "#1a7f37",
        "drawing-bad": "#b42318",
    },
    "dark_css_variables": {
        "color-brand-primary": "#ffb066",
        "color-brand-content": "#ffb066",
        "drawing-tint": "#3a2a18",
        "drawing-good": "#56d364",
        "drawing-bad": "#ff7b72",
    },
}
