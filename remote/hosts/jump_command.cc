#include "remote/hosts/jump_command.h"

#include <algorithm>

#include "remote/hosts/shell_quote.h"

namespace ddp::remote {
namespace {

struct Jump {
  std::string user;
  std::string host;
  std::string port;
};

/// "user@host:port", "ssh://user@[::1]:22"; a bare address with several colons has no port.
Jump parse_jump(std::string_view text) {
  if (text.substr(0, 6) == "ssh://") text.remove_prefix(6);
  Jump jump;
  if (const std::size_t at = text.rfind('@'); at != std::string_view::npos) {
    jump.user = text.substr(0, at);
    text.remove_prefix(at + 1);
  }
  if (!text.empty() && text.front() == '[') {
    const std::size_t end = text.find(']');
    jump.host = text.substr(1, end == std::string_view::npos ? end : end - 1);
    text.remove_prefix(std::min(end == std::string_view::npos ? end : end + 1, text.size()));
    if (!text.empty() && text.front() == ':') jump.port = text.substr(1);
  } else if (std::count(text.begin(), text.end(), ':') == 1) {
    jump.host = text.substr(0, text.find(':'));
    jump.port = text.substr(text.find(':') + 1);
  } else {
    jump.host = text;
  }
  return jump;
}

}  // namespace

std::string without_tokens(std::string_view text) {
  std::string plain;
  for (char c : text)
    plain += c == '%' ? std::string("%%") : std::string(1, c);
  return plain;
}

Result<std::string> jump_command(const std::vector<std::string>& ssh, std::string_view jumps) {
  const std::size_t comma = jumps.rfind(',');
  const Jump last = parse_jump(comma == std::string_view::npos ? jumps : jumps.substr(comma + 1));
  if (last.host.empty()) return Error{ErrorCode::kUsage, "a ProxyJump without a host", 0};
  std::vector<std::string> words = ssh;
  if (comma != std::string_view::npos) {
    auto before = jump_command(ssh, jumps.substr(0, comma));
    if (!before) return before.error();
    words.insert(words.end(), {"-o", "ProxyCommand=" + *before});
  }
  if (!last.user.empty()) words.insert(words.end(), {"-l", last.user});
  if (!last.port.empty()) words.insert(words.end(), {"-p", last.port});
  for (std::string& word : words)
    word = without_tokens(word);
  words.insert(words.end(), {"-W", "[%h]:%p", "--", without_tokens(last.host)});
  return shell_quote(words);
}

}  // namespace ddp::remote
