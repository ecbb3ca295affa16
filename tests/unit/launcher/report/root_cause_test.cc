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
  failure.happened = {at - error, at + error};
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

/// A node that was heard last at `heard`, and not one heartbeat later.
Failure node_lost(const std::string& host, Time heard, Time heartbeat = 1s) {
  Failure failure;
  failure.kind = Failure::Kind::kNode;
  failure.host = host;
  failure.error = {ErrorCode::kLinkLost, "its control link closed", 0};
  failure.happened = {heard, heard + heartbeat};
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

TEST_CASE("where the clocks cannot order failures, their kinds decide") {
  const Time e = 10ms;
  const Failure exception = says(exited(0, "a", 1, 20ms, e), kValueError);
  const Failure crash = signaled(1, "b", SIGSEGV, 25ms, e);
  // Each kind in the order of blame, and on a host of its own.
  const std::vector<Failure> kinds{
      node_lost("c", 25ms, 20ms),
      crash,
      exception,
      signaled(3, "d", SIGTERM, 24ms, e),
      exited(4, "e", 3, 23ms, e),
      signaled(5, "f", SIGABRT, 22ms, e),
      says(exited(6, "g", 1, 21ms, e), kGloo),
  };
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    CHECK(blame_of(kinds[i]) == static_cast<Blame>(i));
    for (std::size_t j = i + 1; j < kinds.size(); ++j) {
      INFO(i << " before " << j);
      CHECK(pick({kinds[j], kinds[i]}, 1) == 1U);
    }
  }
  // The earlier one of one kind is the cause.
  CHECK(pick({exited(0, "a", 3, 20ms, e), exited(1, "b", 3, 25ms, e)}, 0) == 0U);
  CHECK(pick({signaled(0, "a", SIGKILL, 20ms, e), crash}, 0) == 0U);  // SIGKILL of somebody else
  CHECK(pick({says(signaled(0, "a", SIGABRT, 20ms, e), kWatchdog), crash}, 1) == 1U);
  CHECK(pick({signaled(0, "a", SIGPIPE, 20ms, e), crash}, 1) == 1U);
  CHECK(pick({exception, says(signaled(1, "b", SIGABRT, 19ms, e), {"free(): invalid pointer"})}, 1) == 1U);
  // The driver's word about hardware explains a crash, but not the loss of a peer.
  Failure gpu = exited(3, "d", 1, 26ms, e);
  gpu.evidence.xid =
      "NVRM: Xid (PCI:0000:65:00): 13, a program's\nNVRM: Xid (PCI:0000:65:00): 79, fallen off the bus";
  CHECK(pick({crash, gpu}, 1) == 1U);
  CHECK(pick({crash, says(gpu, kGloo)}, 0) == 0U);
  gpu.evidence.xid = "NVRM: Xid (PCI:0000:65:00): 13, a program's";
  CHECK(pick({crash, gpu}, 0) == 0U);
}

TEST_CASE(
    "a rank that others terminated, or that crashed, is the cause of peers that end without a message") {
  for (const int signal : {SIGTERM, SIGSEGV, SIGKILL}) {
    const Failure killed = signaled(0, "a", signal, 21ms);
    CHECK(pick({exited(1, "a", 1, 20ms), killed}, 1) == 1U);
    CHECK(pick({exited(1, "b", 7, 15ms, 1ms), killed}, 1) == 1U);
    CHECK(pick({signaled(1, "a", SIGABRT, 20ms), killed}, 1) == 1U);
    CHECK(pick({exited(1, "a", 1, 20ms), killed, signaled(2, "a", signal, 22ms)}, 1) == 1U);
    // Its agent saw that its end had begun before our signal; its memory took long to free.
    CHECK(pick({exited(1, "a", 1, 20ms), signaled(0, "a", signal, 9s)}, 1) == 1U);
    // A stop by ddplaunch, or a first failure with a reason, keeps the first failure as cause.
    CHECK(pick({exited(1, "a", 1, 20ms), by_us(killed)}, 0) == 0U);
    CHECK(pick({says(exited(1, "a", 1, 20ms), kValueError), killed}, 0) == 0U);
    CHECK(pick({signaled(1, "a", SIGBUS, 20ms), killed}, 0) == 0U);
  }
  // An exception may follow from the exit of a peer, in words that nobody knows.
  CHECK(pick({exited(1, "a", 3, 20ms), says(exited(0, "a", 1, 21ms), kValueError)}, 0) == 0U);
}

TEST_CASE("a failure with a reason that is certainly earlier is the cause, whatever its kind") {
  CHECK(pick({signaled(0, "a", SIGTERM, 10ms, 1ms), signaled(1, "b", SIGSEGV, 15ms, 1ms)}, 0) == 0U);
  CHECK(pick({node_lost("c", 10ms, 0ms), signaled(1, "b", SIGSEGV, 15ms, 1ms)}, 0) == 0U);
  CHECK(pick({says(exited(0, "a", 1, 10ms), kValueError), signaled(1, "b", SIGSEGV, 15ms, 1ms)}, 0) == 0U);
}

TEST_CASE("a lost node causes only what follows its last byte") {
  const Failure cut = node_lost("c", 4s);
  for (const auto& words :
       {std::vector<std::string>{"torch.distributed.DistBackendError: NCCL error in: "
                                 "ProcessGroupNCCL.cpp:1970, remote process exited or there was "
                                 "a network error"},
        kGloo,
        {"jaxlib.xla_extension.XlaRuntimeError: UNAVAILABLE: Socket closed"}})
    CHECK(pick({says(exited(0, "a", 1, 9s), words), cut}, 1) == 1U);
  CHECK(pick({signaled(0, "a", SIGABRT, 9s), cut}, 1) == 1U);
  CHECK(pick({says(exited(0, "a", 1, 9s), kValueError), cut}, 1) == 1U);
  // The node was heard after the failure.
  const Failure later = node_lost("c", 9s);
  CHECK(pick({signaled(0, "a", SIGSEGV, 4s), later}, 0) == 0U);
  CHECK(pick({says(exited(0, "a", 1, 4s), kValueError), later}, 0) == 0U);
  CHECK(pick({exited(0, "a", 1, 4s), later}, 0) == 0U);
  CHECK(pick({says(exited(0, "a", 1, 4s), kGloo), later}, 0) == 0U);
  // Nor does it hide what explains an echo.
  CHECK(pick({says(exited(0, "a", 1, 4s), kGloo), later, by_us(signaled(1, "b", SIGSEGV, 7s))}, 2) == 2U);
  // A node reports the ends of its own ranks only while it lives, however long the interval of its loss is.
  CHECK(pick({signaled(0, "c", SIGTERM, 4500ms), cut}, 0) == 0U);
  CHECK(pick({signaled(0, "b", SIGTERM, 4500ms), cut}, 1) == 1U);
}

TEST_CASE("an end may be observed up to half a millisecond late") {
  CHECK(pick({signaled(0, "a", SIGTERM, 10'000us), signaled(1, "b", SIGSEGV, 10'499us)}, 1) == 1U);
  CHECK(pick({signaled(0, "a", SIGTERM, 10'000us), signaled(1, "b", SIGSEGV, 10'501us)}, 0) == 0U);
}

TEST_CASE("two times of one clock have no margin") {
  CHECK(pick({signaled(0, "a", SIGTERM, 20ms, 50ms), signaled(1, "a", SIGSEGV, 21ms, 50ms)}, 0) == 0U);
}

TEST_CASE("there is a cause, even if a lost node still reports the ends of its ranks") {
  CHECK(pick({exited(0, "a", 3, 2s), node_lost("a", 1s, 0s)}, 1) == 1U);
  CHECK(pick({exited(0, "a", 3, 2s), node_lost("a", 1s, 2s)}, 0) == 0U);
}

TEST_CASE("a margin applies to a pair of failures, and is not transitive") {
  // a and b overlap, b and c overlap, but a was certainly before c.
  const Failure a = signaled(0, "a", SIGTERM, 10ms, 4ms);
  const Failure b = signaled(1, "b", SIGTERM, 17ms, 4ms);
  const Failure c = signaled(2, "c", SIGSEGV, 24ms, 4ms);
  CHECK(pick({a, b, c}, 0) == 0U);
}

TEST_CASE("a rank that fails while the job is stopped is the cause of all that only noticed it") {
  const std::vector<Failure> effects{
      says(exited(0, "a", 1, 100ms), kGloo),
      says(exited(0, "a", 1, 100ms), {"Traceback (most recent call last):", "EOFError"}),
      says(exited(0, "a", 1, 100ms), {"RuntimeError: recv failed: Connection timed out"}),
      says(signaled(0, "a", SIGABRT, 100ms),
           {"F0929 client.h:77] Terminating process because the JAX distributed "
            "service detected fatal errors. absl::Status: UNAVAILABLE: …"}),
      signaled(0, "a", SIGABRT, 100ms),
      says(signaled(0, "a", SIGABRT, 100ms), {" 37%|###   | 370/1000 [00:10<00:17, 36.8it/s]"}),
  };
  const std::vector<std::string> memory{"Traceback (most recent call last):", "[rank3]: MemoryError"};
  for (const Failure& effect : effects) {
    const Failure other = says(exited(2, "c", 1, 900ms), kGloo);
    INFO(effect.signal << ' ' << (effect.last_stderr.empty() ? "" : effect.last_stderr.back()));
    // Its end had begun when our signal came: any kind of end with something of its own. No time limits this.
    for (const Time at : {101ms, 3'100ms, 60'000ms}) {
      CHECK(pick({effect, other, exited(3, "b", 7, at)}, 2) == 2U);
      CHECK(pick({effect, other, signaled(3, "b", SIGSEGV, at)}, 2) == 2U);
      CHECK(pick({effect, other, signaled(3, "b", SIGKILL, at)}, 2) == 2U);
      CHECK(pick({effect, other, says(exited(3, "b", 1, at), memory)}, 2) == 2U);
      CHECK(pick({effect, other, says(signaled(3, "b", SIGABRT, at), {"free(): invalid pointer"})}, 2) == 2U);
    }
    // It began after our signal: only what our signal does not do.
    CHECK(pick({effect, other, by_us(signaled(3, "b", SIGSEGV, 3'100ms))}, 2) == 2U);
    CHECK(pick({effect, other, by_us(says(exited(3, "b", 1, 3'100ms), memory))}, 2) == 2U);
    // An exit code or an abort may be how the program answers the signal. With nobody else to explain an
    // echo, it is the cause.
    const std::size_t alone = blame_of(effect) == Blame::kEcho ? 1 : 0;
    CHECK(pick({effect, by_us(exited(3, "b", 1, 900ms))}, alone) == alone);
    CHECK(pick({effect, by_us(exited(3, "b", 1, 900ms)), by_us(exited(2, "c", 1, 950ms))}, 0) == 0U);
    CHECK(pick({effect, by_us(exited(3, "b", 7, 900ms)), by_us(exited(2, "b", 7, 950ms)),
                by_us(signaled(1, "c", SIGTERM, 110ms))},
               1) == 1U);
    CHECK(pick({effect, by_us(exited(3, "b", 143, 900ms))}, 0) == 0U);
    CHECK(pick({effect, by_us(signaled(3, "b", SIGABRT, 900ms))}, alone) == alone);
    CHECK(pick({effect, by_us(says(exited(3, "b", 1, 900ms), kGloo))}, 0) == 0U);
    CHECK(pick({effect, by_us(says(exited(3, "b", 1, 900ms), {"KeyboardInterrupt"}))}, 0) == 0U);
    CHECK(
        pick({effect, by_us(says(exited(3, "b", 1, 900ms),
                                 {"torch.distributed.elastic.multiprocessing.api.SignalException: got 15"}))},
             0) == 0U);
    CHECK(pick({effect,
                by_us(says(exited(3, "b", 1, 900ms),
                           {"RuntimeError: DataLoader worker (pid 7) is killed by signal: Terminated."}))},
               0) == 0U);
    // One that began before our signal is preferred, and of those that began after it the first.
    CHECK(pick({effect, by_us(signaled(3, "b", SIGSEGV, 200ms)), says(exited(2, "c", 1, 900ms), kValueError)},
               2) == 2U);
    CHECK(
        pick({effect, by_us(signaled(3, "b", SIGSEGV, 900ms)), by_us(says(exited(2, "c", 1, 200ms), memory))},
             2) == 2U);
  }
  // An abort without a reason is better than an echo, though only if our signal was not first.
  CHECK(pick({effects[0], signaled(3, "b", SIGABRT, 3'100ms)}, 1) == 1U);
  // SIGKILL after our signal is the OOM killer's if the node has evidence.
  Failure killed = by_us(signaled(1, "b", SIGKILL, 300ms));
  CHECK(pick({effects[0], killed}, 0) == 0U);
  killed.evidence.oom = "oom_kill went from 0 to 1";
  CHECK(pick({effects[0], killed}, 1) == 1U);
  // A rank with its own failure, or an exit code that it chose, stays the cause: a program may crash while it
  // stops.
  CHECK(pick({says(exited(0, "a", 1, 100ms), kValueError), by_us(signaled(1, "a", SIGSEGV, 110ms))}, 0) ==
        0U);
  CHECK(pick({exited(0, "a", 3, 100ms), by_us(signaled(1, "a", SIGSEGV, 110ms))}, 0) == 0U);
}

TEST_CASE("a rank whose exit our SIGTERM cut short is the cause by its exception") {
  const Failure echo = says(exited(0, "a", 1, 100ms), kGloo);
  Failure leaving = by_us(signaled(1, "b", SIGTERM, 110ms));
  CHECK(pick({echo, leaving}, 0) == 0U);
  CHECK(pick({echo, says(leaving, kValueError)}, 1) == 1U);
  CHECK(pick({echo, says(leaving, {"ValueError: boom", "retrying"})}, 0) == 0U);  // it had gone on
  CHECK(pick({echo, says(leaving, kGloo)}, 0) == 0U);
  leaving.evidence.exception = WorkerException{"ValueError", "boom", "", "", {}};
  CHECK(pick({echo, leaving}, 1) == 1U);
  leaving.evidence.exception = WorkerException{"RuntimeError", "Connection closed by peer", "", "", {}};
  CHECK(pick({echo, leaving}, 0) == 0U);
}

TEST_CASE("a SIGTERM from outside precedes the ranks that lost the terminated rank") {
  const Failure echo =
      says(exited(0, "a", 1, 100ms), {"train: rank 0 lost rank 1 in an all-reduce: connection closed"});
  CHECK(pick({echo, signaled(1, "a", SIGTERM, 101ms)}, 1) == 1U);
  CHECK(pick({echo, signaled(1, "b", SIGTERM, 99ms, 5ms)}, 1) == 1U);
  CHECK(pick({echo, by_us(signaled(1, "a", SIGTERM, 101ms))}, 0) == 0U);
  // A crash; then an outsider terminates the other ranks.
  CHECK(pick({echo, signaled(1, "a", SIGTERM, 101ms), signaled(2, "a", SIGSEGV, 102ms)}, 2) == 2U);
  // An outsider terminates the ranks of a node, and its agent.
  CHECK(pick({echo, signaled(1, "b", SIGTERM, 101ms), node_lost("b", 101ms)}, 1) == 1U);
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
  const char* const quoted = "[1] is setting up NCCL communicator: Connection reset by peer";
  failure.evidence.exception->message = quoted;  // a ValueError may quote anything
  CHECK(blame_of(failure) == Blame::kOwn);
  failure.evidence.exception->type = "torch.distributed.DistBackendError";
  CHECK(blame_of(failure) == Blame::kEcho);
  for (const char* type : {"ValueError", "builtins.KeyError", "torch.cuda.OutOfMemoryError", "MemoryError"})
    CHECK(blame_of(says(exited(0, "a", 1, 0ms), {std::string("[rank0]: ") + type + ": " + quoted})) ==
          Blame::kOwn);
  for (const char* type :
       {"RuntimeError", "ConnectionResetError", "jaxlib.xla_extension.XlaRuntimeError", "EOFError"})
    CHECK(blame_of(says(exited(0, "a", 1, 0ms), {std::string(type) + ": " + quoted})) == Blame::kEcho);
  // What libraries log while the program ends is no part of the exception.
  for (const char* log :
       {"[W socket.cpp:464] [c10d] recvVector failed: Broken pipe",
        "[rank0]:[W1129 01:02:03.4 TCPStore.cpp:125] recvValue failed: Connection reset by peer",
        "E1129 01:02:03.4 77 coordination_service_agent.cc:12] UNAVAILABLE: failed to connect"}) {
    CHECK(blame_of(says(exited(0, "a", 1, 0ms), {"RuntimeError: boom", log, "second line"})) == Blame::kOwn);
    CHECK(pick({says(exited(0, "a", 1, 100ms), kGloo),
                by_us(says(signaled(1, "b", SIGTERM, 110ms), {"ValueError: x", log}))},
               1) == 1U);
  }
  CHECK(blame_of(says(exited(0, "a", 1, 0ms), {"RuntimeError: Detected error:", "Broken pipe"})) ==
        Blame::kEcho);
}

TEST_CASE("the exception of a plain Python program is what its traceback ends with") {
  const auto shown = [](const Failure& failure) {
    const auto exception = exception_of(failure);
    return exception ? exception->type + '|' + exception->message + '|' + exception->frame : "none";
  };
  const Failure failed = exited(0, "a", 1, 0ms);
  CHECK(shown(says(failed, kValueError)) == "ValueError|boom|train.py:3 in <module>");
  CHECK(shown(says(failed, {"[rank3]: Traceback (most recent call last):",
                            "[rank3]:   File \"/t/train.py\", line 3, in f", "[rank3]:     assert x",
                            "[rank3]: AssertionError", "[rank3]:[W1129 01:02:03.4 a.cpp:1] x"})) ==
        "AssertionError||/t/train.py:3 in f: assert x");
  CHECK(shown(says(failed, {"Traceback (most recent call last):", "  File \"old.py\", line 1, in <module>",
                            "KeyError: 1", "ValueError: without a traceback"})) ==
        "ValueError|without a traceback|");
  CHECK(shown(says(failed, {"bye"})) == "none");
  // Something that only looks like one: a line of a log, and the last words of a program that is not Python.
  CHECK(shown(says(failed, {"ConnectionError: retry 1", "bye"})) == "none");
  CHECK(shown(says(failed, {"Error: cannot open x"})) == "none");
  std::vector<std::string> atexit = kValueError;
  atexit.emplace_back("cleaned up");
  CHECK(shown(says(failed, atexit)) == "ValueError|boom|train.py:3 in <module>");
  // A crash after an exception that the program has caught and printed.
  CHECK(shown(says(signaled(0, "a", SIGSEGV, 0ms), {"ValueError: boom", "going on"})) == "none");
  Failure recorded = says(failed, kValueError);
  recorded.evidence.exception = WorkerException{"KeyError", "7", "f", "trace", 1};
  CHECK(shown(recorded) == "KeyError|7|f");
  CHECK(exception_text(*exception_of(recorded)) == "KeyError: 7");
}

TEST_CASE("each text of a rank that lost a peer is recognized, and is in the table once") {
  for (const EchoText& echo : echo_texts()) {
    INFO(echo.words << " of " << echo.source);
    const std::string example(echo.example);
    CHECK_FALSE(echo.source.empty());
    CHECK((example + "\n").find(echo.words) != std::string::npos);
    for (const std::string& line : {example, "[rank3]: " + example}) {
      CHECK(blame_of(says(exited(0, "a", 1, 0ms), {line})) == Blame::kEcho);
      CHECK(blame_of(says(signaled(0, "a", SIGABRT, 0ms), {line})) == Blame::kEcho);
      CHECK(blame_of(says(signaled(0, "a", SIGSEGV, 0ms), {line})) == Blame::kCrash);
    }
    for (const EchoText& other : echo_texts())
      CHECK((&other == &echo || other.words.find(echo.words) == std::string_view::npos));
  }
  Failure recorded = exited(0, "a", 1, 0ms);
  recorded.evidence.exception = WorkerException{"EOFError", "", "", "", {}};
  CHECK(blame_of(recorded) == Blame::kEcho);
}

TEST_CASE("texts of own failures are no echoes") {
  for (const char* line : {
           "torch.cuda.OutOfMemoryError: CUDA out of memory.",
           "ValueError: boom",
           "EOFError: Ran out of input",
           "EOFError: EOF when reading a line",
           "FileNotFoundError: [Errno 2] No such file or directory: '/data'",
           "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network "
           "address. "
           "port: 29500, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use",
           "RuntimeError: [rank3] Process group watchdog thread terminated with exception: CUDA error: an "
           "illegal "
           "memory access was encountered",
           "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory allocating 8589934592 "
           "bytes.",
           "filelock._error.Timeout: Timed out waiting for the lock: TimeoutError",
           "RuntimeError: CUDA error: device-side assert triggered",
       }) {
    INFO(line);
    CHECK(blame_of(says(exited(0, "a", 1, 0ms), {line})) != Blame::kEcho);
    CHECK(blame_of(says(signaled(0, "a", SIGABRT, 0ms), {line})) != Blame::kEcho);
    if (std::string(line).find("Error: ") < 60)
      CHECK(blame_of(says(exited(0, "a", 1, 0ms), {std::string("[rank3]: ") + line})) == Blame::kOwn);
  }
  CHECK(blame_of(exited(0, "a", 1, 0ms)) == Blame::kExitCode);
  CHECK(blame_of(says(exited(0, "a", 1, 0ms), {"the data set is empty"})) == Blame::kExitCode);
}

TEST_CASE("the cause among many failures is found in time") {
  std::vector<Failure> failures;
  for (int rank = 0; rank < 20'000; ++rank)
    failures.push_back(exited(rank, "gpu" + std::to_string(rank / 8), 1, Time(20'000 - rank), 1ms));
  CHECK(pick_root_cause(failures) == 19'999U);
}
