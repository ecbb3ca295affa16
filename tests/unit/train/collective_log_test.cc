#include "apps/train/collective_log.h"

#include <string>
#include <vector>

#include "tests/support/catch.h"

using namespace ddp::train;

namespace {

constexpr std::uint64_t kGradient = 116'140;

/// A rank that has finished so many all-reduces, and stands in one more where `waits`.
CollectiveDump rank_log(int rank, int finished, bool waits, int world = 4) {
  CollectiveLog log;
  for (int i = 0; i < finished; ++i)
    log.finish(log.start(CollectiveKind::kAllReduce, kGradient, "float", 10 * i), 10 * i + 5);
  if (waits) log.start(CollectiveKind::kAllReduce, kGradient, "float", 10 * finished);
  return {rank, world, 0, "lost", log.entries()};
}

}  // namespace

TEST_CASE("the log keeps the last thousand operations in order") {
  CollectiveLog log;
  for (std::uint64_t i = 1; i <= 2'500; ++i)
    CHECK(log.start(CollectiveKind::kBroadcast, i, "bytes", static_cast<std::int64_t>(i)) == i);
  log.finish(1, 7);  // forgotten
  log.finish(2'500, 9'999);
  log.finish(2'501, 1);  // of the future
  const auto entries = log.entries();
  REQUIRE(entries.size() == CollectiveLog::kCapacity);
  CHECK(entries.front() == LoggedCollective{1'501, CollectiveKind::kBroadcast, 1'501, "bytes", 1'501, 0});
  CHECK(entries.back() == LoggedCollective{2'500, CollectiveKind::kBroadcast, 2'500, "bytes", 2'500, 9'999});
}

TEST_CASE("a dump is read as it was written, and a cut one up to the cut") {
  CollectiveDump dump = rank_log(3, 2, true);
  dump.attempt = 2;
  dump.reason = "rank 3 lost rank 1 (\"gone\")";
  const std::string text = dump_text(dump);
  CHECK(text.substr(0, text.find('\n')) ==
        "{\"schema\":\"ddp-collective-log/1\",\"rank\":3,\"world_size\":4,\"attempt\":2,"
        "\"reason\":\"rank 3 lost rank 1 (\\\"gone\\\")\"}");
  const std::string last = text.substr(text.rfind('\n', text.size() - 2) + 1);
  CHECK(last ==
        "{\"sequence\":3,\"kind\":\"all-reduce\",\"bytes\":116140,\"type\":\"float\",\"started\":20,"
        "\"finished\":0}\n");
  const auto read = parse_dump(text);
  REQUIRE(read);
  CHECK(read->rank == 3);
  CHECK(read->world_size == 4);
  CHECK(read->attempt == 2);
  CHECK(read->reason == dump.reason);
  CHECK(read->entries == dump.entries);
  for (std::size_t length = 0; length < text.size(); ++length) {
    const auto cut = parse_dump(text.substr(0, length));
    CHECK((!cut || cut->entries.size() <= dump.entries.size()));
  }
}

TEST_CASE("what is no dump is none") {
  for (const char* text :
       {"", "\n", "x\n", "[]\n", "{}\n", "{\"schema\":\"other\",\"rank\":0}\n",
        "{\"schema\":\"ddp-collective-log/"
        "1\",\"rank\":\"0\",\"world_size\":1,\"attempt\":0,\"reason\":\"\"}\n",
        "{\"schema\":\"ddp-collective-log/"
        "1\",\"rank\":0,\"world_size\":1,\"attempt\":0,\"reason\":\"\"}\n{\"sequence\":1}\n"})
    CHECK_FALSE(parse_dump(text));
}

TEST_CASE("a rank that has not started what the others wait in is named") {
  CHECK(missing_collective({rank_log(0, 516, true), rank_log(1, 516, true), rank_log(2, 516, true),
                            rank_log(3, 516, false)}) ==
        "rank 3 has not started all-reduce 517 (116 KB) that ranks 0-2 wait in");
  CHECK(missing_collective(
            {rank_log(0, 3, true), rank_log(1, 3, false), rank_log(2, 3, true), rank_log(3, 3, false)}) ==
        "ranks 1 and 3 have not started all-reduce 4 (116 KB) that ranks 0 and 2 wait in");
  CHECK(missing_collective(
            {rank_log(0, 3, true), rank_log(1, 2, false), rank_log(2, 3, true), rank_log(3, 3, false)}) ==
        "rank 1 has not started all-reduce 3 (116 KB) that ranks 0, 2 and 3 have finished");
}

TEST_CASE("a rank without a log is named where nobody else is behind") {
  CHECK(missing_collective({rank_log(0, 5, true), rank_log(1, 5, true), rank_log(3, 5, true)}) ==
        "rank 2 left no log; ranks 0, 1 and 3 wait in all-reduce 6 (116 KB)");
  CHECK(missing_collective({rank_log(0, 5, true), rank_log(1, 5, false)}) ==
        "rank 1 has not started all-reduce 6 (116 KB) that rank 0 waits in");
}

TEST_CASE("a rank that is stuck in what the others have finished is named") {
  CHECK(missing_collective(
            {rank_log(0, 8, false), rank_log(1, 7, true), rank_log(2, 8, true), rank_log(3, 8, false)}) ==
        "rank 1 has not finished all-reduce 8 (116 KB) that ranks 0, 2 and 3 have finished");
}

TEST_CASE("where all stand in the same operation the way between them is named") {
  std::vector<CollectiveDump> dumps;
  for (int rank = 0; rank < 4; ++rank)
    dumps.push_back(rank_log(rank, 5, true));
  CHECK(missing_collective(dumps) ==
        "all ranks wait in all-reduce 6 (116 KB): it is the way between them that fails, not one of them");
}

TEST_CASE("a rank that called another operation, size or type is named first") {
  const auto with = [](int rank, CollectiveKind kind, std::uint64_t bytes, const char* type) {
    CollectiveLog log;
    log.finish(log.start(CollectiveKind::kBarrier, 0, "bytes", 1), 2);
    log.start(kind, bytes, type, 3);
    return CollectiveDump{rank, 3, 0, "", log.entries()};
  };
  const auto reduce = [&](int rank) { return with(rank, CollectiveKind::kAllReduce, 4'000'000, "float"); };
  CHECK(missing_collective({reduce(0), with(1, CollectiveKind::kBroadcast, 12, "bytes"), reduce(2)}) ==
        "rank 1 called broadcast 2 (12 bytes) where ranks 0 and 2 called all-reduce 2 (4.0 MB)");
  CHECK(missing_collective({with(0, CollectiveKind::kAllReduce, 1, "float"), reduce(1), reduce(2)}) ==
        "rank 0 called all-reduce 2 (1 byte) where ranks 1 and 2 called all-reduce 2 (4.0 MB)");
  CHECK(
      missing_collective({reduce(0), reduce(1), with(2, CollectiveKind::kAllReduce, 4'000'000, "double")}) ==
      "rank 2 called all-reduce 2 (4.0 MB) of double where ranks 0 and 1 called all-reduce 2 (4.0 MB) of "
      "float");
  CHECK(missing_collective({reduce(0), with(1, CollectiveKind::kBarrier, 0, "bytes")}) ==
        "rank 1 called barrier 2 where rank 0 called all-reduce 2 (4.0 MB)");
}

TEST_CASE("only the newest attempt is judged, and what is finished needs no words") {
  auto old = rank_log(1, 3, true);
  auto one = rank_log(0, 4, true), two = rank_log(1, 4, false);
  one.attempt = two.attempt = 1;
  CHECK(missing_collective({old, one, two}) ==
        "rank 1 has not started all-reduce 5 (116 KB) that rank 0 waits in");
  CHECK(missing_collective({rank_log(0, 4, false), rank_log(1, 4, false)}).empty());
  CHECK(missing_collective({}).empty());
}

TEST_CASE("of operations under way at once the first one counts") {
  CollectiveLog ahead, behind;
  for (int i = 0; i < 3; ++i)
    ahead.start(CollectiveKind::kAllReduce, 2'000, "float", i);
  behind.start(CollectiveKind::kAllReduce, 2'000, "float", 1);
  CHECK(missing_collective({{0, 2, 0, "", ahead.entries()}, {1, 2, 0, "", behind.entries()}}) ==
        "rank 1 has not started all-reduce 2 (2 KB) that rank 0 waits in");
}
