// Both ends of the worker protocol over real sockets: WorkerListener on a loop, WorkerClient in its thread.
#include "launcher/agent/worker_listener.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <functional>
#include <future>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/unique_fd.h"
#include "rendezvous/worker_client/worker_client.h"
#include "tests/support/catch.h"
#include "tests/support/run_until.h"
#include "tests/support/skip.h"

namespace ddp::launcher {
namespace {

using namespace std::chrono_literals;
using rendezvous::WorkerClient;
using Clock = std::chrono::steady_clock;

constexpr auto kPatience = 20s;  // limit for events that should come at once

class LinkRecord : public WorkerMessageEvents {
 public:
  std::vector<std::string> said;
  std::vector<std::uint64_t> steps;
  std::function<void()> on_hello = [] {};

  void worker_said(std::uint32_t rank, const rendezvous::WorkerHello& hello) override {
    add(rank, std::string("hello") + (hello.rejoin ? " rejoin" : "") + (hello.sharded ? " sharded" : ""));
    pid = hello.pid;
    linked.insert(rank);
    on_hello();
  }
  void worker_said(std::uint32_t, const rendezvous::WorkerStep& step) override {
    steps.push_back(step.step);
    phase = step.phase;
    if (step.durations) durations.add(*step.durations);
  }
  void worker_reported(std::uint32_t rank, const rendezvous::WorkerStep& step) override {
    add(rank, "report " + std::to_string(step.step) + " " + std::to_string(step.loss.value_or(-1)));
  }
  void worker_said(std::uint32_t rank, const rendezvous::WorkerTrouble& trouble) override {
    add(rank, "failed " + std::to_string(trouble.attempt) + " " + trouble.error);
  }
  void worker_said(std::uint32_t rank, const rendezvous::WorkerRevoked& answer) override {
    add(rank, "revoked " + std::to_string(answer.attempt) + " " +
                  (answer.step ? std::to_string(*answer.step) : "none"));
  }
  void worker_said(std::uint32_t rank, const rendezvous::WorkerReady&) override { add(rank, "ready"); }
  void worker_unlinked(std::uint32_t rank) override { linked.erase(rank); }
  void worker_said(std::uint32_t rank, const rendezvous::WorkerMisbehaved& misbehavior) override {
    add(rank, "odd " + misbehavior.words);
  }

  bool has(const std::string& what) const { return std::find(said.begin(), said.end(), what) != said.end(); }
  std::uint32_t pid = 0;
  std::string phase;
  StepDurations durations;         ///< that workers have measured
  std::set<std::uint32_t> linked;  ///< workers that have greeted and are connected

 private:
  void add(std::uint32_t rank, const std::string& what) { said.push_back(std::to_string(rank) + " " + what); }
};

std::set<int> open_descriptors() {
  std::set<int> found;
  for (int fd = 0; fd < 1024; ++fd)
    if (::fcntl(fd, F_GETFD) >= 0) found.insert(fd);
  return found;
}

struct LinkFixture {
  asio::io_context loop{1};
  LinkRecord record;
  std::unique_ptr<WorkerListener> link = std::make_unique<WorkerListener>(loop.get_executor(), record);

  LinkFixture() { REQUIRE(link->open("/tmp").has_value()); }
  ~LinkFixture() {
    const std::string directory = link ? link->directory() : "";
    link.reset();
    loop.restart();
    loop.poll();
    if (!directory.empty()) CHECK_FALSE(std::filesystem::exists(directory));
  }

  void until(const std::function<bool()>& holds) { REQUIRE(test::run_until(loop, holds)); }
  void until_said(const std::string& what) {
    INFO("until: " << what);
    until([&] { return record.has(what); });
  }
  std::string metrics;  ///< the socket for reports of the latest process
  /// Returns the control socket of a process that has been started.
  Result<std::string> expect(std::uint32_t local_rank) {
    auto sockets = link->expect(local_rank);
    link->started(local_rank);
    if (!sockets) return sockets.error();
    metrics = sockets->metrics;
    return sockets->control;
  }
  std::unique_ptr<WorkerClient> worker(std::uint32_t local_rank = 0) {
    const auto control = expect(local_rank);
    REQUIRE(control.has_value());
    auto client = WorkerClient::connect(*control, true, false);
    REQUIRE(client.has_value());
    until_said(std::to_string(local_rank) + " hello rejoin");
    return std::move(*client);
  }
  /// A worker in attempt 0.
  std::unique_ptr<WorkerClient> running() {
    auto client = worker();
    begin(0);
    REQUIRE(client->next_attempt().has_value());
    return client;
  }
  void begin(std::uint32_t attempt, std::uint32_t local_rank = 0) {
    link->begin(local_rank, {attempt, 0, 1, 0, 1, 0, 1, "127.0.0.1:29500", true, std::nullopt});
  }
  void revoke(std::uint32_t attempt) { link->revoke(0, {attempt, "rank 1 was killed", 5000}); }
};

bool readable(int fd, std::chrono::milliseconds wait = 0ms) {
  pollfd one{fd, POLLIN, 0};
  return ::poll(&one, 1, static_cast<int>(wait.count())) == 1;
}

sockaddr_un address_of(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
  return address;
}

/// Connects a worker that does not use ddplaunch's client.
UniqueFd raw_connection(const std::string& control) {
  const sockaddr_un address = address_of(control.substr(5));
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) < 0) return UniqueFd();
  return fd;
}

void say(const UniqueFd& fd, const std::string& bytes) {
  REQUIRE(::send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size()));
}

/// Connects such a worker and lets it greet, with more behind the greeting.
UniqueFd raw_worker(LinkFixture& world, const std::string& more = "") {
  UniqueFd worker = raw_connection(world.expect(0).value());
  say(worker, "{\"hello\":1,\"pid\":5,\"rejoin\":true}\n" + more);
  world.until_said("0 hello rejoin");
  return worker;
}

TEST_CASE("worker link: a worker runs an attempt, is revoked and runs the next") {
  LinkFixture world;
  auto client = world.worker();
  CHECK(world.record.pid == static_cast<std::uint32_t>(::getpid()));
  CHECK(world.record.linked == std::set<std::uint32_t>{0});
  world.begin(0);
  const auto first = client->next_attempt();
  REQUIRE(first.has_value());
  CHECK(first->store == "127.0.0.1:29500");
  client->ready();
  world.until_said("0 ready");
  client->at(3, "all-reduce");
  world.until([&] { return !world.record.steps.empty(); });
  CHECK(world.record.steps == std::vector<std::uint64_t>{3});
  CHECK(world.record.phase == "all-reduce");

  // A thread that waits for a peer must see the revoke there.
  CHECK_FALSE(readable(client->interrupt()));
  std::promise<void> waits;
  std::thread waiting([&] {
    waits.set_value();
    REQUIRE(readable(client->interrupt(), kPatience));
  });
  waits.get_future().wait();
  world.revoke(0);
  waiting.join();
  client->failed("too late to be news", {1});
  const auto revoke = client->await_revoke();
  REQUIRE(revoke.has_value());
  CHECK(revoke->attempt == 0);
  CHECK(revoke->reason == "rank 1 was killed");
  CHECK(revoke->deadline_ms == 5000);
  client->revoked(3);
  client->revoked(4);  // already reported
  world.until_said("0 revoked 0 3");
  CHECK(readable(client->interrupt()));

  world.begin(1);
  const auto second = client->next_attempt();
  REQUIRE(second.has_value());
  CHECK(second->attempt == 1);
  CHECK_FALSE(readable(client->interrupt()));
  client->failed("rank 2 closed the connection", {2});
  world.until_said("0 failed 1 rank 2 closed the connection");
  CHECK(world.record.said.size() == 4);
}

TEST_CASE("worker link: an attempt that was revoked before the worker took it") {
  LinkFixture world;
  auto client = world.worker();
  world.begin(0);
  world.revoke(0);
  world.until_said("0 revoked 0 none");  // sent by the client's thread
  world.begin(1);
  REQUIRE(client->next_attempt()->attempt == 1);
  world.revoke(1);
  REQUIRE(client->await_revoke().has_value());
  client->revoked(77);
  world.until_said("0 revoked 1 77");
  world.begin(2);
  world.revoke(2);
  // The state that the worker held when it left the attempt is still held.
  world.until_said("0 revoked 2 77");
  world.begin(3);
  REQUIRE(client->next_attempt()->attempt == 3);
  CHECK_FALSE(readable(client->interrupt()));
}

TEST_CASE("worker link: a worker counts each of its steps, also those that it does not report") {
  LinkFixture world;
  auto client = world.running();
  client->at(0, "load");
  client->at(7, "join");  // the state of another rank
  client->ready();
  const auto began = Clock::now();
  for (std::uint64_t step = 8; step <= 58; ++step) {
    client->at(step, "forward");
    client->at(step, "backward");
  }
  const double all = std::chrono::duration<double>(Clock::now() - began).count();
  world.until([&] { return !world.record.steps.empty() && world.record.steps.back() == 58; });
  CHECK(world.record.durations.steps() == 50);  // not those before it had the state
  CHECK(world.record.durations.seconds <= all + 1);
}

TEST_CASE("worker link: a process is read once its start is known") {
  LinkFixture world;
  const auto sockets = world.link->expect(0);
  auto client = WorkerClient::connect(sockets->control, true, false);
  REQUIRE(client.has_value());  // it does not wait for the agent
  world.loop.poll();
  CHECK_FALSE(world.record.has("0 hello rejoin"));
  world.link->started(0);
  world.until_said("0 hello rejoin");
}

TEST_CASE("worker link: what an ended process has said is read before it is forgotten") {
  LinkFixture world;
  const auto control = world.expect(0);
  REQUIRE(control.has_value());
  world.begin(0);
  {
    const UniqueFd process = raw_connection(*control);
    say(process, "{\"hello\":1,\"pid\":7,\"rejoin\":false}\n");
    say(process, "{\"failed\":0,\"error\":\"a split model\",\"retry\":false}\n");
  }
  world.link->read_last_words(0);  // the loop has not run since the process connected
  CHECK(world.record.has("0 failed 0 a split model"));
  CHECK(world.record.linked.empty());
  world.link->forget(0);
  world.link->read_last_words(0);
}

/// Sends a datagram, as a program that does not speak the protocol does. Never blocks.
void report(const std::string& metrics, const std::string& bytes) {
  const sockaddr_un address = address_of(metrics);
  const UniqueFd fd(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  REQUIRE(::sendto(fd.get(), bytes.data(), bytes.size(), MSG_DONTWAIT,
                   reinterpret_cast<const sockaddr*>(&address),
                   sizeof address) == static_cast<ssize_t>(bytes.size()));
}

TEST_CASE("worker link: reports need no connection, and a broken one is reported once") {
  LinkFixture world;
  REQUIRE(world.expect(0).has_value());
  const std::string first = world.metrics;
  REQUIRE(world.expect(3).has_value());
  report(first, "{\"step\":7,\"loss\":0.5}\n");
  world.until_said("0 report 7 0.500000");
  report(world.metrics, R"({"step":1,"loss":null})");
  world.until_said("3 report 1 -1.000000");
  CHECK(world.record.said.size() == 2);
  CHECK(world.record.steps.empty());  // no activity for the detection of hangs

  for (const char* broken :
       {"", "step 8", R"({"step":8,"loss":"low"})", R"({"hello":1,"pid":1,"rejoin":true})"})
    report(first, broken);
  report(first, "again");
  report(first, R"({"step":9})");
  world.until_said("0 report 9 -1.000000");
  CHECK(world.record.said[2] ==
        "0 odd sent a report to DDPLAUNCH_METRICS that cannot be read: a line is not a JSON object; "
        "docs/users/metrics.md has an example");
  CHECK(world.record.said.size() == 4);
}

TEST_CASE("worker link: an order waits for the hello, and may be sent from the hello's handler") {
  LinkFixture world;
  const auto control = world.expect(0);
  world.begin(0);
  auto client = WorkerClient::connect(*control, true, false);
  world.until_said("0 hello rejoin");
  CHECK((*client)->next_attempt()->attempt == 0);

  world.record.on_hello = [&] { world.begin(5, 7); };
  auto other = world.worker(7);
  CHECK(other->next_attempt()->attempt == 5);
}

TEST_CASE("worker link: the agent closes the link") {
  LinkFixture world;
  auto client = world.running();
  world.link.reset();
  CHECK(readable(client->interrupt(), kPatience));
  const auto revoke = client->await_revoke();
  CHECK(revoke.error().code == ErrorCode::kLinkLost);
  CHECK(revoke.error().text == "the agent is gone: it closed the connection");
  CHECK(client->next_attempt().error().code == ErrorCode::kLinkLost);
  client->at(1, "");
  client->failed("nobody hears it", {});
  client->revoked(1);
  CHECK(readable(client->interrupt()));
}

TEST_CASE("worker link: the agent closes the link while the worker waits") {
  LinkFixture world;
  auto client = world.worker();
  auto waiting = std::async(std::launch::async, [&] { return client->next_attempt(); });
  world.link.reset();
  CHECK(waiting.get().error().code == ErrorCode::kLinkLost);
}

TEST_CASE("worker link: the agent sends a stop") {
  LinkFixture world;
  auto client = world.running();
  world.link->stop({"user", 25000});
  const auto revoke = client->await_revoke();
  CHECK(revoke.error().code == ErrorCode::kCancelled);
  CHECK(revoke.error().text == "the agent ordered a stop: user");
  CHECK(client->next_attempt().error().code == ErrorCode::kCancelled);
}

TEST_CASE("worker link: a wait without an order ends at its deadline") {
  LinkFixture world;
  auto client = world.running();
  const auto revoke = client->await_revoke(20ms);
  CHECK(revoke.error().code == ErrorCode::kTimeout);
  CHECK(revoke.error().text == "no order came from the agent within 20 ms");
}

TEST_CASE("worker link: the first connection of a rank counts") {
  LinkFixture world;
  const auto control = world.expect(0);
  auto client = WorkerClient::connect(*control, true, false);
  world.until_said("0 hello rejoin");
  const auto second = WorkerClient::connect(*control, true, false);
  CHECK(second.error().code == ErrorCode::kUnreachable);
  world.begin(0);
  CHECK((*client)->next_attempt().has_value());
  // The next process of the rank gets another socket.
  const auto next = world.expect(0);
  REQUIRE(next.has_value());
  CHECK(*next != *control);
  CHECK((*client)->next_attempt().error().code == ErrorCode::kLinkLost);
  world.record.linked.clear();
  world.begin(1);  // waits for the new process
  auto anew = WorkerClient::connect(*next, true, false);
  CHECK(WorkerClient::connect(*control, true, false).has_error());
  world.until([&] { return world.record.linked.contains(0); });
  CHECK((*anew)->next_attempt()->attempt == 1);
}

TEST_CASE("worker link: steps are sent ten times a second, and the last one always") {
  LinkFixture world;
  auto client = world.worker();
  const auto start = Clock::now();
  std::uint64_t step = 0;
  while (Clock::now() - start < 350ms || step <= 100) {
    client->at(++step, "forward");
    world.loop.restart();
    world.loop.poll();
  }
  world.until([&] { return !world.record.steps.empty() && world.record.steps.back() == step; });
  const auto took = Clock::now() - start;
  CHECK(step > 100);
  CHECK(world.record.steps.size() >= 2);
  CHECK(world.record.steps.size() <= static_cast<std::size_t>(took / 100ms) + 2);
  CHECK(std::is_sorted(world.record.steps.begin(), world.record.steps.end()));
  // The client's destruction reports the last step before the hundred milliseconds are over.
  client->at(++step, "the last");
  client.reset();
  world.until([&] { return world.record.steps.back() == step; });
  CHECK(world.record.phase == "the last");
}

TEST_CASE("worker link: many threads may call at()") {
  LinkFixture world;
  auto client = world.worker();
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&] {
      for (std::uint64_t step = 1; step <= 5000; ++step)
        client->at(step, "many");
    });
  world.begin(0);
  CHECK(client->next_attempt().has_value());
  world.revoke(0);
  CHECK(client->await_revoke().has_value());
  client->revoked(1);
  for (std::thread& thread : threads)
    thread.join();
  world.until_said("0 revoked 0 1");
}

TEST_CASE("worker link: a missing or malformed agent address is an error") {
  const auto code = [](const std::string& control) {
    return WorkerClient::connect(control, true, false).error().code;
  };
  CHECK(code("") == ErrorCode::kUsage);
  CHECK(code("unix:") == ErrorCode::kUsage);
  CHECK(code("tcp:127.0.0.1:1") == ErrorCode::kUsage);
  CHECK(code("unix:/" + std::string(108, 'x')) == ErrorCode::kUsage);
  CHECK(code("unix:/nowhere/w0.1") == ErrorCode::kUnreachable);
  CHECK(WorkerClient::connect("here", true, false).error().text ==
        "DDPLAUNCH_CONTROL is \"here\", which is not unix:PATH");
}

UniqueFd listen_at(const std::string& path) {
  ::unlink(path.c_str());
  UniqueFd listener(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_un address = address_of(path);
  REQUIRE(::bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  REQUIRE(::listen(listener.get(), 1) == 0);
  return listener;
}

TEST_CASE("worker link: an agent that speaks another protocol") {
  const std::string path = "/tmp/ddp-worker-link-" + std::to_string(::getpid());
  for (const std::string& words : {std::string("HTTP/1.1 400 Bad Request\n"), std::string(5000, 'x')}) {
    const UniqueFd listener = listen_at(path);
    auto client = WorkerClient::connect("unix:" + path, true, false);
    const UniqueFd agent(::accept(listener.get(), nullptr, nullptr));
    say(agent, words);
    const auto next = (*client)->next_attempt();
    CHECK(next.error().code == ErrorCode::kLinkLost);
    CHECK(next.error().text.starts_with("the agent is gone: it sent an invalid order: a line is"));
    // The destruction of the client does not wait for an agent that exists but does not read.
  }
  ::unlink(path.c_str());
}

// The client's last send then fails, and what the agent sent after its invalid line is not read.
TEST_CASE("worker link: an agent that sends an invalid line and is gone before the hello") {
  const std::string path = "/tmp/ddp-worker-link-" + std::to_string(::getpid());
  const UniqueFd listener = listen_at(path);
  constexpr int kTimes = 300;  // the order in which the two threads run is not ours
  std::thread agents([&] {
    const std::string line(9000, 'x');
    for (int i = 0; i < kTimes; ++i) {
      const UniqueFd agent(::accept(listener.get(), nullptr, nullptr));
      std::ignore =
          ::send(agent.get(), line.data(), line.size(), MSG_NOSIGNAL);  // no check off the test's thread
    }
  });
  for (int i = 0; i < kTimes; ++i) {
    const auto client = WorkerClient::connect("unix:" + path, true, false);
    if (client) CHECK((*client)->next_attempt().error().code == ErrorCode::kLinkLost);
  }
  agents.join();
  ::unlink(path.c_str());
}

TEST_CASE("worker link: the directory and its sockets are private and are removed") {
  const std::set<int> before = open_descriptors();
  std::string directory;
  {
    LinkFixture world;
    directory = world.link->directory();
    CHECK(directory.starts_with("/tmp/ddplaunch-"));
    struct stat facts {};
    REQUIRE(::stat(directory.c_str(), &facts) == 0);
    CHECK((facts.st_mode & 0777) == 0700);
    const auto control = world.expect(3);
    CHECK(control->starts_with("unix:" + directory + "/"));
    CHECK(control->size() < 105);
    auto client = world.worker(4);
    for (const int fd : open_descriptors())
      if (!before.contains(fd)) CHECK((::fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0);
  }
  CHECK_FALSE(std::filesystem::exists(directory));
  CHECK(open_descriptors() == before);
}

TEST_CASE("worker link: an unusable base directory is replaced by /tmp") {
  asio::io_context loop{1};
  LinkRecord record;
  for (const std::string& base : {std::string(), std::string("/nowhere/at/all"), std::string("relative"),
                                  "/tmp/" + std::string(60, 'x'), std::string("/proc")}) {
    INFO(base);
    WorkerListener link(loop.get_executor(), record);
    CHECK(link.expect(0).error().code == ErrorCode::kInternal);
    REQUIRE(link.open(base).has_value());
    CHECK(link.directory().starts_with("/tmp/ddplaunch-"));
    CHECK(link.expect(0).has_value());
  }
}

TEST_CASE("worker link: a worker that does not read blocks nothing") {
  LinkFixture world;
  const UniqueFd worker = raw_worker(world);
  const std::string expected =
      "0 odd does not read its messages from DDPLAUNCH_CONTROL; closed its connection";
  for (std::uint32_t attempt = 0; attempt < 4000 && !world.record.has(expected); ++attempt)
    world.link->begin(0, {attempt, 0, 1, 0, 1, 0, 1, std::string(2000, 's'), true, std::nullopt});
  CHECK(world.record.has(expected));
  CHECK(world.record.linked.empty());
  world.begin(9999);
  CHECK(world.record.said.size() == 2);
}

TEST_CASE("worker link: queued messages arrive when the worker reads again") {
  LinkFixture world;
  const UniqueFd worker = raw_worker(world);
  std::size_t size = 0;
  for (std::uint32_t attempt = 0; size < 400'000; ++attempt) {
    const rendezvous::AttemptOrder order{attempt, 0,           1, 0, 1, 0, 1, std::string(500, 's'),
                                         true,    std::nullopt};
    const std::string line = rendezvous::encode_line(rendezvous::AgentMessage(order));
    world.link->begin(0, order);
    // The kernel's buffer is full, and the rest waits in WorkerListener.
    size += line.size();
    int in_kernel = 0;
    REQUIRE(::ioctl(worker.get(), FIONREAD, &in_kernel) == 0);
    if (size > static_cast<std::size_t>(in_kernel) + 16 * 1024) break;
  }
  std::size_t got = 0;
  std::string bytes(4096, '\0');
  world.until([&] {
    const ssize_t now = ::recv(worker.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (now > 0) got += static_cast<std::size_t>(now);
    return got == size;
  });
  CHECK(world.record.linked.contains(0));
}

TEST_CASE("worker link: a worker that is ignored is disconnected, and others continue") {
  LinkFixture world;
  const auto control = world.expect(0);
  const UniqueFd worker = raw_connection(*control);
  say(worker, "{\"hello\":9}\n");
  world.until_said("0 odd speaks version 9 of the worker protocol, not 1; its messages are ignored");
  char byte = 0;
  world.until([&] { return ::recv(worker.get(), &byte, 1, MSG_DONTWAIT) == 0; });
  world.begin(0);
  auto other = world.worker(1);
  world.begin(0, 1);
  CHECK(other->next_attempt().has_value());
}

TEST_CASE("worker link: a worker may be removed within its own event") {
  LinkFixture world;
  world.record.on_hello = [&] { world.link->forget(0); };
  const UniqueFd worker = raw_worker(world, "{\"step\":1}\n");
  world.loop.restart();
  world.loop.poll();
  CHECK(world.record.steps.empty());
}

TEST_CASE("worker link: another user is refused", "[root]") {
  if (::geteuid() != 0) SKIP_TEST("only root can run as another user");
  LinkFixture world;
  const auto control = world.expect(0);
  ::chmod(world.link->directory().c_str(), 0755);
  ::chmod(control->c_str() + 5, 0777);
  bool came = false;
  std::thread([&] {
    // The call changes this thread only.
    ::syscall(SYS_setresuid, -1, 65534, -1);
    for (int i = 0; i < 2; ++i)
      came = static_cast<bool>(raw_connection(*control));
  }).join();
  REQUIRE(came);
  const std::string expected =
      "0 odd refused a connection to DDPLAUNCH_CONTROL from user 65534; only the job's own user may connect";
  world.until_said(expected);
  auto client = WorkerClient::connect(*control, true, false);
  world.until_said("0 hello rejoin");
  CHECK(world.record.said == std::vector<std::string>{expected, "0 hello rejoin"});
}

}  // namespace
}  // namespace ddp::launcher
