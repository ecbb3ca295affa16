// All texts of the job are set by textContent, so that nothing in them is markup.
const byId = (id) => document.getElementById(id);
const given = JSON.parse(byId("data").textContent);  // of a report file all its data, of a server {"page": "job" or "jobs"}
const report = given?.state ? given : null;

// The token stays in this tab only: an address is seen by others, and a cookie would reach all ports of the host. sessionStorage is one
// port's own.
let token = "";
if (!report) {
  const address = new URL(location.href);
  token = address.searchParams.get("token") ?? "";
  try {
    if (token) sessionStorage.setItem("token", token);
    else token = sessionStorage.getItem("token") ?? "";
    if (address.searchParams.has("token")) {
      address.searchParams.delete("token");
      history.replaceState(null, "", address);
    }
  } catch { /* without storage the address keeps the token */ }
}
const ask = (target) => fetch(target, { headers: { Authorization: `Bearer ${token}` } });

const view = { state: null, history: newHistory(), lines: [], cursor: "", loaded: "", open: [], newestEnd: null };
// Times of the last day of a report, and of today, need no date.
function nowMs() {
  if (!report) return Date.now();
  const { state, history } = view;
  return state.status ? Date.parse(state.started) + 1000 * state.status.age_s : Date.parse(history.events.at(-1)?.time ?? state.started);
}

function make(name, text, attributes) {
  const element = document.createElement(name);
  if (text !== undefined && text !== null) element.textContent = text;
  for (const [key, value] of Object.entries(attributes || {})) if (key !== "class" || value !== "") element.setAttribute(key, value);
  return element;
}
function svg(name, attributes, text) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = text;
  return element;
}
// Most of the page is the same each second. What does not change must not be touched: it would cost time, and readers of screens.
function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}
const shown = new Map();
/// Calls `draw` if `key` has changed since the last call for `place`.
function redraw(place, key, draw) {
  const text = typeof key === "string" ? key : JSON.stringify(key);
  if (shown.get(place) === text) return;
  shown.set(place, text);
  draw();
}
function banner(id, title, text) {
  byId(id).hidden = text === "";
  redraw(id, text, () => byId(id).replaceChildren(make("b", title), ` ${text}`));
}

function showHead([kind, sign, word], name, sentence) {
  byId("head").className = kind;
  setText(byId("sign"), sign);
  setText(byId("word"), word);
  setText(byId("title"), name);
  setText(byId("sentence"), sentence);
  redraw("icon", [kind, sign, word, name], () => {
    document.title = `${sign} ${name} ${word}`;
    setText(byId("heard"), `${name} ${word}`);  // read out when the state changes, and not each second
    const colour = getComputedStyle(byId("head")).getPropertyValue("--state").trim();
    byId("icon").href = `data:image/svg+xml,${encodeURIComponent(`<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 32 32'><circle cx='16' cy='16' r='16' fill='${colour}'/>` +
      `<text x='16' y='23' font-size='20' text-anchor='middle' fill='white'>${sign}</text></svg>`)}`;
  });
}

function showBanners() {
  const { status, report: end } = view.state;
  const hang = view.history.events.findLast((event) => ["hang_found", "hang_over", "attempt_stopping", "attempt_started", "job_ended"].includes(event.event));
  let text = "";
  if (status?.hang) text = `${status.hang.text} (confidence: ${status.hang.confidence}; ${status.hang.witnesses.map((witness) => witness.source).filter((source, i, all) => all.indexOf(source) === i).join(", ")})`;
  else if (status && hang?.event === "hang_found") text = `No worker makes progress since ${clock(Date.parse(hang.time), nowMs())}. ${hang.reason ?? ""}`;
  else if (status?.state === "stalled") text = `No step for ${duration(status.step_age_s ?? 0)}, far longer than usual. ddplaunch stacks ${view.state.job} shows what each rank does.`;
  banner("stalled", "◆ Stalled.", text);
  banner("warnings", "Warning:", (status?.warnings ?? end?.warnings ?? []).join("\n"));
}

function addPairs(list, pairs) {
  for (const [name, value] of pairs)
    if (value !== null && value !== undefined && value !== "" && !(Array.isArray(value) && value.length === 0)) list.append(make("dt", name), make("dd", Array.isArray(value) ? value.join("\n") : value));
}
function failureBody(failure) {
  const body = document.createDocumentFragment();
  if (failure.hint) {
    const hint = make("p", undefined, { class: "hint" });
    hint.append(make("b", "What to do: "), failure.hint);
    body.append(hint);
  }
  const { exception } = failure, list = make("dl");
  addPairs(list, [["exception", exceptionText(exception)], ["at", exception?.frame],
    ["error", failure.error?.text && failure.error.text !== failure.text ? failure.error.text : null], ["out of memory", failure.out_of_memory], ["GPU driver (Xid)", failure.xid],
    ["waited for", failure.waited_for], ["ran", failure.ran_s === null || failure.ran_s === undefined ? null : duration(failure.ran_s)], ["all of stderr", failure.stderr_file]]);
  if (list.childElementCount > 0) body.append(list);
  if (failure.stderr_tail?.length > 0) body.append(make("h3", "Last lines on stderr"), make("pre", failure.stderr_tail.map(plain).join("\n"), { tabindex: 0, role: "region", "aria-label": "Last lines on stderr" }));
  if (exception?.traceback) {
    const more = make("details");
    more.append(make("summary", "Traceback"), make("pre", plain(exception.traceback)));
    body.append(more);
  }
  if (failure.rank !== null && failure.rank !== undefined && failure.attempt !== null) {
    const show = make("button", `Show the output of rank ${failure.rank}`, { type: "button", "data-rank": failure.rank, "data-attempt": failure.attempt });
    const controls = make("p", undefined, { class: "controls" });
    controls.append(show);
    body.append(controls);
  }
  return body;
}
// The card comes first while the job has a failure. A job that runs again has its last failure folded.
function showFailure() {
  const list = failures(view.state, view.history), end = view.state.report;
  byId("failure").hidden = list.length === 0;
  const recovered = view.state.exit_code === 0 || view.state.status?.state === "running" || view.state.status?.state === "stalled";
  for (const failure of list) if (!failure.stderr_tail && view.tails?.has(`${failure.attempt} ${failure.rank}`)) failure.stderr_tail = view.tails.get(`${failure.attempt} ${failure.rank}`);
  redraw("failure", [list, recovered, end?.exited_early], () => {
    const card = byId("failure");
    card.replaceChildren();
    card.className = recovered ? "card warn" : "card bad";
    if (list.length === 0) return;
    const [last, ...earlier] = list;
    card.append(make("h2", `${recovered ? "↻ Last failure" : "✕ Root cause"}: ${last.text}`, { id: "h-failure" }));
    const facts = [last.attempt === null || last.attempt === undefined ? "" : `attempt ${last.attempt}`, last.time ? clock(Date.parse(last.time), nowMs()) : "", recovered ? exceptionText(last.exception) : "", recovered ? view.state.exit_code === 0 ? "the job succeeded afterwards" : "the job runs again" : ""];
    card.append(make("p", facts.filter((fact) => fact).join(" · "), { class: "facts" }));
    let place = card;
    if (recovered) {
      place = make("details");
      place.append(make("summary", "Details"));
      card.append(place);
    }
    place.append(failureBody(last));
    const follow = consequences(end), early = end?.exited_early ?? [];
    if (early.length > 0) follow.push(`${plural(early.length, "rank")} exited 0 before: ${early.slice(0, 8).map((exit) => exit.rank).join(", ")}${early.length > 8 ? ", …" : ""}`);
    if (follow.length > 0) place.append(make("h3", "What followed"), make("p", follow.join("\n"), { class: "facts", style: "white-space: pre-line" }));
    if (earlier.length > 0) {
      const fold = make("details");
      fold.append(make("summary", plural(earlier.length, "earlier failed attempt")));
      for (const failure of earlier.slice(0, 50)) {
        fold.append(make("h3", `${failure.attempt === null ? "" : `attempt ${failure.attempt}: `}${failure.text}`), failureBody(failure));
      }
      if (earlier.length > 50) fold.append(make("p", `and ${earlier.length - 50} more`));
      card.append(fold);
    }
  });
}
// Of a job that runs, the page asks for the last lines of the rank that failed.
async function loadTails() {
  if (report || view.state.report) return;
  view.tails ??= new Map();
  for (const { attempt, rank } of failures(view.state, view.history).slice(0, 3)) {
    const key = `${attempt} ${rank}`;
    if (rank === null || rank === undefined || view.tails.has(key)) continue;
    view.tails.set(key, []);
    const reply = await ask(`lines?${new URLSearchParams({ attempt, rank })}`);
    if (reply.ok) view.tails.set(key, (await reply.json()).lines.filter((line) => line[4] === 2).slice(-20).map((line) => line[5]));
    showFailure();
  }
}

function showFigures() {
  const list = byId("figures"), wanted = figures(view.state, view.history, nowMs());
  redraw("figures", wanted.map(([name]) => name), () => list.replaceChildren(...wanted.map(([name]) => {
    const box = make("div");
    const value = make("dd");
    value.append(make("span"), make("small"));
    box.append(make("dt", name), value);
    return box;
  })));
  wanted.forEach(([, value, note], index) => {
    const box = list.children[index].lastElementChild;
    setText(box.firstElementChild, value);
    setText(box.lastElementChild, note);
  });
}

function showTimeline() {
  const { events } = view.history;
  byId("time-section").hidden = events.length === 0;
  if (events.length === 0) return;
  const begin = Date.parse(events[0].time), end = view.state.status ? nowMs() : Date.parse(events.at(-1).time);
  const bars = timeline(events, end), all = Math.max(1, end - begin);
  redraw("time", bars.map(({ from, kind }) => [from, kind]), () => byId("time").replaceChildren(...bars.map(({ kind }) => make("span", undefined, { class: kind }))));
  bars.forEach((bar, index) => {
    const span = byId("time").children[index];
    span.style.left = `${100 * (bar.from - begin) / all}%`;
    span.style.width = `${100 * (bar.to - bar.from) / all}%`;
    if (span.title !== bar.text) span.title = bar.text;
  });
  setText(byId("time-begin"), clock(begin, nowMs()));
  setText(byId("time-end"), `${clock(end, nowMs())}, after ${duration((end - begin) / 1000)}`);
}

/// Draws one value of the job over time.
class Plot {
  constructor(id, key, words, fromZero) {
    [this.id, this.key, this.words, this.fromZero, this.box, this.points, this.at] = [id, key, words, fromZero, byId(id), [], null];
    this.chart = svg("svg", { role: "img", tabindex: 0, "aria-labelledby": `h-${id} ${id}-words` });
    this.layer = svg("g", {});
    this.cursor = svg("line", { class: "cursor", visibility: "hidden" });
    this.chart.append(this.layer, this.cursor);
    this.tip = make("div", undefined, { class: "tip", hidden: "" });
    this.box.append(this.chart, this.tip);
    this.chart.addEventListener("pointermove", (event) => {
      const x = event.clientX - this.chart.getBoundingClientRect().left;
      this.point(this.nearest(x));
    });
    this.chart.addEventListener("pointerleave", () => this.point(null));
    this.chart.addEventListener("blur", () => this.point(null));
    this.chart.addEventListener("keydown", (event) => {
      const moves = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity };
      if (!(event.key in moves) || this.points.length === 0) return;
      event.preventDefault();
      this.point(Math.max(0, Math.min(this.points.length - 1, (this.at ?? this.points.length) + moves[event.key])));
    });
  }
  nearest(x) {
    let best = null;
    this.points.forEach((point, index) => { if (best === null || Math.abs(this.x(point.time) - x) < Math.abs(this.x(this.points[best].time) - x)) best = index; });
    return best;
  }
  point(at) {
    this.at = at;
    this.tip.hidden = at === null;
    this.cursor.setAttribute("visibility", at === null ? "hidden" : "visible");
    if (at === null) return;
    const { time, attempt, value } = this.points[at], x = this.x(time);
    this.tip.textContent = `${clock(time * 1000, nowMs())}, attempt ${attempt}\n${value === null ? "not known" : this.words(value)}`;
    this.tip.style.left = `${Math.min(x + 8, Math.max(0, this.width - this.tip.offsetWidth - 4))}px`;
    for (const [key, value] of Object.entries({ x1: x, x2: x, y1: this.top, y2: this.bottom })) this.cursor.setAttribute(key, value);
  }
  draw(points, marks) {
    const known = points.filter((point) => point.value !== null);
    const width = this.chart.clientWidth || 600, height = this.chart.clientHeight || 200;
    // A pixel shows one point, so that a long history costs no more than a short one.
    const every = Math.max(1, Math.ceil(points.length / width));
    this.points = every === 1 ? points : points.filter((point, index) => index % every === 0 || index === points.length - 1 || point.attempt !== points[index - 1].attempt || (point.value === null) !== (points[index - 1].value === null));
    let low = Infinity, high = -Infinity;
    for (const { value } of known) [low, high] = [Math.min(low, value), Math.max(high, value)];
    if (this.fromZero) low = Math.min(0, low);
    if (high - low < 1e-12 * Math.max(1, Math.abs(high))) [low, high] = [low - Math.abs(low || 1) / 2, high + Math.abs(high || 1) / 2];
    else high += (high - low) * 0.04;
    const begin = this.points[0].time, end = Math.max(this.points.at(-1).time, begin + 1);
    [this.width, this.top, this.bottom] = [width, 16, height - 20];
    const levels = labelledTicks(low, high, 4, this.words), left = 12 + 6.5 * Math.max(...levels.map((level) => this.words(level).length)), right = width - 8;
    this.x = (time) => left + (right - left) * (time - begin) / (end - begin);
    const y = (value) => this.bottom - (this.bottom - this.top) * (value - low) / (high - low);
    const parts = [];
    for (const level of levels) parts.push(svg("line", { class: "grid", x1: left, x2: right, y1: y(level), y2: y(level) }), svg("text", { x: left - 5, y: y(level) + 4, "text-anchor": "end" }, this.words(level)));
    for (const time of timeTicks(begin, end, Math.max(2, width / 80))) {
      parts.push(svg("line", { class: "axis", x1: this.x(time), x2: this.x(time), y1: this.bottom, y2: this.bottom + 4 }),
        svg("text", { x: Math.min(this.x(time), right - 22), y: height - 4, "text-anchor": "middle" }, clock(time * 1000, nowMs()).slice(-8)));
    }
    parts.push(svg("line", { class: "axis", x1: left, x2: right, y1: this.bottom, y2: this.bottom }), svg("line", { class: "axis", x1: left, x2: left, y1: this.top, y2: this.bottom }));
    for (const segment of segments(this.points)) {
      const line = segment.length === 1 ? [segment[0], segment[0]] : segment;
      parts.push(svg("polyline", { class: "line", points: line.map(({ time, value }) => `${this.x(time).toFixed(1)},${y(value).toFixed(1)}`).join(" ") }));
    }
    for (const { time, text } of marks.filter((mark) => mark.time > begin && mark.time < end))
      parts.push(svg("line", { class: "mark", x1: this.x(time), x2: this.x(time), y1: this.top, y2: this.bottom }), svg("text", { class: "marked", x: this.x(time) + 3, y: 11 }, text));
    this.layer.replaceChildren(...parts);
    setText(byId(`${this.id}-words`), plotSummary(view.state, this.key, this.points.at(-1).value, this.words));
    if (this.at !== null) this.point(Math.min(this.at, this.points.length - 1));
  }
}
const plots = [["speed", "step_s", stepTime, true], ["loss", "loss", significant, false], ["gpu", "gpu_busy", (busy) => `${Math.round(busy)} %`, true], ["cpu", "cpu", (cpus) => count(cpus < 10 ? Number(cpus.toPrecision(3)) : Math.round(cpus)), true]]
  .map(([id, key, words, fromZero]) => [key, new Plot(id, key, words, fromZero)]);
function chosenRank() {
  const list = rankList(byId("rank").value);
  return list?.length > 0 ? list[0][0] : null;
}
function showPlots() {
  const { events, samples } = view.history;
  const marks = events.filter((event) => event.event === "attempt_running" && event.attempt > 0).map((event) => ({ time: Date.parse(event.time) / 1000, text: `restart ${event.attempt}` }));
  const drawn = plots.map(([key, plot]) => [plot, pointsOf(samples, key)]).filter(([, points]) => points.filter(({ value }) => value !== null).length > 1);
  // The width of a plot depends on how many there are.
  byId("plots").hidden = drawn.length === 0;
  for (const [, { id }] of plots) byId(`${id}-section`).hidden = !drawn.some(([plot]) => plot.id === id);
  for (const [plot, points] of drawn) plot.draw(points, marks);
}

function showSlow(rows) {
  const slow = slowRanks(rows);
  byId("slow-section").hidden = slow.length === 0;
  if (slow.length === 0) return;
  const table = byId("slow");
  table.replaceChildren();
  const head = table.createTHead().insertRow();
  for (const [title, kind] of [["rank", ""], ["node", ""], ["step", "number"], ["steps behind", "number"], ["time per step", "number"], ["of the median", "number"], ["does now", ""]]) head.append(make("th", title, { scope: "col", class: kind }));
  const body = table.createTBody();
  for (const row of slow) {
    const line = body.insertRow();
    for (const [text, kind] of [[row.rank, ""], [row.node, ""], [row.step === null ? "" : count(row.step), "number"], [count(row.lag), "number"], [row.seconds === null ? "" : stepTime(row.seconds), "number"],
      [row.ratio === null ? "" : `${row.ratio.toFixed(2)} ×`, "number"], [row.phase, ""]]) line.append(make("td", text, { class: kind }));
  }
}

// A node is a row with a cell for each rank. Of more than 64 nodes the unhealthy ones and the chosen one are rows, and each is a tile.
const grid = { cells: new Map(), rows: [], byRank: new Map(), chosenNode: null };
function updateCell(key, kind, sign, words) {
  let cell = grid.cells.get(key);
  if (!cell) {
    cell = make("button", undefined, { type: "button", tabindex: -1 });
    cell.dataset[typeof key === "number" ? "rank" : "node"] = typeof key === "number" ? key : key.slice(5);
    grid.cells.set(key, cell);
  }
  const name = typeof key === "number" ? `rank ${key}: ${words}` : words;
  if (cell.ariaLabel !== name) cell.ariaLabel = cell.title = name;
  if (cell.className !== `cell ${kind}`) cell.className = `cell ${kind}`;
  setText(cell, sign);
  const pressed = typeof key === "number" ? chosenRank() === key : grid.chosenNode === key.slice(5);
  if (cell.ariaPressed !== String(pressed)) cell.ariaPressed = String(pressed);
  return cell;
}
function showGrid(rows) {
  const nodes = orderNodes(nodesOf(view.state, view.history), rows), many = nodes.length > kMostTiles;
  const names = shortNames(nodes.map(({ node }) => node.node));
  grid.byRank = new Map(rows.map((row) => [row.rank, row]));
  const asRows = many ? nodes.filter((entry) => kSeverity[entry.kind] >= kSeverity.warn || entry.node.node === grid.chosenNode).slice(0, 24) : nodes;
  redraw("grid", [many, asRows.map(({ node, kind, rows: of }) => [node.node, node.state, node.trouble, kind, of.length]), many ? nodes.map(({ node }) => node.node) : 0], () => {
    const focused = document.activeElement;
    byId("rows").replaceChildren(...asRows.map(({ node, kind, rows: of }) => {
      const line = make("div", undefined, { class: `node ${kind}` }), name = make("span", names.get(node.node), { class: "name", title: node.node }), cells = make("div", undefined, { class: "cells" });
      if (node.trouble) name.append(make("small", node.trouble));
      else if (node.state !== "running") name.append(make("small", node.state));
      cells.append(...of.map((row) => updateCell(row.rank, row.kind, row.sign, row.words)));
      line.append(name, cells);
      return line;
    }));
    byId("tiles").replaceChildren(...(many ? nodes.map(({ node }) => updateCell(`node ${node.node}`, "", "", "")) : []));
    const cells = [...byId("grid").querySelectorAll(".cell")];
    const first = cells.includes(focused) ? focused : cells.find((cell) => cell.ariaPressed === "true") ?? cells[0];
    for (const cell of cells) cell.tabIndex = cell === first ? 0 : -1;
    if (first === focused && document.activeElement !== focused) focused.focus({ preventScroll: true });
  });
  for (const { rows: of } of asRows) for (const row of of) updateCell(row.rank, row.kind, row.sign, row.words);
  if (!many) return;
  byId("tiles").style.setProperty("--longest", Math.max(...[...names.values()].map((name) => name.length)));
  for (const { node, kind, sign, words, rows: of } of nodes) updateCell(`node ${node.node}`, kind, `${sign} ${names.get(node.node)}`, `${node.node}: ${plural(of.length, "rank")}, ${words}`);
}
function showNodes() {
  const nodes = nodesOf(view.state, view.history);
  if (nodes.some((node) => node.usage) && shown.get("nodes opened") === undefined && nodes.length <= kMostTiles) {
    shown.set("nodes opened", "");
    byId("node-table").open = true;
  }
  if (!byId("node-table").open) return;
  const ordered = orderNodes(nodes, rankRows(view.state, view.history)).slice(0, 200), table = byId("nodes");
  const columns = usageColumns(ordered.map(({ node }) => node)), names = shortNames(nodes.map((node) => node.node));
  const cellsOf = ({ node, sign, words }, row) => [names.get(node.node), `${sign} ${node.state === "running" ? words : node.state}`, node.ranks > 0 ? node.ranks === 1 ? String(node.first_rank) : `${node.first_rank}–${node.first_rank + node.ranks - 1}` : "-",
    node.step === null || node.step === undefined ? "" : count(node.step), ...columns.map(([, texts]) => texts[row])];
  const kindOf = (index) => index >= 3 ? "number" : "";
  redraw("nodes", [ordered.length, columns.map(([title]) => title)], () => {
    table.replaceChildren();
    const head = table.createTHead().insertRow();
    ["node", "state", "ranks", "step", ...columns.map(([title]) => title)].forEach((title, index) => head.append(make("th", title, { scope: "col", class: kindOf(index) })));
    const body = table.createTBody();
    for (let i = 0; i < ordered.length; ++i) {
      const line = body.insertRow();
      for (let k = 0; k < 4 + columns.length; ++k) line.append(make("td", "", { class: kindOf(k) }));
    }
  });
  ordered.forEach((entry, i) => cellsOf(entry, i).forEach((text, k) => setText(table.tBodies[0].rows[i].cells[k], text)));
}

function showEvents() {
  const { events } = view.history, last = events.at(-1);
  redraw("events", `${events.length} ${last?.id} ${last?.time}`, () => {
    const rows = foldEvents(view.history).slice(-300).reverse();
    byId("events").replaceChildren(...rows.map((row) => {
      const line = make("div", undefined, { class: `row ${row.kind}` });
      line.append(make("time", clock(row.time, nowMs()), { datetime: new Date(row.time).toISOString() }), make("span", plain(row.text), { class: "say" }));
      return line;
    }));
  });
}

// Output: `view.lines` has what was read of the chosen attempt and ranks, the document the newest kShownLines that are selected.
const kShownLines = 2000;
function selection() {
  const search = searchOf(byId("search").value), ranks = rankList(byId("rank").value);
  byId("search").setAttribute("aria-invalid", search.error !== "");
  byId("rank").setAttribute("aria-invalid", ranks === null);
  setText(byId("problem"), ranks === null ? "Ranks are written as 0, 3-5." : search.error);
  const attempt = byId("attempt").value;
  return { ranks: ranks ?? [], stream: Number(byId("stream").value), attempt: attempt === "" ? null : Number(attempt), expression: search.expression };
}
function lineElement(line, expression, now) {
  const row = make("div", undefined, { class: `row ${line[4] === 2 ? "err" : "out"}` });
  row.append(make("time", line[1] === null ? "-" : `${line[2] > 1000 ? "~" : ""}${clock(line[1], now)}`), make("span", line[3], { class: `who c${1 + line[3] % 6}`, title: `rank ${line[3]}, ${line[4] === 2 ? "stderr" : "stdout"}` }));
  const say = make("span", undefined, { class: "say" });
  const text = plain(line[5]), found = expression ? expression.exec(text) : null;
  if (found?.[0]) say.append(text.slice(0, found.index), make("mark", found[0]), text.slice(found.index + found[0].length));
  else for (const part of styledParts(line[5])) say.append(part.style === "" ? part.text : make("span", part.text, { class: part.style }));
  row.append(say);
  return row;
}
function selectedLines() {
  const wanted = selection();
  return view.lines.filter((line) => isSelected(line, wanted));
}
/// `added`: lines at the end of view.lines that are new. Unset: all may have changed.
function showOutput(added) {
  const area = byId("output"), wanted = selection(), now = nowMs();
  if (added === undefined) {
    view.selected = selectedLines();
    area.replaceChildren(...view.selected.slice(-kShownLines).map((line) => lineElement(line, wanted.expression, now)));
  } else {
    const fresh = added.filter((line) => isSelected(line, wanted));
    view.selected.push(...fresh);
    if (fresh.length > 0) area.append(...fresh.slice(-kShownLines).map((line) => lineElement(line, wanted.expression, now)));
    while (area.childElementCount > kShownLines + 200) area.firstElementChild.remove();
  }
  for (const old of area.querySelectorAll(".live")) old.remove();
  if (area.childElementCount === 0 && view.open.length === 0) area.append(make("div", view.lines.length > 0 ? "No line is selected." : "No output so far.", { class: "note live" }));
  for (const line of view.open.filter((open) => isSelected(open, wanted))) {  // bars that still move
    const row = lineElement(line, wanted.expression, now);
    row.classList.add("live");
    area.append(row);
  }
  const many = view.selected.length;
  setText(byId("matches"), many === view.lines.length ? plural(many, "line") + (many > kShownLines ? `, the last ${count(kShownLines)} are shown` : "") : `${count(many)} of ${plural(view.lines.length, "line")}`);
  if (byId("follow").checked) area.scrollTop = area.scrollHeight;
}
function showAttempts() {
  const last = lastAttempt(view.state, view.history), select = byId("attempt");
  const wanted = Array.from({ length: last + 1 }, (none, index) => String(last - index));
  redraw("attempts", [wanted.length], () => {
    const before = view.attemptChosen ? select.value : null;
    select.replaceChildren(...wanted.map((attempt) => make("option", attempt)));
    if (report && last > 0) select.append(make("option", "all", { value: "" }));
    select.value = before ?? String(last);
  });
}
let loading = false;
async function loadOutput() {
  if (report) return;
  const ranks = rankList(byId("rank").value), place = { attempt: byId("attempt").value || "0" };
  if (ranks?.length === 1 && ranks[0][0] === ranks[0][1]) place.rank = ranks[0][0];  // of one rank the server has more
  const target = new URLSearchParams(place).toString();
  if (loading) return;
  loading = true;
  try {
    const same = target === view.loaded;
    const reply = await ask(`lines?${target}${same && view.cursor ? `&after=${view.cursor}` : ""}`);
    if (!reply.ok) {
      if (!same) [view.lines, view.open, view.cursor, view.loaded] = [[], [], "", target];
      if (!same) showOutput();
      return;
    }
    const { next, restart, lines, open } = await reply.json();
    view.open = open;
    view.cursor = next;
    if (restart || !same) {
      [view.lines, view.loaded] = [mergeLines(lines), target];
      showOutput();
    } else {
      view.lines.push(...lines);
      if (view.lines.length > kMostLines) {
        view.lines.splice(0, kMostLines / 4);
        showOutput();
      } else showOutput(lines);
    }
  } catch { /* the banner of the lost connection says so */ } finally {
    loading = false;
  }
}
function choose(rank, attempt) {
  byId("rank").value = rank === null ? "" : String(rank);
  if (attempt !== undefined) {
    view.attemptChosen = true;
    byId("attempt").value = String(attempt);
  }
  changeOutput();
}
function changeOutput() {
  showGrid(rankRows(view.state, view.history));
  showOutput();
  loadOutput();
}

function sentence() {
  const { why, status, state } = view.state;
  if (why) return why;
  if (status?.why) return status.why;
  if (state === "crashed") return "its ddplaunch ended without a report: it was killed, or the disk was full";
  return status ? `attempt ${status.attempt}${status.restarts > 0 ? `, after ${plural(status.restarts, "restart")}` : ""}` : "";
}
function show() {
  const rows = rankRows(view.state, view.history), { state } = view;
  byId("job-part").hidden = false;
  showHead(jobState(state), state.job, sentence());
  setText(byId("freshness"), report ? "report" : `updated ${clock(Date.now(), nowMs())}`);
  showBanners();
  showFailure();
  showFigures();
  showTimeline();
  showSlow(rows);
  showAttempts();
  showGrid(rows);
  showNodes();
  showEvents();
  redraw("about", [state.command, state.started, state.directory], () => {
    byId("about").replaceChildren();
    addPairs(byId("about"), [["command", state.command], ["started", clock(Date.parse(state.started), 0)], ["files", state.directory], ["ddplaunch", state.report?.ddplaunch ?? state.version]]);
  });
  openAtFailure();
}
// A job that has failed is opened at the rank that failed, once for each end.
function openAtFailure() {
  const { state, history } = view;
  if (!state.report && state.exit_code === null) return;
  const [first] = jobState(state)[2] === "failed" ? failures(state, history) : [];
  if (view.newestEnd !== null) return;
  view.newestEnd = state.exit_code;
  if (first && first.rank !== null && first.rank !== undefined) choose(first.rank, first.attempt ?? lastAttempt(state, history));
}

for (const id of ["rank", "attempt", "stream"]) byId(id).addEventListener("change", () => {
  if (id === "attempt") view.attemptChosen = true;
  changeOutput();
});
byId("search").addEventListener("input", () => showOutput());
byId("follow").addEventListener("change", () => showOutput([]));
byId("output").addEventListener("scroll", () => {
  const area = byId("output");
  byId("follow").checked = area.scrollTop + area.clientHeight >= area.scrollHeight - 8;
});
byId("download").addEventListener("click", () => {
  const text = selectedLines().map((line) => lineText(line, 0)).join("\n") + "\n";
  const link = make("a", "", { href: URL.createObjectURL(new Blob([text], { type: "text/plain" })), download: `${view.state.job}.txt` });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
});
byId("failure").addEventListener("click", (event) => {
  if (event.target.dataset.rank === undefined) return;
  choose(Number(event.target.dataset.rank), Number(event.target.dataset.attempt));
  byId("output-section").scrollIntoView();
});
byId("grid").addEventListener("click", (event) => {
  const { rank, node } = event.target.dataset;
  if (rank !== undefined) choose(chosenRank() === Number(rank) ? null : Number(rank));
  if (node === undefined) return;
  grid.chosenNode = grid.chosenNode === node ? null : node;
  showGrid(rankRows(view.state, view.history));
});
byId("grid").addEventListener("pointerover", (event) => {
  const row = grid.byRank.get(Number(event.target.dataset?.rank));
  if (row) event.target.title = `rank ${row.rank} on ${row.node}: ${row.words}` + (row.step === null ? "" : `, step ${count(row.step)}`) + (row.phase ? `, ${row.phase}` : "");
});
// The arrows lead through the cells, so that a keyboard needs one tab stop for the whole grid.
byId("grid").addEventListener("keydown", (event) => {
  const moves = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1, Home: -Infinity, End: Infinity };
  if (!(event.key in moves) || !event.target.matches(".cell")) return;
  event.preventDefault();
  const cells = [...byId("grid").querySelectorAll(".cell")];
  const next = Math.max(0, Math.min(cells.length - 1, cells.indexOf(event.target) + moves[event.key]));
  for (const cell of cells) cell.tabIndex = -1;
  cells[next].tabIndex = 0;
  cells[next].focus();
});
byId("node-table").addEventListener("toggle", () => view.state && showNodes());
document.addEventListener("keydown", (event) => {
  if (event.key !== "/" || event.ctrlKey || event.altKey || event.metaKey || event.target.matches("input, select")) return;
  event.preventDefault();
  byId("search").focus();
});
window.addEventListener("resize", () => view.state && showPlots());

// The list of all jobs of the user.
function showJobs(jobs) {
  byId("jobs-section").hidden = false;
  const running = jobs.filter((job) => ["ok", "warn", "info"].includes(jobState(job)[0])).length;
  const worst = jobs.some((job) => jobState(job)[2] === "stalled") ? ["warn", "◆", "stalled"] : running > 0 ? ["ok", "●", "running"] : ["quiet", "○", "idle"];
  showHead(worst, "ddplaunch jobs", `${count(running)} of ${plural(jobs.length, "job")} run`);
  setText(byId("freshness"), `updated ${clock(Date.now(), nowMs())}`);
  redraw("jobs", jobs, () => {
    const table = byId("jobs");
    table.replaceChildren();
    const head = table.createTHead().insertRow();
    for (const [title, kind] of [["job", ""], ["state", ""], ["ranks", "number"], ["step", "number"], ["started", ""], ["ran", "number"], ["ended", ""], ["end", ""], ["command", ""]])
      head.append(make("th", title, { scope: "col", class: kind }));
    const body = table.createTBody();
    for (const job of jobs) {
      const line = body.insertRow(), [kind, sign, word] = jobState(job), name = make("td"), state = make("td");
      const link = make("a", job.job, { href: `jobs/${encodeURIComponent(job.run)}/` });
      // A new tab does not have what this tab has stored.
      link.addEventListener("pointerdown", (event) => { link.search = event.button === 1 || event.ctrlKey || event.metaKey || event.shiftKey ? `?${new URLSearchParams({ token })}` : ""; });
      name.append(link);
      state.append(make("span", `${sign} ${word}`, { class: `badge ${kind}` }));
      line.append(name, state, make("td", job.world_size === null ? "" : count(job.world_size), { class: "number" }), make("td", job.step === null ? "" : count(job.step), { class: "number" }),
        make("td", clock(Date.parse(job.started), nowMs())), make("td", job.age_s === null ? "" : duration(job.age_s), { class: "number" }), make("td", job.ended ? clock(Date.parse(job.ended), nowMs()) : ""),
        make("td", job.exit_code === null ? "" : `exit code ${job.exit_code}${job.why ? `: ${job.why}` : ""}`, { class: "command" }), make("td", job.command, { class: "command" }));
    }
    if (jobs.length === 0) body.insertRow().append(make("td", "There is no job yet.", { colspan: 9 }));
  });
}
async function loadJobs() {
  try {
    const reply = await ask("jobs.json");
    if (reply.ok) showJobs(await reply.json());
    banner("lost", "This page needs its token.", reply.ok ? "" : "Open the address that ddplaunch dashboard has printed.");
  } catch {
    banner("lost", "The page has lost ddplaunch dashboard.", "What it shows is old.");
  }
  if (!document.hidden) setTimeout(loadJobs, 3000);
}

function follow() {
  const source = new EventSource(`events?${new URLSearchParams({ token })}`);
  source.addEventListener("restart", () => { view.history = newHistory(); shown.delete("events"); });
  source.addEventListener("journal", (event) => addEvents(view.history, JSON.parse(event.data)));
  source.addEventListener("state", (event) => {
    view.state = JSON.parse(event.data);
    view.time = Date.now();
    banner("lost", "", "");
    if (document.hidden) {  // the tab needs its title and icon only
      showHead(jobState(view.state), view.state.job, sentence());
      return;
    }
    show();
    showPlots();
    loadOutput();
    loadTails();
  });
  source.addEventListener("error", () => {
    if (view.state) banner("lost", "The page has lost ddplaunch dashboard.", `What it shows is of ${clock(view.time, nowMs())}.`);
    else banner("lost", "This page needs its token.", "Open the address that ddplaunch dashboard has printed.");
  });
}

if (report) {
  view.state = report.state;
  addEvents(view.history, report.events);
  view.lines = mergeLines(report.lines);
  byId("job-part").hidden = false;
  show();
  showPlots();
  showOutput();
} else if (given.page === "jobs") {
  loadJobs();
  document.addEventListener("visibilitychange", () => !document.hidden && loadJobs());
} else {
  byId("all-jobs").hidden = !/\/jobs\/[^/]+\/$/.test(location.pathname);
  follow();
  document.addEventListener("visibilitychange", () => {
    if (document.hidden || !view.state) return;
    show();
    showPlots();
    loadOutput();
  });
}
