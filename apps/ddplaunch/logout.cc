#include "apps/ddplaunch/logout.h"

#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <optional>
#include <set>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/asio.h"
#include "base/child_process.h"
#include "base/files.h"
#include "base/find_program.h"
#include "base/safe_text.h"
#include "launcher/inspection/tool_run.h"

namespace ddp {
namespace {

using Clock = std::chrono::steady_clock;
using launcher::ToolOutput;

constexpr std::chrono::seconds kAnswerTime{2};
constexpr std::chrono::milliseconds kLookEvery{10};
constexpr std::size_t kMostText = 4096;
constexpr std::string_view kEndsJob = "logind ends this job at the logout (KillUserProcesses=yes)";

struct Question {
  ChildSpec program;
  std::set<pid_t> pids;
  ToolOutput answer;

  static Awaitable<> run(Question* self) {
    self->answer =
        co_await launcher::run_tool(self->program, Clock::now() + kAnswerTime, kMostText, &self->pids);
  }
};

/// Asks a service on D-Bus through busctl, a program of systemd.
ToolOutput ask_busctl(std::vector<std::string> words) {
  const char* const path = std::getenv("PATH");
  const auto program =
      find_program("busctl", path == nullptr ? std::nullopt : std::optional<std::string_view>(path), "/");
  Question question;
  if (!program) return question.answer;
  question.program.path = *program;
  question.program.argv = std::move(words);
  question.program.argv.insert(question.program.argv.begin(), "busctl");
  question.program.env = own_environment();
  asio::io_context loop(1);
  spawn(loop.get_executor(), Question::run(&question));
  loop.run();
  return question.answer;
}

bool logind_kills() {
  const std::string answer =
      ask_busctl({"get-property", "org.freedesktop.login1", "/org/freedesktop/login1",
                  "org.freedesktop.login1.Manager", "KillUserProcesses", "KillExcludeUsers"})
          .text;
  const char* const user = std::getenv("USER");
  const bool excluded = user != nullptr && answer.find('"' + std::string(user) + '"') != std::string::npos;
  return answer.starts_with("b true") && !excluded;
}

/// The service manager of a user who does not linger ends with the last login, and all its scopes with it.
bool user_lingers() {
  return ask_busctl({"get-property", "org.freedesktop.login1",
                     "/org/freedesktop/login1/user/_" + std::to_string(::geteuid()),
                     "org.freedesktop.login1.User", "Linger"})
      .text.starts_with("b true");
}

}  // namespace

std::string survive_logout(const std::string& name) {
  if (!logind_kills()) return "";
  const std::string ends(kEndsJob);
  if (!user_lingers()) return ends + "; run loginctl enable-linger before the job";
  const std::string scope = name + ".scope";
  const ToolOutput made =
      ask_busctl({"--user", "call", "org.freedesktop.systemd1", "/org/freedesktop/systemd1",
                  "org.freedesktop.systemd1.Manager", "StartTransientUnit", "ssa(sv)a(sa(sv))", scope, "fail",
                  "1", "PIDs", "au", "1", std::to_string(::getpid()), "0"});
  if (!made.success) return ends + "; systemd made no scope for it: " + one_line(made.text + made.trouble);
  // Children that start earlier would stay in the session.
  const auto give_up = Clock::now() + kAnswerTime;
  while (read_start("/proc/self/cgroup", kMostText, 0).find('/' + scope) == std::string::npos) {
    if (Clock::now() > give_up) return ends + "; systemd did not move it into the scope " + scope;
    std::this_thread::sleep_for(kLookEvery);
  }
  return "";
}

}  // namespace ddp
