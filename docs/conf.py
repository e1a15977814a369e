"""Sphinx settings of the site; `fedlib site` gathers the pages and calls Sphinx with them."""

project = "fedlib"
html_title = "fedlib"
extensions = ["myst_nb", "sphinx-mathjax-offline", "sphinx.ext.autodoc"]
root_doc = "index"
exclude_patterns = ["conf.py"]
nb_execution_mode = "off"  # pages show what the notebooks were executed to
nb_merge_streams = True
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3
html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_copyright = False
html_show_sphinx = False
suppress_warnings = ["myst.header", "mystnb.unknown_mime_type"]  # claims are JSON besides
html_js_files = ["site.js"]
html_copy_source = False
html_show_sourcelink = False
nb_code_prompt_show = "Show code"
nb_code_prompt_hide = "Hide code"
html_favicon = "_static/favicon.svg"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
python_maximum_signature_line_length = 100
