#include "remote/hosts/shell_command.h"

#include <algorithm>
#include <cctype>
#include <cstddef>

#include "base/text.h"

namespace ddp::remote {
namespace {

bool is_plain(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '-' || c == '.' || c == '/' ||
         c == ':' || c == ',' || c == '+';
}

// '=' in a first word is an assignment in sh, '@' is a command of csh, '%' names a job. They need no quotes
// only inside a word, and only after the first word.
bool needs_no_quotes(std::string_view word, bool first) {
  if (word.empty()) return false;
  for (std::size_t i = 0; i < word.size(); ++i) {
    const char c = word[i];
    const bool inner = !first && i > 0 && (c == '=' || c == '@' || c == '%');
    if (!is_plain(c) && !inner) return false;
  }
  return true;
}

// In all of these shells single quotes protect all but three characters. These stand outside the quotes
// behind a backslash: the quote itself; '!', which csh expands even inside quotes; and the backslash, which
// fish interprets inside quotes and sh does not.
std::string quote_word(std::string_view word) {
  if (word.empty()) return "''";
  std::string text;
  bool open = false;
  for (const char c : word) {
    const bool outside = c == '\'' || c == '!' || c == '\\';
    if (outside == open) {
      text += '\'';
      open = !open;
    }
    if (outside) text += '\\';
    text += c;
  }
  if (open) text += '\'';
  return text;
}

Error usage(std::string text) {
  return Error{ErrorCode::kUsage, std::move(text)};
}

struct Jump {
  std::string user;
  HostPort place;
};

/// Parses "user@host:port" and "ssh://user@[::1]:22". A bare address with several colons has no port.
Jump parse_jump(std::string_view text) {
  if (text.starts_with("ssh://")) text.remove_prefix(6);
  Jump jump;
  if (const std::size_t at = text.rfind('@'); at != std::string_view::npos) {
    jump.user = text.substr(0, at);
    text.remove_prefix(at + 1);
  }
  jump.place = split_endpoint(text).value_or(HostPort{});
  return jump;
}

}  // namespace

Result<std::string> shell_quote(const std::vector<std::string>& argv) {
  if (argv.empty()) return usage("no command to run");
  std::string line;
  for (const std::string& word : argv) {
    if (word.find('\n') != std::string::npos)
      return usage("a remote command cannot contain a line feed: not every shell can quote it");
    if (word.find('\0') != std::string::npos) return usage("a remote command cannot contain a zero byte");
    const bool first = line.empty();
    if (!first) line += ' ';
    line += needs_no_quotes(word, first) ? word : quote_word(word);
  }
  return line;
}

Result<std::vector<std::string>> split_words(std::string_view text) {
  std::vector<std::string> words;
  bool in_word = false;
  char quote = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    const bool blank = c == ' ' || c == '\t' || c == '\n';
    if (quote == 0 && blank) {
      in_word = false;
      continue;
    }
    if (!in_word) {
      words.emplace_back();
      in_word = true;
    }
    if (quote == 0 && (c == '\'' || c == '"')) {
      quote = c;
    } else if (c == quote) {
      quote = 0;
    } else if (c == '\\' && quote != '\'') {
      if (i + 1 == text.size()) return usage("the \\ at the end has nothing to quote");
      const char next = text[i + 1];
      // In double quotes, sh's backslash quotes only these characters.
      const bool quotes = quote == 0 || next == '"' || next == '\\' || next == '$' || next == '`';
      if (quotes) ++i;
      if (text[i] == '\n') return usage("a word contains a line feed, which not every shell can quote");
      words.back() += text[i];
    } else if (c == '\n') {
      return usage("a word contains a line feed, which not every shell can quote");
    } else {
      words.back() += c;
    }
  }
  if (quote != 0) return usage(std::string("the quote ") + quote + " is not closed");
  return words;
}

std::string without_tokens(std::string_view text) {
  std::string plain;
  for (char c : text)
    plain += c == '%' ? std::string("%%") : std::string(1, c);
  return plain;
}

Result<std::string> jump_command(const std::vector<std::string>& ssh, std::string_view jumps) {
  const std::size_t comma = jumps.rfind(',');
  const Jump last = parse_jump(comma == std::string_view::npos ? jumps : jumps.substr(comma + 1));
  if (last.place.host.empty()) return Error{ErrorCode::kUsage, "ProxyJump has no host", 0};
  std::vector<std::string> words = ssh;
  if (comma != std::string_view::npos) {
    auto before = DDP_TRY(jump_command(ssh, jumps.substr(0, comma)));
    // Each level of ssh expands the % of its own ProxyCommand, so without_tokens() doubles them at each
    // level.
    words.insert(words.end(), {"-o", "ProxyCommand=" + before});
  }
  if (!last.user.empty()) words.insert(words.end(), {"-l", last.user});
  if (const std::string port = last.place.port.value_or(""); !port.empty())
    words.insert(words.end(), {"-p", port});
  for (std::string& word : words)
    word = without_tokens(word);
  // %h and %p stay for the ssh program that runs this command: the host behind the last jump.
  words.insert(words.end(), {"-W", "[%h]:%p", "--", without_tokens(last.place.host)});
  return shell_quote(words);
}

}  // namespace ddp::remote
