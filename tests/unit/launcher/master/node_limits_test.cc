#include "launcher/master/node_link.h"

#include "rendezvous/protocol/codec.h"
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
  exited.text.assign(1u << 20, 'x');
  std::size_t taken = 0;
  for (; limits.admit(exited).has_value(); ++exited.attempt)
    taken += exited.text.size();
  CHECK(taken <= NodeLimits::kWorkerUpdates);
  CHECK(taken > NodeLimits::kWorkerUpdates / 2);
  CHECK(limits.admit(rendezvous::WorkerStarted{}).error().text ==
        "it reported more starts and ends of workers than allowed");
}

TEST_CASE("evidence of an attempt beyond the node's share is cut, and dumps are dropped") {
  using Admission = NodeLimits::Admission;
  NodeLimits limits(500);
  CHECK(limits.kept_limit() == NodeLimits::kKeptOfAll / 500);
  CHECK(NodeLimits(100'000).kept_limit() == NodeLimits::kKeptAtLeast);
  CHECK(NodeLimits(1).kept_limit() == NodeLimits::kKeptAtMost);
  rendezvous::WorkerEvidence evidence;
  evidence.error_json.assign(60u << 10, 'x');
  rendezvous::WorkerCollectives dump;
  dump.log.assign(60u << 10, 'x');
  CHECK(*limits.admit(evidence) == Admission::kTake);
  CHECK(*limits.admit(dump) == Admission::kTake);
  CHECK(*limits.admit(dump) == Admission::kDropFirst);
  CHECK(*limits.admit(dump) == Admission::kDrop);
  CHECK(*limits.admit(evidence) == Admission::kCut);
  evidence.oom = "oom";
  rendezvous::Message cut_message = evidence;
  NodeLimits::cut(cut_message);
  const auto& cut = std::get<rendezvous::WorkerEvidence>(cut_message);
  CHECK(cut.oom == "oom");
  CHECK(cut.error_json == evidence.error_json.substr(0, 2u << 10));
  CHECK(*limits.admit(rendezvous::WorkerExited{}) == Admission::kTake);
  rendezvous::WorkerExited exited;
  exited.text.assign(60u << 10, 'x');
  CHECK(*limits.admit(exited) == Admission::kCut);  // an end is never dropped
  cut_message = exited;
  NodeLimits::cut(cut_message);
  CHECK(std::get<rendezvous::WorkerExited>(cut_message).text == std::string(256, 'x'));
  dump.attempt = 1;
  CHECK(*limits.admit(dump) == Admission::kTake);
  CHECK(*limits.admit(evidence) == Admission::kCut);  // of the attempt before
}

TEST_CASE("a hello names no more processors than a machine has") {
  NodeLimits limits;
  rendezvous::Hello hello;
  hello.workers = hello.gpus = NodeLimits::kWorkers;
  hello.cpus = NodeLimits::kCpus;
  CHECK(limits.admit(hello).has_value());
  ++hello.workers;
  CHECK_FALSE(limits.admit(hello).has_value());
  hello.workers = 0;
  ++hello.gpus;
  CHECK_FALSE(limits.admit(hello).has_value());
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

TEST_CASE("a hello has a limit in bytes") {
  NodeLimits limits;
  rendezvous::Hello hello;
  hello.interfaces.resize(rendezvous::kMaxInterfaces);
  CHECK(limits.admit(hello).has_value());
  hello.interfaces[0].name.assign(NodeLimits::kKeptAtLeast, 'x');
  CHECK_FALSE(limits.admit(hello).has_value());
}

}  // namespace ddp::launcher
