#include "launcher/agent_core/machine_text.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/text.h"
#include "rendezvous/protocol/codec.h"

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

namespace {

using std::chrono::nanoseconds;

constexpr std::uint64_t kSector = 512;
/// No line of ddplaunch-nvml is longer.
constexpr std::size_t kMostLine = 1024;

/// Calls `visit` for each line.
template <class Visit>
void each_line(std::string_view text, const Visit& visit) {
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    visit(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
}

std::uint64_t number_in(const std::vector<std::string_view>& words, std::size_t at) {
  return at < words.size() ? parse_number<std::uint64_t>(words[at]).value_or(0) : 0;
}

/// Returns the bytes of a line "Name:   123 kB"; unset: the text has no such line.
std::optional<std::uint64_t> kilobytes(std::string_view text, std::string_view name) {
  std::optional<std::uint64_t> found;
  each_line(text, [&](std::string_view line) {
    if (!found && line.starts_with(name)) found = number_in(split_at_blanks(line), 1) * 1024;
  });
  return found;
}

std::uint64_t per_second(std::uint64_t before, std::uint64_t now, nanoseconds time) {
  if (now <= before) return 0;
  return static_cast<std::uint64_t>(static_cast<double>(now - before) * 1e9 /
                                    static_cast<double>(time.count()));
}

std::uint64_t milli_cpus(nanoseconds used, nanoseconds time) {
  return used.count() <= 0 ? 0
                           : static_cast<std::uint64_t>(1000 * static_cast<double>(used.count()) /
                                                        static_cast<double>(time.count()));
}

}  // namespace

void read_proc_stat(std::string_view text, nanoseconds tick, UsageCounters& counters) {
  each_line(text, [&](std::string_view line) {
    if (!line.starts_with("cpu")) return;
    const std::vector<std::string_view> words = split_at_blanks(line);
    if (words[0] != "cpu") {
      ++counters.cpus;
      return;
    }
    // user, nice, system, idle, iowait, irq, softirq, steal; the times of guests are in user and nice.
    std::uint64_t ticks = 0;
    for (std::size_t field = 1; field <= 8; ++field)
      if (field != 4 && field != 5) ticks += number_in(words, field);
    counters.cpu = tick * static_cast<std::int64_t>(ticks);
    counters.steal = tick * static_cast<std::int64_t>(number_in(words, 8));
  });
}

void read_meminfo(std::string_view text, UsageCounters& counters) {
  counters.memory = kilobytes(text, "MemTotal:").value_or(0);
  const std::uint64_t available = kilobytes(text, "MemAvailable:").value_or(counters.memory);
  counters.memory_used = counters.memory - std::min(available, counters.memory);
}

std::chrono::nanoseconds read_pressure(std::string_view text) {
  // "some avg10=0.00 avg60=0.00 avg300=0.00 total=1234": microseconds.
  nanoseconds stalled{0};
  each_line(text, [&](std::string_view line) {
    const std::size_t total = line.find("total=");
    if (!line.starts_with("some ") || total == std::string_view::npos) return;
    stalled = std::chrono::microseconds(leading_number<std::int64_t>(line.substr(total + 6)).value_or(0));
  });
  return stalled;
}

std::uint64_t read_net_errors(std::string_view text) {
  std::uint64_t errors = 0;
  each_line(text, [&errors](std::string_view line) {
    const std::size_t colon = line.find(':');
    if (colon == std::string_view::npos) return;
    const std::vector<std::string_view> words = split_at_blanks(line.substr(colon + 1));
    errors += number_in(words, 2) + number_in(words, 10);
  });
  return errors;
}

std::map<std::string, ByteCounters> read_net_dev(std::string_view text) {
  std::map<std::string, ByteCounters> found;
  each_line(text, [&found](std::string_view line) {
    const std::size_t colon = line.find(':');  // the two lines of the head have none
    if (colon == std::string_view::npos) return;
    const std::vector<std::string_view> name = split_at_blanks(line.substr(0, colon));
    const std::vector<std::string_view> words = split_at_blanks(line.substr(colon + 1));
    if (name.size() == 1 && name[0] != "lo")
      found[std::string(name[0])] = {number_in(words, 0), number_in(words, 8)};
  });
  return found;
}

std::map<std::string, ByteCounters> read_diskstats(std::string_view text) {
  std::map<std::string, ByteCounters> found;
  each_line(text, [&found](std::string_view line) {
    const std::vector<std::string_view> words = split_at_blanks(line);
    if (words.size() >= 10)
      found[std::string(words[2])] = {number_in(words, 5) * kSector, number_in(words, 9) * kSector};
  });
  return found;
}

nanoseconds read_group_cpu(std::string_view text) {
  nanoseconds used{0};
  each_line(text, [&used](std::string_view line) {
    const std::vector<std::string_view> words = split_at_blanks(line);
    if (!words.empty() && words[0] == "usage_usec")
      used = std::chrono::microseconds(static_cast<std::int64_t>(number_in(words, 1)));
  });
  return used;
}

std::uint64_t read_private_memory(std::string_view text) {
  return kilobytes(text, "RssAnon:").value_or(0);
}

rendezvous::NodeSample usage_between(const UsageCounters& before, const UsageCounters& now) {
  rendezvous::NodeSample sample;
  const nanoseconds time = std::max(now.at - before.at, nanoseconds(1));
  sample.cpus = now.cpus;
  sample.cpu_milli = milli_cpus(now.cpu - before.cpu, time);
  sample.memory = now.memory;
  sample.memory_used = now.memory_used;
  nanoseconds job{0};
  if (now.group_cpu > nanoseconds(0)) {
    job = now.group_cpu - before.group_cpu;
  } else {
    for (const auto& [process, used] : now.process_cpu) {
      const auto earlier = before.process_cpu.find(process);
      job += earlier == before.process_cpu.end() ? std::min(used, time) : used - earlier->second;
    }
  }
  sample.job_cpu_milli = milli_cpus(job, time);
  sample.job_memory = now.job_memory;
  sample.network_in = per_second(before.network.in, now.network.in, time);
  sample.network_out = per_second(before.network.out, now.network.out, time);
  sample.infiniband_in = per_second(before.infiniband.in, now.infiniband.in, time);
  sample.infiniband_out = per_second(before.infiniband.out, now.infiniband.out, time);
  sample.disk_read = per_second(before.disk.in, now.disk.in, time);
  sample.disk_written = per_second(before.disk.out, now.disk.out, time);
  sample.steal_milli = milli_cpus(now.steal - before.steal, time);
  sample.memory_stall = milli_cpus(now.memory_stall - before.memory_stall, time);
  sample.network_errors = now.network_errors - std::min(now.network_errors, before.network_errors);
  return sample;
}

void GpuSampleLines::add(std::string_view bytes) {
  rest_ += bytes;
  std::size_t begin = 0;
  for (std::size_t end = rest_.find('\n'); end != std::string::npos; end = rest_.find('\n', begin)) {
    add_line(std::string_view(rest_).substr(begin, end - begin));
    begin = end + 1;
  }
  rest_.erase(0, begin);
  if (rest_.size() > kMostLine) rest_.clear();
}

/// "sample", then tab and number for each field of GpuSample, in its order; "end" behind the last GPU.
void GpuSampleLines::add_line(std::string_view line) {
  const std::vector<std::string_view> words = split_at_blanks(line);
  if (words.size() == 10 && words[0] == "sample" && round_.size() < rendezvous::kMaxGpus) {
    const auto narrow = [&words](std::size_t at) {
      return static_cast<std::uint32_t>(std::min<std::uint64_t>(number_in(words, at), 0xffffffff));
    };
    round_.push_back({narrow(1), std::min(narrow(2), 100u), number_in(words, 3), number_in(words, 4),
                      narrow(5), narrow(6), narrow(7), number_in(words, 8), narrow(9)});
    if (!only_.empty() && std::ranges::find(only_, round_.back().index) == only_.end()) round_.pop_back();
  } else if (words.size() == 1 && words[0] == "end") {
    complete_ = std::exchange(round_, {});
  }
}

std::vector<std::uint32_t> device_numbers(std::string_view list) {
  std::vector<std::uint32_t> numbers;
  while (!list.empty()) {
    const std::size_t comma = std::min(list.find(','), list.size());
    const auto number = parse_number<std::uint32_t>(list.substr(0, comma));
    if (!number) return {};
    numbers.push_back(*number);
    list.remove_prefix(std::min(comma + 1, list.size()));
  }
  return numbers;
}

}  // namespace ddp::launcher
