"""What Sphinx is told about the pages; it reads this in the folder that stage made."""

from pathlib import Path

project = html_title = "Ringside"
author = ""
extensions = ["myst_nb"]
exclude_patterns = ["beside"]
nb_execution_mode = "off"  # what a page shows is what is committed
nb_ipywidgets_js = {}  # else pages ask an address outside for it
html_theme = "sphinx_book_theme"
html_theme_options = {
    "show_navbar_depth": 1,
    "show_toc_level": 2,
    "use_download_button": False,  # the strip at the top has the notebook as it is
    "use_fullscreen_button": False,
    "home_page_in_toc": True,
    "footer_content_items": [],
    "navbar_persistent": [],  # the sidebar has the search
}
html_extra_path = ["beside"]  # notebooks, scripts and pictures as they are
html_static_path = ["pages"]
html_search_scorer = str(Path(__file__).parent / "pages" / "scorer.js")
html_css_files = ["pages.css"]
html_js_files = [("pages.js", {"defer": "defer"})]
html_copy_source = html_show_copyright = html_show_sphinx = False
