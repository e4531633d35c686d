"""Mends, in the pages that Sphinx and its extensions write, what assistive technology would read wrongly."""

import re

# A list's own children must be its items, and the role that docutils gives the entries is deprecated.
ENTRY = re.compile(r'(<div class="citation"[^>]*) role="doc-biblioentry"')
EMPTY_HEAD = re.compile(r"<th\b[^>]*>(?:\s|<p>\s*</p>)*</th>")


def mend_roles(app, pagename, templatename, context, doctree):
    """Entries of a bibliography are items of its list; a table's empty corner is a cell, not a head of nothing."""
    if "body" in context:
        body = ENTRY.sub(r'\1 role="listitem"', context["body"])
        context["body"] = EMPTY_HEAD.sub("<td></td>", body)


def setup(app):
    app.connect("html-page-context", mend_roles)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
