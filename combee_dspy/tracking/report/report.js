(() => {
  const d = JSON.parse(document.getElementById("data").textContent);
  const at = (id) => document.getElementById(id);
  // Okabe and Ito's colours: told apart by everyone.
  const colours = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8c8c8c", "#b8a900"];
  const scale = (names) => ({domain: names, range: names.map((_, i) => colours[i % colours.length]), legend: true});
  const distinct = (rows, key) => [...new Set(rows.map((row) => row[key]))];
  const number = new Intl.NumberFormat("en");
  const score = (value) => (value == null ? "" : d.percent ? `${(100 * value).toFixed(1)} %` : value.toPrecision(4));
  const scores = {label: "validation", grid: true, nice: true, tickFormat: d.percent ? ".0%" : "~g"};

  function put(id, options) {
    const place = at(id);
    if (!place) return null;
    const chart = Plot.plot({width: Math.max(300, place.clientWidth), ...options});
    place.replaceChildren(chart);
    return chart;
  }

  function search() {
    if (!at("search")) return;
    const x = at("axis").value;
    const dots = d.candidates.filter((one) => one.score != null).sort((a, b) => a[x] - b[x]);
    const known = new Map(dots.map((one) => [one.id, one]));
    const links = dots.flatMap((one) => one.parents.filter((id) => known.has(id)).map((id) => [known.get(id), one]));
    let top = -Infinity;
    const best = dots.map((one) => ({x: one[x], y: (top = Math.max(top, one.score))}));
    put("search", {
      height: 320, ariaLabel: `validation score of each candidate over ${x}`,
      x: {label: x, tickFormat: "~s", nice: true}, y: scores, color: scale(distinct(dots, "operator")),
      marks: [
        Plot.link(links, {x1: (l) => l[0][x], y1: (l) => l[0].score, x2: (l) => l[1][x], y2: (l) => l[1].score, stroke: "currentColor", strokeOpacity: 0.25}),
        Plot.line(best, {x: "x", y: "y", curve: "step-after", stroke: "#e69f00", strokeWidth: 2}),
        Plot.dot(dots, {x, y: "score", fill: "operator", r: (one) => (one.chosen ? 8 : 5), stroke: "currentColor", strokeWidth: (one) => (one.chosen ? 2 : 0), tip: true, channels: {candidate: (one) => `${one.index} · ${one.id}`, update: (one) => (one.step < 0 ? "as given" : String(one.step)), fate: "fate"}}),
      ],
    });
  }

  function scan() {
    if (!at("scan")) return;
    const one = d.scans[Number(at("scan-pick").value)];
    const states = ["kept", "lost here", "lost on the way", "not in the result", "not measurable"];
    const shades = ["#009e73", "#d55e00", "#e69f00", "#999999", "#56b4e9"];
    const cells = one.nodes.flatMap((node) => node.cells.map(([reflection, state]) => ({node: node.name, reflection, state: states[state]})));
    const used = states.filter((state) => cells.some((cell) => cell.state === state));
    const reflections = distinct(cells, "reflection").sort((a, b) => a - b);
    const chart = put("scan", {
      height: 50 + one.nodes.length * 24, marginLeft: 70, ariaLabel: "which call kept or lost which reflection",
      x: {axis: null, domain: reflections}, y: {label: null, domain: one.nodes.map((node) => node.name)},
      color: {domain: used, range: used.map((state) => shades[states.indexOf(state)]), legend: true},
      marks: [Plot.cell(cells, {x: "reflection", y: "node", fill: "state", inset: reflections.length > 120 ? 0 : 0.7, rx: 2, tip: true})],
    });
    const show = (node) => at("lessons").replaceChildren(...node.lessons.map((text) => Object.assign(document.createElement("li"), {textContent: text})));
    show({lessons: one.lessons});
    chart.addEventListener("click", () => {
      const value = chart.value ?? chart.querySelector("svg")?.value;
      const node = value && one.nodes.find((found) => found.name === value.node);
      if (node) show(node);
    });
  }

  function costs() {
    put("cost", {
      height: 240, marginLeft: 55, ariaLabel: "tokens by role and update",
      x: {label: "update", type: "band", domain: distinct(d.spent, "when")}, y: {label: "tokens", tickFormat: "~s", grid: true},
      color: scale(distinct(d.spent, "role")),
      marks: [Plot.barY(d.spent, {x: "when", y: "tokens", fill: "role", tip: true, channels: {calls: "calls"}}), Plot.ruleY([0])],
    });
  }

  function batches() {
    const dots = {fill: "#0072b2", r: 4, tip: true};
    put("sizes", {
      height: 240, ariaLabel: "examples in each minibatch", x: {label: "update", tickFormat: "d", ticks: Math.min(10, d.batches.length)}, y: {label: "examples", grid: true, zero: true},
      marks: [Plot.line(d.batches, {x: "step", y: "size", stroke: "#0072b2"}), Plot.dot(d.batches, {x: "step", y: "size", ...dots})],
    });
    if (!at("law")) return;
    const sizes = d.delays.map((one) => one.size);
    const low = Math.min(...sizes), high = Math.max(...sizes, d.law.plateau);
    const curve = Array.from({length: 60}, (_, i) => low + ((high - low) * i) / 59).map((size) => ({size, seconds: d.law.scale * size ** -d.law.exponent}));
    put("law", {
      height: 240, marginLeft: 50, ariaLabel: "seconds an epoch by size of the minibatch", x: {label: "examples"}, y: {label: "seconds an epoch", grid: true, zero: true},
      marks: [Plot.line(curve, {x: "size", y: "seconds", stroke: "#e69f00", strokeWidth: 2}), Plot.dot(d.delays, {x: "size", y: "seconds", ...dots})],
    });
  }

  const columns = [["id", "id"], ["step", "update"], ["purpose", "purpose"], ["candidate", "candidate"], ["score", "score"], ["tokens", "tokens"], ["seconds", "seconds"], ["inputs", "inputs"], ["prediction", "prediction"]];
  const shown = {score, seconds: (value) => value.toFixed(2), tokens: (value) => number.format(value), step: (value) => (value < 0 ? "" : value)};
  const texts = new Set(["inputs", "prediction"]);
  const full = d.rolls.reduce((top, row) => Math.max(top, row.score), -Infinity);
  let key = "id", direction = 1;

  function rollouts() {
    if (!at("rolls")) return;
    const wanted = at("find").value.toLowerCase(), why = at("why").value, how = at("how").value;
    const keep = {"": () => true, low: (r) => r.score < full, full: (r) => r.score >= full, error: (r) => r.error}[how];
    const rows = d.rolls.filter((r) => (!why || r.purpose === why) && keep(r) && (!wanted || `${r.inputs}\n${r.prediction}\n${r.feedback}\n${r.error}`.toLowerCase().includes(wanted)));
    rows.sort((a, b) => (a[key] > b[key] ? direction : a[key] < b[key] ? -direction : a.id - b.id));
    at("count").textContent = `${number.format(rows.length)} of ${number.format(d.rolls.length)}`;
    const head = document.createElement("tr");
    for (const [name, label] of columns) {
      const cell = head.appendChild(document.createElement("th")), button = document.createElement("button");
      cell.scope = "col";
      if (typeof rows[0]?.[name] === "number") cell.className = "n";
      if (name === key) cell.ariaSort = direction > 0 ? "ascending" : "descending";
      button.textContent = label + (name === key ? (direction > 0 ? " ↑" : " ↓") : "");
      button.onclick = () => { direction = name === key ? -direction : 1; key = name; rollouts(); };
      cell.append(button);
    }
    at("rolls").tHead.replaceChildren(head);
    const body = at("rolls").tBodies[0];
    body.replaceChildren(...rows.slice(0, 200).map((row) => {
      const line = document.createElement("tr");
      for (const [name] of columns) {
        const cell = line.insertCell(), value = row[name];
        cell.textContent = texts.has(name) ? value.slice(0, 90) : (shown[name] ?? String)(value);
        if (typeof value === "number") cell.className = "n";
      }
      line.tabIndex = 0;
      line.onclick = () => {
        if (line.nextSibling?.className === "more") return line.nextSibling.remove();
        const more = document.createElement("tr"), cell = more.insertCell();
        more.className = "more";
        cell.colSpan = columns.length;
        cell.textContent = [row.inputs, row.prediction, row.feedback, row.error].filter(Boolean).join("\n\n") || "Texts of the held-out set are not shown.";
        line.after(more);
      };
      line.onkeydown = (event) => { if (event.key === "Enter") line.onclick(); };
      return line;
    }));
    if (rows.length > 200) {
      const rest = body.insertRow(), cell = rest.insertCell();
      rest.className = "more";
      cell.colSpan = columns.length;
      cell.textContent = `${number.format(rows.length - 200)} more: search for what you want to see.`;
    }
  }

  const draw = () => { search(); scan(); costs(); batches(); };
  draw();
  if (at("rolls")) for (const why of distinct(d.rolls, "purpose")) at("why").add(new Option(why));
  rollouts();
  for (const id of ["find", "why", "how"]) at(id)?.addEventListener("input", rollouts);
  at("axis")?.addEventListener("input", search);
  at("scan-pick")?.addEventListener("input", scan);
  let width = innerWidth;
  addEventListener("resize", () => { if (width !== innerWidth) { width = innerWidth; draw(); } });
  document.body.dataset.ready = "yes";
})();
