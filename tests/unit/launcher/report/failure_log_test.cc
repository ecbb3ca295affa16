#include "launcher/report/failure_log.h"

#include <csignal>
#include <string>
#include <vector>

#include "launcher/report/exit_report.h"
#include "tests/support/catch.h"

namespace ddp::launcher {
namespace {

using namespace std::chrono_literals;

/// The log of `rank`: it has finished one operation, and waits in the next one if `waits`.
rendezvous::WorkerCollectives collectives_of(std::uint32_t rank, bool waits, int world_size = 2) {
  std::string log = "{\"schema\":\"ddp-flight-recorder/1\",\"rank\":" + std::to_string(rank) +
                    ",\"world_size\":" + std::to_string(world_size) +
                    ",\"attempt\":0,\"reason\":\"\"}\n"
                    "{\"sequence\":1,\"kind\":\"barrier\",\"bytes\":0,\"type\":\"bytes\",\"started\":5,"
                    "\"finished\":6}\n";
  if (waits)
    log +=
        "{\"sequence\":2,\"kind\":\"barrier\",\"bytes\":0,\"type\":\"bytes\",\"started\":7,\"finished\":0}\n";
  return {0, rank, log};
}

rendezvous::WorkerExited exit_of(std::uint8_t code, std::uint8_t signal = 0) {
  rendezvous::WorkerExited end;
  end.pid = 4000;
  end.code = code;
  end.signal = signal;
  return end;
}

TEST_CASE("only the newest log of each rank counts, so that a node cannot fill memory") {
  FailureLog log;
  log.begin_attempt(0, 0s);
  log.job_hung(Error{ErrorCode::kHung, "the job hung", 0}, {1s, 1s});
  log.collectives(collectives_of(1, true), 2);
  log.collectives(collectives_of(0, true), 2);
  log.collectives(collectives_of(1, false), 2);
  log.diagnose_collectives();
  REQUIRE(log.root_cause() != nullptr);
  INFO(log.root_cause()->waited_for);
  CHECK(log.root_cause()->waited_for.starts_with("rank 1 has not started"));
  log.forget_attempt();
  log.diagnose_collectives();  // without a failure there is no cause
  CHECK(log.root_cause() == nullptr);
}

TEST_CASE("the later explanation of a lost node is not given to its ranks") {
  FailureLog log;
  log.begin_attempt(0, 0s);
  log.node_failed("gpu01", Error{ErrorCode::kLinkLost, "its control link closed", 0}, {1s, 1s});
  log.worker_failed({"gpu01", 4, 0}, exit_of(3), {2s, 2s});
  log.explain_node("gpu01", Error{ErrorCode::kLinkLost, "its sshd was killed", 0});
  REQUIRE(log.root_cause() != nullptr);
  CHECK(log.root_cause()->error.text == "its sshd was killed");
}

TEST_CASE("the logs of others explain a cause only if it gave up in an operation") {
  for (const bool waits : {false, true}) {
    FailureLog log;
    log.begin_attempt(0, 0s);
    log.worker_failed({"gpu01", 0, 0}, exit_of(3), {1s, 1s});
    if (waits) log.collectives(collectives_of(0, true, 3), 3);
    log.collectives(collectives_of(1, true, 3), 3);
    log.collectives(collectives_of(2, false, 3), 3);
    log.diagnose_collectives();
    CHECK(log.root_cause()->waited_for ==
          (waits ? "rank 2 has not started barrier 2 that ranks 0-1 wait in" : ""));
  }
}

TEST_CASE("so do they where PyTorch's watchdog has aborted the rank, which leaves no log") {
  FailureLog log;
  log.begin_attempt(0, 0s);
  log.worker_failed({"gpu01", 0, 0}, exit_of(0, SIGABRT), {1s, 1s});
  log.collectives(collectives_of(1, true, 3), 3);
  log.collectives(collectives_of(2, false, 3), 3);
  log.diagnose_collectives();
  CHECK(log.root_cause()->waited_for == "rank 2 has not started barrier 2 that rank 1 waits in");
}

TEST_CASE("an abort is explained by where the others are, and by what the rank has called itself") {
  FailureLog log;
  log.begin_attempt(0, 0s);
  log.worker_failed({"gpu01", 0, 0}, exit_of(0, SIGABRT), {1s, 1s});
  log.collectives(collectives_of(1, true, 3), 3);
  log.collectives(collectives_of(2, true, 3), 3);
  log.diagnose_collectives();
  CHECK(log.root_cause()->waited_for == "rank 0 left no record; ranks 1-2 wait in barrier 2");
  // An exception of its own in no collective needs none.
  FailureLog other;
  other.begin_attempt(0, 0s);
  other.worker_failed({"gpu01", 0, 0}, exit_of(1), {1s, 1s});
  other.collectives(collectives_of(1, true, 3), 3);
  other.collectives(collectives_of(2, true, 3), 3);
  other.diagnose_collectives();
  CHECK(other.root_cause()->waited_for.empty());
}

using Verdict = HangVerdict;

TEST_CASE("a verdict without a majority is weak") {
  FailureLog log;
  log.begin_attempt(0, 0s);
  for (std::uint32_t rank = 0; rank < 4; ++rank) {
    rendezvous::WorkerCollectives told = collectives_of(rank, true, 4);
    const std::size_t last = told.log.rfind("barrier");
    if (rank > 1) told.log.replace(last, 7, "reduce");
    log.collectives(told, 4);
  }
  Verdict hung;
  hung.kind = Verdict::Kind::kHung;
  log.name_hang(hung);
  CHECK(log.end().hang->confidence == Verdict::Confidence::kLow);
  CHECK(log.end().hang->ranks == std::vector<int>{0, 1, 2, 3});
  CHECK(log.end().hang->text ==
        "ranks 2-3 called reduce 2 where ranks 0-1 called barrier 2; no majority tells which of them are "
        "wrong");
}

Verdict by_processes(Verdict::Kind kind) {
  Verdict verdict;
  verdict.kind = kind;
  verdict.text = "no worker printed anything";
  verdict.witnesses = {{"activity", 0, verdict.text}};
  return verdict;
}

TEST_CASE("the verdict on a hang is what the recorders say, and certain where all ranks have told") {
  FailureLog log;
  log.begin_attempt(0, 0s);
  log.collectives(collectives_of(0, true, 3), 3);
  log.collectives(collectives_of(2, false, 3), 3);
  log.name_hang(by_processes(Verdict::Kind::kStalled));
  REQUIRE(log.end().hang);
  CHECK(log.end().hang->text == "rank 2 has not started barrier 2 that rank 0 waits in");
  CHECK(log.end().hang->ranks == std::vector<int>{2});
  CHECK(log.end().hang->confidence == Verdict::Confidence::kMedium);
  log.worker_ended_well({"gpu01", 1, 1}, {1s, 1s});
  log.name_hang(by_processes(Verdict::Kind::kStalled));
  CHECK(log.end().hang->confidence == Verdict::Confidence::kHigh);
  REQUIRE(log.end().hang->witnesses.size() == 2);
  CHECK(log.end().hang->witnesses[0].source == "flight recorder");
  CHECK(log.end().hang->witnesses[0].ranks == 2);
  log.begin_inspection();  // what the ranks told before is old
  log.name_hang(by_processes(Verdict::Kind::kActive));
  CHECK(log.end().hang->text == "no worker printed anything");
  log.hang_over();
  CHECK_FALSE(log.end().hang);
}

TEST_CASE("stacks alone make a weaker verdict than recorders, and none on a job that is active") {
  const auto by_stacks = [](std::uint32_t rank, const std::string& called) {
    rendezvous::FlightRecorderDump dump;
    dump.rank = static_cast<int>(rank);
    dump.world_size = 3;
    rendezvous::RecordedGroup group{std::string(rendezvous::kByStacks), 0, 3, {}};
    if (!called.empty()) group.entries.push_back({rendezvous::kUnnumbered, called, 0, "", 0, 0});
    dump.groups.push_back(group);
    return rendezvous::WorkerCollectives{0, rank, dump_text(dump)};
  };
  FailureLog log;
  log.begin_attempt(0, 0s);
  for (std::uint32_t rank = 0; rank < 3; ++rank)
    log.collectives(by_stacks(rank, rank == 2 ? "" : "barrier"), 3);
  log.name_hang(by_processes(Verdict::Kind::kActive));
  CHECK(log.end().hang->text == "no worker printed anything");
  CHECK(log.end().hang->witnesses.size() == 1);
  Verdict stalled = by_processes(Verdict::Kind::kStalled);
  stalled.quiet = 60s;
  log.name_hang(stalled);
  CHECK(log.end().hang->text == "rank 2 has not started barrier that ranks 0-1 wait in");
  CHECK(log.end().hang->ranks == std::vector<int>{2});
  CHECK(log.end().hang->confidence == Verdict::Confidence::kMedium);
  CHECK(log.end().hang->witnesses[0].source == "stacks");
  log.collectives(by_stacks(2, "broadcast"), 3);  // of another group, perhaps
  log.name_hang(stalled);
  CHECK(log.end().hang->confidence == Verdict::Confidence::kLow);
  log.collectives(by_stacks(2, "barrier"), 3);
  log.name_hang(stalled);
  CHECK(log.end().hang->text == "no worker printed anything");
}

TEST_CASE("a rank that is merely later than others is no verdict while the job is active") {
  FailureLog log;
  log.begin_attempt(0, 0s);
  log.collectives(collectives_of(0, false), 2);
  log.collectives(collectives_of(1, false), 2);
  log.name_hang(by_processes(Verdict::Kind::kActive));
  CHECK(log.end().hang->text == "no worker printed anything");
  CHECK(log.end().hang->text_of("flight recorder") == "no rank waits in a collective");
}

TEST_CASE("a failure has its own times, evidence and last output") {
  FailureLog log;
  log.begin_attempt(0, 1s);
  log.worker_started(4, 2s, 0);
  log.worker_started(5, 2s, 0);
  log.lost_peers(5);
  log.node_failed("gpu02", Error{ErrorCode::kLinkLost, "its control link closed", 0}, {5s, 5s});
  log.worker_failed({"gpu01", 4, 0}, exit_of(3), {5s - 1ms, 5s + 1ms});
  log.worker_failed({"gpu01", 5, 1}, exit_of(3),
                    {1997ms, 2001ms});  // perhaps before its start, by the clocks
  log.evidence({0, 5, "oom of 5", "", ""});
  log.evidence({0, 0, "oom of no failure", "", ""});
  log.set_last_output(5, {"last of 5"}, "rank_00005.stderr");
  log.set_last_output(0, {"last of no failure"}, "");
  const std::vector<Failure>& failures = log.end().failures;
  CHECK(failures[1].at() == 4s);
  CHECK(failures[1].happened.middle() == 5s);
  CHECK(failures[1].happened.margin() == 1ms);
  CHECK(failures[1].ran == 3s);
  CHECK(failures[2].ran == 0s);
  CHECK(failures[2].lost_peers);
  CHECK(failures[2].evidence.oom == "oom of 5");
  CHECK(failures[2].last_stderr == std::vector<std::string>{"last of 5"});
  CHECK(failures[2].stderr_path == "rank_00005.stderr");
  for (const Failure& other : {failures[0], failures[1]}) {
    CHECK_FALSE(other.lost_peers);
    CHECK(other.evidence.oom.empty());
    CHECK(other.last_stderr.empty());
  }
}

TEST_CASE("the agent knows which ends began after its signal, whatever their kind") {
  FailureLog log;
  log.begin_attempt(0, 0s);
  log.stop_ordered(10s, 5s);
  int rank = 0;
  for (const int signal : {0, SIGKILL, SIGTERM, SIGABRT, SIGSEGV}) {
    rendezvous::WorkerExited end = exit_of(signal == 0 ? 3 : 0, static_cast<std::uint8_t>(signal));
    for (const bool after_stop : {false, true}) {
      end.after_stop = after_stop;
      log.worker_failed({"gpu01", rank, rank}, end, {16s, 16s});
      CHECK(log.end().failures.back().stopped_by_us == after_stop);
      ++rank;
    }
  }
}

TEST_CASE("evidence that comes late belongs to the attempt of its rank") {
  FailureLog log;
  log.begin_attempt(0, 0s);
  log.worker_failed({"gpu01", 1, 1}, exit_of(3), {2s, 2s});
  log.end_attempt();
  log.begin_attempt(1, 3s);
  log.worker_failed({"gpu01", 1, 1}, exit_of(4), {4s, 4s});
  log.evidence({0, 1, "of attempt 0", "", ""});
  log.evidence({0, 2, "of no failure", "", ""});
  CHECK(log.end().earlier.at(0).evidence.oom == "of attempt 0");
  CHECK(log.worker_failure(1)->evidence.oom.empty());
  CHECK(log.worker_failure(2) == nullptr);
}

TEST_CASE("the end of an attempt drops its failures and early exits") {
  FailureLog log;
  log.begin_attempt(0, 0s);
  log.worker_ended_well({"gpu01", 0, 0}, {1s, 1s});
  log.worker_failed({"gpu01", 1, 1}, exit_of(3), {2s, 2s});
  REQUIRE(log.end().early.size() == 1);
  SECTION("the job grew") {
    log.forget_attempt();
  }
  SECTION("the job was restarted") {
    log.end_attempt();
    CHECK(log.end().restarts == 1);
    CHECK(log.end().earlier.size() == 1);
  }
  CHECK(log.end().failures.empty());
  CHECK(log.end().early.empty());
}

}  // namespace
}  // namespace ddp::launcher
