#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "apps/options/option_table.h"
#include "base/result.h"

namespace ddp {

enum class DaemonCommand : std::uint8_t { kHelp, kVersion, kListen, kNewToken, kStdio, kFits, kVerify };

/// A command line of ddplaunchd, which hands kListen and kNewToken to ddplaunch-listen.
struct DaemonOptions {
  DaemonCommand command = DaemonCommand::kHelp;
  std::string address;                    ///< kListen: numeric; empty: all interfaces
  std::uint16_t port = 0;                 ///< kListen
  std::string token_file;                 ///< kListen; empty: DDPLAUNCH_TOKEN, else the default file
  std::string new_token_path;             ///< kNewToken; empty: the default path
  std::vector<std::string> fits_words;    ///< kFits: protocol, version, keys
  std::vector<std::string> verify_words;  ///< kVerify: SHA-256 sum, path
};

/// Reads a command line. kUsage: the text has a line for each error.
Result<DaemonOptions> read_daemon_options(const std::vector<std::string>& words);

/// Returns the text of --help.
std::string daemon_help();
/// Returns the options of --help, for the documents.
std::vector<OptionGroup> daemon_option_groups();

}  // namespace ddp
