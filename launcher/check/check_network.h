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

/// Whether NCCL finds an interface to use by NCCL_SOCKET_IFNAME=`value` on a node that has `interfaces`: a
/// list of prefixes, of names behind a leading "=", of what is not to be used behind a leading "^" (or "^=").
/// https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html
bool nccl_finds(const std::vector<rendezvous::Interface>& interfaces, std::string_view value);

/// The names of GLOO_SOCKET_IFNAME=`value`, a list of whole names, that the node lacks: "eth1, ib0".
std::string gloo_lacks(const std::vector<rendezvous::Interface>& interfaces, std::string_view value);

/// What diagnose_nodes finds of the way between the nodes (sans-IO).
std::vector<CheckDiagnostic> network_diagnostics(const JobSpec& spec, const CheckResult& result);

/// A text whose advice stands behind its first ';', as the texts of the agent's refusals are worded.
std::pair<std::string, std::string> advice_apart(const std::string& text);

/// Whether only one of several hosts could be asked: then nothing is known of the network between them.
bool one_of_several(const CheckResult& result);

/// The way that the job would take, in words; empty: none was found. `result.network` holds one.
std::string network_reason(const CheckResult& result);

}  // namespace ddp::launcher
