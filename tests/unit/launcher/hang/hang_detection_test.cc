// The stage of tests/scenarios/hang: each node has its ActivityTracker, and the master a HangDetector. Time
// is simulated in steps of 50 ms.
#include "launcher/hang/hang_detection.h"

#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/scenario.h"

namespace ddp::launcher {
namespace {

using namespace std::chrono_literals;
using Time = std::chrono::nanoseconds;

constexpr auto kStep = 50ms;
constexpr Time kTravel = 20ms;

struct Process {
  int rank = 0;
  bool leader = true;
  bool zombie = false;  ///< not in the trees any more, but still in /proc
  std::uint64_t started = 0;
  Time cpu{0};
  double share = 0;  ///< of a core
  void end() { zombie = true, share = 0; }
  bool traced = false;
  bool waits = false;    ///< in a collective
  std::uint64_t io = 0;  ///< bytes
  double io_rate = 0;    ///< bytes a second
};

struct Node {
  std::unique_ptr<ActivityTracker> tracker;
  std::map<pid_t, Process> processes;
  std::vector<pid_t> known;  ///< from the last full sample
  Time ahead{0};             ///< of its clock before the master's
  Time next_sample{0};
  Time asleep_until{0};
  bool held = false;
  int changes = 0;
  int wholes = 0;
};

class HangStage : public test::Stage {
 public:
  std::vector<std::string> act(const test::Words& words, const std::string& /*line*/) override {
    command(words);
    return {};
  }

 private:
  static Time seconds_of(const std::string& text) {
    return std::chrono::duration_cast<Time>(std::chrono::duration<double>(std::stod(text)));
  }
  /// "1" is the leader of rank 1, "1c" its child.
  static pid_t pid_of(std::size_t node, const std::string& rank) {
    const int base = static_cast<int>(1000 * (node + 1)) + 10 * std::stoi(rank);
    return rank.ends_with('c') ? base + 1 : base;
  }

  Process& start(Node& node, pid_t pid) {
    Process& process = node.processes[pid];
    process.started = ++started_;
    return process;
  }

  void command(const test::Words& words) {
    const std::string& verb = words[0];
    const auto node = [&]() -> Node& { return nodes_.at(std::stoul(words.at(1))); };
    if (verb == "job") {  // job HANG-TIMEOUT NODES RANKS [STALL]: 0 means never
      HangLimits limits;
      limits.hang = std::chrono::duration_cast<std::chrono::milliseconds>(seconds_of(words.at(1)));
      if (words.size() > 4)
        limits.stall = std::chrono::duration_cast<std::chrono::milliseconds>(seconds_of(words.at(4)));
      timeout_ = limits.shortest();
      const std::size_t count = std::stoul(words.at(2));
      const int ranks = std::stoi(words.at(3));
      for (std::size_t i = 0; i < count; ++i) {
        Node& made = nodes_.emplace_back();
        made.tracker = std::make_unique<ActivityTracker>(timeout_, now_);
        made.next_sample = now_ + ActivityTracker::period(timeout_) + i * 7ms;
        for (int rank = 0; rank < ranks; ++rank)
          start(made, pid_of(i, std::to_string(rank))).rank = rank;
      }
      detector_ =
          HangDetector(limits, std::vector<std::uint32_t>(count, static_cast<std::uint32_t>(ranks)), now_);
    } else if (verb == "cpu") {  // cpu NODE RANK SHARE
      node().processes.at(pid_of(std::stoul(words[1]), words.at(2))).share = std::stod(words.at(3));
    } else if (verb == "burst") {  // burst NODE RANK SECONDS
      node().processes.at(pid_of(std::stoul(words[1]), words.at(2))).cpu += seconds_of(words.at(3));
    } else if (verb == "child") {  // child NODE RANK: a child process of the rank
      start(node(), pid_of(std::stoul(words[1]), words.at(2) + "c")).leader = false;
    } else if (verb ==
               "spins") {  // spins NODE RANK yes|no: it uses a core in a collective, or returns from it
      Process& process = node().processes.at(pid_of(std::stoul(words[1]), words.at(2)));
      process.waits = words.at(3) == "yes";
      process.share = process.waits ? 1 : 0;
    } else if (verb == "files") {  // files NODE RANK BYTES: reads and writes so many in a second
      node().processes.at(pid_of(std::stoul(words[1]), words.at(2))).io_rate = std::stod(words.at(3));
    } else if (verb == "print") {
      node().tracker->record_activity(now_ + node().ahead);
    } else if (verb == "ends") {  // ends NODE RANK: a clean exit
      node().processes.at(pid_of(std::stoul(words[1]), words.at(2))).end();
      detector_.rank_ended(std::stoul(words[1]), now_);
    } else if (verb == "leaves") {  // leaves NODE PROCESS: it ends, or leaves its tree
      node().processes.at(pid_of(std::stoul(words[1]), words.at(2))).end();
    } else if (verb == "gone") {
      node().processes.clear();
      detector_.node_gone(std::stoul(words[1]), now_);
    } else if (verb == "held") {
      node().held = words.at(2) == "yes";
    } else if (verb == "debugger") {
      node().processes.at(pid_of(std::stoul(words[1]), "0")).traced = words.at(2) == "yes";
    } else if (verb == "node-sleeps") {
      node().asleep_until = now_ + seconds_of(words.at(2));
    } else if (verb == "clock") {  // clock NODE SECONDS: ahead of the master's clock
      node().ahead = seconds_of(words.at(2));
      node().tracker = std::make_unique<ActivityTracker>(timeout_, now_ + node().ahead);
    } else if (verb == "master-sleeps") {
      master_asleep_until_ = now_ + seconds_of(words.at(1));
    } else if (verb == "pass") {
      for (const Time until = now_ + seconds_of(words.at(1)); now_ < until;)
        step();
    } else if (verb == "works") {
      CHECK_FALSE(hung_at_);
    } else if (verb == "hangs") {  // hangs FROM TO: seconds after the start
      REQUIRE(hung_at_);
      CHECK(*hung_at_ - start_ >= seconds_of(words.at(1)));
      CHECK(*hung_at_ - start_ <= seconds_of(words.at(2)));
    } else if (verb == "stalls") {  // stalls NUMBER [FROM TO]: so many reports, the last one then
      REQUIRE(stalls_.size() == std::stoul(words.at(1)));
      if (words.size() < 3) return;
      CHECK(stalls_.back() - start_ >= seconds_of(words.at(2)));
      CHECK(stalls_.back() - start_ <= seconds_of(words.at(3)));
    } else if (verb == "wholes") {  // wholes NODE ATMOST
      CHECK(node().wholes <= std::stoi(words.at(2)));
    } else if (verb == "messages") {  // messages NODE ATMOST
      CHECK(node().changes <= std::stoi(words.at(2)));
    } else {
      FAIL("no such command: " << verb);
    }
  }

  static bool has_ranks(const Node& node) {
    return std::ranges::any_of(node.processes,
                               [](const auto& entry) { return entry.second.leader && !entry.second.zombie; });
  }

  void step() {
    now_ += kStep;
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      Node& node = nodes_[i];
      for (auto& [pid, process] : node.processes) {
        process.cpu +=
            Time(static_cast<std::int64_t>(process.share * static_cast<double>(Time(kStep).count())));
        process.io += static_cast<std::uint64_t>(process.io_rate * 0.05);
      }
      if (now_ >= node.next_sample && now_ >= node.asleep_until && has_ranks(node)) sample(i);
    }
    if (now_ < master_asleep_until_) return;
    // The worst order after a sleep: the alarm comes first, then the waiting messages.
    if (!hung_at_ && detector_.deadline() && *detector_.deadline() <= now_) {
      const HangDetector::Finding found = detector_.check(now_);
      if (found == HangDetector::Finding::kHang) hung_at_ = now_;
      if (found == HangDetector::Finding::kStall) stalls_.push_back(now_);
    }
    while (!mail_.empty() && mail_.front().first <= now_) {
      mail_.front().second();
      mail_.pop_front();
    }
  }

  void sample(std::size_t index) {
    Node& node = nodes_[index];
    node.next_sample = now_ + ActivityTracker::period(timeout_);
    const Time theirs = now_ + node.ahead;
    ActivityTracker& tracker = *node.tracker;
    tracker.begin_sample(theirs);
    const auto time_of = [](pid_t pid, const Process& process) {
      return ProcessTime{pid,
                         process.started,
                         process.cpu / 10'000'000 * 10'000'000,
                         process.traced,
                         process.leader && !process.zombie,
                         process.waits};
    };
    const auto times_of = [&node, time_of](const std::vector<pid_t>& pids, bool files) {
      std::vector<ProcessTime> times;
      for (const pid_t pid : pids) {
        if (node.processes.count(pid) == 0) continue;
        times.push_back(time_of(pid, node.processes[pid]));
        if (files) times.back().io = node.processes[pid].io;
      }
      return times;
    };
    std::vector<pid_t> few = tracker.pacemakers();
    std::vector<pid_t> all;
    for (const auto& [pid, process] : node.processes) {
      if (process.zombie) continue;
      all.push_back(pid);
      if (process.leader) few.push_back(pid);
    }
    if (node.held) {
      tracker.record_activity(theirs);
    } else if (!tracker.add_sample(times_of(few, false), false, theirs) &&
               !tracker.add_sample(times_of(node.known, true), false, theirs) && tracker.whole_due(theirs)) {
      node.known = all;
      ++node.wholes;
      tracker.add_sample(times_of(all, true), true, theirs);
    }
    const auto change = tracker.poll_change(theirs);
    if (!change) return;
    ++node.changes;
    const Time since = change->since - node.ahead;
    const bool quiet = change->quiet;
    const auto deliver = [this, index, quiet, since] {
      if (quiet)
        detector_.quiet(index, since, false);
      else
        detector_.alive(index);
    };
    mail_.emplace_back(now_ + kTravel, deliver);
  }

  std::chrono::milliseconds timeout_{0};
  const Time start_ = 1000s;
  Time now_ = start_;
  Time master_asleep_until_{0};
  std::vector<Node> nodes_;
  HangDetector detector_;
  std::deque<std::pair<Time, std::function<void()>>> mail_;
  std::optional<Time> hung_at_;
  std::vector<Time> stalls_;
  std::uint64_t started_ = 0;
};

TEST_CASE("the tracker passes its scenarios") {
  test::run_scenarios("hang", 20, std::make_unique<HangStage>);
}

TEST_CASE("the sampling period follows the timeout within bounds") {
  CHECK(ActivityTracker::period(1s) == 200ms);
  CHECK(ActivityTracker::period(8s) == 1s);
  CHECK(ActivityTracker::period(1h) == 3s);
}

TEST_CASE("a process with the reused PID of another is new") {
  ActivityTracker tracker(60s, Time(0));
  const ProcessTime first{7, 1, 1s, false};
  CHECK(tracker.add_sample({&first, 1}, true, 1s));
  const ProcessTime idle{7, 1, 1s, false};
  CHECK_FALSE(tracker.add_sample({&idle, 1}, true, 2s));
  const ProcessTime second{7, 2, 500ms, false};
  CHECK(tracker.add_sample({&second, 1}, true, 3s));
  CHECK(tracker.last_activity() == 3s);
}

TEST_CASE("a hundredth of a core is idle, and only a burst above it is activity") {
  ActivityTracker tracker(60s, Time(0));
  const auto sample = [&tracker](Time cpu, bool whole, Time now) {
    const ProcessTime process{7, 1, cpu, false};
    return tracker.add_sample({&process, 1}, whole, now);
  };
  CHECK(sample(1s, true, 1s));
  const Time cpu = 1s + 100ms + 10ms - 1ns;  // the burst, and the share of a second
  CHECK_FALSE(sample(cpu, false, 2s));
  CHECK_FALSE(sample(cpu, true, 2s));  // the same time counts once
  CHECK(sample(cpu + 1ns, true, 2s));
}

TEST_CASE("a process that a whole sample does not find is forgotten") {
  ActivityTracker tracker(60s, Time(0));
  const ProcessTime worker{1, 1, 1s, false};
  const ProcessTime other{2, 2, 0s, false};
  CHECK(tracker.add_sample({&worker, 1}, true, 1s));
  CHECK_FALSE(tracker.add_sample({&worker, 1}, false, 2s));
  CHECK_FALSE(tracker.add_sample({&other, 1}, true, 3s));
  CHECK_FALSE(tracker.add_sample({&worker, 1}, false, 4s));
  CHECK(tracker.pacemakers().empty());
  const ProcessTime back{1, 1, 2s, false};
  CHECK_FALSE(tracker.add_sample({&back, 1}, true, 5s));  // older than `other`: it used its time elsewhere
  const ProcessTime at_work{1, 1, 3s, false};
  CHECK(tracker.add_sample({&at_work, 1}, false, 6s));
}

TEST_CASE("a whole sample is due after a quarter of the timeout, at most a minute") {
  ActivityTracker tracker(60s, Time(0));
  CHECK(tracker.whole_due(0s));
  tracker.add_sample({}, false, 1s);
  CHECK(tracker.whole_due(1s));
  tracker.add_sample({}, true, 2s);
  CHECK_FALSE(tracker.whole_due(17s - 1ns));
  CHECK(tracker.whole_due(17s));
  ActivityTracker patient(30min, Time(0));
  patient.add_sample({}, true, 0s);
  CHECK_FALSE(patient.whole_due(1min - 1ns));
  CHECK(patient.whole_due(1min));
}

TEST_CASE("between whole samples a stranger with the PID of a process that ended is no work") {
  ActivityTracker tracker(60s, Time(0));
  const ProcessTime worker{1, 1, 1s, false};
  CHECK(tracker.add_sample({&worker, 1}, true, 1s));
  for (int i = 2; i < 9; ++i) {
    const ProcessTime stranger{1, 5, std::chrono::seconds(i), true};
    CHECK_FALSE(tracker.add_sample({&stranger, 1}, false, std::chrono::seconds(i)));
  }
  CHECK(tracker.last_activity() == 1s);
}

TEST_CASE("quiet is reported after half of the timeout, and its end at once") {
  using QuietChange = ActivityTracker::QuietChange;
  ActivityTracker tracker(60s, 10s);
  CHECK_FALSE(tracker.poll_change(40s - 1ns));
  CHECK(tracker.poll_change(40s) == QuietChange{true, 10s});
  CHECK_FALSE(tracker.poll_change(45s));
  tracker.record_activity(46s);
  CHECK(tracker.poll_change(46s) == QuietChange{false, 0s});
}

TEST_CASE("after a sample that is far too late counting starts again") {
  ActivityTracker tracker(60s, Time(0));
  tracker.begin_sample(3s);
  CHECK(tracker.last_activity() == 0s);
  tracker.begin_sample(9s);  // two periods: perhaps load
  CHECK(tracker.last_activity() == 0s);
  tracker.begin_sample(17s);
  CHECK(tracker.last_activity() == 17s);
}

TEST_CASE("processes that were active are sampled first") {
  ActivityTracker tracker(60s, Time(0));
  const std::vector<ProcessTime> all = {{7, 1, 0s, false}, {8, 1, 2s, false}, {9, 1, 0s, false}};
  CHECK(tracker.pacemakers().empty());
  CHECK(tracker.add_sample(all, true, 5s));
  CHECK(tracker.pacemakers() == std::vector<pid_t>{8});
  CHECK_FALSE(tracker.add_sample(all, true, 10s));  // inactive, but still the best guess
  CHECK(tracker.pacemakers() == std::vector<pid_t>{8});
}

using Finding = HangDetector::Finding;

TEST_CASE("a check that comes far too late finds no hang, and counting starts again") {
  HangDetector detector({8s}, {1}, Time(0));
  detector.quiet(0, Time(0), false);
  const Time due = 8s + 1s + 1s;  // timeout, sampling period, travel
  REQUIRE(detector.deadline() == due);
  CHECK(detector.check(due - 1ns) == Finding::kNone);
  CHECK(detector.check(due + 800ms) == Finding::kHang);
  CHECK(detector.check(due + 800ms + 1ns) == Finding::kNone);
  CHECK(detector.deadline() == due + 800ms + 1ns + due);
}

TEST_CASE("without a timeout no hang is found") {
  HangDetector detector;
  detector.quiet(0, 1s, true);
  detector.alive(3);
  detector.rank_ended(0, 1s);
  detector.node_gone(0, 1s);
  CHECK_FALSE(detector.deadline());
  CHECK(detector.check(1000s) == Finding::kNone);
}

TEST_CASE("a check that an inspection has delayed is not late") {
  HangDetector detector({8s}, {1}, Time(0));
  detector.quiet(0, Time(0), false);
  detector.resume(15s);
  CHECK(detector.check(15s) == Finding::kHang);
}

TEST_CASE("by steps a job hangs only where all workers report them, and stalls in any case") {
  HangDetector detector({8s, true, 20s}, {1, 1}, Time(0));
  detector.quiet(0, Time(0), true);
  detector.quiet(1, Time(0), false);
  CHECK(detector.deadline() == 22s);
  CHECK(detector.check(22s) == Finding::kStall);
  CHECK(detector.deadline() == 62s);
  detector.alive(1);
  detector.quiet(1, 60s, true);
  CHECK(detector.deadline() == 70s);
  CHECK(detector.check(70s) == Finding::kHang);
}

using Nodes = std::vector<std::size_t>;
using Purpose = HangInvestigation::Purpose;

/// Ranks 0 and 1 on "a", rank 2 on "b". All are quiet since 100 s.
HangInvestigation quiet_job() {
  HangInvestigation hang({60s}, {{"a", 0, 2}, {"b", 2, 1}}, 100s);
  hang.quiet(0, 100s, false);
  hang.quiet(1, 100s, false);
  return hang;
}

rendezvous::Inspection state_of(std::uint32_t rank, const std::string& state) {
  rendezvous::Inspection answer;
  answer.rank = rank;
  answer.state = state;
  return answer;
}

rendezvous::Inspection at_step(std::uint32_t rank, std::uint64_t step) {
  rendezvous::Inspection answer = state_of(rank, "running");
  answer.steps = true;
  answer.step = step;
  return answer;
}

rendezvous::Inspection last() {
  rendezvous::Inspection answer;
  answer.last = true;
  return answer;
}

TEST_CASE("hang investigation: none is found without a timeout, or before an attempt") {
  HangInvestigation off({}, {{"a", 0, 2}}, 0s);
  off.quiet(0, 0s, false);
  CHECK_FALSE(off.deadline());
  CHECK(off.check(1h) == Finding::kNone);
  CHECK_FALSE(HangInvestigation().deadline());
  CHECK_FALSE(HangInvestigation().complete(1h));
}

TEST_CASE("hang investigation: the stacks may give a hint") {
  HangInvestigation hang = quiet_job();
  hang.begin(Purpose::kHang, {}, 162s);
  rendezvous::Inspection stuck = state_of(2, "running");
  stuck.text = "#5  0x00007fe8 in c10d::TCPStore::TCPStore(std::string, c10d::TCPStoreOptions const&) ()\n";
  hang.answer(1, stuck);
  hang.conclude("f", 230s);
  const std::string text = hang.hung_text("f");
  CHECK(text.find("\nstacks and state of each rank: f\nhint: rank 2 is still connecting to a store.") !=
        std::string::npos);
}

TEST_CASE("hang investigation: a lost node is not waited for") {
  HangInvestigation hang = quiet_job();
  hang.begin(Purpose::kHang, {}, 162s);
  hang.answer(0, last());
  CHECK_FALSE(hang.complete(163s));
  hang.node_gone(1, 163s);
  CHECK(hang.complete(163s));
}

TEST_CASE("hang investigation: a node that was lost before is neither waited for nor asked") {
  HangInvestigation hang = quiet_job();
  hang.alive(1);
  CHECK_FALSE(hang.deadline());
  hang.node_gone(1, 163s);
  REQUIRE(hang.deadline());
  CHECK(*hang.deadline() > 163s + 60s);  // the loss is activity
  CHECK(hang.begin(Purpose::kHang, {}, 230s) == Nodes{0});
}

TEST_CASE("hang investigation: answers to a cancelled inspection do not count in the next one") {
  HangInvestigation hang = quiet_job();
  hang.begin(Purpose::kHang, {}, 162s);
  hang.answer(0, at_step(0, 8));
  hang.answer(0, at_step(1, 7));
  CHECK(hang.cancel());
  hang.rank_ended(1, 170s);
  CHECK(hang.begin(Purpose::kHang, {2}, 240s) == Nodes{0});  // node 1 has no live rank any more
  hang.answer(0, last());
  CHECK(hang.complete(240s));
  hang.conclude("f", 240s);
  CHECK(hang.hung().empty());
}

TEST_CASE("hang investigation: only a hang is inspected with debuggers, and kills the rank that is behind") {
  HangInvestigation hang({60s, false, 20s}, {{"a", 0, 2}}, 100s);
  hang.quiet(0, 100s, true);
  CHECK(hang.check(*hang.deadline()) == Finding::kStall);
  for (const Purpose purpose : {Purpose::kAsked, Purpose::kStall, Purpose::kHang}) {
    CAPTURE(static_cast<int>(purpose));
    hang.begin(purpose, {}, 124s);
    CHECK(hang.order(3).attempt == 3);
    CHECK(hang.order(3).unless_active == (purpose != Purpose::kAsked));
    CHECK(hang.order(3).debuggers == (purpose == Purpose::kHang));
    hang.answer(0, at_step(0, 8));
    hang.answer(0, at_step(1, 7));
    const HangVerdict verdict = hang.conclude("f", 125s);
    CHECK(verdict.text == "rank 1 is behind: the last reported step is 7, that of other ranks is 8");
    CHECK(verdict.files == (purpose == Purpose::kAsked ? "" : "f"));
    CHECK(verdict.quiet == 24s);
    CHECK(hang.hung().empty() == (purpose != Purpose::kHang));
  }
}

using Lines = std::vector<std::string>;

TEST_CASE("ranks that differ from the others are named first") {
  HangReport report;
  for (std::uint32_t rank = 0; rank < 8; ++rank)
    report.add(rank, rank < 4 ? "gpu01" : "gpu02", rank == 6 ? "running" : "sleeping in poll");
  CHECK(report.lines() ==
        Lines{"rank 6 on gpu02: running", "ranks 0-5,7 on gpu01 and gpu02: sleeping in poll"});
  CHECK(report.activity(60s) == "no worker printed anything or used CPU time for 60.0 s");
}

TEST_CASE("ranks in the same state share one line") {
  HangReport report;
  for (std::uint32_t rank = 0; rank < 64; ++rank)
    report.add(rank, "gpu0" + std::to_string(rank / 8), "sleeping in futex");
  CHECK(report.lines() ==
        Lines{"ranks 0-63 on gpu00, gpu01, gpu02, gpu03 and 4 more hosts: sleeping in futex"});
}

TEST_CASE("a rank without an answer is reported as such") {
  HangReport report;
  report.expect(0, "a");
  report.expect(1, "b");
  report.add(0, "a", "running");
  report.add(0, "a", "");  // stacks that arrive later
  CHECK(report.lines() == Lines{"rank 0 on a: running", "rank 1 on b: no answer"});
}

TEST_CASE("a long list of different states is abbreviated") {
  HangReport report;
  for (std::uint32_t rank = 0; rank < 20; ++rank)
    report.add(rank, "a", "sleeping in recv, 10.0.0." + std::to_string(rank) + ":1");
  const Lines lines = report.lines();
  REQUIRE(lines.size() == 8);
  CHECK(lines[0] == "rank 0 on a: sleeping in recv, 10.0.0.0:1");
  CHECK(lines[7] == "13 more ranks in other states");
}

TEST_CASE("ranks that wait for a store without a server get a hint") {
  HangReport report;
  report.add_stacks(0, "#3 read () from libc.so.6\n");
  CHECK(report.hint().empty());
  report.add_stacks(
      1, "#5  0x00007fe8 in c10d::TCPStore::TCPStore(std::string, c10d::TCPStoreOptions const&) ()\n");
  CHECK(report.hint().starts_with("rank 1 is still connecting to a store."));
  report.add_stacks(3, "    _create_c10d_store (torch/distributed/rendezvous.py:185)\n");
  report.add_stacks(
      3, "#5  0x00007fe8 in c10d::TCPStore::TCPStore(std::string, c10d::TCPStoreOptions const&) ()\n");
  CHECK(report.hint() ==
        "ranks 1,3 are still connecting to a store. If its port is not MASTER_PORT, no process serves it "
        "while TORCHELASTIC_USE_AGENT_STORE is True: try --store worker (docs/users/store.md)");
}

// The text of NCCL's documentation, chapter RAS, shortened.
constexpr const char* kRasText =
    "NCCL version 2.24.3 compiled with CUDA 12.5\nJob summary\n===========\n\n  Nodes  Processes\n      4    "
    "      8\n"
    "\nErrors\n======\n\nWarnings\n========\n\n#0-0 (27a079b828ff1a75) MISMATCH\n"
    "  Communicator ranks have different collective operation counts\n  26 ranks have launched up to "
    "operation 6650\n"
    "  6 ranks have launched up to operation 6649\n";

TEST_CASE("what NCCL finds is one line, and one more witness") {
  const std::string line =
      "#0-0 (27a079b828ff1a75) MISMATCH; Communicator ranks have different collective operation counts; 26 "
      "ranks "
      "have launched up to operation 6650; 6 ranks have launched up to operation 6649";
  CHECK(ras_findings(kRasText) == line);
  CHECK(ras_findings("Errors\n======\n\nWarnings\n========\n") == "");
  CHECK(ras_findings("nothing of NCCL") == "");
  const std::string flood = "Errors\n======\n" + std::string(1 << 20, 'x') + "\n\x1b[31m\n";
  CHECK(ras_findings(flood)->size() == kRasBytes);
  HangReport report;
  report.add_stacks(0, "== NCCL RAS, 127.0.0.1:28028\n" + std::string(kRasFindings) + "a\x1b\nErrors\n");
  report.add_stacks(1, std::string(kRasFindings) + "b\n");
  CHECK(report.ras() == "a\\x1b");
}

/// A rank in the JSON of NCCL's documentation.
std::string ras_rank(int rank, const std::string& status, int all_reduces) {
  return "{\"rank\": " + std::to_string(rank) +
         ", \"host\": \"172.16.64.245\", \"pid\": " + std::to_string(500 + rank) +
         ", \"cuda_dev\": 0, \"status\": {" + status +
         "}, \"collective_counts\": {\"AllGather\": 0, \"AllReduce\": " + std::to_string(all_reduces) + "}}";
}
std::string ras_json(const std::string& ranks, const std::string& missing) {
  return "{\n\"nccl_version\": \"2.30.7\", \"communicators_count\": 1, \"communicators\": [{\"hash\": "
         "\"0xae94\", "
         "\"size\": 4, \"ranks\": [" +
         ranks + "], \"missing_ranks\": [" + missing + "]}], \"ras\": {\"timeouts_count\": 0}}\n";
}

TEST_CASE("NCCL's JSON says which ranks of a communicator differ") {
  const std::string runs =
      R"("init_state": 0, "async_error": 0, "finalize_called": false, "abort_flag": false)";
  const std::string alike =
      ras_rank(0, runs, 517) + "," + ras_rank(1, runs, 517) + "," + ras_rank(2, runs, 517);
  CHECK(ras_findings(ras_json(alike, "")) == "");
  CHECK(ras_findings(ras_json(alike + "," + ras_rank(3, runs, 516), "")) ==
        "communicator 0xae94 of 4 ranks: AllReduce called 516 times: rank 3 (process 503 on 172.16.64.245); "
        "AllReduce called 517 times: ranks 0-2");
  for (const auto& [status, finding] : std::map<std::string, std::string>{
           {R"("unresponsive": true, "considered_dead": false)", "no answer"},
           {R"("unresponsive": true, "considered_dead": true)", "dead"},
           {R"("unresponsive": false, "considered_dead": false)", "no member any more"}})
    CHECK(
        ras_findings(ras_json(alike, R"({"rank": 3, "pid": 7, "host": "h", "status": {)" + status + "}}")) ==
        "communicator 0xae94 of 4 ranks: " + finding + ": rank 3 (process 7 on h)");
  for (const auto& [status, finding] :
       std::map<std::string, std::string>{{R"("init_state": 7)", "still initializing"},
                                          {R"("init_state": 2)", "not initialized (system error)"},
                                          {R"("init_state": 0, "async_error": 6)", "failed (remote error)"},
                                          {R"("init_state": 0, "async_error": 99)", "failed (error 99)"},
                                          {R"("abort_flag": true)", "aborted"},
                                          {R"("destroy_flag": true)", "finalized"}})
    CHECK(ras_findings(ras_json(ras_rank(0, runs, 1) + "," + ras_rank(1, status, 1), "")) ==
          "communicator 0xae94 of 4 ranks: " + finding + ": rank 1 (process 501 on 172.16.64.245)");
  const std::string over = R"("destroy_flag": true)";
  CHECK(ras_findings(ras_json(ras_rank(0, over, 2) + "," + ras_rank(1, over, 2), "")) == "");
  CHECK(ras_findings(ras_json(ras_rank(0, over, 1) + "," + ras_rank(1, over, 2), "")) ==
        "communicator 0xae94 of 4 ranks: AllReduce called 1 time: rank 0 (process 500 on 172.16.64.245); "
        "AllReduce called 2 times: rank 1 (process 501 on 172.16.64.245)");
}

TEST_CASE("JSON that is not NCCL's is refused or ignored, and has a limit") {
  const std::string good = ras_json(ras_rank(0, "", 1) + "," + ras_rank(1, "", 2), "");
  CHECK_FALSE(ras_findings(good.substr(0, good.size() / 2)));
  CHECK_FALSE(ras_findings("{"));
  CHECK_FALSE(ras_findings("{\"communicators\": 3}"));
  CHECK_FALSE(ras_findings("{\"communicators\": " + std::string(1 << 16, '[')));
  const std::size_t deep = 100'000;
  CHECK(ras_findings("{\"communicators\": " + std::string(deep, '[') + std::string(deep, ']') + "}") == "");
  for (const char* odd :
       {"1", "null", "[[]]", "\"x\"", R"({"ranks": 3})", R"({"ranks": [1, {"rank": -1}, {"rank": "0"}]})",
        R"({"hash": [], "size": -1, "ranks": [{"rank": 0, "status": 3, "collective_counts": [1]}]})"})
    CHECK(ras_findings("{\"communicators\": [" + std::string(odd) + "]}") == "");
  CHECK(ras_findings(R"({"communicators": [{"hash": "\u001b[31m", "missing_ranks": [{"rank": 2}]}]})") ==
        "communicator \\x1b[31m: no member any more: rank 2");
  std::string many = ras_rank(0, "", 0);
  for (int rank = 1; rank < 100; ++rank)
    many += "," + ras_rank(rank, "", rank);
  CHECK(ras_findings(ras_json(many, ""))->size() == kRasBytes);
}

TEST_CASE("the rank that is behind by its reported step is named, and killed first") {
  HangReport report;
  for (std::uint32_t rank = 0; rank < 4; ++rank)
    report.add(rank, "gpu01", rank == 2 ? "at step 11: running" : "at step 12: sleeping in poll");
  CHECK(report.behind().empty());  // unknown
  for (std::uint32_t rank = 0; rank < 4; ++rank)
    report.add_step(rank, 0);
  CHECK(report.behind().empty());  // equal, before the first step
  for (std::uint32_t rank = 0; rank < 4; ++rank)
    report.add_step(rank, rank == 2 ? 11 : 12);
  CHECK(report.behind() == std::vector<std::uint32_t>{2});
  CHECK(report.activity(12s) == "no worker reported a step or printed anything for 12.0 s");
  CHECK(report.behind_text() == "rank 2 is behind: the last reported step is 11, that of other ranks is 12");
}

}  // namespace
}  // namespace ddp::launcher
