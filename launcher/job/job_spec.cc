#include "launcher/job/job_spec.h"

#include <algorithm>

#include "rendezvous/protocol/message.h"

namespace ddp::launcher {

std::string WatchRule::text() const {
  constexpr std::size_t kShown = 60;
  return "--watch '" + pattern.substr(0, kShown) + (pattern.size() > kShown ? "…" : "") + '=' +
         kActions.at(static_cast<std::size_t>(action)) + '\'';
}

StreamChoice operator|(const StreamChoice& one, const StreamChoice& other) {
  StreamChoice both;
  both.others = one.others | other.others;
  const auto of = [](const StreamChoice& choice, int local_rank) {
    const auto found = choice.by_local.find(local_rank);
    return found == choice.by_local.end() ? choice.others : found->second;
  };
  for (const StreamChoice* side : {&one, &other}) {
    for (const auto& [local_rank, streams] : side->by_local)
      both.by_local[local_rank] = of(one, local_rank) | of(other, local_rank);
  }
  return both;
}

bool OutputOptions::shows(std::uint32_t rank, int local_rank, std::uint8_t stream) const {
  // As with torchrun: --redirects sends a stream to its file only, --tee to both.
  if (redirects.has(local_rank, stream) && !tee.has(local_rank, stream)) return false;
  return selects(rank, local_rank);
}

bool OutputOptions::selects(std::uint32_t rank, int local_rank) const {
  if (!local_ranks_filter.empty() &&
      std::find(local_ranks_filter.begin(), local_ranks_filter.end(), local_rank) == local_ranks_filter.end())
    return false;
  return show_ranks.empty() || std::any_of(show_ranks.begin(), show_ranks.end(), [rank](const auto& range) {
           return range.first <= rank && rank <= range.second;
         });
}

StreamChoice OutputOptions::copied() const {
  if (tee.any() || redirects.any()) return tee | redirects;
  StreamChoice all;
  all.others = 3;
  return all;
}

JoinJob join_job(const JobSpec& spec) {
  JoinJob own;
  own.command = spec.command;
  own.chdir = spec.chdir;
  own.explicit_env = spec.explicit_env;
  own.setup = spec.setup;
  // Counts that depend on the node (auto, gpu, cpu) are planned by the master from the node's hello.
  if (spec.nproc.rule == rendezvous::ProcsRule::kNumber)
    own.workers = static_cast<std::uint32_t>(spec.nproc.number);
  return own;
}

rendezvous::JobStart lay_over(const rendezvous::JobStart& master, const JoinJob& own) {
  // A setting of the whole job comes from the master. All that says what runs on a node, and in which
  // environment, is named here, so that nothing of it comes from another machine (decision 0015).
  rendezvous::JobStart job = master;
  job.command = own.command;
  job.chdir = own.chdir;
  job.env.clear();
  job.explicit_env = own.explicit_env;
  job.devices.clear();
  job.local = false;
  job.setup = own.setup;
  return job;
}

}  // namespace ddp::launcher
