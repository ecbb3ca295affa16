#include "launcher/output/job_writer.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <filesystem>
#include <future>
#include <memory>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/program.h"
#include "base/unique_fd.h"
#include "launcher/output/job_dir.h"
#include "tests/support/catch.h"
#include "tests/unit/launcher/output/job_fixtures.h"
#include "tests/unit/launcher/output/output_fixtures.h"

using namespace ddp;
using namespace ddp::launcher;
using std::chrono::milliseconds;
using std::chrono::seconds;
using test::content;
using test::FileLimit;
using test::made;
using test::spec_in;
using test::TemporaryDirectory;
namespace fs = std::filesystem;

namespace {

/// A writer, with the words of its warnings and how often it has drained.
struct WriterBench {
  explicit WriterBench(JobDir job, JobWriter::FirstTask first = {})
      : writer(JobWriter::start(
            loop.get_executor(), std::move(job), [this](const std::string& words) { said.push_back(words); },
            [this] { ++drained; }, std::move(first))) {}
  asio::io_context loop;
  std::vector<std::string> said;
  int drained = 0;
  std::shared_ptr<JobWriter> writer;
};

}  // namespace

TEST_CASE("the writer keeps the order of each stream, and drains") {
  const TemporaryDirectory directory;
  const JobSpec spec = spec_in(directory);
  JobDir job = made(spec);
  std::promise<void> full;  // until then the disk is slow
  WriterBench bench(std::move(job), [wait = full.get_future().share()] { wait.wait(); });
  const auto& writer = bench.writer;
  std::map<OutputKey, std::string> sent;
  std::mt19937 random(3);
  bool was_full = false;
  for (int i = 0; i < 2'000; ++i) {
    const OutputKey key{static_cast<std::uint32_t>(random() % 2), static_cast<std::uint32_t>(random() % 8), 0,
                        static_cast<std::uint8_t>(1 + random() % 2)};
    const std::string bytes(random() % 15'000, static_cast<char>('a' + i % 26));
    sent[key] += bytes;
    if (i % 3 == 0) {  // some writes without a copy
      const std::shared_ptr<char[]> memory(new char[bytes.size() + 1]);
      bytes.copy(memory.get(), bytes.size());
      writer->append(key, {memory.get(), bytes.size()}, memory);
    } else {
      writer->append(key, bytes);
    }
    if (!was_full && writer->full()) {
      was_full = true;
      full.set_value();
    }
  }
  REQUIRE(was_full);
  const auto settled = writer->finish(
      [](const std::string&) { return std::vector<std::string>{"the last task's"}; }, seconds(30));
  REQUIRE(settled.has_value());
  CHECK(*settled == std::vector<std::string>{"the last task's"});
  for (const auto& [key, bytes] : sent)
    CHECK(content(writer->file(key.attempt, key.rank, key.stream)) == bytes);
  writer->append({0, 0, 0, 1}, "tail");
  writer->close(seconds(30));
  CHECK(content(writer->file(0, 0, 1)) == sent[{0, 0, 0, 1}] + "tail");
  bench.loop.run();
  CHECK(bench.said.empty());
  CHECK(bench.drained > 0);
}

TEST_CASE("the writer reports the missing bytes, also when the job ends at once") {
  const TemporaryDirectory directory;
  const JobSpec spec = spec_in(directory);
  JobDir job = made(spec);
  WriterBench bench(std::move(job));
  const auto& writer = bench.writer;
  const FileLimit limit(10);
  writer->append({0, 0, 0, 1}, "0123456789abc");
  const auto settled =
      writer->finish([](const std::string&) { return std::vector<std::string>(); }, seconds(30));
  REQUIRE((settled && settled->size() == 1));
  CHECK(settled->front().starts_with("warning: the job's files are incomplete; missing: 3 bytes of "));
  writer->close(seconds(30));
  bench.loop.run();
  REQUIRE(bench.said.size() == 1);
  CHECK(bench.said[0].starts_with("warning: no space left for the job's files: "));
}

TEST_CASE("the writer is abandoned when its disk hangs") {
  const TemporaryDirectory directory;
  const JobSpec spec = spec_in(directory);
  JobDir job = made(spec);
  const std::string file = job.file(0, 0, 1);
  REQUIRE(::mkdir(std::filesystem::path(file).parent_path().c_str(), 0700) == 0);
  REQUIRE(::mkfifo(file.c_str(), 0600) == 0);  // open blocks until a reader comes
  std::atomic<bool> called = false;
  const JobWriter::LastTask last = [&called](const std::string&) {
    called = true;
    return std::vector<std::string>();
  };
  std::weak_ptr<JobWriter> left;
  {
    asio::io_context loop;
    const auto writer = JobWriter::start(
        loop.get_executor(), std::move(job), [](const std::string&) {}, [] {});
    left = writer;
    writer->append({0, 0, 0, 1}, "0123456789");
    CHECK_FALSE(writer->finish(last, milliseconds(20)).has_value());
    CHECK(writer->backlog() == 10);
    writer->close(milliseconds(20));
  }
  CHECK_FALSE(called);
  // The disk responds again.
  const int reader = ::open(file.c_str(), O_RDONLY | O_CLOEXEC);
  while (!left.expired())
    std::this_thread::sleep_for(milliseconds(1));
  CHECK(called);
  ::close(reader);
}

TEST_CASE("a hanging disk costs bounded memory, and the dropped bytes are counted") {
  const TemporaryDirectory directory;
  const JobSpec spec = spec_in(directory);
  JobDir job = made(spec);
  const std::string path = job.file(0, 0, 1);
  fs::create_directories(fs::path(path).parent_path());
  REQUIRE(::mkfifo(path.c_str(), 0600) == 0);  // open blocks until a reader comes
  WriterBench bench(std::move(job));
  const auto& writer = bench.writer;
  constexpr std::size_t kPiece = 1u << 20;
  const std::shared_ptr<char[]> memory(new char[kPiece]());
  std::size_t sent = 0;
  for (; sent < JobWriter::kMost + 10 * kPiece; sent += kPiece)
    writer->append({0, 0, 0, 1}, {memory.get(), kPiece}, memory);
  std::size_t read = 0;
  std::thread reader([&] {
    const UniqueFd fifo(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    std::string bytes(kPiece, '\0');
    while (read < JobWriter::kMost + 10) {
      const ssize_t size = ::read(fifo.get(), bytes.data(), bytes.size());
      if (size <= 0) break;
      read += static_cast<std::size_t>(size);
    }
  });
  const auto settled =
      writer->finish([](const std::string&) { return std::vector<std::string>(); }, seconds(30));
  writer->append({0, 0, 0, 1}, "it goes on");
  writer->close(seconds(30));
  reader.join();
  REQUIRE((settled && settled->size() == 1));
  CHECK(settled->front() == "warning: the job's files are incomplete; missing: " +
                                std::to_string(10 * kPiece) + " bytes of " + path);
  CHECK(read == JobWriter::kMost + 10);
  CHECK(content(spec.job_dir + "/gaps.txt") == path + ": " + std::to_string(10 * kPiece) +
                                                   " bytes missing at offset " +
                                                   std::to_string(JobWriter::kMost) + "\n");
  bench.loop.run();
  CHECK(bench.said.empty());
}

TEST_CASE("the job's log has messages, steps, workers and the report") {
  const TemporaryDirectory directory;
  JobSpec spec = spec_in(directory);
  spec.command.argv = {"./train.py", "two words"};
  JobDir job = made(spec);
  WriterBench bench(std::move(job));
  const auto& writer = bench.writer;
  const JobLog log(*writer, spec);
  spec.command = {WorkerCommand::Kind::kTrain, {"--epochs", "two\nlines"}, ""};
  (void)JobLog(*writer, spec);
  log.said("a message");
  log.step("a step");
  log.from_node("gpu01", rendezvous::Message());  // of no interest
  rendezvous::WorkerStarted started;
  started.attempt = 1;
  started.rank = 3;
  started.pid = 4711;
  log.from_node("gpu01", started);
  rendezvous::WorkerExited exited;
  exited.attempt = 1;
  exited.rank = 3;
  exited.pid = 4711;
  exited.code = 2;
  log.from_node("gpu01", exited);
  exited.code = 0;
  exited.signal = SIGKILL;
  log.from_node("gpu01", exited);
  exited.pid = 0;
  exited.text = "no such program";
  log.from_node("gpu01", exited);
  log.ended("one\n\ntwo");
  writer->close(seconds(30));
  std::istringstream lines(content(directory.path / "job/ddplaunch.log"));
  std::string text;
  constexpr std::size_t kTime = std::string_view("2026-11-21 07:18:13.250 ").size();
  for (std::string line; std::getline(lines, line);)
    text += line.substr(std::min(kTime, line.size())) + '\n';
  CHECK(text == "info [job] ddplaunch " + std::string(version()) + ", pid " + std::to_string(::getpid()) +
                    ", job run7, hosts 0, worker: ./train.py 'two words'\n"
                    "info [job] ddplaunch " +
                    std::string(version()) + ", pid " + std::to_string(::getpid()) +
                    ", job run7, hosts 0, worker: train --epochs (an argument of several lines)\n"
                    "info [job] a message\n"
                    "debug [job] a step\n"
                    "debug [job] gpu01: attempt 1: rank 3 started, pid 4711\n"
                    "info [job] gpu01: attempt 1: rank 3, pid 4711 exited 2\n"
                    "info [job] gpu01: attempt 1: rank 3, pid 4711 killed by SIGKILL\n"
                    "info [job] gpu01: attempt 1: rank 3, pid 0 did not start: no such program\n"
                    "info [job] one\ninfo [job] \ninfo [job] two\n");
}
