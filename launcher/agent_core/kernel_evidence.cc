#include "launcher/agent_core/kernel_evidence.h"

#include <algorithm>

#include "base/text.h"

namespace ddp::launcher {
namespace {

/// The number directly after the first occurrence of `words`.
std::optional<std::uint64_t> number_after(std::string_view text, std::string_view words) {
  const std::size_t at = text.find(words);
  if (at == std::string_view::npos) return std::nullopt;
  return leading_number<std::uint64_t>(text.substr(at + words.size()));
}

}  // namespace

std::optional<KernelLine> parse_kernel_line(std::string_view record) {
  const std::size_t semicolon = record.find(';');
  if (semicolon == std::string_view::npos) return std::nullopt;
  std::string_view head = record.substr(0, semicolon);
  for (int skipped = 0; skipped < 2; ++skipped) {
    const std::size_t comma = head.find(',');
    if (comma == std::string_view::npos) return std::nullopt;
    head.remove_prefix(comma + 1);
  }
  const auto time = leading_number<std::uint64_t>(head);
  if (!time) return std::nullopt;
  std::string_view text = record.substr(semicolon + 1);
  return KernelLine{*time, std::string(text.substr(0, text.find('\n')))};
}

std::optional<OomVictim> parse_oom_victim(std::string_view text) {
  OomVictim victim;
  // Programs can write such lines to the kernel log, too, but only as root.
  if (const auto killed = number_after(text, "Killed process ")) {
    victim.pid = static_cast<std::int64_t>(*killed);
    victim.cgroup = text.starts_with("Memory cgroup");
    return victim;
  }
  if (!text.starts_with("oom-kill:")) return std::nullopt;
  const auto pid = number_after(text, ",pid=");
  if (!pid) return std::nullopt;
  victim.pid = static_cast<std::int64_t>(*pid);
  victim.cgroup = text.find("CONSTRAINT_MEMCG") != std::string_view::npos;
  return victim;
}

bool is_xid_line(std::string_view text) {
  return text.find("NVRM: Xid") != std::string_view::npos;
}

bool xid_names(std::string_view text, std::int64_t pid) {
  for (const std::string_view words : {"pid=", "pid='"}) {
    const auto named = number_after(text, words);
    if (named && static_cast<std::int64_t>(*named) == pid) return true;
  }
  return false;
}

std::optional<std::uint64_t> parse_oom_kills(std::string_view text) {
  constexpr std::string_view kName = "oom_kill ";
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view line = text.substr(at, end - at);
    at = end + 1;
    if (line.starts_with(kName)) return leading_number<std::uint64_t>(line.substr(kName.size()));
  }
  return std::nullopt;
}

}  // namespace ddp::launcher
