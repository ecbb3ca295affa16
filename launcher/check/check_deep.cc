#include "launcher/check/check_deep.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include <nlohmann/json.hpp>

namespace ddp::launcher {
namespace {

using Json = nlohmann::json;
using Severity = CheckDiagnostic::Severity;

constexpr std::string_view kSchema = "ddp-train-record/1";

std::string use_of(DeepTest test) {
  return test == DeepTest::kHealth ? "health" : "bench";
}

const char* item_of(DeepTest test) {
  return test == DeepTest::kHealth ? "health" : "collectives";
}

std::vector<std::string> trainer_options(const WorkerCommand& command, DeepTest test) {
  const std::string first = command.argv.empty() ? "" : command.argv.front();
  if (command.kind == WorkerCommand::Kind::kTrain && (first == use_of(test) || first == "--" + use_of(test)))
    return command.argv;
  if (test == DeepTest::kHealth) return {"health"};
  return {"bench", "allreduce", "-b", "64K", "-e", "16M", "-f", "4", "-n", "10", "-w", "2"};
}

/// The trainer's record in `output`; unset if no line holds one.
std::optional<Json> record_of(const std::string& output) {
  for (std::size_t begin = 0; begin < output.size();) {
    const std::size_t end = std::min(output.find('\n', begin), output.size());
    const std::string_view line(output.data() + begin, end - begin);
    begin = end + 1;
    if (!line.starts_with('{')) continue;
    Json json = Json::parse(line, nullptr, false);
    if (json.is_object() && json.value("schema", "") == kSchema && json.contains("passed")) return json;
  }
  return std::nullopt;
}

/// Returns ddplaunch's last line on stderr, and the last one of a worker behind it.
std::string last_lines(const std::string& text) {
  std::string own;
  std::string worker;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::string line = text.substr(begin, end - begin);
    begin = end + 1;
    if (line.empty() || line.starts_with(' ')) continue;  // a report is indented
    (line.starts_with("ddplaunch: ") ? own : worker) = line;
  }
  return own + (own.empty() || worker.empty() ? "" : "; ") + worker;
}

std::string advice_of(const std::string& item) {
  static const std::map<std::string, std::string> kAdvice = {
      {"gemm", "exclude the host with --exclude; its processor, GPU or power is faulty"},
      {"memory", "exclude the host with --exclude, and have its memory tested"},
      {"ecc", "have the GPU's memory tested"},
      {"xid", "find the Xid in NVIDIA's list, and read the kernel log of that host"},
      {"pair", "check cables, network card and MTU of both hosts"},
      {"sum", "exclude the host with --exclude; its memory or network is faulty"},
      {"slow", "check other load, power settings and cooling of that host"},
      {"throttle", "check its cooling and power"}};
  const auto found = kAdvice.find(item);
  return found == kAdvice.end() ? "" : found->second;
}

/// The node on which a rank ran; empty if there is no plan.
std::vector<std::size_t> nodes_of(const CheckResult& result, int rank) {
  if (!result.plan || !*result.plan) return {};
  const auto& nodes = (*result.plan)->nodes;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    if (rank >= nodes[i].first_rank && rank < nodes[i].first_rank + nodes[i].local_world_size) return {i};
  }
  return {};
}

CheckDiagnostic health_finding(const CheckResult& result, const Json& fields) {
  CheckDiagnostic diagnostic;
  const int rank = fields.value("rank", 0);
  diagnostic.level = fields.value("level", "") == "warning" ? Severity::kWarning : Severity::kError;
  diagnostic.item = item_of(DeepTest::kHealth);
  diagnostic.nodes = nodes_of(result, rank);
  diagnostic.text =
      "rank " + std::to_string(rank) + ", " + fields.value("device", "?") + ": " + fields.value("text", "?");
  diagnostic.advice = advice_of(fields.value("item", ""));
  return diagnostic;
}

}  // namespace

JobSpec deep_job(const JobSpec& spec, DeepTest test, const std::string& job_dir,
                 const std::string& min_busbw) {
  JobSpec job = spec;
  job.command = {WorkerCommand::Kind::kTrain, trainer_options(spec.command, test), ""};
  // Use stdout, which arrives from every host; a file of rank 0 would stay on that host.
  job.command.argv.insert(job.command.argv.end(), {"--json", "/dev/stdout"});
  if (test == DeepTest::kCollectives && !min_busbw.empty())
    job.command.argv.insert(job.command.argv.end(), {"--min-busbw", min_busbw});
  job.job_dir = job_dir;
  job.fallback_job_dir.clear();
  job.report_path.clear();
  job.hosts.resize(hosts_used(spec));
  if (spec.spares > 0)
    job.hosts.resize(job.hosts.size() -
                     std::min(job.hosts.size() - 1, static_cast<std::size_t>(spec.spares)));
  job.min_nodes = job.max_nodes = job.spares = job.max_restarts = 0;
  job.hang_timeout = std::chrono::milliseconds(0);
  job.stdin_to_rank0 = false;
  job.output = OutputOptions();
  job.output.label.clear();
  job.output.label_on = false;
  job.output.bars = Bars::kOff;
  job.output.console = ConsolePolicy::kBlock;
  job.quiet = true;
  return job;
}

std::vector<CheckDiagnostic> deep_diagnostics(const CheckResult& result, const DeepRun& run) {
  const std::string name = "train " + use_of(run.test);
  std::vector<CheckDiagnostic> diagnostics;
  const std::optional<Json> record = record_of(run.output);
  if (!record) {
    const std::string why = last_lines(run.errors);
    diagnostics.push_back({Severity::kError,
                           item_of(run.test),
                           {},
                           name + " gave no result and ended with exit code " +
                               std::to_string(run.exit_code) + (why.empty() ? "" : ": " + why),
                           "run it directly on these hosts to see its full output"});
    return diagnostics;
  }
  for (const Json& fields : record->value("findings", Json::array())) {
    if (fields.is_object()) diagnostics.push_back(health_finding(result, fields));
  }
  const bool passed = record->value("passed", false) && run.exit_code == 0;
  const bool fields =
      std::any_of(diagnostics.begin(), diagnostics.end(),
                  [](const CheckDiagnostic& diagnostic) { return diagnostic.level == Severity::kError; });
  if (passed || fields) return diagnostics;
  const std::string fault = record->value("fault", "");
  const std::string last = last_lines(run.errors);
  diagnostics.push_back(
      {Severity::kError,
       item_of(run.test),
       {},
       !fault.empty() ? fault
                      : name + " ended with exit code " + std::to_string(run.exit_code) +
                            (last.empty() ? "" : ": " + last),
       run.test == DeepTest::kCollectives ? "train bench pairs names the hosts that are slow" : ""});
  return diagnostics;
}

std::string deep_table(const DeepRun& run) {
  std::string table;
  for (std::size_t begin = 0; begin < run.output.size();) {
    const std::size_t end = std::min(run.output.find('\n', begin), run.output.size());
    if (run.output[begin] != '{') table += run.output.substr(begin, end - begin) + '\n';
    begin = end + 1;
  }
  return table;
}

bool deep_has_result(const DeepRun& run) {
  return record_of(run.output).has_value();
}

void add_diagnostics(std::vector<CheckDiagnostic>& all, std::vector<CheckDiagnostic> more) {
  std::move(more.begin(), more.end(), std::back_inserter(all));
  std::stable_sort(all.begin(), all.end(), [](const CheckDiagnostic& a, const CheckDiagnostic& b) {
    return a.level == Severity::kError && b.level != Severity::kError;
  });
}

}  // namespace ddp::launcher
