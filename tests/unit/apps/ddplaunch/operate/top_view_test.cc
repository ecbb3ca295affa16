#include "apps/ddplaunch/operate/top.h"

#include <algorithm>
#include <string>
#include <vector>

#include "base/text.h"
#include "tests/support/catch.h"

namespace ddp {
namespace {

using Json = TopView::Json;
using Key = TopView::Key;
using Wish = TopView::Wish;

Json gpu(int index, int busy) {
  return {{"index", index},   {"busy", busy},  {"memory", 80ULL << 30}, {"memory_used", 60ULL << 30},
          {"power_w", 412.5}, {"celsius", 61}, {"clock_mhz", 1980},     {"throttled_by", Json::array()},
          {"xid", nullptr}};
}

Json node(const std::string& name, int first_rank, double job_cpu, std::uint64_t step) {
  return {{"node", name},
          {"state", "running"},
          {"health", "good"},
          {"trouble", nullptr},
          {"first_rank", first_rank},
          {"ranks", 2},
          {"running", 2},
          {"silence_s", 0.4},
          {"step", step},
          {"steps", {step, step}},
          {"losses", {0.5, nullptr}},
          {"phases", {"forward", ""}},
          {"step_seconds", {0.25, nullptr}},
          {"usage",
           {{"cpus", 96},
            {"cpu", 2 * job_cpu},
            {"memory", 512ULL << 30},
            {"memory_used", 99ULL << 30},
            {"job_cpu", job_cpu},
            {"job_memory", 12ULL << 30},
            {"network_in", 1200000},
            {"network_out", 900},
            {"infiniband_in", 0},
            {"infiniband_out", 0},
            {"disk_read", 0},
            {"disk_written", 0},
            {"gpus", {gpu(0, 90), gpu(1, 95)}}}}};
}

Json job() {
  return {
      {"job", "run7"},
      {"state", "running"},
      {"why", nullptr},
      {"exit_code", nullptr},
      {"age_s", 12'300.0},
      {"world_size", 6},
      {"restarts", 1},
      {"max_restarts", 3},
      {"step", 12'340},
      {"step_s", 1.92},
      {"step_age_s", 1.0},
      {"loss", 0.3127},
      {"goodput", 0.961},
      {"usage", nullptr},
      {"failure", nullptr},
      {"warnings", Json::array()},
      {"nodes", {node("gpu01", 0, 15.8, 12'341), node("gpu02", 2, 31, 12'340), node("gpu03", 4, 3, 12'350)}}};
}

std::vector<std::string> rows_of(const Json& status, TopView::Size size = {80, 24}) {
  TopView view(false);
  view.set_status(status);
  return view.rows(size, false);
}

std::string joined(const std::vector<std::string>& rows) {
  std::string text;
  for (const std::string& row : rows)
    text += row + '\n';
  return text;
}

bool has(const std::vector<std::string>& rows, const std::string& words) {
  return joined(rows).find(words) != std::string::npos;
}

TEST_CASE("the picture at 80 columns") {
  const auto rows = rows_of(job());
  CHECK(joined(rows) ==
        "job run7   ● running   3 h 25 min   6 ranks   step 12340   1.92 s/step\n"
        "loss 0.3127   goodput 96.1 %   restarts left 2 of 3\n"
        "\n"
        "NODE  STATE   RANKS  STEP  CPU   MEM GPU% GMEM °C BEAT LAG MACHINE WATT\n"
        "gpu01 running 0-1   12341 15.8 12.0G   92 120G 61   0s   9 31.6/96  825\n"
        "gpu02 running 2-3   12340 31.0 12.0G   92 120G 61   0s  10 62.0/96  825\n"
        "gpu03 running 4-5   12350  3.0 12.0G   92 120G 61   0s   0  6.0/96  825\n");
}

TEST_CASE("no row is wider than the terminal, and there are not more than it has") {
  Json status = job();
  for (int i = 0; i < 200; ++i)
    status["nodes"].push_back(node("a-node-with-a-rather-long-name-" + std::to_string(i), 6 + 2 * i, i, 1));
  status["failure"] = {
      {"text", std::string(300, 'x')}, {"attempt", 0}, {"stderr_tail", {"a", "b", "c", "d", "e", "f"}}};
  status["warnings"] = {"no space left", std::string(500, 'w')};
  for (const auto& size :
       {TopView::Size{80, 24}, TopView::Size{200, 50}, TopView::Size{20, 6}, TopView::Size{1, 1}}) {
    for (const bool keys : {false, true}) {
      TopView view(true);
      view.set_status(status);
      const auto rows = view.rows(size, keys);
      CHECK(rows.size() <= size.rows);
      for (const std::string& row : rows)
        CHECK(launcher::text_width(row) <= size.columns);
    }
  }
}

TEST_CASE("a wide terminal shows more columns") {
  const auto rows = rows_of(job(), {200, 24});
  CHECK(has(rows, "MACHINE"));
  CHECK(has(rows, "NET in/out"));
  CHECK(has(rows, "12.0G/512G"));
  CHECK(has(rows, "120G/160G"));
  CHECK(has(rows, "1.1M/900B"));
  CHECK_FALSE(has(rows, "IB in/out"));  // nothing went over InfiniBand
}

std::vector<std::string> names(const std::vector<std::string>& rows) {
  std::vector<std::string> found;
  for (const std::string& row : rows)
    if (row.starts_with("gpu")) found.push_back(row.substr(0, 5));
  return found;
}

TEST_CASE("the table of a wide terminal has all that is known, and makes room for it") {
  Json status = job();
  for (Json& one : status["nodes"]) {
    one["node"] = one["node"].get<std::string>() + ".cluster.example.org";
    one["usage"]["infiniband_in"] = one["usage"]["infiniband_out"] = 12e9;
    one["usage"]["disk_read"] = 2 << 20;
    one["usage"]["disk_written"] = 5 << 10;
    one["health"] = "doubtful";
    one["trouble"] = "GPU 1 is slowed by heat, GPU 2 is slowed by heat";
  }
  const auto rows = rows_of(status, {200, 24});
  CHECK(has(rows, "IB in/out"));
  CHECK(has(rows, "DISK r/w\n"));
  CHECK(has(rows, "2.0M/5.0K\n"));
  CHECK(has(rows, "GPU 1 is slowed by h"));
  // Of the marked node all is shown.
  CHECK(has(rows, "\ngpu01.cluster.example.org: GPU 1 is slowed by heat, GPU 2 is slowed by heat\n"));
}

TEST_CASE("unhealthy nodes come first, with what is wrong") {
  Json status = job();
  status["nodes"][2]["health"] = "doubtful";
  status["nodes"][2]["trouble"] = "GPU 1 is slowed by heat";
  status["nodes"][1]["state"] = "lost";
  status["nodes"][1]["health"] = "bad";
  status["nodes"][1]["trouble"] = "lost";
  const auto rows = rows_of(status, {120, 24});
  CHECK(names(rows) == std::vector<std::string>{"gpu02", "gpu03", "gpu01"});
  CHECK(has(rows, "✖ lost"));
  CHECK(has(rows, "GPU 1 is slowed by heat"));
  CHECK_FALSE(has(rows, "\ngpu02: lost\n"));
  const auto narrow = rows_of(status);  // has no room for the troubles of all
  CHECK(has(narrow, "\ngpu02: lost\n"));
  CHECK_FALSE(has(narrow, "TROUBLE"));
  status["nodes"][1]["trouble"] =
      "lost, GPU 1 reports Xid 79, GPU 0 is slowed by heat, GPU 1 is slowed by heat, silent";
  CHECK(has(rows_of(status),
            "\ngpu02: lost, GPU 1 reports Xid 79, GPU 0 is slowed by heat, GPU 1 is slowed by\n"
            "heat, silent\n"));
}

TEST_CASE("a lost node of a job of an older version comes first, though nothing judges it") {
  Json status = job();
  for (Json& one : status["nodes"]) {
    one.erase("health");
    one.erase("trouble");
  }
  status["nodes"][1]["state"] = "lost";
  CHECK(names(rows_of(status)) == std::vector<std::string>{"gpu02", "gpu01", "gpu03"});
  CHECK(has(rows_of(status), "✖ lost"));
}

TEST_CASE("a hang is shown with who has not come and what tells it") {
  Json status = job();
  status["state"] = "stalled";
  const std::string verdict =
      "rank 5 on gpu03 has not started all-reduce 1234 of group 0, in which ranks 0-4 wait";
  status["hang"] = {
      {"text", verdict},
      {"confidence", "high"},
      {"witnesses",
       {{{"source", "flight recorder"}, {"ranks", 6}, {"text", verdict}},
        {{"source", "steps"}, {"ranks", 6}, {"text", "rank 5 is at step 99, the others at step 100"}}}}};
  CHECK(has(rows_of(status),
            "▲ rank 5 on gpu03 has not started all-reduce 1234 of group 0, in which ranks 0-4\n"
            "wait (confidence: high)\n"
            "  steps: rank 5 is at step 99, the others at step 100\n"));
  CHECK(names(rows_of(status)).size() == 3);
  // A job that was ended for it says it once.
  status["failure"] = {{"text", "hang: " + verdict}, {"attempt", 0}, {"stderr_tail", Json::array()}};
  CHECK_FALSE(has(rows_of(status), "confidence"));
}

TEST_CASE("the failure has as many of its last lines as there is room for") {
  Json status = job();
  status["failure"] = {{"text", "rank 5 on gpu02 exited 3"},
                       {"attempt", 0},
                       {"exception", "ValueError: boom\x1b[2J"},
                       {"hint", "look there"},
                       {"stderr_tail", Json::array()}};
  for (int i = 0; i < 20; ++i)
    status["failure"]["stderr_tail"].push_back("line " + std::to_string(i));
  const auto rows = rows_of(status);
  CHECK(has(
      rows,
      "✖ rank 5 on gpu02 exited 3 (attempt 0)\n  ValueError: boom\\x1b[2J\n  hint: look there\n  │ line "));
  CHECK(has(rows, "  │ line 19\n"));
  CHECK_FALSE(has(rows, "  │ line 0\n"));
  CHECK(names(rows).size() == 3);
  CHECK(has(rows_of(status, {80, 80}), "  │ line 0\n"));
  status["failure"]["exception"] = "line 19";  // which is said already
  CHECK_FALSE(has(rows_of(status), "  │ line 19\n"));
}

TEST_CASE("a job that stalls, that stops, and that has failed") {
  Json status = job();
  status["state"] = "stalled";
  status["step_age_s"] = 95.0;
  CHECK(has(rows_of(status), "▲ stalled"));
  CHECK(has(rows_of(status), "last one 95.0 s ago"));
  status["state"] = "stopping";
  status["why"] = "stopped by SIGTERM";
  CHECK(has(rows_of(status), "\nstopped by SIGTERM\n"));
  status["state"] = "ended";
  status["exit_code"] = 3;
  CHECK(has(rows_of(status), "✖ ended   exit code 3"));
}

TEST_CASE("keys choose order, node and rank") {
  TopView view(false);
  view.set_status(job());
  CHECK(view.rank() == 0);
  CHECK(view.on_key(Key::kDown) == Wish::kNothing);
  CHECK(view.rank() == 2);
  view.on_key(Key::kLetter, 'j');
  view.on_key(Key::kDown);  // the last one stays
  CHECK(view.rank() == 4);
  view.on_key(Key::kUp);
  view.on_key(Key::kLetter, 's');  // by step: the slowest first; the choice stays at its node
  CHECK(names(view.rows({80, 24}, true)) == std::vector<std::string>{"gpu02", "gpu01", "gpu03"});
  CHECK(has(view.rows({80, 24}, true),
            "\nq quit  s sort: step  ↑↓ choose  Enter ranks  o output  t stacks  x stop\n"));
  CHECK(view.rank() == 2);
  view.on_key(Key::kLetter, 's');  // by CPU
  CHECK(names(view.rows({80, 24}, true)) == std::vector<std::string>{"gpu02", "gpu01", "gpu03"});
  view.on_key(Key::kEnter);
  view.on_key(Key::kDown);
  CHECK(view.rank() == 3);
  const auto ranks = view.rows({80, 24}, true);
  CHECK(has(ranks, "node gpu02: running\nGPU 0  90 % busy  60.0G/80.0G  412 W  61 °C  1980 MHz\n"));
  CHECK(has(ranks, "RANK  STEP LOSS S/STEP DOES"));
  CHECK(view.on_key(Key::kLetter, 'o') == Wish::kOutput);
  CHECK(view.on_key(Key::kLetter, 't') == Wish::kStacks);
  view.on_key(Key::kEscape);
  CHECK(view.rank() == 2);
  CHECK(view.on_key(Key::kLetter, 'q') == Wish::kQuit);
}

TEST_CASE("a stop is confirmed first") {
  TopView view(false);
  view.set_status(job());
  CHECK(view.on_key(Key::kLetter, 'x') == Wish::kNothing);
  CHECK(has(view.rows({80, 24}, true), "stop job run7? y: yes, any other key: no"));
  CHECK(view.on_key(Key::kLetter, 'q') == Wish::kNothing);  // no
  CHECK(view.on_key(Key::kLetter, 'y') == Wish::kNothing);  // nothing is asked any more
  view.on_key(Key::kLetter, 'x');
  CHECK(view.on_key(Key::kLetter, 'y') == Wish::kStop);
}

TEST_CASE("the chosen node may leave, and a status may lack anything") {
  TopView view(false);
  view.set_status(job());
  view.on_key(Key::kDown);
  view.on_key(Key::kEnter);
  Json status = job();
  status["nodes"] = Json::array();
  view.set_status(status);
  CHECK(view.rank() == 0);
  view.rows({80, 24}, true);
  view.on_key(Key::kDown);
  for (const Json& odd :
       {Json(), Json::array(), Json{{"nodes", 7}}, Json{{"nodes", {nullptr, 3, {{"usage", {{"gpus", 1}}}}}}},
        Json{{"nodes", {{{"node", 1}, {"ranks", "x"}}}}, {"failure", {{"stderr_tail", "x"}}}}}) {
    view.set_status(odd);
    view.rows({80, 24}, true);
    view.on_key(Key::kEnter);
    view.on_key(Key::kDown);
    view.rows({80, 24}, true);
    view.on_key(Key::kEscape);
  }
}

TEST_CASE("the bytes of a keyboard") {
  const auto keys = read_keys("q\x1b[A\x1bOB\x1b[1;5C\r\x1b");
  REQUIRE(keys.size() == 5);
  CHECK(keys[0].letter == 'q');
  CHECK(keys[1].key == Key::kUp);
  CHECK(keys[2].key == Key::kDown);
  CHECK(keys[3].key == Key::kEnter);
  CHECK(keys[4].key == Key::kEscape);
  CHECK(read_keys("\x1b[").empty());
}

}  // namespace
}  // namespace ddp
