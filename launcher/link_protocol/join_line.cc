#include "launcher/link_protocol/join_line.h"

#include <array>
#include <utility>

#include "base/parse_text.h"
#include "base/require.h"
#include "base/safe_text.h"

namespace ddp::launcher {
namespace {

constexpr std::string_view kJoin = "ddplaunch-join ";
constexpr std::string_view kSlot = "ddplaunch-slot ";
constexpr std::string_view kRefused = "ddplaunch-refused ";
constexpr std::string_view kNode = "node";
constexpr std::size_t kMaxText = 800;

constexpr std::array<std::pair<JoinRefusal, std::string_view>, 5> kWords = {{
    {JoinRefusal::kTaken, "taken"},
    {JoinRefusal::kOutOfRange, "range"},
    {JoinRefusal::kFull, "full"},
    {JoinRefusal::kOtherSize, "size"},
    {JoinRefusal::kOtherVersion, "version"},
}};

Error foreign(std::string_view line) {
  return Error{ErrorCode::kProtocol, "unknown line: " + one_line(std::string(line.substr(0, 80))), 0};
}

/// Removes the next word from `rest` and returns it.
std::string_view take_word(std::string_view& rest) {
  const std::string_view word = rest.substr(0, rest.find(' '));
  rest.remove_prefix(std::min(rest.size(), word.size() + 1));
  return word;
}

std::optional<int> number(std::string_view word) {
  const auto value = parse_number<int>(word);
  return value && *value >= 0 ? value : std::nullopt;
}

}  // namespace

std::string request_line(const JoinRequest& request) {
  DDP_REQUIRE(!request.version.empty() && request.version.find(' ') == std::string::npos, request.version);
  return std::string(kJoin) + std::to_string(request.protocol) + ' ' + request.version + ' ' +
         (request.rank ? std::to_string(*request.rank) : "-") + ' ' + std::to_string(request.nodes) + '\n';
}

Result<JoinRequest> parse_request(std::string_view line) {
  if (!line.starts_with(kJoin)) return foreign(line);
  std::string_view rest = line.substr(kJoin.size());
  JoinRequest request;
  const auto protocol = number(take_word(rest));
  request.version = take_word(rest);
  const std::string_view rank = take_word(rest);
  request.rank = number(rank);
  const auto nodes = number(rest);
  if (!protocol || request.version.empty() || (!request.rank && rank != "-") || !nodes) return foreign(line);
  request.protocol = *protocol;
  request.nodes = *nodes;
  return request;
}

std::string answer_line(const JoinAnswer& answer) {
  DDP_REQUIRE(!answer.rank || (*answer.rank >= 0 && !answer.job_id.empty()), *answer.rank, answer.job_id);
  if (answer.rank) return std::string(kSlot) + std::to_string(*answer.rank) + ' ' + answer.job_id + '\n';
  std::string line(kRefused);
  for (const auto& [refusal, word] : kWords) {
    if (refusal == answer.refusal) line += word;
  }
  return line + ' ' + one_line(answer.text).substr(0, kMaxText) + '\n';
}

Result<JoinAnswer> parse_answer(std::string_view line) {
  JoinAnswer answer;
  if (line.starts_with(kSlot)) {
    std::string_view rest = line.substr(kSlot.size());
    answer.rank = number(take_word(rest));
    answer.job_id = one_line(rest);
    if (!answer.rank || rest.empty()) return foreign(line);
    return answer;
  }
  if (!line.starts_with(kRefused)) return foreign(line);
  std::string_view rest = line.substr(kRefused.size());
  const std::string_view word = take_word(rest);
  answer.text = one_line(rest);
  for (const auto& [refusal, name] : kWords) {
    if (name != word) continue;
    answer.refusal = refusal;
    return answer;
  }
  return foreign(line);
}

std::string join_host_name(int rank) {
  return std::string(kNode) + std::to_string(rank);
}

std::optional<int> join_host_rank(std::string_view name) {
  if (!name.starts_with(kNode)) return std::nullopt;
  return number(name.substr(kNode.size()));
}

}  // namespace ddp::launcher
