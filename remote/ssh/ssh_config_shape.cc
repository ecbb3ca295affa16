#include "remote/ssh/ssh_config_shape.h"

#include <algorithm>
#include <array>
#include <cstddef>

#include "base/parse_text.h"

namespace ddp::remote {
namespace {

/// Splits a line into keyword and arguments: blanks or one = separate them, "…" protects blanks, # starts a
/// comment.
std::vector<std::string> split_words(std::string_view line) {
  std::vector<std::string> words;
  std::string word;
  bool quoted = false;
  bool open = false;
  for (char c : line) {
    const bool blank = c == ' ' || c == '\t' || c == '\r' || (c == '=' && words.size() + (open ? 1 : 0) == 1);
    if (c == '"') {
      quoted = !quoted;
      open = true;
    } else if (!quoted && c == '#' && !open) {
      break;
    } else if (!quoted && blank) {
      if (open) words.push_back(std::move(word));
      word.clear();
      open = false;
    } else {
      word += c;
      open = true;
    }
  }
  if (open) words.push_back(std::move(word));
  return words;
}

/// Options whose tokens ssh -G does not expand, or that ddplaunch does not use. A % in them makes no
/// difference between hosts.
bool keeps_tokens(const std::string& keyword) {
  static constexpr std::array<std::string_view, 9> kKeywords = {
      "identityfile", "controlpath", "proxycommand", "localcommand", "remotecommand",
      "setenv",       "sendenv",     "localforward", "remoteforward"};
  return std::find(kKeywords.begin(), kKeywords.end(), keyword) != kKeywords.end();
}

/// Keywords that the ssh program obeys and a login through libssh does not (docs/users/ssh.md). Forwardings
/// and settings of a terminal are left out, since nobody expects them of a job.
constexpr std::array<std::string_view, 16> kWithoutEffect = {
    "AddKeysToAgent",      "CASignatureAlgorithms",
    "CheckHostIP",         "ControlMaster",
    "ControlPath",         "ControlPersist",
    "ChannelTimeout",      "GSSAPIDelegateCredentials",
    "GSSAPIKeyExchange",   "IPQoS",
    "RekeyLimit",          "SecurityKeyProvider",
    "ServerAliveInterval", "ServerAliveCountMax",
    "TCPKeepAlive",        "UpdateHostKeys"};

}  // namespace

bool matches_ssh_pattern(std::string_view pattern, std::string_view text) {
  // The usual two-pointer match: after a *, a mismatch returns to one byte behind the last try.
  std::size_t p = 0, t = 0, star = std::string_view::npos, tried = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      tried = t;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == text[t])) {
      ++p;
      ++t;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      t = ++tried;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*')
    ++p;
  return p == pattern.size();
}

bool matches_ssh_patterns(const std::vector<std::string>& patterns, std::string_view text) {
  bool matches = false;
  for (const std::string& pattern : patterns) {
    const bool excludes = !pattern.empty() && pattern.front() == '!';
    if (!matches_ssh_pattern(std::string_view(pattern).substr(excludes ? 1 : 0), text)) continue;
    if (excludes) return false;
    matches = true;
  }
  return matches;
}

std::vector<std::string> SshConfigShape::add(std::string_view text) {
  std::vector<std::string> includes;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    std::vector<std::string> words = split_words(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    if (words.empty()) continue;
    const std::string keyword = lower_case(words.front());
    words.erase(words.begin());
    for (const std::string_view name : kWithoutEffect) {
      if (lower_case(std::string(name)) == keyword) without_effect_.emplace(name);
    }
    if (keyword == "host") {
      host_lines_.push_back(std::move(words));
    } else if (keyword == "include") {
      includes.insert(includes.end(), words.begin(), words.end());
    } else if (keyword == "match") {
      const bool everything = words.size() == 1 && lower_case(words.front()) == "all";
      if (!everything) asks_for_each_ = true;
    } else if (keyword == "canonicalizehostname") {
      if (words.empty() || lower_case(words.front()) != "no") asks_for_each_ = true;
    } else {
      for (const std::string& word : words) {
        if (word.find('%') != std::string::npos && !keeps_tokens(keyword)) asks_for_each_ = true;
        if (keyword == "hostname") host_names_.push_back(lower_case(word));
      }
    }
  }
  return includes;
}

std::string SshConfigShape::signature(const std::string& host) const {
  if (asks_for_each_) return {};
  const std::string name = lower_case(host);
  // A HostName equal to the host's own name is indistinguishable from the default, so this host needs its own
  // query.
  if (std::find(host_names_.begin(), host_names_.end(), name) != host_names_.end()) return {};
  std::string text = "=";
  for (const auto& patterns : host_lines_)  // Host compares as written
    text += matches_ssh_patterns(patterns, host) ? '1' : '0';
  return text;
}

}  // namespace ddp::remote
