#include "apps/ddplaunchd/daemon_options.h"

#include <string>

#include "launcher/link_protocol/daemon_frame.h"

namespace ddp {

std::vector<OptionGroup> daemon_option_groups() {
  OptionGroup daemon{
      .title = "Daemon", .intro = "", .example = "ddplaunchd --listen 10.1.0.5:29499", .options = {}};
  daemon.options = {
      {.names = "--listen",
       .value = "[[ADDRESS:]PORT]",
       .default_text = "port " + std::to_string(launcher::kDaemonPort) + " of all interfaces",
       .help = "wait for masters that have the token (docs/users/daemon.md)",
       .details = "An IPv6 address stands in brackets. Port `0` is any free port. Log lines go to standard "
                  "error."},
      {.names = "--token-file",
       .value = "FILE",
       .default_text = "DDPLAUNCH_TOKEN, else ~/.config/ddplaunch/token",
       .help = "file with the token",
       .details = "Nobody else may be able to read the file."},
      {.names = "--new-token",
       .value = "[FILE]",
       .default_text = "~/.config/ddplaunch/token",
       .help = "write a new token there, for you alone, and print the file's name",
       .details = "The token is random. The file must not exist yet."},
  };
  OptionGroup agent{.title = "Agent", .intro = "", .example = "", .options = {}};
  agent.options = {
      {.names = "--stdio", .help = "serve one job over standard input and output"},
      {.names = "--fits",
       .value = "PROTOCOL VERSION KEY…",
       .help = "exit code 0: this agent has that protocol, version and build",
       .details = "Exit code 3: it has that protocol and version, but another build. Otherwise 1."},
      {.names = "--verify", .value = "SHA256 FILE", .help = "exit code 0: the file has that sum"},
      {.names = "--version", .help = "print the version"},
      {.names = "-h,--help", .help = "print this text"},
  };
  return {daemon, agent};
}

}  // namespace ddp
