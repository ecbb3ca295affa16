// ddplaunchd: the node agent. ddplaunch starts it on every node with `--stdio`, which serves one job over
// stdin and stdout.
#include <cstdio>
#include <cstring>
#include <string>

#include "apps/ddplaunchd/commands.h"
#include "apps/ddplaunchd/daemon_options.h"
#include "base/build_identity.h"
#include "base/safe_text.h"
#include "base/standard_descriptors.h"
#include "launcher/keeper/keeper.h"
#include "rendezvous/secure/link_token.h"

namespace {

void print_help(std::FILE* stream) {
  std::fputs(ddp::help_text(ddp::kDaemonUsage, ddp::daemon_option_groups()).c_str(), stream);
}

}  // namespace

int main(int argc, char** argv) {
  ddp::fill_standard_descriptors();
  const char* option = argc == 2 ? argv[1] : "";
  if (std::strcmp(option, "--version") == 0) {
    std::printf("ddplaunchd %s\n", std::string(ddp::version()).c_str());
    return 0;
  }
  for (int at = 1; at < argc; ++at) {
    if (std::strcmp(argv[at], "--help") != 0 && std::strcmp(argv[at], "-h") != 0) continue;
    print_help(stdout);
    return 0;
  }
  if (argc >= 2 && std::strcmp(argv[1], "--fits") == 0) return ddp::answer_fits(argc - 2, argv + 2);
  if (argc == 4 && std::strcmp(argv[1], "--verify") == 0) return ddp::verify_file(argv[2], argv[3]);
  if (argc >= 2 && ddp::is_for_listener(argv[1])) return ddp::run_listener(argv);
  if (std::strcmp(option, "--stdio") != 0) {
    if (argc < 2) print_help(stderr);
    if (argc >= 2) {
      const bool extra = argc > 2 && std::strcmp(argv[1], "--stdio") == 0;
      std::fprintf(stderr, "ddplaunchd: unexpected \"%s\"; ddplaunchd --help lists all options\n",
                   ddp::one_line(argv[extra ? 2 : 1]).c_str());
    }
    return 2;
  }
  // A profile of this node may have set the token. Setup scripts and tools must not see it.
  (void)ddp::rendezvous::take_token_from_environment();
  ddp::launcher::KeeperOptions options;
  options.exit_code_if_left = ddp::launcher::kExitProcessesLeft;
  return ddp::launcher::run_keeper(options, ddp::run_stdio_agent);
}
