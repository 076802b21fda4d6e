"""Writes the pictures of docs/concepts.md: `python -m tools.pictures`. They are committed.

A picture has a background of its own, so that it can be read on a light page and on a dark one.
"""

from collections.abc import Callable
from pathlib import Path

OUTPUT = Path(__file__).parent.parent / "docs" / "images"
WIDTH = 720
STYLE = """\
svg{--page:#fbfcfe;--text:#1c2733;--soft:#5d6b7a;--box:#e6eef7;--line:#7b8da1}
svg{--main:#0b6bb5;--on:#fff;--bad:#b3261e;--gone:#f6d5d2}
@media (prefers-color-scheme:dark){
svg{--page:#18202a;--text:#e6edf5;--soft:#9fb0c2;--box:#273544;--line:#8195aa}
svg{--main:#4aa3e8;--on:#0d1620;--bad:#ff8a80;--gone:#55292a}
}
text{font:14px sans-serif;fill:var(--text)}
.soft{font-size:12px;fill:var(--soft)}
.on{fill:var(--on)}
.bad{fill:var(--bad)}
.box{fill:var(--box);stroke:var(--line)}
.main{fill:var(--main)}
.gone{fill:var(--gone);stroke:var(--bad)}
.line{fill:none;stroke:var(--line);stroke-width:1.5}
.set{fill:none;stroke:var(--main);stroke-width:2;stroke-dasharray:6 4}
.cut{stroke:var(--bad);stroke-width:2;stroke-dasharray:4 3}
.mark{stroke:var(--main);stroke-width:2}"""
HEAD = '<marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
TIP = HEAD + '<path d="M0 0 8 4 0 8z" style="fill:var(--line)"/></marker>'


def text(x: float, y: float, words: str, kind: str = "", anchor: str = "middle") -> str:
    return f'<text x="{x}" y="{y}" class="{kind}" text-anchor="{anchor}">{words}</text>'


def rectangle(x: float, y: float, width: float, height: float, kind: str = "box", radius: int = 6) -> str:
    return f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="{radius}" class="{kind}"/>'


def box(x: float, y: float, width: float, title: str, under: str = "", kind: str = "box") -> str:
    """A box of 46 pixels with one or two lines."""
    on = "on" if kind == "main" else ""
    lines = text(x + width / 2, y + (21 if under else 28), title, on)
    if under:
        lines += text(x + width / 2, y + 38, under, on or "soft")
    return rectangle(x, y, width, 46, kind) + lines


def arrow(x: float, y: float, to_x: float, to_y: float) -> str:
    return f'<path class="line" marker-end="url(#head)" d="M{x} {y}L{to_x} {to_y}"/>'


def line(x: float, y: float, to_x: float, to_y: float, kind: str = "line") -> str:
    return f'<path class="{kind}" d="M{x} {y}L{to_x} {to_y}"/>'


def group() -> tuple[int, str, list[str]]:
    parts = [
        box(30, 30, 130, "producer"),
        box(30, 220, 130, "consumer"),
        box(270, 125, 130, "broker 1", "master", "main"),
        box(500, 30, 130, "broker 2", "slave, in sync"),
        box(500, 220, 130, "broker 3", "slave, lags"),
        '<path class="set" d="M255 110H485V14H646V92H415V186H255Z"/>',
        text(335, 102, "SyncStateSet {1, 2}", "soft"),
        arrow(160, 60, 268, 135),
        text(205, 80, "send", "soft"),
        arrow(270, 160, 162, 235),
        text(205, 220, "pull", "soft"),
        arrow(400, 135, 498, 62),
        arrow(400, 160, 498, 240),
        text(478, 190, "the log", "soft"),
        box(230, 300, 210, "3 controllers", "master, SyncStateSet, epochs"),
        arrow(335, 298, 335, 174),
        text(345, 250, "who is master", "soft", "start"),
        box(30, 300, 130, "name servers", "routes"),
    ]
    return 366, "A group: the master, its SyncStateSet, a slave that lags, the controllers", parts


def confirm_offset() -> tuple[int, str, list[str]]:
    parts = []
    replicas = (
        ("broker 1, master", 500, "main"),
        ("broker 2, in sync", 420, "box"),
        ("broker 3, lags", 210, "box"),
    )
    for at, (name, length, kind) in enumerate(replicas):
        y = 40 + at * 50
        parts += [text(140, y + 20, name, anchor="end"), rectangle(160, y, length, 30, kind, 3)]
    parts += [
        line(580, 24, 580, 200, "mark"),
        text(700, 218, "confirmOffset: the least end in the SyncStateSet {1, 2}", anchor="end"),
        text(370, 242, "what consumers read", "soft"),
        arrow(290, 238, 162, 238),
        arrow(450, 238, 578, 238),
        text(650, 88, "not acknowledged", "soft"),
        text(650, 104, "yet", "soft"),
    ]
    return 262, "confirmOffset is the least end of the logs in the SyncStateSet", parts


def epochs() -> tuple[int, str, list[str]]:
    parts = []
    for y, title, tail in ((50, "broker 2, new master", True), (110, "broker 1, was master", False)):
        parts += [
            text(180, y + 20, title, anchor="end"),
            rectangle(200, y, 240, 30, "box", 3),
            text(320, y + 20, "masterEpoch 1"),
        ]
        if tail:
            parts += [rectangle(440, y, 200, 30, "main", 3), text(540, y + 20, "masterEpoch 2", "on")]
        else:
            parts += [
                rectangle(440, y, 70, 30, "gone", 3),
                text(520, y + 20, "never acknowledged: cut off", "soft bad", "start"),
            ]
    parts += [
        line(440, 36, 440, 156, "cut"),
        text(440, 28, "both have epoch 1 up to here"),
        text(440, 176, "then broker 1 copies epoch 2 from here", "soft"),
    ]
    return 196, "Two logs with their epochs: the old master cuts its tail off", parts


def election() -> tuple[int, str, list[str]]:
    lanes = (("broker 1", 100), ("controllers", 270), ("broker 2", 440), ("producer", 610))
    parts = [box(x - 65, 16, 130, name) for name, x in lanes]
    parts += [line(x, 62, x, 150 if name == "broker 1" else 400) for name, x in lanes]
    steps = (
        (100, 270, 150, "connection closes"),
        (270, 440, 240, "masterEpoch 2 (1008)"),
        (440, 270, 310, "I am the master"),
        (610, 440, 370, "send again, acknowledged"),
    )
    for begin, end, y, words in steps:
        parts += [
            arrow(begin, y, end + (2 if end < begin else -2), y),
            text((begin + end) / 2, y - 8, words, "soft"),
        ]
    parts += [
        text(100, 170, "killed", "bad"),
        box(175, 172, 190, "elect from {1, 2}", "on disks of a majority"),
        text(448, 264, "checks its log's end,", "soft", "start"),
        text(448, 280, "records the epoch", "soft", "start"),
        text(618, 164, "sends fail, and", "soft bad", "start"),
        text(618, 180, "are repeated", "soft bad", "start"),
    ]
    return 416, "An election, from the death of the master to the next acknowledged message", parts


def lease() -> tuple[int, str, list[str]]:
    parts = [
        text(110, 66, "broker 1", anchor="end"),
        rectangle(130, 46, 330, 30, "main", 3),
        text(295, 66, "acknowledges messages", "on"),
        rectangle(460, 46, 230, 30, "gone", 3),
        text(575, 66, "acknowledges nothing"),
        text(110, 146, "controllers", anchor="end"),
        rectangle(130, 126, 430, 30, "box", 3),
        text(345, 146, "wait: broker 1 may still serve"),
        rectangle(560, 126, 130, 30, "main", 3),
        text(625, 146, "elect broker 2", "on"),
        line(190, 30, 190, 176, "cut"),
        text(190, 22, "the network is cut", "bad"),
        line(460, 30, 460, 110, "mark"),
        text(460, 22, "the lease ends"),
        text(700, 196, "controllerHeartBeatTimeoutMills after the last heartbeat", anchor="end"),
        line(560, 126, 560, 180, "mark"),
        arrow(462, 102, 558, 102),
        text(510, 96, "margin", "soft"),
    ]
    return 212, "The lease of an isolated master ends before another one can be elected", parts


PICTURES: dict[str, Callable[[], tuple[int, str, list[str]]]] = {
    "group.svg": group,
    "confirm-offset.svg": confirm_offset,
    "epochs.svg": epochs,
    "election.svg": election,
    "lease.svg": lease,
}


def drawn(name: str) -> str:
    """Returns the text of a picture."""
    height, title, parts = PICTURES[name]()
    opening = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" role="img">'
    )
    page = f'<rect width="{WIDTH}" height="{height}" rx="8" style="fill:var(--page)"/>'
    return "\n".join(
        [opening, f"<title>{title}</title><style>", STYLE, f"</style>{TIP}{page}", *parts, "</svg>", ""]
    )


if __name__ == "__main__":
    for each in PICTURES:
        (OUTPUT / each).write_text(drawn(each), encoding="utf-8")
