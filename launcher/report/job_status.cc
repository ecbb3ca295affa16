#include "launcher/report/job_status.h"

#include <algorithm>
#include <cmath>

#include "launcher/report/json_values.h"

namespace ddp::launcher {
namespace {

template <class T>
OrderedJson or_null(const std::optional<T>& value) {
  return value ? OrderedJson(*value) : OrderedJson();
}

}  // namespace

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

}  // namespace ddp::launcher
