#include "base/result.h"

#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <string>

#include "tests/support/catch.h"

TEST_CASE(
    "a broken rule ends the process with the rule and its values, and a rule that holds costs nothing") {
  int evaluated = 0;
  const auto value = [&evaluated] { return ++evaluated; };
  DDP_REQUIRE(1 + 1 == 2, value());
  DDP_REQUIRE(true);
  CHECK(evaluated == 0);

  std::array<int, 2> pipe{};
  REQUIRE(::pipe(pipe.data()) == 0);
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    ::signal(SIGABRT, SIG_DFL);  // Catch's handler would report a failed test
    ::dup2(pipe[1], STDERR_FILENO);
    const std::string host = "gpu01";
    DDP_REQUIRE(host.empty() && "no host has a name", host, 7);
    ::_exit(0);
  }
  ::close(pipe[1]);
  std::string text;
  std::array<char, 512> buffer;
  for (ssize_t count = 0; (count = ::read(pipe[0], buffer.data(), buffer.size())) > 0;)
    text.append(buffer.data(), static_cast<std::size_t>(count));
  ::close(pipe[0]);
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(WIFSIGNALED(status));
  CHECK(WTERMSIG(status) == SIGABRT);
  CHECK(text.starts_with("ddplaunch: internal error: base/require_test.cc:"));
  CHECK(text.ends_with(": host.empty() && \"no host has a name\" (values: gpu01, 7); please report\n"));
}
