#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace ddp::remote {

/// Finds what can distinguish hosts in SSH configuration files. `ssh -G` costs 8 ms per host. Hosts for which
/// every Host line matches alike have the same configuration, so one query serves them all.
class SshConfigShape {
 public:
  /// Adds one file's text. Returns the words of its Include lines, which the caller reads and adds as well.
  std::vector<std::string> add(std::string_view text);

  /// Hosts with equal signatures share one answer of `ssh -G`, in which each host's name replaces the queried
  /// name. Empty: the files can distinguish any two hosts (Match, tokens, canonical names), so each host
  /// needs its own query.
  std::string signature(const std::string& host) const;

  bool asks_for_each() const { return asks_for_each_; }

  /// Returns the keywords in the files that have no effect on a login through libssh, although a user may
  /// expect one, in alphabetical order: "IPQoS".
  const std::set<std::string>& without_effect() const { return without_effect_; }

 private:
  std::vector<std::vector<std::string>> host_lines_;
  std::vector<std::string> host_names_;
  std::set<std::string> without_effect_;
  bool asks_for_each_ = false;
};

/// Matches ssh's pattern lists: * and ? match, ! excludes, case counts.
bool matches_ssh_pattern(std::string_view pattern, std::string_view text);
bool matches_ssh_patterns(const std::vector<std::string>& patterns, std::string_view text);

}  // namespace ddp::remote
