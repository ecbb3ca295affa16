#include "launcher/report/job_status.h"

#include "launcher/report/json_values.h"

namespace ddp::launcher {

std::string status_json(const JobStatus& status) {
  OrderedJson json{{"job", status.job},
                   {"state", status.state},
                   {"age_s", in_seconds(status.age)},
                   {"world_size", status.world_size == 0 ? OrderedJson() : OrderedJson(status.world_size)},
                   {"attempt", status.attempt},
                   {"max_restarts", status.max_restarts},
                   {"output_bytes", status.output_bytes},
                   {"directory", status.directory},
                   {"nodes", OrderedJson::array()}};
  for (const JobStatus::NodeStatus& node : status.nodes) {
    const bool runs = node.ranks > 0;
    json["nodes"].push_back({{"node", node.name},
                             {"state", node.state},
                             {"first_rank", runs ? OrderedJson(node.first_rank) : OrderedJson()},
                             {"ranks", node.ranks}});
  }
  return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace) + '\n';
}

}  // namespace ddp::launcher
