// Runs the scripts of --setup in a real shell, with their own profile.
#include "launcher/agent/node_setup.h"

#include <stdlib.h>
#include <sys/resource.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "tests/support/catch.h"

namespace ddp::launcher {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

/// A home directory with a profile, in which scripts run.
class Home {
 public:
  explicit Home(const std::string& profile) {
    char name[] = "/tmp/ddplaunch-setup-XXXXXX";
    REQUIRE(::mkdtemp(name) != nullptr);
    dir_ = name;
    std::ofstream(dir_ / ".bash_profile") << profile;  // bash
    std::ofstream(dir_ / ".profile") << profile;       // sh
  }
  ~Home() {
    std::error_code ignored;
    fs::remove_all(dir_, ignored);
  }
  Home(const Home&) = delete;
  Home& operator=(const Home&) = delete;

  Result<EnvVars> run(std::vector<std::string> scripts) {
    job_.setup = std::move(scripts);
    std::optional<Result<EnvVars>> result;
    asio::co_spawn(loop_, begin(this, &result), asio::detached);
    while (!result && loop_.run_one_for(60s) > 0) {
    }
    REQUIRE(result);
    return *result;
  }
  /// Collects the output of programs that were left running, until the last one has ended.
  void listen() {
    loop_.restart();  // the loop had run out of work
    asio::co_spawn(loop_, setup_.listen(), asio::detached);
    loop_.run_for(60s);
  }
  void stop() { setup_.stop(); }
  const fs::path& dir() const { return dir_; }
  std::vector<std::string> lines;

 private:
  static Awaitable<> begin(Home* self, std::optional<Result<EnvVars>>* result) {
    const char* path = std::getenv("PATH");
    EnvVars env = {{"HOME", self->dir_}, {"PATH", path != nullptr ? path : "/usr/bin:/bin"}};
    SetupOutput::LineHandler handle_line = [self](const std::string& line) { self->lines.push_back(line); };
    auto made = co_await self->setup_.run(self->job_, env, env, self->dir_, std::move(handle_line));
    *result = std::move(made);
  }

  fs::path dir_;
  asio::io_context loop_;
  NodeSetup setup_{loop_.get_executor()};
  rendezvous::JobStart job_;
};

std::string error_of(const std::string& profile, std::vector<std::string> scripts) {
  const auto env = Home(profile).run(std::move(scripts));
  return env ? "none" : env.error().text;
}

}  // namespace

TEST_CASE("a failing command ends a setup script as in any script") {
  CHECK(error_of("", {"set -e; false; A=1"}) == "--setup failed: its shell exited 1; it printed nothing");
  CHECK(error_of("", {"set -e\necho one\n(exit 7)\necho two"}) ==
        "--setup failed: its shell exited 7; its last lines:\n  one");
  CHECK(error_of("", {"set -e", "f() { false; echo no; }\nf"}) ==
        "--setup failed: its shell exited 1 in script 2 of 2; it printed nothing");
  CHECK(error_of("", {"true", "return 5", "true"}) ==
        "--setup failed: its shell exited 5 in script 2 of 3; it printed nothing");
  CHECK(error_of("", {"false; true"}) == "none");
  CHECK(error_of("", {"set -e; false || true; if false; then :; fi"}) == "none");
  CHECK(error_of("", {"set -eu -o pipefail; export A=1"}) == "none");
  const auto env = Home("").run({"set -e\nexport A=1", "export B=$A"});
  REQUIRE(env.has_value());
  CHECK(*find_env(*env, "B") == "1");
}

TEST_CASE("a profile that ends the shell is not mistaken for a script") {
  const std::string begin = "--setup did not start: the login shell that runs it exited ";
  const std::string end =
      " while it read the profile (/etc/profile, ~/.bash_profile, ~/.profile and the files that they read); "
      "run exec or exit there in interactive shells only; ";
  CHECK(error_of("echo hello; exit 1\n", {"true"}) == begin + "1" + end + "its last lines:\n  hello");
  CHECK(error_of("exec true\n", {"export A=1"}) == begin + "0" + end + "it printed nothing");
  CHECK(error_of("exec cat\n", {"export A=1"}) == begin + "0" + end + "it printed nothing");
}

TEST_CASE("a limit on files is reported, not fatal") {
  rlimit usual{};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &usual) == 0);
  const rlimit small{1024, usual.rlim_max};
  Home home("");  // made before the limit, since it writes files
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &small) == 0);
  const auto env = home.run({"true"});
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &usual) == 0);
  REQUIRE_FALSE(env.has_value());
  CHECK(env.error().text.find("but this user may write no more than 1 KiB (ulimit -f)") != std::string::npos);
}

TEST_CASE("background processes of scripts may keep printing") {
  Home home("");
  const fs::path gone_on = home.dir() / "gone_on";
  // It prints only after the scripts have ended: without a reader it would be killed then.
  const auto env =
      home.run({"mkfifo go; (read x < go; echo late && echo later && touch gone_on) & echo here"});
  REQUIRE(env.has_value());
  CHECK(home.lines == std::vector<std::string>{"here"});
  std::ofstream(home.dir() / "go") << "now\n";
  home.listen();
  CHECK(home.lines == std::vector<std::string>{"here", "late", "later"});
  CHECK(fs::exists(gone_on));
}

TEST_CASE("background processes of scripts are not waited for") {
  Home home("");
  REQUIRE(home.run({"mkfifo go; (read x < go) & true"}).has_value());
  home.stop();
  home.listen();
  CHECK(home.lines.empty());
  std::ofstream(home.dir() / "go") << "now\n";
}

}  // namespace ddp::launcher
