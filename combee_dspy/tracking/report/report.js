// The charts, the table of rollouts, and what keys and filters do. Charts use Observable Plot.
(() => {
  const d = JSON.parse(document.getElementById("data").textContent);
  const at = (id) => document.getElementById(id);
  // Okabe and Ito's colours, told apart by everyone, with one meaning each; in grey by how dark
  // they are.
  const good = "#00805c", bad = "#ffab66", orange = "#e69f00", blue = "#0072b2", grey = "#999999";
  const kinds = {
    "task: learning": "#00507d",
    "task: checking": "#56b4e9",
    "task: held-out": "#c4c4c4",
    reflector: "#f0e442",
    proposer: "#b8629a",
    evaluator: "var(--ink)",
    serving: blue,
    failed: bad,
  };
  const number = new Intl.NumberFormat("en");
  const score = (value) => {
    if (value == null) return "";
    return d.percent ? `${+(100 * value).toFixed(1)} %` : value.toPrecision(4);
  };
  const distinct = (rows, key) => [...new Set(rows.map((row) => row[key]))];
  const faint = {stroke: "currentColor", strokeOpacity: 0.25};
  const dots = {fill: blue, r: 4, tip: true};

  function kindColors(names) {
    const domain = Object.keys(kinds).filter((name) => names.includes(name));
    return {domain, range: domain.map((name) => kinds[name]), legend: true};
  }

  function put(id, options) {
    const place = at(id);
    const chart = Plot.plot({width: Math.max(300, place.clientWidth), ...options});
    place.replaceChildren(chart);
    for (const svg of place.querySelectorAll("svg[aria-label]")) svg.setAttribute("role", "img");
    return chart;
  }

  function search() {
    const x = at("axis").value;
    const scored = d.candidates.filter((row) => row.score != null).sort((a, b) => a[x] - b[x]);
    const byId = new Map(scored.map((row) => [row.id, row]));
    const links = scored.flatMap((row) => row.parents.map((id) => [byId.get(id), row]));
    let top = -Infinity;
    const best = scored.map((row) => ({x: row[x], y: (top = Math.max(top, row.score))}));
    const channels = {
      candidate: (row) => `${row.index} · ${row.id}`,
      update: (row) => (row.step < 0 ? "as given" : String(row.step)),
      fate: "fate",
    };
    put("search", {
      height: 320,
      ariaLabel: `validation score of each candidate over ${x}`,
      x: {label: x, tickFormat: "~s", nice: true, zero: true},
      y: {
        label: "validation", grid: true, nice: true, zero: true,
        ...(d.percent && {domain: [0, 1]}),
        tickFormat: d.percent ? ".0%" : "~g",
      },
      symbol: {domain: distinct(scored, "operator"), legend: true},
      r: {type: "identity"},
      marks: [
        Plot.link(links, {
          x1: ([parent]) => parent[x], y1: ([parent]) => parent.score,
          x2: ([, child]) => child[x], y2: ([, child]) => child.score, ...faint,
        }),
        Plot.line(best, {x: "x", y: "y", curve: "step-after", stroke: orange, strokeWidth: 2}),
        Plot.dot(scored, {
          x, y: "score", symbol: "operator", stroke: "var(--card)", tip: true, channels,
          fill: (row) => (row.chosen ? orange : blue), r: (row) => (row.chosen ? 9 : 5),
        }),
      ],
    });
  }

  function grid() {
    const {names} = d.grid;
    const cells = d.grid.cells.map(([question, candidate, score]) => ({question, candidate, score}));
    const low = cells.reduce((least, cell) => Math.min(least, cell.score), 0);
    const high = cells.reduce((most, cell) => Math.max(most, cell.score), low + 1e-9);
    const step = Math.max(6, Math.min(20, 400 / names.length)), phone = innerWidth < 600;
    const questions = distinct(cells, "question").sort((a, b) => a - b);
    const label = (name) => (phone ? name.split(" ")[0] : name);
    put("grid", {
      height: 40 + names.length * step,
      marginLeft: phone ? 24 : 100,
      ariaLabel: "score of each candidate on each question of validation",
      x: {axis: null, domain: questions},
      y: {
        label: null, domain: names,
        tickFormat: (name, i) => (i % Math.ceil(12 / step) ? "" : label(name)),
      },
      color: {type: "linear", domain: [low, high], range: [bad, good]},
      marks: [Plot.cell(cells, {
        x: "question", y: "candidate", fill: "score", tip: true,
        inset: questions.length > (phone ? 60 : 150) ? 0 : 0.5,
      })],
    });
  }

  function scan() {
    const {nodes, lessons} = d.scans[Number(at("scan-pick").value)];
    const states = ["kept", "lost here", "lost on the way", "not in the result", "not measurable"];
    const fade = `color-mix(in srgb, ${bad} 40%, var(--card))`;
    const shades = [good, bad, fade, "var(--line)", grey];
    const cells = nodes.flatMap((node) => node.cells.map(
      ([reflection, state]) => ({node: node.name, reflection, state: states[state]})));
    const used = states.filter((state) => cells.some((cell) => cell.state === state));
    const reflections = distinct(cells, "reflection").sort((a, b) => a - b);
    const lost = cells.filter((cell) => cell.state === "lost here");
    const chart = put("scan", {
      height: 50 + nodes.length * 24,
      marginLeft: 70,
      ariaLabel: "which call kept or lost which reflection",
      x: {axis: null, domain: reflections},
      y: {label: null, domain: nodes.map((node) => node.name)},
      color: {domain: used, range: used.map((state) => shades[states.indexOf(state)]), legend: true},
      marks: [
        Plot.cell(cells, {
          x: "reflection", y: "node", fill: "state", rx: 2, tip: true,
          inset: reflections.length > 120 ? 0 : 0.7,
        }),
        Plot.text(lost, {x: "reflection", y: "node", text: () => "×", fill: "#000"}),
      ],
    });
    const pick = at("node-pick"), calls = [{name: "all calls", lessons}, ...nodes];
    const show = () => {
      const items = calls[pick.value].lessons.map((text) => {
        return Object.assign(document.createElement("li"), {textContent: text});
      });
      at("lessons").replaceChildren(...items);
    };
    const options = calls.map((node, i) => new Option(`${node.name}: ${node.lessons.length} lessons`, i));
    pick.replaceChildren(...options);
    pick.oninput = show;
    show();
    chart.addEventListener("click", () => {
      const cell = chart.value ?? chart.querySelector("svg")?.value;
      if (!cell) return;
      pick.value = calls.findIndex((node) => node.name === cell.node);
      show();
    });
  }

  function time() {
    const bars = Object.entries(d.work).flatMap(([what, rows]) => rows.map(
      ([start, seconds, update]) => ({what, start, seconds, update})));
    const lanes = [];  // when each slot is free
    for (const bar of bars.sort((a, b) => a.start - b.start)) {
      const free = lanes.findIndex((end) => end <= bar.start + 1e-3);
      bar.slot = free < 0 ? lanes.length : free;
      lanes[bar.slot] = bar.start + bar.seconds;
    }
    const step = Math.max(2, Math.min(8, 400 / lanes.length));
    put("time", {
      height: 50 + lanes.length * step,
      ariaLabel: "when each rollout and call ran, and in which slot",
      x: {label: "seconds", zero: true},
      y: {axis: null, domain: [0, lanes.length]},
      color: kindColors(Object.keys(d.work)),
      marks: [
        Plot.rect(bars, {
          x1: "start", x2: (bar) => bar.start + bar.seconds, y1: "slot", y2: (bar) => bar.slot + 1,
          fill: "what", insetTop: step > 4 ? 1 : 0, tip: bars.length < 3000,
          channels: {update: (bar) => (bar.update < 0 ? "" : String(bar.update))},
        }),
        Plot.link(d.commits, {
          x1: (end) => end, x2: (end) => end, y1: 0, y2: lanes.length,
          ...faint, strokeOpacity: 0.5, strokeDasharray: "3 4",
        }),
      ],
    });
  }

  function cost() {
    const measure = at("measure").value, every = Math.ceil(d.updates_with_cost / 20);
    put("cost", {
      height: 240,
      marginLeft: 55,
      ariaLabel: `${measure} by role and update`,
      x: {
        label: "update", type: "band", domain: distinct(d.spent, "when"),
        tickFormat: (name, i) => (Number.isNaN(+name) || !(i % every) ? name : ""),
      },
      y: {label: measure, tickFormat: "~s", grid: true},
      color: kindColors(d.spent.map((bar) => bar.what)),
      marks: [
        Plot.barY(d.spent, {x: "when", y: measure, fill: "what", order: Object.keys(kinds), tip: true}),
        Plot.ruleY([0]),
      ],
    });
  }

  function sizes() {
    put("sizes", {
      height: 240,
      ariaLabel: "examples in each minibatch",
      x: {label: "update", tickFormat: "d", interval: 1, ticks: Math.min(10, d.batches.length)},
      y: {label: "examples", grid: true, zero: true},
      marks: [
        Plot.line(d.batches, {x: "step", y: "size", stroke: blue}),
        Plot.dot(d.batches, {x: "step", y: "size", ...dots}),
      ],
    });
  }

  function law() {
    const measured = d.delays.map((delay) => delay.size);
    const low = Math.min(...measured), high = Math.max(...measured, d.law.plateau);
    const curve = Array.from({length: 60}, (_, i) => {
      const size = low + ((high - low) * i) / 59;
      return {size, seconds: d.law.scale * size ** -d.law.exponent};
    });
    put("law", {
      height: 240,
      marginLeft: 50,
      ariaLabel: "seconds an epoch by size of the minibatch",
      x: {label: "examples", type: "log", tickFormat: "~s"},
      y: {label: "seconds an epoch", type: "log", grid: true, tickFormat: "~s"},
      marks: [
        Plot.line(curve, {x: "size", y: "seconds", stroke: orange, strokeWidth: 2}),
        Plot.dot(d.delays, {x: "size", y: "seconds", ...dots}),
      ],
    });
  }

  // A chart is drawn when it comes near the window.
  const charts = Object.entries({search, grid, scan, time, cost, sizes, law}).filter(([id]) => at(id));
  const near = new IntersectionObserver((entries) => {
    for (const {isIntersecting, target} of entries) {
      if (!isIntersecting) continue;
      near.unobserve(target);
      charts.find(([id]) => id === target.id)[1]();
    }
  }, {rootMargin: "600px"});
  const draw = () => charts.forEach(([id]) => near.observe(at(id)));

  // The table of rollouts. Texts stand in a list of their own, once each.
  const {columns, texts} = d.rolls, numbers = new Set(["id", "step", "score", "tokens", "seconds"]);
  const rolls = d.rolls.rows.map((row) => Object.fromEntries(
    columns.map((name, i) => [name, numbers.has(name) ? row[i] : texts[row[i]]])));
  const labels = {
    id: "id", step: "update", purpose: "purpose", candidate: "candidate", score: "score",
    tokens: "tokens", seconds: "seconds", inputs: "inputs", prediction: "prediction",
  };
  const formats = {
    score,
    seconds: (value) => value.toFixed(2),
    tokens: (value) => number.format(value),
    step: (value) => (value < 0 ? "" : value),
    inputs: (value) => value.slice(0, 90),
    prediction: (value) => value.slice(0, 90),
  };
  const full = rolls.reduce((top, row) => Math.max(top, row.score), -Infinity), batch = 100;
  let rows = [], drawn = 0, direction = 1;

  function rollouts() {
    const wanted = at("find").value.toLowerCase(), why = at("why").value, label = at("order").value;
    const key = Object.keys(labels).find((name) => labels[name] === label);
    const keep = {
      "": () => true,
      low: (row) => row.score < full,
      full: (row) => row.score >= full,
      error: (row) => row.error,
    }[at("how").value];
    const searched = (row) => (row.all ??= [
      row.inputs, row.prediction, row.feedback, row.error, row.candidate].join("\n").toLowerCase());
    rows = rolls.filter((row) => (!why || row.purpose === why) && keep(row)
      && (!wanted || searched(row).includes(wanted)));
    rows.sort((a, b) => (a[key] > b[key] ? direction : a[key] < b[key] ? -direction : a.id - b.id));
    at("count").textContent = `${number.format(rows.length)} of ${number.format(rolls.length)}`;
    at("turn").textContent = direction > 0 ? "↑" : "↓";
    const order = direction > 0 ? "ascending" : "descending";
    for (const head of at("rolls").tHead.rows[0].cells) {
      head.ariaSort = head.textContent === label ? order : null;
    }
    at("rolls").tBodies[0].replaceChildren();
    drawn = 0;
    more();
  }

  // A few rows at a time, as somebody scrolls: a table of all of them is slow.
  function more() {
    at("rolls").tBodies[0].append(...rows.slice(drawn, (drawn += batch)).map(tableRow));
  }

  function tableRow(row) {
    const line = document.createElement("tr");
    for (const [name, label] of Object.entries(labels)) {
      const cell = line.insertCell();
      cell.textContent = (formats[name] ?? String)(row[name]);
      cell.dataset.l = label;
      if (typeof row[name] === "number") cell.className = "n";
    }
    line.tabIndex = 0;
    line.onclick = () => unfold(line, row);
    line.onkeydown = (event) => { if (event.key === "Enter") line.onclick(); };
    return line;
  }

  function unfold(line, row) {
    if (line.nextSibling?.className === "more") return line.nextSibling.remove();
    const whole = document.createElement("tr"), cell = whole.insertCell();
    whole.className = "more";
    cell.colSpan = Object.keys(labels).length;
    const expected = row.expected && `expected: ${row.expected}`;
    const parts = [`effect/${row.id}`, row.inputs, expected, row.prediction, row.feedback, row.error];
    cell.textContent = parts.filter(Boolean).join("\n\n");
    line.after(whole);
  }

  function table() {
    const head = at("rolls").tHead.insertRow();
    for (const [name, label] of Object.entries(labels)) {
      const cell = head.appendChild(document.createElement("th"));
      cell.scope = "col";
      if (typeof rolls[0][name] === "number") cell.className = "n";
      if (!numbers.has(name)) { cell.textContent = label; continue; }
      const button = Object.assign(document.createElement("button"), {type: "button", textContent: label});
      cell.appendChild(button);
      button.onclick = () => {
        direction = at("order").value === label ? -direction : 1;
        at("order").value = label;
        rollouts();
      };
    }
    for (const why of distinct(rolls, "purpose")) at("why").add(new Option(why));
    for (const id of ["find", "why", "how", "order"]) at(id).addEventListener("input", rollouts);
    at("turn").onclick = () => { direction = -direction; rollouts(); };
    at("rows").onscroll = ({target}) => {
      const left = target.scrollHeight - target.scrollTop - target.clientHeight;
      if (left < 400 && drawn < rows.length) more();
    };
    rollouts();
  }

  if (rolls.length) table();

  // On a phone a row of a table is a card, whose values have the names of their columns.
  for (const {tHead, tBodies} of document.querySelectorAll("table:not(#rolls)")) {
    for (const {cells} of tBodies[0].rows) {
      [...cells].forEach((cell, i) => { cell.dataset.l = tHead.rows[0].cells[i].textContent; });
    }
  }

  for (const button of document.querySelectorAll(".copy")) button.onclick = async () => {
    const text = button.parentNode.nextElementSibling;
    text.select();
    try {
      await navigator.clipboard.writeText(text.value);
      button.textContent = "copied";
    } catch {
      button.textContent = "selected";
    }
  };

  // A select that leaves the rows of one class.
  for (const pick of document.querySelectorAll("[data-of]")) pick.addEventListener("input", () => {
    const place = at(pick.dataset.of);
    for (const row of place.tBodies?.[0].rows ?? place.children) {
      row.hidden = pick.value && !row.classList.contains(pick.value);
    }
  });

  // The squares by arrow keys, as a mouse reads their titles.
  const flips = document.querySelector(".flips");
  let place = -1;
  flips?.addEventListener("keydown", (event) => {
    const step = {ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1}[event.key];
    if (!step) return;
    event.preventDefault();
    place = (place + step + flips.children.length) % flips.children.length;
    const now = flips.children[place];
    for (const square of flips.children) square.toggleAttribute("data-now", square === now);
    at("square").textContent = `${now.className}: ${now.title}`;
  });

  at("axis")?.addEventListener("input", search);
  at("measure")?.addEventListener("input", cost);
  at("scan-pick")?.addEventListener("input", scan);
  let width = innerWidth;
  addEventListener("resize", () => {
    if (width === innerWidth) return;
    width = innerWidth;
    draw();
  });
  addEventListener("beforeprint", () => charts.forEach(([, chart]) => chart()));
  draw();
  document.body.dataset.ready = "yes";
})();
