"""Sphinx's settings for the site.
Nothing is loaded from elsewhere, and no notebook is executed."""

from pathlib import Path

from docutils.nodes import SkipNode
from IPython.lib.lexers import IPython3Lexer
from latex2mathml.converter import convert
from pygments.lexer import bygroups, inherit, using
from pygments.lexers.c_like import CudaLexer
from pygments.token import Keyword, Operator, Text

from lab import course, device

project = "Three Floors"
author = "the authors of Three Floors"
release = course.VERSION
extensions = ["myst_nb"]
html_theme = "sphinx_book_theme"
html_title = project
html_static_path = [str(Path(__file__).with_name("static"))]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_math_renderer = "mathml"
myst_enable_extensions = ["dollarmath", "deflist"]
myst_heading_anchors = 3
nb_execution_mode = "off"
nb_merge_streams = True
html_theme_options = {"show_toc_level": 2, "use_download_button": True, "navbar_persistent": []}
if repository := device.repository():
    html_theme_options |= {"repository_url": repository, "use_repository_button": True,
                           "use_issues_button": True, "repository_branch": "main",
                           "path_to_docs": "notebooks",     # a page is named as its notebook is
                           "launch_buttons": {"colab_url": "https://colab.research.google.com",
                                              "binderhub_url": "https://mybinder.org",
                                              "notebook_interface": "jupyterlab"}}


class WithCuda(IPython3Lexer):
    """IPython's lexer, which takes the rest of a cell after %%cuda as CUDA C."""

    tokens = {"root": [(r"(?s)(\s*)(%%)(cuda)([^\n]*\n)(.*)",
                        bygroups(Text, Operator, Keyword, Text, using(CudaLexer))), inherit]}


def mathml(display, tag):
    """A visitor that writes a formula as MathML, which browsers draw by themselves."""
    def visit(writer, node):
        formula = convert(node.astext(), display=display)
        writer.body.append(f'<{tag} class="formula">{formula}</{tag}>')
        raise SkipNode

    return visit


def setup(app):
    app.add_lexer("ipython3", WithCuda)
    app.add_html_math_renderer("mathml", (mathml("inline", "span"), None),
                               (mathml("block", "div"), None))
