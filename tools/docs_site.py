"""Hooks of MkDocs (mkdocs.yml): what the site adds to docs/. `make docs`

The pages of the repository's root are pages of the site, the pages of the reference have their tables, and a
nav entry `FOLDER/*.md` stands for the pages of that folder.
"""

import os
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from tools.reference import DOCS, PAGES, with_tables

ROOT = DOCS.parent
OF_ROOT = {
    "README.md": "index.md",
    "CHANGELOG.md": "CHANGELOG.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    "SECURITY.md": "SECURITY.md",
}
"""Pages of the root, and where the site has them."""
FOLDERS = {"docs/adr": "adr/index.md", "docs/runbooks": "runbooks/README.md"}
"""What a link to a folder leads to."""
LINK = re.compile(r"\[([^\]]*)\]\((?![a-z]+:|#)([^)\s#]+)(#[^)\s]*)?\)")

WRITTEN = re.compile(r"`make docs` writes this (?:page|table)(?:[^.]|\.md)*\.\s?")
"""Where the repository's page says where its tables are: on the site they are below."""
WITH_TABLES = re.compile(r"`docs/reference/([a-z-]+)\.md`(?: \(`make docs`\)|, written by `make docs`)?")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    config.nav = [_expanded(entry) for entry in config.nav or []]
    return config


def _expanded(entry: Any) -> Any:
    """Returns a nav entry with the pages of `FOLDER/*.md`, its index first."""
    if isinstance(entry, dict):
        return {title: _expanded(inner) for title, inner in entry.items()}
    if isinstance(entry, list):
        return [_expanded(each) for each in entry]
    if not entry.endswith("/*.md"):
        return entry
    pages = sorted(each.relative_to(DOCS).as_posix() for each in DOCS.glob(entry))
    index = FOLDERS[f"docs/{Path(entry).parent}"]
    return [index, *(each for each in pages if each != index)]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for name, uri in OF_ROOT.items():
        files.append(File.generated(config, uri, abs_src_path=str(ROOT / name)))
    files.append(File.generated(config, FOLDERS["docs/adr"], content=_decisions()))
    return files


def _decisions() -> str:
    """Returns the page with every decision record."""
    rows = []
    for path in sorted((DOCS / "adr").glob("*.md")):
        title = path.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
        rows.append(f"- [{title}]({path.name})")
    return "\n".join(
        ["# Decisions", "", "One page for each decision that someone will ask about.", "", *rows, ""]
    )


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    uri = page.file.src_uri
    if uri in PAGES:
        markdown = with_tables(uri, WRITTEN.sub("", markdown))
    here = next((name for name, at in OF_ROOT.items() if at == uri), f"docs/{uri}")

    def on_site(link: re.Match[str]) -> str:
        """Returns a link of the repository as the site has it; a source file is only named."""
        text, target, anchor = link.groups(default="")
        target = os.path.normpath(os.path.join(os.path.dirname(here), target))
        if (ROOT / target).is_file() and not target.startswith("docs/") and target not in OF_ROOT:
            return text
        target = OF_ROOT.get(target) or FOLDERS.get(target) or target.removeprefix("docs/")
        return f"[{text}]({os.path.relpath(target, os.path.dirname(uri) or '.')}{anchor})"

    return LINK.sub(on_site, WITH_TABLES.sub(r"[\1](\1.md)", markdown))
