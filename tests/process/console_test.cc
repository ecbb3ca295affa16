#include "launcher/output/console.h"

#include <fcntl.h>
#include <pty.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <csignal>
#include <string>

#include "tests/support/catch.h"
#include "tests/unit/launcher/output/output_fixtures.h"

using namespace ddp;
using namespace ddp::launcher;
using test::OutputPipe;
using test::read_until;

namespace {

pid_t idle_process() {
  const pid_t pid = ::fork();
  REQUIRE(pid >= 0);
  if (pid == 0) {
    ::pause();
    ::_exit(0);
  }
  return pid;
}

void end_process(pid_t pid) {
  ::kill(pid, SIGKILL);
  ::waitpid(pid, nullptr, 0);
}

}  // namespace

TEST_CASE("the reader of a pipe is found") {
  OutputPipe pipe;
  CHECK(pipe_reader(pipe.writer.get()).empty());  // this process does not count
  CHECK(pipe_reader(::open("/dev/null", O_RDWR | O_CLOEXEC)).empty());
  const pid_t child = idle_process();
  const std::string reader = pipe_reader(pipe.writer.get());
  CHECK(reader.find("(pid " + std::to_string(child) + ")") != std::string::npos);
  end_process(child);
  pipe.reader.reset();
  const pid_t writer = idle_process();  // it has only the other end
  CHECK(pipe_reader(pipe.writer.get()).empty());
  end_process(writer);
}

TEST_CASE("ddplaunch's lines go to the terminal when the reader of stderr has gone") {
  const winsize size{24, 80, 0, 0};
  int master = -1;
  const pid_t child = ::forkpty(&master, nullptr, nullptr, &size);
  if (child == 0) {
    asio::io_context loop;
    OutputPipe out;
    OutputPipe err;
    Console console(
        loop.get_executor(), [] {}, ConsolePolicy::kAuto, out.writer.get(), err.writer.get());
    const bool early = console.use_terminal();
    err.reader.reset();
    // While another process group has the terminal, ddplaunch leaves it alone.
    const pid_t other = idle_process();
    ::signal(SIGTTOU, SIG_IGN);
    ::setpgid(other, other);
    ::tcsetpgrp(0, other);
    const bool background = console.use_terminal() || console.uses_terminal();
    ::tcsetpgrp(0, ::getpgrp());
    const bool used = console.use_terminal() && console.uses_terminal();
    // Meanwhile it has become a background process of a terminal with "stty tostop".
    termios mode{};
    ::tcgetattr(0, &mode);
    mode.c_lflag |= TOSTOP;
    ::tcsetattr(0, TCSANOW, &mode);
    ::tcsetpgrp(0, other);
    ::signal(SIGTTOU, SIG_DFL);
    console.write(2, "words\n");
    end_process(other);
    ::_exit(early ? 1 : background ? 2 : used ? 0 : 3);
  }
  REQUIRE(child > 0);
  const UniqueFd terminal(master);
  int status = -1;
  CHECK(::waitpid(child, &status, 0) == child);
  REQUIRE(status == 0);
  CHECK(read_until(terminal, "\n") == "words\r\n");
}
