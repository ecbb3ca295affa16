#include "launcher/report/job_status.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string_view>

#include "base/program.h"
#include "base/text.h"
#include "launcher/report/report_json.h"

namespace ddp::launcher {
std::optional<std::uint64_t> JobStatus::NodeStatus::lowest_step() const {
  std::optional<std::uint64_t> lowest;
  for (const auto& report : reports)
    if (report) lowest = std::min(lowest.value_or(report->step), report->step);
  return lowest;
}

std::string status_json(const JobStatus& status) {
  OrderedJson json{
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
      {"goodput", std::round(status.progress.goodput() * 1000) / 1000},
      {"warnings", status.warnings},
      {"nodes", OrderedJson::array()}};
  for (const JobStatus::NodeStatus& node : status.nodes) {
    const bool runs = node.ranks > 0;
    json["nodes"].push_back({{"node", node.name},
                             {"state", node.state},
                             {"first_rank", runs ? OrderedJson(node.first_rank) : OrderedJson()},
                             {"ranks", node.ranks},
                             {"running", node.running},
                             {"step", or_null(node.lowest_step())},
                             {"steps", OrderedJson::array()},
                             {"losses", OrderedJson::array()},
                             {"phases", OrderedJson::array()},
                             {"step_seconds", OrderedJson::array()}});
    for (const auto& report : node.reports) {
      json["nodes"].back()["steps"].push_back(report ? OrderedJson(report->step) : OrderedJson());
      json["nodes"].back()["losses"].push_back(report ? or_null(report->loss) : OrderedJson());
      json["nodes"].back()["phases"].push_back(report ? report->phase : "");
      json["nodes"].back()["step_seconds"].push_back(report ? or_null(report->step_seconds) : OrderedJson());
    }
  }
  return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace) + '\n';
}

namespace {

using Labels = std::string;

/// Returns name="value" with the escapes that Prometheus demands.
Labels label(const char* name, std::string_view value) {
  std::string text = std::string(name) + "=\"";
  for (const char c : value) {
    if (c == '\\' || c == '"') text += '\\';
    text += c == '\n' ? std::string("\\n") : std::string(1, c);
  }
  return text + '"';
}

class MetricsText {
 public:
  void family(const char* name, const char* type, const char* help) {
    name_ = std::string("ddplaunch_") + name;
    text_ += "# HELP " + name_ + ' ' + help + "\n# TYPE " + name_ + ' ' + type + '\n';
  }
  /// A sample whose name has a suffix, as those of a histogram have.
  void part(const char* suffix, double value, const Labels& labels = {}) {
    add(suffix, labels, format_text("%.17g", value));
  }
  void part(const char* suffix, std::uint64_t value, const Labels& labels = {}) {
    add(suffix, labels, std::to_string(value));
  }
  template <class Number>
  void sample(Number value, const Labels& labels = {}) {
    part("", value, labels);
  }
  std::string take() { return std::move(text_); }

 private:
  void add(const char* suffix, const Labels& labels, const std::string& value) {
    text_ += name_ + suffix + (labels.empty() ? "" : '{' + labels + '}') + ' ' + value + '\n';
  }

  std::string text_;
  std::string name_;
};

void add_step_durations(MetricsText& text, const JobProgress::Figures& progress) {
  text.family("step_duration_seconds", "histogram", "Durations of the steps of each rank.");
  std::uint64_t count = 0;
  for (std::size_t i = 0; i < progress.durations.counts.size(); ++i) {
    count += progress.durations.counts[i];
    // Prometheus' buckets are cumulative: each counts all steps up to its bound, and the last one all.
    const bool last = i == StepDurations::kBounds.size();
    text.part("_bucket", count, label("le", last ? "+Inf" : format_text("%g", StepDurations::kBounds[i])));
  }
  text.part("_sum", progress.durations.seconds);
  text.part("_count", count);
}

void add_steps(MetricsText& text, const JobStatus& status) {
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

void add_nodes(MetricsText& text, const JobStatus& status) {
  text.family("heartbeat_delay_seconds", "gauge", "Time since the last message of a connected node.");
  for (const JobStatus::NodeStatus& node : status.nodes)
    if (node.silence)
      text.sample(std::chrono::duration<double>(*node.silence).count(), label("node", node.name));
  if (status.progress.xids.empty()) return;
  text.family("xid_errors_total", "counter", "Xid errors of NVIDIA's driver, found after a failure.");
  for (const auto& [node, numbers] : status.progress.xids)
    for (const auto& [number, count] : numbers)
      text.sample(static_cast<std::uint64_t>(count),
                  label("node", node) + ',' + label("xid", std::to_string(number)));
}

}  // namespace

std::string metrics_text(const JobStatus& status) {
  const JobProgress::Figures& progress = status.progress;
  MetricsText text;
  text.family("job_info", "gauge", "Constant 1; the labels name the job.");
  text.sample(std::uint64_t{1}, label("job", status.job) + ',' + label("version", version()));
  text.family("job_state", "gauge", "1 for the present state of the job.");
  text.sample(std::uint64_t{1}, label("state", status.state));
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
  add_steps(text, status);
  return text.take();
}

}  // namespace ddp::launcher
