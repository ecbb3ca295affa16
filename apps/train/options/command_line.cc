#include "apps/train/options/command_line.h"

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <string_view>

#include "apps/options/option_scanner.h"
#include "base/build_identity.h"
#include "base/safe_text.h"

namespace ddp::train {

void declare_help(OptionTable& table) {
  table.group("Help");
  table.flag({.names = "-h,--help", .help = "print this text"});
  table.flag({.names = "-V,--version", .help = "print the version"});
}

int refuse(const std::string& command, const std::vector<std::string>& errors) {
  for (const std::string& error : errors)
    std::fprintf(stderr, "%s: %s\n", command.c_str(), one_line(error).c_str());
  return 2;
}

std::optional<int> read_command_line(const std::string& command, OptionTable& table, int argc,
                                     const char* const* argv, const std::function<std::string()>& complete) {
  const std::vector<std::string> args(argv + std::min(argc, 1), argv + argc);
  std::vector<std::string> errors = parse_arguments(command, args, table);
  if (table.given("--help") || table.given("--version")) {
    const std::string text = table.given("--help") ? table.help() : "train " + std::string(version()) + '\n';
    std::signal(SIGPIPE, SIG_DFL);  // `train --help | head` ends here, as other programs do
    std::fputs(text.c_str(), stdout);
    return std::fflush(stdout), 0;
  }
  if (errors.empty()) errors.push_back(complete());
  if (errors.front().empty()) return std::nullopt;
  return refuse(command, errors);
}

}  // namespace ddp::train
