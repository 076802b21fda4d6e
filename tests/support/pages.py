"""The committed pages, and the fenced blocks of commands on them.

A block is run by a test, or the line above its fence says why not: `<!-- not run: REASON -->`. If another
test than tests/cluster/test_pages.py runs it, that line is `<!-- run by tests/... -->`. A comment below the
title of a page counts for all its blocks.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
MARK = re.compile(r"\s*<!-- (not run|run by):? (.+) -->")
FENCE = re.compile(r"\s*```(\w*)$")
PROGRAMS = {"mqadmin", "keelmq", "mqnamesrv", "mqbroker", "mqbrokercontainer", "curl", "make", "python"}


@dataclass(frozen=True)
class Block:
    """One fenced block of a page; `line` is that of its first command, `mark` a pair ("not run", REASON)."""

    page: str
    line: int
    language: str
    text: str
    mark: tuple[str, str] | None

    @property
    def is_commands(self) -> bool:
        first = (self.text.split() or [""])[0]
        return self.language in ("sh", "console") or (
            not self.language and (self.is_transcript or first.removeprefix("./") in PROGRAMS)
        )

    @property
    def is_transcript(self) -> bool:
        """Lines with `$ ` in front are commands, the others what they print."""
        return bool(re.search(r"^\$ ", self.text, re.MULTILINE))

    @property
    def file(self) -> str | None:
        """The name of the file that the block shows: its first line is `# NAME`."""
        named = re.match(r"# ([\w.-]+\.(?:py|conf))\n", self.text)
        return named[1] if named and self.language in ("python", "properties") else None

    def script(self) -> str:
        """Returns the commands for a shell with the functions of tests/cluster/pages.sh: `&` at the end of a
        line becomes start, --watch becomes watched, and a comment `# refused: TEXT` becomes refused."""
        if self.file:
            return f"cat > {self.file} <<'END OF FILE'\n{self.text}END OF FILE\n"
        lines = re.sub(r"\\\n\s*", "", self.text).splitlines()
        if self.is_transcript:
            lines = [line[2:] for line in lines if line.startswith("$ ")]
        return "\n".join(map(_adapted, lines)) + "\n"


def _adapted(line: str) -> str:
    if line.startswith("git clone "):
        return ""  # the shell is in the clone
    if refused := re.match(r"(.+?)\s+# refused: (.+)$", line):
        return f"refused '{refused[2]}' {refused[1]}"
    if " --watch " in line:
        return f"watched {line}"
    if line.endswith(" &") or re.search(r" &\s+#", line):
        return "start " + line.rpartition(" &")[0]
    return line


def pages() -> list[Path]:
    """Returns every page but the changelog and those that `make docs` builds."""
    found = (each for each in (ROOT / "docs").rglob("*.md") if each.parent.name != "reference")
    return [*(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")), *sorted(found)]


def blocks(page: Path) -> Iterator[Block]:
    """Returns every fenced block of a page, those that are not commands included."""
    lines = page.read_text(encoding="utf-8").splitlines()
    of_page = _mark(lines[1])
    begin, language = 0, None
    for at, line in enumerate(lines):
        fence = FENCE.match(line)
        if fence is None:
            continue
        if language is None:
            begin, language = at + 1, fence[1]
            continue
        text = "".join(f"{each}\n" for each in lines[begin:at])
        mark = _mark(lines[begin - 2]) or of_page
        yield Block(page.relative_to(ROOT).as_posix(), begin + 1, language, text, mark)
        language = None


def _mark(line: str) -> tuple[str, str] | None:
    found = MARK.fullmatch(line)
    return (found[1], found[2]) if found else None
