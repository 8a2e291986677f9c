"""What the README and the docs show works: commands exist, links lead somewhere."""

import re
import shlex
from pathlib import Path

import pytest

from tests.house.surface import flags_of_verbs

REPOSITORY = Path(__file__).resolve().parents[2]
NOT_OURS = {"topout-runs", "node_modules", "dist"}
PAGES = sorted(
    page
    for page in REPOSITORY.rglob("*.md")
    if not any(part in NOT_OURS or part.startswith(".") for part in page.relative_to(REPOSITORY).parts)
)
ids = [str(page.relative_to(REPOSITORY)) for page in PAGES]


def without_blocks(text: str) -> str:
    return re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)


def shell_lines(text: str) -> list[str]:
    """Lines of blocks marked sh or console; a line that ends in a backslash goes on."""
    blocks = re.findall(r"^```(?:sh|console)\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    return [line.removeprefix("$ ").split("  #")[0].strip() for line in lines if line.strip()]


def topout_commands(text: str) -> list[str]:
    inline = re.findall(r"`(topout [a-z][^`\n]*)`", without_blocks(text))
    return [line for line in shell_lines(text) + inline if line.startswith("topout ") and "[" not in line]


def wrong_in(command: str, flags: dict[str, list[str]]) -> str | None:
    _, verb, *rest = shlex.split(command)
    if verb.startswith("-"):
        return None if verb in ("--help", "--version") else f"no flag {verb}"
    if any(words.startswith(f"{verb} ") for words in flags):
        # `topout data`, which has verbs of its own; several may be shown at once: info|check
        inner = [f"{verb} {word}" for word in rest[0].split("|")] if rest else []
        missing = [words for words in inner if words not in flags]
        if missing or len(inner) != 1:
            return f"no verb {missing[0]}" if missing else None
        [verb] = inner
    if verb not in flags:
        return f"no verb {verb}"
    for word in rest:
        if verb == "run" and word.endswith(".py"):
            break  # what follows belongs to the script
        if word.startswith("-") and word.partition("=")[0] not in {*flags[verb], "--help"}:
            return f"topout {verb} has no {word}"
    return None


def slug(heading: str) -> str:
    """How a heading becomes an anchor on the common hosts."""
    plain = re.sub(r"[^\w\- ]", "", heading.replace("`", "").strip().lower())
    return plain.replace(" ", "-")


def anchors(page: Path) -> set[str]:
    return {slug(line.lstrip("#")) for line in without_blocks(page.read_text()).splitlines() if line.startswith("#")}


def broken_links(page: Path) -> list[str]:
    broken = []
    text = re.sub(r"`[^`\n]*`", "", without_blocks(page.read_text()))
    for link in re.findall(r"\[[^\]]*\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", link):
            continue
        target, _, anchor = link.partition("#")
        file = (page.parent / target) if target else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            broken.append(link)
    return broken


def test_the_quick_start_is_two_commands() -> None:
    section = (REPOSITORY / "README.md").read_text().partition("## Quick start\n")[2].partition("\n## ")[0]
    assert shell_lines(section) == ["make run", "make test"]
    assert section.count("```") == 2


def test_the_targets_of_the_quick_start_exist() -> None:
    makefile = (REPOSITORY / "Makefile").read_text()
    assert re.search(r"^run:", makefile, flags=re.MULTILINE)
    assert re.search(r"^test:", makefile, flags=re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_commands_shown_exist(page: Path) -> None:
    flags = flags_of_verbs()
    assert [wrong for command in topout_commands(page.read_text()) if (wrong := wrong_in(command, flags))] == []


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_links_lead_somewhere(page: Path) -> None:
    assert broken_links(page) == []


def test_a_wrong_command_is_noticed() -> None:
    flags = {"run": ["-n", "--steps"]}
    text = (
        "```sh\ntopout rum train.py\ntopout run --stps 3 train.py\ntopout run -n 2 train.py --lr 1\n```\n`topout fly`"
    )
    found = [wrong_in(command, flags) for command in topout_commands(text)]
    assert found == ["no verb rum", "topout run has no --stps", None, "no verb fly"]


def test_a_wrong_verb_of_a_verb_is_noticed() -> None:
    flags = {"data info": ["--json"], "data head": []}
    commands = [
        "topout data",
        "topout data info|head",
        "topout data info --json x",
        "topout data head --json",
        "topout data hd",
    ]
    found = [wrong_in(command, flags) for command in commands]
    assert found == [None, None, None, "topout data head has no --json", "no verb data hd"]


def test_a_wrong_link_is_noticed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# One `two`\n[a](#one-two) [b](#three) [c](none.md) [d](page.md#one-two) [e](https://example.org)\n"
    )
    assert broken_links(page) == ["#three", "none.md"]
