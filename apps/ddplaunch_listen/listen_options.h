#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"

namespace ddp {

/// The options of `ddplaunchd --listen …` and `ddplaunchd --new-token …`.
struct ListenOptions {
  bool new_token = false;
  std::string new_token_path;  ///< empty: the default path
  std::string address;         ///< numeric; empty: all interfaces
  std::uint16_t port = 0;
  std::string token_file;  ///< empty: DDPLAUNCH_TOKEN, else the default file
};

/// Reads the options. kUsage: the text has a line for each error.
Result<ListenOptions> read_listen_options(const std::vector<std::string>& words);

}  // namespace ddp
