#pragma once

#include <cerrno>
#include <chrono>
#include <iterator>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "apps/ddplaunch/options/options.h"
#include "tests/support/catch.h"

namespace ddp::test {

using Texts = std::vector<std::string>;
using Env = std::vector<std::pair<std::string, std::string>>;

/// Returns the words of a command line without quotes.
inline Texts words(const std::string& line) {
  std::istringstream text(line);
  return {std::istream_iterator<std::string>(text), {}};
}

/// When FakeContext reads a host history.
inline constexpr launcher::HistoryTime kHistoryNow{std::chrono::seconds(1'795'230'119)};

/// Fake files, environment and directory of a test, and the options that are parsed with them.
class FakeContext {
 public:
  std::map<std::string, std::string> files;
  std::set<std::string> directories;  ///< existing directories besides cwd
  Env env = {{"HOME", "/home/ann"}, {"PATH", "/usr/bin"}, {"DATA", "/data"}};
  std::string cwd = "/data/run";
  bool stdin_has_data = false;
  unsigned user_id = 0;
  std::string standard_input;
  std::map<std::string, std::string> histories;  ///< lines of host histories, by directory

  ParsedOptions parse(const Texts& args) const {
    ProcessContext context;
    context.env = env;
    context.cwd = cwd;
    context.new_job_id = "20261121-034500-ab12cd";
    context.host_name = "head";
    context.user_id = user_id;
    context.stdin_has_data = stdin_has_data;
    context.read_file = [this](const std::string& path) -> Result<std::string> {
      const auto found = files.find(path);
      if (found == files.end()) return system_error(ENOENT, path);
      if (found->second == "unreadable") return system_error(EACCES, path);
      return found->second;
    };
    context.read_own_file = [this](const std::string& path) -> Result<std::string> {
      const auto found = files.find(path);
      if (found == files.end()) return system_error(ENOENT, path);
      if (found->second == "untrusted") return Error{ErrorCode::kSystem, path + ": it is another's", EPERM};
      return found->second;
    };
    context.read_stdin = [this] { return Result<std::string>(standard_input); };
    context.can_write = [this](const std::string& path) -> Result<> {
      const std::string directory = path.substr(0, path.rfind('/'));
      if (directory != cwd && !directories.contains(directory)) return system_error(ENOENT, directory);
      return {};
    };
    context.read_host_history = [this](const std::string& directory) -> Result<launcher::HostHistory> {
      launcher::HostHistory history(kHistoryNow);
      const auto found = histories.find(directory);
      if (found == histories.end()) return history;
      if (found->second == "untrusted") return Error{ErrorCode::kUsage, directory + " is no directory"};
      history.add(found->second, 1000, true);
      return history;
    };
    return parse_options(args, context);
  }

  RunJob job(const Texts& args) const {
    ParsedOptions parsed = parse(args);
    if (const auto* bad = std::get_if<BadUsage>(&parsed)) {
      for (const std::string& problem : bad->errors)
        UNSCOPED_INFO(problem);
    }
    REQUIRE(std::holds_alternative<RunJob>(parsed));
    return std::get<RunJob>(std::move(parsed));
  }
  launcher::JobSpec spec(const Texts& args) const { return job(args).spec; }

  Texts errors(const Texts& args) const {
    const ParsedOptions parsed = parse(args);
    REQUIRE(std::holds_alternative<BadUsage>(parsed));
    return std::get<BadUsage>(parsed).errors;
  }
  std::string text(const Texts& args) const {
    const ParsedOptions parsed = parse(args);
    REQUIRE(std::holds_alternative<PrintText>(parsed));
    return std::get<PrintText>(parsed).text;
  }
};

}  // namespace ddp::test
