#pragma once

#include <string>
#include <string_view>

#include "base/result.h"

namespace ddp::train {

/// Where NCCL's ranks meet, as texts for the directory. No NCCL in it.

/// How many ids a world of `ranks` meets over: one for each `per_root` of them.
int nccl_roots(int ranks, int per_root);
/// Whose id number `root` is: NCCL deals the ranks out to the ids in equal parts, the first ones larger by
/// one, and the first rank of a part makes its id.
int nccl_root_rank(int root, int roots, int ranks);
std::string nccl_root_key(const std::string& group, int root);

/// With the version of the library that made it.
std::string encode_nccl_id(std::string_view id, int version);
/// Another version than this rank's is an error (kUsage): NCCL's ranks must have the same. `by` says whose.
Result<std::string> decode_nccl_id(std::string_view text, int version, const std::string& by);

/// "2.28.9" of 22809; "2.8.4" of 2804.
std::string nccl_version_text(int version);

}  // namespace ddp::train
