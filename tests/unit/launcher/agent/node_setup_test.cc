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
#include "tests/support/temporary_directory.h"

namespace ddp::launcher {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

/// A home directory with a profile, in which scripts run.
class Home : test::TemporaryDirectory {
 public:
  explicit Home(const std::string& profile) {
    write(".bash_profile", profile);  // bash
    write(".profile", profile);       // sh
  }

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
  using TemporaryDirectory::path;
  std::vector<std::string> lines;

 private:
  static Awaitable<> begin(Home* self, std::optional<Result<EnvVars>>* result) {
    const char* path = std::getenv("PATH");
    EnvVars env = {{"HOME", self->path}, {"PATH", path != nullptr ? path : "/usr/bin:/bin"}};
    SetupOutput::LineHandler handle_line = [self](const std::string& line) { self->lines.push_back(line); };
    auto made = co_await self->setup_.run(self->job_, env, env, self->path, std::move(handle_line));
    *result = std::move(made);
  }

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
  const fs::path gone_on = home.path / "gone_on";
  // It prints only after the scripts have ended: without a reader it would be killed then.
  const auto env =
      home.run({"mkfifo go; (read x < go; echo late && echo later && touch gone_on) & echo here"});
  REQUIRE(env.has_value());
  CHECK(home.lines == std::vector<std::string>{"here"});
  std::ofstream(home.path / "go") << "now\n";
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
  std::ofstream(home.path / "go") << "now\n";
}

}  // namespace ddp::launcher

namespace ddp::launcher {
namespace {

using Texts = std::vector<std::string>;
using namespace std::string_literals;

TEST_CASE("The prelude sets values verbatim and restores the locale") {
  CHECK(setup_prelude({{"A", "it's\n$x"}, {"B", ""}}, {{"A", "2"}}) ==
        "ddp_lc=${LC_ALL+x}${LC_ALL-}\nexport LC_ALL=C\nexport A='2'\nexport B=''\n"
        "case $ddp_lc in x*) LC_ALL=${ddp_lc#x} ;; *) unset LC_ALL ;; esac\nunset ddp_lc\n");
  CHECK(setup_prelude({{"Q", "a'b''"}}, {}).find("export Q='a'\\''b'\\'''\\'''\n") != std::string::npos);
  CHECK(setup_prelude({{"LC_ALL", "de_DE.UTF-8"}}, {}) ==
        "ddp_lc=${LC_ALL+x}${LC_ALL-}\nexport LC_ALL=C\nexport LC_ALL='de_DE.UTF-8'\nunset ddp_lc\n");
}

TEST_CASE("The prelude omits variables that a shell would refuse or interpret") {
  const std::string script = setup_prelude({{"SHELLOPTS", "xtrace"},
                                            {"UID", "0"},
                                            {"IFS", ":"},
                                            {"a.b", "1"},
                                            {"1A", "1"},
                                            {"x%%", "1"},
                                            {"_", "1"}},
                                           {});
  CHECK(script.find("xtrace") == std::string::npos);
  CHECK(script.find("='1'") == std::string::npos);
  CHECK(script.find("export UID") == std::string::npos);
}

TEST_CASE("A forwarded PATH comes before the node's own, an explicit one replaces it") {
  const std::string forwarded = setup_prelude({{"PATH", "/a"}}, {});
  CHECK(forwarded.find("ddp_path=$PATH\nexport PATH='/a'\n") != std::string::npos);
  CHECK(forwarded.find("for ddp_d in $ddp_path") != std::string::npos);
  const std::string given = setup_prelude({{"PATH", "/a"}}, {{"PATH", "/b"}});
  CHECK(given.find("export PATH='/b'\n") != std::string::npos);
  CHECK(given.find("ddp_path") == std::string::npos);
  CHECK(given.find("/a") == std::string::npos);
}

TEST_CASE("The result keeps the shell's own variables, and names that a shell does not pass on") {
  const EnvVars before = {{"PWD", "/was"}, {"a.b", "kept"}, {"A", "1"}, {"BASH_FUNC_m%%", "() { :; }"}};
  CHECK(setup_result("A=2\0PWD=/\0SHLVL=1\0_=/usr/bin/env\0N=x=y\nz\0OLDPWD=/\0BASH_FUNC_m%%=() { new; }\0"s,
                     before) ==
        EnvVars{
            {"A", "2"}, {"N", "x=y\nz"}, {"BASH_FUNC_m%%", "() { new; }"}, {"PWD", "/was"}, {"a.b", "kept"}});
  CHECK(setup_result("no equals sign\0=x\0"s, {}).empty());
}

TEST_CASE("No script runs where a shell ignores set -e") {
  CHECK(setup_command(1, 3) ==
        "command printf . >&3\n"
        ". /proc/self/fd/4\ncase $? in 0) ;; *) exit $? ;; esac\ncommand printf . >&3\n"
        ". /proc/self/fd/5\ncase $? in 0) ;; *) exit $? ;; esac\ncommand printf . >&3\n"
        "command -p env -0 >&3");
}

TEST_CASE("The marks show which script ended the shell") {
  const EnvVars before = {{"A", "1"}};
  const auto text = [&](std::string_view dump, std::size_t scripts, bool success, const char* how) {
    const auto verdict = setup_verdict(dump, scripts, {success, how, "; it printed nothing"}, before);
    return verdict ? std::string("well") : verdict.error().text;
  };
  CHECK(setup_verdict("...A=2\0"s, 1, {true, "exited 0", ""}, before).value() == EnvVars{{"A", "2"}});
  CHECK(text("..", 1, true, "exited 0") ==
        "--setup ended its shell (exit 0), so its variables are lost; remove the exit or exec");
  CHECK(text("...", 2, true, "exited 0") ==
        "--setup ended its shell (exit 0) in script 2 of 2, so its variables are lost; remove the exit or "
        "exec");
  CHECK(text("...", 1, false, "exited 125") ==  // exit code of env itself
        "--setup failed: its shell exited 125; it printed nothing");
}

TEST_CASE("Output is split into printable lines") {
  Texts lines;
  SetupOutput output([&](const std::string& line) { lines.push_back(line); });
  CHECK(output.last_lines() == "; it printed nothing");
  output.feed("one\r\ntw");
  output.feed("o\x1b[31m\n" + std::string(500, 'x') + "\n\nlast");
  output.end();
  CHECK(lines == Texts{"one", "two?[31m", std::string(400, 'x') + "...", "", "last"});
  output.feed("/proc/self/fd/5: line 2: x: command not found\n/proc/self/fd/5\n");
  CHECK(lines[5] == "line 2: x: command not found");
  for (int i = 0; i < 600; ++i)
    output.feed(std::to_string(i) + "\n");
  CHECK(lines.size() == SetupOutput::kMostLines + 1);
  CHECK(lines.back() == "(more than 500 lines; the rest is not shown)");
  const std::string last = output.last_lines();
  CHECK(last.starts_with("; its last lines:\n  580\n  581\n"));
  CHECK(last.ends_with("\n  599"));
}

}  // namespace
}  // namespace ddp::launcher
