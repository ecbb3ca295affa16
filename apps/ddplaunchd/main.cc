// ddplaunchd: the node agent. ddplaunch starts it on every node with `--stdio`, which serves one job over
// stdin and stdout.
#include <cstdio>
#include <string>

#include "apps/ddplaunchd/commands.h"
#include "apps/ddplaunchd/daemon_options.h"
#include "base/program.h"
#include "base/unique_fd.h"
#include "launcher/keeper/keeper.h"
#include "rendezvous/secure/link_token.h"

namespace {

int serve_one_job() {
  // A profile of this node may have set the token. Setup scripts and tools must not see it.
  (void)ddp::rendezvous::take_token_from_environment();
  ddp::launcher::KeeperOptions options;
  options.exit_code_if_left = ddp::launcher::kExitProcessesLeft;
  return ddp::launcher::run_keeper(options, ddp::run_stdio_agent);
}

int print(const std::string& text) {
  const auto printed = ddp::print_result(text);
  if (printed) return 0;
  std::fprintf(stderr, "ddplaunchd: %s\n", printed.error().text.c_str());
  return 110;
}

int run(const ddp::DaemonOptions& options, char** argv) {
  switch (options.command) {
    case ddp::DaemonCommand::kHelp:
      return print(ddp::daemon_help());
    case ddp::DaemonCommand::kVersion:
      return print("ddplaunchd " + std::string(ddp::version()) + '\n');
    case ddp::DaemonCommand::kListen:
    case ddp::DaemonCommand::kNewToken:
      return ddp::run_listener(argv);
    case ddp::DaemonCommand::kStdio:
      return serve_one_job();
    case ddp::DaemonCommand::kFits:
      return ddp::answer_fits(options.fits_words);
    case ddp::DaemonCommand::kVerify:
      return ddp::verify_file(options.verify_words[0], options.verify_words[1]);
  }
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  ddp::fill_standard_descriptors();
  const auto options = ddp::read_daemon_options({argv + 1, argv + argc});
  if (options) return run(*options, argv);
  if (argc == 1) std::fputs(ddp::daemon_help().c_str(), stderr);
  if (argc > 1) std::fprintf(stderr, "ddplaunchd: %s\n", options.error().text.c_str());
  return 2;
}
