#include "launcher/hang/hang_detection.h"

#include "tests/support/catch.h"

namespace ddp::launcher {
namespace {

using namespace std::chrono_literals;
using Lines = std::vector<std::string>;

TEST_CASE("ranks that differ from the others are named first") {
  HangReport report;
  for (std::uint32_t rank = 0; rank < 8; ++rank)
    report.add(rank, rank < 4 ? "gpu01" : "gpu02", rank == 6 ? "running" : "sleeping in poll");
  CHECK(report.lines() ==
        Lines{"rank 6 on gpu02: running", "ranks 0-5,7 on gpu01 and gpu02: sleeping in poll"});
  CHECK(report.text(60s) ==
        "no worker printed anything or used CPU time for 60.0 s\n"
        "rank 6 on gpu02: running\n"
        "ranks 0-5,7 on gpu01 and gpu02: sleeping in poll");
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
  CHECK(
      report.text(std::chrono::seconds(12)) ==
      "no worker reported a step or printed anything for 12.0 s: rank 2 is behind: the last reported step is "
      "11, that of other ranks is 12\n"
      "rank 2 on gpu01: at step 11: running\n"
      "ranks 0-1,3 on gpu01: at step 12: sleeping in poll");
}

TEST_CASE("durations are rounded for reading") {
  HangReport report;
  report.add(0, "a", "running");
  CHECK(report.text(2500ms).starts_with("no worker printed anything or used CPU time for 2.5 s\n"));
  CHECK(report.text(2040ms).starts_with("no worker printed anything or used CPU time for 2.0 s\n"));
  CHECK(report.text(65300ms).starts_with("no worker printed anything or used CPU time for 65.3 s\n"));
}

}  // namespace
}  // namespace ddp::launcher
