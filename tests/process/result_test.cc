#include "base/result.h"

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <string>

#include "tests/process/process_probe.h"

namespace ddp {
namespace {

TEST_CASE("a broken rule ends the process with the rule and its values") {
  process_test::Pipe out = process_test::make_pipe();
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    ::signal(SIGABRT, SIG_DFL);  // Catch's handler would report a failed test
    ::dup2(out.write_end.get(), STDERR_FILENO);
    const std::string host = "gpu01";
    DDP_REQUIRE(host.empty() && "no host has a name", host, 7);
    ::_exit(0);
  }
  out.write_end.reset();
  const std::string text = process_test::read_all(out.read_end.get());
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(WIFSIGNALED(status));
  CHECK(WTERMSIG(status) == SIGABRT);
  CHECK(text.starts_with("ddplaunch: internal error: process/result_test.cc:"));
  CHECK(text.ends_with(": host.empty() && \"no host has a name\" (values: gpu01, 7); please report\n"));
}

}  // namespace
}  // namespace ddp
