"""The style sheet of all pages: light, dark and print, from the width of a phone to a desk's.

Words keep their size at every width: charts stretch between fixed margins (class chart), and what is wider than the
screen (timelines, tables) scrolls sideways in a box of its own (class scroll).
"""

# Of the text on a wide screen, in pixels; pictures in a page are drawn for it.
CONTENT_WIDTH = 980

STYLE = """
:root { --ink: #1c1e21; --soft: #5c6370; --line: #d9dce1; --paper: #ffffff; --accent: #0072b2; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e8eb; --soft: #a3aab5; --line: #3a3f47; --paper: #17191c; --accent: #56b4e9; }
}
body {
  margin: 0; background: var(--paper); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; overflow-wrap: anywhere;
  -webkit-text-size-adjust: 100%; text-size-adjust: 100%;
}
main { max-width: 980px; margin: 0 auto; padding: 24px 20px 60px; }
h1 { font-size: 40px; margin: 8px 0; }
h1 small { display: block; font-size: 16px; font-weight: 400; color: var(--soft); }
h2 { font-size: 20px; margin: 36px 0 8px; border-top: 1px solid var(--line); padding-top: 20px; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 4px 16px; }
dt { color: var(--soft); }
dd, figure { margin: 0; }
svg { font: 12px system-ui, sans-serif; }
svg text { fill: var(--ink); }
.chart { display: block; }
.chart, .here { overflow: visible; }
.square { aspect-ratio: 1; }
.scroll { overflow-x: auto; }
.scroll > svg { display: block; }
.grid { stroke: var(--line); stroke-width: 1; }
.limit { stroke: #d55e00; stroke-width: 2; stroke-dasharray: 5 4; }
.interval { stroke: var(--accent); stroke-width: 6; stroke-linecap: round; opacity: 0.5; }
.dot, .marked { fill: var(--accent); }
.point { fill: none; stroke: var(--soft); stroke-width: 1.5; }
.own { fill: #d55e00; stroke: var(--ink); stroke-width: 1.5; }
.name { font-weight: 600; stroke: var(--paper); stroke-width: 4; paint-order: stroke; }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: 4px 16px; padding: 0; }
.legend i { display: inline-block; width: 12px; height: 12px; margin-right: 6px; border-radius: 2px; }
.legend i.round, .legend i.marked, .legend i.point { border-radius: 50%; }
.legend i.marked { background: var(--accent); }
.legend i.point { border: 1.5px solid var(--soft); box-sizing: border-box; }
.legend i.own { width: 10px; height: 10px; background: #d55e00; transform: rotate(45deg); }
table { border-collapse: collapse; width: 100%; font-size: 13px; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: 4px 10px 4px 0; border-bottom: 1px solid var(--line); white-space: nowrap; }
th.number, td.number { text-align: right; }
td.wraps { white-space: normal; min-width: 260px; overflow-wrap: break-word; }
th { color: var(--soft); font-weight: 500; }
@media (max-width: 600px) {
  main { padding: 12px 16px 40px; }
  h1 { font-size: 30px; }
  dl { grid-template-columns: 1fr; gap: 0; }
  dd { margin-bottom: 8px; }
  .minor { display: none; }
  td:first-child, th:first-child { position: sticky; left: 0; background: var(--paper); }
  table { width: max-content; min-width: 100%; }
  td:first-child { max-width: 45vw; white-space: normal; overflow-wrap: break-word; }
  td.wraps { min-width: 0; max-width: 65vw; }
}
@media print { .scroll { overflow: visible; } .scroll > svg { width: 100%; height: auto; } }
"""
