#include "launcher/agent/check_interpreter.h"

#include <unistd.h>

#include <array>
#include <cerrno>
#include <fstream>
#include <optional>
#include <string_view>

#include "base/find_program.h"
#include "base/text.h"

namespace ddp::launcher {
namespace {

/// The kernel reads no more of a first line (BINPRM_BUF_SIZE).
constexpr std::size_t kKernelReads = 256;

std::string shebang_line(const std::string& file) {
  std::array<char, kKernelReads> head{};
  std::ifstream in(file, std::ios::binary);
  in.read(head.data(), head.size());
  const std::string_view text(head.data(), static_cast<std::size_t>(in.gcount()));
  return std::string(text.substr(0, text.find('\n')));
}

std::string without_blanks(const std::string& text) {
  const std::size_t from = text.find_first_not_of(" \t");
  if (from == std::string::npos) return {};
  return text.substr(from, text.find_last_not_of(" \t") + 1 - from);
}

/// The program that env(1) searches for; empty if that is not easily known. Without -S, the kernel passes
/// everything after env as one word.
std::string env_program(const std::string& argument) {
  if (argument.find('=') != std::string::npos) return {};
  if (!argument.starts_with("-S")) return argument.starts_with('-') ? std::string() : argument;
  const std::string words = without_blanks(argument.substr(2));
  return words.starts_with('-') ? std::string() : words.substr(0, words.find_first_of(" \t"));
}

}  // namespace

std::string interpreter_trouble(const std::string& program, const EnvVars& env, const std::string& cwd) {
  const std::string line = shebang_line(program);
  if (!line.starts_with("#!")) return {};
  const std::string words = without_blanks(line.substr(2));
  const std::size_t end = words.find_first_of(" \t");
  const std::string interpreter = words.substr(0, end);
  if (interpreter.empty()) return {};
  const std::string file = interpreter.starts_with('/') ? interpreter : cwd + '/' + interpreter;
  if (::access(file.c_str(), F_OK) != 0) return exec_error(ENOENT, program, cwd).text;

  if (!file.ends_with("/env") || end == std::string::npos) return {};
  const std::string wanted = env_program(without_blanks(words.substr(end)));
  if (wanted.empty()) return {};
  if (find_program(wanted, path_in(env), cwd)) return {};
  std::string text =
      "execute " + program + ": its first line asks env for '" + wanted + "', which is not in PATH";
  if (wanted.ends_with('\r'))
    text += ": the line has a Windows line ending; save the file with Unix line endings";
  else if (wanted.find(' ') != std::string::npos)
    text += " (env takes the rest of the line as one word; use env -S)";
  return one_line(text);
}

}  // namespace ddp::launcher
