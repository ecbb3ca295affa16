#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "launcher/check/check_diagnosis.h"
#include "launcher/check/check_run.h"
#include "launcher/job/job_spec.h"
#include "rendezvous/protocol/message.h"

namespace ddp::launcher {

/// Returns whether NCCL_SOCKET_IFNAME=`value` lets NCCL find an interface on a node that has `interfaces`.
/// The value is a list of prefixes, or of whole names after a leading "=". A leading "^" (or "^=") excludes
/// them instead. https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html
bool nccl_finds(const std::vector<rendezvous::Interface>& interfaces, std::string_view value);

/// The names in GLOO_SOCKET_IFNAME=`value`, a list of whole names, that the node lacks: "eth1, ib0".
std::string gloo_lacks(const std::vector<rendezvous::Interface>& interfaces, std::string_view value);

/// The part of diagnose_nodes that concerns the network between the nodes (sans-IO).
std::vector<CheckDiagnostic> network_diagnostics(const JobSpec& spec, const CheckResult& result);

/// Splits a text from its advice, which follows the first ';' as in the agent's refusals.
std::pair<std::string, std::string> advice_apart(const std::string& text);

/// Returns whether only one of several hosts could be asked; the network between them is then unknown.
bool one_of_several(const CheckResult& result);

/// Returns why the job would use its network, as text; empty: no network was found. `result.network` must
/// hold one.
std::string network_reason(const CheckResult& result);

}  // namespace ddp::launcher
