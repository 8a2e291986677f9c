"""What every page of topout has around its content: head, style, policy, the one script, the line above and below.

A page asks the network for nothing and may not: its content security policy forbids every request, and allows the one
script by its hash, so that a name smuggled in with the data cannot become code. Not the place for content.
"""

import base64
import hashlib
from importlib.resources import files

from topout import __version__
from topout.report.escape import text

GENERATOR = '<meta name="generator" content="topout '
"""Near the beginning of every page: by this a page is known to be topout's own."""


def whole_page(
    *, kind: str, title: str, masthead: str, main: str, footer: str, origin: str, scripts: tuple[str, ...]
) -> str:
    """`kind`, `title` and `origin` are plain text; `masthead`, `main`, `footer` are HTML already; scripts are names."""
    script = "\n".join(asset(name) for name in scripts)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{digest}'"
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
{GENERATOR}{__version__}">
<title>{text(title)} – topout</title>
<link rel="icon" href="data:,">
<style>
{asset("page.css")}</style>
</head>
<body>
<div class="topline"><span>topout <i>{text(kind)}</i></span><button type="button" id="theme" hidden>Dark</button></div>
<header class="masthead">{masthead}</header>
<main>
{main}
</main>
<footer>{footer}<p>{text(origin)} · topout {__version__} · this page holds all its data</p></footer>
<div id="tooltip" role="status" hidden></div>
<script>{script}</script>
</body>
</html>
"""


def asset(name: str) -> str:
    return (files("topout.report") / "page" / name).read_text(encoding="utf-8")
