#include "apps/ddplaunch/options/option_sources.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "apps/ddplaunch/options/command_line.h"
#include "apps/ddplaunch/options/job_options.h"
#include "apps/ddplaunch/options/option_files.h"
#include "base/text.h"
#include "launcher/job/worker_env.h"

namespace ddp {

namespace {

/// Options of one line cannot be used together.
constexpr std::array<std::array<std::string_view, 3>, 4> kAlternatives = {
    {{"--hostfile", "--host", "--hosts-from"},
     {"--include", "--exclude", ""},
     {"--nproc-per-node", "--ntasks", "-n"},
     {"--master-addr", "--rdzv-endpoint", ""}}};

const std::array<std::string_view, 3>* alternatives_of(std::string_view name) {
  for (const auto& names : kAlternatives) {
    if (std::find(names.begin(), names.end(), name) != names.end()) return &names;
  }
  return nullptr;
}

bool replaces(const GivenOption& stronger, const GivenOption& weaker, const OptionTable& table) {
  const auto* alternatives = alternatives_of(weaker.name);
  if (alternatives != nullptr && alternatives == alternatives_of(stronger.name)) return true;
  const Option* option = table.find(weaker.name);
  return option == table.find(stronger.name) && !option->repeats;
}

/// The value as --dry-run shows it.
std::string shown_value(const GivenOption& option) {
  if (option.name == "--setup") return "...";
  if (option.name == "--env") return option.value.substr(0, option.value.find('='));
  return option.value.empty() ? "''" : one_line(option.value);
}

}  // namespace

OptionSource option_source(const std::vector<std::string>& words, const OptionTable& table,
                           const std::string& origin) {
  OptionSource options;
  for (std::size_t i = 0; i < words.size(); ++i) {
    GivenOption& option = options.emplace_back(GivenOption{.name = words[i], .value = "", .origin = origin});
    if (table.takes_value(option.name)) option.value = words.at(++i);
  }
  return options;
}

OptionSource choose_options(const std::vector<OptionSource>& sources, const OptionTable& table) {
  OptionSource chosen;
  for (const OptionSource& source : sources) {
    OptionSource kept;
    std::copy_if(source.begin(), source.end(), std::back_inserter(kept), [&](const GivenOption& option) {
      return std::none_of(chosen.begin(), chosen.end(),
                          [&](const GivenOption& stronger) { return replaces(stronger, option, table); });
    });
    chosen.insert(chosen.begin(), kept.begin(), kept.end());
  }
  std::erase_if(chosen, [](const GivenOption& option) { return option.is_false; });
  return chosen;
}

std::vector<std::string> option_words(const OptionSource& options, const OptionTable& table) {
  std::vector<std::string> words;
  for (const GivenOption& option : options) {
    words.push_back(option.name);
    if (table.takes_value(option.name)) words.push_back(option.value);
  }
  return words;
}

std::string last_value(const OptionSource& options, std::string_view name) {
  const auto found = std::find_if(options.rbegin(), options.rend(),
                                  [&](const GivenOption& option) { return option.name == name; });
  return found == options.rend() ? std::string() : found->value;
}

std::string origins_text(const OptionSource& options, const OptionTable& table, const std::string& worker) {
  TextTable rows;
  for (const GivenOption& option : options) {
    if (option.name == "--dry-run") continue;
    const std::string value = table.takes_value(option.name) ? ' ' + shown_value(option) : "";
    rows.add({"  " + option.name + value, option.origin});
  }
  if (!worker.empty()) rows.add({"  worker", worker});
  if (rows.empty()) return "\nall options have their defaults\n";
  return "\noptions, and where they are given\n" + rows.text() + "all others have their defaults\n";
}

namespace {

constexpr char kCommandLine[] = "command line";

/// Returns the path of the user's settings, or an empty text if the environment names no directory.
std::string settings_path(const launcher::EnvVars& env) {
  const std::string* config = launcher::find_env(env, "XDG_CONFIG_HOME");
  if (config != nullptr && config->starts_with('/')) return *config + "/ddplaunch/config.yaml";
  const std::string* home = launcher::find_env(env, "HOME");
  return home != nullptr && home->starts_with('/') ? *home + "/.config/ddplaunch/config.yaml" : "";
}

/// A missing file is none. An unreadable one is noted, since a job can start without the settings. Their
/// --launcher is for jobs that list hosts; another job may be local, or be started by a scheduler.
OptionSource read_settings(const ProcessContext& context, const OptionSource& of_job,
                           Diagnostics& diagnostics) {
  const std::string path = settings_path(context.env);
  if (path.empty()) return {};
  const auto text = context.read_own_file(path);
  if (text) {
    OptionSource options = read_option_file(*text, path, OptionFileKind::kSettings, diagnostics).options;
    for (GivenOption& option : options)
      option.in_settings = true;
    const bool lists_hosts = std::any_of(of_job.begin(), of_job.end(), [](const GivenOption& option) {
      return option.name == "--hostfile" || option.name == "--host" || option.name == "--hosts-from";
    });
    if (!lists_hosts)
      std::erase_if(options, [](const GivenOption& option) { return option.name == "--launcher"; });
    return options;
  }
  if (text.error().sys != ENOENT && text.error().sys != ENOTDIR)
    diagnostics.note("settings ignored: " + text.error().text);
  return {};
}

/// Reads the job file, and takes its worker if the command line has none. With another worker, the file's
/// --module and --no-python do not apply.
OptionSource read_job_file(const std::string& path, const ProcessContext& context, CommandLine& line,
                           Diagnostics& diagnostics) {
  if (path.empty()) return {};
  const bool has_worker = !line.worker.empty();
  const auto text = context.read_file(path);
  const std::size_t errors_before = diagnostics.errors.size();
  OptionFile file;
  if (text) {
    file = read_option_file(*text, path, OptionFileKind::kJob, diagnostics);
  } else {
    diagnostics.fail("job file " + text.error().text);
  }
  if (has_worker) {
    std::erase_if(file.options, [](const GivenOption& option) {
      return option.name == "--module" || option.name == "--no-python";
    });
    return std::move(file.options);
  }
  line.worker = std::move(file.worker);
  line.worker_origin = std::move(file.worker_origin);
  line.separated = true;  // nobody takes the words of a file for options of ddplaunch
  // Then a missing worker may be a consequence.
  if (diagnostics.errors.size() > errors_before) line.scanned_all = false;
  return std::move(file.options);
}

/// Reads torchrun's variables for options that no stronger source gives.
OptionSource read_variables(const ProcessContext& context, const OptionSource& stronger, CommandLine& line,
                            const OptionTable& table, Diagnostics& diagnostics) {
  std::vector<std::string> given = line.given;
  for (const GivenOption& option : stronger)
    given.push_back(option.name);
  const bool alone = last_value(stronger, "--launcher") == "local";
  const PetOptions pet = read_pet_options(context.env, given, alone, diagnostics);
  if (pet.words.empty()) return {};
  diagnostics.note(pet_text(pet));
  diagnostics.advice.push_back(pet_text(pet));
  OptionSource options;
  for (std::size_t i = 0; i < pet.words.size(); ++i) {
    const CommandLine scanned = scan_command_line({pet.words[i]}, table, diagnostics);
    for (GivenOption& option : option_source(scanned.words, table, pet.variables[i]))
      options.push_back(std::move(option));
    line.given.insert(line.given.end(), scanned.given.begin(), scanned.given.end());
  }
  return options;
}

/// Reads the file of --accelerate-config.
OptionSource read_accelerate_file(const std::string& path, const ProcessContext& context, JobOptions& options,
                                  Diagnostics& diagnostics) {
  if (path.empty()) return {};
  const auto text = context.read_file(path);
  if (!text) {
    diagnostics.fail("--accelerate-config " + text.error().text);
    return {};
  }
  options.config = read_accelerate_config(*text, path, diagnostics);
  const CommandLine scanned = scan_command_line(options.config.words, options.table, diagnostics);
  return option_source(scanned.words, options.table, path);
}

}  // namespace

CommandLine read_sources(const std::vector<std::string>& args, const ProcessContext& context,
                         JobOptions& options, Diagnostics& diagnostics) {
  CommandLine line = scan_command_line(args, options.table, diagnostics);
  OptionSource typed = option_source(line.words, options.table, kCommandLine);
  for (const std::string& name : line.off)
    typed.push_back({.name = name, .value = "", .origin = kCommandLine, .is_false = true});
  const OptionSource job = read_job_file(last_value(typed, "--job-file"), context, line, diagnostics);
  const OptionSource named = choose_options({typed, job}, options.table);
  const OptionSource variables = read_variables(context, named, line, options.table, diagnostics);
  const OptionSource accelerate =
      read_accelerate_file(last_value(named, "--accelerate-config"), context, options, diagnostics);
  const OptionSource settings =
      read_settings(context, choose_options({named, variables, accelerate}, options.table), diagnostics);
  // From the sources themselves, since the earlier results lack the flags that are switched off.
  options.sources = choose_options({typed, job, variables, accelerate, settings}, options.table);
  for (const std::string& error : options.table.fill(option_words(options.sources, options.table)))
    diagnostics.fail(error);
  return line;
}

}  // namespace ddp
