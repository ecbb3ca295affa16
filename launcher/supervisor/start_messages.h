#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "launcher/job/job_spec.h"
#include "remote/hosts/host.h"
#include "rendezvous/membership/rank_plan.h"
#include "rendezvous/membership/slot_table.h"
#include "rendezvous/protocol/message.h"

namespace ddp::launcher {

/// Returns the time as protocol messages carry it.
std::uint32_t to_ms(std::chrono::milliseconds value);

/// Returns the nodes that hold up a start, each with its step: "2 of 64 nodes: gpu07 (connecting), gpu09
/// (running --setup)". Empty: none. `awaited` holds the names by step.
std::string awaited_text(const std::map<std::string, std::vector<std::string>>& awaited, std::size_t nodes);

/// Converts --nproc-per-node for the rank plan.
rendezvous::ProcsWanted procs_wanted(const JobSpec& spec);

/// Returns the job for `host`, one of `nodes` that run it. A local host gets the environment for this
/// machine, others the one for other machines.
rendezvous::JobStart job_start(const JobSpec& spec, const remote::Host& host, std::size_t nodes);

/// Returns the time from TERM to KILL on a node that has lost the master.
std::chrono::milliseconds link_grace(const JobSpec& spec);

/// Returns the ranks of one participant of the world. The sender fills in attempt and network.
rendezvous::Spawn spawn_message(const rendezvous::World& world, std::size_t participant);

}  // namespace ddp::launcher
