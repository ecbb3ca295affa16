#include "launcher/report/failure_log.h"

#include <string>

#include "tests/support/catch.h"

namespace ddp::launcher {
namespace {

using namespace std::chrono_literals;

/// The log of `rank` of 2: it has finished one operation, and waits in the next one if `waits`.
rendezvous::WorkerCollectives collectives_of(std::uint32_t rank, bool waits) {
  std::string log = "{\"schema\":\"ddp-flight-recorder/1\",\"rank\":" + std::to_string(rank) +
                    ",\"world_size\":2,\"attempt\":0,\"reason\":\"\"}\n"
                    "{\"sequence\":1,\"kind\":\"barrier\",\"bytes\":0,\"type\":\"bytes\",\"started\":5,"
                    "\"finished\":6}\n";
  if (waits)
    log +=
        "{\"sequence\":2,\"kind\":\"barrier\",\"bytes\":0,\"type\":\"bytes\",\"started\":7,\"finished\":0}\n";
  return {0, rank, log};
}

TEST_CASE("only the first log of each rank counts, so that a node cannot fill memory") {
  FailureLog log;
  log.begin_attempt(0, 0s);
  log.job_hung(Error{ErrorCode::kHung, "the job hung", 0}, 1s);
  log.collectives(collectives_of(0, true), 2);
  log.collectives(collectives_of(1, false), 2);
  log.collectives(collectives_of(1, true), 2);
  log.diagnose_collectives();
  REQUIRE(log.root_cause() != nullptr);
  INFO(log.root_cause()->waited_for);
  CHECK(log.root_cause()->waited_for.starts_with("rank 1 has not started"));
}

TEST_CASE("the later explanation of a lost node is not given to its ranks") {
  FailureLog log;
  log.begin_attempt(0, 0s);
  log.node_failed("gpu01", Error{ErrorCode::kLinkLost, "its control link closed", 0}, 1s);
  rendezvous::WorkerExited end;
  end.code = 3;
  log.worker_failed({"gpu01", 4, 0}, end, 2s, 0s);
  log.explain_node("gpu01", Error{ErrorCode::kLinkLost, "its sshd was killed", 0});
  REQUIRE(log.root_cause() != nullptr);
  CHECK(log.root_cause()->error.text == "its sshd was killed");
}

}  // namespace
}  // namespace ddp::launcher
