#include "launcher/report/job_progress.h"

#include <bit>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tests/support/catch.h"

namespace ddp::launcher {
namespace {

using namespace std::chrono_literals;
using Kind = JournalEvent::Kind;
using Phase = JobProgress::Phase;

const std::uint64_t kNoLoss = std::bit_cast<std::uint64_t>(std::nan(""));
const std::vector<std::uint64_t> kNone;

StepDurations steps_of(std::chrono::milliseconds each, std::uint64_t steps) {
  StepDurations durations;
  durations.add(static_cast<std::int64_t>(steps) * each, steps);
  return durations;
}

/// A job with ranks 0 and 1. Each call takes the time in seconds.
struct Job {
  JobProgress progress{0s, 30s};
  std::uint32_t attempt = 0;

  void event(int second, Kind kind, bool failure = false) {
    progress.on_event({.kind = kind, .attempt = attempt, .failure = failure}, std::chrono::seconds(second));
  }
  void rank_exited(int second, int code) {
    progress.on_event({.kind = Kind::kRankExited, .rank = 1, .attempt = attempt, .exit_code = code},
                      std::chrono::seconds(second));
  }
  void run(int second, std::uint32_t number = 0) {
    attempt = number;
    event(second, Kind::kAttemptStarted);
    event(second + 2, Kind::kAttemptRunning);
  }
  void steps(int second, std::uint64_t rank_0, std::uint64_t rank_1) {
    progress.add_steps(
        {attempt, {0, 1}, {rank_0, rank_1}, {kNoLoss, kNoLoss}, {"", ""}, {0, 0}, {0, 0}, {0, 0}, kNone},
        std::chrono::seconds(second));
  }
  /// Takes a report of one rank: `durations` of its steps since the last one.
  void measured(int second, std::uint32_t rank, const StepDurations& durations) {
    std::vector<std::uint64_t> pairs;
    for (const auto& [bucket, steps] : durations.counts)
      pairs.insert(pairs.end(), {bucket, steps});
    progress.add_steps({attempt,
                        {rank},
                        {static_cast<std::uint64_t>(second)},
                        {kNoLoss},
                        {""},
                        {durations.steps()},
                        {std::bit_cast<std::uint64_t>(durations.seconds)},
                        {std::bit_cast<std::uint64_t>(durations.waited)},
                        pairs},
                       std::chrono::seconds(second));
  }
  JobProgress::Figures at(int second) const { return progress.figures(std::chrono::seconds(second)); }
  int spent(Phase phase, int second) const {
    return static_cast<int>(at(second).spent.at(static_cast<std::size_t>(phase)) / 1s);
  }
};

TEST_CASE("time until all ranks run is no progress") {
  Job job;
  CHECK(job.at(0).goodput() == 0);
  job.run(8);
  CHECK(job.spent(Phase::kStart, 40) == 10);
  CHECK(job.spent(Phase::kTrain, 40) == 30);
  CHECK(job.at(40).goodput() == 0.75);
}

TEST_CASE("steps that an earlier attempt had completed are rework") {
  Job job;
  job.run(0);
  job.steps(50, 100, 99);
  job.event(60, Kind::kAttemptStopping, true);
  job.event(61, Kind::kAttemptEnded);
  job.run(70, 1);
  job.steps(80, 98, 98);
  CHECK(job.spent(Phase::kRework, 85) == 13);
  job.steps(90, 100, 99);  // the most that all ranks had completed
  CHECK(job.spent(Phase::kStart, 100) == 4);
  CHECK(job.spent(Phase::kTrain, 100) == 58 + 10);
  CHECK(job.spent(Phase::kRework, 100) == 18);
  CHECK(job.spent(Phase::kWait, 100) == 10);
}

TEST_CASE("a restart that repeats no step makes no rework") {
  Job job;
  job.run(0);
  job.steps(10, 100, 100);
  job.event(11, Kind::kAttemptEnded);
  job.run(12, 1);
  job.steps(15, 101, 101);
  job.event(16, Kind::kAttemptEnded);
  job.run(17, 2);
  job.steps(20, 101, 101);  // ranks report what they have before they go on
  job.steps(21, 102, 102);
  job.event(22, Kind::kAttemptEnded);
  job.run(23, 3);
  job.event(26, Kind::kAttemptEnded);  // before a step was reported
  CHECK(job.spent(Phase::kRework, 30) == 0);
  CHECK(job.spent(Phase::kTrain, 30) == 9 + 2 + 3 + 1);
}

TEST_CASE("a restart of a job that reports no steps counts as progress") {
  Job job;
  job.run(0);
  job.event(10, Kind::kAttemptEnded);
  job.run(10, 1);
  CHECK(job.spent(Phase::kTrain, 20) == 8 + 8);
}

TEST_CASE("the silence before a hang is found is part of it") {
  Job job;
  job.run(0);
  job.event(42, Kind::kHangFound);
  CHECK(job.spent(Phase::kTrain, 50) == 10);
  CHECK(job.spent(Phase::kHang, 50) == 38);
  job.event(50, Kind::kHangOver);
  CHECK(job.spent(Phase::kTrain, 55) == 15);

  Job early;
  early.run(0);
  early.event(12, Kind::kHangFound);  // the silence began before all ranks ran
  CHECK(early.spent(Phase::kTrain, 12) == 0);
  CHECK(early.spent(Phase::kHang, 12) == 10);
}

TEST_CASE("goodput ends where steps end") {
  Job job;
  job.run(0);
  job.steps(10, 100, 100);
  CHECK(job.at(1000).stalled == 0s);  // nobody knows how long a step takes
  job.steps(12, 102, 102);
  CHECK(job.at(41).stalled == 0s);
  CHECK(job.spent(Phase::kTrain, 41) == 39);
  CHECK(job.at(42).stalled == 30s);
  CHECK(job.spent(Phase::kTrain, 42) == 10);
  CHECK(job.spent(Phase::kHang, 612) == 600);
  CHECK(job.spent(Phase::kTrain, 612) == 10);
  job.steps(612, 103, 102);  // one rank alone goes on
  CHECK(job.at(612).stalled == 600s);
  job.steps(622, 103, 103);
  CHECK(job.at(622).stalled == 0s);
  CHECK(job.spent(Phase::kHang, 632) == 610);
  CHECK(job.spent(Phase::kTrain, 632) == 20);
}

TEST_CASE("a step is stalled after five times the median") {
  Job job;
  job.run(0);
  for (int step = 0; step < 40; ++step)  // of 20 s, one of them with a checkpoint of 60 s
    job.steps(20 * step + (step > 20 ? 60 : 0), 1U + static_cast<unsigned>(step),
              1U + static_cast<unsigned>(step));
  CHECK(job.spent(Phase::kHang, 840) == 0);
  CHECK(job.at(840 + 99).stalled == 0s);
  CHECK(job.at(840 + 100).stalled == 100s);
}

TEST_CASE("a hang that is found in a stalled step is booked once, and no next attempt is stalled by it") {
  Job job;
  job.run(0);
  job.steps(10, 100, 100);
  job.steps(12, 102, 102);
  job.event(112, Kind::kHangFound);
  CHECK(job.spent(Phase::kTrain, 120) == 10);
  CHECK(job.spent(Phase::kHang, 120) == 108);
  CHECK(job.at(120).stalled == 0s);  // it is a hang
  job.event(120, Kind::kHangOver);
  CHECK(job.at(149).stalled == 0s);
  CHECK(job.at(150).stalled == 30s);
  job.event(150, Kind::kAttemptStopping, true);
  job.run(151, 1);
  CHECK(job.at(400).stalled == 0s);  // it has not completed a step
  CHECK(job.spent(Phase::kHang, 400) == 138);
  CHECK(job.spent(Phase::kWait, 400) == 1);
}

TEST_CASE("steps of all ranks, of the foremost and of each rank") {
  Job job;
  job.run(0);
  CHECK_FALSE(job.at(5).step);
  CHECK_FALSE(job.progress.report_of(0));
  job.steps(10, 7, 5);
  CHECK(job.at(10).step == 5);
  CHECK(job.at(10).last_step == 7);
  CHECK(job.progress.report_of(0)->step == 7);
  job.attempt = 1;
  job.steps(11, 9, 9);  // of an attempt that has not begun
  CHECK(job.at(11).step == 5);
  job.run(12, 1);
  CHECK_FALSE(job.at(13).step);
}

TEST_CASE("the duration of a step is measured over the last ten to twenty seconds") {
  Job job;
  job.run(0);
  job.steps(10, 100, 100);
  CHECK_FALSE(job.at(10).step_seconds);
  job.steps(12, 101, 101);
  CHECK(job.at(12).step_seconds == 2.0);
  job.steps(12, 103, 101);  // another rank is ahead
  CHECK(job.at(13).step_seconds == 2.0);
  for (unsigned second = 13; second <= 60; ++second) {  // one and three steps a second in turn
    const unsigned step = 100 + 2 * second + second % 2;
    job.steps(static_cast<int>(second), step, step);
  }
  CHECK(job.at(60).step_seconds == 0.5);
  CHECK(job.at(69).step_seconds == 0.5);
  CHECK(job.at(90).step_seconds == 30);  // the present step is longer already
}

TEST_CASE("in a short time the workers' own measurement is the duration of a step") {
  Job job;
  job.run(0);
  job.measured(1, 0, steps_of(100ms, 9));
  job.measured(1, 1, steps_of(125ms, 8));
  CHECK(std::abs(*job.at(1).step_seconds - 0.125) < 1e-9);  // of the slowest rank
  job.measured(2, 0, steps_of(100ms, 1));                   // its last step, reported up to a second later
  CHECK(std::abs(*job.at(2).step_seconds - 0.125) < 1e-9);
  CHECK(*job.at(30).step_seconds == 29);  // the present step is longer already
}

TEST_CASE("a rank that reports late does not spoil the duration of a step") {
  Job job;
  job.run(0);
  job.progress.add_steps({0, {0}, {110}, {kNoLoss}, {""}, {0}, {0}, {0}, kNone}, 9s);
  job.steps(10, 111, 100);
  CHECK_FALSE(job.at(10).step_seconds);
  job.steps(14, 115, 102);
  CHECK(job.at(14).step_seconds == 2.0);
}

TEST_CASE("each step of each rank is counted by its duration") {
  Job job;
  job.run(0);
  job.measured(10, 0, steps_of(100ms, 10));
  job.measured(10, 1, steps_of(20ms, 50));
  job.run(50, 1);
  job.measured(60, 0, steps_of(400s, 1));
  const StepDurations durations = job.at(60).durations;
  CHECK(durations.counts == StepDurations{{{33, 50}, {50, 10}, {141, 1}}}.counts);
  CHECK(durations.seconds == 402);
}

TEST_CASE("a bucket is so narrow that a percentile in it is right within 10 %") {
  CHECK(StepDurations::bound(0) == 0.001);
  CHECK(StepDurations::bound(StepDurations::kBounds - 1) >= 600);
  for (std::uint32_t bucket = 0; bucket < StepDurations::kBounds; ++bucket) {
    const double bound = StepDurations::bound(bucket);
    CHECK(StepDurations::bucket_of(bound) == bucket);
    CHECK(StepDurations::bucket_of(bound * 1.001) == bucket + 1);
    CHECK(StepDurations::bound(bucket + 1) / bound < 1.1);
  }
  CHECK(StepDurations::bucket_of(0) == 0);
  CHECK(StepDurations::bucket_of(1e9) == StepDurations::kBounds);
}

TEST_CASE("durations that a node cannot have measured are not counted") {
  Job job;
  job.run(0);
  for (const double seconds : {-1.0, 2e9, std::nan(""), HUGE_VAL})
    job.measured(1, 0, StepDurations{{{0, 1}}, seconds});
  job.measured(1, 0, StepDurations{{{0, StepDurations::kMost + 1}}, 1});
  job.measured(1, 0, StepDurations{{{StepDurations::kBounds + 1, 1}}, 1});
  CHECK(job.at(1).durations == StepDurations());
  CHECK(job.progress.report_of(0)->step == 1);
  StepDurations own;
  own.add(1s, StepDurations::kMost + 1);
  CHECK(own == StepDurations());
}

TEST_CASE("a rank's time is that of its usual steps in the last minute") {
  Job job;
  job.run(0);
  for (int second = 1; second <= 100; ++second) {
    job.measured(second, 0, steps_of(100ms, 10));
    job.measured(second, 1, steps_of(125ms, 8));
    CHECK(job.progress.report_of(0)->step_seconds.has_value() == second > 30);
  }
  CHECK(std::abs(*job.progress.report_of(0)->step_seconds - 0.1) < 1e-9);
  CHECK(std::abs(*job.progress.report_of(1)->step_seconds - 0.125) < 1e-9);
  job.measured(101, 0, steps_of(20s, 1));  // a checkpoint, which the other rank has not reported yet
  CHECK(std::abs(*job.progress.report_of(0)->step_seconds - 0.1) < 1e-9);
  for (int second = 200; second <= 280;
       second += 40)  // steps that are longer than the time of the measurement
    job.measured(second, 1, steps_of(40s, 1));
  CHECK(job.progress.report_of(1)->step_seconds == 40);
  job.run(300, 1);
  job.measured(310, 0, steps_of(1s, 1));
  CHECK_FALSE(job.progress.report_of(0)->step_seconds);
}

TEST_CASE("steps are measured between the reports of a worker") {
  StepTimer timer;
  timer.at(5, 1s);
  CHECK(timer.take() == StepDurations());  // nobody knows when its steps began
  timer.at(5, 2s);                         // the same step goes on
  timer.at(6, 3s);
  timer.at(10, 4s);  // each fourth step is reported
  CHECK(timer.take() == StepDurations{{{60, 4}, {83, 1}}, 3});
  timer.at(3, 5s);  // it begins anew
  timer.at(4, 5100ms);
  timer.forget();
  timer.at(5, 9s);
  timer.at(6, 9100ms);
  CHECK(timer.take().counts == StepDurations{{{50, 2}}}.counts);
  timer.at(~std::uint64_t{0}, 10s);
  CHECK(timer.take() == StepDurations());
  timer.at(1, 20s, 2);
  timer.at(2, 21s, 2.5);
  timer.at(3, 22s, 2.75);
  CHECK(timer.take().waited == 0.75);
  timer.at(4, 23s, 9);  // no more than the step itself
  CHECK(timer.take().waited == 1);
  timer.at(5, 24s, 1);
  CHECK(timer.take().waited == 0);
}

TEST_CASE("a wrong step that was taken back makes no rework") {
  Job job;
  job.run(0);
  job.steps(5, 1'000'000, 1'000'000);
  job.steps(6, 3, 3);
  job.run(10, 1);
  job.steps(20, 2, 2);
  job.steps(21, 3, 3);
  CHECK(job.spent(Phase::kRework, 30) == 9);
}

TEST_CASE("the loss is that of the last report") {
  Job job;
  job.run(0);
  job.steps(1, 1, 1);
  CHECK_FALSE(job.at(1).loss);
  job.progress.add_steps(
      {0, {1}, {2}, {std::bit_cast<std::uint64_t>(1e99)}, {"backward"}, {0}, {0}, {0}, kNone}, 2s);
  CHECK(job.at(2).loss == 1e99);
  CHECK(job.progress.report_of(1)->phase == "backward");
  CHECK_FALSE(job.progress.report_of(0)->loss);
  job.steps(3, 3, 3);  // it was not finite
  CHECK_FALSE(job.at(3).loss);
}

TEST_CASE("an Xid line counts once for a node and attempt") {
  Job job;
  const std::string lines = "NVRM: Xid (PCI:0000:65:00): 79, pid=1\nNVRM: Xid (PCI:0000:66:00): 79\nno error";
  job.progress.add_xids("gpu07", lines);
  job.progress.add_xids("gpu07", lines);  // of another rank
  job.run(0, 1);
  job.progress.add_xids("gpu07", "NVRM: Xid (PCI:0000:65:00): 79, pid=1");  // again
  job.progress.add_xids("gpu08", "NVRM: Xid (PCI:0000:65:00): 31, pid=1");
  using Counts = std::map<std::string, std::map<int, int>>;
  CHECK(job.at(0).xids == Counts{{"gpu07", {{79, 3}}}, {"gpu08", {{31, 1}}}});
}

TEST_CASE("failures are counted by their first cause") {
  const auto failures = [](const Job& job) {
    const auto counts = job.at(99).failures;
    return std::vector<int>(counts.begin(), counts.end());
  };
  Job job;
  job.run(0);
  job.rank_exited(5, 3);
  job.event(5, Kind::kNodeLost);
  job.event(6, Kind::kAttemptStopping, true);
  job.event(6, Kind::kAttemptStopping, true);  // without grace
  job.event(7, Kind::kAttemptEnded);
  CHECK(failures(job) == std::vector{1, 0, 0, 0});
  CHECK(job.at(99).nodes_lost == 1);
  job.run(10, 1);
  job.rank_exited(12, 0);
  job.event(13, Kind::kNodeLost);
  job.event(14, Kind::kAttemptStopping, true);
  CHECK(failures(job) == std::vector{1, 1, 0, 0});
  job.run(20, 2);
  job.event(25, Kind::kHangFound);
  job.event(26, Kind::kAttemptStopping, true);
  CHECK(failures(job) == std::vector{1, 1, 1, 0});
  job.run(30, 3);
  job.rank_exited(33, 1);
  job.event(34, Kind::kAttemptEnded);  // the only rank had failed, so nothing was stopped
  CHECK(failures(job) == std::vector{2, 1, 1, 0});
  job.run(40, 4);
  job.event(44, Kind::kAttemptStopping, true);
  CHECK(failures(job) == std::vector{2, 1, 1, 1});
  job.run(50, 5);
  job.event(54, Kind::kAttemptStopping, false);  // the user's wish
  job.rank_exited(55, 143);
  job.event(56, Kind::kAttemptEnded);
  CHECK(failures(job) == std::vector{2, 1, 1, 1});
}

}  // namespace
}  // namespace ddp::launcher

using namespace ddp::launcher;
using namespace std::chrono_literals;

namespace {

/// Ranks 0 to 3 on two nodes. `facts` is what is known of the second one.
struct ComparedRanks {
  SlowRanks ranks;
  std::string facts;
  SlowRanks::Time now = 100s;

  /// All ranks make ten steps of 1 s; of that time `waited` are waits, which rank 3 does not have.
  void ten_steps(double seconds_of_3, double waited = 0) {
    for (std::uint32_t rank = 0; rank < 3; ++rank)
      ranks.add(rank, 10, 10 - 10 * waited, 10 * waited);
    ranks.add(3, 10, 10 * seconds_of_3, 0);
    now += 10s;
  }
  std::string check() {
    std::string lines;
    for (const SlowRanks::Change& change : ranks.check(
             now, [](std::uint32_t rank) { return rank < 2 ? "gpu01" : "gpu02"; },
             [this](std::uint32_t rank) { return rank < 2 ? "" : facts; }))
      lines += change.text + '\n';
    return lines;
  }
};

}  // namespace

TEST_CASE("a rank that is slow for twenty steps is named once, and when it has recovered") {
  ComparedRanks job;
  job.facts = "GPU 3 is slowed by heat";
  job.ten_steps(2);
  CHECK(job.check().empty());
  job.ten_steps(1.9);
  CHECK(job.check() ==
        "rank 3 on gpu02 is slow: 1.90 s per step, the median of the ranks is 1.00 s; on its node GPU 3 is "
        "slowed by heat\n");
  job.ten_steps(1.9);
  CHECK(job.check().empty());
  // Between the two limits it stays slow.
  job.ten_steps(1.4);
  job.ten_steps(1.4);
  CHECK(job.check().empty());
  job.ten_steps(1.1);
  CHECK(job.check().empty());
  job.ten_steps(1.1);
  CHECK(job.check() == "rank 3 on gpu02 is as fast as the other ranks again\n");
}

TEST_CASE("a slow rank is named again when more is known of its node, but not soon") {
  ComparedRanks job;
  job.ten_steps(2);
  job.ten_steps(2);
  CHECK(
      job.check() ==
      "rank 3 on gpu02 is slow: 2.00 s per step, the median of the ranks is 1.00 s; nothing is known of its "
      "node that explains it\n");
  job.facts = "GPU 3 reports Xid 48";
  CHECK(job.check().empty());
  job.now += 10min;
  CHECK(job.check() ==
        "rank 3 on gpu02 is slow: 2.00 s per step, the median of the ranks is 1.00 s; on its node GPU 3 "
        "reports "
        "Xid 48\n");
  job.now += 10min;
  CHECK(job.check().empty());
}

TEST_CASE("where ranks wait for each other, the time without waits counts") {
  ComparedRanks job;
  for (int i = 0; i < 3; ++i)
    job.ten_steps(1);
  CHECK(job.check().empty());  // the same durations, and no waits are known
  job.ten_steps(1, 0.6);
  job.ten_steps(1, 0.6);
  CHECK(job.check() ==
        "rank 3 on gpu02 is slow: 1.00 s per step without waiting for others, the median of the ranks is 400 "
        "ms; nothing is known of its "
        "node that explains it\n");
}

TEST_CASE("one long step, small differences and another attempt name nobody") {
  ComparedRanks job;
  for (int i = 0; i < 10; ++i) {
    job.ten_steps(i % 2 == 0 ? 7 : 1);  // a checkpoint in every twentieth step
    CHECK(job.check().empty());
  }
  ComparedRanks fast;
  for (int i = 0; i < 3; ++i) {
    for (std::uint32_t rank = 0; rank < 4; ++rank)
      fast.ranks.add(rank, 2000, rank == 3 ? 10 : 2, 0);  // 5 ms and 1 ms
    CHECK(fast.check().empty());
  }
  ComparedRanks brief;  // twenty steps on a busy machine say little where steps are short
  for (int i = 0; i < 4; ++i) {
    for (std::uint32_t rank = 0; rank < 4; ++rank)
      brief.ranks.add(rank, 10, rank == 3 ? 0.4 : 0.1, 0);
    CHECK(brief.check().empty());
  }
  ComparedRanks restarted;
  restarted.ten_steps(2);
  restarted.ranks.begin_attempt();
  restarted.ten_steps(2);
  CHECK(restarted.check().empty());
}

TEST_CASE("few of many slow ranks get a line of their own") {
  SlowRanks ranks;
  for (int window = 0; window < 2; ++window)
    for (std::uint32_t rank = 0; rank < 50; ++rank)
      ranks.add(rank, 10, rank < 30 ? 10 : 20, 0);
  const auto changes = ranks.check(
      1s, [](std::uint32_t) { return "n"; }, [](std::uint32_t) { return ""; });
  REQUIRE(changes.size() == SlowRanks::kMostNamed + 1);
  CHECK(changes.back().text == "12 more ranks are slow: ranks 38-49");
}
