// ddplaunchd: the node agent. ddplaunch starts it on every node with `--stdio`, which serves one job over
// stdin and stdout.
#include <cstdio>
#include <cstring>
#include <string>

#include "apps/ddplaunchd/commands.h"
#include "base/build_identity.h"
#include "base/standard_descriptors.h"
#include "launcher/keeper/keeper.h"
#include "rendezvous/secure/link_token.h"

namespace {

constexpr char kUsage[] =
    "usage: ddplaunchd --listen [[ADDRESS:]PORT] [--token-file FILE]\n"
    "       ddplaunchd --new-token [FILE]\n"
    "       ddplaunchd --stdio | --fits … | --verify … | --version | --help\n"
    "The node agent of ddplaunch, which starts it on every node over SSH or through a daemon (--listen).\n"
    "  --listen [[ADDRESS:]PORT]    wait for masters that have the token (docs/users/daemon.md); default: "
    "port "
    "29499\n"
    "                               of all interfaces\n"
    "  --token-file FILE            the token (default: DDPLAUNCH_TOKEN, else ~/.config/ddplaunch/token)\n"
    "  --new-token [FILE]           write a new token there, for you alone, and print the file's name\n"
    "  --stdio                      serve one job over stdin and stdout\n"
    "  --fits PROTOCOL VERSION KEY  exit code 0: this agent has that protocol, version and build\n"
    "  --verify SHA256 FILE         exit code 0: the file has that sum\n";

}  // namespace

int main(int argc, char** argv) {
  ddp::fill_standard_descriptors();
  const char* option = argc == 2 ? argv[1] : "";
  if (std::strcmp(option, "--version") == 0) {
    std::printf("ddplaunchd %s\n", std::string(ddp::version()).c_str());
    return 0;
  }
  if (std::strcmp(option, "--help") == 0) {
    std::fputs(kUsage, stdout);
    return 0;
  }
  if (argc >= 2 && std::strcmp(argv[1], "--fits") == 0) return ddp::answer_fits(argc - 2, argv + 2);
  if (argc == 4 && std::strcmp(argv[1], "--verify") == 0) return ddp::verify_file(argv[2], argv[3]);
  if (argc >= 2 && ddp::is_for_listener(argv[1])) return ddp::run_listener(argv);
  if (std::strcmp(option, "--stdio") != 0) {
    std::fputs(kUsage, stderr);
    return 2;
  }
  // A profile of this node may have set the token. Setup scripts and tools must not see it.
  (void)ddp::rendezvous::take_token_from_environment();
  ddp::launcher::KeeperOptions options;
  options.exit_code_if_left = ddp::launcher::kExitProcessesLeft;
  return ddp::launcher::run_keeper(options, ddp::run_stdio_agent);
}
