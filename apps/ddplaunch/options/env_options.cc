#include "apps/ddplaunch/options/job_options.h"

#include <cerrno>
#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "apps/ddplaunch/options/option_readers.h"
#include "base/text.h"
#include "launcher/job/worker_env.h"

namespace ddp {

namespace {

/// A file that is no text, such as a program, has an error in each line.
constexpr std::size_t kMostLineErrors = 5;

// Says that the user's value of a variable is lost. `where` names the source of the value.
void note_lost_value(const std::string& where, std::string_view name, Diagnostics& diagnostics) {
  if (!launcher::is_worker_fact(name)) return;
  const std::string_view instead = name == "MASTER_ADDR"   ? "; choose it with --network"
                                   : name == "MASTER_PORT" ? "; choose it with --master-port"
                                                           : "";
  diagnostics.note("warning: ", where, name, " has no effect: ddplaunch sets this variable for each worker",
                   instead);
}

// Reads a value as the shell does in which DeepSpeed exports it: quotes, a backslash, ~, $NAME and ${NAME}.
// The node's environment is not known here, so `find` is asked, which returns nullptr for an unset variable.
// A blank does not end the value, since nobody means that.
class ShellValue {
 public:
  using Find = std::function<const std::string*(std::string_view name)>;
  ShellValue(std::string_view text, Find find) : text_(text), find_(std::move(find)) { read(); }

  std::string value;               ///< meaningless if `literal` is set
  std::vector<std::string> unset;  ///< names of unset variables, which count as empty
  std::string literal;             ///< why the shell's value is not known here; empty: it is `value`

 private:
  void read();
  void read_variable();
  void add(std::string_view name) {
    const std::string* found = find_(name);
    if (found != nullptr) value += *found;
    if (found == nullptr) unset.emplace_back(name);
  }
  char next() const { return at_ + 1 < text_.size() ? text_[at_ + 1] : '\0'; }

  std::string_view text_;
  Find find_;
  std::size_t at_ = 0;
};

void ShellValue::read() {
  char quote = '\0';
  for (; at_ < text_.size(); ++at_) {
    const char c = text_[at_];
    const bool word_begin = at_ == 0 || text_[at_ - 1] == ':';
    if (quote == '\'' ? c == quote : c == '"' || (c == '\'' && quote == '\0')) {
      quote = quote == '\0' ? c : '\0';
    } else if (quote == '\'') {
      value += c;
    } else if (c == '\\' && next() != '\0') {
      constexpr std::string_view kEscaped = "$`\"\\";
      if (quote == '"' && kEscaped.find(next()) == std::string_view::npos) value += c;
      value += text_[++at_];
    } else if (c == '`') {
      literal = "`…` runs a command";
    } else if (c == '$') {
      read_variable();
    } else if (c == '~' && quote == '\0' && word_begin &&
               (next() == '\0' || next() == '/' || next() == ':')) {
      add("HOME");
    } else if (c == '~' && quote == '\0' && word_begin) {
      literal = "~USER is the home of another account";
    } else {
      value += c;
    }
  }
  if (quote != '\0') literal = concat("the quote ", quote, " is not closed");
}

void ShellValue::read_variable() {
  const bool braces = next() == '{';
  const std::size_t begin = at_ + (braces ? 2 : 1);
  std::size_t end = begin;
  while (end < text_.size() && is_variable_name(text_.substr(begin, end + 1 - begin)))
    ++end;
  const std::string_view name = text_.substr(begin, end - begin);
  if (!name.empty() && (!braces || text_.substr(end, 1) == "}")) {
    add(name);
    at_ = braces ? end : end - 1;
  } else if (braces || next() == '(') {
    literal = braces ? "only ${NAME} is read, nothing else in ${…}" : "$(…) runs a command";
  } else {
    value += '$';
  }
}

// Sets the variable of a line in DeepSpeed's file.
void set_shell_value(std::string_view name, std::string_view text, const std::string& location,
                     const launcher::EnvVars& env, launcher::EnvVars& vars, Diagnostics& diagnostics) {
  text = text.substr(0, text.find_last_not_of(" \t") + 1);
  const ShellValue read(text, [&](std::string_view wanted) {
    const std::string* earlier = launcher::find_env(vars, wanted);
    return earlier != nullptr ? earlier : launcher::find_env(env, wanted);
  });
  const std::string whose = concat("warning: ", location, "the value of ", name);
  if (!read.literal.empty()) {
    diagnostics.note(whose, " stays as it is written: ", read.literal,
                     "; write the result, or use --setup 'export ", name, "=…'");
  } else if (!read.unset.empty()) {
    diagnostics.note(whose, " has an unset variable, which counts as empty: ", join(read.unset, ", "),
                     " (variables are those of this machine; --setup reads those of the node)");
  }
  launcher::set_env(vars, name, read.literal.empty() ? std::string_view(read.value) : text);
}

// Reads NAME=VALUE lines. Blank lines and lines that begin with '#' are skipped. The value is all text behind
// the '=', as in docker: no quotes, no expansion. With the environment `shell` it is read as DeepSpeed does.
// Only names go into messages.
void read_env_text(std::string_view text, const std::string& file, const launcher::EnvVars* shell,
                   launcher::EnvVars& vars, Diagnostics& diagnostics) {
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);
  if (text.starts_with("\xFF\xFE") || text.starts_with("\xFE\xFF"))
    return diagnostics.fail(file + ":1:1: this is UTF-16 text; save the file as UTF-8 or plain ASCII");
  const std::size_t errors_before = diagnostics.errors.size();
  int number = 0;
  for (std::string_view line : split_lines(text)) {
    ++number;
    if (diagnostics.errors.size() >= errors_before + kMostLineErrors)
      return diagnostics.fail(file + ": the rest is not read; is this a file of NAME=VALUE lines?");
    if (line.ends_with('\r')) line.remove_suffix(1);
    const std::size_t begin = line.find_first_not_of(" \t");
    if (begin == std::string_view::npos || line[begin] == '#') continue;
    line.remove_prefix(begin);
    const std::size_t equals = line.find('=');
    const std::string_view name = line.substr(0, equals);
    const std::string location = concat(file, ':', number, ':', begin + 1, ": ");
    if (line.starts_with("export ")) {
      diagnostics.fail(location + "this file is not read by a shell; write NAME=VALUE without export");
    } else if (equals == std::string_view::npos) {
      diagnostics.fail(location + "expected NAME=VALUE");
    } else if (!is_variable_name(name)) {
      diagnostics.fail(location + "the text before '=' is not the name of an environment variable");
    } else if (line.find('\0') != std::string_view::npos) {
      diagnostics.fail(location, "the value of ", name, " has a zero byte");
    } else {
      if (shell != nullptr) {
        set_shell_value(name, line.substr(equals + 1), location, *shell, vars, diagnostics);
      } else {
        launcher::set_env(vars, name, line.substr(equals + 1));
      }
      note_lost_value(location, name, diagnostics);
    }
  }
}

// Reads DeepSpeed's file: an unreadable file is an error, a missing one is not.
void read_deepspeed_env(const ProcessContext& context, launcher::EnvVars& vars, Diagnostics& diagnostics) {
  const std::string renamed = context.variable("DS_ENV_FILE"), home = context.variable("HOME");
  const std::string name = renamed.empty() ? ".deepspeed_env" : renamed;
  std::vector<std::string> paths;
  if (!home.empty()) paths.push_back(absolute_path(name, home));
  const std::string here = absolute_path(name, context.cwd);
  if (paths.empty() || paths.front() != here) paths.push_back(here);
  for (const std::string& path : paths) {
    auto text = context.read_file(path);
    if (text) {
      read_env_text(*text, path, &context.env, vars, diagnostics);
      diagnostics.note("environment variables of " + path + " are set for the workers");
    } else if (text.error().sys != ENOENT && text.error().sys != ENOTDIR) {
      diagnostics.fail(text.error().text);
    }
  }
}

}  // namespace

void read_env_options(JobOptions& options, const ProcessContext& context, Diagnostics& diagnostics) {
  launcher::JobSpec& spec = options.job.spec;
  launcher::EnvVars vars = options.config.env;
  read_deepspeed_env(context, vars, diagnostics);
  for (const std::string& path : options.written.env_file) {
    auto text = context.read_file(path);
    if (text) {
      read_env_text(*text, path, nullptr, vars, diagnostics);
    } else {
      diagnostics.fail("--env-file " + text.error().text);
    }
  }
  auto given = launcher::explicit_env(context.env, options.written.env);
  if (!given) {
    const std::string why = given.error().text;
    for (const std::string_view line : split(why, '\n'))
      diagnostics.fail(line);
  } else {
    for (const auto& [name, value] : *given) {
      if (is_variable_name(name)) {
        launcher::set_env(vars, name, value);
        note_lost_value("--env ", name, diagnostics);
      } else {
        diagnostics.fail("--env: \"" + name + "\" is not the name of an environment variable");
      }
    }
    for (const std::string& name : launcher::node_bound_names(*given)) {
      if (hosts_used(spec) > 1)
        diagnostics.note("--env ", name,
                         " goes to all nodes alike, though its value usually belongs to one machine");
    }
  }
  // In per-node mode each node has its own environment already.
  if (!spec.per_node) spec.env = launcher::forwarded_env(context.env, false);
  spec.local_env = launcher::forwarded_env(context.env, true);
  spec.explicit_env = std::move(vars);
  // A node checks the whole with its own limits. What Linux never passes would not even fit into the order.
  const auto fits = launcher::check_exec_size(spec.explicit_env, spec.command.argv, ErrorCode::kUsage,
                                              launcher::kMostExecTotal);
  if (!fits) diagnostics.fail(fits.error().text);
}

}  // namespace ddp
