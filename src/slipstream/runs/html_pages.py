"""Self-contained HTML pages: one well-formed file with its own style that loads nothing."""

from __future__ import annotations

import html
from collections.abc import Sequence

STYLE = """
:root { color-scheme: light dark;
  --ink: #1b2430; --dim: #66727f; --faint: #e3e7ec; --page: #ffffff; --card: #f7f8fa;
  --c1: #0b6e99; --c2: #d1600a; --c3: #2a8c6a; --c4: #9c5c92; --c5: #c79a00; --c6: #5aa9d6; --c7: #7a7f87;
  --c8: #8a4b2a;
  --alarm: #c2410c }
@media (prefers-color-scheme: dark) { :root {
  --ink: #e4eaf0; --dim: #93a0ad; --faint: #29323c; --page: #10151b; --card: #171e26;
  --c1: #56b4e9; --c2: #f0883e; --c3: #3fbf94; --c4: #d391c6; --c5: #e8c547; --c6: #a7d4f2; --c7: #9aa3ad;
  --c8: #c98b6b;
  --alarm: #ff8a5c } }
* { box-sizing: border-box }
body { font: 15px/1.55 system-ui, -apple-system, "Segoe UI", sans-serif; color: var(--ink); background: var(--page);
  max-width: 62rem; margin: 0 auto; padding: 2.5rem 1.25rem 4rem; font-variant-numeric: tabular-nums }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0 0 .2rem; letter-spacing: -.01em }
h2 { font-size: 1.15rem; margin: 3rem 0 .6rem; padding-top: 1rem; border-top: 1px solid var(--faint) }
h3 { font-size: .95rem; font-weight: 600; margin: 1.4rem 0 .3rem }
p { margin: .4rem 0; max-width: 46rem } a { color: var(--c1) }
.dim, th, figcaption { color: var(--dim) } .lead { font-size: 1.1rem; margin: 1rem 0 1.4rem }
nav { margin: .8rem 0 0; font-size: .85rem } nav a { margin-right: 1rem; text-decoration: none; display: inline-block }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(9.5rem, 1fr)); gap: .8rem; margin: 1.2rem 0 0 }
.tile { background: var(--card); border-radius: .6rem; padding: .7rem .9rem }
.tile b { display: block; font-size: 1.25rem; font-weight: 600 } .tile span { font-size: .8rem; color: var(--dim) }
.grid { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 26rem), 1fr)); gap: 1.2rem 2rem }
.small { grid-template-columns: repeat(auto-fill, minmax(min(100%, 17rem), 1fr)) }
figure { margin: 0; min-width: 0 } section > figure + .grid, section > figure + figure { margin-top: 1.2rem }
figcaption { font-size: .85rem; margin-bottom: .2rem }
.scroll { overflow-x: auto } svg { display: block; width: 100%; height: auto; overflow: visible }
.scroll svg { min-width: 40rem }
table { border-collapse: collapse; font-size: .9rem } td, th { padding: .28rem 1.1rem .28rem 0; text-align: left;
  vertical-align: top; font-weight: 400 } td { overflow-wrap: anywhere }
tr + tr > * { border-top: 1px solid var(--faint) }
td.number, th.number { text-align: right; white-space: nowrap }
img { max-width: 100%; height: auto; border-radius: .6rem; display: block; margin: .6rem 0 }
details summary { cursor: pointer; color: var(--dim) }
.key { list-style: none; display: flex; flex-wrap: wrap; gap: .1rem 1rem; padding: 0; margin: .3rem 0 0;
  font-size: .8rem; color: var(--dim) }
.swatch { display: inline-block; width: .7rem; height: .7rem; border-radius: .2rem; margin-right: .4rem;
  background: currentColor; vertical-align: -.05rem }
.c1 { color: var(--c1) } .c2 { color: var(--c2) } .c3 { color: var(--c3) } .c4 { color: var(--c4) }
.c5 { color: var(--c5) } .c6 { color: var(--c6) } .c7 { color: var(--c7) } .c8 { color: var(--c8) }
text { font-size: 11.5px; fill: var(--ink) } text.dim { fill: var(--dim) }
text.tiny { font-size: 9.5px; fill-opacity: .72 }
text.own { font-weight: 700 }
.gridline { stroke: var(--faint) } .axis { stroke: var(--dim) } .anchor { stroke: var(--dim); stroke-dasharray: 3 3 }
.line { fill: none; stroke: currentColor; stroke-width: 1.8; stroke-linejoin: round }
.band { fill: currentColor; opacity: .16 } .area { fill: currentColor; opacity: .82 } .bar { fill: currentColor }
.whisker { stroke: currentColor; stroke-width: 2.5; opacity: .45; stroke-linecap: round }
.dot { fill: currentColor; stroke: var(--page); stroke-width: 1.5 }
.hit rect { fill: transparent } .hit circle { opacity: 0 } .hit:hover circle { opacity: 1 }
.hit:hover rect { fill: var(--dim); fill-opacity: .08 }
.mark { color: var(--dim) } .mark line { stroke: currentColor; stroke-dasharray: 2 3; opacity: .55 }
.mark path { fill: currentColor } .curriculum { color: var(--c4) } .promotion { color: var(--c3) }
.snapshot { color: var(--c6) } .retired { color: var(--c7) } .alarm { color: var(--alarm) }
.blank { fill: var(--card) } .won { fill: var(--c1) } .lost { fill: var(--c2) }
@media print { :root { --ink: #000; --dim: #555; --faint: #ddd; --page: #fff; --card: #f4f4f4;
  --c1: #0b6e99; --c2: #d1600a; --c3: #2a8c6a; --c4: #9c5c92; --c5: #c79a00; --c6: #5aa9d6; --c7: #7a7f87;
  --c8: #8a4b2a }
  body { font-size: 10.5pt; padding: 0; max-width: none } nav { display: none }
  figure, .tile, tr { break-inside: avoid } h2, h3 { break-after: avoid } details::details-content {
  content-visibility: visible; block-size: auto } }
"""
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def page(title: str, head: str, sections: Sequence[tuple[str, str]]) -> str:
    """A page with a header and sections by title; empty sections are omitted."""
    shown = [(name, text) for name, text in sections if text]
    links = "".join(f'<a href="#{_anchor(name)}">{html.escape(name)}</a> ' for name, _ in shown)
    body = "".join(f'<section id="{_anchor(n)}"><h2>{html.escape(n)}</h2>{text}</section>\n' for n, text in shown)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"/>'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}"/>'
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>'
        f"<title>{html.escape(title)}</title><style>{STYLE}</style></head>\n"
        f"<body><header>{head}<nav>{links}</nav></header>\n{body}</body></html>\n"
    )


def figure(caption: str, drawn: str, wide: bool = False) -> str:
    """A figure with its caption; nothing for an empty drawing."""
    if not drawn:
        return ""
    inner = f'<div class="scroll">{drawn}</div>' if wide else drawn
    return f"<figure><figcaption>{html.escape(caption)}</figcaption>{inner}</figure>"


def grid(figures: Sequence[str], small: bool = False) -> str:
    """Figures in a responsive grid."""
    joined = "".join(figures)
    kind = "grid small" if small else "grid"
    return f'<div class="{kind}">{joined}</div>' if joined else ""


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], numbers: int = 0) -> str:
    """A table of texts, with the last `numbers` columns right-aligned; cells are escaped."""
    if not rows:
        return ""
    first = max(len(row) for row in rows) - numbers

    def line(row: Sequence[str], tag: str) -> str:
        kinds = ["" if n < first else ' class="number"' for n in range(len(row))]
        cells = [f"<{tag}{kind}>{html.escape(cell)}</{tag}>" for kind, cell in zip(kinds, row, strict=True)]
        return f"<tr>{''.join(cells)}</tr>"

    return f"<table>{line(heads, 'th') if heads else ''}{''.join(line(row, 'td') for row in rows)}</table>"


def tiles(facts: Sequence[tuple[str, str]]) -> str:
    """Tiles with the main numbers, given as (label, value)."""
    shown = "".join(f'<div class="tile"><b>{html.escape(b)}</b><span>{html.escape(a)}</span></div>' for a, b in facts)
    return f'<div class="tiles">{shown}</div>' if shown else ""


def _anchor(name: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in name.lower())
