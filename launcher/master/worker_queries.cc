#include "launcher/master/worker_queries.h"

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "base/text.h"
#include "launcher/master/node_link.h"

namespace ddp::launcher {
namespace {

/// The time for an answer to arrive after its node's deadline.
constexpr std::chrono::seconds kSlack{3};

}  // namespace

std::uint32_t WorkerQueries::start(const WorkerRequest& request, bool running,
                                   ControlHandlers::WorkersAnswered done) {
  std::map<std::size_t, rendezvous::Query> queries;
  for (std::size_t i = 0; running && i < nodes_.size(); ++i) {
    if (!nodes_.running_participant(i, nodes_.attempt())) continue;
    const rendezvous::RankAssignment& assignment = *nodes_.assignment(i);
    for (int local = 0; local < assignment.local_world_size; ++local) {
      const auto rank = static_cast<std::uint32_t>(assignment.first_rank + local);
      if (!request.rank || rank == *request.rank) queries[i].ranks.push_back(rank);
    }
  }
  if (queries.empty()) {
    WorkerReply none;
    const int ranks = nodes_.world().world_size;
    const std::string rank = std::to_string(request.rank.value_or(0));
    if (!request.rank)
      none.troubles.emplace_back("no worker runs");
    else if (ranks > 0 && *request.rank >= static_cast<std::uint32_t>(ranks))
      none.troubles.push_back("the job has no rank " + rank + ", only " + (ranks == 1 ? "rank " : "ranks ") +
                              format_number_range(0, ranks));
    else
      none.troubles.push_back("rank " + rank + " does not run: it has ended, or has not started yet");
    done(std::move(none));
    return 0;
  }
  const std::uint32_t number = ++last_;
  const auto at = requests_.try_emplace(number, loop_).first;
  at->second.done = std::move(done);
  for (auto& [node, query] : queries) {
    at->second.nodes.insert(node);
    query.request = number;
    query.argv = request.argv;
    query.timeout_ms = static_cast<std::uint32_t>(request.timeout.count());
    links_[node]->send(query);
  }
  at->second.deadline.expires_after(request.timeout + kSlack);
  at->second.deadline.async_wait([this, number](const error_code& cancelled) {
    const auto late = requests_.find(number);
    if (cancelled || late == requests_.end()) return;
    while (!late->second.nodes.empty())
      leave_out(late, *late->second.nodes.begin(), "it did not answer in time");
    finish_if_complete(late);
  });
  return number;
}

void WorkerQueries::cancel(std::uint32_t number) {
  const auto found = requests_.find(number);
  if (found == requests_.end()) return;
  for (const std::size_t node : found->second.nodes)
    links_[node]->send(rendezvous::CancelQuery{number});
  requests_.erase(found);
}

void WorkerQueries::answered(std::size_t node, const rendezvous::QueryAnswer& answer) {
  const auto found = requests_.find(answer.request);
  if (found == requests_.end() || !found->second.nodes.contains(node)) return;
  GatheredReply& waiting = found->second;
  if (!answer.last) {
    waiting.bytes += answer.text.size();
    // The bytes are counted even when they are dropped, so that finish_if_complete() can say so.
    if (!nodes_.runs(node, answer.rank) || waiting.bytes > kMostText) return;
    WorkerReply::Text& text = waiting.texts[answer.rank];
    text.rank = answer.rank;
    text.node = nodes_[node].name;
    text.text += answer.text;
    return;
  }
  waiting.reply.exit_code = answer.code;
  if (!answer.trouble.empty()) leave_out(found, node, answer.trouble.substr(0, NodeLimits::kNoticeBytes));
  waiting.nodes.erase(node);
  finish_if_complete(found);
}

void WorkerQueries::leave_out(Requests::iterator request, std::size_t node, const std::string& trouble) {
  request->second.reply.troubles.push_back(nodes_[node].name + ": " + trouble);
  request->second.nodes.erase(node);
}

void WorkerQueries::finish_if_complete(Requests::iterator request) {
  GatheredReply& waiting = request->second;
  if (!waiting.nodes.empty()) return;
  if (waiting.bytes > kMostText) waiting.reply.troubles.emplace_back("there is more text than is kept");
  for (auto& [rank, text] : waiting.texts)
    waiting.reply.texts.push_back(std::move(text));
  const ControlHandlers::WorkersAnswered done = std::move(waiting.done);
  WorkerReply reply = std::move(waiting.reply);
  // Removed before the handler runs, which may start or cancel requests.
  requests_.erase(request);
  done(std::move(reply));
}

void WorkerQueries::node_gone(std::size_t node) {
  for (auto at = requests_.begin(); at != requests_.end();) {
    const auto request = at++;
    if (!request->second.nodes.contains(node)) continue;
    leave_out(request, node, "the node was lost");
    finish_if_complete(request);
  }
}

void WorkerQueries::end() {
  for (std::size_t node = 0; node < nodes_.size(); ++node)
    node_gone(node);
}

}  // namespace ddp::launcher
