#include "remote/hosts/hostfile.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <optional>
#include <unordered_map>
#include <unordered_set>

#include "base/text.h"
#include "remote/hosts/host.h"

namespace ddp::remote {

namespace {

constexpr char kBlanks[] = " \t\r\n";

DiagnosticList diagnostic(const std::string& file, int line, std::string message) {
  return DiagnosticList{{{SourceLocation{file, line, 0}, std::move(message)}}};
}

/// A word and its line number.
struct ListWord {
  std::string_view text;
  int line = 0;
};

/// Splits at blanks. Each word has its line number if `lines` is set, else line 0.
std::vector<ListWord> split_words(std::string_view text, bool lines) {
  std::vector<ListWord> words;
  int line = lines ? 1 : 0;
  for (std::size_t at = 0; at < text.size();) {
    if (text[at] == '\n' && lines) ++line;
    if (std::string_view(kBlanks).find(text[at]) != std::string_view::npos) {
      ++at;
      continue;
    }
    const std::size_t end = std::min(text.find_first_of(kBlanks, at), text.size());
    words.push_back({text.substr(at, end - at), line});
    at = end;
  }
  return words;
}

/// Adds up the slots of each host, in the order of first mention.
class Counter {
 public:
  explicit Counter(std::string file) : file_(std::move(file)) {}

  /// Returns false if `word` is no host or there are too many hosts; finish() returns the error.
  bool add(const ListWord& word, int count) {
    const HostSpec host = parse_host_spec(word.text);
    if (!host.errors.empty() || host.names.size() != 1 || host.slots_given || host.user_given) {
      wrong_ = diagnostic(file_, word.line,
                          '"' + std::string(word.text.substr(0, 80)) + "\" is not the name of a host");
      return false;
    }
    const auto [known, is_new] = index_.emplace(lower_case(host.names[0]), hosts_.size());
    if (is_new) {
      if (hosts_.size() >= kMaxHosts) {
        wrong_ = diagnostic(file_, word.line, "more than " + std::to_string(kMaxHosts) + " hosts");
        return false;
      }
      Host& made = hosts_.emplace_back();
      made.name = host.names[0];
      made.slots = 0;
      made.location = SourceLocation{file_, word.line, 0};
    }
    int& slots = *hosts_[known->second].slots;
    slots = std::min(slots + count, kMaxSlots);
    return true;
  }

  Validated<std::vector<Host>> finish() {
    if (wrong_) return std::move(*wrong_);
    if (hosts_.empty()) return diagnostic(file_, 0, "it lists no hosts");
    const bool launchers =
        std::all_of(hosts_.begin(), hosts_.end(), [](const Host& h) { return h.slots == 1; });
    for (Host& host : hosts_) {
      if (launchers) host.slots.reset();
    }
    return std::move(hosts_);
  }

 private:
  std::string file_;
  std::vector<Host> hosts_;
  std::unordered_map<std::string, std::size_t> index_;
  std::optional<DiagnosticList> wrong_;
};

/// Returns the sum over all kinds of "8", "a100:8", "a100:4,v100:4(S:0-1)"; nullopt for an unreadable text.
std::optional<int> gpu_count(std::string_view text) {
  int sum = 0;
  for (std::string_view part : split(text, ',')) {
    // "(S:0-1)" names the sockets of the GPUs (Slurm's GRES syntax).
    part = part.substr(0, part.find('('));
    if (const std::size_t colon = part.rfind(':'); colon != std::string_view::npos)
      part.remove_prefix(colon + 1);
    const auto number = whole_number(part, kMaxSlots);
    if (!number) return std::nullopt;
    sum += static_cast<int>(*number);
  }
  return sum > 0 && sum <= kMaxSlots ? std::optional(sum) : std::nullopt;
}

/// Returns the slots of every node when Slurm starts one task per node.
Validated<std::optional<int>> slurm_gpus(const SlurmVariables& variables) {
  for (const auto& [name, text] :
       {std::pair<const char*, const std::string&>{"SLURM_GPUS_PER_NODE", variables.gpus_per_node},
        {"SLURM_GPUS_ON_NODE", variables.gpus_on_node}}) {
    if (text.empty()) continue;
    const auto count = gpu_count(text);
    if (!count) return diagnostic(name, 0, '"' + text + "\" is not a number of GPUs");
    return count;
  }
  return std::optional<int>();
}

}  // namespace

Validated<std::vector<std::string>> expand_node_list(std::string_view text, const std::string& variable) {
  std::vector<std::string> names;
  std::size_t begin = 0;
  bool in_range = false;
  for (std::size_t i = 0; i <= text.size(); ++i) {
    const char c = i < text.size() ? text[i] : ',';
    if (c == '[') in_range = true;
    if (c == ']') in_range = false;
    if (i < text.size() && (c != ',' || in_range)) continue;
    const std::string_view part = text.substr(begin, i - begin);
    HostSpec word = parse_host_spec(part);
    if (!word.errors.empty() || word.user_given || word.slots_given) {
      const std::string why = word.errors.empty() ? '"' + std::string(part) + "\" is not the name of a host"
                                                  : word.errors.front().message;
      const std::size_t offset = word.errors.empty() ? 0 : word.errors.front().offset;
      return DiagnosticList{{{SourceLocation{variable, 0, static_cast<int>(begin + offset) + 1}, why}}};
    }
    if (names.size() + word.names.size() > kMaxHosts)
      return diagnostic(variable, 0, "more than " + std::to_string(kMaxHosts) + " hosts");
    std::move(word.names.begin(), word.names.end(), std::back_inserter(names));
    begin = i + 1;
  }
  return names;
}

Validated<std::vector<int>> expand_counts(std::string_view text, const std::string& variable) {
  std::vector<int> counts;
  for (const std::string_view part : split(text, ',')) {
    const std::size_t open = part.find("(x");
    const auto number = whole_number(part.substr(0, open), kMaxSlots);
    // Slurm writes "2(x3),1": three nodes with 2 tasks, and one with 1.
    std::optional<unsigned long long> times = 1;
    if (open != std::string_view::npos) {
      const std::string_view rest = part.substr(open + 2);
      times = rest.ends_with(')') ? whole_number(rest.substr(0, rest.size() - 1), kMaxHosts) : std::nullopt;
    }
    if (!number || *number == 0 || !times || *times == 0) {
      return diagnostic(variable, 0, '"' + std::string(part) + "\" is not a count like 2 or 2(x3)");
    }
    if (counts.size() + *times > kMaxHosts)
      return diagnostic(variable, 0, "more than " + std::to_string(kMaxHosts) + " hosts");
    counts.insert(counts.end(), *times, static_cast<int>(*number));
  }
  return counts;
}

Validated<std::vector<Host>> slurm_hosts(const SlurmVariables& variables) {
  const std::string list = "SLURM_JOB_NODELIST";
  auto names = expand_node_list(variables.job_nodelist, list);
  if (!names) return names.error();
  std::vector<int> tasks(names->size(), 1);
  if (!variables.tasks_per_node.empty()) {
    auto counts = expand_counts(variables.tasks_per_node, "SLURM_TASKS_PER_NODE");
    if (!counts) return counts.error();
    if (counts->size() != names->size()) {
      return diagnostic("SLURM_TASKS_PER_NODE", 0,
                        variables.tasks_per_node + " is for " + std::to_string(counts->size()) +
                            " nodes, but SLURM_JOB_NODELIST names " + std::to_string(names->size()) +
                            "; the variables belong to different jobs or steps");
    }
    tasks = std::move(*counts);
  }
  // One task on each node means that the script starts one launcher per node. That 1 is no number of workers.
  const bool launchers = std::all_of(tasks.begin(), tasks.end(), [](int count) { return count == 1; });
  const auto gpus = slurm_gpus(variables);
  if (launchers && !gpus) return gpus.error();
  std::unordered_set<std::string> seen;
  std::vector<Host> hosts;
  for (std::size_t i = 0; i < names->size(); ++i) {
    if (!seen.insert(lower_case((*names)[i])).second)
      return diagnostic(list, 0, "host " + (*names)[i] + " is named twice");
    Host& host = hosts.emplace_back();
    host.name = (*names)[i];
    host.location = SourceLocation{list, 0, 0};
    if (!launchers) {
      host.slots = tasks[i];
    } else if (*gpus) {
      host.slots = **gpus;
    }
  }
  return hosts;
}

Validated<std::vector<Host>> repeated_hosts(std::string_view text, const std::string& file) {
  constexpr std::string_view kSlotsKey = "slots=";
  Counter counter(file);
  const std::vector<ListWord> words = split_words(text, true);
  for (std::size_t i = 0; i < words.size();) {
    const ListWord& host = words[i++];
    int slots = 1;
    // LSF may write CPUs behind the host. A key=value pair shows that the user gave a hostfile in place of
    // the list.
    for (; i < words.size() && words[i].line == host.line; ++i) {
      const std::string_view more = words[i].text;
      if (more.find('=') == std::string_view::npos) continue;
      const auto count =
          more.starts_with(kSlotsKey) ? whole_number(more.substr(kSlotsKey.size()), kMaxSlots) : std::nullopt;
      if (!count || *count == 0) {
        return diagnostic(
            file, host.line,
            '"' + std::string(more.substr(0, 80)) +
                "\" is not allowed in a scheduler's list of hosts; for a hostfile use --hostfile");
      }
      slots = static_cast<int>(*count);
    }
    if (!counter.add(host, slots)) break;
  }
  return counter.finish();
}

Validated<std::vector<Host>> parse_repeated_hosts(std::string_view text, const std::string& variable) {
  Counter counter(variable);
  for (const ListWord& word : split_words(text, false)) {
    if (!counter.add(word, 1)) break;
  }
  return counter.finish();
}

Validated<std::vector<Host>> parse_host_counts(std::string_view text, const std::string& variable) {
  Counter counter(variable);
  const std::vector<ListWord> words = split_words(text, false);
  for (std::size_t i = 0; i < words.size(); i += 2) {
    const auto count = i + 1 < words.size() ? whole_number(words[i + 1].text, kMaxSlots) : std::nullopt;
    if (!count || *count == 0) {
      return diagnostic(variable, 0, "no number of slots after " + std::string(words[i].text));
    }
    if (!counter.add(words[i], static_cast<int>(*count))) break;
  }
  return counter.finish();
}

Validated<std::vector<Host>> grid_engine_hosts(std::string_view text, const std::string& file) {
  Counter counter(file);
  const std::vector<ListWord> words = split_words(text, true);
  for (std::size_t i = 0; i < words.size();) {
    const std::size_t first = i;
    while (i < words.size() && words[i].line == words[first].line)
      ++i;
    const auto count = i - first > 1 ? whole_number(words[first + 1].text, kMaxSlots) : std::nullopt;
    if (!count || *count == 0) {
      return diagnostic(file, words[first].line,
                        "no number of slots after " + std::string(words[first].text));
    }
    if (!counter.add(words[first], static_cast<int>(*count))) break;
  }
  return counter.finish();
}

}  // namespace ddp::remote
