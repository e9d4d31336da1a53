"""The report's style sheet: one column on a phone, charts side by side on a laptop, light and dark.

Series colours are Okabe and Ito's (jfly.uni-koeln.de/color, 2008), which people
with the common colour-vision deficiencies tell apart; darkened or lightened
where text or thin lines need contrast. Nothing is said by colour alone.
"""

from __future__ import annotations

__all__ = ["STYLE"]

STYLE = """
:root{color-scheme:light dark;--bg:#f6f7f9;--card:#fff;--ink:#1b1f24;--dim:#59636e;--rule:#dfe3e8;--track:#e9ecf0;
--c1:#0067a3;--c2:#b56a00;--c3:#00805d;--c4:#c14a00;--c5:#59636e;--c6:#a8497f;
--add:#e3f6ea;--add2:#a6e2bd;--del:#fdecea;--del2:#f5b8b0;--warn:#fff4d6;--warnink:#6b4a00;--bad:#b3261e}
@media(prefers-color-scheme:dark){:root{--bg:#101317;--card:#181c21;--ink:#e7eaee;--dim:#9aa5b1;--rule:#2c333b;
--track:#272e36;--c1:#5db3e8;--c2:#eda73c;--c3:#3cc59d;--c4:#f0804a;--c5:#9aa5b1;--c6:#df92c0;
--add:#12301f;--add2:#1f6a3d;--del:#391a17;--del2:#7d2f27;--warn:#33290f;--warnink:#f1d48a;--bad:#ff8a80}}
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%;scroll-behavior:smooth}
body{margin:0;background:var(--bg);color:var(--ink);font:16px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,
"DejaVu Sans",sans-serif;overflow-wrap:anywhere}
main,header.top{max-width:1080px;margin:0 auto;padding:0 16px}
header.top{padding-top:28px}
h1{font-size:1.25rem;font-weight:600;margin:0 0 4px}
h2{font-size:1.15rem;margin:0 0 4px;scroll-margin-top:12px}
h3{font-size:.95rem;margin:18px 0 6px}
p{margin:6px 0;max-width:75ch}
a{color:var(--c1)}
.dim,.note{color:var(--dim)}
.note{font-size:.875rem}
section{background:var(--card);border:1px solid var(--rule);border-radius:12px;padding:18px 20px;margin:16px 0}
nav{display:flex;flex-wrap:wrap;gap:4px 16px;font-size:.875rem;margin:14px 0}
.badge{display:inline-block;border-radius:99px;padding:1px 10px;font-size:.8rem;font-weight:600;margin:0 6px 4px 0;
background:var(--track);color:var(--ink)}
.badge.warn{background:var(--warn);color:var(--warnink)}
.badge.bad{background:var(--del);color:var(--bad)}
.alert{background:var(--warn);color:var(--warnink);border-radius:8px;padding:10px 14px;margin:12px 0}
.alert ul{margin:0;padding-left:18px}
.hero{display:grid;gap:8px 32px;grid-template-columns:repeat(auto-fit,minmax(min(100%,300px),1fr));align-items:center}
.big{font-size:clamp(1.9rem,6vw,2.8rem);font-weight:700;letter-spacing:-.02em;line-height:1.15;margin:0;
font-variant-numeric:tabular-nums}
.big .arrow{color:var(--dim);font-weight:400}
.lead{font-size:1.05rem}
dl.facts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(46%,140px),1fr));gap:12px 18px;margin:14px 0 2px}
dl.facts div{border-top:2px solid var(--rule);padding-top:6px}
dt{font-size:.8rem;color:var(--dim)}
dd{margin:0;font-weight:600;font-size:1.1rem;font-variant-numeric:tabular-nums}
dd small{display:block;font-weight:400;font-size:.8rem;color:var(--dim)}
.grid2{display:grid;gap:12px 28px;grid-template-columns:repeat(auto-fit,minmax(min(100%,400px),1fr));align-items:start}
figure{margin:8px 0;min-width:0;max-width:560px}
figcaption{font-weight:600;font-size:.9rem;margin-bottom:2px}
svg.chart{display:block;width:100%;height:auto;font:12px system-ui,"DejaVu Sans",sans-serif;overflow:visible}
.tick{fill:var(--dim)}.label{fill:var(--dim);font-size:12px}.value{fill:var(--ink);font-weight:600}
.inbox{fill:var(--ink);font-size:11.5px}.inbox.bad{fill:var(--bad);font-weight:700}
.thin{stroke:var(--rule);stroke-width:1.5}line.grid{stroke:var(--rule)}.axis{stroke:var(--dim)}.link{fill:none;stroke:var(--rule);stroke-width:1.5}
.line{fill:none;stroke-width:2.2;stroke-linejoin:round}.dashed{stroke-dasharray:5 4;stroke-width:1.6}
.interval{stroke:var(--c3);stroke-width:3;stroke-linecap:round}
.dot{stroke:var(--card);stroke-width:1.5}.dot.hollow{fill:var(--card);stroke-width:2}
.box{fill:var(--track);stroke:var(--rule)}.box.failed{fill:var(--del);stroke:var(--bad)}
.soft{fill-opacity:.4}
.f1{fill:var(--c1)}.f2{fill:var(--c2)}.f3{fill:var(--c3)}.f4{fill:var(--c4)}.f5{fill:var(--c5)}.f6{fill:var(--c6)}
.s1{stroke:var(--c1)}.s2{stroke:var(--c2)}.s3{stroke:var(--c3)}.s4{stroke:var(--c4)}.s5{stroke:var(--c5)}
.s6{stroke:var(--c6)}
ul.legend{list-style:none;display:flex;flex-wrap:wrap;gap:2px 16px;margin:4px 0 0;padding:0;font-size:.82rem;
color:var(--dim)}
.swatch{display:inline-block;width:11px;height:11px;border-radius:3px;margin-right:6px}
.swatch.f1{background:var(--c1)}.swatch.f2{background:var(--c2)}.swatch.f3{background:var(--c3)}
.swatch.f4{background:var(--c4)}.swatch.f5{background:var(--c5)}.swatch.f6{background:var(--c6)}
.scroll{overflow-x:auto;margin:8px 0;max-width:100%}
table{border-collapse:collapse;font-size:.875rem;font-variant-numeric:tabular-nums;min-width:100%}
th,td{text-align:left;padding:5px 12px 5px 0;border-bottom:1px solid var(--rule);vertical-align:top;
overflow-wrap:break-word;max-width:46ch}
th{font-weight:600;color:var(--dim);white-space:nowrap}
td.n,th.n{text-align:right;white-space:nowrap}
.grid2 table{min-width:0;width:100%}h3 .note{font-weight:400}
td.w{min-width:16ch}
tr.best td{font-weight:600}
tfoot td{font-weight:600;border-bottom:0}
code,pre,.diff,.mono{
font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;font-size:.82rem}
pre,.diff{background:var(--bg);border:1px solid var(--rule);border-radius:8px;margin:6px 0;overflow:auto;
max-height:32rem;white-space:pre-wrap;contain:paint;line-height:1.5}
pre{padding:10px 12px;max-height:18rem}
.diff div{padding:0 12px 0 28px;text-indent:-16px;min-height:1.5em}
.diff div::before{content:"  ";display:inline-block;width:16px;text-indent:0;color:var(--dim)}
.diff .add{background:var(--add)}.diff .add::before{content:"+"}
.diff .del{background:var(--del)}.diff .del::before{content:"−"}
.diff .gap{color:var(--dim);font-style:italic}
.diff ins,.diff del{text-decoration:none;border-radius:3px}
.diff ins{background:var(--add2)}.diff del{background:var(--del2)}
details{border-top:1px solid var(--rule);padding:8px 0}
details details{border:0;padding:3px 0 3px 14px}
summary{cursor:pointer;font-weight:600;font-size:.92rem}
summary .dim{font-weight:400}
details ol,details ul{margin:4px 0 4px;padding-left:26px;font-size:.9rem}
.rollout{border-top:1px solid var(--rule);padding:10px 0}
.rollout .what{display:grid;gap:2px 20px;grid-template-columns:repeat(auto-fit,minmax(min(100%,300px),1fr))}
.rollout pre{max-height:11rem}
footer{max-width:1080px;margin:0 auto;padding:4px 16px 40px;color:var(--dim);font-size:.82rem}
@media(max-width:600px){section{padding:14px 14px;border-radius:10px}main,header.top{padding:0 10px}
header.top{padding-top:18px}body{font-size:15px}svg.chart,.label{font-size:14px}.inbox{font-size:13px}}
@media print{section{break-inside:avoid;border:0}nav{display:none}.diff,pre{max-height:none}}
"""
