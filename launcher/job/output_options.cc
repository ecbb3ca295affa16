#include "launcher/job/output_options.h"

#include <algorithm>

namespace ddp::launcher {

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

}  // namespace ddp::launcher
