#include "apps/ddplaunchd/daemon_options.h"

#include <array>
#include <string_view>
#include <utility>

#include "apps/options/option_table.h"
#include "base/text.h"
#include "launcher/links/daemon_frame.h"

namespace ddp {

namespace {

constexpr char kUsage[] =
    "usage: ddplaunchd --listen [[ADDRESS:]PORT] [--token-file FILE]\n"
    "       ddplaunchd --new-token [FILE]\n"
    "       ddplaunchd --stdio\n"
    "       ddplaunchd --fits PROTOCOL VERSION [KEY…]\n"
    "       ddplaunchd --verify SHA256 FILE\n"
    "       ddplaunchd --version | --help\n"
    "The node agent of ddplaunch, which starts it on every node over SSH or through a daemon (--listen).\n";
constexpr char kOneCommand[] = "; give one of them";

/// Reads PORT, ADDRESS:PORT or [ADDRESS]:PORT. An omitted value leaves the defaults.
ReadValue endpoint_into(DaemonOptions& options) {
  return [&options](const std::string& text) -> std::string {
    if (text.empty()) return "";
    const auto parts = split_endpoint(text);
    if (!parts || (!text.starts_with('[') && parts->host.find(':') != std::string::npos))
      return ": write an IPv6 address in brackets: [fd00::5]:29499";
    if (parts->port && parts->host.empty())
      return ": the address before the colon is missing; for all interfaces give only the port";
    if (!parts->port && (text.starts_with('[') || text.find('.') != std::string::npos))
      return ": give the port, too: " + text + ':' + std::to_string(launcher::kDaemonPort);
    const std::string& digits = parts->port ? *parts->port : parts->host;
    const auto port = parse_number<std::uint16_t>(digits);
    if (!port) return ": \"" + digits + "\" is not a port; give a number up to 65535 (0: any free port)";
    options.port = *port;
    options.address = parts->port ? parts->host : "";
    return "";
  };
}

void declare_options(OptionTable& table, DaemonOptions& options) {
  table.group("Daemon", "", "ddplaunchd --listen 10.1.0.5:29499");
  options.port = launcher::kDaemonPort;
  table.value({.names = "--listen",
               .value = "[[ADDRESS:]PORT]",
               .default_text = "port " + std::to_string(launcher::kDaemonPort) + " of all interfaces",
               .help = "wait for masters that have the token (docs/users/daemon.md)",
               .details = "An IPv6 address stands in brackets. Port `0` is any free port. Log lines go to "
                          "standard error."},
              endpoint_into(options));
  table.value({.names = "--token-file",
               .value = "FILE",
               .default_text = "DDPLAUNCH_TOKEN, else ~/.config/ddplaunch/token",
               .help = "file with the token",
               .details = "Nobody else may be able to read the file.",
               .only_with = {{"--listen"}, "; --new-token FILE names its own file"}},
              text_into(options.token_file));
  table.value({.names = "--new-token",
               .value = "[FILE]",
               .default_text = "~/.config/ddplaunch/token",
               .help = "write a new token into FILE, readable by you only, and print its name",
               .details = "The token is random. The file must not exist yet.",
               .not_with = {{{"--listen"}, kOneCommand}}},
              text_into(options.new_token_path));
  table.group("Agent");
  table.flag({.names = "--stdio",
              .help = "serve one job over standard input and output",
              .not_with = {{{"--listen", "--new-token"}, kOneCommand}}});
  table.values({.names = "--fits",
                .value = "PROTOCOL VERSION [KEY…]",
                .help = "exit code 0: this agent has that protocol, that version and one of these builds",
                .details = "Exit code 3: it has that protocol and version, but another build. Otherwise 1.",
                .not_with = {{{"--listen", "--new-token", "--stdio"}, kOneCommand}}},
               options.fits_words);
  table.values({.names = "--verify",
                .value = "SHA256 FILE",
                .help = "exit code 0: the file has that sum",
                .not_with = {{{"--listen", "--new-token", "--stdio", "--fits"}, kOneCommand}}},
               options.verify_words);
  table.flag({.names = "-V,--version", .help = "print the version"});
  table.flag({.names = "-h,--help", .help = "print this text"});
}

struct CommandOption {
  const char* name;
  DaemonCommand command;
};
constexpr std::array<CommandOption, 5> kCommands{{{"--listen", DaemonCommand::kListen},
                                                  {"--new-token", DaemonCommand::kNewToken},
                                                  {"--stdio", DaemonCommand::kStdio},
                                                  {"--fits", DaemonCommand::kFits},
                                                  {"--verify", DaemonCommand::kVerify}}};

}  // namespace

Result<DaemonOptions> read_daemon_options(const std::vector<std::string>& words) {
  DaemonOptions options;
  OptionTable table(kUsage);
  declare_options(table, options);
  std::vector<std::string> errors = parse_arguments("ddplaunchd", words, table);
  if (table.given("--help")) return options;
  if (table.given("--version")) {
    options.command = DaemonCommand::kVersion;
    return options;
  }
  for (const CommandOption& one : kCommands)
    if (table.given(one.name)) options.command = one.command;
  if (errors.empty() && options.command == DaemonCommand::kHelp)
    errors.emplace_back("give --listen, --new-token or --stdio; ddplaunchd --help lists all options");
  if (errors.empty()) return options;
  std::string text;
  for (const std::string& error : errors)
    text += (text.empty() ? "" : "\nddplaunchd: ") + one_line(error);
  return Error{ErrorCode::kUsage, text};
}

std::string daemon_help() {
  DaemonOptions options;
  OptionTable table(kUsage);
  declare_options(table, options);
  return table.help();
}

std::vector<OptionGroup> daemon_option_groups() {
  DaemonOptions options;
  OptionTable table("");
  declare_options(table, options);
  return table.groups();
}

}  // namespace ddp
