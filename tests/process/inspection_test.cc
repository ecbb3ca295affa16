// The inspection of hanging workers: real processes, tools that misbehave, and a fake NCCL RAS thread.
#include <arpa/inet.h>
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/blocking_calls.h"
#include "launcher/inspection/hang_monitor.h"
#include "launcher/inspection/process_inspection.h"
#include "launcher/inspection/worker_server.h"
#include "tests/support/catch.h"

namespace ddp::launcher {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

template <class T>
T run(Awaitable<T> task) {
  asio::io_context loop(1);
  std::optional<T> result;
  asio::co_spawn(loop, std::move(task),
                 [&result](const std::exception_ptr&, T value) { result = std::move(value); });
  loop.run();
  REQUIRE(result);
  return *result;
}

ToolOutput shell(const std::string& script, Clock::duration time = 20s, std::size_t limit = 4096) {
  ChildSpec spec;
  spec.path = "/bin/sh";
  spec.argv = {"sh", "-c", script};
  spec.env = {"PATH=/usr/bin:/bin"};
  std::set<pid_t> pids;
  ToolOutput output = run(run_tool(std::move(spec), Clock::now() + time, limit, &pids));
  CHECK(pids.empty());
  CHECK(waitpid(-1, nullptr, WNOHANG) == -1);  // no child is left, dead or alive
  CHECK(errno == ECHILD);
  return output;
}

TEST_CASE("a tool's output and exit are reported") {
  const ToolOutput good = shell("echo out; echo err >&2");
  CHECK(good.text == "out\nerr\n");
  CHECK(good.success());
  CHECK(good.trouble().empty());
  const ToolOutput bad = shell("echo no; exit 3");
  CHECK(bad.text == "no\n");
  CHECK_FALSE(bad.success());
  CHECK(bad.trouble() == "it exited 3");
}

TEST_CASE("a tool that does not end is killed with the processes that it started") {
  const auto began = Clock::now();
  const ToolOutput output = shell("sleep 1000 & echo $!; wait", 3s);
  CHECK(Clock::now() - began < 60s);
  CHECK(output.trouble() == "it did not end in time and was killed");
  const pid_t grandchild = std::stoi(output.text);
  // The grandchild has its SIGKILL when the tool ends, but may not have ended yet.
  const auto ended = [&] {
    const auto info = read_process(grandchild);
    return !info || info->state == 'Z' || info->state == 'X';
  };
  for (int i = 0; i < 2000 && !ended(); ++i)
    std::this_thread::sleep_for(5ms);
  CHECK(ended());
}

TEST_CASE("a child that holds the pipe in a session of its own is not waited for") {
  const auto began = Clock::now();
  const ToolOutput output = shell("setsid sleep 100 & echo $!", 3s);  // setsid does not fork here
  CHECK(Clock::now() - began < 60s);
  REQUIRE(!output.text.empty());
  CHECK(kill(std::stoi(output.text), SIGKILL) == 0);
}

TEST_CASE("endless output is cut") {
  const ToolOutput output = shell("head -c 1000000 /dev/zero | tr '\\0' x", 20s, 1000);
  CHECK(output.success());
  CHECK(output.text == std::string(1000, 'x') + "\n(cut here)\n");
}

TEST_CASE("a tool that cannot be executed is reported as an error") {
  ChildSpec spec;
  spec.path = "/nonexistent/gdb";
  spec.argv = {"gdb"};
  std::set<pid_t> pids;
  const ToolOutput output = run(run_tool(std::move(spec), Clock::now() + 5s, 100, &pids));
  CHECK_FALSE(output.success());
  CHECK(output.trouble().find("/nonexistent/gdb") != std::string::npos);
  CHECK(pids.empty());
}

/// A child that runs `work` until it is killed.
template <class Work>
class Child {
 public:
  explicit Child(Work work) {
    int ready[2];
    REQUIRE(pipe2(ready, O_CLOEXEC) == 0);
    pid_ = fork();
    REQUIRE(pid_ >= 0);
    if (pid_ == 0) {
      work(ready[1]);
      _exit(0);
    }
    close(ready[1]);
    char byte;
    REQUIRE(read(ready[0], &byte, 1) == 1);
    close(ready[0]);
  }
  ~Child() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  Child(const Child&) = delete;
  /// Returns a snapshot once the process rests in `state`; after 5 s the last snapshot in any state.
  ProcessSnapshot snapshot(const std::string& state) const {
    ProcessSnapshot snapshot;
    for (const auto until = Clock::now() + 5s; Clock::now() < until; usleep(5000)) {
      snapshot = take_snapshot(pid_, ProcessForest());
      if (snapshot.state == state) break;
    }
    return snapshot;
  }
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = -1;
};

/// The work of a child that rests.
void rest(int ready) {
  (void)!write(ready, "x", 1);
  for (;;)
    pause();
}

TEST_CASE("a process whose main thread has ended still counts as running") {
  const Child child([](int ready) {
    // The other thread reports when it is the only one left: the first has state Z.
    std::thread([ready] {
      for (;;) {
        const auto info = read_process(getpid());
        if (!info || info->state == 'Z') break;
        std::this_thread::yield();
      }
      rest(ready);
    }).detach();
    syscall(SYS_exit, 0);  // ends like pthread_exit, without unwinding the stack
  });
  const std::string state = "main thread ended, another is sleeping in pause";
  CHECK(child.snapshot(state).state == state);
}

TEST_CASE("the state of a waiting process is read from the kernel") {
  int ends[2];
  REQUIRE(pipe2(ends, O_CLOEXEC) == 0);
  const auto read_pipe = [&ends](int ready) {
    (void)!write(ready, "x", 1);
    char byte;
    (void)!read(ends[0], &byte, 1);
  };
  const Child child(read_pipe);
  const ProcessSnapshot snapshot = child.snapshot("sleeping in read, a pipe");
  CHECK(snapshot.state == "sleeping in read, a pipe");
  CHECK(snapshot.subject == child.pid());
  CHECK(snapshot.text.find("threads of " + std::to_string(child.pid()) + ":\n  1 x ") != std::string::npos);
  CHECK(snapshot.text.find("TCP sockets: 0 connected\n") != std::string::npos);
  close(ends[0]);
  close(ends[1]);
}

TEST_CASE("the peer of a socket is named") {
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  REQUIRE(bind(listener, generic, size) == 0);
  REQUIRE(listen(listener, 8) == 0);
  REQUIRE(getsockname(listener, generic, &size) == 0);
  const std::string where = "127.0.0.1:" + std::to_string(ntohs(address.sin_port));
  const auto receive = [&](int ready) {
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(fd, generic, size) != 0) return;
    (void)!write(ready, "x", 1);
    char byte;
    (void)!recv(fd, &byte, 1, 0);
  };
  const Child child(receive);
  const ProcessSnapshot snapshot = child.snapshot("sleeping in recv, " + where);
  CHECK(snapshot.state == "sleeping in recv, " + where);
  CHECK(snapshot.text.find("TCP sockets: 1 connected, listening at " + where + "\n") != std::string::npos);
  close(listener);
}

TEST_CASE("a process that has ended is reported as ended") {
  pid_t pid = -1;
  {
    const Child child(rest);
    pid = child.pid();
    CHECK(child.snapshot("sleeping in pause").state == "sleeping in pause");
    REQUIRE(kill(pid, SIGSTOP) == 0);
    CHECK(child.snapshot("stopped by a signal").state == "stopped by a signal");
  }
  CHECK(take_snapshot(pid, ProcessForest()).state == "ended");
}

/// Sends each client the next of `answers`, then closes the connection or waits for the client's end.
class FakeRas {
 public:
  FakeRas(asio::io_context& loop, std::vector<std::string> answers, bool closes)
      : acceptor_(loop, {asio::ip::make_address("127.0.0.1"), 0}),
        socket_(loop),
        answers_(std::move(answers)),
        closes_(closes) {
    accept();
  }
  RasAddress address() const {
    return {asio::ip::make_address("127.0.0.1"), acceptor_.local_endpoint().port()};
  }
  const std::string& question() const { return question_; }

 private:
  void accept() {
    if (answered_ == answers_.size()) return acceptor_.close();
    acceptor_.async_accept(socket_, [this](const error_code& error) {
      question_.clear();
      if (!error) read();
    });
  }
  void read() {
    socket_.async_read_some(asio::buffer(chunk_), [this](const error_code& error, std::size_t count) {
      if (error) return;
      question_.append(chunk_.data(), count);
      if (!question_.ends_with("STATUS\n")) return read();
      const std::string& answer = answers_[answered_++];
      asio::async_write(socket_, asio::buffer(answer), [this](const error_code&, std::size_t) {
        error_code ignored;
        if (!closes_) return;
        socket_.close(ignored);
        accept();
      });
    });
  }
  asio::ip::tcp::acceptor acceptor_;
  asio::ip::tcp::socket socket_;
  std::vector<std::string> answers_;
  std::size_t answered_ = 0;
  bool closes_;
  std::string question_;
  std::array<char, 256> chunk_{};
};

std::string asked(const std::string& answer, bool closes = true, std::string* question = nullptr,
                  std::size_t limit = 65'536) {
  asio::io_context loop(1);
  FakeRas ras(loop, {answer}, closes);
  std::optional<std::string> result;
  const auto done = [&](const std::exception_ptr&, std::string text) {
    result = std::move(text);
    loop.stop();
  };
  asio::co_spawn(loop, ask_ras(ras.address(), true, closes ? 60s : 300ms, limit), done);
  loop.run();
  REQUIRE(result);
  if (question != nullptr) *question = ras.question();
  return *result;
}

/// A node's monitor with one worker, and what it sends to the master.
struct Monitored {
  asio::io_context loop{1};
  std::vector<rendezvous::Message> sent;
  HangMonitor monitor{loop.get_executor(),
                      [this](const rendezvous::Message& message) { sent.push_back(message); },
                      [] { return false; }};

  Monitored(std::chrono::seconds timeout, pid_t worker, const std::string& server) {
    monitor.set_timeout(timeout);
    monitor.begin(0, 1, {});
    monitor.worker_started(0, {worker, server});
  }
  ~Monitored() {
    monitor.stop();
    asio::co_spawn(loop, monitor.idle(), asio::detached);
    loop.run();
  }
  void wait_for(std::size_t count) {
    const Clock::time_point end = Clock::now() + 60s;
    while (sent.size() < count && Clock::now() < end)
      loop.run_one_for(1s);
    REQUIRE(sent.size() >= count);
  }
  void inspect_unless_active() {
    rendezvous::Inspect request;
    request.timeout_ms = 5'000;
    request.unless_active = true;
    monitor.inspect(request);
  }
};

TEST_CASE("a node says whether all its quiet workers report steps") {
  const Child child(rest);
  Monitored node(1s, child.pid(), "");
  node.wait_for(1);
  node.monitor.worker_stepped(0, 7, "");
  node.wait_for(3);
  std::vector<bool> quiet;
  std::vector<bool> by_steps;
  for (const rendezvous::Message& message : node.sent) {
    quiet.push_back(std::get<rendezvous::Quiet>(message).quiet);
    by_steps.push_back(std::get<rendezvous::Quiet>(message).by_steps);
  }
  CHECK(quiet == std::vector{true, false, true});
  CHECK(by_steps == std::vector{false, true, true});
}

class Directory {
 public:
  Directory() { REQUIRE(mkdtemp(path_.data()) != nullptr); }
  ~Directory() { std::filesystem::remove_all(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_ = "/tmp/inspection_test.XXXXXX";
};

/// A worker's server whose recorder shows one operation, started long ago.
class FakeServer {
 public:
  explicit FakeServer(const std::string& path) : listener_(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
    unlink(path.c_str());
    REQUIRE(bind(listener_, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
    REQUIRE(listen(listener_, 8) == 0);
    thread_ = std::thread([this] { serve(); });
  }
  ~FakeServer() {
    shutdown(listener_, SHUT_RDWR);
    thread_.join();
    close(listener_);
  }
  FakeServer(const FakeServer&) = delete;
  void finish() { finished_ = true; }
  /// From here on what needs Python is answered after `gil`.
  void hold_gil(std::chrono::milliseconds gil) { gil_ = gil; }

 private:
  void serve() {
    for (;;) {
      const int fd = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
      if (fd < 0) return;
      char question[512] = {};
      (void)!read(fd, question, sizeof question - 1);
      if (std::strstr(question, "/dump_traceback ") != nullptr) std::this_thread::sleep_for(gil_.load());
      const std::string body =
          R"({"version":"2.10","entries":[{"collective_seq_id":1,"is_p2p":false,"process_group":["0","default_pg"],)"
          R"("profiling_name":"gloo:all_reduce","time_created_ns":1,"retired":)" +
          std::string(finished_ ? "true" : "false") + "}]}";
      const std::string answer =
          "HTTP/1.1 200 OK\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
      (void)!send(fd, answer.data(), answer.size(), MSG_NOSIGNAL);  // whoever asked may not wait any longer
      close(fd);
    }
  }
  int listener_;
  std::atomic<bool> finished_ = false;
  std::atomic<std::chrono::milliseconds> gil_{0ms};
  std::thread thread_;
};

TEST_CASE("a native call that holds the GIL for a moment is not taken for one that keeps it") {
  const Directory directory;
  const std::string path = directory.path() + "/server";
  FakeServer server(path);
  server.hold_gil(200ms);
  rendezvous::TorchAnswers answers;
  for (int attempt = 0; answers.stacks.empty() && attempt < 20; ++attempt)  // the machine may be busy
    answers = ask_worker_server(path, ServerQuestion::kStacks, Clock::now() + 60s);
  CHECK_FALSE(answers.stacks.empty());
  CHECK_FALSE(answers.lacks_gil);
  // Less time than a call may take says nothing about it.
  answers = ask_worker_server(path, ServerQuestion::kStacks, Clock::now());
  CHECK(answers.stacks.empty());
  CHECK_FALSE(answers.lacks_gil);
}

TEST_CASE("a rank that has left its collective is active, whatever its recorder told before") {
  const auto spin = [](int ready) {
    (void)!write(ready, "x", 1);
    for (;;) {
    }
  };
  const Child child(spin);
  const Directory directory;
  const std::string path = directory.path() + "/server";
  FakeServer server(path);
  Monitored node(1s, child.pid(), path);
  node.wait_for(1);  // it spins in the collective
  CHECK(std::get<rendezvous::Quiet>(node.sent[0]).quiet);
  server.finish();
  node.sent.clear();
  node.inspect_unless_active();
  node.wait_for(2);
  REQUIRE(std::holds_alternative<rendezvous::Quiet>(node.sent[0]));
  CHECK_FALSE(std::get<rendezvous::Quiet>(node.sent[0]).quiet);
  REQUIRE(std::holds_alternative<rendezvous::Inspection>(node.sent[1]));
  CHECK(std::get<rendezvous::Inspection>(node.sent[1]).last);
}

TEST_CASE("output that the master does not know of yet is activity") {
  const Child child(rest);
  Monitored node(60s, child.pid(), "");
  node.monitor.worker_wrote();
  node.inspect_unless_active();
  node.wait_for(1);
  CHECK(std::get<rendezvous::Inspection>(node.sent[0]).last);
}

/// Returns what the inspection of one process says. It runs on `loop`, which may have more to do.
std::string inspect(asio::io_context& loop, pid_t pid, ProcessInspection::Options options) {
  std::string text;
  options.leaders = {{0, {pid, ""}}};
  options.deadline = Clock::now() + 60s;
  ProcessInspection inspection(loop.get_executor(), std::move(options),
                               [&text](const rendezvous::Inspection& found) { text += found.text; });
  asio::co_spawn(loop, inspection.run(), [&loop](const std::exception_ptr&) { loop.stop(); });
  loop.run();
  return text;
}

/// The same with this program as gdb.
std::string inspect_with_gdb(const std::string& program, pid_t pid) {
  const Directory directory;
  const std::string gdb = directory.path() + "/gdb";
  std::ofstream(gdb) << program;
  REQUIRE(chmod(gdb.c_str(), 0755) == 0);
  asio::io_context loop(1);
  ProcessInspection::Options options;
  options.worker_path = directory.path();
  return inspect(loop, pid, std::move(options));
}

TEST_CASE("a debugger that dies in the middle leaves the worker running") {
  const Child child([](int ready) {
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
    (void)!write(ready, "x", 1);
    for (;;)
      pause();
  });
  const std::string text = inspect_with_gdb(
      "#!/usr/bin/python3 -S\n"
      "import ctypes, os, sys\n"
      "pid = int(sys.argv[sys.argv.index('-p') + 1])\n"
      "attach = 16\n"
      "if ctypes.CDLL(None).ptrace(attach, pid, 0, 0) != 0: print('not attached', flush=True)\n"
      "os.kill(os.getpid(), 9)\n",
      child.pid());
  INFO(text);
  if (text.find("not attached") != std::string::npos) return;  // no process may be traced here
  CHECK(text.find("(gdb: it was killed by SIGKILL)") != std::string::npos);
  CHECK(child.snapshot("sleeping in pause").state == "sleeping in pause");
}

TEST_CASE("a worker that a user debugs gets no signal") {
  const Child child(rest);
  if (ptrace(PTRACE_SEIZE, child.pid(), nullptr, nullptr) != 0) return;  // no process may be traced here
  REQUIRE(ptrace(PTRACE_INTERRUPT, child.pid(), nullptr, nullptr) == 0);
  REQUIRE(waitpid(child.pid(), nullptr, 0) == child.pid());
  const std::string text = inspect_with_gdb("#!/bin/sh\nexit 1\n", child.pid());
  INFO(text);
  CHECK(text.find("(gdb: ") != std::string::npos);
  std::ifstream status("/proc/" + std::to_string(child.pid()) + "/status");
  const std::string facts{std::istreambuf_iterator<char>(status), {}};
  CHECK(facts.find("\nShdPnd:\t0000000000000000\n") != std::string::npos);
}

TEST_CASE("NCCL is asked in its own protocol") {
  std::string question;
  CHECK(asked("SERVER PROTOCOL 2\nOK\nOK\n{\n}\n", true, &question) == "{\n}\n");
  CHECK(question == "CLIENT PROTOCOL 2\nTIMEOUT 1\nSET FORMAT json\nVERBOSE STATUS\n");
  // NCCL before 2.28.7.
  CHECK(asked("SERVER PROTOCOL 2\nOK\nERROR: Unknown command SET FORMAT json\nNCCL version 2.26.2\n") ==
        "NCCL version 2.26.2\n");
  // A partial answer at the time limit is kept.
  CHECK(asked("SERVER PROTOCOL 2\nOK\nOK\nhalf a li", false) == "half a li\n");
  CHECK(asked("SERVER PROTOCOL 2\n").empty());
  CHECK(asked("SERVER PROTOCOL 2\nOK\nOK").empty());
  CHECK(asked("HTTP/1.1 400 Bad Request\r\n\r\n").empty());
  CHECK(asked("").empty());
  CHECK(asked("", false).empty());
  CHECK(asked("SERVER PROTOCOL 2\nOK\nOK\n" + std::string(100'000, 'x'), true, nullptr, 1000).size() <= 1001);
}

/// Returns what an inspection of `pid` finds out from a NCCL that gives these answers.
std::string inspect_with_ras(const std::vector<std::string>& answers, pid_t pid) {
  asio::io_context loop(1);
  FakeRas ras(loop, answers, true);
  ProcessInspection::Options options;
  options.ras_address = "127.0.0.1:" + std::to_string(ras.address().port);
  options.debuggers = false;
  return inspect(loop, pid, std::move(options));
}

TEST_CASE("NCCL's JSON is read, and asked for as text where it is too long") {
  const Child child(rest);
  const std::string head = "SERVER PROTOCOL 2\nOK\nOK\n";
  const std::string text = head + "NCCL version 2.30.7\n\nErrors\n======\n\nDEAD\n";
  const std::string json =
      "{\"communicators\": [{\"hash\": \"0xae\", \"missing_ranks\": [{\"rank\": 1, \"status\": "
      "{\"unresponsive\": true}}]}]}\n";
  const std::string found = "NCCL finds: communicator 0xae: no answer: rank 1\n";
  CHECK(inspect_with_ras({head + json}, child.pid()).ends_with(found + json));
  for (const std::string& unusable :
       {json.substr(0, 40), std::string("{}"), "{" + std::string(ProcessInspection::kRasJson, 'x')})
    CHECK(inspect_with_ras({head + unusable, text}, child.pid())
              .ends_with("NCCL finds: DEAD\n" + text.substr(head.size())));
}

TEST_CASE("a RAS address without a listener is no error") {
  asio::io_context loop(1);
  asio::ip::tcp::acceptor free(loop, {asio::ip::make_address("127.0.0.1"), 0});
  const RasAddress where{asio::ip::make_address("127.0.0.1"), free.local_endpoint().port()};
  free.close();
  CHECK(run(ask_ras(where, true, 60s, 1000)).empty());
}

TEST_CASE("the address of RAS is read as NCCL reads it, without a name service") {
  RasAddress where;
  CHECK(parse_ras_address("", where));
  CHECK(where.address.to_string() == "127.0.0.1");
  CHECK(where.port == 28'028);
  CHECK(parse_ras_address("localhost:1234", where));
  CHECK(where.port == 1234);
  CHECK(parse_ras_address("[::1]:12345", where));
  CHECK(where.address.to_string() == "::1");
  CHECK(parse_ras_address("10.0.0.1:7", where));
  CHECK(where.address.to_string() == "10.0.0.1");
  for (const char* wrong : {"gpu01:28028", "10.0.0.1", "10.0.0.1:0", "10.0.0.1:70000", ":", "[::1"})
    CHECK_FALSE(parse_ras_address(wrong, where));
}

}  // namespace
}  // namespace ddp::launcher
