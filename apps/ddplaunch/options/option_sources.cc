#include "apps/ddplaunch/options/option_sources.h"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstddef>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "apps/ddplaunch/options/job_options.h"
#include "apps/options/option_table.h"
#include "base/text.h"
#include "remote/hosts/shell_command.h"

namespace ddp {

// ---- the command line

namespace {

using enum SupportStatus;
constexpr bool kValue = true;
constexpr bool kFlag = false;

// Options that only have another name here stand with that option (Option::other_names).
constexpr CompatibilityOption kCompatibilityOptions[] = {
    // torchrun and torch.distributed.launch.
    {"--use-env", kFlag, kNoted, "LOCAL_RANK is always in the environment"},
    {"--standalone", kFlag, kRenamed, "--launcher", "local"},
    {"--rdzv-backend", kValue, kNoted, "ddplaunch has one rendezvous of its own"},
    {"--rdzv-conf", kValue, kNoted, "--start-timeout is the only start limit"},
    {"--monitor-interval", kValue, kNoted, "the end of a worker is seen at once"},
    {"--start-method", kValue, kNoted, "workers are programs, never forked functions"},
    {"--run-path", kFlag, kNoted, "a .py file always runs in a process of its own"},
    {"--signals-to-handle", kValue, kNoted, "SIGINT, SIGTERM and SIGHUP stop the job"},
    {"--event-log-handler", kValue, kNoted, "there are no event plug-ins"},
    {"--role", kValue, kRefused, "all workers have the role default", "default"},

    // DeepSpeed.
    {"--no-local-rank", kFlag, kNoted, "LOCAL_RANK is in the environment, and never an argument"},
    {"--no-ssh-check", kFlag, kNoted, "there is no check besides the start itself"},
    {"--force-multi", kFlag, kNoted,
     "hosts are reached over SSH however many they are; localhost with --ssh-localhost"},
    {"--save-pid", kFlag, kNoted, "ddplaunch.log in --job-dir has all pids"},
    {"--log-level", kValue, kNoted, "--verbose and --quiet choose"},

    // accelerate launch.
    {"--multi-gpu", kFlag, kNoted, "--nproc-per-node says how many"},
    {"--mixed-precision", kValue, kRefused,
     "use --env ACCELERATE_MIXED_PRECISION=bf16, or --accelerate-config",
     "no --env ACCELERATE_MIXED_PRECISION=no"},
    {"--dynamo-backend", kValue, kRefused,
     "use --env ACCELERATE_DYNAMO_BACKEND=INDUCTOR, or --accelerate-config",
     "no --env ACCELERATE_DYNAMO_BACKEND=NO"},
    {"--cpu", kFlag, kRenamed, "--env", "ACCELERATE_USE_CPU=true"},
    {"--enable-cpu-affinity", kFlag, kRenamed, "--env", "ACCELERATE_CPU_AFFINITY=1"},
    {"--same-network", kFlag, kNoted, "nodes join over the connection that starts them"},
    {"--main-training-function", kValue, kNoted, "it is for TPUs"},
    {"--downcast-bf16", kFlag, kNoted, "it is for TPUs"},

    // mpirun and srun.
    {"-N", kValue, kRefused,
     "srun's -N is the number of nodes, here --nnodes; mpirun's -N is the number of workers on each node, "
     "here --nproc-per-node"},
    {"--allow-run-as-root", kFlag, kNoted, "root may run jobs"},
    {"--bind-to", kValue, kRefused, "bind in the worker's command: numactl -N 0 python …", "none"},
    {"-x", kValue, kRefused,
     "mpirun's -x is a variable, here --env NAME[=VALUE]; that of srun and pdsh are hosts to leave out, here "
     "--exclude LIST"},
    {"-p", kValue, kRefused,
     "srun's -p is the partition: give it to salloc or sbatch; ssh's -p is the port: use port= in the "
     "hostfile; --nproc-per-node is the number of workers on each node"},
    {"--mpi", kValue, kRefused, "there is no MPI in ddplaunch", "none"},
    {"--cpu-bind", kValue, kRefused, "bind in the worker's command: numactl -N 0 python …", "none"},
    {"--unbuffered", kFlag, kNoted, "python runs with -u, and lines are passed on at once"},
    {"--tag-output", kFlag, kNoted, "each line has its host and rank in front (--label)"},
};

}  // namespace

std::span<const CompatibilityOption> compatibility_options() {
  return kCompatibilityOptions;
}

CommandLine scan_command_line(const std::vector<std::string>& args, const OptionTable& table,
                              Diagnostics& diagnostics, const std::string& origin) {
  OptionScanner scanner("ddplaunch", args, table, kCompatibilityOptions,
                        "ddplaunch --help all lists all options; the worker's options follow the worker");
  CommandLine line;
  line.scanned_all = scanner.scan();
  if (line.scanned_all) {
    line.separated = scanner.next < args.size() && args[scanner.next] == "--";
    if (line.separated) ++scanner.next;
    line.worker.assign(args.begin() + static_cast<std::ptrdiff_t>(scanner.next), args.end());
  }
  line.read_all = scanner.errors.empty();
  line.given = scanner.given;
  const std::vector<std::string>& words = scanner.words;
  for (std::size_t i = 0; i < words.size(); ++i) {
    GivenOption& option =
        line.options.emplace_back(GivenOption{.name = words[i], .value = "", .origin = origin});
    if (table.takes_value(option.name)) option.value = words.at(++i);
  }
  for (const std::string& name : scanner.switched_off)
    line.options.push_back({.name = name, .value = "", .origin = origin, .is_false = true});
  for (const std::string& error : scanner.errors)
    diagnostics.fail(error);
  for (const std::string& note : scanner.notes)
    diagnostics.note(note);
  return line;
}

// ---- which source counts

namespace {

bool replaces(const GivenOption& stronger, const GivenOption& weaker, const OptionTable& table) {
  const Option& option = *table.find(weaker.name);
  const Option& other = *table.find(stronger.name);
  // Several --host of one source are one list.
  if (&option == &other) return !option.repeats || option.names == "--host";
  // Both name node 0, and may be used together if they agree.
  const auto names_master = [](const Option& one) {
    return one.names == "--master-addr" || one.names == "--rdzv-endpoint";
  };
  return !stronger.is_false && (option.excludes(other) || (names_master(option) && names_master(other)));
}

/// The value as --dry-run shows it.
std::string shown_value(const GivenOption& option) {
  if (option.name == "--setup") return "...";
  if (option.name == "--env") return option.value.substr(0, option.value.find('='));
  return option.value.empty() ? "''" : one_line(option.value);
}

}  // namespace

OptionSource choose_options(const std::vector<OptionSource>& sources, const OptionTable& table) {
  OptionSource chosen;
  for (const OptionSource& source : sources) {
    OptionSource kept;
    std::ranges::copy_if(source, std::back_inserter(kept), [&](const GivenOption& option) {
      return std::ranges::none_of(
          chosen, [&](const GivenOption& stronger) { return replaces(stronger, option, table); });
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

/// Returns the last value of an option, or an empty text.
std::string last_value(const OptionSource& options, std::string_view name) {
  const auto found = std::find_if(options.rbegin(), options.rend(),
                                  [&](const GivenOption& option) { return option.name == name; });
  return found == options.rend() ? std::string() : found->value;
}

/// A missing file is none. An unreadable one is noted, since a job can start without the settings. Their
/// --launcher is for jobs that list hosts; another job may be local, or be started by a scheduler.
OptionSource read_settings(const ProcessContext& context, const OptionSource& of_job,
                           Diagnostics& diagnostics) {
  const std::string directory = xdg_directory(context, "XDG_CONFIG_HOME", ".config");
  if (directory.empty()) return {};
  const std::string path = directory + "/config.yaml";
  const auto text = context.read_own_file(path);
  if (text) {
    OptionSource options = read_option_file(*text, path, OptionFileKind::kSettings, diagnostics).options;
    const bool lists_hosts = std::ranges::any_of(of_job, [](const GivenOption& option) {
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
  CommandLine file;
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

/// The options of torch/distributed/run.py with the actions `env` and `check_env`, by which torchrun also
/// takes them from a variable PET_<OPTION> (torch/distributed/argparse_util.py).
constexpr char kPetOptions[] =
    "--nnodes,--nproc-per-node,--rdzv-backend,--rdzv-endpoint,--rdzv-id,--rdzv-conf,--standalone,"
    "--max-restarts,--monitor-interval,--start-method,--event-log-handler,--role,--module,--no-python,"
    "--run-path,--log-dir,--redirects,--tee,--log-line-prefix-template,--local-ranks-filter,"
    "--duplicate-stdout-filters,--duplicate-stderr-filters,--node-rank,--master-addr,--master-port,"
    "--local-addr,--logs-specs,--numa-binding,--signals-to-handle,--shutdown-timeout,--virtual-local-rank";
/// Options of the command line that have the meaning of another one in kPetOptions.
constexpr std::pair<std::string_view, std::string_view> kSameMeaning[] = {
    {"--rdzv-endpoint", "--master-addr"},
    {"--master-addr", "--rdzv-endpoint"},
    {"--standalone", "--launcher"},
    {"--log-line-prefix-template", "--label"}};
/// Options by which the pods of a job are described to each other.
constexpr std::string_view kOfNodes[] = {"--nnodes", "--node-rank", "--master-addr", "--master-port"};

std::string variable_of(std::string_view option) {
  std::string name = "PET_";
  for (const char c : option.substr(2))
    name += c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return name;
}

/// Reads torchrun's variables for options that no stronger source gives. A flag's variable is a number, as in
/// torchrun. Empty variables count as unset, and with --launcher local those about other nodes as well.
OptionSource read_variables(const ProcessContext& context, const OptionSource& stronger, CommandLine& line,
                            const OptionTable& table, Diagnostics& diagnostics) {
  std::vector<std::string> given = line.given;
  for (const GivenOption& option : stronger)
    given.push_back(option.name);
  const auto is_given = [&](const std::string& name) {
    const Option* option = table.find(name);
    return std::ranges::any_of(given, [&](const std::string& other) {
      return other == name || (option != nullptr && table.find(other) == option) ||
             std::ranges::count(kSameMeaning, std::pair<std::string_view, std::string_view>{name, other}) > 0;
    });
  };
  const bool alone = last_value(stronger, "--launcher") == "local";
  const std::string nodes = context.variable("PET_NNODES");
  const bool only_node = nodes == "1" || nodes == "1:1";
  OptionSource options;
  std::vector<std::string> used;
  for (const std::string& name : split_names(kPetOptions)) {
    // A job's only pod needs no master address: the ranks meet at its own name.
    if (only_node && name == "--master-addr") continue;
    if (alone && std::ranges::count(kOfNodes, name) > 0) continue;
    const std::string variable = variable_of(name);
    const std::string value = context.variable(variable);
    if (value.empty() || is_given(name)) continue;
    const Option* const option = table.find(name);
    const auto* const other = std::ranges::find(kCompatibilityOptions, name, &CompatibilityOption::name);
    if (option == nullptr && other == std::end(kCompatibilityOptions)) {
      diagnostics.fail(variable + '=' + value + ": ddplaunch has no option like torchrun's " + name +
                       "; unset " + variable + " (docs/users/options.md says what to write instead)");
      continue;
    }
    const bool is_flag = option != nullptr ? !option->takes_value() : !other->takes_value;
    if (is_flag && !is_digits(value)) {
      diagnostics.fail(variable + '=' + value + ": give 1 for " + name +
                       ", or 0; torchrun expects a number as well");
      continue;
    }
    if (is_flag && value.find_first_not_of('0') == std::string::npos) continue;
    const CommandLine scanned =
        scan_command_line({is_flag ? name : name + '=' + value}, table, diagnostics, variable);
    options.insert(options.end(), scanned.options.begin(), scanned.options.end());
    line.given.insert(line.given.end(), scanned.given.begin(), scanned.given.end());
    used.push_back(variable);
  }
  if (used.empty()) return options;
  const std::string text = "options taken from the environment, as torchrun takes them: " + join(used, ", ");
  diagnostics.note(text);
  diagnostics.advice.push_back(text);
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
  return scan_command_line(options.config.words, options.table, diagnostics, path).options;
}

}  // namespace

void read_sources(const std::vector<std::string>& args, const ProcessContext& context, JobOptions& options,
                  Diagnostics& diagnostics) {
  CommandLine& line = options.line;
  line = scan_command_line(args, options.table, diagnostics);
  const OptionSource& typed = line.options;
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
}

namespace {

std::string location_text(const std::string& file, const YAML::Mark& mark) {
  return mark.is_null() ? file : concat(file, ':', mark.line + 1, ':', mark.column + 1);
}

}  // namespace

std::optional<bool> yaml_truth(const YAML::Node& node) {
  if (!node.IsScalar() || node.Tag() == "!") return std::nullopt;
  const std::string text = lower_case(node.Scalar());
  if (text == "true" || text == "yes" || text == "on") return true;
  if (text == "false" || text == "no" || text == "off") return false;
  return std::nullopt;
}

std::string yaml_location(const std::string& file, const YAML::Node& node) {
  return location_text(file, node.Mark());
}

void refuse_duplicate_keys(const std::string& file, const YAML::Node& map, Diagnostics& diagnostics) {
  std::map<std::string, int> lines;
  for (const auto& entry : map) {
    if (!entry.first.IsScalar()) continue;
    const int line = entry.first.Mark().line + 1;
    const auto [first, is_new] = lines.emplace(entry.first.Scalar(), line);
    if (!is_new)
      diagnostics.fail(yaml_location(file, entry.first), ": ", first->first,
                       " is given twice (first on line ", first->second, ')');
  }
}

std::optional<YAML::Node> read_yaml(const std::string& text, const std::string& file, const std::string& only,
                                    Diagnostics& diagnostics) {
  try {
    const std::vector<YAML::Node> documents = YAML::LoadAll(text);
    for (std::size_t i = 1; i < documents.size(); ++i) {
      if (documents[i].IsNull()) continue;
      diagnostics.fail(yaml_location(file, documents[i]), ": a second document begins here (after ---); ",
                       only);
      break;
    }
    return documents.empty() ? YAML::Node() : documents.front();
  } catch (const YAML::Exception& error) {
    diagnostics.fail(location_text(file, error.mark), ": it cannot be read as YAML: ", error.msg);
    return std::nullopt;
  }
}

namespace {

constexpr char kWorker[] = "worker";

class OptionFileReader {
 public:
  OptionFileReader(const std::string& path, OptionFileKind kind, Diagnostics& diagnostics)
      : path_(path), kind_(kind), diagnostics_(diagnostics), checked_("/") {}

  CommandLine read(const YAML::Node& root);

 private:
  void fail(const YAML::Node& node, const std::string& text) {
    diagnostics_.fail(yaml_location(path_, node), ": ", text);
  }
  void give(const Option& option, std::string value, bool is_false, const YAML::Node& place) {
    file_.options.push_back({.name = concat("--", name_in_file(option)),
                             .value = std::move(value),
                             .origin = yaml_location(path_, place),
                             .in_file = true,
                             .is_false = is_false,
                             .in_settings = kind_ == OptionFileKind::kSettings});
  }
  bool is_text(const YAML::Node& node, const std::string& name, const char* expected);
  void read_entry(const YAML::Node& key, const YAML::Node& value);
  void read_option(const Option& option, const std::string& name, const YAML::Node& value);
  void add(const Option& option, const YAML::Node& place, std::string value);
  void read_worker(const YAML::Node& value);
  void refuse_unknown(const YAML::Node& key, const std::string& name);

  const std::string& path_;
  OptionFileKind kind_;
  Diagnostics& diagnostics_;
  JobOptions checked_;  ///< reads each value, to find errors; nothing else uses its fields
  CommandLine file_;
};

bool OptionFileReader::is_text(const YAML::Node& node, const std::string& name, const char* expected) {
  if (!node.IsScalar() || node.IsNull()) return fail(node, name + " needs " + expected), false;
  if (node.Scalar().find('\0') == std::string::npos) return true;
  return fail(node, "a value cannot hold a zero byte"), false;
}

void OptionFileReader::add(const Option& option, const YAML::Node& place, std::string value) {
  const std::string name = concat("--", name_in_file(option));
  const std::string error = value.empty() && !option.takes_empty ? name + " has an empty value"
                                                                 : checked_.table.read_value(name, value);
  if (!error.empty()) return fail(place, error);
  give(option, std::move(value), false, place);
}

void OptionFileReader::read_option(const Option& option, const std::string& name, const YAML::Node& value) {
  if (!option.takes_value()) {
    const std::optional<bool> truth = yaml_truth(value);
    if (!truth) return fail(value, name + " must be true or false");
    return give(option, "", !*truth, value);
  }
  const std::string expected = "a value: " + option.value;
  if (option.repeats && value.IsSequence()) {
    for (const YAML::Node& item : value) {
      if (is_text(item, name, expected.c_str())) add(option, item, item.Scalar());
    }
  } else if (name == "env" && value.IsMap()) {
    refuse_duplicate_keys(path_, value, diagnostics_);
    for (const auto& variable : value) {
      if (!is_text(variable.first, name, "names of variables")) continue;
      const std::string& set = variable.first.Scalar();
      if (set.empty() || set.find('=') != std::string::npos) {
        fail(variable.first, "env: \"" + set + "\" is no name of a variable");
      } else if (variable.second.IsNull()) {
        fail(variable.first, "env " + set + " has no value; an empty one is ''");
      } else if (is_text(variable.second, "env " + set, "one value")) {
        add(option, variable.first, set + '=' + variable.second.Scalar());
      }
    }
  } else if (is_text(value, name, expected.c_str())) {
    add(option, value, value.Scalar());
  }
}

void OptionFileReader::read_worker(const YAML::Node& value) {
  constexpr char kExpected[] = "the words of a command line: [train.py, --lr, 0.1]";
  file_.worker_origin = yaml_location(path_, value);
  if (value.IsSequence() && value.size() > 0) {
    for (const YAML::Node& word : value) {
      if (is_text(word, kWorker, kExpected)) file_.worker.push_back(word.Scalar());
    }
    return;
  }
  if (!is_text(value, kWorker, kExpected)) return;
  auto words = remote::split_words(value.Scalar());
  if (!words) return fail(value, "worker: " + words.error().text);
  if (words->empty()) return fail(value, concat("worker needs ", kExpected));
  file_.worker = std::move(*words);
}

void OptionFileReader::refuse_unknown(const YAML::Node& key, const std::string& name) {
  std::vector<std::string_view> names;
  for (const OptionGroup& group : checked_.table.groups()) {
    for (const Option& option : group.options)
      if (belongs_in_file(option, kind_)) names.push_back(name_in_file(option));
  }
  if (kind_ == OptionFileKind::kJob) names.emplace_back(kWorker);
  const std::string_view meant =
      nearest_word(name.substr(std::min(name.find_first_not_of('-'), name.size())), names);
  fail(key, "unknown option \"" + name + '"' +
                (meant.empty() ? "; ddplaunch --help all lists all options"
                               : concat("; did you mean ", meant, '?')));
}

void OptionFileReader::read_entry(const YAML::Node& key, const YAML::Node& value) {
  const std::string name = key.IsScalar() ? key.Scalar() : "";
  // The parser's place of a missing value is behind the line.
  const auto fail_empty = [&] { fail(key, name + " has no value"); };
  if (name == kWorker && kind_ == OptionFileKind::kJob)
    return value.IsNull() ? fail_empty() : read_worker(value);
  const Option* const option = checked_.table.find("--" + name);
  if (option == nullptr || name_in_file(*option) != name) return refuse_unknown(key, name);
  if (belongs_in_file(*option, kind_))
    return value.IsNull() ? fail_empty() : read_option(*option, name, value);
  fail(key, name + (kind_ == OptionFileKind::kJob
                        ? " cannot be given in a file; give --" + name + " on the command line"
                        : " is an option of one job; give it on the command line or in a job file"));
}

CommandLine OptionFileReader::read(const YAML::Node& root) {
  if (root.IsNull()) return {};
  if (!root.IsMap()) {
    fail(root, "expected lines of OPTION: VALUE, such as nproc-per-node: 8");
    return {};
  }
  refuse_duplicate_keys(path_, root, diagnostics_);
  for (const auto& entry : root)
    read_entry(entry.first, entry.second);
  return std::move(file_);
}

}  // namespace

std::string_view name_in_file(const Option& option) {
  return std::string_view(option.names).substr(option.names.rfind("--") + 2);
}

bool belongs_in_file(const Option& option, OptionFileKind kind) {
  const std::string_view names = option.names;
  if (kind == OptionFileKind::kSettings) {
    const bool of_one_node = names == "--node-rank" || names == "--master-addr" || names == "--rdzv-endpoint";
    return option.group != "Hosts" && option.group != "Job" && !of_one_node;
  }
  return !names.ends_with("--help") && !names.ends_with("--version") && names != "--job-file";
}

CommandLine read_option_file(const std::string& text, const std::string& file, OptionFileKind kind,
                             Diagnostics& diagnostics) {
  const auto root = read_yaml(
      text, file, kind == OptionFileKind::kJob ? "a job file has only one" : "settings have only one",
      diagnostics);
  if (!root) return {};
  return OptionFileReader(file, kind, diagnostics).read(*root);
}

}  // namespace ddp
