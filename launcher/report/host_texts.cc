#include "launcher/report/host_texts.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/text.h"
#include "remote/hosts/host.h"

namespace ddp::launcher {

std::string host_list(const std::vector<std::string>& hosts) {
  constexpr std::size_t kNamed = 4;
  if (hosts.size() > kNamed + 1) return join_some(hosts, kNamed) + " hosts";
  if (hosts.size() < 2) return join(hosts, "");
  return join({hosts.begin(), hosts.end() - 1}, ", ") + " and " + hosts.back();
}

namespace {

constexpr std::size_t kNamed = 4;  ///< processes

}  // namespace

std::string swept_text(std::size_t found, const std::vector<std::string>& left, const std::string& job_id) {
  if (left.empty() && found == 0) return "nothing of the job was left there";
  if (left.empty())
    return counted(found, "process of the job was", "processes of the job were") + " left there, and ended";
  return counted(left.size(), "process of the job may live", "processes of the job may live") +
         " there: " + one_line(join_some(left, kNamed)) + "; run `ddplaunch clean " + job_id +
         "` when the job has ended, and end there what that leaves";
}

std::string not_swept_text(const std::string& why, const std::string& job_id, bool reachable) {
  const std::string command = reachable ? "run `ddplaunch clean " + job_id + "` when the job has ended"
                                        : "run there `grep -lz DDPLAUNCH_JOB_ID=" + job_id +
                                              " /proc/[0-9]*/environ`, which names them";
  return "its processes may live, since nobody could search there (" + one_line(why) + "); " + command;
}

namespace {

constexpr std::size_t kHostsText = 100;  ///< longest list of hosts in ranges, in bytes

std::vector<std::string> words_of(const std::string& text) {
  const std::vector<std::string_view> words = split(text, ' ');
  return {words.begin(), words.end()};
}

/// True for a word that may identify a host: its name, an address, a fingerprint. A plain number is none:
/// an exit status is a reason.
bool identifies_host(const std::string& word, const std::string& host) {
  const bool digit = word.find_first_of("0123456789") != std::string::npos;
  const bool other = word.find_first_not_of("0123456789.,;:()\"") != std::string::npos ||
                     std::count(word.begin(), word.end(), '.') >= 3;
  return word.find(host) != std::string::npos || (digit && other);
}

/// True for two durations that differ by less than a second, as those of nodes that fell silent together:
/// "15.1 s" and "15 s".
bool same_duration(const std::vector<std::string>& a, const std::vector<std::string>& b, std::size_t at) {
  if (at + 1 >= a.size() || a[at + 1] != b[at + 1]) return false;
  const std::string& unit = a[at + 1];
  if (unit != "s" && !unit.starts_with("s;") && !unit.starts_with("s,")) return false;
  const auto is_number = [](const std::string& word) {
    return word.find_first_not_of("0123456789.") == std::string::npos && std::ranges::count(word, '.') < 2;
  };
  const auto left = leading_number<double>(a[at]), right = leading_number<double>(b[at]);
  return left && right && is_number(a[at]) && is_number(b[at]) && std::abs(*left - *right) < 1;
}

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

/// Returns the common ends of two words around "…", without parts of numbers.
std::string common_word(const std::string& a, const std::string& b) {
  const auto continues = [&a](std::size_t i) { return i < a.size() && (a[i] & 0xc0) == 0x80; };
  const std::size_t size = std::min(a.size(), b.size());
  std::size_t head = 0;
  while (head < size && a[head] == b[head])
    ++head;
  // Back to a boundary of characters and of numbers: gpu07 and gpu08 share "gpu", not "gpu0".
  while (head > 0 && (continues(head) || is_digit(a[head - 1])))
    --head;
  std::size_t tail = 0;
  while (tail < size - head && a[a.size() - 1 - tail] == b[b.size() - 1 - tail])
    ++tail;
  while (tail > 0 && (continues(a.size() - tail) || is_digit(a[a.size() - tail])))
    --tail;
  return a.substr(0, head) + "…" + a.substr(a.size() - tail);
}

/// Groups that a text is compared with.
constexpr std::size_t kGroupsCompared = 64;

}  // namespace

StartGroup make_group(const std::string& host, const std::string& text) {
  return {{host}, words_of(text)};
}

bool join_group(StartGroup& group, const std::string& host, const std::string& text) {
  const std::vector<std::string> words = words_of(text);
  if (words.size() != group.words.size()) return false;
  std::vector<std::string> common = group.words;
  for (std::size_t i = 0; i < words.size(); ++i) {
    // Words must agree one by one, except where each names its own host. So "port 22" and "port 2222" stay
    // apart.
    if (words[i] == common[i] || same_duration(words, common, i)) continue;
    const bool elided = common[i].find("…") != std::string::npos;
    if (!identifies_host(words[i], host) || !(elided || identifies_host(common[i], group.hosts.front())))
      return false;
    common[i] = common_word(common[i], words[i]);
  }
  group.words = std::move(common);
  group.hosts.push_back(host);
  return true;
}

std::size_t add_to_groups(std::vector<StartGroup>& groups, const std::string& host, const std::string& text) {
  // Bounded: with very different texts of very many hosts the comparison of all pairs would be quadratic.
  for (std::size_t i = 0; i < std::min(groups.size(), kGroupsCompared); ++i)
    if (join_group(groups[i], host, text)) return i;
  groups.push_back(make_group(host, text));
  return groups.size() - 1;
}

bool is_start_failure(const Failure& failure) {
  return failure.kind == Failure::Kind::kNode && failure.error.code != ErrorCode::kLinkLost;
}

std::vector<StartGroup> start_groups(const JobEnd& end, const Failure& cause) {
  std::vector<StartGroup> groups;
  add_to_groups(groups, cause.host, cause.error.text);
  for (const Failure& failure : end.failures) {
    if (&failure != &cause && is_start_failure(failure))
      add_to_groups(groups, failure.host, failure.error.text);
  }
  return groups;
}

std::string group_hosts_text(StartGroup group) {
  std::sort(group.hosts.begin(), group.hosts.end(), remote::HostOrder());
  std::string text = remote::fold_ranges(group.hosts);
  return text.size() > kHostsText ? host_list({group.hosts.begin(), group.hosts.end()}) : text;
}

std::string reason_text(const StartGroup& group) {
  return join(group.words, " ");
}

std::string start_text(const StartGroup& group) {
  return (group.hosts.size() == 1 ? "node " : "nodes ") + group_hosts_text(group) + ": " + reason_text(group);
}

}  // namespace ddp::launcher
