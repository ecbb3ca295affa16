#include "launcher/report/job_metrics.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <string_view>

#include "base/build_identity.h"
#include "base/format_text.h"

namespace ddp::launcher {
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
  void sample(double value, const Labels& labels = {}) {
    text_ += name_ + (labels.empty() ? "" : '{' + labels + '}') + format_text(" %.17g\n", value);
  }
  void sample(std::uint64_t value, const Labels& labels = {}) {
    text_ += name_ + (labels.empty() ? "" : '{' + labels + '}') + ' ' + std::to_string(value) + '\n';
  }
  std::string take() { return std::move(text_); }

 private:
  std::string text_;
  std::string name_;
};

void add_steps(MetricsText& text, const JobStatus& status) {
  const JobProgress::Figures& progress = status.progress;
  if (!progress.step) return;
  text.family("step", "gauge", "Steps that all ranks have completed.");
  text.sample(*progress.step);
  text.family("step_lag", "gauge", "Steps that a node's slowest rank is behind the foremost rank.");
  for (const JobStatus::NodeStatus& node : status.nodes)
    if (const auto step = node.lowest_step())
      text.sample(*progress.last_step - *step, label("node", node.name));
  if (!progress.step_seconds) return;
  text.family("step_duration_seconds", "gauge", "Duration of a step, measured over 10 to 20 s.");
  text.sample(*progress.step_seconds);
}

}  // namespace

std::string metrics_text(const JobStatus& status) {
  const JobProgress::Figures& progress = status.progress;
  MetricsText text;
  text.family("job_info", "gauge", "Constant 1; the labels name the job.");
  text.sample(std::uint64_t{1}, label("job", status.job) + ',' + label("version", version()));
  text.family("job_state", "gauge", "1 for the present state of the job.");
  text.sample(std::uint64_t{1}, label("state", status.state));
  text.family("ranks", "gauge", "World size of the present attempt.");
  text.sample(static_cast<std::uint64_t>(status.world_size));
  std::map<std::string, std::uint64_t> nodes;
  for (const JobStatus::NodeStatus& node : status.nodes)
    ++nodes[node.state];
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
  add_steps(text, status);
  return text.take();
}

}  // namespace ddp::launcher
