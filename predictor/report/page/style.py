"""The page's style sheet: light, dark and print."""

STYLE = """
:root { --ink: #1c1e21; --soft: #5c6370; --line: #d9dce1; --paper: #ffffff; --accent: #0072b2; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e8eb; --soft: #a3aab5; --line: #3a3f47; --paper: #17191c; --accent: #56b4e9; }
}
body { margin: 0; background: var(--paper); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 980px; margin: 0 auto; padding: 24px 20px 60px; }
h1 { font-size: 40px; margin: 8px 0; }
h1 small { display: block; font-size: 16px; font-weight: 400; color: var(--soft); }
h2 { font-size: 20px; margin: 36px 0 8px; border-top: 1px solid var(--line); padding-top: 20px; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 4px 16px; }
dt { color: var(--soft); }
dd { margin: 0; }
svg { width: 100%; height: auto; font: 12px system-ui, sans-serif; }
svg text { fill: var(--ink); }
.grid { stroke: var(--line); stroke-width: 1; }
.limit { stroke: #d55e00; stroke-width: 2; stroke-dasharray: 5 4; }
.interval { stroke: var(--accent); stroke-width: 6; stroke-linecap: round; opacity: 0.5; }
.dot, .marked { fill: var(--accent); }
.point { fill: none; stroke: var(--soft); stroke-width: 1.5; }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: 4px 16px; padding: 0; }
.legend i { display: inline-block; width: 12px; height: 12px; margin-right: 6px; border-radius: 2px; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 13px; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: 4px 10px 4px 0; border-bottom: 1px solid var(--line); white-space: nowrap; }
th { color: var(--soft); font-weight: 500; }
"""
