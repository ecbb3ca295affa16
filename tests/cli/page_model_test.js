// Tests of apps/ddplaunch/operate/page_model.js in Node.js, run by operate_test.py with TZ=Asia/Kolkata.
"use strict";
const { deepStrictEqual: equal, ok } = require("node:assert");
const { readFileSync } = require("node:fs");
const { join } = require("node:path");

const source = readFileSync(join(__dirname, "../../apps/ddplaunch/operate/page_model.js"), "utf8");
const names = [...source.matchAll(/^(?:function|const|class) (\w+)/gm)].map((match) => match[1]);
const page = new Function(`"use strict";${source}; return { ${names.join(", ")} };`)();

const event = (name, keys = {}) => ({ id: 1, time: "2026-11-21T03:14:39.962Z", event: name, attempt: 0, node: null, rank: null, reason: null, ...keys });
const exit = (rank, reason, code, keys = {}) => event("rank_exited", { rank, node: "gpu01", reason, exit_code: code, signal: code === null ? "SIGTERM" : null, ...keys });
const failedAttempt = [event("attempt_started", { nodes: [{ node: "gpu01", first_rank: 0, ranks: 4 }] }), event("attempt_running"), exit(2, "exited 3", 3),
  event("attempt_stopping", { failure: true, reason: "rank 2 on gpu01 exited 3" }), exit(0, "killed by SIGTERM", null), exit(1, "killed by SIGTERM", null), exit(3, "killed by SIGKILL", null),
  event("attempt_ended", { reason: "rank 2 on gpu01 exited 3" })];
function historyOf(events) {
  const history = page.newHistory();
  page.addEvents(history, events);
  return history;
}
const running = (node, keys = {}) => ({ node, state: "running", first_rank: 0, ranks: 2, running: 2, step: 10, steps: [10, 10], losses: [1, 2], phases: ["", ""], step_seconds: [0.5, 0.5], ...keys });
const status = (nodes, keys = {}) => ({ state: "running", attempt: 0, age_s: 100, world_size: 2 * nodes.length, restarts: 0, max_restarts: 0, step: 10, step_s: 0.5, loss: 1, goodput: 0.9, nodes, warnings: [], ...keys });
const stateOf = (keys) => ({ job: "run7", state: "running", exit_code: null, why: "", started: "2026-11-21T03:00:00Z", status: null, report: null, ...keys });

const tests = {
  "each state has a colour, a sign and a word"() {
    equal(page.jobState(stateOf({ status: status([]) })), ["ok", "●", "running"]);
    equal(page.jobState(stateOf({ status: status([], { state: "stalled" }) })), ["warn", "◆", "stalled"]);
    equal(page.jobState(stateOf({ exit_code: 0, state: "ended" })), ["good", "✓", "succeeded"]);
    equal(page.jobState(stateOf({ exit_code: 3, state: "ended", why: "rank 2 exited 3" })), ["bad", "✕", "failed"]);
    equal(page.jobState(stateOf({ exit_code: 143, state: "ended", why: "rank 2 exited 143" })), ["bad", "✕", "failed"]);
    equal(page.jobState(stateOf({ exit_code: 143, state: "ended", report: { outcome: "stopped" } })), ["quiet", "■", "stopped"]);
    equal(page.jobState(stateOf({ state: "crashed" })), ["bad", "✕", "crashed"]);
    equal(page.jobState(stateOf({ state: "new" })), ["info", "○", "new"]);
  },
  "numbers and times have their unit"() {
    equal([0, 59.6, 61, 3600, 7000, 200000].map(page.duration), ["0 s", "1 min 0 s", "1 min 1 s", "1 h 0 min", "1 h 56 min", "2 d 7 h"]);
    equal([0, 59.6, 61, 5000, 200000].map(page.shortDuration), ["0 s", "0:01:00", "0:01:01", "1:23:20", "2 d 7 h"]);
    equal([0, 0.0123, 0.5, 12.34].map(page.stepTime), ["0 s", "12.3 ms", "0.50 s", "12.3 s"]);
    equal([512, 2048, 71 * 2 ** 30].map(page.bytes), ["512 B", "2.0 KiB", "71 GiB"]);
    equal(page.clock(Date.parse("2026-11-21T03:14:39Z"), Date.parse("2026-11-21T04:00:00Z")), "08:44:39");
    equal(page.clock(Date.parse("2026-11-20T03:14:39Z"), Date.parse("2026-11-21T04:00:00Z")), "2026-11-20 08:44:39");
  },
  "ends of many ranks are one row, and the root cause is its own"() {
    const joined = [event("node_joined", { node: "gpu01" }), event("node_joined", { node: "gpu02" })];
    const rows = page.foldEvents(historyOf([...joined, ...failedAttempt]));
    equal(rows.map((row) => row.text), ["2 nodes joined", "attempt 0: attempt started", "attempt 0: attempt running", "attempt 0: rank exited, gpu01, rank 2: exited 3",
      "attempt 0: attempt stopping: rank 2 on gpu01 exited 3", "attempt 0: 3 ranks stopped by ddplaunch", "attempt 0: attempt ended: rank 2 on gpu01 exited 3"]);
    equal(rows.map((row) => row.kind), ["", "", "", "bad", "bad", "quiet", ""]);
    const thousand = Array.from({ length: 1023 }, (none, rank) => exit(rank + 10, "killed by SIGTERM", null));
    equal(page.foldEvents(historyOf([...failedAttempt.slice(0, 4), ...thousand])).at(-1).text, "attempt 0: 1,023 ranks stopped by ddplaunch");
  },
  "a job that runs shows the failure of its last attempt from the journal"() {
    const known = page.failures(stateOf({ status: status([running("gpu01")], { attempt: 1 }) }), historyOf(failedAttempt));
    equal(known.map(({ text, attempt, rank, host }) => [text, attempt, rank, host]), [["rank 2 on gpu01 exited 3", 0, 2, "gpu01"]]);
    const stopped = failedAttempt.map((one) => one.event === "attempt_stopping" ? { ...one, failure: false } : one);
    equal(page.failures(stateOf({ status: status([running("gpu01")]) }), historyOf(stopped)), []);
  },
  "an ended job shows its root cause before earlier attempts"() {
    const cause = { text: "rank 2 on gpu01 exited 3", attempt: 2, rank: 2 }, earlier = [{ text: "a", attempt: 0, rank: 1 }, { text: "b", attempt: 1, rank: null }];
    const ended = stateOf({ state: "ended", exit_code: 3, report: { outcome: "failed", root_cause: cause, earlier_attempts: earlier } });
    equal(page.failures(ended, historyOf(failedAttempt)).map((failure) => failure.text), [cause.text, "b", "a"]);
    const succeeded = stateOf({ state: "ended", exit_code: 0, report: { outcome: "success", root_cause: null, earlier_attempts: earlier } });
    equal(page.failures(succeeded, historyOf(failedAttempt)).map((failure) => failure.text), ["b", "a"]);
    const unreachable = stateOf({ state: "ended", exit_code: 111, why: "gpu07: no route", report: { outcome: "not_started", root_cause: null, error: { kind: "unreachable", text: "gpu07: no route" }, earlier_attempts: [] } });
    equal(page.failures(unreachable, page.newHistory()).map((failure) => failure.text), ["gpu07: no route"]);
    equal(page.failures(stateOf({ state: "ended", exit_code: 0 }), page.newHistory()), []);
    equal([null, undefined, "KeyError: 7", { type: "ValueError", message: "boom" }, { type: "AssertionError", message: "" }].map(page.exceptionText), ["", "", "KeyError: 7", "ValueError: boom", "AssertionError"]);
    const others = [{ text: "rank 1 exited 1", stopped_by_ddplaunch: false }, { text: "x", stopped_by_ddplaunch: true }];
    equal(page.consequences({ other_failures: others, other_stopped: 1022, other_more: 0 }), ["rank 1 exited 1", "1,023 ranks stopped by ddplaunch"]);
  },
  "ranks and nodes that are not well come first"() {
    const nodes = [running("gpu01"), running("gpu02", { first_rank: 2, steps: [10, 2] }), running("gpu03", { first_rank: 4, state: "lost" })];
    const state = stateOf({ status: status(nodes) });
    const rows = page.rankRows(state, page.newHistory());
    equal(rows.map((row) => row.kind), ["ok", "ok", "ok", "warn", "bad", "bad"]);
    equal(page.orderNodes(nodes, rows).map((entry) => [entry.node.node, entry.kind]), [["gpu03", "bad"], ["gpu02", "warn"], ["gpu01", "ok"]]);
    const without = [running("gpu01"), running("gpu02", { ranks: 0, first_rank: null, state: "lost" })];
    equal(page.orderNodes(without, page.rankRows(stateOf({ status: status(without) }), page.newHistory())).map((entry) => [entry.node.node, entry.kind, entry.sign, entry.words]),
      [["gpu02", "bad", "✕", "lost"], ["gpu01", "ok", "●", "running"]]);
    // Of a job that runs ddplaunch has judged the nodes.
    const judged = [running("gpu01", { health: "good", trouble: null }), running("gpu02", { first_rank: 2, steps: [10, 2], health: "good", trouble: null }),
      running("gpu03", { first_rank: 4, health: "doubtful", trouble: "GPU 1 is slowed by heat" }), running("gpu04", { first_rank: 6, health: "bad", trouble: "silent for 9.0 s" })];
    equal(page.orderNodes(judged, page.rankRows(stateOf({ status: status(judged) }), page.newHistory())).map((entry) => [entry.node.node, entry.kind, entry.words]),
      [["gpu04", "bad", "silent for 9.0 s"], ["gpu03", "warn", "GPU 1 is slowed by heat"], ["gpu01", "ok", "running"], ["gpu02", "ok", "running"]]);
    const short = (...names) => [...page.shortNames(names).values()];
    equal([short("gpu01.example.org", "gpu02.example.org"), short("127.0.0.2", "127.0.0.3"), short("a.b.org", "a.c.org"), short()], [["gpu01", "gpu02"], ["127.0.0.2", "127.0.0.3"], ["a.b.org", "a.c.org"], []]);
    equal(page.slowRanks(rows).map((row) => row.rank), [3]);
    const slow = (steps, step_seconds) => page.slowRanks(page.rankRows(stateOf({ status: status([running("gpu01", { ranks: 4, steps, step_seconds })]) }), page.newHistory())).map((row) => row.rank);
    equal(slow([100, 99, 101, 97], [0.5, 0.5, 0.52, 0.5]), []);  // reports that crossed
    equal(slow([100, 100, 100, 100], [0.5, 0.55, 0.7, 0.5]), [2, 1]);
    equal(slow([100, null, 100, 100], [null, null, null, null]), []);
    const ended = page.rankRows(stateOf({ state: "ended", exit_code: 3 }), historyOf(failedAttempt));
    equal(ended.map((row) => row.sign), ["■", "■", "✕", "■"]);
  },
  "what nodes and the job use is shown, and what is not known is not"() {
    const GiB = 2 ** 30, gpu = { index: 0, busy: 90, memory: 80 * GiB, memory_used: 60 * GiB, power_w: 600.4, celsius: 70, clock_mhz: 1980, throttled_by: [], xid: null };
    const usage = { cpus: 96, cpu: 40.2, job_cpu: 3.14, memory: 512 * GiB, memory_used: 200 * GiB, job_memory: 5 * GiB, network_in: 2048, network_out: 0, infiniband_in: 0, infiniband_out: 0,
      disk_read: 0, disk_written: 2048, gpus: [gpu, { ...gpu, index: 1, busy: 50, throttled_by: ["heat"] }] };
    const columns = page.usageColumns([running("gpu01", { usage }), running("gpu02", { usage: null }), running("gpu03", { usage: { ...usage, gpus: [] } })]);
    equal(columns.map(([title]) => title), ["CPU", "CPU of the job", "memory", "memory of the job", "GPUs busy", "GPU memory", "power", "hottest", "slowed by", "network", "disk"]);
    equal(columns.map(([, texts]) => texts[0]), ["40 of 96", "3.1", "200 of 512 GiB", "5.0 GiB", "70 %", "120 of 160 GiB", "1201 W", "70 °C", "heat", "2.0 KiB/s in, 0 B/s out", "0 B/s read, 2.0 KiB/s written"]);
    equal(columns.map(([, texts]) => texts[1]).join(""), "");
    equal(columns.map(([, texts]) => texts[2]).slice(3, 6), ["5.0 GiB", "", ""]);
    equal(page.usageColumns([running("gpu01")]), []);
    const job = { cpus: 96, cpu: 3.2, memory: 512 * GiB, memory_used: 5 * GiB, gpus: 2, gpu_busy: 42.4, gpu_memory: 160 * GiB, gpu_memory_used: 24 * GiB };
    const wanted = [["GPUs busy", "42 %", "24 of 160 GiB"], ["CPUs busy", "3.2", "of 96"], ["memory", "5.0 GiB", "of 512 GiB"]];
    equal(page.figures(stateOf({ status: status([running("gpu01")], { usage: job }) }), page.newHistory(), 0).slice(-3), wanted);
    const ended = { gpus: 2, gpu_busy: { mean: 42.4, peak: 80 }, gpu_memory: { mean: 1, peak: 24 * GiB, of: 160 * GiB }, cpu: { mean: 3.2, peak: 9, of: 96 }, memory: { mean: 1, peak: 5 * GiB, of: 512 * GiB } };
    equal(page.figures(stateOf({ exit_code: 0, report: { usage: ended, job: { attempts: 1 } } }), page.newHistory(), 0).slice(-3), wanted);
    const names = page.figures(stateOf({ status: status([running("gpu01")], { step: null, step_s: null, loss: null }) }), page.newHistory(), 0).map(([name]) => name);
    equal(names, ["ranks", "nodes", "goodput", "elapsed"]);
    const some = status([running("gpu01"), running("gpu02", { first_rank: 2, state: "preparing" })]);
    equal(page.figures(stateOf({ status: some }), page.newHistory(), 0).find(([name]) => name === "ranks"), ["ranks", "2", "of 4 run"]);
  },
  "samples of the journal become the points of a plot, with gaps"() {
    const history = page.newHistory(), at = (second, attempt, loss) => event("sample", { time: new Date(1000 * second).toISOString(), attempt, loss, step: second });
    page.addEvents(history, [at(1, 0, 3), at(2, 0, 2), at(3, 0, null), at(4, 0, 1), at(5, 1, 2), event("attempt_running")]);
    equal(history.events.length, 1);
    const points = page.pointsOf(history.samples, "loss");
    equal(points.map(({ time, attempt, value }) => [time, attempt, value]), [[1, 0, 3], [2, 0, 2], [3, 0, null], [4, 0, 1], [5, 1, 2]]);
    equal(page.segments(points).map((part) => part.map(({ time }) => time)), [[1, 2], [4], [5]]);
    equal(page.segments(page.pointsOf(history.samples, "gpu_busy")), []);
    equal(page.figures(stateOf({ state: "crashed" }), history, 0).map(([name, value]) => [name, value]), [["step", "5"], ["loss", "2"]]);
  },
  "what is said of a plot is what the report says"() {
    const words = (number) => number.toFixed(1), usage = { cpu: { mean: 2.525, peak: 2.809, of: 96 } };
    equal(page.plotSummary(stateOf({ exit_code: 0, report: { usage, loss: 0.5 } }), "cpu", 1, words), "mean 2.5, peak 2.8");
    equal(page.plotSummary(stateOf({ exit_code: 0, report: { usage, loss: 0.5 } }), "loss", 1, words), "at the end 0.5");
    equal(page.plotSummary(stateOf({ status: status([], { usage: { cpu: 3 } }) }), "cpu", 1, words), "now 3.0");
    equal(page.plotSummary(stateOf({ state: "crashed" }), "cpu", null, words), "at the end unknown");
  },
  "a long history has few samples, which are equally far apart"() {
    const history = page.newHistory();
    let apart = 1, kept = 0, second = 0;  // as SampleHistory writes them
    for (; second < 20_000; second += apart) {
      page.addEvents(history, [event("sample", { time: new Date(1000 * second).toISOString() })]);
      if (++kept === 2000) [kept, second, apart] = [1000, second - apart, 2 * apart];
    }
    const gaps = new Set(history.samples.slice(1).map((sample, index) => sample.time - history.samples[index].time));
    equal([history.samples.length < 2000 && history.samples.length >= 1000, history.samples[0].time, [...gaps]], [true, 0, [16]]);
  },
  "ticks are round"() {
    equal(page.ticks(0, 0.7, 4), [0, 0.2, 0.4, 0.6000000000000001]);
    equal(page.ticks(98, 103, 4), [98, 99, 100, 101, 102, 103]);
    equal(page.ticks(0, 98, 4), [0, 20, 40, 60, 80]);
    equal(page.ticks(5, 5, 4), [5]);
    equal(page.labelledTicks(0, 1.04, 4, (busy) => `${Math.round(busy)} %`), [0, 1]);
    equal(page.labelledTicks(0, 0.1, 4, (busy) => `${Math.round(busy)} %`), [0]);
    const begin = Date.parse("2026-11-21T03:14:39Z") / 1000;
    equal(page.timeTicks(begin, begin + 300, 5).map((time) => page.clock(1000 * time, 1000 * begin)), ["08:45:00", "08:46:00", "08:47:00", "08:48:00", "08:49:00"]);
    equal(page.timeTicks(begin, begin + 14400, 5).map((time) => page.clock(1000 * time, 1000 * begin)), ["09:00:00", "10:00:00", "11:00:00", "12:00:00"]);
  },
  "lines are merged by time and selected by rank, stream, attempt and expression"() {
    const line = (time, rank, stream, text, attempt = 0) => [attempt, time, 0, rank, stream, text];
    const merged = page.mergeLines([line(3, 0, 1, "c"), line(1, 1, 2, "a"), line(null, 1, 2, "b"), line(0, 2, 1, "d", 1)]);
    equal(merged.map((one) => one[5]), ["a", "b", "c", "d"]);
    const select = (keys) => merged.filter((one) => page.isSelected(one, { ranks: [], stream: 0, attempt: null, expression: null, ...keys })).map((one) => one[5]).join("");
    equal([select({}), select({ ranks: page.rankList("0, 2-7") }), select({ stream: 2 }), select({ attempt: 0 }), select({ expression: page.searchOf("^[ad]").expression })], ["abcd", "cd", "ab", "abc", "ad"]);
    equal([page.rankList(" "), page.rankList("1-2,x"), page.rankList("3")], [[], null, [[3, 3]]]);
    ok(page.searchOf("nan|oom").expression.test("OOM") && !page.searchOf("NaN").expression.test("nan") && page.searchOf("(").error !== "");
  },
  "colours become classes, and other control characters are visible"() {
    equal(page.styledParts("\u001b[1;31mbad\u001b[0m ok \u001b]0;x\u0007"), [{ text: "bad", style: "c1 b" }, { text: " ok �]0;x�", style: "" }]);
    equal(page.styledParts("\u001b[38;5;2mgreen\u001b[38;2;1;2;3mrgb"), [{ text: "green", style: "c2" }, { text: "rgb", style: "c2" }]);
    equal(page.plain("\u001b[33mW\u001b[0m\u202e\u0000"), "W��");
  },
  "the timeline has a bar for each phase"() {
    const at = (time, one) => ({ ...one, time: new Date(time).toISOString() });
    const bars = page.timeline([at(0, event("attempt_started")), at(1000, event("attempt_running")), at(5000, event("attempt_stopping", { failure: true, reason: "x" })), at(6000, event("attempt_ended"))], 9000);
    equal(bars.map(({ from, to, kind }) => [from, to, kind]), [[0, 1000, "idle"], [1000, 5000, "ok"], [5000, 6000, "bad"]]);
  },
};
let failed = 0;
for (const [name, test] of Object.entries(tests)) {
  try {
    test();
  } catch (error) {
    ++failed;
    console.error(`${name}: ${error.message}`);
  }
}
console.log(`${Object.keys(tests).length - failed} of ${Object.keys(tests).length} tests of the page's logic passed`);
process.exit(failed === 0 ? 0 : 1);
