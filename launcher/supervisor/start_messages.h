#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

#include "launcher/job/job_spec.h"
#include "remote/hosts/host.h"
#include "rendezvous/membership/rank_plan.h"
#include "rendezvous/membership/slot_table.h"
#include "rendezvous/protocol/message.h"

namespace ddp::launcher {

/// As messages carry times.
std::uint32_t to_ms(std::chrono::milliseconds value);

/// "90 s", "1.5 s", "300 ms": a limit that ran out, for people.
std::string limit_text(std::chrono::milliseconds limit);

/// --nproc-per-node as the rank plan takes it.
rendezvous::ProcsWanted procs_wanted(const JobSpec& spec);

/// The job as `host` gets it, one of `nodes` that run it. Its environment is the one for other machines, or
/// the one for ours.
rendezvous::JobStart job_start(const JobSpec& spec, const remote::Host& host, std::size_t nodes);

/// From TERM to KILL on a node that has lost the master.
std::chrono::milliseconds link_grace(const JobSpec& spec);

/// The ranks of one place of the world; the sender fills in attempt and network.
rendezvous::Spawn spawn_message(const rendezvous::World& world, std::size_t participant);

}  // namespace ddp::launcher
