#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>

#include "base/asio.h"
#include "launcher/control/control_socket.h"
#include "launcher/master/master_links.h"
#include "launcher/supervisor/node_records.h"
#include "rendezvous/protocol/message.h"

namespace ddp::launcher {

/// The requests about running workers that the control socket got: asks the nodes and gathers their answers.
/// It changes nothing of the job. Loop thread.
class WorkerQueries {
 public:
  /// Bytes that one request gathers; the rest is dropped and counts as missing.
  static constexpr std::size_t kMostText = 16u << 20;

  WorkerQueries(asio::io_context& loop, const NodeRecords& nodes, const MasterLinks& links)
      : loop_(loop), nodes_(nodes), links_(links) {}

  /// See ControlHandlers. `running`: workers run.
  std::uint32_t start(const WorkerRequest& request, bool running, ControlHandlers::WorkersAnswered done);
  void cancel(std::uint32_t number);
  void answered(std::size_t node, const rendezvous::QueryAnswer& answer);
  void node_gone(std::size_t node);
  /// The job ends: answers all requests, so that no timer is left.
  void end();

 private:
  struct GatheredReply {
    explicit GatheredReply(asio::io_context& loop) : deadline(loop) {}
    std::map<std::uint32_t, WorkerReply::Text> texts;  ///< by rank
    WorkerReply reply;
    std::set<std::size_t> nodes;  ///< whose answers are not complete
    std::size_t bytes = 0;
    ControlHandlers::WorkersAnswered done;
    asio::steady_timer deadline;
  };
  using Requests = std::map<std::uint32_t, GatheredReply>;
  void leave_out(Requests::iterator request, std::size_t node, const std::string& trouble);
  void finish_if_complete(Requests::iterator request);

  asio::io_context& loop_;
  const NodeRecords& nodes_;
  const MasterLinks& links_;
  Requests requests_;
  std::uint32_t last_ = 0;
};

}  // namespace ddp::launcher
