#include "launcher/report/job_status.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string_view>

#include "base/program.h"
#include "base/text.h"
#include "launcher/report/exit_report.h"
#include "launcher/report/report_json.h"
#include "launcher/report/root_cause.h"

namespace ddp::launcher {
std::optional<std::uint64_t> JobStatus::NodeStatus::lowest_step() const {
  std::optional<std::uint64_t> lowest;
  for (const auto& report : reports)
    if (report) lowest = std::min(lowest.value_or(report->step), report->step);
  return lowest;
}

namespace {

constexpr std::size_t kStderrLines = 20;
constexpr std::size_t kStderrBytes = 500;  ///< of one line
constexpr std::size_t kExceptionBytes = 2'000;

double rounded(double value) {
  return std::round(value * 1000) / 1000;
}

/// What is known of the whole job; null: nothing.
OrderedJson usage_json(const JobUsage& usage) {
  if (usage.nodes == 0) return {};
  return {{"cpus", usage.cpus},
          {"cpu", rounded(usage.cpu)},
          {"memory", usage.memory},
          {"memory_used", usage.memory_used},
          {"network_in", usage.network_in},
          {"network_out", usage.network_out},
          {"infiniband_in", usage.infiniband_in},
          {"infiniband_out", usage.infiniband_out},
          {"disk_read", usage.disk_read},
          {"disk_written", usage.disk_written},
          {"gpus", usage.gpus},
          {"gpu_busy", rounded(usage.gpu_busy)},
          {"gpu_memory", usage.gpu_memory},
          {"gpu_memory_used", usage.gpu_memory_used},
          {"gpu_power_w", rounded(usage.gpu_power)}};
}

OrderedJson usage_json(const std::optional<rendezvous::NodeSample>& usage) {
  if (!usage) return {};
  OrderedJson json{{"cpus", usage->cpus},
                   {"cpu", rounded(static_cast<double>(usage->cpu_milli) / 1000)},
                   {"memory", usage->memory},
                   {"memory_used", usage->memory_used},
                   {"job_cpu", rounded(static_cast<double>(usage->job_cpu_milli) / 1000)},
                   {"job_memory", usage->job_memory},
                   {"network_in", usage->network_in},
                   {"network_out", usage->network_out},
                   {"infiniband_in", usage->infiniband_in},
                   {"infiniband_out", usage->infiniband_out},
                   {"disk_read", usage->disk_read},
                   {"disk_written", usage->disk_written},
                   {"gpus", OrderedJson::array()}};
  for (const rendezvous::GpuSample& gpu : usage->gpus)
    json["gpus"].push_back({{"index", gpu.index},
                            {"busy", gpu.busy},
                            {"memory", gpu.memory},
                            {"memory_used", gpu.memory_used},
                            {"power_w", rounded(gpu.power_mw / 1000.0)},
                            {"celsius", gpu.celsius},
                            {"clock_mhz", gpu.clock_mhz},
                            {"throttled_by", throttle_reasons(gpu.throttle)},
                            {"xid", gpu.xid == 0 ? OrderedJson() : OrderedJson(gpu.xid)}});
  return json;
}

/// The keys mean the same as in the report (docs/users/report.md), whose last lines and traceback are longer.
OrderedJson failure_json(const std::optional<Failure>& failure) {
  if (!failure) return {};
  const bool worker = failure->of_worker();
  std::vector<std::string> lines = failure->last_stderr;
  if (lines.size() > kStderrLines) lines.erase(lines.begin(), lines.end() - kStderrLines);
  for (std::string& line : lines)
    if (line.size() > kStderrBytes) line.resize(kStderrBytes);
  const auto exception = exception_of(*failure);
  return {{"text", failure_line(*failure)},
          {"host", text_or_null(failure->host)},
          {"rank", worker ? OrderedJson(failure->rank) : OrderedJson()},
          {"attempt", failure->attempt},
          {"exception",
           exception ? OrderedJson(exception_text(*exception).substr(0, kExceptionBytes)) : OrderedJson()},
          {"out_of_memory", text_or_null(failure->evidence.oom)},
          {"xid", text_or_null(failure->evidence.xid)},
          {"waited_for", text_or_null(failure->waited_for)},
          {"hint", text_or_null(hint_for(*failure))},
          {"stderr_tail", lines}};
}

/// What is wrong with a node, for all who show nodes.
struct Health {
  enum Level : std::uint8_t { kGood, kDoubtful, kBad };
  Level level = kGood;
  std::vector<std::string> troubles;

  void add(Level trouble_level, std::string trouble) {
    level = std::max(level, trouble_level);
    troubles.push_back(std::move(trouble));
  }
};

/// Returns how many steps a node's slowest rank that has not ended is behind the foremost rank; 0: few enough
/// to be no more than the ranks' reports, which come once a second and not at the same moment.
std::uint64_t steps_behind(const JobStatus& status, const JobStatus::NodeStatus& node) {
  constexpr double kReports = 2.5;  // seconds
  std::optional<std::uint64_t> step;
  for (const auto& report : node.reports)
    if (report && !report->ended) step = std::min(step.value_or(report->step), report->step);
  const auto& [foremost, seconds] = std::pair(status.progress.last_step, status.progress.step_seconds);
  if (!step || !foremost || *foremost <= *step) return 0;
  const double most = seconds && *seconds > 0 ? std::ceil(kReports / *seconds) : 1;
  const std::uint64_t behind = *foremost - *step;
  return static_cast<double>(behind) > most ? behind : 0;
}

Health health_of(const JobStatus& status, const JobStatus::NodeStatus& node) {
  constexpr std::chrono::seconds kSilent{3};  // a message comes each second
  Health health;
  const bool lost = node.state == "lost", runs = status.state == "running" || status.state == "stalled";
  if (lost) health.add(Health::kBad, "lost");
  if (node.failed > 0) health.add(Health::kBad, counted(node.failed, "rank") + " failed");
  if (node.silence && *node.silence >= kSilent)
    health.add(Health::kBad, "silent for " + format_elapsed(*node.silence));
  if (runs && !lost && node.running + node.ended < node.ranks)
    health.add(Health::kDoubtful,
               std::to_string(node.running) + " of " + counted(node.ranks, "rank") + " run");
  if (const std::uint64_t steps = runs ? steps_behind(status, node) : 0; steps > 0)
    health.add(Health::kDoubtful, counted(steps, "step") + " behind");
  if (!node.usage) return health;
  const bool has_xid =
      std::ranges::any_of(node.usage->gpus, [](const rendezvous::GpuSample& gpu) { return gpu.xid != 0; });
  for (std::string& trouble : gpu_troubles(*node.usage))
    health.add(has_xid ? Health::kBad : Health::kDoubtful, std::move(trouble));
  return health;
}

}  // namespace

std::string status_json(const JobStatus& status) {
  OrderedJson json{
      {"format", 1},
      {"job", status.job},
      {"state", status.state},
      {"why", text_or_null(status.why)},
      {"age_s", in_seconds(status.age)},
      {"world_size", status.world_size == 0 ? OrderedJson() : OrderedJson(status.world_size)},
      {"attempt", status.attempt},
      {"restarts", status.restarts},
      {"max_restarts", status.max_restarts},
      {"output_bytes", status.output_bytes},
      {"directory", status.directory},
      {"step", or_null(status.progress.step)},
      {"step_s", or_null(status.progress.step_seconds)},
      {"step_age_s",
       status.progress.step_age ? OrderedJson(in_seconds(*status.progress.step_age)) : OrderedJson()},
      {"loss", or_null(status.progress.loss)},
      {"goodput", rounded(status.progress.goodput())},
      {"usage", usage_json(status.usage)},
      {"failure", failure_json(status.failure)},
      {"hang", hang_json(status.hang)},
      {"warnings", status.warnings},
      {"nodes", OrderedJson::array()}};
  for (const JobStatus::NodeStatus& node : status.nodes) {
    constexpr std::array kLevels = {"good", "doubtful", "bad"};
    const bool runs = node.ranks > 0;
    const Health health = health_of(status, node);
    json["nodes"].push_back(
        {{"node", node.name},
         {"state", node.state},
         {"health", kLevels[health.level]},
         {"trouble", text_or_null(join(health.troubles, ", "))},
         {"first_rank", runs ? OrderedJson(node.first_rank) : OrderedJson()},
         {"ranks", node.ranks},
         {"running", node.running},
         {"silence_s", node.silence ? OrderedJson(rounded(in_seconds(*node.silence))) : OrderedJson()},
         {"step", or_null(node.lowest_step())},
         {"steps", OrderedJson::array()},
         {"losses", OrderedJson::array()},
         {"phases", OrderedJson::array()},
         {"step_seconds", OrderedJson::array()},
         {"usage", usage_json(node.usage)}});
    for (const auto& report : node.reports) {
      json["nodes"].back()["steps"].push_back(report ? OrderedJson(report->step) : OrderedJson());
      json["nodes"].back()["losses"].push_back(report ? or_null(report->loss) : OrderedJson());
      json["nodes"].back()["phases"].push_back(report ? report->phase : "");
      json["nodes"].back()["step_seconds"].push_back(report ? or_null(report->step_seconds) : OrderedJson());
    }
  }
  return json_line(json);
}

namespace {

MetricLabels label(const char* name, std::string value) {
  return {{name, std::move(value)}};
}

class MetricsBuilder {
 public:
  explicit MetricsBuilder(MetricLabels common) { table_.common = std::move(common); }

  void family(const char* name, const char* type, const char* help) {
    table_.families.push_back({std::string("ddplaunch_") + name, type, help, {}});
  }
  /// A sample whose name has a suffix, as those of a histogram have.
  template <class Number>
  void part(const char* suffix, Number value, MetricLabels labels = {}) {
    table_.families.back().samples.push_back({suffix, std::move(labels), value});
  }
  template <class Number>
  void sample(Number value, MetricLabels labels = {}) {
    part("", value, std::move(labels));
  }
  MetricsTable take() { return std::move(table_); }

 private:
  MetricsTable table_;
};

void add_step_durations(MetricsBuilder& text, const JobProgress::Figures& progress) {
  text.family("step_duration_seconds", "histogram", "Durations of the steps of each rank.");
  std::uint64_t count = 0;
  auto next = progress.durations.counts.begin();
  for (std::uint32_t i = 0; i <= StepDurations::kBounds; ++i) {
    // Prometheus' buckets are cumulative: each counts all steps up to its bound, and the last one all.
    if (next != progress.durations.counts.end() && next->first == i) count += (next++)->second;
    const bool last = i == StepDurations::kBounds;
    text.part("_bucket", count, label("le", last ? "+Inf" : format_text("%.4g", StepDurations::bound(i))));
  }
  text.part("_sum", progress.durations.seconds);
  text.part("_count", count);
}

void add_steps(MetricsBuilder& text, const JobStatus& status) {
  const JobProgress::Figures& progress = status.progress;
  if (!progress.step) return;
  text.family("step", "gauge", "Steps that all ranks have completed.");
  text.sample(*progress.step);
  text.family("step_lag", "gauge", "Steps that a node's slowest rank is behind the foremost rank.");
  for (const JobStatus::NodeStatus& node : status.nodes)
    if (const auto step = node.lowest_step())
      text.sample(*progress.last_step - *step, label("node", node.name));
  if (progress.loss) {
    text.family("loss", "gauge", "Loss of the last step, of the lowest rank that reports one.");
    text.sample(*progress.loss);
  }
  add_step_durations(text, progress);
  if (!progress.step_seconds) return;
  text.family("last_step_seconds", "gauge",
              "Duration of a step over the last 10 to 20 s, or of the present one if longer.");
  text.sample(*progress.step_seconds);
}

void add_nodes(MetricsBuilder& text, const JobStatus& status) {
  text.family("heartbeat_delay_seconds", "gauge", "Time since the last message of a connected node.");
  for (const JobStatus::NodeStatus& node : status.nodes)
    if (node.silence)
      text.sample(std::chrono::duration<double>(*node.silence).count(), label("node", node.name));
  if (status.progress.xids.empty()) return;
  text.family("xid_errors_total", "counter", "Xid errors of NVIDIA's driver, found after a failure.");
  for (const auto& [node, numbers] : status.progress.xids)
    for (const auto& [number, count] : numbers)
      text.sample(static_cast<std::uint64_t>(count), {{"node", node}, {"xid", std::to_string(number)}});
}

/// One value of each node whose usage is known.
void add_node_family(MetricsBuilder& text, const JobStatus& status, const char* name, const char* help,
                     double (*value)(const rendezvous::NodeSample&)) {
  text.family(name, "gauge", help);
  for (const JobStatus::NodeStatus& node : status.nodes)
    if (node.usage) text.sample(value(*node.usage), label("node", node.name));
}

/// Two rates of each node whose usage is known.
void add_rate_family(MetricsBuilder& text, const JobStatus& status, const char* name, const char* help,
                     std::pair<const char*, const char*> directions,
                     std::uint64_t rendezvous::NodeSample::*first,
                     std::uint64_t rendezvous::NodeSample::*second) {
  text.family(name, "gauge", help);
  for (const JobStatus::NodeStatus& node : status.nodes) {
    if (!node.usage) continue;
    text.sample((*node.usage).*first, {{"node", node.name}, {"direction", directions.first}});
    text.sample((*node.usage).*second, {{"node", node.name}, {"direction", directions.second}});
  }
}

/// One value of each GPU.
void add_gpu_family(MetricsBuilder& text, const JobStatus& status, const char* name, const char* help,
                    double (*value)(const rendezvous::GpuSample&)) {
  text.family(name, "gauge", help);
  for (const JobStatus::NodeStatus& node : status.nodes) {
    if (!node.usage) continue;
    for (const rendezvous::GpuSample& gpu : node.usage->gpus)
      text.sample(value(gpu), {{"node", node.name}, {"gpu", std::to_string(gpu.index)}});
  }
}

void add_usage(MetricsBuilder& text, const JobStatus& status) {
  using rendezvous::GpuSample;
  using rendezvous::NodeSample;
  if (status.usage.nodes == 0) return;
  add_node_family(text, status, "node_cpus", "CPUs of the machine.",
                  [](const NodeSample& node) { return static_cast<double>(node.cpus); });
  add_node_family(text, status, "node_cpus_busy", "CPUs that all processes of the machine keep busy.",
                  [](const NodeSample& node) { return static_cast<double>(node.cpu_milli) / 1000; });
  add_node_family(text, status, "job_cpus_busy", "CPUs that the processes of the job keep busy.",
                  [](const NodeSample& node) { return static_cast<double>(node.job_cpu_milli) / 1000; });
  add_node_family(text, status, "node_memory_bytes", "Memory of the machine.",
                  [](const NodeSample& node) { return static_cast<double>(node.memory); });
  add_node_family(text, status, "node_memory_used_bytes", "Memory that the kernel could not free.",
                  [](const NodeSample& node) { return static_cast<double>(node.memory_used); });
  add_node_family(text, status, "job_memory_used_bytes", "Memory of the processes of the job.",
                  [](const NodeSample& node) { return static_cast<double>(node.job_memory); });
  add_rate_family(text, status, "node_network_bytes_per_second", "Traffic of the machine.", {"in", "out"},
                  &NodeSample::network_in, &NodeSample::network_out);
  add_rate_family(text, status, "node_infiniband_bytes_per_second",
                  "Traffic over InfiniBand and RoCE of the machine.", {"in", "out"},
                  &NodeSample::infiniband_in, &NodeSample::infiniband_out);
  add_rate_family(text, status, "node_disk_bytes_per_second", "Traffic of the machine's disks.",
                  {"read", "written"}, &NodeSample::disk_read, &NodeSample::disk_written);
  if (status.usage.gpus == 0) return;
  add_gpu_family(text, status, "gpu_busy_ratio", "Part of the time in which a kernel ran.",
                 [](const GpuSample& gpu) { return gpu.busy / 100.0; });
  add_gpu_family(text, status, "gpu_memory_bytes", "Memory of the GPU.",
                 [](const GpuSample& gpu) { return static_cast<double>(gpu.memory); });
  add_gpu_family(text, status, "gpu_memory_used_bytes", "Memory that processes use.",
                 [](const GpuSample& gpu) { return static_cast<double>(gpu.memory_used); });
  add_gpu_family(text, status, "gpu_power_watts", "Power of the GPU; 0: not known.",
                 [](const GpuSample& gpu) { return gpu.power_mw / 1000.0; });
  add_gpu_family(text, status, "gpu_temperature_celsius", "Temperature of the GPU; 0: not known.",
                 [](const GpuSample& gpu) { return static_cast<double>(gpu.celsius); });
  add_gpu_family(text, status, "gpu_clock_hertz", "Clock of the multiprocessors; 0: not known.",
                 [](const GpuSample& gpu) { return gpu.clock_mhz * 1e6; });
  add_gpu_family(text, status, "gpu_throttled", "1: power, heat or hardware lowers the clock.",
                 [](const GpuSample& gpu) { return throttle_reasons(gpu.throttle).empty() ? 0.0 : 1.0; });
  add_gpu_family(text, status, "gpu_last_xid", "Number of the last Xid error of this attempt; 0: none.",
                 [](const GpuSample& gpu) { return static_cast<double>(gpu.xid); });
}

double unix_seconds(std::chrono::system_clock::time_point time) {
  return std::chrono::duration<double>(time.time_since_epoch()).count();
}

}  // namespace

MetricsTable metrics_of(const JobStatus& status) {
  const JobProgress::Figures& progress = status.progress;
  MetricsBuilder text({{"job", status.job}, {"run", status.run}});
  text.family("job_info", "gauge", "Constant 1; the labels name the job.");
  text.sample(std::uint64_t{1}, label("version", std::string(version())));
  text.family("job_state", "gauge", "1 for the present state of the job, 0 for the others.");
  for (const char* const state : kJobStates)
    text.sample(std::uint64_t{status.state == state}, label("state", state));
  text.family("start_time_seconds", "gauge", "When ddplaunch started, in seconds since 1970.");
  text.sample(unix_seconds(status.started));
  if (status.end) {
    text.family("end_time_seconds", "gauge", "When the job ended, in seconds since 1970.");
    text.sample(unix_seconds(status.end->at));
    text.family("exit_code", "gauge", "Exit code of the job.");
    text.sample(static_cast<double>(status.end->exit_code));
  }
  std::map<std::string, std::uint64_t> nodes;
  int running = 0, ended = 0, others = 0, lost = 0;
  for (const JobStatus::NodeStatus& node : status.nodes) {
    ++nodes[node.state];
    running += node.running;
    ended += node.ended;
    (node.state == "lost" ? lost : others) += node.ranks - node.running - node.ended;
  }
  text.family("ranks", "gauge", "Ranks of the present attempt in each state.");
  text.sample(static_cast<std::uint64_t>(others), label("state", "starting"));
  text.sample(static_cast<std::uint64_t>(running), label("state", "running"));
  text.sample(static_cast<std::uint64_t>(ended), label("state", "ended"));
  text.sample(static_cast<std::uint64_t>(lost), label("state", "lost"));
  text.family("nodes", "gauge", "Nodes in each state.");
  for (const auto& [state, count] : nodes)
    text.sample(count, label("state", state));
  text.family("attempts_total", "counter", "Attempts that have begun.");
  text.sample(std::uint64_t{status.attempt} + 1);
  text.family("failures_total", "counter", "Failed attempts by cause.");
  for (std::size_t i = 0; i < progress.failures.size(); ++i)
    text.sample(static_cast<std::uint64_t>(progress.failures[i]),
                label("cause", JobProgress::kCauseNames[i]));
  text.family("nodes_lost_total", "counter", "Nodes that were lost.");
  text.sample(static_cast<std::uint64_t>(progress.nodes_lost));
  text.family("time_seconds", "gauge", "Time of the job by phase. Goodput is train over all.");
  for (std::size_t i = 0; i < progress.spent.size(); ++i) {
    text.sample(std::chrono::duration<double>(progress.spent[i]).count(),
                label("phase", JobProgress::kPhaseNames[i]));
  }
  text.family("output_bytes_total", "counter", "Bytes that the workers wrote.");
  text.sample(status.output_bytes);
  add_nodes(text, status);
  add_usage(text, status);
  add_steps(text, status);
  return text.take();
}

namespace {

/// Appends name="value", with the escapes that Prometheus demands.
void append_labels(std::string& text, const MetricLabels& labels) {
  for (const auto& [name, value] : labels) {
    text += (text.ends_with('{') ? "" : ",") + std::string(name) + "=\"";
    for (const char c : value) {
      if (c == '\\' || c == '"') text += '\\';
      text += c == '\n' ? std::string("\\n") : std::string(1, c);
    }
    text += '"';
  }
}

}  // namespace

std::string metrics_text(const JobStatus& status) {
  const MetricsTable table = metrics_of(status);
  std::string text;
  for (const MetricFamily& family : table.families) {
    text += "# HELP " + family.name + ' ' + std::string(family.help) + "\n# TYPE " + family.name + ' ' +
            family.type + '\n';
    for (const MetricFamily::Sample& sample : family.samples) {
      text += family.name + sample.suffix + '{';
      append_labels(text, table.common);
      append_labels(text, sample.labels);
      const auto* const real = std::get_if<double>(&sample.value);
      text += "} " +
              (real != nullptr ? format_text("%.17g", *real)
                               : std::to_string(std::get<std::uint64_t>(sample.value))) +
              '\n';
    }
  }
  return text;
}

}  // namespace ddp::launcher
