(() => {
  const d = JSON.parse(document.getElementById("data").textContent);
  const at = (id) => document.getElementById(id);
  // Okabe and Ito's colours, told apart by everyone, with one meaning each; in grey by how dark they are.
  const good = "#00805c", bad = "#ffab66", orange = "#e69f00", blue = "#0072b2", grey = "#999999";
  const kinds = {"task: learning": "#00507d", "task: checking": "#56b4e9", "task: held-out": "#c4c4c4", reflector: "#f0e442", proposer: "#b8629a", evaluator: "var(--ink)", serving: blue, failed: bad};
  const kindsOf = (names) => { const domain = Object.keys(kinds).filter((name) => names.includes(name)); return {domain, range: domain.map((name) => kinds[name]), legend: true}; };
  const distinct = (rows, key) => [...new Set(rows.map((row) => row[key]))];
  const number = new Intl.NumberFormat("en");
  const score = (value) => (value == null ? "" : d.percent ? `${+(100 * value).toFixed(1)} %` : value.toPrecision(4));
  const scores = {label: "validation", grid: true, nice: true, zero: true, ...(d.percent && {domain: [0, 1]}), tickFormat: d.percent ? ".0%" : "~g"};
  const {columns, texts} = d.rolls, words = new Set(["purpose", "candidate", "example", "inputs", "expected", "prediction", "feedback", "error"]);
  const rolls = d.rolls.rows.map((row) => Object.fromEntries(columns.map((name, i) => [name, words.has(name) ? texts[row[i]] : row[i]])));

  function put(id, options) {
    const place = at(id), chart = Plot.plot({width: Math.max(300, place.clientWidth), ...options});
    place.replaceChildren(chart);
    for (const svg of place.querySelectorAll("svg[aria-label]")) svg.setAttribute("role", "img");
    return chart;
  }

  function search() {
    const x = at("axis").value;
    const dots = d.candidates.filter((one) => one.score != null).sort((a, b) => a[x] - b[x]);
    const known = new Map(dots.map((one) => [one.id, one]));
    const links = dots.flatMap((one) => one.parents.map((id) => [known.get(id), one]));
    let top = -Infinity;
    const best = dots.map((one) => ({x: one[x], y: (top = Math.max(top, one.score))}));
    put("search", {
      height: 320, ariaLabel: `validation score of each candidate over ${x}`,
      x: {label: x, tickFormat: "~s", nice: true, zero: true}, y: scores, symbol: {domain: distinct(dots, "operator"), legend: true}, r: {type: "identity"},
      marks: [
        Plot.link(links, {x1: (l) => l[0][x], y1: (l) => l[0].score, x2: (l) => l[1][x], y2: (l) => l[1].score, stroke: "currentColor", strokeOpacity: 0.25}),
        Plot.line(best, {x: "x", y: "y", curve: "step-after", stroke: orange, strokeWidth: 2}),
        Plot.dot(dots, {x, y: "score", symbol: "operator", fill: (one) => (one.chosen ? orange : blue), r: (one) => (one.chosen ? 9 : 5), stroke: "var(--card)", tip: true, channels: {candidate: (one) => `${one.index} · ${one.id}`, update: (one) => (one.step < 0 ? "as given" : String(one.step)), fate: "fate"}}),
      ],
    });
  }

  function grid() {
    const {names} = d.grid, cells = d.grid.cells.map(([question, candidate, score]) => ({question, candidate, score}));
    const low = cells.reduce((least, one) => Math.min(least, one.score), 0), high = cells.reduce((top, one) => Math.max(top, one.score), low + 1e-9);
    const step = Math.max(6, Math.min(20, 400 / names.length)), phone = innerWidth < 600;
    const questions = distinct(cells, "question").sort((a, b) => a - b);
    put("grid", {
      height: 40 + names.length * step, marginLeft: phone ? 24 : 100, ariaLabel: "score of each candidate on each question of validation",
      x: {axis: null, domain: questions}, y: {label: null, domain: names, tickFormat: (name, i) => (i % Math.ceil(12 / step) ? "" : phone ? name.split(" ")[0] : name)},
      color: {type: "linear", domain: [low, high], range: [bad, good]},
      marks: [Plot.cell(cells, {x: "question", y: "candidate", fill: "score", inset: questions.length > (phone ? 60 : 150) ? 0 : 0.5, tip: true})],
    });
  }

  function scan() {
    const one = d.scans[Number(at("scan-pick").value)];
    const states = ["kept", "lost here", "lost on the way", "not in the result", "not measurable"];
    const shades = [good, bad, `color-mix(in srgb, ${bad} 40%, var(--card))`, "var(--line)", grey];
    const cells = one.nodes.flatMap((node) => node.cells.map(([reflection, state]) => ({node: node.name, reflection, state: states[state]})));
    const used = states.filter((state) => cells.some((cell) => cell.state === state));
    const reflections = distinct(cells, "reflection").sort((a, b) => a - b);
    const chart = put("scan", {
      height: 50 + one.nodes.length * 24, marginLeft: 70, ariaLabel: "which call kept or lost which reflection",
      x: {axis: null, domain: reflections}, y: {label: null, domain: one.nodes.map((node) => node.name)},
      color: {domain: used, range: used.map((state) => shades[states.indexOf(state)]), legend: true},
      marks: [
        Plot.cell(cells, {x: "reflection", y: "node", fill: "state", inset: reflections.length > 120 ? 0 : 0.7, rx: 2, tip: true}),
        Plot.text(cells.filter((cell) => cell.state === states[1]), {x: "reflection", y: "node", text: () => "×", fill: "#000"}),
      ],
    });
    const pick = at("node-pick"), calls = [{name: "all calls", lessons: one.lessons}, ...one.nodes];
    const show = () => at("lessons").replaceChildren(...calls[pick.value].lessons.map((text) => Object.assign(document.createElement("li"), {textContent: text})));
    pick.replaceChildren(...calls.map((node, i) => new Option(`${node.name}: ${node.lessons.length} lessons`, i)));
    pick.oninput = show;
    show();
    chart.addEventListener("click", () => {
      const value = chart.value ?? chart.querySelector("svg")?.value;
      if (!value) return;
      pick.value = calls.findIndex((node) => node.name === value.node);
      show();
    });
  }

  function time() {
    const lanes = [], bars = Object.entries(d.work).flatMap(([what, rows]) => rows.map(([start, seconds, update]) => ({what, start, seconds, update})));
    for (const one of bars.sort((a, b) => a.start - b.start)) {
      const free = lanes.findIndex((end) => end <= one.start + 1e-3);
      one.slot = free < 0 ? lanes.length : free;
      lanes[one.slot] = one.start + one.seconds;
    }
    const step = Math.max(2, Math.min(8, 400 / lanes.length));
    put("time", {
      height: 50 + lanes.length * step, ariaLabel: "when each rollout and call ran, and in which slot", x: {label: "seconds", zero: true}, y: {axis: null, domain: [0, lanes.length]}, color: kindsOf(Object.keys(d.work)),
      marks: [
        Plot.rect(bars, {x1: "start", x2: (one) => one.start + one.seconds, y1: "slot", y2: (one) => one.slot + 1, fill: "what", insetTop: step > 4 ? 1 : 0, tip: bars.length < 3000, channels: {update: (one) => (one.update < 0 ? "" : String(one.update))}}),
        Plot.link(d.commits, {x1: (end) => end, x2: (end) => end, y1: 0, y2: lanes.length, stroke: "currentColor", strokeOpacity: 0.5, strokeDasharray: "3 4"}),
      ],
    });
  }

  function costs() {
    const measure = at("measure").value;
    put("cost", {
      height: 240, marginLeft: 55, ariaLabel: `${measure} by role and update`,
      x: {label: "update", type: "band", domain: distinct(d.spent, "when"), tickFormat: (name, i) => (Number.isNaN(+name) || !(i % Math.ceil(d.updates_with_cost / 20)) ? name : "")}, y: {label: measure, tickFormat: "~s", grid: true}, color: kindsOf(d.spent.map((one) => one.what)),
      marks: [Plot.barY(d.spent, {x: "when", y: measure, fill: "what", order: Object.keys(kinds), tip: true}), Plot.ruleY([0])],
    });
  }

  const dots = {fill: blue, r: 4, tip: true};

  function sizes() {
    put("sizes", {
      height: 240, ariaLabel: "examples in each minibatch", x: {label: "update", tickFormat: "d", interval: 1, ticks: Math.min(10, d.batches.length)}, y: {label: "examples", grid: true, zero: true},
      marks: [Plot.line(d.batches, {x: "step", y: "size", stroke: blue}), Plot.dot(d.batches, {x: "step", y: "size", ...dots})],
    });
  }

  function law() {
    const sizes = d.delays.map((one) => one.size);
    const low = Math.min(...sizes), high = Math.max(...sizes, d.law.plateau);
    const curve = Array.from({length: 60}, (_, i) => low + ((high - low) * i) / 59).map((size) => ({size, seconds: d.law.scale * size ** -d.law.exponent}));
    put("law", {
      height: 240, marginLeft: 50, ariaLabel: "seconds an epoch by size of the minibatch", x: {label: "examples", type: "log", tickFormat: "~s"}, y: {label: "seconds an epoch", type: "log", grid: true, tickFormat: "~s"},
      marks: [Plot.line(curve, {x: "size", y: "seconds", stroke: orange, strokeWidth: 2}), Plot.dot(d.delays, {x: "size", y: "seconds", ...dots})],
    });
  }

  const shownColumns = [["id", "id"], ["step", "update"], ["purpose", "purpose"], ["candidate", "candidate"], ["score", "score"], ["tokens", "tokens"], ["seconds", "seconds"], ["inputs", "inputs"], ["prediction", "prediction"]];
  const shown = {score, seconds: (value) => value.toFixed(2), tokens: (value) => number.format(value), step: (value) => (value < 0 ? "" : value)};
  const long = new Set(["inputs", "prediction"]), batch = 100;
  const full = rolls.reduce((top, row) => Math.max(top, row.score), -Infinity);
  let rows = [], drawn = 0, direction = 1;

  function rollouts() {
    const wanted = at("find").value.toLowerCase(), why = at("why").value, how = at("how").value, label = at("order").value;
    const key = shownColumns.find((one) => one[1] === label)[0];
    const keep = {"": () => true, low: (r) => r.score < full, full: (r) => r.score >= full, error: (r) => r.error}[how];
    const said = (r) => (r.all ??= `${r.inputs}\n${r.prediction}\n${r.feedback}\n${r.error}\n${r.candidate}`.toLowerCase());
    rows = rolls.filter((r) => (!why || r.purpose === why) && keep(r) && (!wanted || said(r).includes(wanted)));
    rows.sort((a, b) => (a[key] > b[key] ? direction : a[key] < b[key] ? -direction : a.id - b.id));
    at("count").textContent = `${number.format(rows.length)} of ${number.format(rolls.length)}`;
    at("turn").textContent = direction > 0 ? "↑" : "↓";
    at("rolls").tHead.rows[0].childNodes.forEach((cell) => { cell.ariaSort = cell.textContent === label ? (direction > 0 ? "ascending" : "descending") : null; });
    at("rolls").tBodies[0].replaceChildren();
    drawn = 0;
    more();
  }

  // A few rows at a time, as somebody scrolls: a table of all of them is slow.
  function more() {
    at("rolls").tBodies[0].append(...rows.slice(drawn, (drawn += batch)).map(line));
  }

  function line(row) {
    const line = document.createElement("tr");
    for (const [name, label] of shownColumns) {
      const cell = line.insertCell(), value = row[name];
      cell.textContent = long.has(name) ? value.slice(0, 90) : (shown[name] ?? String)(value);
      cell.dataset.l = label;
      if (typeof value === "number") cell.className = "n";
    }
    line.tabIndex = 0;
    line.onclick = () => {
      if (line.nextSibling?.className === "more") return line.nextSibling.remove();
      const more = document.createElement("tr"), cell = more.insertCell();
      more.className = "more";
      cell.colSpan = shownColumns.length;
      cell.textContent = [`effect/${row.id}`, row.inputs, row.expected && `expected: ${row.expected}`, row.prediction, row.feedback, row.error].filter(Boolean).join("\n\n");
      line.after(more);
    };
    line.onkeydown = (event) => { if (event.key === "Enter") line.onclick(); };
    return line;
  }

  function table() {
    const head = at("rolls").tHead.insertRow();
    for (const [name, label] of shownColumns) {
      const cell = head.appendChild(document.createElement("th"));
      cell.scope = "col";
      if (typeof rolls[0][name] === "number") cell.className = "n";
      if (long.has(name) || name === "purpose" || name === "candidate") { cell.textContent = label; continue; }
      const button = cell.appendChild(Object.assign(document.createElement("button"), {type: "button", textContent: label}));
      button.onclick = () => { direction = at("order").value === label ? -direction : 1; at("order").value = label; rollouts(); };
    }
    for (const why of distinct(rolls, "purpose")) at("why").add(new Option(why));
    for (const id of ["find", "why", "how", "order"]) at(id).addEventListener("input", rollouts);
    at("turn").onclick = () => { direction = -direction; rollouts(); };
    at("rows").onscroll = ({target}) => { if (target.scrollTop + target.clientHeight > target.scrollHeight - 400 && drawn < rows.length) more(); };
    rollouts();
  }

  // On a phone a row of a table is a card, whose values say what they are.
  for (const one of document.querySelectorAll("table:not(#rolls)")) for (const row of one.tBodies[0].rows) [...row.cells].forEach((cell, i) => { cell.dataset.l = one.tHead.rows[0].cells[i].textContent; });
  for (const button of document.querySelectorAll(".copy")) button.onclick = async () => {
    const text = button.parentNode.nextElementSibling;
    text.select();
    try { await navigator.clipboard.writeText(text.value); button.textContent = "copied"; } catch { button.textContent = "selected"; }
  };
  const charts = Object.entries({search, grid, scan, time, cost: costs, sizes, law}).filter(([id]) => at(id));
  const seen = new IntersectionObserver((found) => found.forEach((one) => {
    if (!one.isIntersecting) return;
    seen.unobserve(one.target);
    charts.find(([id]) => id === one.target.id)[1]();
  }), {rootMargin: "600px"});
  const draw = () => charts.forEach(([id]) => seen.observe(at(id)));
  if (rolls.length) table();
  at("axis")?.addEventListener("input", search);
  at("measure")?.addEventListener("input", costs);
  at("scan-pick")?.addEventListener("input", scan);
  for (const pick of document.querySelectorAll("[data-of]")) pick.addEventListener("input", () => {
    const place = at(pick.dataset.of);
    for (const row of place.tBodies?.[0].rows ?? place.children) row.hidden = pick.value && !row.classList.contains(pick.value);
  });
  // The squares by arrow keys, as a mouse reads their titles.
  const flips = document.querySelector(".flips");
  let square = -1;
  flips?.addEventListener("keydown", (event) => {
    const step = {ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1}[event.key];
    if (!step) return;
    event.preventDefault();
    square = (square + step + flips.children.length) % flips.children.length;
    const now = flips.children[square];
    for (const one of flips.children) one.toggleAttribute("data-now", one === now);
    at("square").textContent = `${now.className}: ${now.title}`;
  });
  let width = innerWidth;
  addEventListener("resize", () => { if (width !== innerWidth) { width = innerWidth; draw(); } });
  addEventListener("beforeprint", () => charts.forEach(([, chart]) => chart()));
  draw();
  document.body.dataset.ready = "yes";
})();
