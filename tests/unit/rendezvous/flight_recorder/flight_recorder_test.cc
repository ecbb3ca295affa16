#include "rendezvous/flight_recorder/flight_recorder.h"

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/support/catch.h"

using namespace ddp::rendezvous;

namespace {

constexpr std::uint64_t kGradient = 116'140;

/// A rank's memory with one group.
class OneGroup {
 public:
  explicit OneGroup(int rank = 0, int world = 4) : memory_(std::make_unique<FlightRecorderMemory>()) {
    begin_collectives(*memory_, rank, world, 0);
    group_ = add_collective_group(*memory_, "world", 0, world);
    log.emplace(*group_);
  }
  FlightRecorderDump dump() const { return *read_collectives(*memory_); }
  std::vector<RecordedCollective> entries() const { return dump().groups[0].entries; }
  FlightRecorderMemory& memory() { return *memory_; }

 private:
  std::unique_ptr<FlightRecorderMemory> memory_;
  FlightRecorderMemory::Group* group_ = nullptr;

 public:
  std::optional<FlightRecorder> log;
};

/// Returns the dump of a rank that has finished `finished` all-reduces, and waits in one more if `waits`.
FlightRecorderDump rank_log(int rank, int finished, bool waits, int world = 4) {
  OneGroup group(rank, world);
  for (int i = 0; i < finished; ++i)
    group.log->finish(group.log->start("all-reduce", kGradient, "float", 10 * i), 10 * i + 5);
  if (waits) group.log->start("all-reduce", kGradient, "float", 10 * finished);
  return group.dump();
}

}  // namespace

TEST_CASE("the log keeps the last 1000 operations in order") {
  OneGroup group;
  FlightRecorder& log = *group.log;
  for (std::uint64_t i = 1; i <= 2'500; ++i)
    CHECK(log.start("broadcast", i, "bytes", static_cast<std::int64_t>(i)) == i);
  log.finish(1, 7);  // already overwritten
  log.finish(2'500, 9'999);
  log.finish(2'501, 1);  // has not started yet
  const auto entries = group.entries();
  REQUIRE(entries.size() == FlightRecorderMemory::kCapacity);
  CHECK(entries.front() == RecordedCollective{1'501, "broadcast", 1'501, "bytes", 1'501, 0});
  CHECK(entries.back() == RecordedCollective{2'500, "broadcast", 2'500, "bytes", 2'500, 9'999});
}

TEST_CASE("a dump survives its encoding, and a truncated one is read up to the cut") {
  FlightRecorderDump dump = rank_log(3, 2, true);
  dump.attempt = 2;
  dump.reason = "rank 3 lost rank 1 (\"gone\")";
  dump.groups.push_back({"node 1", 2, 2, rank_log(3, 0, true).groups[0].entries});
  const std::string text = dump_text(dump);
  CHECK(text.substr(0, text.find('\n')) ==
        "{\"schema\":\"ddp-flight-recorder/2\",\"rank\":3,\"world_size\":4,\"attempt\":2,"
        "\"reason\":\"rank 3 lost rank 1 "
        "(\\\"gone\\\")\",\"groups\":[{\"name\":\"world\",\"first\":0,\"ranks\":4},"
        "{\"name\":\"node 1\",\"first\":2,\"ranks\":2}]}");
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

TEST_CASE("a file of the older format with the world's operations alone is read") {
  const auto read = parse_dump(
      "{\"schema\":\"ddp-flight-recorder/1\",\"rank\":1,\"world_size\":2,\"attempt\":0,\"reason\":\"r\"}\n"
      "{\"sequence\":7,\"kind\":\"barrier\",\"bytes\":0,\"type\":\"bytes\",\"started\":5,\"finished\":6}\n");
  REQUIRE(read);
  CHECK(read->groups == std::vector<RecordedGroup>{{"world", 0, 2, {{7, "barrier", 0, "bytes", 5, 6}}}});
}

TEST_CASE("other text is no dump") {
  for (const char* text :
       {"", "\n", "x\n", "[]\n", "{}\n", "{\"schema\":\"other\",\"rank\":0}\n",
        "{\"schema\":\"ddp-flight-recorder/"
        "1\",\"rank\":\"0\",\"world_size\":1,\"attempt\":0,\"reason\":\"\"}\n",
        "{\"schema\":\"ddp-flight-recorder/"
        "1\",\"rank\":0,\"world_size\":1,\"attempt\":0,\"reason\":\"\"}\n{\"sequence\":1}\n",
        // A rank outside its world, and a world of impossible size.
        "{\"schema\":\"ddp-flight-recorder/1\",\"rank\":2,\"world_size\":2,\"attempt\":0,\"reason\":\"\"}\n",
        "{\"schema\":\"ddp-flight-recorder/1\",\"rank\":-1,\"world_size\":2,\"attempt\":0,\"reason\":\"\"}\n",
        "{\"schema\":\"ddp-flight-recorder/"
        "1\",\"rank\":0,\"world_size\":2000000,\"attempt\":0,\"reason\":\"\"}\n",
        "{\"schema\":\"ddp-flight-recorder/"
        "1\",\"rank\":4294967297,\"world_size\":2,\"attempt\":0,\"reason\":\"\"}\n",
        "{\"schema\":\"ddp-flight-recorder/"
        "2\",\"rank\":0,\"world_size\":1,\"attempt\":0,\"reason\":\"\",\"groups\":[{\"name\":\"x\",\"first\":"
        "-1,\"ranks\":1}]}\n",
        // No groups, a group that is no object, and an operation of a group that the header lacks.
        "{\"schema\":\"ddp-flight-recorder/"
        "2\",\"rank\":0,\"world_size\":1,\"attempt\":0,\"reason\":\"\"}\n",
        "{\"schema\":\"ddp-flight-recorder/"
        "2\",\"rank\":0,\"world_size\":1,\"attempt\":0,\"reason\":\"\",\"groups\":[1]}\n",
        "{\"schema\":\"ddp-flight-recorder/"
        "2\",\"rank\":0,\"world_size\":1,\"attempt\":0,\"reason\":\"\",\"groups\":[]}\n{\"group\":\"world\","
        "\"sequence\":1,\"kind\":\"barrier\",\"bytes\":0,\"type\":\"bytes\",\"started\":5,\"finished\":6}\n"})
    CHECK_FALSE(parse_dump(text));
}

TEST_CASE("a rank that has not started the operation of the others is named") {
  CHECK(analyze_desync(
            {rank_log(0, 516, true), rank_log(1, 516, true), rank_log(2, 516, true), rank_log(3, 516, false)})
            .text == "rank 3 has not started all-reduce 517 (113 KiB) that ranks 0-2 wait in");
  CHECK(analyze_desync(
            {rank_log(0, 3, true), rank_log(1, 3, false), rank_log(2, 3, true), rank_log(3, 3, false)})
            .text == "ranks 1,3 have not started all-reduce 4 (113 KiB) that ranks 0,2 wait in");
  CHECK(analyze_desync(
            {rank_log(0, 3, true), rank_log(1, 2, false), rank_log(2, 3, true), rank_log(3, 3, false)})
            .text == "rank 1 has not started all-reduce 3 (113 KiB) that ranks 0,2-3 have finished");
}

TEST_CASE("more than half of the ranks that are behind are a weak verdict") {
  const auto behind = [](int ranks) {
    std::vector<FlightRecorderDump> dumps;
    for (int rank = 0; rank < 4; ++rank)
      dumps.push_back(rank_log(rank, 5, rank >= ranks));
    return analyze_desync(dumps);
  };
  CHECK_FALSE(behind(1).unsure);
  CHECK_FALSE(behind(2).unsure);
  CHECK(behind(3).unsure);
  CHECK(behind(3).text == "ranks 0-2 have not started all-reduce 6 (113 KiB) that rank 3 waits in");
}

TEST_CASE("a rank without a log is named when no other rank is behind") {
  CHECK(analyze_desync({rank_log(0, 5, true), rank_log(1, 5, true), rank_log(3, 5, true)}).text ==
        "rank 2 left no record; ranks 0-1,3 wait in all-reduce 6 (113 KiB)");
  CHECK(analyze_desync({rank_log(0, 5, true), rank_log(1, 5, false)}).text ==
        "rank 1 has not started all-reduce 6 (113 KiB) that rank 0 waits in");
}

TEST_CASE("a rank stuck in an operation that others have finished is named") {
  CHECK(analyze_desync(
            {rank_log(0, 8, false), rank_log(1, 7, true), rank_log(2, 8, true), rank_log(3, 8, false)})
            .text == "rank 1 has not finished all-reduce 8 (113 KiB) that ranks 0,2-3 have finished");
}

TEST_CASE("when all ranks wait in one operation, their connection is named") {
  std::vector<FlightRecorderDump> dumps;
  for (int rank = 0; rank < 4; ++rank)
    dumps.push_back(rank_log(rank, 5, true));
  CHECK(
      analyze_desync(dumps).text ==
      "all ranks wait in all-reduce 6 (113 KiB): the network between them fails, or one rank is stuck in it");
}

TEST_CASE("a rank that called another operation, size or type is named first") {
  const auto with = [](int rank, std::string_view kind, std::uint64_t bytes, std::string_view type) {
    OneGroup group(rank, 3);
    group.log->finish(group.log->start("barrier", 0, "bytes", 1), 2);
    group.log->start(kind, bytes, type, 3);
    return group.dump();
  };
  const auto reduce = [&](int rank) { return with(rank, "all-reduce", 4'000'000, "float"); };
  CHECK(analyze_desync({reduce(0), with(1, "broadcast", 12, "bytes"), reduce(2)}).text ==
        "rank 1 called broadcast 2 (12 B) where ranks 0,2 called all-reduce 2 (3.8 MiB)");
  CHECK(analyze_desync({with(0, "all-reduce", 1, "float"), reduce(1), reduce(2)}).text ==
        "rank 0 called all-reduce 2 (1 B) where ranks 1-2 called all-reduce 2 (3.8 MiB)");
  CHECK(analyze_desync({reduce(0), reduce(1), with(2, "all-reduce", 4'000'000, "double")}).text ==
        "rank 2 called all-reduce 2 (3.8 MiB) of double where ranks 0-1 called all-reduce 2 (3.8 MiB) of "
        "float");
  CHECK_FALSE(analyze_desync({reduce(0), with(1, "broadcast", 12, "bytes"), reduce(2)}).unsure);
  // Half of them are no majority.
  const DesyncVerdict tie = analyze_desync({reduce(0), with(1, "barrier", 0, "bytes")});
  CHECK(tie.text ==
        "rank 1 called barrier 2 where rank 0 called all-reduce 2 (3.8 MiB); no majority tells which of them "
        "are wrong");
  CHECK(tie.named == std::set<int>{0, 1});
  CHECK(tie.unsure);
}

TEST_CASE("only the newest attempt is analyzed, and finished operations are not reported") {
  auto old = rank_log(1, 3, true);
  auto one = rank_log(0, 4, true), two = rank_log(1, 4, false);
  one.attempt = two.attempt = 1;
  CHECK(analyze_desync({old, one, two}).text ==
        "rank 1 has not started all-reduce 5 (113 KiB) that rank 0 waits in");
  CHECK(analyze_desync({rank_log(0, 4, false), rank_log(1, 4, false)}).text.empty());
  CHECK(analyze_desync({}).text.empty());
}

TEST_CASE("the first one of several operations in progress counts") {
  OneGroup ahead(0, 2), behind(1, 2);
  for (int i = 0; i < 3; ++i)
    ahead.log->start("all-reduce", 2'000, "float", i);
  behind.log->start("all-reduce", 2'000, "float", 1);
  CHECK(analyze_desync({ahead.dump(), behind.dump()}).text ==
        "rank 1 has not started all-reduce 2 (2.0 KiB) that rank 0 waits in");
}

namespace {

/// Returns the dump of a rank in a world of two nodes with two ranks each. It waits in the group `waits_in`;
/// its other groups are at the same operation.
FlightRecorderDump of_two_nodes(int rank, const std::string& waits_in) {
  FlightRecorderDump dump{rank, 4, 0, "lost", {}};
  const int first = rank / 2 * 2;
  const std::vector<RecordedGroup> groups = {
      {"world", 0, 4, {}}, {"node " + std::to_string(rank / 2), first, 2, {}}, {"between", 0, 4, {}}};
  for (RecordedGroup group : groups) {
    group.entries = rank_log(rank, 2, group.name == waits_in).groups[0].entries;
    dump.groups.push_back(group);
  }
  return dump;
}

}  // namespace

TEST_CASE("the blocked group with a rank that waits nowhere counts before other groups") {
  // Rank 1 is not in the sum of its node; rank 0 waits there, and all of node 1 wait in the next operation.
  CHECK(analyze_desync({of_two_nodes(0, "node 0"), of_two_nodes(1, ""), of_two_nodes(2, "between"),
                        of_two_nodes(3, "between")})
            .text == "rank 1 has not started all-reduce 3 (113 KiB) of node 0 that rank 0 waits in");
  CHECK(analyze_desync({of_two_nodes(0, "node 0"), of_two_nodes(2, "between"), of_two_nodes(3, "between")})
            .text == "rank 1 left no record; rank 0 waits in all-reduce 3 (113 KiB) of node 0");
  CHECK(analyze_desync({of_two_nodes(0, "between"), of_two_nodes(1, "between"), of_two_nodes(2, "between"),
                        of_two_nodes(3, "")})
            .text ==
        "rank 3 has not started all-reduce 3 (113 KiB) between the nodes that ranks 0-2 wait in");
  // Nodes do not wait for each other's ranks.
  CHECK(analyze_desync(
            {of_two_nodes(0, "node 0"), of_two_nodes(1, "node 0"), of_two_nodes(2, ""), of_two_nodes(3, "")})
            .text ==
        "all ranks wait in all-reduce 3 (113 KiB) of node 0: the network between them fails, or one rank is "
        "stuck in it");
}

TEST_CASE("memory with arbitrary contents is read as far as it is valid") {
  auto memory = std::make_unique<FlightRecorderMemory>();
  CHECK_FALSE(read_collectives(*memory));  // the memory is not initialized
  begin_collectives(*memory, 3, 3, 0);
  CHECK_FALSE(read_collectives(*memory));  // the rank is outside of the world
  begin_collectives(*memory, 0, 2'000'000, 0);
  CHECK_FALSE(read_collectives(*memory));  // an impossible world size
  begin_collectives(*memory, 1, 2, 7);
  FlightRecorder log(*add_collective_group(*memory, "a name that is longer than its place", 0, 2));
  log.start("a kind that is longer than its place", 8, "a type that is longer", 1);
  log.start("barrier", 0, "bytes", 2);
  memory->group[0].ring[1].sequence = 77;  // another place of the ring, with a future number
  memory->group[0].ring[5].sequence = 2;
  memory->groups = 1'000;
  const auto dump = read_collectives(*memory);
  REQUIRE(dump);
  CHECK((dump->rank == 1 && dump->world_size == 2 && dump->attempt == 7));
  REQUIRE(dump->groups.size() == FlightRecorderMemory::kGroups);
  CHECK(dump->groups[0].name == "a name that is longer th");
  REQUIRE(dump->groups[0].entries.size() == 1);
  CHECK(dump->groups[0].entries[0].kind == "a kind that is longe");
  CHECK(dump->groups[0].entries[0].type == "a type that ");
}

TEST_CASE("there is space for four groups, and a new attempt starts with none") {
  auto memory = std::make_unique<FlightRecorderMemory>();
  begin_collectives(*memory, 0, 2, 0);
  for (std::size_t i = 0; i < FlightRecorderMemory::kGroups; ++i) {
    FlightRecorderMemory::Group* const group = add_collective_group(*memory, "world", 0, 2);
    REQUIRE(group != nullptr);
    for (int k = 0; k < 3; ++k)
      FlightRecorder(*group).start("barrier", 0, "bytes", 1);
  }
  CHECK(add_collective_group(*memory, "one too many", 0, 2) == nullptr);
  begin_collectives(*memory, 0, 2, 1);
  FlightRecorder log(*add_collective_group(*memory, "world", 0, 2));
  log.start("broadcast", 1, "bytes", 9);
  const auto dump = read_collectives(*memory);
  REQUIRE(dump);
  CHECK(dump->attempt == 1);
  CHECK(dump->groups == std::vector<RecordedGroup>{{"world", 0, 2, {{1, "broadcast", 1, "bytes", 9, 0}}}});
}

TEST_CASE("a node's report of a rank starts shortly before the first unfinished operation") {
  OneGroup group;
  for (int i = 0; i < 20; ++i)
    group.log->start("all-reduce", kGradient, "float", i);
  for (std::uint64_t i = 1; i <= 9; ++i)
    group.log->finish(i, 100);
  group.log->finish(12, 100);
  const auto read_entries = read_collectives(group.memory(), 2, 5)->groups[0].entries;
  REQUIRE(read_entries.size() == 5);
  CHECK((read_entries.front().sequence == 8 && read_entries.back().sequence == 12));
  for (std::uint64_t i = 10; i <= 20; ++i)
    group.log->finish(i, 100);
  const auto done = read_collectives(group.memory(), 2, 5)->groups[0].entries;
  REQUIRE(done.size() == 2);
  CHECK(done.back().sequence == 20);
}

TEST_CASE("a verdict lists the ranks that it names") {
  CHECK(analyze_desync({rank_log(0, 1, true, 2), rank_log(1, 1, false, 2)}).named == std::set<int>{1});
  CHECK(analyze_desync({rank_log(0, 1, true, 2)}).named == std::set<int>{1});  // left no record
  CHECK(analyze_desync({rank_log(0, 1, true, 2), rank_log(1, 0, true, 2)}).named == std::set<int>{1});
  CHECK(analyze_desync({rank_log(0, 1, true, 2), rank_log(1, 1, true, 2)}).named.empty());
}

TEST_CASE("a rank that has ended needs no log") {
  CHECK(analyze_desync({rank_log(0, 5, true), rank_log(1, 5, true), rank_log(3, 5, true)}, {2}).text ==
        "rank 2 has ended; ranks 0-1,3 wait in all-reduce 6 (113 KiB)");
  const DesyncVerdict both = analyze_desync({rank_log(0, 5, true)}, {2, 3});
  CHECK(both.text == "rank 1 left no record, ranks 2-3 have ended; rank 0 waits in all-reduce 6 (113 KiB)");
  CHECK(both.named == std::set<int>{1});
  CHECK(analyze_desync({rank_log(0, 5, false)}, {1, 2, 3}).text.empty());
}

TEST_CASE("a missing rank of a node's group is one of its own ranks") {
  CHECK(analyze_desync({of_two_nodes(0, "node 0"), of_two_nodes(2, "")}).text ==
        "rank 1 left no record; rank 0 waits in all-reduce 3 (113 KiB) of node 0");
}

TEST_CASE("different calls of many ranks are named by the first rank, with exact sizes") {
  const auto with = [](int rank, std::uint64_t bytes) {
    OneGroup group(rank, 100);
    group.log->start("all-reduce", bytes, "float", 3);
    return group.dump();
  };
  std::vector<FlightRecorderDump> dumps;
  for (int rank = 0; rank < 100; ++rank)
    dumps.push_back(with(rank, rank < 3 ? 4'000'000 : 4'000'000 + 10 * static_cast<std::uint64_t>(rank)));
  const DesyncVerdict verdict = analyze_desync(dumps);
  CHECK(
      verdict.text ==
      "rank 3 called all-reduce 1 (4000030 bytes), rank 4 called all-reduce 1 (4000040 bytes), rank 5 called "
      "all-reduce 1 (4000050 bytes), and further ranks called other operations where ranks 0-2 called "
      "all-reduce 1 (4000000 bytes); no majority tells which of them are wrong");
  CHECK(verdict.named.size() == 100);
}

TEST_CASE("no text of a verdict controls a terminal") {
  auto one = rank_log(0, 1, true, 2), two = rank_log(1, 1, false, 2);
  one.groups[0].name = two.groups[0].name = "\x1b[31mred\n";
  CHECK(analyze_desync({one, two}).text ==
        "rank 1 has not started all-reduce 2 (113 KiB) of ?[31mred? that rank 0 waits in");
}

TEST_CASE("only the first ones of many ranks are named") {
  std::vector<FlightRecorderDump> dumps;
  for (int rank = 0; rank < 100; ++rank)
    dumps.push_back(rank_log(rank, 1, rank % 2 == 0, 100));
  CHECK(analyze_desync(dumps).text ==
        "ranks 1,3,5,7,9,11,13,15,… have not started all-reduce 2 (113 KiB) that ranks 0,2,4,6,8,10,12,14,… "
        "wait "
        "in");
}
