#include "launcher/supervisor/node_limits.h"

#include "tests/support/catch.h"

namespace ddp::launcher {
namespace {

using rendezvous::Output;

}  // namespace

TEST_CASE("output credit is counted and returned per stream, for any amount") {
  NodeLimits limits;
  const std::string bytes(8u << 20, 'x');
  CHECK(limits.admit(Output{0, 0, 1, 0, bytes.substr(0, 100)}).has_value());
  CHECK(limits.admit(Output{0, 0, 2, 0, bytes.substr(0, 60)}).has_value());
  CHECK(limits.admit(Output{0, 0, 1, 0, ""}).has_value());  // end of the stream
  CHECK(limits.taken(1) == 100);
  CHECK(limits.give_back(1) == 100);
  CHECK(limits.taken(1) == 0);
  CHECK(limits.taken(2) == 60);
  // A window is 1 MiB at most; these bytes are more than one message can give back.
  for (int i = 0; i < 513; ++i)
    REQUIRE(limits.admit(Output{0, 0, 1, 0, bytes}).has_value());
  CHECK(limits.give_back(1) == 0xFFFFFFFFu);
  CHECK(limits.give_back(1) == 1u + (8u << 20));
  CHECK(limits.taken(1) == 0);
  for (const std::uint8_t stream : {std::uint8_t{0}, std::uint8_t{3}})
    CHECK(limits.admit(Output{0, 0, stream, 0, "x"}).error().text == "it sent output of an unknown stream");
}

TEST_CASE("hang diagnostics are limited per attempt") {
  NodeLimits limits;
  rendezvous::Inspection inspection;
  inspection.text.assign(NodeLimits::kInspected / 2, 'x');
  CHECK(limits.admit(inspection).has_value());
  CHECK_FALSE(limits.admit(inspection).has_value());
  inspection.attempt = 1;
  CHECK(limits.admit(inspection).has_value());
  // Attempts must not alternate, for then the sizes would have no bound.
  inspection.attempt = 0;
  inspection.text.clear();
  CHECK_FALSE(limits.admit(inspection).has_value());
}

TEST_CASE("reports of workers are limited by their number and their texts") {
  NodeLimits limits;
  rendezvous::WorkerExited exited;
  exited.text.assign(NodeLimits::kWorkerUpdates - 128, 'x');
  CHECK(limits.admit(exited).has_value());
  CHECK(limits.admit(rendezvous::WorkerStarted{}).has_value());
  CHECK(limits.admit(rendezvous::WorkerStarted{}).error().text ==
        "it reported more starts and ends of workers than allowed");
}

TEST_CASE("a node that rejoins repeatedly has one limit of notices and starts") {
  NodeLimits limits;
  for (std::size_t i = 0; i < NodeLimits::kNotices; ++i)
    REQUIRE(limits.notice() == NodeLimits::NoticeDecision::kYes);
  CHECK(limits.admit(Output{0, 0, 1, 0, "x"}).has_value());
  limits.begin_incarnation();
  CHECK(limits.taken(1) == 0);
  CHECK(limits.notice() == NodeLimits::NoticeDecision::kLast);
}

TEST_CASE("the notices of a node are limited") {
  NodeLimits limits;
  for (std::size_t i = 0; i < NodeLimits::kNotices; ++i)
    REQUIRE(limits.notice() == NodeLimits::NoticeDecision::kYes);
  CHECK(limits.notice() == NodeLimits::NoticeDecision::kLast);
  CHECK(limits.notice() == NodeLimits::NoticeDecision::kNo);
}

TEST_CASE("a node with too many addresses is refused") {
  NodeLimits limits;
  rendezvous::Hello hello;
  hello.interfaces.resize(NodeLimits::kHelloInterfaces);
  CHECK(limits.admit(hello).has_value());
  hello.interfaces.resize(NodeLimits::kHelloInterfaces + 1);
  CHECK_FALSE(limits.admit(hello).has_value());
}

}  // namespace ddp::launcher
