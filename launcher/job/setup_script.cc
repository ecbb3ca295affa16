#include "launcher/job/setup_script.h"

#include <algorithm>
#include <array>
#include <cctype>

#include "base/result.h"
#include "base/text.h"

namespace ddp::launcher {
namespace {

/// Variables of the shell itself, which it would refuse to set or would obey as settings.
constexpr std::array<std::string_view, 16> kOfTheShell = {
    "BASHOPTS", "BASH_VERSINFO", "DIRSTACK", "EUID", "FUNCNAME", "GROUPS",    "HISTCMD", "IFS",
    "LINENO",   "OPTARG",        "OPTIND",   "PPID", "RANDOM",   "SHELLOPTS", "SECONDS", "UID"};
/// Variables that a shell sets for each program that it starts, and for its own directory.
constexpr std::array<std::string_view, 4> kOfThisShell = {"_", "OLDPWD", "PWD", "SHLVL"};

template <std::size_t N>
bool among(const std::array<std::string_view, N>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

bool passes_a_shell(std::string_view name) {
  const bool word = std::all_of(name.begin(), name.end(), [](unsigned char c) {
    return (c < 0x80 && std::isalnum(c) != 0) || c == '_';
  });
  return word && !name.empty() && std::isdigit(static_cast<unsigned char>(name.front())) == 0 &&
         !among(kOfTheShell, name) && !among(kOfThisShell, name);
}

std::string shell_word(std::string_view value) {
  std::string text = "'";
  for (const char c : value)
    text += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return text + '\'';
}

void add_export(std::string& script, std::string_view name, std::string_view value) {
  script += "export " + std::string(name) + '=' + shell_word(value) + '\n';
}

}  // namespace

std::string setup_prelude(const EnvVars& forwarded, const EnvVars& explicit_vars) {
  EnvVars vars = forwarded;
  for (const auto& [name, value] : explicit_vars)
    set_env(vars, name, value);
  // In the C locale every byte is a character, so that no value can hide its closing quote. LC_ALL is
  // restored after the values; one of them may set it again.
  std::string script = "ddp_lc=${LC_ALL+x}${LC_ALL-}\nexport LC_ALL=C\n";
  for (const auto& [name, value] : vars) {
    if (name == "LC_ALL" || (name == "PATH" && !find_env(explicit_vars, "PATH"))) continue;
    if (passes_a_shell(name)) add_export(script, name, value);
  }
  if (const std::string* path = find_env(forwarded, "PATH"); path && !find_env(explicit_vars, "PATH")) {
    script += "ddp_path=$PATH\n";
    add_export(script, "PATH", *path);
    script +=
        "ddp_ifs=$IFS\nset -f\nIFS=:\n"
        "for ddp_d in $ddp_path; do\n"
        "  case \":$PATH:\" in *\":$ddp_d:\"*) ;; *) PATH=$PATH:$ddp_d ;; esac\n"
        "done\n"
        "IFS=$ddp_ifs\nset +f\nunset ddp_path ddp_ifs ddp_d\n";
  }
  if (const std::string* locale = find_env(vars, "LC_ALL")) {
    add_export(script, "LC_ALL", *locale);
  } else {
    script += "case $ddp_lc in x*) LC_ALL=${ddp_lc#x} ;; *) unset LC_ALL ;; esac\n";
  }
  return script + "unset ddp_lc\n";
}

std::string setup_command(std::size_t scripts, int first_fd) {
  // Uses the builtin printf, because PATH is set by the profile.
  const std::string mark = "command printf . >&" + std::to_string(first_fd) + '\n';
  std::string words = mark;
  for (std::size_t i = 0; i <= scripts; ++i) {
    // In `. FILE && ...` or `if . FILE` the shell would ignore `set -e` within the file.
    words += ". /proc/self/fd/" + std::to_string(first_fd + 1 + static_cast<int>(i)) +
             "\ncase $? in 0) ;; *) exit $? ;; esac\n" + mark;
  }
  return words + "command -p env -0 >&" + std::to_string(first_fd);
}

Result<EnvVars> setup_verdict(std::string_view dump, std::size_t scripts, const SetupEnd& end,
                              const EnvVars& before) {
  const std::size_t whole = scripts + 2;
  const std::size_t marks = std::min({dump.find_first_not_of('.'), dump.size(), whole});
  if (marks == 0) {
    return Error{
        ErrorCode::kRefused,
        "--setup did not start: the login shell that runs it " + end.how +
            " while it read the profile (/etc/profile, ~/.bash_profile, ~/.profile and the files that they "
            "read); run exec or exit there in interactive shells only" +
            end.last_lines};
  }
  std::string place;
  if (scripts > 1 && marks >= 2 && marks < whole)
    place = " in script " + std::to_string(marks - 1) + " of " + std::to_string(scripts);
  if (!end.success)
    return Error{ErrorCode::kRefused, "--setup failed: its shell " + end.how + place + end.last_lines};
  if (marks < whole) {
    return Error{ErrorCode::kRefused, "--setup ended its shell (exit 0)" + place +
                                          ", so its variables are lost; remove the exit or exec"};
  }
  return setup_result(dump.substr(whole), before);
}

EnvVars setup_result(std::string_view dump, const EnvVars& before) {
  EnvVars vars;
  while (!dump.empty()) {
    const std::size_t end = std::min(dump.find('\0'), dump.size());
    const std::string_view entry = dump.substr(0, end);
    dump.remove_prefix(std::min(end + 1, dump.size()));
    const std::size_t equals = entry.find('=');
    if (equals == 0 || equals == std::string_view::npos) continue;
    const std::string_view name = entry.substr(0, equals);
    if (!among(kOfThisShell, name) && !among(kOfTheShell, name))
      vars.emplace_back(name, entry.substr(equals + 1));
  }
  for (const auto& [name, value] : before) {
    if (!passes_a_shell(name) && !name.starts_with("BASH_FUNC_")) set_env(vars, name, value);
  }
  return vars;
}

void SetupOutput::finish_line() {
  if (open_.ends_with('\r')) open_.pop_back();
  // An error message of a shell: the path of the script is useless to a reader, but "line 2: " is not.
  const std::size_t colon = open_.find(": ");
  if (open_.starts_with("/proc/self/fd/") && colon != std::string::npos) open_.erase(0, colon + 2);
  DDP_REQUIRE(open_.size() <= kLongestLine + 1, open_.size());
  const bool cut = open_.size() > kLongestLine;
  open_.resize(std::min(open_.size(), kLongestLine));
  open_ = replace_unsafe(open_);
  if (cut) open_ += "...";
  ++count_;
  if (count_ <= kMostLines) line_(open_);
  if (count_ == kMostLines + 1)
    line_("(more than " + std::to_string(kMostLines) + " lines; the rest is not shown)");
  last_.push_back(std::move(open_));
  if (last_.size() > kKept) last_.pop_front();
  open_.clear();
}

void SetupOutput::feed(std::string_view bytes) {
  while (!bytes.empty()) {
    const std::size_t newline = bytes.find('\n');
    // One byte more than is shown indicates a cut line; its rest is not kept.
    const std::size_t room = kLongestLine + 1 - std::min(open_.size(), kLongestLine + 1);
    open_ += bytes.substr(0, newline).substr(0, room);
    if (newline == std::string_view::npos) return;
    finish_line();
    bytes.remove_prefix(newline + 1);
  }
}

void SetupOutput::end() {
  if (!open_.empty()) finish_line();
}

std::string SetupOutput::last_lines() const {
  if (last_.empty()) return "; it printed nothing";
  std::string text = "; its last lines:";
  for (const std::string& line : last_)
    text += "\n  " + line;
  return text;
}

}  // namespace ddp::launcher
