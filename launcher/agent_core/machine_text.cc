#include "launcher/agent_core/machine_text.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/text.h"

namespace ddp::launcher {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
/// More than any machine has; a broken driver must not fill the link.
constexpr std::size_t kMostGpus = 1024;
constexpr std::size_t kMostProcesses = 4096;

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\r'))
    text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\r'))
    text.remove_suffix(1);
  return text;
}

std::vector<std::string_view> cut(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t end = std::min(text.find(separator, at), text.size());
    parts.push_back(trimmed(text.substr(at, end - at)));
    at = end + 1;
  }
  return parts;
}

void add_process(GpuFacts& facts, std::size_t gpu, std::string_view pid, std::uint64_t memory) {
  const auto value = parse_number<std::uint64_t>(pid);
  if (!value || gpu >= facts.gpus.size() || facts.processes.size() >= kMostProcesses) return;
  facts.processes.push_back({gpu, static_cast<std::uint32_t>(*value), memory});
}

}  // namespace

GpuFacts read_nvml_lines(std::string_view text) {
  GpuFacts facts;
  for (const std::string_view line : cut(text, '\n')) {
    const std::vector<std::string_view> words = cut(line, '\t');
    if (words[0] == "version" && words.size() >= 3) {
      facts.versions.emplace_back(words[1], words[2]);
    } else if (words[0] == "gpu" && words.size() >= 4 && facts.gpus.size() < kMostGpus) {
      facts.gpus.push_back({std::string(words[1]),
                            parse_number<std::uint64_t>(words[2]).value_or(0),
                            parse_number<std::uint64_t>(words[3]).value_or(0),
                            0,
                            {}});
    } else if (words[0] == "process" && words.size() >= 4) {
      if (const auto gpu = parse_number<std::uint64_t>(words[1]))
        add_process(facts, *gpu, words[2], parse_number<std::uint64_t>(words[3]).value_or(0));
    } else if (words[0] == "trouble" && words.size() >= 2) {
      facts.trouble = words[1];
    }
  }
  return facts;
}

GpuFacts read_smi(std::string_view gpus, std::string_view processes) {
  GpuFacts facts;
  std::vector<std::string> uuids;
  for (const std::string_view line : cut(gpus, '\n')) {
    const std::vector<std::string_view> words = cut(line, ',');
    if (words.size() < 6 || !parse_number<std::uint64_t>(words[0]) || facts.gpus.size() >= kMostGpus)
      continue;
    if (facts.gpus.empty()) facts.versions.emplace_back("driver", words[5]);
    facts.gpus.push_back({std::string(words[2]),
                          parse_number<std::uint64_t>(words[3]).value_or(0) * kMiB,
                          parse_number<std::uint64_t>(words[4]).value_or(0) * kMiB,
                          0,
                          {}});
    uuids.emplace_back(words[1]);
  }
  for (const std::string_view line : cut(processes, '\n')) {
    const std::vector<std::string_view> words = cut(line, ',');
    if (words.size() < 3) continue;
    for (std::size_t i = 0; i < uuids.size(); ++i) {
      if (uuids[i] == words[0])
        add_process(facts, i, words[1], parse_number<std::uint64_t>(words[2]).value_or(0) * kMiB);
    }
  }
  return facts;
}

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
  // /dev/kmsg: "priority,sequence,microseconds,flags;text" (Documentation/ABI/testing/dev-kmsg).
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
    // "Memory cgroup out of memory: Killed process 77 (python)…", against "Out of memory: Killed process …".
    victim.cgroup = text.starts_with("Memory cgroup");
    return victim;
  }
  // "oom-kill:constraint=CONSTRAINT_MEMCG,…,task=python,pid=77,uid=0", since Linux 5.0.
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
