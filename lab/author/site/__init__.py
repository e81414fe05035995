"""The course as a site: `make site` writes it to .cache/site/html, by __main__.

pages        each lesson as a page, from its notebook and what its solution printed
overviews    the pages beside them: map, glossary, what runs where, what is proven
reference    the commands, and the public names with their signatures and docstrings
conf         Sphinx's settings
"""
