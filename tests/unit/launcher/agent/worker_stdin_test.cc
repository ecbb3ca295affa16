#include "launcher/agent/worker_pipes.h"

#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "tests/support/catch.h"

namespace ddp::launcher {
namespace {

/// Workers are the read ends of pipes that the test reads.
struct StdinBench {
  asio::io_context loop;
  bool may_write = true;
  std::size_t taken = 0;
  std::vector<std::uint64_t> positions;  ///< how far each ended worker had read
  UniqueFd reader;
  WorkerStdin input{loop.get_executor(),
                    [this](const rendezvous::StdinTaken& message) {
                      taken += message.bytes;
                      if (message.ended) positions.push_back(message.read);
                    },
                    [this] { return may_write; }};

  void run() {
    loop.restart();
    loop.poll();
  }
  void start_worker() {
    int ends[2];
    REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
    reader.reset(ends[0]);
    input.attach(UniqueFd(ends[1]));
    input.resume();
    run();
  }
  void add(std::string_view bytes) {
    input.add(bytes);
    run();
  }
  void end_worker() {
    input.detach();
    run();
    reader.reset();
  }
  /// Returns up to `size` bytes; empty at the end of the stream; "-" if nothing is there.
  std::string read(std::size_t size) {
    std::string bytes(size, '\0');
    ::fcntl(reader.get(), F_SETFL, O_NONBLOCK);
    const ssize_t count = ::read(reader.get(), bytes.data(), size);
    run();
    return count < 0 ? "-" : bytes.substr(0, static_cast<std::size_t>(count));
  }
};

TEST_CASE("bytes reach the worker in order, and the end of the stream follows them") {
  StdinBench bench;
  bench.start_worker();
  bench.add("one");
  bench.add("two");
  CHECK(bench.taken == 6);
  CHECK(bench.read(10) == "onetwo");
  CHECK(bench.read(10) == "-");
  bench.add("three");
  bench.add("");
  CHECK(bench.read(10) == "three");
  CHECK(bench.read(10) == "");
}

TEST_CASE("bytes wait while a worker may still be started to read them") {
  StdinBench bench;
  bench.may_write = false;
  bench.add("early");
  bench.add("");
  CHECK(bench.taken == 0);
  bench.may_write = true;
  bench.start_worker();
  CHECK(bench.taken == 5);
  CHECK(bench.read(10) == "early");
  CHECK(bench.read(10) == "");
}

TEST_CASE("bytes that no worker reads count as taken") {
  StdinBench bench;
  bench.add("nobody");
  CHECK(bench.taken == 6);
  bench.start_worker();
  bench.add("lost");
  bench.reader.reset();  // the worker closes its stdin
  bench.add("more");
  bench.add("and more");
  CHECK(bench.taken == 6 + 4 + 4 + 8);
}

TEST_CASE("the position of an ended worker is what it has read, and a restarted worker continues there") {
  StdinBench bench;
  bench.start_worker();
  bench.add("0123456789");
  CHECK(bench.read(4) == "0123");
  bench.end_worker();
  CHECK(bench.positions == std::vector<std::uint64_t>{4});
  bench.may_write = false;
  bench.add("abc");
  bench.may_write = true;
  bench.start_worker();
  CHECK(bench.read(2) == "ab");
  bench.end_worker();
  CHECK(bench.positions == std::vector<std::uint64_t>{4, 12});
}

TEST_CASE("the position is known after the end of the stream, and each worker reports once") {
  StdinBench bench;
  bench.start_worker();
  bench.add("0123");
  bench.add("");
  CHECK(bench.read(3) == "012");
  bench.end_worker();
  CHECK(bench.positions == std::vector<std::uint64_t>{3});
  bench.end_worker();
  CHECK(bench.positions.size() == 1);
  bench.start_worker();  // the end of the stream reaches this worker as well
  CHECK(bench.read(3) == "");
}

TEST_CASE("a worker that does not read holds back only its own bytes") {
  StdinBench bench;
  bench.start_worker();
  const std::string much(200'000, 'x');  // more than a pipe holds
  bench.add(much);
  bench.add("next");
  CHECK(bench.taken == 0);
  bench.end_worker();
  CHECK(bench.taken == much.size() + 4);
  bench.start_worker();
  bench.add("mine");
  CHECK(bench.read(10) == "mine");
}

TEST_CASE("the abort of the former worker's write does not close the pipe of the next") {
  StdinBench bench;
  bench.start_worker();
  bench.add(std::string(200'000, 'x'));
  bench.input.detach();
  bench.start_worker();  // before the loop has run the abort
  bench.add("mine");
  CHECK(bench.read(10) == "mine");
}

}  // namespace
}  // namespace ddp::launcher
