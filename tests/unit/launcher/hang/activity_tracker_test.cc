// Runs the scenario files of tests/scenarios/hang. A file says when the processes of the nodes use CPU time
// and print. Each node has its ActivityTracker, and the master a HangDetector. Time is simulated in steps of
// 50 ms.
#include "launcher/hang/hang_detection.h"

#include <algorithm>
#include <deque>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/catch.h"

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

class Simulation {
 public:
  void run(const std::filesystem::path& file) {
    std::ifstream in(file);
    REQUIRE(in);
    int number = 0;
    for (std::string line; std::getline(in, line);) {
      ++number;
      std::istringstream text(line);
      std::vector<std::string> words;
      for (std::string word; text >> word;)
        words.push_back(word);
      if (words.empty() || words[0][0] == '#') continue;
      INFO(file.filename().string() << ":" << number << ": " << line);
      command(words);
    }
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

  void command(const std::vector<std::string>& words) {
    const std::string& verb = words[0];
    const auto node = [&]() -> Node& { return nodes_.at(std::stoul(words.at(1))); };
    if (verb == "job") {  // job TIMEOUT NODES RANKS
      timeout_ = std::chrono::duration_cast<std::chrono::milliseconds>(seconds_of(words.at(1)));
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
          HangDetector(timeout_, std::vector<std::uint32_t>(count, static_cast<std::uint32_t>(ranks)), now_);
    } else if (verb == "cpu") {  // cpu NODE RANK SHARE
      node().processes.at(pid_of(std::stoul(words[1]), words.at(2))).share = std::stod(words.at(3));
    } else if (verb == "burst") {  // burst NODE RANK SECONDS
      node().processes.at(pid_of(std::stoul(words[1]), words.at(2))).cpu += seconds_of(words.at(3));
    } else if (verb == "child") {  // child NODE RANK: a child process of the rank
      start(node(), pid_of(std::stoul(words[1]), words.at(2) + "c")).leader = false;
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
      for (auto& [pid, process] : node.processes)
        process.cpu +=
            Time(static_cast<std::int64_t>(process.share * static_cast<double>(Time(kStep).count())));
      if (now_ >= node.next_sample && now_ >= node.asleep_until && has_ranks(node)) sample(i);
    }
    if (now_ < master_asleep_until_) return;
    // The worst order after a sleep: the alarm comes first, then the waiting messages.
    if (!hung_at_ && detector_.deadline() && *detector_.deadline() <= now_ && detector_.hangs(now_))
      hung_at_ = now_;
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
      return ProcessTime{pid, process.started, process.cpu / 10'000'000 * 10'000'000, process.traced,
                         process.leader && !process.zombie};
    };
    const auto times_of = [&node, time_of](const std::vector<pid_t>& pids) {
      std::vector<ProcessTime> times;
      for (const pid_t pid : pids) {
        if (node.processes.count(pid) > 0) times.push_back(time_of(pid, node.processes[pid]));
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
    } else if (!tracker.add_sample(times_of(few), false, theirs) &&
               !tracker.add_sample(times_of(node.known), false, theirs) && tracker.whole_due(theirs)) {
      node.known = all;
      ++node.wholes;
      tracker.add_sample(times_of(all), true, theirs);
    }
    const auto change = tracker.settle(theirs);
    if (!change) return;
    ++node.changes;
    const Time since = change->since - node.ahead;
    const bool quiet = change->quiet;
    const auto deliver = [this, index, quiet, since] {
      if (quiet)
        detector_.quiet(index, since);
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
  std::uint64_t started_ = 0;
};

TEST_CASE("the tracker passes its scenarios") {
  std::size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(DDP_SOURCE_DIR "/tests/scenarios/hang")) {
    Simulation().run(entry.path());
    ++count;
  }
  CHECK(count >= 12);
}

TEST_CASE("the sampling period follows the timeout within bounds") {
  CHECK(ActivityTracker::period(1s) == 200ms);
  CHECK(ActivityTracker::period(8s) == 1s);
  CHECK(ActivityTracker::period(1h) == 5s);
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
  CHECK_FALSE(tracker.settle(40s - 1ns));
  CHECK(tracker.settle(40s) == QuietChange{true, 10s});
  CHECK_FALSE(tracker.settle(45s));
  tracker.record_activity(46s);
  CHECK(tracker.settle(46s) == QuietChange{false, 0s});
}

TEST_CASE("after a sample that is far too late counting starts again") {
  ActivityTracker tracker(60s, Time(0));
  tracker.begin_sample(5s);
  CHECK(tracker.last_activity() == 0s);
  tracker.begin_sample(15s);  // two periods: perhaps load
  CHECK(tracker.last_activity() == 0s);
  tracker.begin_sample(27s);
  CHECK(tracker.last_activity() == 27s);
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

TEST_CASE("a check that comes far too late finds no hang, and counting starts again") {
  HangDetector detector(8s, {1}, Time(0));
  detector.quiet(0, Time(0));
  const Time due = 8s + 1s + 1s;  // timeout, sampling period, travel
  REQUIRE(detector.deadline() == due);
  CHECK_FALSE(detector.hangs(due - 1ns));
  CHECK(detector.hangs(due + 800ms));
  CHECK_FALSE(detector.hangs(due + 800ms + 1ns));
  CHECK(detector.deadline() == due + 800ms + 1ns + due);
}

TEST_CASE("without a timeout no hang is found") {
  HangDetector detector;
  detector.quiet(0, 1s);
  detector.alive(3);
  detector.rank_ended(0, 1s);
  detector.node_gone(0, 1s);
  CHECK_FALSE(detector.deadline());
  CHECK_FALSE(detector.hangs(1000s));
}

}  // namespace
}  // namespace ddp::launcher
