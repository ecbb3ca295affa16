#include "launcher/report/root_cause.h"

#include <algorithm>
#include <csignal>
#include <string>

#include "tests/support/catch.h"

using namespace ddp;
using namespace ddp::launcher;
using namespace std::chrono_literals;
using Time = std::chrono::nanoseconds;

namespace {

Failure exited(int rank, const std::string& host, int status, Time at, Time error = 0ns) {
  Failure failure;
  failure.host = host;
  failure.rank = rank;
  failure.pid = 4000 + rank;
  failure.status = status;
  failure.at = at;
  failure.at_error = error;
  return failure;
}

Failure signaled(int rank, const std::string& host, int signal, Time at, Time error = 0ns) {
  Failure failure = exited(rank, host, 0, at, error);
  failure.kind = Failure::Kind::kSignaled;
  failure.signal = signal;
  return failure;
}

Failure says(Failure failure, std::vector<std::string> lines) {
  failure.last_stderr = std::move(lines);
  return failure;
}

Failure by_us(Failure failure) {
  failure.stopped_by_us = true;
  return failure;
}

Failure node_lost(const std::string& host, Time at) {
  Failure failure;
  failure.kind = Failure::Kind::kNode;
  failure.host = host;
  failure.error = {ErrorCode::kLinkLost, "its control link closed", 0};
  failure.at = at;
  return failure;
}

const std::vector<std::string> kWatchdog{
    "terminate called after throwing an instance of 'std::runtime_error'",
    "  what():  [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE, "
    "Timeout(ms)=1800000) ran for 1800123 milliseconds before timing out."};
const std::vector<std::string> kGloo{"Traceback (most recent call last):",
                                     "  File \"train.py\", line 9, in <module>", "    dist.all_reduce(x)",
                                     "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:598] "
                                     "Connection closed by peer [127.0.0.1]:34567"};
const std::vector<std::string> kValueError{
    "Traceback (most recent call last):", "  File \"train.py\", line 3, in <module>", "ValueError: boom"};

/// Picks the root cause; the order of the failures must not change it.
std::optional<std::size_t> pick(std::vector<Failure> failures, std::size_t expected) {
  const int rank = failures.at(expected).rank;
  const std::string host = failures.at(expected).host;
  const auto as_given = pick_root_cause(failures);
  std::reverse(failures.begin(), failures.end());
  const auto reversed = pick_root_cause(failures);
  REQUIRE(reversed);
  CHECK(failures[*reversed].rank == rank);
  CHECK(failures[*reversed].host == host);
  return as_given;
}

}  // namespace

TEST_CASE("the cause is the earliest failure that the stop did not cause") {
  CHECK_FALSE(pick_root_cause({}));
  CHECK_FALSE(pick_root_cause({by_us(signaled(0, "a", SIGTERM, 1ms))}));
  CHECK(pick({exited(0, "a", 1, 20ms), exited(1, "a", 1, 10ms)}, 1) == 1U);
  CHECK(pick({by_us(signaled(0, "a", SIGKILL, 1ms)), exited(1, "a", 1, 10ms)}, 1) == 1U);
  CHECK(pick({exited(0, "a", 1, 10ms), exited(1, "b", 1, 15ms, 1ms)}, 0) == 0U);
  CHECK(pick({exited(0, "a", 1, 15ms, 1ms), exited(1, "b", 1, 10ms, 1ms)}, 1) == 1U);
  CHECK(pick_root_cause({exited(0, "a", 1, 10ms), exited(1, "a", 1, 10ms)}) == 0U);  // order of arrival
}

TEST_CASE("the evidence decides where the clocks cannot") {
  const Time e = 10ms;
  const Failure crash = signaled(1, "b", SIGSEGV, 25ms, e);
  CHECK(pick({says(signaled(0, "a", SIGABRT, 20ms, e), kWatchdog), crash}, 1) == 1U);
  CHECK(pick({says(exited(0, "a", 1, 20ms, e), kGloo), crash}, 1) == 1U);
  CHECK(pick({says(exited(0, "a", 1, 20ms, e), kGloo), says(exited(1, "b", 1, 25ms, e), kValueError)}, 1) ==
        1U);
  CHECK(pick({says(exited(0, "a", 1, 20ms, e), kGloo), exited(1, "b", 3, 25ms, e)}, 1) == 1U);
  CHECK(pick({signaled(0, "a", SIGTERM, 20ms, e), says(exited(1, "b", 3, 25ms, e), kValueError)}, 1) == 1U);
  CHECK(pick({signaled(0, "a", SIGPIPE, 20ms, e), crash}, 1) == 1U);
  CHECK(pick({node_lost("c", 20ms), crash}, 1) == 1U);
  CHECK(pick({node_lost("c", 20ms), signaled(1, "b", SIGTERM, 25ms, e)}, 1) == 1U);
  // With equal evidence the time decides, if the clock error permits.
  CHECK(pick({exited(0, "a", 3, 20ms, e), crash}, 0) == 0U);
  // An abort without a watchdog's message, and a SIGKILL that ddplaunch did not send, are own failures.
  CHECK(pick({says(signaled(0, "a", SIGABRT, 20ms, e), {"free(): invalid pointer"}), crash}, 0) == 0U);
  CHECK(pick({signaled(0, "a", SIGKILL, 20ms, e), crash}, 0) == 0U);
}

TEST_CASE("a rank that others terminated is the cause of peers that end without a message") {
  const Failure terminated = signaled(0, "a", SIGTERM, 21ms);
  CHECK(pick({exited(1, "a", 1, 20ms), terminated}, 1) == 1U);
  CHECK(pick({exited(1, "b", 7, 15ms, 1ms), terminated}, 1) == 1U);
  CHECK(pick({signaled(1, "a", SIGABRT, 20ms), terminated}, 1) == 1U);
  CHECK(pick({exited(1, "a", 1, 20ms), terminated, signaled(2, "a", SIGTERM, 22ms)}, 1) == 1U);
  // A stop by ddplaunch, an exception, a crash, or an end long before keeps the first failure as cause.
  CHECK(pick({exited(1, "a", 1, 20ms), by_us(terminated)}, 0) == 0U);
  CHECK(pick({says(exited(1, "a", 1, 20ms), kValueError), terminated}, 0) == 0U);
  CHECK(pick({signaled(1, "a", SIGSEGV, 20ms), terminated}, 0) == 0U);
  CHECK(pick({exited(1, "a", 1, 20ms), signaled(0, "a", SIGTERM, 2100ms)}, 0) == 0U);
}

TEST_CASE("a failure that is certainly later is no cause, whatever its kind") {
  CHECK(pick({signaled(0, "a", SIGTERM, 10ms, 1ms), signaled(1, "b", SIGSEGV, 15ms, 1ms)}, 0) == 0U);
  CHECK(pick({node_lost("c", 10ms), signaled(1, "b", SIGSEGV, 15ms, 1ms)}, 0) == 0U);
}

TEST_CASE("an end may be observed up to half a millisecond late") {
  CHECK(pick({signaled(0, "a", SIGTERM, 10'000us), signaled(1, "b", SIGSEGV, 10'499us)}, 1) == 1U);
  CHECK(pick({signaled(0, "a", SIGTERM, 10'000us), signaled(1, "b", SIGSEGV, 10'501us)}, 0) == 0U);
}

TEST_CASE("two times of one clock have no margin") {
  CHECK(pick({signaled(0, "a", SIGTERM, 20ms, 50ms), signaled(1, "a", SIGSEGV, 21ms, 50ms)}, 0) == 0U);
}

TEST_CASE("a margin applies to a pair of failures, and is not transitive") {
  // a and b overlap, b and c overlap, but a was certainly before c.
  const Failure a = signaled(0, "a", SIGTERM, 10ms, 4ms);
  const Failure b = signaled(1, "b", SIGTERM, 17ms, 4ms);
  const Failure c = signaled(2, "c", SIGSEGV, 24ms, 4ms);
  CHECK(pick({a, b, c}, 0) == 0U);
}

TEST_CASE("a rank that only lost its peer is not the cause of a crash that is observed later") {
  // The crashed rank's core was still being written when its peers gave up and the stop was sent.
  const Failure echo = says(exited(0, "a", 1, 100ms), kGloo);
  CHECK(pick({echo, by_us(signaled(1, "a", SIGSEGV, 900ms))}, 1) == 1U);
  CHECK(pick({echo, by_us(says(exited(1, "b", 1, 900ms), kValueError))}, 1) == 1U);
  CHECK(pick({echo, node_lost("b", 150ms)}, 1) == 1U);
  Failure killed = by_us(signaled(1, "b", SIGKILL, 300ms));
  CHECK(pick({echo, killed}, 0) == 0U);
  killed.evidence.oom = "oom_kill went from 0 to 1";
  CHECK(pick({echo, killed}, 1) == 1U);
  // The worker had reported its exception, and ddplaunch's SIGTERM came during its exit.
  Failure leaving = by_us(signaled(1, "b", SIGTERM, 110ms));
  CHECK(pick({echo, leaving}, 0) == 0U);
  leaving.evidence.exception = WorkerException{"ValueError", "boom", "", "", {}};
  CHECK(pick({echo, leaving}, 1) == 1U);
  leaving.evidence.exception->message = "Connection closed by peer";
  CHECK(pick({echo, leaving}, 0) == 0U);
  // Failures that are too late, or that a stop causes.
  CHECK(pick({echo, by_us(signaled(1, "a", SIGSEGV, 2'200ms))}, 0) == 0U);
  CHECK(pick({echo, by_us(exited(1, "b", 1, 900ms))}, 0) == 0U);
  CHECK(pick({echo, by_us(says(exited(1, "b", 1, 900ms), kGloo))}, 0) == 0U);
  CHECK(pick({echo, by_us(says(exited(1, "b", 1, 900ms), {"KeyboardInterrupt"}))}, 0) == 0U);
  CHECK(pick({echo, node_lost("b", 15'000ms)}, 0) == 0U);
  // A crash takes precedence over a lost node.
  CHECK(pick({echo, node_lost("b", 110ms), by_us(signaled(1, "a", SIGSEGV, 900ms))}, 2) == 2U);
  // A rank with its own failure stays the cause.
  CHECK(pick({says(exited(0, "a", 1, 100ms), kValueError), by_us(signaled(1, "a", SIGSEGV, 110ms))}, 0) ==
        0U);
}

TEST_CASE("a SIGTERM from outside precedes the ranks that lost the terminated rank") {
  const Failure echo =
      says(exited(0, "a", 1, 100ms), {"train: rank 0 lost rank 1 in an all-reduce: connection closed"});
  CHECK(pick({echo, signaled(1, "a", SIGTERM, 101ms)}, 1) == 1U);
  CHECK(pick({echo, signaled(1, "b", SIGTERM, 99ms, 5ms)}, 1) == 1U);
  CHECK(pick({echo, signaled(1, "b", SIGTERM, 2'200ms)}, 0) == 0U);
  CHECK(pick({echo, by_us(signaled(1, "a", SIGTERM, 101ms))}, 0) == 0U);
  // A crash; then an outsider terminates the other ranks.
  CHECK(pick({echo, signaled(1, "a", SIGTERM, 101ms), signaled(2, "a", SIGSEGV, 102ms)}, 2) == 2U);
  // An outsider terminates the ranks of a node, and its agent.
  CHECK(pick({echo, signaled(1, "b", SIGTERM, 101ms), node_lost("b", 102ms)}, 1) == 1U);
}

TEST_CASE("the last exception decides") {
  Failure failure =
      says(exited(0, "a", 1, 0ms), {"warning: Broken pipe while uploading", "ValueError: boom"});
  CHECK(blame_of(failure) == Blame::kOwn);
  CHECK(blame_of(says(failure, {"RuntimeError: Broken pipe", "my.BadException: boom"})) == Blame::kOwn);
  CHECK(blame_of(says(failure, {"RuntimeError: Broken pipe", "bye"})) == Blame::kEcho);
  CHECK(blame_of(says(failure, {"my_mod.PeerError: Broken pipe", "the last Error: bye"})) == Blame::kEcho);
  failure = says(failure, {"torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1970,",
                           "ncclRemoteError: A call failed possibly due to a network error"});
  CHECK(blame_of(failure) == Blame::kEcho);
  failure.evidence.exception = WorkerException{"ValueError", "boom", "", "", {}};
  CHECK(blame_of(failure) == Blame::kOwn);
  failure.evidence.exception->message = "[1] is setting up NCCL communicator: Connection reset by peer";
  CHECK(blame_of(failure) == Blame::kEcho);
}

TEST_CASE("error texts of ranks that lost a peer are recognized") {
  for (const char* line : {
           "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer "
           "[10.0.0.1]:7",
           "RuntimeError: [/opt/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1800000ms for "
           "recv "
           "operation to complete",
           "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1970, remote process "
           "exited or "
           "there was a network error, NCCL version 2.18.1",
           "torch.distributed.DistNetworkError: Failed to recv, got 0 bytes. Connection was likely closed.",
           "torch.distributed.DistStoreError: Timed out after 301 seconds waiting for clients. 2/4 clients "
           "joined.",
           "RuntimeError: NCCL communicator was aborted on rank 3.",
           "BrokenPipeError: [Errno 32] Broken pipe",
           "[rank3]:[E ProcessGroupNCCL.cpp:1182] Process group watchdog thread terminated with exception",
           "train: rank 3 lost rank 2 in an all-reduce: connection closed",
       }) {
    INFO(line);
    CHECK(blame_of(says(exited(0, "a", 1, 0ms), {line})) == Blame::kEcho);
    CHECK(blame_of(says(signaled(0, "a", SIGABRT, 0ms), {line})) == Blame::kEcho);
    CHECK(blame_of(says(signaled(0, "a", SIGSEGV, 0ms), {line})) == Blame::kOwn);
  }
  for (const char* line : {"torch.cuda.OutOfMemoryError: CUDA out of memory.", "ValueError: boom", "",
                           "FileNotFoundError: [Errno 2] No such file or directory: '/data'"}) {
    INFO(line);
    CHECK(blame_of(says(exited(0, "a", 1, 0ms), {line})) == Blame::kOwn);
  }
}

TEST_CASE("the cause among many failures is found in time") {
  std::vector<Failure> failures;
  for (int rank = 0; rank < 20'000; ++rank)
    failures.push_back(exited(rank, "gpu" + std::to_string(rank / 8), 1, Time(20'000 - rank), 1ms));
  CHECK(pick_root_cause(failures) == 19'999U);
}
