# SPDX-License-Identifier: GPL-2.0-only
"""The style of a report: light and dark as the reader's system is, one column on a narrow screen.

Line patterns and shapes repeat what colours say. On paper the page is light, and nothing is hidden
behind a scroll bar.
"""

from __future__ import annotations

STYLE = """\
:root { color-scheme: light dark;
  --back: #f6f7f9; --card: #fff; --text: #1c2128; --quiet: #57606a; --rule: #d5dae0;
  --ok: #1a7f37; --dead: #b42318; --loss: #b25000; --slow: #7a3fc9; --unseen: #656d76;
  --ground: #cfe8d5; --tx: #0b62c4; --rx: #9a5b00; }
@media screen and (prefers-color-scheme: dark) { :root {
  --back: #0f1318; --card: #181d24; --text: #e4e9ef; --quiet: #9aa4af; --rule: #323a44;
  --ok: #4fc26b; --dead: #ff7b72; --loss: #ffa657; --slow: #c9a4ff; --unseen: #99a3ad;
  --ground: #1f3d2a; --tx: #6cb2ff; --rx: #f0c05a; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 20px 24px 40px; max-width: 1480px; background: var(--back);
  color: var(--text); font: 14px/1.45 system-ui, "Segoe UI", "DejaVu Sans", sans-serif;
  overflow-wrap: anywhere; }
h1 { font-size: 26px; line-height: 1.25; margin: 0; }
h1 .badge { font-size: 20px; margin-left: 6px; }
h2 { font-size: 18px; margin: 34px 0 8px; padding-top: 10px; border-top: 1px solid var(--rule); }
h3 { font-size: 14px; margin: 0 0 4px; }
h3 .badge { font-weight: 600; margin-left: 6px; }
p { margin: 4px 0 10px; max-width: 110ch; }
ul { margin: 6px 0; padding-left: 20px; }
code { font: 12px/1.4 ui-monospace, "DejaVu Sans Mono", monospace; }
.quiet, footer { color: var(--quiet); }
footer { margin-top: 40px; border-top: 1px solid var(--rule); padding-top: 10px; }
.hidden { position: absolute; }
nav { display: flex; flex-wrap: wrap; gap: 4px 16px; margin: 18px 0 0; }
nav a { color: var(--tx); text-decoration: none; }
nav a:hover, nav a:focus { text-decoration: underline; }
.badge { white-space: nowrap; }
li > .badge, p > .badge { white-space: normal; }
.badge > .icon { width: 0.85em; height: 0.85em; vertical-align: -0.06em; }
.icon { fill: currentColor; }
.icon .stroke, .stroke { fill: none; stroke: currentColor; stroke-width: 2.2; }
.dotted { stroke-dasharray: 2 1.6; }
.ok { color: var(--ok); } .dead { color: var(--dead); } .loss { color: var(--loss); }
.slow { color: var(--slow); } .unseen { color: var(--unseen); }
.reasons { list-style: none; padding: 0; margin: 12px 0; }
.reasons li { background: var(--card); border: 1px solid var(--rule); padding: 7px 12px;
  border-left: 5px solid var(--dead); border-radius: 4px; margin: 5px 0; }
.cards { display: grid; grid-template-columns: repeat(auto-fill, minmax(148px, 1fr)); gap: 10px;
  margin: 16px 0 0; }
.cards div { background: var(--card); border: 1px solid var(--rule); border-radius: 8px;
  padding: 9px 13px; }
.cards dt { color: var(--quiet); font-size: 12px; }
.cards dd { margin: 2px 0 0; font-size: 18px; font-weight: 600; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 18px; color: var(--quiet); }
.legend .badge:not(.ok):not(.dead):not(.loss):not(.slow):not(.unseen) { color: var(--text); }
.panels { display: grid; gap: 14px;
  grid-template-columns: repeat(auto-fill, minmax(min(100%, 290px), 1fr)); }
.panels.wide { grid-template-columns: repeat(auto-fill, minmax(min(100%, 380px), 1fr)); }
.panel { background: var(--card); border: 1px solid var(--rule); border-radius: 8px;
  padding: 12px 14px; min-width: 0; break-inside: avoid; }
.panel p { margin: 2px 0 6px; font-size: 12.5px; }
.plain { list-style: none; padding: 0; font-size: 13px; }
.faults { list-style: none; padding: 0; display: grid; gap: 10px; align-items: start;
  grid-template-columns: repeat(auto-fill, minmax(min(100%, 430px), 1fr)); }
.faults > li { background: var(--card); border: 1px solid var(--rule); border-radius: 8px;
  padding: 9px 13px; min-width: 0; break-inside: avoid; }
.faults > li > .badge { font-weight: 600; }
.faults ul { font-size: 13px; color: var(--quiet); }
.scroll { overflow-x: auto; }
main > section > .scroll { background: var(--card); border: 1px solid var(--rule);
  border-radius: 8px; margin: 8px 0; }
main > section > .scroll > svg { margin: 12px; }
table { border-collapse: collapse; width: 100%; font-size: 13px; font-variant-numeric: tabular-nums;
  overflow-wrap: normal; }
th, td { text-align: left; padding: 5px 11px; vertical-align: top; }
th { color: var(--quiet); font-weight: 600; white-space: nowrap;
  border-bottom: 1px solid var(--rule); }
tbody tr + tr td { border-top: 1px solid var(--rule); }
td { max-width: 46ch; overflow-wrap: break-word; }
td.long { min-width: 22ch; }
.figure { text-align: right; white-space: nowrap; }
.stack { display: grid; gap: 1px; }
.facts { columns: 3 330px; column-gap: 28px; margin: 6px 0 16px; font-size: 13px; }
.facts div { display: flex; gap: 10px; break-inside: avoid; padding: 2px 0; }
.facts dt { color: var(--quiet); flex: 0 0 52%; }
.facts dd { margin: 0; min-width: 0; }
svg { display: inline-block; }
.map, .chart { display: block; width: 100%; height: auto; }
svg text { font-size: 11px; fill: var(--text); font-family: inherit; }
svg.matrix text { fill: var(--quiet); }
.middle { text-anchor: middle; }
.line { fill: none; stroke: currentColor; stroke-width: 1.6; }
.line.ok { stroke: var(--ok); stroke-opacity: .55; }
.line.dead { stroke-width: 2.6; stroke-dasharray: 3 5; }
.line.loss { stroke-width: 2.6; stroke-dasharray: 9 3; }
.line.slow { stroke-width: 2.6; stroke-dasharray: 9 3 2 3; }
.line.unseen { stroke-dasharray: 1.5 3.5; }
.node rect { fill: var(--card); stroke: currentColor; stroke-width: 1.4; }
.node.dead rect, .node.loss rect, .node.slow rect { stroke-width: 2.6; }
.node.dead rect { stroke-dasharray: 4 3; }
.node.host { color: var(--quiet); }
.node.own rect { stroke: var(--text); stroke-width: 2.4; }
.node.own text { font-weight: 700; }
svg text.note { fill: currentColor; font-weight: 700; paint-order: stroke; stroke: var(--card);
  stroke-width: 4px; stroke-linejoin: round; }
.ground { fill: var(--ground); }
.rule { fill: none; stroke: var(--card); stroke-width: 1; }
.cell { fill: currentColor; }
.hole { fill: var(--card); }
.cell.unseen { opacity: .45; }
.ring { fill: none; stroke: currentColor; stroke-width: 5; }
.sample { width: 28px; height: 12px; vertical-align: -1px; }
.curve { fill: none; stroke-width: 2; stroke-linejoin: round; }
.curve.tx { stroke: var(--tx); }
.curve.rx { stroke: var(--rx); stroke-dasharray: 6 3; }
.curve.lost { stroke: var(--dead); }
.grid { stroke: var(--rule); stroke-width: 1; stroke-dasharray: 2 3; }
.grid.base { stroke-dasharray: none; }
svg text.axis { font-size: 10px; fill: var(--quiet); }
.end { text-anchor: end; }
@media (max-width: 640px) { body { padding: 14px 12px 30px; } h1 { font-size: 22px; }
  .cards { grid-template-columns: repeat(auto-fill, minmax(128px, 1fr)); }
  .cards dd { font-size: 16px; } }
@media print { body { padding: 0; max-width: none; background: none; font-size: 11px; }
  nav { display: none; } .scroll { overflow: visible; } table { font-size: 8px; }
  code { font-size: 7px; } .panel p, .plain, .faults ul, .facts { font-size: 10.5px; }
  th, td { padding: 2px 4px; } th { white-space: normal; } .figure { white-space: normal; }
  h2 { break-after: avoid; } tr { break-inside: avoid; } thead { display: table-header-group; }
  .panels { grid-template-columns: 1fr 1fr; } .map { min-width: 0 !important; } }
"""
