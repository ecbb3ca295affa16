// What the page shows of a job, as functions of the job's JSON (docs/users/dashboard.md) and the time, without a document.
// tests/cli/page_model_test.js checks them.

const kMostSamples = 2000;
const kMostEvents = 20000;
const kMostLines = 20000;
const kMostTiles = 64;          // nodes that are shown with each of their ranks

const count = (number) => Number(number).toLocaleString("en");
const plural = (number, noun) => `${count(number)} ${noun}${number === 1 ? "" : "s"}`;
function duration(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 60) return `${whole} s`;
  const minutes = Math.floor(whole / 60);
  if (minutes < 60) return `${minutes} min ${whole % 60} s`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours} h ${minutes % 60} min` : `${Math.floor(hours / 24)} d ${hours % 24} h`;
}
/// For a place where duration() is too long.
function shortDuration(seconds) {
  const whole = Math.max(0, Math.round(seconds)), hours = Math.floor(whole / 3600);
  return whole < 60 ? `${whole} s` : hours < 48 ? `${hours}:${pad(Math.floor(whole / 60) % 60)}:${pad(whole % 60)}` : `${Math.floor(hours / 24)} d ${hours % 24} h`;
}
const stepTime = (seconds) => seconds === 0 ? "0 s" : seconds < 0.1 ? `${(1000 * seconds).toFixed(1)} ms` : `${seconds.toFixed(seconds < 10 ? 2 : 1)} s`;
const significant = (number) => number !== 0 && Math.abs(number) < 1e-3 ? number.toExponential(2) : String(Number(number.toPrecision(4)));
const percent = (part) => `${(100 * part).toFixed(1)} %`;
function bytes(number) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let at = 0;
  for (; number >= 1024 && at + 1 < units.length; ++at) number /= 1024;
  return `${at > 0 && number < 10 ? number.toFixed(1) : Math.round(number)} ${units[at]}`;
}

const pad = (number, width = 2) => String(number).padStart(width, "0");
/// Returns the local time of a moment in milliseconds since 1970; with its day if that is not the day of `now`.
function clock(time, now) {
  const date = new Date(time), today = new Date(now);
  const text = `${pad(date.getHours())}:${pad(date.getMinutes())}:${pad(date.getSeconds())}`;
  return date.toDateString() === today.toDateString() ? text : `${date.getFullYear()}-${pad(date.getMonth() + 1)}-${pad(date.getDate())} ${text}`;
}

// Each state has a colour (class), a sign and a word, so that none of them alone carries the meaning.
const kStates = {
  running: ["ok", "●", "running"], stalled: ["warn", "◆", "stalled"], connecting: ["info", "◌", "connecting"],
  starting: ["info", "◌", "starting"], "waiting to restart": ["warn", "↻", "waiting to restart"], stopping: ["warn", "■", "stopping"],
  ending: ["info", "■", "ending"], crashed: ["bad", "✕", "crashed"], elsewhere: ["info", "○", "on another machine"], deleted: ["quiet", "○", "deleted"],
};
/// Returns the class, the sign and the word of a job's state. `job`: as `state` of the page, or an entry of `ps --json`.
function jobState(job) {
  if (job.exit_code === 0) return ["good", "✓", "succeeded"];
  if (job.exit_code !== null && job.exit_code !== undefined) {
    if (job.report?.outcome === "stopped" || [129, 130, 143].includes(job.exit_code) && (job.why ?? "").startsWith("stopped by"))
      return ["quiet", "■", "stopped"];
    return ["bad", "✕", "failed"];
  }
  const state = job.status?.state ?? job.state;
  return kStates[state] ?? (job.cleaned ? ["quiet", "○", "cleaned"] : ["info", "○", state]);
}

function describe(event) {
  const parts = [event.event.replaceAll("_", " "), event.node, event.rank === null || event.rank === undefined ? null : `rank ${event.rank}`];
  const attempt = event.attempt === null || event.attempt === undefined ? "" : `attempt ${event.attempt}: `;
  return attempt + parts.filter((part) => part).join(", ") + (event.reason ? `: ${event.reason}` : "");
}

/// Keeps what follows from the events of the journal: see addEvents.
function newHistory() {
  return { events: [], ends: new Map(), stopping: new Map(), samples: [] };
}
function addEvents(history, events) {
  for (const event of events) {
    if (event.event === "sample") {
      history.samples.push({ ...event, time: Date.parse(event.time) / 1000 });
      // As the job does (docs/users/journal.md), so that samples of any length of time are equally far apart.
      if (history.samples.length >= kMostSamples) history.samples = history.samples.filter((sample, index) => index % 2 === 0);
      continue;
    }
    history.events.push(event);
    if (event.event === "attempt_stopping" && !history.stopping.has(event.attempt)) history.stopping.set(event.attempt, event);
    if (event.event === "rank_exited")
      history.ends.set(`${event.attempt} ${event.rank}`, { ...event, stopped: event.exit_code !== 0 && history.stopping.has(event.attempt) });
  }
  if (history.events.length > kMostEvents) history.events.splice(1, kMostEvents / 2);
}

/// Returns rows {time, text, kind, events}, the oldest first. Equal ends of many ranks in a row are one.
function foldEvents({ events, ends }) {
  const rows = [];
  for (const event of events) {
    const exit = event.event === "rank_exited";
    const stopped = exit && ends.get(`${event.attempt} ${event.rank}`)?.stopped === true;
    const lump = exit ? `${event.attempt} ${stopped ? "stopped" : event.reason}` : event.event === "node_joined" ? "joined" : null;
    const kind = stopped ? "quiet" : exit && event.exit_code !== 0 || event.failure || event.event === "node_lost" || event.event === "job_ended" && event.exit_code > 0 && !event.reason?.startsWith("stopped by") ? "bad"
      : ["hang_found", "hang_named", "node_absent", "signal", "attempt_stopping"].includes(event.event) ? "warn" : "";
    const last = rows.at(-1);
    if (lump !== null && last?.lump === lump) last.events.push(event);
    else rows.push({ time: Date.parse(event.time), lump, kind, stopped, events: [event] });
  }
  for (const row of rows) {
    const first = row.events[0], many = row.events.length;
    if (many === 1) row.text = describe(first) + (row.stopped ? " (stopped by ddplaunch)" : "");
    else if (row.lump === "joined") row.text = `${plural(many, "node")} joined`;
    else if (row.stopped) row.text = `attempt ${first.attempt}: ${plural(many, "rank")} stopped by ddplaunch`;
    else row.text = `attempt ${first.attempt}: ${plural(many, "rank")} ended: ${first.reason}`;
  }
  return rows;
}

/// Returns the nodes of the last attempt: from the running job, or from the journal after its end.
function nodesOf(state, history) {
  if (state.status) return state.status.nodes;
  const started = history.events.findLast((event) => event.event === "attempt_started");
  return (started?.nodes ?? []).map((node) => ({ ...node, state: "ended", steps: [] }));
}
function lastAttempt(state, history) {
  if (state.status) return state.status.attempt;
  return history.events.reduce((last, event) => Math.max(last, event.attempt ?? 0), 0);
}

/// Returns a row for each rank of the last attempt, with what its cell shows: kind, sign and words.
function rankRows(state, history) {
  const rows = [], attempt = lastAttempt(state, history);
  for (const node of nodesOf(state, history)) {
    for (let i = 0; i < node.ranks; ++i) {
      rows.push({ rank: node.first_rank + i, node: node.node, state: node.state, step: node.steps?.[i] ?? null, loss: node.losses?.[i] ?? null,
        phase: node.phases?.[i] ?? "", seconds: node.step_seconds?.[i] ?? null });
    }
  }
  const foremost = rows.reduce((most, row) => row.step === null ? most : Math.max(most, row.step), 0);
  // Ranks report once a second, and not at the same moment.
  const most = Math.ceil(2.5 / (state.status?.step_s || 2.5));
  for (const row of rows) {
    row.lag = row.step === null ? 0 : foremost - row.step;
    row.behind = row.lag > most;
    const end = history.ends.get(`${attempt} ${row.rank}`);
    if (end?.stopped) [row.kind, row.sign, row.words] = ["quiet", "■", "stopped by ddplaunch"];
    else if (end) [row.kind, row.sign, row.words] = end.exit_code === 0 ? ["good", "✓", "exited 0"] : ["bad", "✕", end.reason || "ended"];
    else if (row.state === "lost") [row.kind, row.sign, row.words] = ["bad", "✕", "lost with its node"];
    else if (row.state !== "running") [row.kind, row.sign, row.words] = ["idle", "○", row.state];
    else [row.kind, row.sign, row.words] = row.behind ? ["warn", "▾", `${plural(row.lag, "step")} behind`] : ["ok", "●", "running"];
  }
  return rows;
}

/// Returns at most five ranks that are behind or whose steps take longer than the median. Ranks that wait for each other take the same
/// time: a list of them would be noise.
function slowRanks(rows) {
  const times = rows.map((row) => row.seconds).filter((seconds) => seconds !== null).sort((a, b) => a - b);
  const median = times[(times.length - 1) >> 1];
  return rows.filter((row) => row.behind || row.seconds >= 1.05 * median)
    .map((row) => ({ ...row, ratio: row.seconds === null ? null : row.seconds / median }))
    .sort((a, b) => b.behind - a.behind || b.seconds - a.seconds || a.rank - b.rank).slice(0, 5);
}

const kSeverity = { bad: 4, warn: 3, idle: 2, ok: 1, quiet: 0, good: 0 };
const kHealth = { bad: ["bad", "✕"], doubtful: ["warn", "▲"] };
/// Returns the nodes with their rows, the unhealthy ones first, else in the order of ranks. Of a job that runs ddplaunch judges the
/// nodes, so that `ddplaunch top` says the same; of one that has ended the worst end counts.
function orderNodes(nodes, rows) {
  const byNode = new Map(nodes.map((node, index) => [node.node, { node, index, rows: [], kind: "", sign: "○", words: node.state }]));
  for (const row of rows) {
    const entry = byNode.get(row.node);
    entry.rows.push(row);
    const worse = !entry.kind || kSeverity[row.kind] > kSeverity[entry.kind];
    if (worse && (!entry.node.health || kSeverity[row.kind] < kSeverity.warn)) [entry.kind, entry.sign, entry.words] = [row.kind, row.sign, row.words];
  }
  for (const entry of byNode.values()) {
    const { health, trouble, state } = entry.node;
    if (health in kHealth) [entry.kind, entry.sign, entry.words] = [...kHealth[health], trouble ?? state];
    else if (entry.kind === "" && state === "lost") [entry.kind, entry.sign] = kHealth.bad;  // of an older version, which judges no nodes
    else if (entry.kind === "" && entry.rows.length > 0) [entry.kind, entry.sign] = ["ok", "●"];
    else if (entry.kind === "") entry.kind = "idle";
  }
  const severe = (entry) => Math.max(kSeverity[entry.kind], 1);
  return [...byNode.values()].sort((a, b) => severe(b) - severe(a) || a.index - b.index);
}

/// Returns the names of nodes as they are shown: without a domain that all have.
function shortNames(names) {
  const domain = /\.[^]*[a-z][^]*$/i.exec(names[0] ?? "")?.[0], shared = domain && names.every((name) => name.endsWith(domain) && name.length > domain.length);
  return new Map(names.map((name) => [name, shared ? name.slice(0, -domain.length) : name]));
}

/// Returns "12 of 80 GiB", or "900 MiB of 80 GiB".
function partOfBytes(part, all) {
  const text = bytes(part), whole = bytes(all), [number, unit] = text.split(" ");
  return `${whole.endsWith(` ${unit}`) ? number : text} of ${whole}`;
}
const oneDigit = (number) => number < 9.95 ? number.toFixed(1) : count(Math.round(number));
/// Returns what a node uses as [title, text], for the table of nodes; empty: it is not known. `usage`: as in `status --json`.
function usageFields(usage) {
  if (!usage) return [];
  const rate = (number) => `${bytes(number)}/s`, list = [];
  list.push(["CPU", `${oneDigit(usage.cpu)} of ${usage.cpus}`], ["CPU of the job", oneDigit(usage.job_cpu)], ["memory", partOfBytes(usage.memory_used, usage.memory)], ["memory of the job", bytes(usage.job_memory)]);
  const { gpus } = usage, sum = (key) => gpus.reduce((all, gpu) => all + gpu[key], 0), most = (key) => gpus.reduce((top, gpu) => Math.max(top, gpu[key]), 0);
  if (gpus.length > 0) {
    list.push(["GPUs busy", `${Math.round(sum("busy") / gpus.length)} %`], ["GPU memory", partOfBytes(sum("memory_used"), sum("memory"))]);
    if (sum("power_w") > 0) list.push(["power", `${Math.round(sum("power_w"))} W`]);
    if (most("celsius") > 0) list.push(["hottest", `${most("celsius")} °C`]);
    list.push(["slowed by", [...new Set(gpus.flatMap((gpu) => gpu.throttled_by))].join(", ")]);
    list.push(["Xid", [...new Set(gpus.map((gpu) => gpu.xid).filter((xid) => xid !== null))].join(", ")]);
  }
  for (const [title, key, into, out] of [["network", "network", "in", "out"], ["InfiniBand", "infiniband", "in", "out"], ["disk", "disk", "read", "written"]]) {
    const rates = [usage[`${key}_${into}`], usage[`${key}_${out}`]];
    list.push([title, rates[0] + rates[1] > 0 ? `${rate(rates[0])} ${into}, ${rate(rates[1])} ${out}` : ""]);
  }
  return list;
}
/// Returns columns of the nodes' usage, as [title, texts by node], without empty ones.
function usageColumns(nodes) {
  const fields = nodes.map((node) => usageFields(node.usage)), longest = fields.reduce((most, list) => list.length > most.length ? list : most, []);
  return longest.map(([title]) => [title, fields.map((list) => list.find(([name]) => name === title)?.[1] ?? "")])
    .filter(([, texts]) => texts.some((text) => text !== ""));
}

/// Returns the failures to show, the last attempt's first: objects as in report.json, or of a job that runs what the journal knows.
function failures(state, history) {
  const report = state.report ?? state.status ?? {};
  const cause = report.root_cause ?? report.failure ?? null;
  const known = [...(cause ? [cause] : []), ...(report.earlier_attempts ?? []).toReversed()];
  if (state.report && known.length === 0 && report.error) known.push({ text: state.why || report.error.text, attempt: null, error: report.error });
  const attempts = new Set(known.map((failure) => failure.attempt));
  if (state.report && (cause || report.outcome === "success")) return known;
  for (const [attempt, stopping] of [...history.stopping].toReversed()) {
    if (!stopping.failure || attempts.has(attempt)) continue;
    const ended = history.events.findLast((event) => event.event === "attempt_ended" && event.attempt === attempt);
    const text = ended?.reason || stopping.reason || "failed";
    // The first end before the stop is the likeliest cause, unless the text names another rank.
    const named = /^rank (\d+)\b/.exec(text);
    const first = history.events.find((event) => event.event === "rank_exited" && event.attempt === attempt && event.exit_code !== 0);
    const end = named ? history.ends.get(`${attempt} ${named[1]}`) : first;
    known.push({ text, attempt, rank: end?.rank ?? (named ? Number(named[1]) : null), host: end?.node ?? null, time: stopping.time });
  }
  if (known.length === 0 && state.exit_code > 0 && jobState(state)[2] === "failed") known.push({ text: state.why || `exited ${state.exit_code}`, attempt: null });
  return known.sort((a, b) => (b.attempt ?? Infinity) - (a.attempt ?? Infinity));
}

/// Returns "ValueError: boom". `exception`: of a failure; in the report an object, in the status its text.
function exceptionText(exception) {
  return exception?.message === undefined ? exception ?? "" : [exception.type, exception.message].filter((part) => part).join(": ");
}

/// Returns other failures of the last attempt in few lines: which ranks failed as well, and how many were stopped.
function consequences(report) {
  const others = report?.other_failures ?? [];
  const stopped = others.filter((failure) => failure.stopped_by_ddplaunch).length + (report?.other_stopped ?? 0);
  const lines = others.filter((failure) => !failure.stopped_by_ddplaunch).slice(0, 8).map((failure) => failure.text);
  const more = others.length - others.filter((failure) => failure.stopped_by_ddplaunch).length - lines.length + (report?.other_more ?? 0);
  if (more > 0) lines.push(`${plural(more, "further failure")}`);
  if (stopped > 0) lines.push(`${plural(stopped, "rank")} stopped by ddplaunch`);
  return lines;
}

/// Returns the big numbers as [label, value, note], without those that are not known.
function figures(state, history, now) {
  const status = state.status ?? {}, report = state.report ?? {};
  const value = (key) => status[key] ?? report[key] ?? history.samples.at(-1)?.[key] ?? null;
  const list = [], rows = rankRows(state, history);
  if (value("step") !== null) list.push(["step", count(value("step")), status.step_age_s > 10 ? `${duration(status.step_age_s)} ago` : ""]);
  if (value("step_s") !== null) list.push(["per step", stepTime(value("step_s")), ""]);
  if (value("loss") !== null) list.push(["loss", significant(value("loss")), ""]);
  const running = rows.filter((row) => row.kind === "ok" || row.kind === "warn").length;
  const world = status.world_size ?? report.job?.world_size ?? (rows.length || null);
  const some = state.status && running !== world;
  if (world !== null) list.push(["ranks", count(some ? running : world), some ? `of ${count(world)} run` : ""]);
  const nodes = nodesOf(state, history).length || report.job?.nodes?.length;
  if (nodes) list.push(["nodes", count(nodes), ""]);
  if (value("goodput") !== null) list.push(["goodput", percent(value("goodput")), ""]);
  const elapsed = status.age_s ?? report.duration_s ?? null;
  if (elapsed !== null) list.push(["elapsed", shortDuration(elapsed), elapsed < 60 || elapsed >= 172800 ? "" : "h:min:s"]);
  const restarts = status.restarts ?? (report.job ? report.job.attempts - 1 : null);
  if (restarts !== null && (restarts > 0 || status.max_restarts > 0))
    list.push(["restarts", status.max_restarts ? `${restarts} of ${status.max_restarts}` : count(restarts), ""]);
  if (status.output_bytes) list.push(["output", bytes(status.output_bytes), ""]);
  const used = status.usage, whole = report.usage;  // of a job that runs now, of one that has ended as mean and peak
  const gpu = used?.gpus > 0 ? [used.gpu_busy, used.gpu_memory_used, used.gpu_memory] : whole?.gpus > 0 ? [whole.gpu_busy.mean, whole.gpu_memory.peak, whole.gpu_memory.of] : null;
  if (gpu) list.push(["GPUs busy", `${Math.round(gpu[0])} %`, partOfBytes(gpu[1], gpu[2])]);
  const cpu = used ? [used.cpu, used.cpus] : whole ? [whole.cpu.mean, whole.cpu.of] : null;
  if (cpu) list.push(["CPUs busy", oneDigit(cpu[0]), `of ${count(Math.round(cpu[1]))}`]);
  const memory = used ? [used.memory_used, used.memory] : whole ? [whole.memory.peak, whole.memory.of] : null;
  if (memory) list.push(["memory", bytes(memory[0]), `of ${bytes(memory[1])}`]);
  return list;
}

/// Returns points {time, attempt, value} of one key of the samples; null: it was not known.
const pointsOf = (samples, key) => samples.map((sample) => ({ time: sample.time, attempt: sample.attempt, value: sample[key] ?? null }));

/// Returns what is said of a plot. Of a job that has ended the report says it, whose mean and peak come from more points than the plot has.
function plotSummary({ status, report }, key, last, words) {
  const meter = report?.usage?.[key];
  if (meter?.peak !== undefined) return `mean ${words(meter.mean)}, peak ${words(meter.peak)}`;
  const value = status?.[key] ?? status?.usage?.[key] ?? report?.[key] ?? last;
  return `${status ? "now" : "at the end"} ${value === null ? "unknown" : words(value)}`;
}
/// Returns ticks whose words differ.
function labelledTicks(least, most, wanted, words) {
  for (let fewer = wanted; fewer > 1; --fewer) {
    const list = ticks(least, most, fewer);
    if (new Set(list.map(words)).size === list.length) return list;
  }
  return ticks(least, most, 1).filter((level, index, list) => index === 0 || words(level) !== words(list[index - 1]));
}
/// Returns ticks at round numbers between two values, about `wanted` of them.
function ticks(least, most, wanted) {
  const span = most - least;
  if (!(span > 0)) return [least];
  const raw = span / wanted, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].find((factor) => 1.5 * factor * power >= raw) * power;
  const list = [];
  for (let value = Math.ceil(least / step - 1e-9) * step; value <= most + step * 1e-9; value += step) list.push(Math.abs(value) < step * 1e-9 ? 0 : value);
  return list;
}
/// Returns ticks of time, in seconds since 1970, at round local times.
function timeTicks(begin, end, wanted) {
  const steps = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800];
  const step = steps.find((candidate) => (end - begin) / candidate <= wanted) ?? 2592000;
  const shift = step >= 3600 ? new Date(begin * 1000).getTimezoneOffset() * 60 : 0;
  const list = [];
  for (let at = Math.ceil((begin - shift) / step) * step + shift; at <= end; at += step) list.push(at);
  return list;
}
/// Splits points where another attempt begins, or where the value was not known: a line across would be an invention.
function segments(points) {
  const parts = [];
  points.forEach((point, index) => {
    if (point.value === null) return;
    const last = points[index - 1];
    if (!last || last.value === null || last.attempt !== point.attempt) parts.push([]);
    parts.at(-1).push(point);
  });
  return parts;
}

/// Returns the attempts as bars {from, to, kind, text}, in milliseconds since 1970. `now`: where the last one ends.
function timeline(events, now) {
  const kinds = { attempt_started: "idle", attempt_running: "ok", attempt_stopping: "bad", hang_found: "warn", hang_over: "ok", attempt_ended: null };
  const words = { attempt_started: "starts", attempt_running: "runs", attempt_stopping: "stops", hang_found: "hangs", hang_over: "runs" };
  const marks = events.filter((event) => event.event in kinds), bars = [];
  marks.forEach((mark, index) => {
    const kind = mark.event === "attempt_stopping" && !mark.failure ? "quiet" : kinds[mark.event];
    if (kind === null) return;
    const from = Date.parse(mark.time), to = index + 1 < marks.length ? Date.parse(marks[index + 1].time) : now;
    bars.push({ from, to, kind, text: `attempt ${mark.attempt} ${words[mark.event]} for ${duration((to - from) / 1000)}` + (mark.reason ? `: ${mark.reason}` : "") });
  });
  return bars;
}

// A line of output is [attempt, time in ms or null, margin in ms, rank, stream 1 or 2, text with colours].
/// Returns the lines in the order of time; lines without one stay behind those before them.
function mergeLines(lines) {
  let last = 0;
  const timed = lines.map((line, index) => ({ line, index, time: last = line[1] ?? last }));
  return timed.sort((a, b) => a.line[0] - b.line[0] || a.time - b.time || a.index - b.index).map((entry) => entry.line);
}
/// Removes colours, and makes other control characters of workers visible.
const plain = (text) => text.replace(/\u001b\[[0-9;]*m/g, "").replace(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u202a-\u202e\u2066-\u2069]/g, "�");
/// Returns the expression of a search, or its error. Without upper case it also finds upper case.
function searchOf(text) {
  if (text === "") return { expression: null, error: "" };
  try {
    return { expression: new RegExp(text, text === text.toLowerCase() ? "i" : ""), error: "" };
  } catch (error) {
    return { expression: null, error: String(error.message) };
  }
}
/// `ranks`: "0, 3-5", or empty for all. Returns null if it is not a list of ranks.
function rankList(text) {
  if (text.trim() === "") return [];
  const parts = text.split(",").map((part) => /^\s*(\d+)(?:\s*-\s*(\d+))?\s*$/.exec(part));
  return parts.some((part) => part === null) ? null : parts.map((part) => [Number(part[1]), Number(part[2] ?? part[1])]);
}
function isSelected(line, { ranks, stream, attempt, expression }) {
  if (attempt !== null && line[0] !== attempt) return false;
  if (stream && line[4] !== stream) return false;
  if (ranks.length > 0 && !ranks.some(([first, last]) => line[3] >= first && line[3] <= last)) return false;
  return !expression || expression.test(plain(line[5]));
}
/// Splits a line into parts {text, style}: colours of the terminal as class names.
function styledParts(text) {
  const parts = [], style = { colour: "", bold: false };
  let at = 0;
  const add = (piece) => { if (piece !== "") parts.push({ text: plain(piece), style: [style.colour, style.bold ? "b" : ""].filter((name) => name).join(" ") }); };
  for (const match of text.matchAll(/\u001b\[([0-9;]*)m/g)) {
    add(text.slice(at, match.index));
    at = match.index + match[0].length;
    const codes = match[1].split(";").map(Number);
    for (let i = 0; i < codes.length; ++i) {
      const code = codes[i];
      if (code === 0) [style.colour, style.bold] = ["", false];
      else if (code === 1) style.bold = true;
      else if (code === 22) style.bold = false;
      else if (code >= 30 && code <= 37) style.colour = `c${code - 30}`;
      else if (code >= 90 && code <= 97) style.colour = `c${code - 90}`;
      else if (code === 39) style.colour = "";
      else if (code === 38 || code === 48) {  // 256 colours and RGB: the first 16 have a class
        if (codes[i + 1] === 5 && code === 38) style.colour = codes[i + 2] < 16 ? `c${codes[i + 2] % 8}` : "";
        i += codes[i + 1] === 5 ? 2 : 4;
      }
    }
  }
  add(text.slice(at));
  return parts;
}
function lineText(line, now) {
  const time = line[1] === null ? "-" : `${line[2] > 1000 ? "~" : ""}${clock(line[1], now)}`;
  return `${time} [${line[3]}${line[4] === 2 ? " stderr" : ""}] ${plain(line[5])}`;
}
