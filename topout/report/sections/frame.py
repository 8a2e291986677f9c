"""The frame every section shares: its title and note in the margin, its content beside them."""


def section(key: str, title: str, note: str, content: str, *, wide: bool = False) -> str:
    """`title`, `note` and `content` are HTML already; a wide section puts its content under the title."""
    return (
        f'<section id="{key}" class="{"wide" if wide else "beside"}" aria-labelledby="{key}-title">'
        f'<header><h2 id="{key}-title">{title}</h2><p class="note">{note}</p></header>'
        f'<div class="content">{content}</div></section>'
    )


def obtained(how: str) -> str:
    """The small mark that says how a number was obtained: measured, predicted or assumed."""
    return f'<span class="obtained {how.rpartition(" ")[2]}">{how}</span>'
