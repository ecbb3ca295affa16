#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ddp::remote {

/// What in SSH configuration files can tell one host from another. `ssh -G` costs 8 ms a host; hosts for
/// which every Host line gives the same answer have the same configuration, so one question serves them all.
class SshConfigShape {
 public:
  /// Adds one file's text. Returns the words of its Include lines, which the caller reads and adds as well.
  std::vector<std::string> add(std::string_view text);

  /// Hosts with equal text share one answer of `ssh -G`, when the name in it is put in for the one that was
  /// asked about. Unset-like empty text: the files can tell any two hosts apart (Match, tokens, canonical
  /// names): ask for each.
  std::string signature(const std::string& host) const;

  bool asks_for_each() const { return asks_for_each_; }

 private:
  std::vector<std::vector<std::string>> host_lines_;
  std::vector<std::string> host_names_;
  bool asks_for_each_ = false;
};

/// ssh's pattern lists: * and ? match, ! excludes, case counts.
bool matches_ssh_pattern(std::string_view pattern, std::string_view text);
bool matches_ssh_patterns(const std::vector<std::string>& patterns, std::string_view text);

std::string lower_case(std::string_view text);

}  // namespace ddp::remote
