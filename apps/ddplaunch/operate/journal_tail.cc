#include "apps/ddplaunch/operate/journal_tail.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/text.h"

namespace ddp {
namespace {

using OrderedJson = nlohmann::ordered_json;

/// No line of a journal is longer, since texts are cut.
constexpr std::size_t kLongEvent = 1u << 20;

UniqueFd open_journal(const std::string& path) {
  return UniqueFd(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
}

}  // namespace

JournalTail::JournalTail(const std::string& directory, bool from_begin)
    : path_(directory + "/events.jsonl"), fd_(open_journal(path_)) {
  if (fd_ && !from_begin) ::lseek(fd_.get(), 0, SEEK_END);
}

bool JournalTail::was_replaced() const {
  struct stat ours {};
  struct stat named {};
  return ::fstat(fd_.get(), &ours) == 0 && ::stat(path_.c_str(), &named) == 0 && ours.st_ino != named.st_ino;
}

void JournalTail::read_rest(std::vector<std::string>& lines) {
  char part[16384];
  for (;;) {
    const ssize_t count = ::read(fd_.get(), part, sizeof part);
    if (count <= 0) return;
    rest_.append(part, static_cast<std::size_t>(count));
    std::size_t at = 0;
    for (std::size_t end = 0; (end = rest_.find('\n', at)) != std::string::npos; at = end + 1)
      lines.push_back(rest_.substr(at, end - at));
    rest_.erase(0, at);
    if (rest_.size() > kLongEvent) rest_.clear();
  }
}

std::vector<std::string> JournalTail::new_lines() {
  std::vector<std::string> lines;
  if (fd_) {
    const bool replaced = was_replaced();  // first, so that the old one is read to its end
    read_rest(lines);
    if (!replaced) return lines;
    rest_.clear();
  }
  fd_ = open_journal(path_);
  if (fd_) read_rest(lines);
  return lines;
}

std::string event_text(const std::string& line) {
  const OrderedJson event = OrderedJson::parse(line, nullptr, false);
  if (!event.is_object() || !event.contains("event") || !event["event"].is_string()) return "";
  const auto text = [&event](const char* key) {
    const auto found = event.find(key);
    return found != event.end() && found->is_string() ? found->get<std::string>() : std::string();
  };
  const auto number = [&event](const char* key) {
    const auto found = event.find(key);
    return found != event.end() && found->is_number_integer() ? std::to_string(found->get<std::int64_t>())
                                                              : "";
  };
  std::string name = text("event");
  std::replace(name.begin(), name.end(), '_', ' ');
  const std::string attempt = number("attempt").empty() ? "" : "attempt " + number("attempt");
  std::string shown = name.starts_with("attempt ") ? attempt + name.substr(7)
                      : attempt.empty()            ? name
                                                   : attempt + ": " + name;
  if (!text("node").empty()) shown += ", " + text("node");
  if (!number("rank").empty()) shown += ", rank " + number("rank");
  if (!text("reason").empty()) shown += ": " + text("reason");
  return one_line(shown);
}

}  // namespace ddp
