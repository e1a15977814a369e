"""Sphinx settings of the site; `fedlib site` gathers the pages and calls Sphinx with them."""

import re
from html import escape

from docutils import nodes

project = "fedlib"
html_title = "fedlib"
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.mathjax"]
mathjax_path = "mathjax/tex-chtml.js"  # put there by `fedlib site`
root_doc = "index"
exclude_patterns = ["conf.py"]
nb_execution_mode = "off"  # pages show what the notebooks were executed to
nb_merge_streams = True
myst_enable_extensions = ["deflist", "dollarmath"]
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


def quiet(app, doctree):
    """Code and lists of runs are on every page; a search is for what pages say."""
    if app.env.docname.startswith(("notebooks/", "methods/")):
        for node in doctree.findall(lambda n: isinstance(n, (nodes.literal_block, nodes.raw))):
            if isinstance(node, nodes.literal_block) or 'class="run"' in node.astext():
                node["classes"].append("no-search")


def described(app, page, template, context, doctree):
    """What a link to the page shows elsewhere: its title and the first paragraph that says something."""
    texts = (p.astext().replace("\n", " ") for p in doctree.findall(nodes.paragraph)) if doctree else ()
    said = next((text for text in texts if len(text) > 80), "A reproducibility workbook for federated learning.")
    said = said if len(said) <= 300 else said[:299].rpartition(" ")[0] + " …"
    title = context.get("title") or project
    given = {"og:type": "article", "og:site_name": project, "og:title": title, "og:description": said}
    tags = [f'<meta property="{k}" content="{escape(v)}">' for k, v in given.items()]
    tags.append(f'<meta name="description" content="{escape(said)}">')
    context["metatags"] = context.get("metatags", "") + "\n".join(tags)


def lined(app, page, template, context, doctree):
    """Parameters with a line each are a list of definitions without terms, which screen readers stumble over."""
    of = {"<dl>": '<span class="params">', "</dl>": "</span>", "<dd>": "<span>", "</dd>": "</span>"}
    plain = lambda sig: re.sub("|".join(of), lambda tag: of[tag[0]], sig[0])  # noqa: E731
    context["body"] = re.sub(r'<dt class="sig .*?</dt>', plain, context.get("body", ""), flags=re.DOTALL)


def setup(app):
    app.connect("doctree-read", quiet)
    app.connect("html-page-context", described)
    app.connect("html-page-context", lined)
