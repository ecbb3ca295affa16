#pragma once

#include <string>
#include <vector>

#include "apps/ddplaunch/options/findings.h"
#include "apps/ddplaunch/options/options.h"
#include "remote/hosts/host.h"

namespace ddp {

/// --hosts-from `source`: "slurm" and "env" (what a scheduler put into the environment), "-" (standard input)
/// or the name of a hostfile. False: nothing usable was there, and `findings` says what was looked for.
bool read_hosts_from(const std::string& source, const Surroundings& surroundings,
                     std::vector<remote::Host>& hosts, Findings& findings);

}  // namespace ddp
