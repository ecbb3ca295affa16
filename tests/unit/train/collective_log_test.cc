#include "apps/train/collective_log.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "apps/train/logged_communicator.h"

#include "tests/support/catch.h"

using namespace ddp;
using namespace ddp::train;

namespace {

constexpr std::uint64_t kGradient = 116'140;

std::string make_folder() {
  std::string name = (std::filesystem::temp_directory_path() / "collective-log-XXXXXX").string();
  REQUIRE(::mkdtemp(name.data()) != nullptr);
  return name;
}

/// A rank that has finished so many all-reduces, and stands in one more where `waits`.
CollectiveDump rank_log(int rank, int finished, bool waits, int world = 4) {
  CollectiveLog log;
  for (int i = 0; i < finished; ++i)
    log.finish(log.start(CollectiveKind::kAllReduce, kGradient, "float", 10 * i), 10 * i + 5);
  if (waits) log.start(CollectiveKind::kAllReduce, kGradient, "float", 10 * finished);
  return {rank, world, 0, "lost", {{"world", world, log.entries()}}};
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
  dump.groups.push_back({"node 1", 2, rank_log(3, 0, true).groups[0].entries});
  const std::string text = dump_text(dump);
  CHECK(text.substr(0, text.find('\n')) ==
        "{\"schema\":\"ddp-collective-log/2\",\"rank\":3,\"world_size\":4,\"attempt\":2,"
        "\"reason\":\"rank 3 lost rank 1 (\\\"gone\\\")\",\"groups\":[{\"name\":\"world\",\"ranks\":4},"
        "{\"name\":\"node 1\",\"ranks\":2}]}");
  const std::string last = text.substr(text.rfind('\n', text.size() - 2) + 1);
  CHECK(last ==
        "{\"group\":\"node 1\",\"sequence\":1,\"kind\":\"all-reduce\",\"bytes\":116140,\"type\":\"float\","
        "\"started\":0,\"finished\":0}\n");
  const auto read = parse_dump(text);
  REQUIRE(read);
  CHECK(read->rank == 3);
  CHECK(read->world_size == 4);
  CHECK(read->attempt == 2);
  CHECK(read->reason == dump.reason);
  CHECK(read->groups == dump.groups);
  for (std::size_t length = 0; length < text.size(); ++length) {
    const auto cut = parse_dump(text.substr(0, length));
    CHECK((!cut || cut->groups.size() == dump.groups.size()));
  }
}

TEST_CASE("a file of the time when only the world's operations were kept is read") {
  const auto read = parse_dump(
      "{\"schema\":\"ddp-collective-log/1\",\"rank\":1,\"world_size\":2,\"attempt\":0,\"reason\":\"r\"}\n"
      "{\"sequence\":7,\"kind\":\"barrier\",\"bytes\":0,\"type\":\"bytes\",\"started\":5,\"finished\":6}\n");
  REQUIRE(read);
  CHECK(read->groups ==
        std::vector<LoggedGroup>{{"world", 2, {{7, CollectiveKind::kBarrier, 0, "bytes", 5, 6}}}});
}

TEST_CASE("what is no dump is none") {
  for (const char* text :
       {"", "\n", "x\n", "[]\n", "{}\n", "{\"schema\":\"other\",\"rank\":0}\n",
        "{\"schema\":\"ddp-collective-log/"
        "1\",\"rank\":\"0\",\"world_size\":1,\"attempt\":0,\"reason\":\"\"}\n",
        "{\"schema\":\"ddp-collective-log/"
        "1\",\"rank\":0,\"world_size\":1,\"attempt\":0,\"reason\":\"\"}\n{\"sequence\":1}\n",
        // No groups, one that is no object, and an operation of one that the head has not.
        "{\"schema\":\"ddp-collective-log/"
        "2\",\"rank\":0,\"world_size\":1,\"attempt\":0,\"reason\":\"\"}\n",
        "{\"schema\":\"ddp-collective-log/"
        "2\",\"rank\":0,\"world_size\":1,\"attempt\":0,\"reason\":\"\",\"groups\":[1]}\n",
        "{\"schema\":\"ddp-collective-log/"
        "2\",\"rank\":0,\"world_size\":1,\"attempt\":0,\"reason\":\"\",\"groups\":[]}\n{\"group\":\"world\","
        "\"sequence\":1,\"kind\":\"barrier\",\"bytes\":0,\"type\":\"bytes\",\"started\":5,\"finished\":6}\n"})
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
        "all ranks wait in all-reduce 6 (116 KB): the way between them fails, or one stood still before it "
        "came there");
}

TEST_CASE("a rank that called another operation, size or type is named first") {
  const auto with = [](int rank, CollectiveKind kind, std::uint64_t bytes, const char* type) {
    CollectiveLog log;
    log.finish(log.start(CollectiveKind::kBarrier, 0, "bytes", 1), 2);
    log.start(kind, bytes, type, 3);
    return CollectiveDump{rank, 3, 0, "", {{"world", 3, log.entries()}}};
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
  CHECK(missing_collective({{0, 2, 0, "", {{"world", 2, ahead.entries()}}},
                            {1, 2, 0, "", {{"world", 2, behind.entries()}}}}) ==
        "rank 1 has not started all-reduce 2 (2 KB) that rank 0 waits in");
}

namespace {

/// A rank of two nodes with two each, and in which of its groups it waits; the others are at the same place.
CollectiveDump of_two_nodes(int rank, const std::string& waits_in) {
  CollectiveDump dump{rank, 4, 0, "lost", {}};
  for (const auto& [name, ranks] :
       {std::pair<std::string, int>("world", 4), {"node " + std::to_string(rank / 2), 2}, {"between", 4}}) {
    dump.groups.push_back({name, ranks, rank_log(rank, 2, name == waits_in).groups[0].entries});
  }
  return dump;
}

/// Sums that are complete as long as `good`.
class PlayedSums final : public DeviceSums {
 public:
  Result<> enqueue(void*, std::size_t, DeviceType, void*) override { return {}; }
  Result<> wait(const Done&, std::string_view) override {
    return good ? Result<>() : Error{ErrorCode::kTimeout, "too late during all-reduce"};
  }
  void on_end(std::function<void()>) override {}

  bool good = true;
};

class PlayedRanks final : public Communicator {
 public:
  explicit PlayedRanks(PlayedSums& sums) : sums_(sums) {}
  int rank() const override { return 1; }
  int world_size() const override { return 2; }
  Result<> all_reduce_sum(std::span<float>) override { return {}; }
  Result<> all_reduce_sum(std::span<double>) override { return {}; }
  Result<> broadcast(std::span<std::byte>, int) override { return {}; }
  Result<std::vector<std::uint64_t>> all_gather(std::span<const std::uint64_t>) override {
    return std::vector<std::uint64_t>(2);
  }
  Result<> barrier() override { return {}; }
  DeviceSums* device_sums() override { return &sums_; }

 private:
  PlayedSums& sums_;
};

}  // namespace

TEST_CASE("of several groups that stand still, that one counts where a rank is missed that waits nowhere") {
  // Rank 1 is not in the sum of its node; rank 0 waits there, and all of node 1 in what comes after.
  CHECK(missing_collective({of_two_nodes(0, "node 0"), of_two_nodes(1, ""), of_two_nodes(2, "between"),
                            of_two_nodes(3, "between")}) ==
        "rank 1 has not started all-reduce 3 (116 KB) of node 0 that rank 0 waits in");
  CHECK(missing_collective(
            {of_two_nodes(0, "node 0"), of_two_nodes(2, "between"), of_two_nodes(3, "between")}) ==
        "rank 1 left no log; rank 0 waits in all-reduce 3 (116 KB) of node 0");
  CHECK(missing_collective({of_two_nodes(0, "between"), of_two_nodes(1, "between"),
                            of_two_nodes(2, "between"), of_two_nodes(3, "")}) ==
        "rank 3 has not started all-reduce 3 (116 KB) between the nodes that ranks 0-2 wait in");
  // Nodes do not miss each other's ranks.
  CHECK(missing_collective({of_two_nodes(0, "node 0"), of_two_nodes(1, "node 0"), of_two_nodes(2, ""),
                            of_two_nodes(3, "")}) ==
        "all ranks wait in all-reduce 3 (116 KB) of node 0: the way between them fails, or one stood still "
        "before it "
        "came there");
}

TEST_CASE("sums on the GPU are in the log from their launch until they were waited for") {
  const std::string folder = make_folder();
  PlayedSums sums;
  {
    const auto file = std::make_shared<CollectiveLogFile>(folder, 1, 2, 0);
    LoggedCommunicator logged(std::make_unique<PlayedRanks>(sums), file, "world", 2);
    LoggedCommunicator node(std::make_unique<PlayedRanks>(sums), file, "node 0", 2);
    CHECK(node.barrier().has_value());
    DeviceSums& device = *logged.device_sums();
    CHECK(device.enqueue(nullptr, 10, DeviceType::kFloat32, nullptr).has_value());  // into a graph, once
    for (int step = 0; step < 3; ++step)
      device.launched(40, DeviceType::kFloat32);
    CHECK(device.wait({}, "all-reduce").has_value());
    sums.good = false;
    CHECK(device.wait({}, "all-reduce").has_error());
    CHECK(logged.barrier().has_value());  // after the failure nothing is an operation
  }
  std::ifstream written(folder + "/rank-1.jsonl");
  const auto dump = parse_dump(std::string(std::istreambuf_iterator<char>(written), {}));
  REQUIRE(dump);
  CHECK(dump->reason == "too late during all-reduce");
  REQUIRE(dump->groups.size() == 2);
  REQUIRE(dump->groups[0].entries.size() == 3);
  CHECK(dump->groups[0].entries[0].finished != 0);
  CHECK(dump->groups[0].entries[1].finished == 0);
  CHECK(dump->groups[0].entries[2].finished == 0);
  CHECK(dump->groups[0].entries[2].bytes == 40);
  CHECK(dump->groups[0].entries[2].kind == CollectiveKind::kAllReduce);
  REQUIRE(dump->groups[1].entries.size() == 1);
  CHECK((dump->groups[1].name == "node 0" && dump->groups[1].entries[0].finished != 0));
  std::filesystem::remove_all(folder);
}
