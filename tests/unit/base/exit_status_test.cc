#include "base/exit_status.h"

#include <cstring>
#include <string>

#include "tests/support/catch.h"

namespace ddp {

TEST_CASE("an exit status from waitid has text and a shell's number") {
  struct Row {
    int code;
    int status;
    const char* text;
    int exit_code;
  };
  const Row rows[] = {
      {CLD_EXITED, 0, "exited 0", 0},
      {CLD_EXITED, 255, "exited 255", 255},
      {CLD_KILLED, SIGKILL, "killed by SIGKILL", 137},
      {CLD_KILLED, SIGTERM, "killed by SIGTERM", 143},
      {CLD_DUMPED, SIGSEGV, "killed by SIGSEGV, core dumped", 139},
      {CLD_DUMPED, SIGABRT, "killed by SIGABRT, core dumped", 134},
      {0, 0, "ended, exit status unknown", 255},
  };
  for (const Row& row : rows) {
    siginfo_t info = {};
    info.si_code = row.code;
    info.si_status = row.status;
    const ExitStatus status = ExitStatus::from_siginfo(info);
    CHECK(status.text() == row.text);
    CHECK(status.exit_code() == row.exit_code);
    CHECK(status.success() == (row.code == CLD_EXITED && row.status == 0));
  }
}

TEST_CASE("signals have names") {
  for (int signal = 1; signal < 32; ++signal) {
    const char* name = sigabbrev_np(signal);
    REQUIRE(name);
    if (signal != SIGIO) CHECK(signal_name(signal) == std::string("SIG") + name);  // POLL is a synonym
  }
  CHECK(signal_name(SIGRTMIN) == "SIGRTMIN");
  CHECK(signal_name(SIGRTMIN + 2) == "SIGRTMIN+2");
  CHECK(signal_name(99) == "signal 99");
  CHECK(signal_name(0) == "signal 0");
}

}  // namespace ddp
