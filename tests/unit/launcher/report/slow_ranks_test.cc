#include "launcher/report/job_progress.h"

#include "tests/support/catch.h"

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
