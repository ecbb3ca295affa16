#include "launcher/hang/hang_detection.h"

#include "tests/support/catch.h"

namespace ddp::launcher {
namespace {

using namespace std::chrono_literals;
using Nodes = std::vector<std::size_t>;

/// Ranks 0 and 1 on "a", rank 2 on "b". All are quiet since 100 s.
HangInvestigation quiet_job() {
  HangInvestigation hang(60s, {{"a", 0, 2}, {"b", 2, 1}}, 100s);
  hang.quiet(0, 100s);
  hang.quiet(1, 100s);
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
  HangInvestigation off(0s, {{"a", 0, 2}}, 0s);
  off.quiet(0, 0s);
  CHECK_FALSE(off.deadline());
  CHECK_FALSE(off.hangs(1h));
  CHECK_FALSE(HangInvestigation().deadline());
  CHECK_FALSE(HangInvestigation().complete(1h));
}

TEST_CASE("hang investigation: nodes with live workers are asked, and the answers make the report") {
  HangInvestigation hang = quiet_job();
  REQUIRE(hang.deadline());
  const auto due = *hang.deadline();
  CHECK(due > 160s);
  CHECK_FALSE(hang.hangs(due - 1ns));
  CHECK(hang.hangs(due));
  CHECK_FALSE(hang.inspecting());
  CHECK(hang.begin({}, 162s) == Nodes{0, 1});
  CHECK(hang.inspecting());
  CHECK(*hang.deadline() == 162s + 15s);
  hang.answer(0, state_of(0, "sleeping in poll"));
  hang.answer(0, state_of(1, "sleeping in poll"));
  hang.answer(0, last());
  CHECK_FALSE(hang.complete(162s));
  hang.answer(1, state_of(2, "running"));
  hang.answer(1, last());
  CHECK(hang.complete(162s));
  CHECK(hang.conclude("/jobs/j/hang.txt") ==
        "the job hung: no worker printed anything or used CPU time for 62.0 s\n"
        "rank 2 on b: running\n"
        "ranks 0-1 on a: sleeping in poll\n"
        "stacks and state of each rank: /jobs/j/hang.txt");
  CHECK(hang.lines() == std::vector<std::string>{"rank 2 on b: running", "ranks 0-1 on a: sleeping in poll"});
  CHECK(hang.hung().empty());
  CHECK_FALSE(hang.inspecting());
  CHECK_FALSE(hang.complete(1h));
}

TEST_CASE("hang investigation: the stacks may give a hint") {
  HangInvestigation hang = quiet_job();
  hang.begin({}, 162s);
  rendezvous::Inspection stuck = state_of(2, "running");
  stuck.text = "#5  0x00007fe8 in c10d::TCPStore::TCPStore(std::string, c10d::TCPStoreOptions const&) ()\n";
  hang.answer(1, stuck);
  const std::string text = hang.conclude("f");
  CHECK(text.find("\nstacks and state of each rank: f\nhint: rank 2 is still connecting to a store.") !=
        std::string::npos);
}

TEST_CASE("hang investigation: it ends after its time without the missing answers") {
  HangInvestigation hang = quiet_job();
  hang.begin({}, 162s);
  hang.answer(0, state_of(0, "running"));
  hang.answer(0, last());
  CHECK_FALSE(hang.complete(177s - 1ns));
  CHECK(hang.complete(177s));
  CHECK(hang.conclude("f").find("\nranks 1-2 on a and b: no answer\n") != std::string::npos);
}

TEST_CASE("hang investigation: a lost node is not waited for") {
  HangInvestigation hang = quiet_job();
  hang.begin({}, 162s);
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
  CHECK(hang.begin({}, 230s) == Nodes{0});
}

TEST_CASE("hang investigation: ranks that have ended are not asked") {
  HangInvestigation hang = quiet_job();
  hang.rank_ended(1, 110s);  // rank 2, the only one of its node
  hang.rank_ended(0, 120s);  // rank 0
  CHECK(hang.begin({0, 2}, 190s) == Nodes{0});
  const std::string text = hang.conclude("f");
  CHECK(text.find("\nrank 1 on a: no answer\n") != std::string::npos);
  CHECK(text.find("for 70.0 s") != std::string::npos);  // an end is activity
}

TEST_CASE("hang investigation: progress cancels the inspection, and a later hang starts a new one") {
  HangInvestigation hang = quiet_job();
  CHECK_FALSE(hang.cancel());
  hang.begin({}, 162s);
  hang.answer(0, state_of(0, "running"));
  hang.alive(0);
  CHECK(hang.cancel());
  CHECK_FALSE(hang.inspecting());
  CHECK_FALSE(hang.cancel());
  CHECK_FALSE(hang.deadline());  // node 0 is active
  hang.quiet(0, 170s);
  CHECK(hang.begin({}, 240s) == Nodes{0, 1});
  CHECK(hang.conclude("f").find("running") == std::string::npos);  // of the first inspection
}

TEST_CASE("hang investigation: the rank that alone is behind has hung") {
  HangInvestigation hang = quiet_job();
  hang.begin({}, 162s);
  hang.answer(0, at_step(0, 8));
  hang.answer(0, at_step(1, 7));
  hang.answer(1, at_step(2, 8));
  CHECK(hang.hung().empty());  // before the conclusion
  hang.conclude("f");
  CHECK(hang.hung() == std::vector<std::uint32_t>{1});
}

TEST_CASE("hang investigation: answers to a cancelled inspection do not count in the next one") {
  HangInvestigation hang = quiet_job();
  hang.begin({}, 162s);
  hang.answer(0, at_step(0, 8));
  hang.answer(0, at_step(1, 7));
  CHECK(hang.cancel());
  hang.rank_ended(1, 170s);
  CHECK(hang.begin({2}, 240s) == Nodes{0});  // node 1 has no live rank any more
  hang.answer(0, last());
  CHECK(hang.complete(240s));
  hang.conclude("f");
  CHECK(hang.hung().empty());
}

TEST_CASE("hang investigation: when several ranks are behind, none is known to have hung") {
  HangInvestigation hang = quiet_job();
  hang.begin({}, 162s);
  hang.answer(0, at_step(0, 7));
  hang.answer(0, at_step(1, 7));
  hang.answer(1, at_step(2, 8));
  hang.conclude("f");
  CHECK(hang.hung().empty());
}

}  // namespace
}  // namespace ddp::launcher
